//! Model files that are open: those that are used, and no more than the evictor's share of the
//! descriptors of this process. A folder may hold thousands of files.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::files::MOST_FILES;
use crate::sys::descriptors;

/// The evictor's share: one part in this many of the limit on open files.
const SHARE: usize = 4;

/// What has no name by which it could be opened again takes at most one part in this many of the
/// share.
const PINNED_SHARE: usize = 4;

/// Those of all loads of this process.
static OF_PROCESS: LazyLock<OpenFiles> =
    LazyLock::new(|| OpenFiles::at_most(descriptors::share(SHARE).min(MOST_FILES)));

/// Open files; all clones are the same ones.
#[derive(Clone, Debug)]
pub(super) struct OpenFiles {
    most: usize,
    table: Arc<Mutex<Table>>,
}

impl Default for OpenFiles {
    fn default() -> Self {
        OF_PROCESS.clone()
    }
}

#[derive(Debug, Default)]
struct Table {
    /// By number of the slot: when it was last used, and the file.
    open: BTreeMap<u64, (u64, Arc<OwnedFd>)>,
    /// The number of the slot by when it was last used.
    by_use: BTreeMap<u64, u64>,
    pinned: usize,
    /// Grows with each slot and each use.
    clock: u64,
}

impl OpenFiles {
    /// At most so many, and at least one of each kind.
    pub(super) fn at_most(most: usize) -> Self {
        Self { most: most.max(2), table: Arc::default() }
    }

    /// Takes one on that can be opened again below a root, once its descriptor was needed by
    /// others.
    pub(super) fn admit(&self, file: OwnedFd, root: Arc<OwnedFd>) -> Slot {
        let number = self.table().tick();
        self.insert(number, Arc::new(file));
        Slot { number, way: ReopenWay::Root(root), of: self.clone() }
    }

    /// Keeps a file that cannot be reopened.
    pub(super) fn pin(&self, file: OwnedFd) -> io::Result<Slot> {
        let mut table = self.table();
        if table.pinned >= (self.most / PINNED_SHARE).max(1) {
            return Err(io::Error::other("too many model files without a name are open"));
        }
        table.pinned += 1;
        let number = table.tick();
        drop(table);
        self.close_excess();
        Ok(Slot { number, way: ReopenWay::Pinned(Arc::new(file)), of: self.clone() })
    }

    fn insert(&self, number: u64, file: Arc<OwnedFd>) {
        let mut table = self.table();
        let now = table.tick();
        if let Some((before, _)) = table.open.insert(number, (now, file)) {
            table.by_use.remove(&before);
        }
        table.by_use.insert(now, number);
        drop(table);
        self.close_excess();
    }

    /// Closes the least recently used files beyond the limit.
    fn close_excess(&self) {
        let mut table = self.table();
        let mut closing = Vec::new();
        while table.open.len() + table.pinned > self.most {
            let Some((_, number)) = table.by_use.pop_first() else { break };
            closing.extend(table.open.remove(&number));
        }
        // To close a file may take time, in which others go on.
        drop(table);
        drop(closing);
    }

    /// No thread panics while it holds this lock.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// How a file that was closed is opened again.
#[derive(Debug)]
enum ReopenWay {
    Root(Arc<OwnedFd>),
    /// It never is.
    Pinned(Arc<OwnedFd>),
}

/// The entry of one file among the open ones.
#[derive(Debug)]
pub(super) struct Slot {
    number: u64,
    way: ReopenWay,
    of: OpenFiles,
}

impl Slot {
    /// The file if it is open now; that is no use of it.
    pub(super) fn opened(&self) -> Option<Arc<OwnedFd>> {
        match &self.way {
            ReopenWay::Pinned(file) => Some(Arc::clone(file)),
            ReopenWay::Root(_) => {
                self.of.table().open.get(&self.number).map(|(_, file)| Arc::clone(file))
            }
        }
    }

    /// The root below which it has a name.
    pub(super) fn root(&self) -> Option<&Arc<OwnedFd>> {
        match &self.way {
            ReopenWay::Root(root) => Some(root),
            ReopenWay::Pinned(_) => None,
        }
    }

    /// The file, which is opened again below its root where it was closed.
    pub(super) fn file(
        &self,
        reopen: impl FnOnce(&OwnedFd) -> io::Result<OwnedFd>,
    ) -> io::Result<Arc<OwnedFd>> {
        let ReopenWay::Root(root) = &self.way else {
            return self.opened().ok_or_else(|| io::ErrorKind::NotFound.into());
        };
        let file = match self.opened() {
            Some(file) => file,
            None => Arc::new(reopen(root)?),
        };
        self.of.insert(self.number, Arc::clone(&file));
        Ok(file)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.of.table();
        if matches!(self.way, ReopenWay::Pinned(_)) {
            table.pinned = table.pinned.saturating_sub(1);
        }
        let known = table.open.remove(&self.number);
        if let Some((used, _)) = &known {
            table.by_use.remove(used);
        }
        drop(table);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn null() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    fn opened(open_files: &OpenFiles) -> usize {
        open_files.table().open.len()
    }

    #[test]
    fn the_least_recently_used_file_is_closed_and_reopened_on_use() {
        let open_files = OpenFiles::at_most(3);
        let root = Arc::new(null());
        let slots: Vec<Slot> =
            (0..3).map(|_| open_files.admit(null(), Arc::clone(&root))).collect();
        slots[0].file(|_| unreachable!()).unwrap();
        let last = open_files.admit(null(), Arc::clone(&root));
        assert_eq!(opened(&open_files), 3);
        assert!(slots[0].opened().is_some() && slots[1].opened().is_none());
        slots[1].file(|_| Ok(null())).unwrap();
        assert!(slots[1].opened().is_some() && slots[2].opened().is_none());
        let error = slots[2].file(|_| Err(io::ErrorKind::WouldBlock.into())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop((slots, last));
        assert_eq!(opened(&open_files), 0);
    }

    #[test]
    fn pinned_files_have_a_limit_of_their_own() {
        let open_files = OpenFiles::at_most(8);
        let root = Arc::new(null());
        let named: Vec<Slot> =
            (0..8).map(|_| open_files.admit(null(), Arc::clone(&root))).collect();
        let pinned = [open_files.pin(null()).unwrap(), open_files.pin(null()).unwrap()];
        assert!(open_files.pin(null()).is_err());
        assert_eq!(opened(&open_files), 6);
        assert!(pinned.iter().all(|slot| slot.opened().is_some()));
        drop(pinned);
        assert!(open_files.pin(null()).is_ok());
        drop(named);
    }
}
