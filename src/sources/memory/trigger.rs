//! `/proc/pressure/memory` as a trigger: poll(2) returns when tasks wait for memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::file::is_of_the_kernel;

/// How long some task must have waited within a window, in microseconds: a twentieth of it. On a
/// calm machine no task waits.
const PRIVILEGED: &str = "some 50000 1000000";

/// Without CAP_SYS_RESOURCE a window must be a multiple of two seconds, and before Linux 6.4 the
/// file cannot be opened for writing.
const UNPRIVILEGED: &str = "some 100000 2000000";

/// No trigger is available. Callers continue without one.
#[derive(Debug, thiserror::Error)]
#[error("cannot be woken by {}: {error}", path.display())]
pub struct NoTrigger {
    path: PathBuf,
    error: io::Error,
}

/// The trigger. It lasts as long as the file is open, and wakes at most once in a window.
#[derive(Debug)]
pub struct PressureTrigger {
    file: File,
}

impl PressureTrigger {
    /// Sets the trigger in the procfs below this root, usually `/proc`.
    ///
    /// # Errors
    /// The kernel has no PSI or refuses this user, or the root is no procfs.
    pub fn set(procfs: &Path) -> Result<Self, NoTrigger> {
        let path = procfs.join("pressure/memory");
        let set = try_set(&path, PRIVILEGED).or_else(|_refused| try_set(&path, UNPRIVILEGED));
        set.map(|file| Self { file }).map_err(|error| NoTrigger { path, error })
    }
}

impl AsFd for PressureTrigger {
    /// Poll it for `PRI`; poll(2) itself clears the event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn try_set(path: &Path, alarm: &str) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    // Only procfs is written to, never a file that merely has the path.
    if !is_of_the_kernel(&file)? {
        return Err(io::Error::other("this is no file of the kernel's"));
    }
    // The kernel replaces the last byte by the end of the string.
    let text = [alarm.as_bytes(), b"\0"].concat();
    rustix::io::write(&file, &text)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::PressureTrigger;

    #[test]
    fn a_pressure_file_outside_procfs_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("pressure")).unwrap();
        let path = folder.path().join("pressure/memory");
        fs::write(&path, "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n").unwrap();
        let before = fs::read(&path).unwrap();
        let error = PressureTrigger::set(folder.path()).unwrap_err().to_string();
        assert!(error.contains("pressure/memory: this is no file of the kernel's"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), before);
    }

    #[test]
    fn missing_pressure_files_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = PressureTrigger::set(folder.path()).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }

    #[test]
    fn this_kernel_accepts_the_trigger_if_it_has_pressure() {
        let procfs = std::path::Path::new("/proc");
        if !procfs.join("pressure/memory").exists() {
            eprintln!("not checked: no PSI here");
            return;
        }
        // Before Linux 6.4 only the privileged may.
        let Ok(trigger) = PressureTrigger::set(procfs) else { return };
        let mut watched = [PollFd::new(&trigger, PollFlags::PRI)];
        poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        assert!(!watched[0].revents().contains(PollFlags::ERR), "it can be waited for");
    }
}
