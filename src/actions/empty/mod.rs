//! Makes an engine return cached memory, and measures the effect.
//!
//! A response of 200 proves nothing: the outcome has the kernel's counters and the memory of the
//! engine's processes before and after, with the report of the engine.

mod log;
mod memory;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::temporary::TemporarySettings;
use super::{Act, Performed};
use crate::clients::{ClientSession, Endpoint, KeyRing, KeyedSession, owner};
use crate::engines::{Emptying, EmptyingRefusal, Pausing, empty_cache};
use crate::model::{CachePermission, DecisionRecord, EngineTarget, OutcomeResult, Target};
use log::EngineLog;
use memory::EmptyingMemory;

/// The time limit of all calls together, which leaves time for the measurement.
const CALLING_TAKES: Duration = Duration::from_secs(20);

/// A healthy driver returns memory within 2 to 5 s of the end of a process, and otherwise at once.
/// Memory is sampled until no more has returned for [`STILL_FOR`].
const SETTLES_WITHIN: Duration = Duration::from_secs(5);
const STILL_FOR: Duration = Duration::from_secs(1);
const SAMPLED_EVERY: Duration = Duration::from_millis(100);

/// The memory returned by emptied caches since the start.
#[derive(Debug, Default)]
pub struct EmptyingTally {
    bytes: AtomicU64,
}

impl EmptyingTally {
    /// Bytes gained by all acts. Never waits.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Makes engines return memory.
pub struct CacheEmptier {
    /// Mount point of procfs.
    pub procfs: PathBuf,
    /// Reads the uptime.
    pub uptime: fn() -> Duration,
    /// Waits for that time; a test may replace it.
    pub sleep: fn(Duration),
    /// Counts the returned bytes.
    pub tally: Arc<EmptyingTally>,
}

impl fmt::Debug for CacheEmptier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheEmptier").field("procfs", &self.procfs).finish_non_exhaustive()
    }
}

/// A paused engine is in the undo log from before the pause until its resume.
struct InUndoLog<'a> {
    temporary: &'a mut TemporarySettings,
    decision: &'a DecisionRecord,
    engine: &'a EngineTarget,
    number: Option<u64>,
}

impl Pausing for InUndoLog<'_> {
    fn begin(&mut self) -> Result<(), String> {
        let number = self.temporary.pausing(self.decision, self.engine)?;
        self.number = Some(number);
        Ok(())
    }

    fn refused(&mut self) {
        if let Some(number) = self.number.take() {
            self.temporary.not_paused(number);
        }
    }

    fn end(&mut self) -> Result<(), String> {
        self.number.take().map_or(Ok(()), |number| self.temporary.resume(number))
    }
}

impl Drop for InUndoLog<'_> {
    fn drop(&mut self) {
        // The engine is resumed after any failure. The undo log reports an error.
        let _ = self.end();
    }
}

impl CacheEmptier {
    /// Makes the engine of an act return memory, and measures the effect.
    pub(super) fn perform(
        &self,
        act: &Act,
        allow: &BTreeSet<CachePermission>,
        temporary: &mut TemporarySettings,
    ) -> Performed {
        let Target::Engine(engine) = &act.target else {
            let why = format!("empty_cache works on an engine, and not on {}", act.target);
            return OutcomeResult::NotDone(why).into();
        };
        match self.verify(engine) {
            Err(stale) => OutcomeResult::NotDone(stale).into(),
            Ok(endpoint) => self.empty(act, engine, endpoint, allow, temporary),
        }
    }

    /// Verifies that the engine still lives, and that its own process listens at its address.
    fn verify(&self, engine: &EngineTarget) -> Result<Endpoint, String> {
        let name = &engine.name;
        let Some(server) = engine.processes.first() else {
            return Err(format!("no process of {name} is known: nothing is sent"));
        };
        if !owner::is_alive(&self.procfs, *server) {
            return Err(format!("{name} is another one by now, or gone: pid {server} has ended"));
        }
        let endpoint = Endpoint::of(&self.procfs, engine);
        let endpoint = endpoint.ok_or_else(|| format!("the address of {name} is not known"))?;
        if owner::listens(&self.procfs, engine, &endpoint) == Some(false) {
            return Err(format!(
                "what listens at {} is no process of {name}: nothing is sent to it, and no key",
                endpoint.origin
            ));
        }
        Ok(endpoint)
    }

    fn empty(
        &self,
        decision: &DecisionRecord,
        engine: &EngineTarget,
        endpoint: Endpoint,
        allow: &BTreeSet<CachePermission>,
        temporary: &mut TemporarySettings,
    ) -> Performed {
        let before = EmptyingMemory::read(&self.procfs, engine);
        let log = EngineLog::open(&self.procfs, engine);
        let mut pausing = InUndoLog { temporary, decision, engine, number: None };
        let keys = KeyRing::new(&self.procfs, Arc::new(engine.clone()), endpoint.clone());
        let mut withheld = None;
        let said =
            ClientSession::open(endpoint).map_err(EmptyingRefusal::from).and_then(|session| {
                let session = session.within(self.uptime, CALLING_TAKES);
                let calls = KeyedSession::new(session, keys);
                let emptying = Emptying { calls: &calls, allow };
                let said = empty_cache(engine.kind, &emptying, &mut pausing);
                withheld = calls.withheld();
                said
            });
        drop(pausing);
        let without = withheld.map(|why| format!("; queried without its key: {why}"));
        let without = without.unwrap_or_default();
        match said {
            Err(refusal) => OutcomeResult::Failed(format!("{refusal}{without}")).into(),
            Ok(said) => {
                let after = self.settled(engine, &before);
                self.tally.bytes.fetch_add(after.gained(&before), Ordering::Relaxed);
                let logged = log.and_then(EngineLog::freed);
                let effect = effect(&said, logged.as_deref(), &before, &after);
                Performed { result: OutcomeResult::Done, effect: Some(effect + &without) }
            }
        }
    }

    /// The memory once no more returns.
    fn settled(&self, engine: &EngineTarget, before: &EmptyingMemory) -> EmptyingMemory {
        let mut now = EmptyingMemory::read(&self.procfs, engine);
        let (mut waited, mut still) = (Duration::ZERO, Duration::ZERO);
        let mut most = now.gained(before);
        while waited < SETTLES_WITHIN && still < STILL_FOR {
            (self.sleep)(SAMPLED_EVERY);
            waited += SAMPLED_EVERY;
            now = EmptyingMemory::read(&self.procfs, engine);
            let gained = now.gained(before);
            let is_more = gained > most.saturating_add(memory::NOISE);
            still = if is_more { Duration::ZERO } else { still + SAMPLED_EVERY };
            most = most.max(gained);
        }
        now
    }
}

fn effect(
    said: &str,
    logged: Option<&str>,
    before: &EmptyingMemory,
    after: &EmptyingMemory,
) -> String {
    let logged = logged.map(|logged| format!(", its log says {logged}")).unwrap_or_default();
    let changes = after.since(before);
    let gain = match after.gained(before) {
        gained if gained > memory::NOISE => "memory came back",
        _ => "no memory came back",
    };
    format!("{gain}: {changes}; {said}{logged}")
}
