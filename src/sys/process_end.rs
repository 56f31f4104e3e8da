//! The exit status of a process that is not a child.

use std::os::fd::{AsFd, AsRawFd};

/// `PIDFD_GET_INFO` of linux/pidfd.h (kernel 6.13): `_IOWR(0xFF, 11, struct pidfd_info)`, with the
/// first size of the structure.
const GET_INFO: u64 = (3 << 30) | ((size_of::<PidfdInfo>() as u64) << 16) | (0xFF << 8) | 11;

/// `PIDFD_INFO_EXIT` (kernel 6.15): requests the exit status.
const EXIT: u64 = 1 << 3;

/// `struct pidfd_info`, in its first size.
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

/// The wait status (waitpid(2)) of a process that has ended and was reaped. `None` if it was not,
/// or before Linux 6.15.
pub fn status_of_reaped(pidfd: impl AsFd) -> Option<i32> {
    let mut info = PidfdInfo { mask: EXIT, ..PidfdInfo::default() };
    let descriptor = pidfd.as_fd().as_raw_fd();
    // SAFETY: the request has the structure's length, and the kernel writes no more. The
    // descriptor is open; the kernel refuses one that is no pidfd.
    let done = unsafe { libc::ioctl(descriptor, GET_INFO as _, &raw mut info) };
    (done == 0 && info.mask & EXIT != 0).then_some(info.exit_code)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn a_reaped_process_has_its_exit_status_if_the_kernel_supports_it() {
        assert_eq!(size_of::<PidfdInfo>(), 64);
        for (script, status) in [("kill -9 $$", 9), ("exit 3", 3 << 8)] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            child.wait().unwrap();
            let status_found = status_of_reaped(&pidfd);
            assert!(status_found.is_none_or(|found| found == status), "{script}: {status_found:?}");
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(status_of_reaped(&file), None);
    }
}
