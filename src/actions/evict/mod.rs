//! Puts the model files of a loading engine out of memory, behind its readers.
//!
//! Files are looked at in chunks (`ledger`): what is cached, by cachestat(2), and what of it has
//! been read (`uses`), by the readers' page tables and positions. What was read long enough ago
//! goes: mapped pages by `process_madvise(MADV_PAGEOUT)`, all others by
//! `posix_fadvise(POSIX_FADV_DONTNEED)`. What lies ahead of the readers, what is dirty, and what
//! another process maps stays; no other file is touched. Nothing is changed that would have to be
//! undone: what is used again comes back from its file.
//!
//! It goes on beside all other actions, on a thread of its own, until the engine no longer loads.

mod discover;
mod files;
mod ledger;
mod load;
mod process;
mod room;
mod session;
mod unload;
mod uses;

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use bytesize::ByteSize;

use crate::model::{Action, Decision, DecisionId, EngineTarget, ProcessId, RuleId, Target};
use session::{Message, Sessions};
pub use unload::{Unloaded, unload};

/// How long whoever asked waits for the first pass over all files; it goes on behind that.
const FIRST_PASS_TAKES: Duration = Duration::from_secs(1);

/// Words that nobody has asked for are kept, but not more of them.
const MOST_UNASKED: usize = 64;

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

/// What the thread and its clients share.
struct Shared {
    uptime: fn() -> Duration,
    evicted_bytes: AtomicU64,
    refaulted_bytes: AtomicU64,
    /// Loads that have ever been followed.
    begun: AtomicU64,
    /// The loads that are followed.
    controls: Mutex<Vec<Arc<Control>>>,
    /// What people shall know, for the journal.
    notes: Mutex<VecDeque<String>>,
    /// What acts have done, until somebody asks.
    effects: Mutex<VecDeque<(DecisionId, String)>>,
    thread: Mutex<Option<Sender<Message>>>,
}

/// How one load's thread and its clients talk.
#[derive(Debug)]
struct Control {
    rule: RuleId,
    target: EngineTarget,
    /// What the engine is by now, until the thread has taken it.
    now: Mutex<Option<EngineTarget>>,
    /// Why it shall end.
    stop: OnceLock<&'static str>,
    evicted_bytes: AtomicU64,
    /// What lies behind its readers, and goes now or when memory is short.
    lying_bytes: AtomicU64,
}

impl Control {
    fn new(rule: RuleId, target: EngineTarget) -> Self {
        let now = Mutex::default();
        let (evicted_bytes, lying_bytes) = Default::default();
        Self { rule, target, now, stop: OnceLock::new(), evicted_bytes, lying_bytes }
    }

    /// The engine's first process: another one is another life of it.
    fn is_of(&self, target: &EngineTarget) -> bool {
        self.target.name == target.name && self.server() == target.processes.first()
    }

    fn server(&self) -> Option<&ProcessId> {
        self.target.processes.first()
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
            thread: Mutex::default(),
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
        let known =
            lock(&self.shared.controls).iter().find(|one| one.is_of(&order.target)).cloned();
        if let Some(known) = known.filter(|known| known.stop.get().is_none()) {
            let so_far = ByteSize(known.evicted_bytes.load(Ordering::Relaxed)).display().iec();
            return Ok(format!("its load is followed already; {so_far} put out so far"));
        }
        let control = Arc::new(Control::new(order.rule.clone(), order.target.clone()));
        let (reply, answer) = channel();
        self.send(Message::Begin { mounts, order, control: Arc::clone(&control), reply })?;
        match answer.recv_timeout(FIRST_PASS_TAKES) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                let so_far =
                    ByteSize(control.evicted_bytes.load(Ordering::Relaxed)).display().iec();
                Ok(format!("{so_far} put out so far; the first pass is still going on"))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(NotEvicted::Failed("the evicting thread has ended".to_owned()))
            }
        }
    }

    /// Has it found out what a decision would put out, and puts out nothing; [`Self::notes`] will
    /// have it. Never waits.
    pub fn rehearse(&self, mounts: Mounts, decision: &Decision) {
        let rehearsed = EvictOrder::of(decision).and_then(|order| {
            self.send(Message::Rehearse { mounts, order, decision: decision.id })
        });
        if let Err(error) = rehearsed {
            keep(&self.shared.notes, session::rehearsed(decision.id, Err(error)));
        }
    }

    fn send(&self, message: Message) -> Result<(), String> {
        let mut sender = lock(&self.shared.thread);
        let message = match &*sender {
            Some(thread) => match thread.send(message) {
                Ok(()) => return Ok(()),
                Err(unsent) => unsent.0,
            },
            None => message,
        };
        let (inbox, messages) = channel();
        let sessions = Sessions::new(Arc::downgrade(&self.shared));
        thread::Builder::new()
            .name("evict".to_owned())
            .spawn(move || sessions.run(&messages))
            .map_err(|error| format!("the evicting thread cannot be started: {error}"))?;
        let sent = inbox.send(message).map_err(|_| "the evicting thread has ended".to_owned());
        *sender = Some(inbox);
        sent
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
                && control.stop.get().is_none()
        })
    }

    /// What lies behind the readers of all loads that are followed, and goes now or when memory is
    /// short, in bytes: as good as free. Never waits.
    pub fn lying_bytes(&self) -> u64 {
        let controls = lock(&self.shared.controls);
        controls.iter().map(|control| control.lying_bytes.load(Ordering::Relaxed)).sum()
    }

    /// What has been put out so far. Never waits.
    pub fn tally(&self) -> EvictTally {
        EvictTally {
            evicted_bytes: self.shared.evicted_bytes.load(Ordering::Relaxed),
            refaulted_bytes: self.shared.refaulted_bytes.load(Ordering::Relaxed),
        }
    }

    /// How loads that were followed have ended, and what would have been put out, since this was
    /// last asked. Never waits.
    pub fn notes(&self) -> Vec<String> {
        lock(&self.shared.notes).drain(..).collect()
    }
}

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
