//! The file whose presence requests a reboot. kured watches it, and drains and reboots a Kubernetes
//! node in its turn; so do tools of distributions.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, open, renameat_with};

use super::{Attempt, WRITING_TAKES, apart};
use crate::model::{DecisionRecord, RebootOrder, without_unprintable};
use crate::supervisors::NotEnded;

/// The first line of our file. A file with another one is foreign, and left alone.
const OURS: &str = "umawarden asks for a reboot of this machine\n";

/// The size limit of a read file, in bytes.
const MOST_BYTES: u64 = 4096;

/// The author of an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Us,
    SomebodyElse,
}

pub(super) fn create(file: &Path, decision: &DecisionRecord, order: &RebootOrder) -> Attempt {
    let text = format!(
        "{OURS}why: {}\nrule: {}\ndecision: {}\nboot: {}\nto prevent it: umawarden reboot \
         --cancel\n",
        without_unprintable(&order.plan.why, ' '),
        without_unprintable(&decision.rule.to_string(), ' '),
        decision.id,
        without_unprintable(&order.boot_id, ' '),
    );
    let path = file.to_owned();
    let shown = file.display();
    match apart("reboot-sentinel", WRITING_TAKES, move || write(&path, &text)) {
        Ok(Ok(None)) => {
            Attempt::Agreed(format!("{shown} requests a reboot from the tools that watch it"))
        }
        Ok(Ok(Some(Owner::Us))) => {
            Attempt::Agreed(format!("{shown} requests a reboot already, by umawarden"))
        }
        Ok(Ok(Some(Owner::SomebodyElse))) => {
            Attempt::Agreed(format!("{shown} requests a reboot already, by another program"))
        }
        Ok(Err(error)) => Attempt::Failed(format!("{shown}: {error}: no reboot is requested")),
        Err(NotEnded::TimedOut) => Attempt::Hangs(format!("{shown}: the file system hangs")),
        Err(NotEnded::Broken(why)) => Attempt::Failed(why),
    }
}

/// Removes the file if it is ours. Returns the finding in words.
pub(super) fn remove(file: &Path) -> Result<String, Attempt> {
    let path = file.to_owned();
    let shown = file.display();
    match apart("reboot-sentinel", WRITING_TAKES, move || remove_ours(&path)) {
        Ok(Ok(None)) => Ok(format!("{shown} is not there")),
        Ok(Ok(Some(Owner::Us))) => Ok(format!("{shown} is taken away")),
        Ok(Ok(Some(Owner::SomebodyElse))) => {
            Ok(format!("{shown} is of another program, and stays: a reboot may follow"))
        }
        Ok(Err(error)) => Err(Attempt::Failed(format!(
            "{shown} could not be taken away: {error}: remove it by hand, or a reboot follows"
        ))),
        Err(NotEnded::TimedOut) => Err(Attempt::Hangs(format!("{shown}: the file system hangs"))),
        Err(NotEnded::Broken(why)) => Err(Attempt::Failed(why)),
    }
}

/// Creates the file atomically. Returns the author of an existing one.
fn write(file: &Path, text: &str) -> io::Result<Option<Owner>> {
    if let Some((owner, _)) = owner(file)? {
        return Ok(Some(owner));
    }
    let temporary = temporary(file)?;
    // A leftover of a crash.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut new = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temporary)?;
    let done = new
        .write_all(text.as_bytes())
        .and_then(|()| new.sync_all())
        .and_then(|()| Ok(renameat_with(CWD, &temporary, CWD, file, RenameFlags::NOREPLACE)?));
    match done {
        Ok(()) => Ok(None),
        Err(error) => {
            // A leftover does no harm.
            let _ = fs::remove_file(&temporary);
            // Another program was faster.
            let found = (error.kind() == io::ErrorKind::AlreadyExists).then(|| owner(file));
            let found = found.transpose()?.flatten();
            found.map(|(owner, _)| Some(owner)).ok_or(error)
        }
    }
}

fn temporary(file: &Path) -> io::Result<PathBuf> {
    let name = file.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| io::Error::other("that is no name of a file"))?;
    Ok(file.with_file_name(format!(".{name}.umawarden")))
}

fn remove_ours(file: &Path) -> io::Result<Option<Owner>> {
    let Some((owner, inode)) = owner(file)? else { return Ok(None) };
    // The file may have been replaced since it was read.
    let is_it = fs::symlink_metadata(file).is_ok_and(|found| (found.dev(), found.ino()) == inode);
    if owner == Owner::Us && is_it {
        fs::remove_file(file)?;
        return Ok(Some(Owner::Us));
    }
    Ok(Some(Owner::SomebodyElse))
}

/// The author and the identity of the file; `None`: there is none.
fn owner(file: &Path) -> io::Result<Option<(Owner, (u64, u64))>> {
    let found = match fs::symlink_metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    // Links, folders and pipes are not ours.
    if !found.is_file() {
        return Ok(Some((Owner::SomebodyElse, (found.dev(), found.ino()))));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(open(file, flags, Mode::empty())?);
    let found = file.metadata()?;
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text)?;
    let is_ours = text.starts_with(OURS.as_bytes());
    let owner = if is_ours { Owner::Us } else { Owner::SomebodyElse };
    Ok(Some((owner, (found.dev(), found.ino()))))
}
