//! Evicts the page cache of a loading engine's model files, behind the readers.
//!
//! Files are examined in chunks (`ledger`): what is cached, by cachestat(2) or, on overlayfs, by
//! mincore(2), and what of it has been read (`uses`), by the readers' page tables and file
//! positions. What was read long enough ago is evicted: mapped pages by
//! `process_madvise(MADV_PAGEOUT)`, all others by `posix_fadvise(POSIX_FADV_DONTNEED)`. Pages ahead
//! of the readers, dirty pages and pages that another process maps stay; no other file is touched.
//! Nothing has to be undone: a page that is used again comes back from its file.
//!
//! An eviction goes on in parallel with all other actions, until the engine no longer loads. Each
//! load has a thread of its own, since a file system of somebody else may not answer. Such a load
//! is given up and reported; all others go on.

mod discover;
mod files;
mod index;
mod ledger;
mod limits;
mod load;
mod open_files;
mod prefetch;
mod process;
mod required;
mod session;
mod shards;
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
    Action, DecisionId, DecisionRecord, EngineTarget, Prefetch, ProcessId, RuleId, Target,
    TrackedReading, bytes_text,
};
pub use unload::{UnloadResult, unload};

/// How long an act waits for the first pass over all files; the pass goes on afterwards.
const FIRST_PASS_TAKES: Duration = Duration::from_secs(1);

/// Limit of notes, of effects and of readings that wait to be taken.
const MOST_UNTAKEN: usize = 64;

/// Limit of loads at a time, including those that hang.
const MOST_LOADS: usize = 16;

/// A load whose thread makes no step for this time is given up. A step opens a file, or examines a
/// chunk of 16 MiB or a process; a slow disk takes well below a second for one.
const HANGS_AFTER: Duration = Duration::from_secs(5);

/// The same while an act waits for the first pass.
const HANGS_AT_FIRST: Duration = Duration::from_millis(800);

/// The reason of a load that was given up.
const HANGS: &str = "its files or processes do not answer";

/// The reason why a leased file is left alone.
const LEASED: &str = "another process holds a lease on it (fcntl F_SETLEASE), so it is left alone";

/// Where the kernel's file systems are mounted.
#[derive(Clone, Debug)]
pub struct Mounts {
    /// `/proc` but for tests and containers.
    pub procfs: PathBuf,
    /// `/sys` but for tests and containers.
    pub sysfs: PathBuf,
}

/// An `evict_checkpoint` as decided.
#[derive(Clone, Debug)]
struct EvictRequest {
    target: EngineTarget,
    /// Of what was read last, this much stays cached.
    behind_bytes: u64,
    /// Free memory to keep.
    floor_bytes: u64,
    prefetch: Prefetch,
    /// The eviction ends after this time, whatever the engine does.
    for_at_most: Duration,
    rule: RuleId,
}

/// Why nothing was evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotEvicted {
    /// There is nothing to evict, or not yet; nothing was touched.
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

impl EvictRequest {
    fn of(decision: &DecisionRecord) -> Result<Self, String> {
        match (&decision.action, &decision.target) {
            (
                Action::EvictCheckpoint {
                    behind_bytes, floor_bytes, prefetch, for_at_most, ..
                },
                Target::Engine(target),
            ) => Ok(Self {
                target: (**target).clone(),
                behind_bytes: *behind_bytes,
                floor_bytes: *floor_bytes,
                prefetch: *prefetch,
                for_at_most: *for_at_most,
                rule: decision.rule.clone(),
            }),
            _ => Err("the decision names no engine".to_owned()),
        }
    }
}

/// What has been evicted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictTally {
    /// Bytes that have left memory.
    pub evicted_bytes: u64,
    /// Evicted bytes that came back while their load was tracked.
    pub refaulted_bytes: u64,
    /// Bytes that were read ahead of engines.
    pub prefetched_bytes: u64,
    /// Those of them that no engine used.
    pub unused_bytes: u64,
}

/// Tracks loads and evicts behind their readers. Clones share their state.
#[derive(Clone)]
pub struct Evictor {
    shared: Arc<EvictShared>,
}

/// What the threads and their clients share.
struct EvictShared {
    uptime: fn() -> Duration,
    evicted_bytes: AtomicU64,
    refaulted_bytes: AtomicU64,
    prefetched_bytes: AtomicU64,
    unused_bytes: AtomicU64,
    /// Loads tracked since the start.
    begun: AtomicU64,
    /// One for each thread, also for one that hangs.
    controls: Mutex<Vec<Arc<Control>>>,
    /// How engines have read their files, until it is taken.
    readings: Mutex<VecDeque<TrackedReading>>,
    /// Notes for the journal, until they are taken.
    notes: Mutex<VecDeque<String>>,
    /// Effects of acts, until they are taken.
    effects: Mutex<VecDeque<(DecisionId, String)>>,
}

/// Shows that a thread makes steps.
#[derive(Clone, Debug)]
struct Pulse {
    /// The start of its last step, in milliseconds of uptime.
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

    /// Call it before each step that may hang.
    fn beat(&self) {
        let now = u64::try_from((self.uptime)().as_millis()).unwrap_or(u64::MAX);
        self.at_ms.store(now, Ordering::Relaxed);
    }

    /// The time since the start of the last step.
    fn age(&self) -> Duration {
        let at = Duration::from_millis(self.at_ms.load(Ordering::Relaxed));
        (self.uptime)().saturating_sub(at)
    }
}

/// What the thread of one load and its clients share.
#[derive(Debug)]
struct Control {
    rule: RuleId,
    target: EngineTarget,
    /// It examines the files and changes nothing.
    is_rehearsal: bool,
    /// The current state of the engine, until the thread has taken it.
    now: Mutex<Option<EngineTarget>>,
    /// The reason to end.
    stop: OnceLock<&'static str>,
    evicted_bytes: AtomicU64,
    /// Cached behind the readers: evicted now, or when memory is short.
    evictable_bytes: AtomicU64,
    pulse: Pulse,
    /// The load was given up.
    hangs: AtomicBool,
}

impl Control {
    fn new(request: &EvictRequest, is_rehearsal: bool, uptime: fn() -> Duration) -> Self {
        Self {
            rule: request.rule.clone(),
            target: request.target.clone(),
            is_rehearsal,
            now: Mutex::default(),
            stop: OnceLock::new(),
            evicted_bytes: AtomicU64::new(0),
            evictable_bytes: AtomicU64::new(0),
            pulse: Pulse::new(uptime),
            hangs: AtomicBool::new(false),
        }
    }

    /// Compares name and first process: another first process is another life of the engine.
    fn is_of(&self, target: &EngineTarget) -> bool {
        self.target.name == target.name && self.server() == target.processes.first()
    }

    fn server(&self) -> Option<&ProcessId> {
        self.target.processes.first()
    }

    /// Whether it tracks a load, and is not about to end.
    fn tracks(&self) -> bool {
        !self.is_rehearsal && self.stop.get().is_none()
    }

    fn hangs(&self) -> bool {
        self.hangs.load(Ordering::Relaxed)
    }

    /// Gives the load up if its thread made no step for this time; returns whether it did so now.
    fn give_up_after(&self, patience: Duration) -> bool {
        if self.pulse.age() < patience || self.hangs.swap(true, Ordering::Relaxed) {
            return false;
        }
        // The first reason is kept.
        let _ = self.stop.set(HANGS);
        true
    }
}

impl fmt::Debug for Evictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evictor").field("tally", &self.tally()).finish_non_exhaustive()
    }
}

impl Evictor {
    /// Tracks no load yet; `uptime` is its clock.
    pub fn new(uptime: fn() -> Duration) -> Self {
        let shared = EvictShared {
            uptime,
            evicted_bytes: AtomicU64::new(0),
            refaulted_bytes: AtomicU64::new(0),
            prefetched_bytes: AtomicU64::new(0),
            unused_bytes: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            controls: Mutex::default(),
            readings: Mutex::default(),
            notes: Mutex::default(),
            effects: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Starts an eviction; [`Self::effect`] has the effect of its first pass. Waits for a second at
    /// most.
    ///
    /// # Errors
    /// The reason why nothing can be evicted at all.
    pub(super) fn perform(
        &self,
        mounts: Mounts,
        decision: &DecisionRecord,
    ) -> Result<(), NotEvicted> {
        let effect = self.begin(mounts, EvictRequest::of(decision)?)?;
        keep(&self.shared.effects, (decision.id, effect));
        Ok(())
    }

    /// Takes the effect of an act.
    pub fn effect(&self, decision: DecisionId) -> Option<String> {
        let mut effects = lock(&self.shared.effects);
        let position = effects.iter().position(|(of, _)| *of == decision)?;
        effects.remove(position).map(|(_, effect)| effect)
    }

    /// Begins to track a load; returns the effect of the first pass, or the progress where that
    /// load is tracked already.
    fn begin(&self, mounts: Mounts, request: EvictRequest) -> Result<String, NotEvicted> {
        if let Some(known) = self.tracking(&request.target) {
            let so_far = bytes_text(known.evicted_bytes.load(Ordering::Relaxed));
            return Ok(format!("its load is tracked already; {so_far} evicted so far"));
        }
        let (reply, answer) = channel();
        let control = self.start(request, false, move |shared, request, control| {
            session::track(shared, mounts, request, control, &reply);
        })?;
        match answer.recv_timeout(FIRST_PASS_TAKES) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) if control.give_up_after(HANGS_AT_FIRST) => {
                Err(NotEvicted::Failed(format!("given up, since {HANGS}")))
            }
            Err(RecvTimeoutError::Timeout) => {
                let so_far = bytes_text(control.evicted_bytes.load(Ordering::Relaxed));
                Ok(format!("{so_far} evicted so far; the first pass is still going on"))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(NotEvicted::Failed("the evicting thread has ended".to_owned()))
            }
        }
    }

    fn tracking(&self, target: &EngineTarget) -> Option<Arc<Control>> {
        let controls = lock(&self.shared.controls);
        controls.iter().find(|control| control.is_of(target) && control.tracks()).cloned()
    }

    /// Examines what a decision would evict, and evicts nothing. The result is a note
    /// ([`Self::take_notes`]). Never waits.
    pub fn rehearse(&self, mounts: Mounts, decision: &DecisionRecord) {
        let id = decision.id;
        let rehearsed =
            EvictRequest::of(decision).map_err(NotEvicted::Failed).and_then(|request| {
                self.start(request, true, move |shared, request, control| {
                    session::rehearse(shared, mounts, request, control, id);
                })
            });
        if let Err(error) = rehearsed {
            keep(&self.shared.notes, session::rehearsed(id, Err(error.to_string())));
        }
    }

    /// Runs `work` for one load on a thread of its own.
    fn start(
        &self,
        request: EvictRequest,
        is_rehearsal: bool,
        work: impl FnOnce(&Weak<EvictShared>, &EvictRequest, &Arc<Control>) + Send + 'static,
    ) -> Result<Arc<Control>, NotEvicted> {
        let control = Arc::new(Control::new(&request, is_rehearsal, self.shared.uptime));
        let mut controls = lock(&self.shared.controls);
        if controls.iter().any(|one| one.is_of(&request.target) && one.hangs()) {
            return Err(NotEvicted::Failed(format!("an earlier pass still hangs, since {HANGS}")));
        }
        if controls.len() >= MOST_LOADS {
            let hanging = controls.iter().filter(|one| one.hangs()).count();
            let why = format!("{MOST_LOADS} loads are tracked already, of which {hanging} hang");
            return Err(NotEvicted::Untouched(why));
        }
        controls.push(Arc::clone(&control));
        drop(controls);
        let entry =
            ControlEntry { shared: Arc::downgrade(&self.shared), control: Arc::clone(&control) };
        let run = move || work(&entry.shared, &request, &entry.control);
        let started = thread::Builder::new().name("evict".to_owned()).spawn(run);
        match started {
            Ok(_) => Ok(control),
            Err(error) => {
                Err(NotEvicted::Failed(format!("the evicting thread cannot be started: {error}")))
            }
        }
    }

    /// Updates the processes and files of each tracked engine. An engine for which `now` returns
    /// `None` no longer loads; its eviction ends at the next chunk. Never waits.
    pub fn update(&self, now: impl Fn(&EngineTarget) -> Option<EngineTarget>) {
        for control in &*lock(&self.shared.controls) {
            match now(&control.target) {
                Some(target) => *lock(&control.now) = Some(target),
                None => {
                    // The first reason is kept.
                    let _ = control.stop.set("the engine no longer loads");
                }
            }
        }
    }

    /// Ends the evictions for which `why` returns a reason, by the rule and the engine of their
    /// acts. Never waits.
    pub fn end_where(&self, why: impl Fn(&RuleId, &EngineTarget) -> Option<&'static str>) {
        for control in &*lock(&self.shared.controls) {
            if let Some(why) = why(&control.rule, &control.target) {
                // The first reason is kept.
                let _ = control.stop.set(why);
            }
        }
    }

    /// Loads tracked since the start. Once there are more than before, call [`Self::update`].
    /// Never waits.
    pub fn begun(&self) -> u64 {
        self.shared.begun.load(Ordering::Acquire)
    }

    /// Ends all evictions at the next chunk. Never waits.
    pub fn stop(&self, why: &'static str) {
        for control in &*lock(&self.shared.controls) {
            // The first reason is kept.
            let _ = control.stop.set(why);
        }
    }

    /// Whether the load of that life of an engine is tracked. Never waits.
    pub fn tracks(&self, engine: &str, server: ProcessId) -> bool {
        lock(&self.shared.controls).iter().any(|control| {
            *control.target.name == *engine && control.server() == Some(&server) && control.tracks()
        })
    }

    /// Bytes cached behind the readers of all tracked loads: evicted now or when memory is short,
    /// and so as good as free. Never waits.
    pub fn evictable_bytes(&self) -> u64 {
        let controls = lock(&self.shared.controls);
        let going_on = controls.iter().filter(|control| !control.hangs());
        going_on.map(|control| control.evictable_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Bytes evicted and read ahead since the start. Never waits.
    pub fn tally(&self) -> EvictTally {
        EvictTally {
            evicted_bytes: self.shared.evicted_bytes.load(Ordering::Relaxed),
            refaulted_bytes: self.shared.refaulted_bytes.load(Ordering::Relaxed),
            prefetched_bytes: self.shared.prefetched_bytes.load(Ordering::Relaxed),
            unused_bytes: self.shared.unused_bytes.load(Ordering::Relaxed),
        }
    }

    /// Takes how engines have read whose evictions have ended since. Never waits.
    pub fn take_readings(&self) -> Vec<TrackedReading> {
        lock(&self.shared.readings).drain(..).collect()
    }

    /// Takes the notes: how evictions have ended, and what rehearsals have found. Gives up loads
    /// that hang. Call it every second or so. Never waits.
    pub fn take_notes(&self) -> Vec<String> {
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

/// The entry of a thread among the controls, until it ends.
struct ControlEntry {
    shared: Weak<EvictShared>,
    control: Arc<Control>,
}

impl Drop for ControlEntry {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            lock(&shared.controls).retain(|one| !Arc::ptr_eq(one, &self.control));
        }
    }
}

#[cfg(test)]
#[path = "hanging_tests.rs"]
mod tests;

/// Appends an entry; where nobody takes them, only the newest are kept.
fn keep<T>(list: &Mutex<VecDeque<T>>, entry: T) {
    let mut list = lock(list);
    if list.len() >= MOST_UNTAKEN {
        list.pop_front();
    }
    list.push_back(entry);
}

/// No thread panics while it holds one of these locks; they are held for a few instructions.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
