//! Reads of what belongs to another process, each with a deadline.
//!
//! A process can keep whoever reads its command line, environment or mappings waiting in the kernel
//! for as long as it likes: it maps a file of a file system of its own (FUSE), which never answers,
//! over its arguments. A helper thread reads, and is given up with that process alone.

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
const READ_TAKES: Duration = Duration::from_millis(250);

/// So long the slow answers of one user may take in one look, and of all users but root: its other
/// processes, and theirs, are left out of that look.
const SLOW_OF_USER: Duration = Duration::from_millis(500);
const SLOW_OF_USERS: Duration = Duration::from_secs(2);

/// An answer that took longer is slow. A guess.
const SLOW: Duration = Duration::from_millis(10);

/// A process that did not answer is asked again after so long, if it has answered since.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// So many processes of one user may keep a helper; its others are not asked meanwhile.
const MOST_OF_USER: usize = 3;
/// So many of all users but root, whatever users somebody can be: the rest is root's.
const MOST_OF_USERS: usize = 12;
/// So many of root. Times [`READ_TAKES`], all together are less than a look may take.
const MOST_OF_ROOT: usize = 12;

const ROOT: u32 = 0;

/// A helper does nothing but to read.
const STACK_BYTES: usize = 128 << 10;

/// Most files of a process are no longer.
const USUAL_FILE_BYTES: usize = 4096;

type Work = Box<dyn FnOnce() + Send>;

/// A process that did not answer.
#[derive(Debug)]
struct Silent {
    user: u32,
    again_at: Duration,
    /// The helper that was given up has come back.
    is_over: Arc<AtomicBool>,
}

impl Silent {
    fn is_forgotten(&self, now: Duration) -> bool {
        now >= self.again_at && self.is_over.load(Ordering::Relaxed)
    }
}

/// The beginning of a file of `/proc`.
pub(super) fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(USUAL_FILE_BYTES);
    with_reserve(|| File::open(path))?.take(most).read_to_end(&mut text)?;
    Ok(text)
}

/// Reads with a deadline, and remembers who has missed it.
#[derive(Debug)]
pub(super) struct BoundedReads {
    procfs: PathBuf,
    helper: Option<Sender<Work>>,
    silent: BTreeMap<ProcessId, Silent>,
    /// How long slow answers took in this look, by user.
    slow: BTreeMap<u32, Duration>,
    now: Duration,
    takes: Duration,
}

impl BoundedReads {
    /// Of processes of that procfs.
    pub(super) fn new(procfs: PathBuf) -> Self {
        let (silent, slow, now) = (BTreeMap::new(), BTreeMap::new(), Duration::ZERO);
        Self { procfs, helper: None, silent, slow, now, takes: READ_TAKES }
    }

    /// A look begins: the time is that of the uptime clock.
    pub(super) fn begin(&mut self, now: Duration) {
        self.now = now;
        self.silent.retain(|_, silent| !silent.is_forgotten(now));
        self.slow.clear();
    }

    /// How many processes have not answered, and are not asked for a while.
    pub(super) fn silent(&self) -> usize {
        self.silent.len()
    }

    /// What `read` gives about that process; `None` where it has not answered in time, or is not
    /// asked since it, or others of its user, did not before.
    pub(super) fn ask<T: Send + 'static>(
        &mut self,
        id: ProcessId,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if !self.may_be_asked(id) {
            return None;
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let (to, answer) = sync_channel(1);
        let over = Arc::clone(&is_over);
        let work = move || {
            let read = read();
            over.store(true, Ordering::Relaxed);
            // Whoever asked may have given up.
            let _ = to.send(read);
        };
        let began = Instant::now();
        self.helper()?.send(Box::new(work)).ok()?;
        let answer = answer.recv_timeout(self.takes);
        if let Ok(answer) = answer {
            let took = began.elapsed();
            if took >= SLOW {
                let user = self.user(id.pid);
                *self.slow.entry(user).or_default() += took;
            }
            return Some(answer);
        }
        // It ends with the read, if that ever does.
        self.helper = None;
        let user = self.user(id.pid);
        let comm = std::fs::read(self.procfs.join(format!("{}/stat", id.pid)));
        let comm = comm.ok().and_then(|text| stat(&text)).map(|stat| stat.comm);
        tracing::warn!(
            pid = id.pid,
            comm = comm.as_deref().unwrap_or_default().escape_debug().to_string(),
            uid = user,
            "a process does not let itself be read, and is left out"
        );
        let again_at = self.now + AGAIN_AFTER;
        self.silent.insert(id, Silent { user, again_at, is_over });
        None
    }

    fn may_be_asked(&self, id: ProcessId) -> bool {
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

    /// Whose process it is. Not by the owner of its folder, which is root as soon as the process
    /// wants that (prctl(2), `PR_SET_DUMPABLE`).
    fn user(&self, pid: u32) -> u32 {
        let status = std::fs::read(self.procfs.join(format!("{pid}/status")));
        status.ok().and_then(|text| real_user(&text)).unwrap_or(u32::MAX)
    }

    fn helper(&mut self) -> Option<&Sender<Work>> {
        if self.helper.is_none() {
            let (to, works) = channel::<Work>();
            let builder = Builder::new().name("process-read".to_owned()).stack_size(STACK_BYTES);
            let started = builder.spawn(move || works.iter().for_each(|work| work()));
            if let Err(error) = started {
                tracing::debug!(%error, "no thread to read with");
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
        reads.takes = Duration::from_millis(20);
        reads
    }

    /// Asks one that answers when the sender that comes back is dropped.
    fn ask_silent(reads: &mut BoundedReads, pid: u32) -> (Option<()>, Sender<()>) {
        let (release, released) = channel::<()>();
        let asked = reads.ask(id(pid), move || assert!(released.recv().is_err()));
        (asked, release)
    }

    #[test]
    fn who_hangs_is_given_up_alone_and_asked_again_only_once_it_has_answered() {
        let folder = tempfile::tempdir().unwrap();
        let mut reads = reads(folder.path(), &[(1, 1000), (2, 1000)]);
        reads.begin(seconds(0));
        assert_eq!(reads.ask(id(1), || 5), Some(5));
        let (asked, release) = ask_silent(&mut reads, 1);
        assert_eq!((asked, reads.silent()), (None, 1));
        assert_eq!(reads.ask(id(1), || 5), None, "it is not asked a second time");
        assert_eq!(reads.ask(id(2), || 6), Some(6));
        reads.begin(seconds(40));
        assert_eq!(reads.ask(id(1), || 5), None, "its helper still waits");
        let is_over = Arc::clone(&reads.silent[&id(1)].is_over);
        drop(release);
        while !is_over.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        reads.begin(seconds(29));
        assert_eq!(reads.ask(id(1), || 5), None, "it has answered late just now");
        reads.begin(seconds(30));
        assert_eq!((reads.ask(id(1), || 5), reads.silent()), (Some(5), 0));
        // Whose number it was is another one's.
        let (_, _release) = ask_silent(&mut reads, 1);
        assert_eq!(reads.ask(ProcessId { pid: 1, start_ticks: 8 }, || 5), Some(5));
    }

    #[test]
    fn whoever_answers_slowly_takes_no_more_than_its_share_of_a_look() {
        let folder = tempfile::tempdir().unwrap();
        let users: Vec<(u32, u32)> = (0..40).map(|pid| (pid, 1000 + pid / 20)).collect();
        let mut reads = reads(folder.path(), &users);
        reads.takes = READ_TAKES;
        reads.begin(seconds(0));
        let slowly = || std::thread::sleep(Duration::from_millis(100));
        let answered = (0..20).filter(|pid| reads.ask(id(*pid), slowly).is_some()).count();
        assert!((1..=6).contains(&answered), "{answered}");
        assert_eq!((reads.ask(id(20), || 5), reads.silent()), (Some(5), 0), "another user's");
        reads.begin(seconds(1));
        assert_eq!(reads.ask(id(19), || 5), Some(5), "the next look begins anew");
    }

    #[test]
    fn no_user_and_not_all_of_them_can_take_the_helpers_of_root() {
        let folder = tempfile::tempdir().unwrap();
        let mut users: Vec<(u32, u32)> = (0..60).map(|pid| (pid, 1000 + pid / 10)).collect();
        users.extend([(100, 0), (101, 0)]);
        let mut reads = reads(folder.path(), &users);
        reads.begin(seconds(0));
        let mut held = Vec::new();
        for pid in 0..60 {
            let (asked, release) = ask_silent(&mut reads, pid);
            assert_eq!(asked, None);
            held.push(release);
        }
        assert_eq!(reads.silent(), MOST_OF_USERS);
        assert!((0..4).all(|user| {
            let of_user = reads.silent.values().filter(|silent| silent.user == 1000 + user);
            of_user.count() == MOST_OF_USER
        }));
        assert_eq!(reads.ask(id(59), || 5), None, "nobody else's is asked meanwhile");
        assert_eq!(reads.ask(id(100), || 5), Some(5));
        held.push(ask_silent(&mut reads, 100).1);
        assert_eq!(reads.ask(id(101), || 5), Some(5));
    }
}
