//! What this process may do here, determined without doing it.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::getpid;
use rustix::thread::{CapabilitySet, capabilities};

use crate::config::settings::Settings;
use crate::sys::page_cache::cachestat;

/// This process's own procfs, whatever `--path.procfs` names.
const UID_MAP: &str = "/proc/self/uid_map";
const OWN_NUMBERS: &str = "/proc/self/ns/pid";
const OWN_PROGRAM: &str = "/proc/self/exe";

/// All user ids: the mapping outside of user namespaces.
const ALL_IDS: &str = "4294967295";

/// The PID namespace of the host, on every kernel (PROC_PID_INIT_INO).
const NUMBERS_OF_HOST: &str = "pid:[4026531836]";

/// The PID namespace of the processes below procfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbers {
    /// Its pids are those of this process.
    Ours,
    /// The same, in a PID namespace below the host's.
    OfAPart,
    /// Another PID namespace.
    Others,
    /// Unknown: it is not a procfs, or does not show this process.
    Unknown,
}

/// The effect of `memory.reclaim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reclaims {
    /// It reclaims the requested amount.
    Exactly,
    /// It reclaims all: cgroup v1.
    Everything,
    /// The kernel is older than 5.19.
    TooOld,
    /// No hierarchy has the memory controller.
    NoController,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DockerAccess {
    /// Its socket is writable.
    Open,
    /// It is not writable, or not a socket.
    Closed(Errno),
    Absent,
}

/// Abilities that actions on engines and control groups need.
#[derive(Clone, Debug)]
pub(super) struct Abilities {
    pub(super) capabilities: CapabilitySet,
    /// In a user namespace, capabilities have no effect outside.
    pub(super) is_in_user_namespace: bool,
    pub(super) numbers: Numbers,
    /// Whether the kernel has cachestat(2).
    pub(super) has_cachestat: bool,
    pub(super) reclaims: Reclaims,
    pub(super) docker: DockerAccess,
}

impl Abilities {
    /// The abilities of this process.
    pub(super) fn find(settings: &Settings) -> Self {
        let sets = capabilities(None);
        let path = &settings.path;
        Self {
            capabilities: sets.map_or(CapabilitySet::empty(), |sets| sets.effective),
            is_in_user_namespace: is_in_user_namespace(),
            numbers: numbers(&path.procfs),
            has_cachestat: has_cachestat(),
            reclaims: reclaims(&path.sysfs.join("fs/cgroup")),
            docker: docker(path.docker()),
        }
    }
}

fn is_in_user_namespace() -> bool {
    // A kernel without user namespaces lacks this file.
    fs::read_to_string(UID_MAP).is_ok_and(|map| !is_whole(&map))
}

fn is_whole(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", ALL_IDS])
}

fn numbers(procfs: &Path) -> Numbers {
    let own = fs::read_link(procfs.join("self")).ok();
    let own = own.and_then(|own| own.to_str()?.parse::<i32>().ok());
    match own {
        Some(own) if own == getpid().as_raw_nonzero().get() => {
            let namespace = fs::read_link(OWN_NUMBERS);
            match namespace.is_ok_and(|namespace| namespace != Path::new(NUMBERS_OF_HOST)) {
                true => Numbers::OfAPart,
                false => Numbers::Ours,
            }
        }
        Some(_) => Numbers::Others,
        None => Numbers::Unknown,
    }
}

fn has_cachestat() -> bool {
    // Permission denied means that it exists.
    let is_missing = |error: io::Error| Errno::from_io_error(&error) == Some(Errno::NOSYS);
    let Ok(own) = File::open(OWN_PROGRAM) else { return true };
    !cachestat(own.as_fd(), 0, 1).is_err_and(is_missing)
}

fn reclaims(root: &Path) -> Reclaims {
    match fs::read_to_string(root.join("cgroup.controllers")) {
        Ok(controllers) if !controllers.split_ascii_whitespace().any(|one| one == "memory") => {
            Reclaims::NoController
        }
        Ok(_) if root.join("memory.reclaim").exists() => Reclaims::Exactly,
        Ok(_) => Reclaims::TooOld,
        Err(_) if root.join("memory").is_dir() => Reclaims::Everything,
        Err(_) => Reclaims::NoController,
    }
}

fn docker(socket: &Path) -> DockerAccess {
    match fs::metadata(socket) {
        Ok(found) if !found.file_type().is_socket() => DockerAccess::Closed(Errno::NOTSOCK),
        Ok(_) => access(socket, Access::WRITE_OK)
            .map_or_else(DockerAccess::Closed, |()| DockerAccess::Open),
        Err(error) if error.kind() == io::ErrorKind::NotFound => DockerAccess::Absent,
        Err(error) => DockerAccess::Closed(Errno::from_io_error(&error).unwrap_or(Errno::ACCESS)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn abilities_of_this_process_are_detected() {
        // A test machine may be a container.
        let is_host = fs::read_link(OWN_NUMBERS).unwrap() == Path::new(NUMBERS_OF_HOST);
        let own = if is_host { Numbers::Ours } else { Numbers::OfAPart };
        assert_eq!(numbers(Path::new("/proc")), own);
        assert!(is_whole("         0          0 4294967295\n"));
        assert!(!is_whole("0 100000 65536\n") && !is_whole("0 0 4294967295\n1 1 1\n"));
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(numbers(folder.path()), Numbers::Unknown);
        symlink("1", folder.path().join("self")).unwrap();
        assert_eq!(numbers(folder.path()), Numbers::Others);
        let socket = folder.path().join("sock");
        assert_eq!(docker(&socket), DockerAccess::Absent);
        let _listener = UnixListener::bind(&socket).unwrap();
        assert_eq!(docker(&socket), DockerAccess::Open);
        fs::write(folder.path().join("file"), "").unwrap();
        assert_eq!(docker(&folder.path().join("file")), DockerAccess::Closed(Errno::NOTSOCK));
    }

    #[test]
    fn each_kind_of_control_groups_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert_eq!(reclaims(root), Reclaims::NoController);
        fs::create_dir(root.join("memory")).unwrap();
        assert_eq!(reclaims(root), Reclaims::Everything);
        fs::write(root.join("cgroup.controllers"), "cpu memoryx\n").unwrap();
        assert_eq!(reclaims(root), Reclaims::NoController);
        fs::write(root.join("cgroup.controllers"), "cpu memory\n").unwrap();
        assert_eq!(reclaims(root), Reclaims::TooOld);
        fs::write(root.join("memory.reclaim"), "").unwrap();
        assert_eq!(reclaims(root), Reclaims::Exactly);
    }
}
