//! Reads of files of another process, each with a deadline.
//!
//! A process can block every reader of its command line, environment or mappings in the kernel: it
//! maps a file of its own file system (FUSE), which never responds, over its arguments. A helper
//! thread reads. Only the read of that process is abandoned.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::model::ProcessId;
use crate::parse::process::{real_user, stat};
use crate::sys::descriptors::with_reserve;

/// One read takes microseconds, and milliseconds on a machine that swaps. A guess.
const READ_TIMEOUT: Duration = Duration::from_millis(250);

/// The total time of slow responses of one user in a scan, and of all users but root. Other
/// processes of the user, or of these users, are then skipped in this scan.
const SLOW_OF_USER: Duration = Duration::from_millis(500);
const SLOW_OF_USERS: Duration = Duration::from_secs(2);

/// A response that takes longer is slow. A guess.
const SLOW: Duration = Duration::from_millis(10);

/// A process that did not respond is read again after this time, if the pending read has returned.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Helpers that processes of one user may block. Other processes of this user are skipped
/// meanwhile.
const MOST_OF_USER: usize = 3;
/// The same for all users but root, whatever user ids somebody can obtain. The rest is reserved for
/// root.
const MOST_OF_USERS: usize = 12;
/// The same for root. The total, times [`READ_TIMEOUT`], is less than the limit of a scan.
const MOST_OF_ROOT: usize = 12;

const ROOT: u32 = 0;

/// A helper only reads.
const STACK_BYTES: usize = 128 << 10;

/// Most files of a process are smaller.
const USUAL_FILE_BYTES: usize = 4096;

type ReadWork = Box<dyn FnOnce() + Send>;

/// A process that did not respond.
#[derive(Debug)]
struct Silent {
    user: u32,
    retry_at: Duration,
    /// The abandoned helper has returned.
    is_over: Arc<AtomicBool>,
}

impl Silent {
    fn is_forgotten(&self, now: Duration) -> bool {
        now >= self.retry_at && self.is_over.load(Ordering::Relaxed)
    }
}

/// Reads the beginning of a file of `/proc`.
pub(super) fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(USUAL_FILE_BYTES);
    with_reserve(|| File::open(path))?.take(most).read_to_end(&mut text)?;
    Ok(text)
}

/// Reads with a deadline, and remembers the processes that missed it.
#[derive(Debug)]
pub(super) struct BoundedReads {
    procfs: PathBuf,
    helper: Option<Sender<ReadWork>>,
    silent: BTreeMap<ProcessId, Silent>,
    /// Time of slow responses in this scan, by user.
    slow: BTreeMap<u32, Duration>,
    now: Duration,
    timeout: Duration,
}

impl BoundedReads {
    /// Reads below this procfs.
    pub(super) fn new(procfs: PathBuf) -> Self {
        let (silent, slow, now) = (BTreeMap::new(), BTreeMap::new(), Duration::ZERO);
        Self { procfs, helper: None, silent, slow, now, timeout: READ_TIMEOUT }
    }

    /// Begins a scan at this uptime.
    pub(super) fn begin(&mut self, now: Duration) {
        self.now = now;
        self.silent.retain(|_, silent| !silent.is_forgotten(now));
        self.slow.clear();
    }

    /// Processes that have not responded and are skipped for a while.
    pub(super) fn silent(&self) -> usize {
        self.silent.len()
    }

    /// The result of `read` for a process. `None` if it did not respond in time, or is skipped
    /// because it or other processes of its user missed a deadline.
    pub(super) fn read<T: Send + 'static>(
        &mut self,
        id: ProcessId,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if !self.may_be_read(id) {
            return None;
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let (to, result) = sync_channel(1);
        let over = Arc::clone(&is_over);
        let work = move || {
            let read = read();
            over.store(true, Ordering::Relaxed);
            // The receiver may have given up.
            let _ = to.send(read);
        };
        let began = Instant::now();
        self.helper()?.send(Box::new(work)).ok()?;
        let result = result.recv_timeout(self.timeout);
        if let Ok(value) = result {
            let took = began.elapsed();
            if took >= SLOW {
                let user = self.user(id.pid);
                *self.slow.entry(user).or_default() += took;
            }
            return Some(value);
        }
        // The helper ends with its read, if the read ever returns.
        self.helper = None;
        let user = self.user(id.pid);
        let comm = std::fs::read(self.procfs.join(format!("{}/stat", id.pid)));
        let comm = comm.ok().and_then(|text| stat(&text)).map(|stat| stat.comm);
        tracing::warn!(
            pid = id.pid,
            comm = comm.as_deref().unwrap_or_default().escape_debug().to_string(),
            uid = user,
            skipped_for = ?RETRY_AFTER,
            "the process blocks its readers"
        );
        let retry_at = self.now + RETRY_AFTER;
        self.silent.insert(id, Silent { user, retry_at, is_over });
        None
    }

    fn may_be_read(&self, id: ProcessId) -> bool {
        if self.silent.is_empty() && self.slow.is_empty() {
            return true;
        }
        if self.silent.contains_key(&id) {
            return false;
        }
        let user = self.user(id.pid);
        let of = |is_one: &dyn Fn(u32) -> bool| {
            self.silent.values().filter(|silent| is_one(silent.user)).count()
        };
        let is_slow = || {
            let of_others = self.slow.iter().filter(|(other, _)| **other != ROOT);
            let of_others: Duration = of_others.map(|(_, took)| *took).sum();
            let own = self.slow.get(&user).copied().unwrap_or_default();
            user != ROOT && (own >= SLOW_OF_USER || of_others >= SLOW_OF_USERS)
        };
        match user {
            _ if is_slow() => false,
            ROOT => of(&|other| other == ROOT) < MOST_OF_ROOT,
            _ => {
                of(&|other| other == user) < MOST_OF_USER
                    && of(&|other| other != ROOT) < MOST_OF_USERS
            }
        }
    }

    /// The user of a process, from its status file. The owner of its folder is root as soon as the
    /// process wants it (prctl(2), `PR_SET_DUMPABLE`).
    fn user(&self, pid: u32) -> u32 {
        let status = std::fs::read(self.procfs.join(format!("{pid}/status")));
        status.ok().and_then(|text| real_user(&text)).unwrap_or(u32::MAX)
    }

    fn helper(&mut self) -> Option<&Sender<ReadWork>> {
        if self.helper.is_none() {
            let (to, works) = channel::<ReadWork>();
            let builder = Builder::new().name("process-read".to_owned()).stack_size(STACK_BYTES);
            let started = builder.spawn(move || works.iter().for_each(|work| work()));
            if let Err(error) = started {
                tracing::debug!(%error, "cannot start the thread process-read");
                return None;
            }
            self.helper = Some(to);
        }
        self.helper.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn id(pid: u32) -> ProcessId {
        ProcessId { pid, start_ticks: 7 }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn reads(folder: &Path, users: &[(u32, u32)]) -> BoundedReads {
        for (pid, user) in users {
            let process = folder.join(pid.to_string());
            fs::create_dir_all(&process).unwrap();
            let status = format!("Name:\tx\nUid:\t{user}\t0\t0\t0\n");
            fs::write(process.join("status"), status).unwrap();
        }
        let mut reads = BoundedReads::new(folder.to_owned());
        reads.timeout = Duration::from_millis(20);
        reads
    }

    /// A read that returns when the returned sender is dropped.
    fn read_silent(reads: &mut BoundedReads, pid: u32) -> (Option<()>, Sender<()>) {
        let (release, released) = channel::<()>();
        let result = reads.read(id(pid), move || assert!(released.recv().is_err()));
        (result, release)
    }

    #[test]
    fn a_hanging_process_is_abandoned_alone_and_retried_once_its_read_returned() {
        let folder = tempfile::tempdir().unwrap();
        let mut reads = reads(folder.path(), &[(1, 1000), (2, 1000)]);
        reads.begin(seconds(0));
        assert_eq!(reads.read(id(1), || 5), Some(5));
        let (result, release) = read_silent(&mut reads, 1);
        assert_eq!((result, reads.silent()), (None, 1));
        assert_eq!(reads.read(id(1), || 5), None, "it is not read a second time");
        assert_eq!(reads.read(id(2), || 6), Some(6));
        reads.begin(seconds(40));
        assert_eq!(reads.read(id(1), || 5), None, "its helper still waits");
        let is_over = Arc::clone(&reads.silent[&id(1)].is_over);
        drop(release);
        while !is_over.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        reads.begin(seconds(29));
        assert_eq!(reads.read(id(1), || 5), None, "its read has only just returned");
        reads.begin(seconds(30));
        assert_eq!((reads.read(id(1), || 5), reads.silent()), (Some(5), 0));
        // The process id has been reused.
        let (_, _release) = read_silent(&mut reads, 1);
        assert_eq!(reads.read(ProcessId { pid: 1, start_ticks: 8 }, || 5), Some(5));
    }

    #[test]
    fn slow_processes_of_a_user_take_a_bounded_share_of_a_scan() {
        let folder = tempfile::tempdir().unwrap();
        let users: Vec<(u32, u32)> = (0..40).map(|pid| (pid, 1000 + pid / 20)).collect();
        let mut reads = reads(folder.path(), &users);
        reads.timeout = READ_TIMEOUT;
        reads.begin(seconds(0));
        let slowly = || std::thread::sleep(Duration::from_millis(100));
        let answered = (0..20).filter(|pid| reads.read(id(*pid), slowly).is_some()).count();
        assert!((1..=6).contains(&answered), "{answered}");
        assert_eq!((reads.read(id(20), || 5), reads.silent()), (Some(5), 0), "another user's");
        reads.begin(seconds(1));
        assert_eq!(reads.read(id(19), || 5), Some(5), "the next scan starts afresh");
    }

    #[test]
    fn users_cannot_exhaust_the_helpers_of_root_alone_or_together() {
        let folder = tempfile::tempdir().unwrap();
        let mut users: Vec<(u32, u32)> = (0..60).map(|pid| (pid, 1000 + pid / 10)).collect();
        users.extend([(100, 0), (101, 0)]);
        let mut reads = reads(folder.path(), &users);
        reads.begin(seconds(0));
        let mut releases = Vec::new();
        for pid in 0..60 {
            let (result, release) = read_silent(&mut reads, pid);
            assert_eq!(result, None);
            releases.push(release);
        }
        assert_eq!(reads.silent(), MOST_OF_USERS);
        assert!((0..4).all(|user| {
            let of_user = reads.silent.values().filter(|silent| silent.user == 1000 + user);
            of_user.count() == MOST_OF_USER
        }));
        assert_eq!(reads.read(id(59), || 5), None, "no other process of a user is read meanwhile");
        assert_eq!(reads.read(id(100), || 5), Some(5));
        releases.push(read_silent(&mut reads, 100).1);
        assert_eq!(reads.read(id(101), || 5), Some(5));
    }
}
