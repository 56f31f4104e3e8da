//! How a process ended that is not one's own child.

use std::os::fd::{AsFd, AsRawFd};

/// `PIDFD_GET_INFO` of linux/pidfd.h (kernel 6.13): `_IOWR(0xFF, 11, struct pidfd_info)`, with the
/// structure as long as it was at first.
const GET_INFO: u64 = (3 << 30) | ((size_of::<PidfdInfo>() as u64) << 16) | (0xFF << 8) | 11;

/// `PIDFD_INFO_EXIT` (kernel 6.15): asks for the exit status.
const EXIT: u64 = 1 << 3;

/// `struct pidfd_info`, as long as it was at first.
#[repr(C)]
#[derive(Debug, Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    pid: u32,
    thread_group: u32,
    parent: u32,
    credentials: [u32; 8],
    exit_code: i32,
}

/// The status of a process that has ended and that its parent has taken notice of, as waitpid(2)
/// gives it. `None`: it has not, or this kernel does not tell (before 6.15).
pub fn status_of_reaped(pidfd: impl AsFd) -> Option<i32> {
    let mut info = PidfdInfo { mask: EXIT, ..PidfdInfo::default() };
    let descriptor = pidfd.as_fd().as_raw_fd();
    // SAFETY: the number carries the structure's length, of which the kernel writes no more; the
    // descriptor is open, and where it is no pidfd the kernel refuses.
    let done = unsafe { libc::ioctl(descriptor, GET_INFO as _, &raw mut info) };
    (done == 0 && info.mask & EXIT != 0).then_some(info.exit_code)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn a_reaped_process_tells_how_it_ended_or_the_kernel_cannot() {
        assert_eq!(size_of::<PidfdInfo>(), 64);
        for (script, status) in [("kill -9 $$", 9), ("exit 3", 3 << 8)] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            child.wait().unwrap();
            let told = status_of_reaped(&pidfd);
            assert!(told.is_none_or(|told| told == status), "{script}: {told:?}");
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(status_of_reaped(&file), None);
    }
}
