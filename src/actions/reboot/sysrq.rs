//! The kernel reboots by itself (Documentation/admin-guide/sysrq.rst): `s` writes back what is
//! dirty, `u` makes file systems read-only, `b` reboots at once. No process is asked.
//!
//! `/proc/sys/kernel/sysrq` is for keyboards: the file that is written here does not heed it.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use super::{Attempt, apart};
use crate::supervisors::NotEnded;

/// The commands, and how long each has before the next: the kernel does the first two beside
/// whoever asks, and on a stuck disk they never end. Both times are guesses.
const STEPS: [(u8, Duration); 3] =
    [(b's', Duration::from_secs(5)), (b'u', Duration::from_secs(5)), (b'b', Duration::ZERO)];

/// How long a write may take before the next command is given all the same.
const WRITING_TAKES: Duration = Duration::from_secs(4);

/// Does all three below that procfs, and below no other.
pub(super) fn perform(procfs: &Path, sleep: fn(Duration)) -> Attempt {
    let file = procfs.join("sysrq-trigger");
    let mut last = Attempt::Failed("nothing was written".to_owned());
    for (command, pause) in STEPS {
        let path = file.clone();
        let written = apart("reboot-sysrq", WRITING_TAKES, move || write(&path, command));
        let (letter, shown) = (char::from(command), file.display());
        last = match written {
            Ok(Ok(())) => Attempt::Agreed(format!("sysrq s, u, b were written to {shown}")),
            Ok(Err(error)) => {
                Attempt::Failed(format!("sysrq {letter}: {shown}: {error}: it needs root"))
            }
            Err(NotEnded::TimedOut) => Attempt::Hangs(format!("sysrq {letter}: {shown} hangs")),
            Err(NotEnded::Broken(why)) => Attempt::Failed(why),
        };
        if matches!(last, Attempt::Agreed(_)) {
            sleep(pause);
        }
    }
    // Only the last one reboots: what became of the others does not matter.
    last
}

/// Each command is a write of its own, behind the one before where the file is an ordinary one.
fn write(file: &Path, command: u8) -> io::Result<()> {
    OpenOptions::new().append(true).open(file)?.write_all(&[command])
}
