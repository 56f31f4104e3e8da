//! Files below a folder, also one that others fill.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// Opens a file of a control group below `root` without following links.
pub(super) fn open_below(root: &Path, below: &Path, flags: OFlags) -> io::Result<File> {
    let folder = File::open(root)?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(open_within(&folder, below, flags, resolve)?.into())
}

/// openat2(2). A filter of system calls may refuse it, which looks like an old kernel.
pub(super) fn open_within(
    folder: impl AsFd,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    openat2(folder, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve).map_err(|error| {
        match error {
            Errno::NOSYS => io::Error::new(
                io::ErrorKind::Unsupported,
                "openat2(2) is refused, by RestrictSUIDSGID=yes of a unit or by a container's \
                 seccomp profile",
            ),
            _ => error.into(),
        }
    })
}
