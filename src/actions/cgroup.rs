//! Files of a control group.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

/// Opens a file below `root` without following links.
pub(super) fn open_below(root: &Path, below: &Path, flags: OFlags) -> io::Result<File> {
    let folder = File::open(root)?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = openat2(&folder, below, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    Ok(opened.into())
}
