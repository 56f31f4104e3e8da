//! Puts the model files of a loading engine out of memory, behind its readers.
//!
//! Files are looked at in chunks (`ledger`): what is cached, by cachestat(2), and what of it has
//! been read (`uses`), by the readers' page tables and positions. What was read long enough ago
//! goes: mapped pages by `process_madvise(MADV_PAGEOUT)`, all others by
//! `posix_fadvise(POSIX_FADV_DONTNEED)`. What lies ahead of the readers, what is dirty, and what
//! another process maps stays; no other file is touched. Nothing is changed that would have to be
//! undone: what is used again comes back from its file.
//!
//! It goes on beside all other actions, until the engine no longer loads. Each load has a thread of
//! its own: the files are other people's, and a file system that does not answer keeps its thread.
//! Such a load is given up and reported; all others go on.

mod discover;
mod files;
mod ledger;
mod load;
mod open_files;
mod process;
mod room;
mod session;
mod unload;
mod uses;

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::model::{
    Action, Decision, DecisionId, EngineTarget, ProcessId, RuleId, Target, bytes_text,
};
pub use unload::{Unloaded, unload};

/// How long whoever asked waits for the first pass over all files; it goes on behind that.
const FIRST_PASS_TAKES: Duration = Duration::from_secs(1);

/// Words that nobody has asked for are kept, but not more of them.
const MOST_UNASKED: usize = 64;

/// More engines do not load at a time. Loads that hang count.
const MOST_LOADS: usize = 16;

/// A load of which nothing was heard for so long is given up. A step is one open, one look at a
/// chunk of 16 MiB or at a process; a slow disk takes well below a second for one.
const HANGS_AFTER: Duration = Duration::from_secs(5);

/// The same for one whose first pass somebody waits for.
const HANGS_AT_FIRST: Duration = Duration::from_millis(800);

/// Why it was given up.
const HANGS: &str = "its files or processes do not answer";

/// Why a file is left alone.
const LEASED: &str = "another process holds a lease on it (fcntl F_SETLEASE), so it is left alone";

/// Where the kernel's file systems are mounted.
#[derive(Clone, Debug)]
pub struct Mounts {
    /// `/proc` but for tests and containers.
    pub procfs: PathBuf,
    /// `/sys` but for tests and containers.
    pub sysfs: PathBuf,
}

/// What shall be put out.
#[derive(Clone, Debug)]
struct EvictOrder {
    /// Whose model files.
    target: EngineTarget,
    /// How much of what was read last stays.
    behind_bytes: u64,
    /// How much memory shall stay free.
    floor_bytes: u64,
    /// After this it ends, whatever the engine does.
    lasts: Duration,
    /// Whose act it is.
    rule: RuleId,
}

/// Why nothing was put out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotEvicted {
    /// There is nothing to put out, or not yet; nothing was touched.
    Untouched(String),
    /// It could not be done.
    Failed(String),
}

impl fmt::Display for NotEvicted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untouched(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

impl From<String> for NotEvicted {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl EvictOrder {
    fn of(decision: &Decision) -> Result<Self, String> {
        match (&decision.action, &decision.target) {
            (
                Action::EvictCheckpoint { behind_bytes, floor_bytes, for_at_most, .. },
                Target::Engine(target),
            ) => Ok(Self {
                target: (**target).clone(),
                behind_bytes: *behind_bytes,
                floor_bytes: *floor_bytes,
                lasts: *for_at_most,
                rule: decision.rule.clone(),
            }),
            _ => Err("the decision names no engine".to_owned()),
        }
    }
}

/// What has been put out since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictTally {
    /// Bytes that have left memory.
    pub evicted_bytes: u64,
    /// Bytes of those that have come back while they were watched.
    pub refaulted_bytes: u64,
}

/// Whoever puts out; all clones are the same one.
#[derive(Clone)]
pub struct Evictor {
    shared: Arc<Shared>,
}

/// What the threads and their clients share.
struct Shared {
    uptime: fn() -> Duration,
    evicted_bytes: AtomicU64,
    refaulted_bytes: AtomicU64,
    /// Loads that have ever been followed.
    begun: AtomicU64,
    /// One for each thread, also for one that hangs.
    controls: Mutex<Vec<Arc<Control>>>,
    /// What people shall know, for the journal.
    notes: Mutex<VecDeque<String>>,
    /// What acts have done, until somebody asks.
    effects: Mutex<VecDeque<(DecisionId, String)>>,
}

/// That a thread goes on.
#[derive(Clone, Debug)]
struct Pulse {
    /// When it was last known to go on, in milliseconds of uptime.
    at_ms: Arc<AtomicU64>,
    uptime: fn() -> Duration,
}

impl Default for Pulse {
    fn default() -> Self {
        Self::new(Duration::default)
    }
}

impl Pulse {
    fn new(uptime: fn() -> Duration) -> Self {
        let pulse = Self { at_ms: Arc::default(), uptime };
        pulse.beat();
        pulse
    }

    /// To be called before each step that may hang.
    fn beat(&self) {
        let now = u64::try_from((self.uptime)().as_millis()).unwrap_or(u64::MAX);
        self.at_ms.store(now, Ordering::Relaxed);
    }

    /// How long ago that was.
    fn age(&self) -> Duration {
        let at = Duration::from_millis(self.at_ms.load(Ordering::Relaxed));
        (self.uptime)().saturating_sub(at)
    }
}

/// How one load's thread and its clients talk.
#[derive(Debug)]
struct Control {
    rule: RuleId,
    target: EngineTarget,
    /// It only looks, and changes nothing.
    is_rehearsal: bool,
    /// What the engine is by now, until the thread has taken it.
    now: Mutex<Option<EngineTarget>>,
    /// Why it shall end.
    stop: OnceLock<&'static str>,
    evicted_bytes: AtomicU64,
    /// What lies behind its readers, and goes now or when memory is short.
    lying_bytes: AtomicU64,
    pulse: Pulse,
    /// It was given up.
    hangs: AtomicBool,
}

impl Control {
    fn new(order: &EvictOrder, is_rehearsal: bool, uptime: fn() -> Duration) -> Self {
        Self {
            rule: order.rule.clone(),
            target: order.target.clone(),
            is_rehearsal,
            now: Mutex::default(),
            stop: OnceLock::new(),
            evicted_bytes: AtomicU64::new(0),
            lying_bytes: AtomicU64::new(0),
            pulse: Pulse::new(uptime),
            hangs: AtomicBool::new(false),
        }
    }

    /// The engine's first process: another one is another life of it.
    fn is_of(&self, target: &EngineTarget) -> bool {
        self.target.name == target.name && self.server() == target.processes.first()
    }

    fn server(&self) -> Option<&ProcessId> {
        self.target.processes.first()
    }

    /// Whether it follows a load, and is not about to end.
    fn follows(&self) -> bool {
        !self.is_rehearsal && self.stop.get().is_none()
    }

    fn hangs(&self) -> bool {
        self.hangs.load(Ordering::Relaxed)
    }

    /// Gives it up if nothing was heard of it for so long. Returns whether that is news.
    fn give_up_after(&self, patience: Duration) -> bool {
        if self.pulse.age() < patience || self.hangs.swap(true, Ordering::Relaxed) {
            return false;
        }
        let _first_reason_counts = self.stop.set(HANGS);
        true
    }
}

impl fmt::Debug for Evictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evictor").field("tally", &self.tally()).finish_non_exhaustive()
    }
}

impl Evictor {
    /// One that follows nothing yet; `uptime` is its clock.
    pub fn new(uptime: fn() -> Duration) -> Self {
        let shared = Shared {
            uptime,
            evicted_bytes: AtomicU64::new(0),
            refaulted_bytes: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            controls: Mutex::default(),
            notes: Mutex::default(),
            effects: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Does what was decided; [`Self::effect`] has the words for it. Waits for a second at most.
    ///
    /// # Errors
    ///
    /// Why nothing can be done at all.
    pub(super) fn perform(&self, mounts: Mounts, decision: &Decision) -> Result<(), NotEvicted> {
        let order = EvictOrder::of(decision)?;
        let effect = self.begin(mounts, order)?;
        keep(&self.shared.effects, (decision.id, effect));
        Ok(())
    }

    /// What an act has done, in words; once.
    pub fn effect(&self, decision: DecisionId) -> Option<String> {
        let mut effects = lock(&self.shared.effects);
        let place = effects.iter().position(|(of, _)| *of == decision)?;
        effects.remove(place).map(|(_, effect)| effect)
    }

    /// Begins to follow a load, and says what the first pass has done; where that load is followed
    /// already, how far it is.
    fn begin(&self, mounts: Mounts, order: EvictOrder) -> Result<String, NotEvicted> {
        if let Some(known) = self.following(&order.target) {
            let so_far = bytes_text(known.evicted_bytes.load(Ordering::Relaxed));
            return Ok(format!("its load is followed already; {so_far} put out so far"));
        }
        let (reply, answer) = channel();
        let control = self.start(order, false, move |shared, order, control| {
            session::follow(shared, mounts, order, control, &reply);
        })?;
        match answer.recv_timeout(FIRST_PASS_TAKES) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) if control.give_up_after(HANGS_AT_FIRST) => {
                Err(NotEvicted::Failed(format!("given up, since {HANGS}")))
            }
            Err(RecvTimeoutError::Timeout) => {
                let so_far = bytes_text(control.evicted_bytes.load(Ordering::Relaxed));
                Ok(format!("{so_far} put out so far; the first pass is still going on"))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(NotEvicted::Failed("the evicting thread has ended".to_owned()))
            }
        }
    }

    fn following(&self, target: &EngineTarget) -> Option<Arc<Control>> {
        let controls = lock(&self.shared.controls);
        controls.iter().find(|control| control.is_of(target) && control.follows()).cloned()
    }

    /// Has it found out what a decision would put out, and puts out nothing; [`Self::notes`] will
    /// have it. Never waits.
    pub fn rehearse(&self, mounts: Mounts, decision: &Decision) {
        let id = decision.id;
        let rehearsed = EvictOrder::of(decision).map_err(NotEvicted::Failed).and_then(|order| {
            self.start(order, true, move |shared, order, control| {
                session::rehearse(shared, mounts, order, control, id);
            })
        });
        if let Err(error) = rehearsed {
            keep(&self.shared.notes, session::rehearsed(id, Err(error.to_string())));
        }
    }

    /// Does some work for one load on a thread of its own.
    fn start(
        &self,
        order: EvictOrder,
        is_rehearsal: bool,
        work: impl FnOnce(&Weak<Shared>, &EvictOrder, &Arc<Control>) + Send + 'static,
    ) -> Result<Arc<Control>, NotEvicted> {
        let control = Arc::new(Control::new(&order, is_rehearsal, self.shared.uptime));
        let mut controls = lock(&self.shared.controls);
        if controls.iter().any(|one| one.is_of(&order.target) && one.hangs()) {
            return Err(NotEvicted::Failed(format!("an earlier look still hangs, since {HANGS}")));
        }
        if controls.len() >= MOST_LOADS {
            let hanging = controls.iter().filter(|one| one.hangs()).count();
            let why = format!("{MOST_LOADS} loads are followed already, of which {hanging} hang");
            return Err(NotEvicted::Untouched(why));
        }
        controls.push(Arc::clone(&control));
        drop(controls);
        let place = Place { shared: Arc::downgrade(&self.shared), control: Arc::clone(&control) };
        let run = move || work(&place.shared, &order, &place.control);
        let started = thread::Builder::new().name("evict".to_owned()).spawn(run);
        match started {
            Ok(_) => Ok(control),
            Err(error) => {
                Err(NotEvicted::Failed(format!("the evicting thread cannot be started: {error}")))
            }
        }
    }

    /// Tells what each engine that is followed is by now: the processes and files that it has come
    /// to are followed too. What has no answer no longer loads, and is no longer followed, from the
    /// next chunk on. Never waits.
    pub fn heed(&self, now: impl Fn(&EngineTarget) -> Option<EngineTarget>) {
        for control in &*lock(&self.shared.controls) {
            match now(&control.target) {
                Some(target) => *lock(&control.now) = Some(target),
                None => {
                    let _first_reason_counts = control.stop.set("the engine no longer loads");
                }
            }
        }
    }

    /// Ends to follow the loads of those engines for which `why` tells a reason, by the rule and
    /// the engine of their acts. Never waits.
    pub fn end_where(&self, why: impl Fn(&RuleId, &EngineTarget) -> Option<&'static str>) {
        for control in &*lock(&self.shared.controls) {
            if let Some(why) = why(&control.rule, &control.target) {
                let _first_reason_counts = control.stop.set(why);
            }
        }
    }

    /// How many loads have ever been followed: more than before are to be told what their engine is
    /// by now, see [`Self::heed`]. Never waits.
    pub fn begun(&self) -> u64 {
        self.shared.begun.load(Ordering::Acquire)
    }

    /// Ends everything, between any two chunks. Never waits.
    pub fn stop(&self, why: &'static str) {
        for control in &*lock(&self.shared.controls) {
            let _first_reason_counts = control.stop.set(why);
        }
    }

    /// Whether the load of that life of an engine is followed. Never waits.
    pub fn follows(&self, engine: &str, server: ProcessId) -> bool {
        lock(&self.shared.controls).iter().any(|control| {
            *control.target.name == *engine
                && control.server() == Some(&server)
                && control.follows()
        })
    }

    /// What lies behind the readers of all loads that are followed, and goes now or when memory is
    /// short, in bytes: as good as free. Never waits.
    pub fn lying_bytes(&self) -> u64 {
        let controls = lock(&self.shared.controls);
        let going_on = controls.iter().filter(|control| !control.hangs());
        going_on.map(|control| control.lying_bytes.load(Ordering::Relaxed)).sum()
    }

    /// What has been put out so far. Never waits.
    pub fn tally(&self) -> EvictTally {
        EvictTally {
            evicted_bytes: self.shared.evicted_bytes.load(Ordering::Relaxed),
            refaulted_bytes: self.shared.refaulted_bytes.load(Ordering::Relaxed),
        }
    }

    /// How loads that were followed have ended, and what would have been put out, since this was
    /// last asked; loads that hang are given up. To be asked every second or so. Never waits.
    pub fn notes(&self) -> Vec<String> {
        let controls = lock(&self.shared.controls);
        let given_up = controls.iter().filter(|control| control.give_up_after(HANGS_AFTER));
        let mut notes: Vec<String> = given_up
            .map(|control| {
                format!(
                    "evict_checkpoint of engine {} was given up, since {HANGS}",
                    control.target.name
                )
            })
            .collect();
        drop(controls);
        notes.extend(lock(&self.shared.notes).drain(..));
        notes
    }
}

/// A thread's place among those that there are, until it ends.
struct Place {
    shared: Weak<Shared>,
    control: Arc<Control>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            lock(&shared.controls).retain(|one| !Arc::ptr_eq(one, &self.control));
        }
    }
}

#[cfg(test)]
#[path = "hanging_tests.rs"]
mod tests;

/// Keeps what somebody may ask for; of what nobody asked for the newest.
fn keep<T>(list: &Mutex<VecDeque<T>>, entry: T) {
    let mut list = lock(list);
    if list.len() >= MOST_UNASKED {
        list.pop_front();
    }
    list.push_back(entry);
}

/// Nobody panics while holding one of these, and nobody waits: they are held for a few
/// instructions.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
