//! The kernel reboots by itself (Documentation/admin-guide/sysrq.rst): `s` writes back dirty
//! pages, `u` makes file systems read-only, `b` reboots at once. No process is notified.
//!
//! `/proc/sys/kernel/sysrq` applies to keyboards only, and not to `sysrq-trigger`.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use super::{Attempt, apart};
use crate::supervisors::NotEnded;

/// The commands, and the pause after each: the kernel performs the first two asynchronously, and on
/// a stuck disk they never end. Both times are guesses.
const STEPS: [(u8, Duration); 3] =
    [(b's', Duration::from_secs(5)), (b'u', Duration::from_secs(5)), (b'b', Duration::ZERO)];

/// The time limit of a write, after which the next command follows.
const WRITING_TAKES: Duration = Duration::from_secs(4);

/// Writes all three commands below `procfs`.
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
    // Only the last command reboots: results of the others do not matter.
    last
}

/// Each command is a write of its own, appended if the file is an ordinary one.
fn write(file: &Path, command: u8) -> io::Result<()> {
    OpenOptions::new().append(true).open(file)?.write_all(&[command])
}
