//! One life of one engine: from the first sample of its server to the end of its last process.

mod stuck;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::footprint::{Footprint, ProgressMark};
use super::ranks::GangState;
use super::recent::RecentLevels;
use super::release::{Levels, ResidualMemory};
use crate::engines::facts;
use crate::model::{
    EngineHealth, EngineLoad, EnginePhase, EngineProcess, EngineSeen, HealthResponse, Moment,
    ProcessId, Reading, WhyUnknown, bytes_text, seconds_text,
};
use crate::policy::status::EngineStatus;
use stuck::EngineStall;

/// An engine that cannot be asked is ready when it has not read or grown for so long since it began
/// to load; one that never seemed to load, for longer.
const QUIET: Duration = Duration::from_secs(20);
const QUIET_FROM_START: Duration = Duration::from_secs(60);

/// A model that a serving engine takes in besides is there when nothing is read or taken for so
/// long.
const SETTLED: Duration = Duration::from_secs(5);

/// Without a request for so long, an engine is ready and no longer serving.
const IDLE: Duration = Duration::from_secs(60);

/// What the libraries of an engine take before it has anything of a model.
const OF_LIBRARIES: u64 = 4 << 30;
/// No library takes memory that no counter names.
const OUTSIDE: u64 = 1 << 30;

/// An engine that was found is asked within this time.
const ASKED_WITHIN: Duration = Duration::from_secs(5);

/// An engine that is found so soon after its begin has taken nothing yet: it reads its own program.
const JUST_BEGUN: Duration = Duration::from_secs(2);

/// A process of this age that holds a model when it is found for the first time has most likely
/// taken it in before.
const OLD: Duration = Duration::from_secs(60);

/// Clock ticks a second in `/proc`, on every architecture.
const TICKS: u64 = 100;

/// So many refusals in a row: nothing listens there any more.
const REFUSALS: u32 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LifeChange {
    Phase { from: Option<EnginePhase>, to: EnginePhase, reason: String },
    Stuck { stuck: bool, reason: String },
}

fn holds(process: &EngineProcess) -> bool {
    process.mapped_files.value().unwrap_or(0) > 0 || process.open_files.value().unwrap_or(0) > 0
}

/// Whether it only waits for its parent to take note of its end.
pub(super) fn has_ended(process: &EngineProcess) -> bool {
    matches!(process.state, 'Z' | 'X')
}

/// The uptime that many clock ticks after the boot.
pub(super) fn ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000 / TICKS))
}

fn old_holders(seen: &EngineSeen, read_at: Duration) -> BTreeSet<ProcessId> {
    let is_old =
        |process: &&EngineProcess| read_at.saturating_sub(ticks(process.id.start_ticks)) >= OLD;
    let old = seen.processes.iter().filter(|process| holds(process)).filter(is_old);
    old.map(|process| process.id).collect()
}

#[derive(Debug)]
pub(super) struct Life {
    seen: EngineSeen,
    phase: EnginePhase,
    /// The phase before it began to end.
    phase_alive: EnginePhase,
    since: Moment,
    reason: Arc<str>,
    is_stuck: bool,
    stall: EngineStall,
    /// Its ranks on other nodes.
    pub(super) gang: GangState,
    /// At the first sample.
    begun: Footprint,
    /// When it was found, on the uptime clock.
    found: Duration,
    now: Footprint,
    mark: ProgressMark,
    sampled: Duration,
    health: Option<EngineHealth>,
    refusals: u32,
    /// Since when no request is being worked on.
    idle_since: Option<Duration>,
    /// What was read from storage until it was ready.
    load_read: Option<u64>,
    /// Processes that hold a model and had done so when it was ready.
    settled: BTreeSet<ProcessId>,
    /// The node's memory when it began, if sampled and if no engine came or went since.
    before: Option<Levels>,
    why_unknown: WhyUnknown,
    /// When it was last seen alive, what the node had then, and what it showed itself.
    alive: (Duration, Levels, ResidualMemory),
}

impl Life {
    /// `recent` is the node's memory in the last seconds, `levels` that at this sample.
    pub(super) fn new(
        at: Moment,
        read_at: Duration,
        seen: &EngineSeen,
        recent: &RecentLevels,
        levels: Levels,
    ) -> Self {
        let footprint = Footprint::new(seen, levels.unaccounted);
        let started = ticks(seen.server.start_ticks);
        let has_just_begun = || read_at.saturating_sub(started) < JUST_BEGUN;
        let before = recent.at(started).or_else(|| has_just_begun().then_some(levels));
        let before = before.filter(|_| !seen.is_left_behind);
        Self {
            before,
            why_unknown: match before {
                Some(_) => WhyUnknown::Unmeasured,
                None => WhyUnknown::BeginUnseen,
            },
            alive: (read_at, levels, ResidualMemory::of(seen)),
            phase: EnginePhase::Starting,
            phase_alive: EnginePhase::Starting,
            since: at,
            reason: format!("found by {}", seen.found_by).into(),
            is_stuck: false,
            stall: EngineStall::default(),
            gang: GangState::default(),
            begun: footprint.clone(),
            found: read_at,
            now: footprint.clone(),
            mark: ProgressMark::new(read_at, footprint),
            sampled: read_at,
            health: None,
            refusals: 0,
            idle_since: None,
            load_read: None,
            settled: old_holders(seen, read_at),
            seen: seen.clone(),
        }
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.seen.name
    }

    pub(super) fn server(&self) -> ProcessId {
        self.seen.server
    }

    pub(super) fn seen(&self) -> &EngineSeen {
        &self.seen
    }

    /// Another one came or went: what the node had before is no longer what it would have without
    /// this one.
    pub(super) fn disturb(&mut self) {
        if self.before.take().is_some() {
            self.why_unknown = WhyUnknown::OtherEngines;
        }
    }

    /// Why its memory is unknown, if it is.
    pub(super) fn why_unknown(&self) -> WhyUnknown {
        self.why_unknown
    }

    /// What the node had when it began, if that is still of use.
    pub(super) fn levels_before(&self) -> Option<Levels> {
        self.before
    }

    /// When it was last seen alive.
    pub(super) fn last_alive(&self) -> Duration {
        self.alive.0
    }

    /// What the node had then.
    pub(super) fn levels(&self) -> Levels {
        self.alive.1
    }

    /// What its processes showed then.
    pub(super) fn own(&self) -> ResidualMemory {
        self.alive.2
    }

    /// Whether its server has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.is_gone() || self.ended().is_some()
    }

    /// When it last turned.
    pub(super) fn turned(&self) -> Moment {
        self.since
    }

    pub(super) fn phase(&self) -> EnginePhase {
        self.phase
    }

    pub(super) fn phase_alive(&self) -> EnginePhase {
        self.phase_alive
    }

    pub(super) fn reason(&self) -> &str {
        &self.reason
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    pub(super) fn is_gone(&self) -> bool {
        self.phase == EnginePhase::Gone
    }

    pub(super) fn is_on_its_way(&self) -> bool {
        matches!(self.phase, EnginePhase::Starting | EnginePhase::Loading)
    }

    pub(super) fn is_gone_since(&self, at: Moment, long: Duration) -> bool {
        self.is_gone() && at.uptime.saturating_sub(self.since.uptime) >= long
    }

    /// Whether its server has begun to give back what it holds.
    fn is_exiting(&self) -> bool {
        self.seen
            .processes
            .iter()
            .any(|process| process.id == self.seen.server && process.is_exiting)
    }

    /// Whether that is the same life.
    pub(super) fn is_of(&self, seen: &EngineSeen) -> bool {
        !self.is_gone() && self.seen.server == seen.server
    }

    /// Its processes that serve while others of it take in a model.
    pub(super) fn serving(&self) -> BTreeSet<ProcessId> {
        if self.takes_in_another() { self.settled.clone() } else { BTreeSet::new() }
    }

    pub(super) fn load_read(&self) -> Option<u64> {
        self.load_read
    }

    pub(super) fn requests(&self) -> Reading<u64> {
        self.health.as_ref().map_or(Reading::Unsupported, |health| health.requests)
    }

    /// Its last health check.
    pub(super) fn health(&self) -> Option<&EngineHealth> {
        self.health.as_ref()
    }

    /// Its last reported load; empty once it is no longer up.
    pub(super) fn load(&self) -> EngineLoad {
        let health = self.health.as_ref().filter(|_| self.phase.is_up());
        health.map_or_else(EngineLoad::default, |health| health.load)
    }

    /// The memory of its processes.
    pub(super) fn memory(&self) -> u64 {
        self.now.memory
    }

    /// How long it has made no progress, while it should.
    pub(super) fn without_progress(&self) -> Option<Duration> {
        self.is_on_its_way().then(|| self.sampled.saturating_sub(self.mark.at))
    }

    /// It is known by another name from now on; nothing else has changed.
    pub(super) fn rename(&mut self, name: &Arc<str>) -> LifeChange {
        let before = std::mem::replace(&mut self.seen.name, Arc::clone(name));
        let reason = format!("it was called {before} until now");
        LifeChange::Phase { from: Some(self.phase), to: self.phase, reason }
    }

    /// None of its processes is left.
    pub(super) fn vanish(&mut self, at: Moment) -> Option<LifeChange> {
        if self.is_gone() {
            return None;
        }
        let server = self.seen.server;
        self.seen.processes.clear();
        Some(self.turn(
            at,
            EnginePhase::Gone,
            format!("all its processes have ended, pid {server} first of them"),
        ))
    }

    /// Takes a sample of its processes.
    pub(super) fn take_sample(
        &mut self,
        at: Moment,
        read_at: Duration,
        seen: &EngineSeen,
        levels: Levels,
    ) -> Vec<LifeChange> {
        self.seen.clone_from(seen);
        self.sampled = read_at;
        self.now = Footprint::new(seen, levels.unaccounted);
        if self.ended().is_none() && !self.is_exiting() {
            self.alive = (read_at, levels, ResidualMemory::of(seen));
        }
        let progressed = self.mark.take(read_at, &self.now);
        if self.is_on_its_way()
            && let (Some(now), Some(begun)) = (self.now.read_bytes, self.begun.read_bytes)
        {
            self.load_read = Some(now.saturating_sub(begun).max(self.load_read.unwrap_or(0)));
        }
        let mut turns = Vec::new();
        if progressed && self.is_stuck && self.is_on_its_way() {
            turns.push(self.unstick("it reads, grows or works again"));
        }
        self.advance(at, &mut turns);
        turns
    }

    /// Takes an answer of its health endpoint.
    pub(super) fn take_health(&mut self, at: Moment, health: &EngineHealth) -> Vec<LifeChange> {
        let mut turns = Vec::new();
        if self.is_gone() || health.server != self.seen.server {
            return turns;
        }
        self.refusals = match health.answer {
            HealthResponse::Refused => self.refusals.saturating_add(1),
            _ => 0,
        };
        match health.requests {
            Reading::Value(0) => _ = self.idle_since.get_or_insert(health.asked_at),
            Reading::Value(_) => self.idle_since = None,
            Reading::Unsupported | Reading::Failed => {}
        }
        self.health = Some(health.clone());
        self.stall.take(health);
        if self.is_stuck && self.phase.is_up() && self.stalled().is_none() {
            turns.push(self.unstick("its requests make progress again, or none runs"));
        }
        self.advance(at, &mut turns);
        turns
    }

    fn advance(&mut self, at: Moment, turns: &mut Vec<LifeChange>) {
        // Each turn leads on in a life, or once back: no more than this.
        for _ in 0..EnginePhase::ALL.len() {
            let Some((to, reason)) = self.next() else { break };
            if self.is_stuck {
                turns.push(self.unstick(&format!("it is {to} now")));
            }
            turns.push(self.turn(at, to, reason));
        }
        turns.extend(self.stick());
    }

    fn turn(&mut self, at: Moment, to: EnginePhase, reason: String) -> LifeChange {
        if to.is_up() {
            self.settled = self.holders().map(|process| process.id).collect();
        }
        if !to.is_ending() {
            self.phase_alive = to;
        }
        let from = Some(std::mem::replace(&mut self.phase, to));
        self.since = at;
        self.reason = reason.as_str().into();
        self.refusals = 0;
        LifeChange::Phase { from, to, reason }
    }

    fn next(&self) -> Option<(EnginePhase, String)> {
        use EnginePhase::{Gone, Loading, Ready, Serving, Starting, Stopping};
        if !matches!(self.phase, Stopping | Gone)
            && let Some(reason) = self.ended()
        {
            return Some((Stopping, reason));
        }
        match self.phase {
            Starting => {
                let loads = || self.loads().map(|reason| (Loading, reason));
                self.is_ready(QUIET_FROM_START).map(|reason| (Ready, reason)).or_else(loads)
            }
            Loading => self.is_ready(QUIET).map(|reason| (Ready, reason)),
            Ready => self.serves().map(|reason| (Serving, reason)).or_else(|| self.leaves_up()),
            Serving => self.idles().map(|reason| (Ready, reason)).or_else(|| self.leaves_up()),
            Stopping if self.ended().is_none() => self.is_back().map(|reason| (Ready, reason)),
            Stopping | Gone => None,
        }
    }

    /// Whether this sample is the first to show that its server has ended.
    pub(super) fn ends_with(&self, seen: &EngineSeen) -> bool {
        let is_it = |process: &&EngineProcess| process.id == seen.server;
        let server = seen.processes.iter().find(is_it).filter(|server| !has_ended(server));
        !self.has_ended() && (server.is_none() || seen.is_left_behind)
    }

    /// Whether the process at the head is gone.
    fn ended(&self) -> Option<String> {
        let server = self.seen.processes.iter().find(|process| process.id == self.seen.server);
        let pid = self.seen.server;
        match server {
            Some(process) if self.seen.is_left_behind => {
                let comm = &process.comm;
                Some(format!(
                    "its server had ended before it was found; {comm} (pid {pid}) is left"
                ))
            }
            Some(process) if has_ended(process) => {
                Some(format!("its server, pid {pid}, has ended and waits for its parent"))
            }
            Some(_) => None,
            None => {
                let left = self.seen.processes.first();
                let left = left.map(|left| format!("; {} (pid {}) is left", left.comm, left.id));
                Some(format!("its server, pid {pid}, has ended{}", left.unwrap_or_default()))
            }
        }
    }

    /// What shows that it loads. One that may be serving already is asked before: what is done for
    /// loading engines would hurt it.
    fn loads(&self) -> Option<String> {
        let waited = self.sampled.saturating_sub(self.found);
        if self.seen.health_url.is_some() && self.health.is_none() && waited < ASKED_WITHIN {
            return None;
        }
        let age = self.sampled.saturating_sub(ticks(self.seen.server.start_ticks));
        if self.seen.is_launched && age < OLD {
            return Some("umawarden launch has started it".to_owned());
        }
        // An engine that had its model before the first sample most likely serves it: that it
        // holds the model shows nothing.
        let is_new = |process: &&EngineProcess| !self.settled.contains(&process.id);
        if let Some(process) = self.holders().find(is_new) {
            let (comm, id) = (&process.comm, process.id);
            return Some(match (process.mapped_files, process.open_files) {
                (Reading::Value(mapped @ 1..), _) => {
                    format!("{comm} (pid {id}) maps {mapped} of its model files")
                }
                (_, open) => {
                    let open = open.value().unwrap_or(0);
                    format!("{comm} (pid {id}) has {open} of its model files open")
                }
            });
        }
        let facts = facts(self.seen.kind);
        let is_worker = |process: &&EngineProcess| facts.has_title(&process.comm);
        if let Some(worker) = self.seen.processes.iter().find(is_worker) {
            return Some(format!("its worker {} (pid {}) has started", worker.comm, worker.id));
        }
        if let Some(HealthResponse::NotReady { status }) = self.answer() {
            return Some(format!("it answers, with {status}: not ready yet"));
        }
        let (own, outside) = self.now.grown_since(&self.begun);
        if own >= OF_LIBRARIES {
            return Some(format!("it has taken {}", bytes_text(own)));
        }
        (outside >= OUTSIDE)
            .then(|| format!("memory that no counter names has grown by {}", bytes_text(outside)))
    }

    /// Its processes that map or have open model files.
    fn holders(&self) -> impl Iterator<Item = &EngineProcess> {
        self.seen.processes.iter().filter(|process| holds(process))
    }

    fn answer(&self) -> Option<&HealthResponse> {
        self.health.as_ref().map(|health| &health.answer)
    }

    /// What shows that it can be asked. `quiet` is how long one must have been still that cannot be
    /// asked at all.
    fn is_ready(&self, quiet: Duration) -> Option<String> {
        if self.takes_in_another() {
            let still = self.sampled.saturating_sub(self.mark.at);
            return (still >= SETTLED).then(|| {
                format!("it has read and taken nothing more for {}", seconds_text(still))
            });
        }
        let serves_nothing = !self.serves_somewhere();
        match self.gang.first_is_up.filter(|_| serves_nothing && self.seen.rank.is_some()) {
            Some(true) => return Some("the rank that serves is up".to_owned()),
            Some(false) => return None,
            None => {}
        }
        self.can_be_asked().or_else(|| {
            let still = self.sampled.saturating_sub(self.mark.at);
            let listens = self.seen.is_listening.value();
            let is_dumb = match (&self.seen.health_url, self.answer()) {
                (None, _) => listens.is_none(),
                // Something is there, be it TLS, another protocol or another path.
                (Some(_), Some(HealthResponse::Failed { .. })) => listens != Some(false),
                (Some(_), _) => false,
            };
            (is_dumb && still >= quiet).then(|| {
                let still = seconds_text(still);
                format!("it cannot be asked, and has read and taken nothing more for {still}")
            })
        })
    }

    /// Whether its port or address is known.
    pub(super) fn serves_somewhere(&self) -> bool {
        self.seen.health_url.is_some() || self.seen.port.is_some()
    }

    fn can_be_asked(&self) -> Option<String> {
        if self.answer() == Some(&HealthResponse::Ready) {
            let url = self.seen.health_url.as_deref().unwrap_or("its health endpoint");
            let within = match &self.seen.health_network {
                Some(_) => " within its own network",
                None => "",
            };
            return Some(format!("it answers at {url}{within}"));
        }
        let port = self.seen.port?;
        let listens = self.seen.is_listening == Reading::Value(true);
        (self.seen.health_url.is_none() && listens).then(|| format!("it listens on port {port}"))
    }

    /// Whether a runner of a server that is up anyway takes in a model.
    fn takes_in_another(&self) -> bool {
        facts(self.seen.kind).loads_while_up
            && self.holders().any(|process| !self.settled.contains(&process.id))
    }

    fn serves(&self) -> Option<String> {
        let requests = self.requests().value().filter(|requests| *requests > 0)?;
        let are = if requests == 1 { "request is" } else { "requests are" };
        Some(format!("{requests} {are} being worked on"))
    }

    fn idles(&self) -> Option<String> {
        let since = self.idle_since?;
        let asked = self.health.as_ref()?.asked_at;
        (asked.saturating_sub(since) >= IDLE)
            .then(|| format!("no request for {}", seconds_text(IDLE)))
    }

    fn leaves_up(&self) -> Option<(EnginePhase, String)> {
        if self.takes_in_another() {
            let runner = self.holders().find(|process| !self.settled.contains(&process.id))?;
            let reason = format!("{} (pid {}) takes in a model", runner.comm, runner.id);
            return Some((EnginePhase::Loading, reason));
        }
        let listens = self.seen.is_listening;
        let reason = match &self.seen.health_url {
            Some(url) if self.refusals >= REFUSALS && listens != Reading::Value(true) => {
                format!("nothing listens at {url} any more")
            }
            None if listens == Reading::Value(false) => "it no longer listens".to_owned(),
            _ => return None,
        };
        Some((EnginePhase::Stopping, reason))
    }

    /// Whether one that seemed to end can be asked again.
    fn is_back(&self) -> Option<String> {
        let asked = self.health.as_ref().map(|health| health.asked_at);
        let is_news = asked.is_none_or(|asked| asked > self.since.uptime);
        self.can_be_asked().filter(|_| is_news)
    }

    pub(super) fn status(&self, last_load_took: Option<Duration>) -> EngineStatus {
        EngineStatus {
            engine: self.seen.clone(),
            phase: self.phase,
            since: self.since,
            reason: Arc::clone(&self.reason),
            is_stuck: self.is_stuck,
            lost_rank: self.gang.lost.clone(),
            other_ranks: self.gang.others.clone(),
            without_progress: self.without_progress(),
            began: ticks(self.seen.server.start_ticks),
            last_load_took,
            load_read_bytes: self.load_read,
            memory_bytes: self.now.memory,
            health: self.health.clone(),
            scanned_at: self.sampled,
            serving: self.serving(),
        }
    }
}
