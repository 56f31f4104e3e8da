//! The ledger of leases: a locked file that all starts of a node share, with or without a daemon.
//!
//! `leases.json` is replaced as a whole while `leases.lock` is locked. A ledger that cannot be read
//! is moved aside: it must not keep every engine down. Only its owner's processes write it, since
//! the folder is root's.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::files::open_regular;
use crate::model::{LeaseHolder, ProcessId};
use crate::parse::process::stat;
use crate::policy::leases::LeaseBook;

const LEDGER: &str = "leases.json";
const LOCK: &str = "leases.lock";

/// Files of holders begin so.
const HOLDER: &str = "holder-";

/// A longer file is not ours.
const MOST_BYTES: u64 = 16 << 20;

/// The lock is held for milliseconds. On a busy machine half a second passes until it is free.
const LOCK_TRIES: u32 = 250;
const LOCK_TICK: Duration = Duration::from_millis(2);

/// What holds the lock has hung if no attempt succeeds for this time.
const HUNG_AFTER: Duration = Duration::from_secs(5);

/// The ledger of a node.
#[derive(Clone, Debug)]
pub struct LeaseLedger {
    folder: PathBuf,
    procfs: PathBuf,
    /// Its device number; `None` where there is none.
    procfs_device: Option<u64>,
    /// The first of the attempts to lock it that have failed in a row.
    busy_since: Arc<Mutex<Option<Instant>>>,
}

impl LeaseLedger {
    /// The ledger in that folder, whose holders are in that procfs. Does not open it yet.
    pub fn new(folder: &Path, procfs: &Path) -> Self {
        let procfs_device = fs::metadata(procfs.join("self")).ok().map(|about| about.dev());
        let (folder, procfs) = (folder.to_owned(), procfs.to_owned());
        Self { folder, procfs, procfs_device, busy_since: Arc::default() }
    }

    /// Reads the ledger, changes it, and writes it if it has changed.
    ///
    /// # Errors
    /// The folder or a file cannot be used, or the lock is held.
    pub fn update<T>(&self, change: impl FnOnce(&mut LeaseBook) -> T) -> Result<T, String> {
        let _lock = self.lock()?;
        let mut book = self.load()?;
        let before = book.clone();
        let result = change(&mut book);
        if book != before {
            self.store(&book).map_err(|error| self.failed("write", LEDGER, &error))?;
        }
        Ok(result)
    }

    /// The ledger as it is; empty where there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self) -> Result<LeaseBook, String> {
        self.parse().map_err(|error| self.failed("read", LEDGER, &error))
    }

    /// This ledger, by a name that is the same for all processes and nodes: the boot id of the
    /// machine, and the folder. Without the folder it is not complete.
    pub fn name(&self) -> Arc<str> {
        let boot_id = fs::read_to_string(self.procfs.join("sys/kernel/random/boot_id"));
        let folder = fs::metadata(&self.folder);
        let (device, inode) = folder.map_or((0, 0), |folder| (folder.dev(), folder.ino()));
        format!("{}-{device:x}-{inode:x}", boot_id.unwrap_or_default().trim()).into()
    }

    /// This process, as the procfs shows it.
    pub fn own_process(&self) -> Option<LeaseHolder> {
        // Its number, too, is one of the procfs, which may be another container's or the host's.
        let own = fs::read_link(self.procfs.join("self")).ok()?;
        self.process(own.to_str()?.parse().ok()?)
    }

    /// What has started this process, and waits for it.
    pub fn parent_process(&self) -> Option<LeaseHolder> {
        let own = stat(&fs::read(self.procfs.join("self/stat")).ok()?)?;
        self.process(own.parent).filter(|parent| parent.process.pid > 1)
    }

    fn process(&self, pid: u32) -> Option<LeaseHolder> {
        let text = fs::read(self.procfs.join(pid.to_string()).join("stat")).ok()?;
        let process = ProcessId { pid, start_ticks: stat(&text)?.start_ticks };
        Some(LeaseHolder { process, procfs: self.procfs_device? })
    }

    /// Locks a file for this process and, unless it is closed at exec(2), for the command that it
    /// becomes. So others see that they live, whatever their PID namespace.
    ///
    /// # Errors
    /// The file cannot be made or locked.
    pub fn hold(&self, holder: LeaseHolder) -> io::Result<File> {
        self.sweep();
        let path = self.folder.join(holder_file(holder));
        // Under its name it is locked from the beginning.
        let new = path.with_extension("new");
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        fs::rename(&new, &path)?;
        Ok(file)
    }

    /// Removes the files of holders that have ended and have no lease.
    fn sweep(&self) {
        let Ok(book) = self.read() else { return };
        let holders = book.leases().iter().filter_map(|lease| lease.request.holder);
        let named: BTreeSet<String> = holders.map(holder_file).collect();
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let is_over = |name: &str| name.starts_with(HOLDER) && !named.contains(name);
        for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(is_over)) {
            if is_abandoned(&entry.path()) {
                // Another process may have removed it.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Whether a process is known to have ended.
    pub fn has_ended(&self, holder: LeaseHolder) -> bool {
        if self.procfs_device != Some(holder.procfs) {
            return is_abandoned(&self.folder.join(holder_file(holder)));
        }
        let ProcessId { pid, start_ticks } = holder.process;
        match fs::read(self.procfs.join(pid.to_string()).join("stat")) {
            Ok(text) => stat(&text).is_none_or(|stat| {
                stat.start_ticks != start_ticks || matches!(stat.state, 'Z' | 'X')
            }),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    fn lock(&self) -> Result<File, String> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.folder);
        made.map_err(|error| self.failed("create", "", &error))?;
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600).custom_flags(flags);
        let lock = options.open(self.folder.join(LOCK));
        let lock = lock.map_err(|error| self.failed("open", LOCK, &error))?;
        let mut tries = 0;
        loop {
            tries += 1;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    self.set_busy(false);
                    return Ok(lock);
                }
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR)
                    if tries < LOCK_TRIES =>
                {
                    std::thread::sleep(LOCK_TICK);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let path = self.folder.join(LOCK).display().to_string();
                    return Err(match self.set_busy(true) < HUNG_AFTER {
                        true => format!("{path} is busy: another process has locked it"),
                        false => {
                            format!("{path} stays locked: what holds it has hung: `fuser {path}`")
                        }
                    });
                }
                Err(error) => return Err(self.failed("lock", LOCK, &error.into())),
            }
        }
    }

    /// Notes whether another process has the lock, and returns for how long it has had it.
    fn set_busy(&self, is_busy: bool) -> Duration {
        let mut since = self.busy_since.lock().unwrap_or_else(PoisonError::into_inner);
        *since = is_busy.then(|| since.unwrap_or_else(Instant::now));
        since.map(|since| since.elapsed()).unwrap_or_default()
    }

    fn load(&self) -> Result<LeaseBook, String> {
        match self.parse() {
            Ok(book) => Ok(book),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let (from, to) = (self.folder.join(LEDGER), self.folder.join("leases.broken"));
                fs::rename(from, to).map_err(|error| self.failed("move", LEDGER, &error))?;
                Ok(LeaseBook::default())
            }
            Err(error) => Err(self.failed("read", LEDGER, &error)),
        }
    }

    fn parse(&self) -> io::Result<LeaseBook> {
        let file = match open_regular(&self.folder.join(LEDGER)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(LeaseBook::default());
            }
            Err(error) => return Err(error),
        };
        let mut text = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut text)?;
        serde_json::from_slice(&text)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    fn store(&self, book: &LeaseBook) -> io::Result<()> {
        let new = self.folder.join("leases.new");
        // What a killed writer has left behind.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?;
        // Everybody may see who waits for whom, whatever the writer's umask is.
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.write_all(&serde_json::to_vec(book)?)?;
        fs::rename(&new, self.folder.join(LEDGER))
    }

    fn failed(&self, what: &str, file: &str, error: &io::Error) -> String {
        let path = self.folder.join(file).display().to_string();
        let path = path.trim_end_matches('/');
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "; run this as root, or let starts: {folder: FOLDER} in the configuration file \
                 name a folder that may be written"
                    .to_owned()
            }
            _ => String::new(),
        };
        format!("cannot {what} {path}: {error}{remedy}")
    }
}

/// Whether a holder had locked this file, and nobody does any more.
fn is_abandoned(path: &Path) -> bool {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else {
        return false;
    };
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn holder_file(LeaseHolder { process, procfs }: LeaseHolder) -> String {
    format!("{HOLDER}{procfs:x}-{:x}-{:x}", process.pid, process.start_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{GateRequest, LeaseRequest};

    fn request(id: &str) -> LeaseRequest {
        LeaseRequest::new(id.into(), id.into(), GateRequest::of(1 << 30))
    }

    fn add(ledger: &LeaseLedger, id: &str) -> Result<(), String> {
        ledger.update(|book| book.request(Duration::ZERO, &request(id)))?
    }

    #[test]
    fn all_processes_see_one_book() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = LeaseLedger::new(&folder.path().join("run"), Path::new("/proc"));
        assert_eq!(ledger.read(), Ok(LeaseBook::default()));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let ledger = ledger.clone();
                scope.spawn(move || {
                    for number in 0..10 {
                        let id = format!("{thread}-{number}");
                        // On a busy machine seven others may hold the lock for half a second.
                        let is_locked = |why: &String| why.contains(LOCK);
                        let mut tries = (0..100).map(|_| add(&ledger, &id));
                        let end = tries.find(|added| !added.as_ref().is_err_and(is_locked));
                        end.expect("the lock comes free").unwrap();
                    }
                });
            }
        });
        assert_eq!(ledger.read().unwrap().leases().len(), 80, "none is lost");
    }

    #[test]
    fn a_broken_ledger_is_moved_aside_and_a_locked_one_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = LeaseLedger::new(folder.path(), Path::new("/proc"));
        for broken in ["", "{", "[1]", "\0\0"] {
            fs::write(folder.path().join(LEDGER), broken).unwrap();
            assert!(ledger.read().is_err());
            add(&ledger, "one").unwrap();
            assert_eq!(ledger.read().unwrap().leases().len(), 1);
        }
        let lock = ledger.lock().unwrap();
        let why = add(&ledger, "two").unwrap_err();
        assert!(why.ends_with("leases.lock is busy: another process has locked it"), "{why}");
        *ledger.busy_since.lock().unwrap() = Instant::now().checked_sub(HUNG_AFTER);
        let why = add(&ledger, "two").unwrap_err();
        assert!(why.contains("what holds it has hung: `fuser "), "{why}");
        drop(lock);
        add(&ledger, "two").unwrap();
        assert_eq!(*ledger.busy_since.lock().unwrap(), None);
        // A link in place of the lock is not followed.
        fs::remove_file(folder.path().join(LOCK)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join(LOCK)).unwrap();
        assert!(add(&ledger, "three").is_err());
    }

    #[test]
    fn a_holder_is_known_by_pid_and_start() {
        let ledger = LeaseLedger::new(Path::new("/nonexistent"), Path::new("/proc"));
        let own = ledger.own_process().unwrap();
        assert_eq!(own.process.pid, std::process::id());
        let parent = ledger.parent_process().unwrap();
        assert_eq!(parent.process.pid, std::os::unix::process::parent_id());
        assert!(!ledger.has_ended(own) && !ledger.has_ended(parent));
        let with =
            |pid, start_ticks| LeaseHolder { process: ProcessId { pid, start_ticks }, ..own };
        assert!(ledger.has_ended(with(own.process.pid, own.process.start_ticks + 1)));
        assert!(ledger.has_ended(with(u32::MAX, 1)));
        // Its number means nothing here.
        let other = LeaseHolder { procfs: own.procfs + 1, ..with(u32::MAX, 1) };
        assert!(!ledger.has_ended(other));
    }

    #[test]
    fn a_holder_of_another_procfs_is_known_by_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = LeaseLedger::new(folder.path(), Path::new("/proc"));
        let own = ledger.own_process().unwrap();
        let other = LeaseHolder { procfs: own.procfs + 1, ..own };
        let held = ledger.hold(other).unwrap();
        assert!(!ledger.has_ended(other));
        drop(held);
        assert!(ledger.has_ended(other) && ledger.has_ended(other));
        fs::remove_file(folder.path().join(holder_file(other))).unwrap();
        assert!(!ledger.has_ended(other), "its file is gone");
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join(holder_file(other))).unwrap();
        assert!(!ledger.has_ended(other), "a link is not followed");
        drop(ledger.hold(own).unwrap());
        let held = ledger.hold(other).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "what ended is swept");
        drop(held);
    }
}
