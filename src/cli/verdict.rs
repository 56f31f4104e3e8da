//! `umawarden verdict`.

use clap::Args;
use jiff::Timestamp;
use serde::Deserialize;

use super::control::{PlaceArguments, entries, list};
use super::{Exit, history};
use crate::cli::output::outln;
use crate::model::{MemoryVerdict, measured_bytes_text};

/// Arguments of `umawarden verdict`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct VerdictArguments {
    /// Where the daemon is.
    #[command(flatten)]
    place: PlaceArguments,
}

const AFTER_HELP: &str = "\
Shows what holds memory that no counter of the kernel names, as the daemon judges it, and what that
follows from:

  clean        nobody uses the GPU, and no more than usual is held
  in_use       somebody uses the GPU
  orphan       only what an engine has left behind uses it: end that
  lingering    it is being given back: wait
  held_shmem   shared memory is held that no engine uses
  reclaimable  nobody holds it, and what may bring it back was not tried yet
  leaked       nobody holds it, and nothing has brought it back: reboot
  wedged       the driver is stuck, by two independent signs at least: reboot
  unknown      something that must be known is not; what, is said

Below that stands who took memory within the last ten seconds, and what shows it: the driver's
figures, what processes have, the kernel's counters, or that one engine alone has the driver open.
stop_engine chooses by that account, and stops nobody where it is not clear.

The same are series, uma_memory_verdict{verdict=\"…\"} and uma_memory_growth_bytes{owner=\"…\"}, for
rules and dashboards.

Exit codes: 0 nothing is wrong; 1 orphan, held_shmem, leaked or wedged; 2 no daemon answers, or this
user may not ask it.";

#[derive(Debug, Deserialize)]
struct Shown {
    verdict: MemoryVerdict,
    meaning: String,
    since: Timestamp,
    evidence: Vec<Reason>,
    account: Account,
}

#[derive(Debug, Deserialize)]
struct Reason {
    text: String,
}

#[derive(Debug, Deserialize)]
struct Account {
    window_seconds: f64,
    grown_bytes: f64,
    entries: Vec<Reason>,
}

/// Runs the command.
///
/// # Errors
/// No daemon answers, or it cannot tell.
pub fn execute(arguments: &VerdictArguments) -> anyhow::Result<Exit> {
    let place = &arguments.place;
    let mut reply = place.client()?.ask("GET", "/api/v1/verdict", None)?;
    // One, told as lists are.
    let one = reply.data.get("verdict").cloned().unwrap_or_default();
    reply.data = serde_json::json!({ "verdict": [one] });
    let shown = entries::<Shown>(reply, "verdict")?;
    if place.json {
        list(&shown, true, "", |_| String::new());
    } else {
        shown.iter().for_each(|(_, shown)| print(shown));
    }
    let is_bad = shown.iter().any(|(_, shown)| {
        matches!(
            shown.verdict,
            MemoryVerdict::Orphan
                | MemoryVerdict::HeldShmem
                | MemoryVerdict::Leaked
                | MemoryVerdict::Wedged
        )
    });
    Ok(if is_bad { Exit::Findings } else { Exit::Fine })
}

fn print(shown: &Shown) {
    let Shown { verdict, meaning, since, evidence, account } = shown;
    outln!("{verdict}, since {since:.0}: {}", history::printable(meaning));
    for reason in evidence {
        outln!("  {}", history::printable(&reason.text));
    }
    let (window, grown) = (account.window_seconds, measured_bytes_text(account.grown_bytes));
    outln!("within {window} s {grown} were taken");
    for entry in &account.entries {
        outln!("  {}", history::printable(&entry.text));
    }
}
