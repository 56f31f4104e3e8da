//! Keeping the process small: what only a start needed leaves its resident memory.
//!
//! Memory that is locked is not taken back by the kernel, however long ago it was used. So what was
//! needed once is given back before memory is locked, and once more when the first minute, in which
//! every part does its first work, is over.

use std::thread::Builder;
use std::time::Duration;

use anyhow::Context as _;
use procfs::{Current as _, Meminfo};

use super::standing::{self, Standing};
use crate::sys;

/// By then everything has run that runs again and again.
const FIRST_MINUTE: Duration = Duration::from_secs(60);

/// With less than one part in this many available nothing is given back: what is used comes back from
/// the page cache, and that may be gone by then.
const CALM_PART: u64 = 8;

/// Gives back what the start has used, now and when the first minute is over, and locks the rest.
pub(super) fn settle_in() -> anyhow::Result<Standing> {
    give_back();
    Builder::new()
        .name("settle".to_owned())
        .spawn(|| {
            std::thread::sleep(FIRST_MINUTE);
            if is_calm() {
                give_back();
            }
        })
        .context("cannot start a thread")?;
    Ok(standing::take())
}

fn give_back() {
    // Where it does not work, only memory is wasted.
    drop(sys::forget_files());
    // Last, since the former takes some for itself.
    sys::give_freed_memory_back();
}

/// This machine's own memory, whatever `--path.procfs` names.
fn is_calm() -> bool {
    Meminfo::current()
        .is_ok_and(|memory| memory.mem_available.unwrap_or(0) > memory.mem_total / CALM_PART)
}
