//! The daemon's part in leases: it ends those whose engine is ready, adds those of deferred
//! restarts, takes the calls of other nodes, and reports all of them to the policy.
//!
//! A thread of its own, since the ledger is a file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use arc_swap::ArcSwap;

use super::clock;
use super::gang_starts::GangStarts;
use crate::config::settings::Settings;
use crate::exports::{LeaseOrder, LeaseReply, LeaseSender};
use crate::leases::LeaseLedger;
use crate::model::{
    EngineSeen, Lease, LeaseCall, LeaseEnd, LeaseNews, LeaseReadings, LeaseRequest, LeaseState,
    MemoryPools, Observation, RESTART_LEASE, ReservedPool, RestartState, RestartStatus,
};
use crate::policy::leases::{LeaseBook, LeaseContext};
use crate::policy::status::Status;

/// Between two turns.
const EVERY: Duration = Duration::from_millis(500);

/// The same while memory is taken on several nodes, each of which must grant it within 0.7 s.
const TAKING_EVERY: Duration = Duration::from_millis(100);

/// Reports that wait for the loop; further ones are dropped, and the next one repeats them.
const QUEUE: usize = 4;

/// Restarts that are found to be starting so soon after the program's own start were begun by an
/// earlier run.
const ADOPTS_FOR: Duration = Duration::from_secs(5);

/// Calls that wait; further ones are refused.
const CALLS: usize = 64;

/// The loop's handle of the thread, if there is a ledger to watch.
#[derive(Default)]
pub(super) struct LeaseWatch {
    reports: Option<Receiver<LeaseReadings>>,
    sender: Option<LeaseSender>,
}

struct LeaseTurns {
    ledger: LeaseLedger,
    at_once: u32,
    status: Arc<ArcSwap<Status>>,
    requested: RequestedLeases,
    gangs: GangStarts,
    /// When this run began.
    began: Instant,
    /// The last change that was reported; `None` before the first turn.
    known: Option<u64>,
    reported: Option<LeaseReadings>,
}

/// Starting restarts that have requested their lease, by the lease's id.
#[derive(Default)]
struct RequestedLeases(BTreeSet<Arc<str>>);

impl RequestedLeases {
    /// Forgets those that no longer start.
    fn keep(&mut self, starting: &[LeaseRequest]) {
        self.0.retain(|id| starting.iter().any(|request| request.id == *id));
    }

    /// Takes what starts as requested by an earlier run: its memory may be taken already.
    fn adopt(&mut self, starting: &[LeaseRequest]) {
        self.0.extend(starting.iter().map(|request| Arc::clone(&request.id)));
    }

    /// Requests the leases of those that start. One that is over is not requested again: its memory
    /// was taken.
    fn repeat(&mut self, now: Duration, starting: &[LeaseRequest], book: &mut LeaseBook) {
        for request in starting {
            if self.0.insert(Arc::clone(&request.id)) || book.get(&request.id).is_some() {
                // What cannot be added is too much already.
                let _ = book.request(now, request);
            }
        }
    }
}

impl LeaseWatch {
    /// Starts the thread, unless the settings are for the files of another machine.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(super) fn open(settings: &Settings, status: &Arc<ArcSwap<Status>>) -> anyhow::Result<Self> {
        let procfs = &settings.path.procfs;
        let Some(folder) = settings.starts.ledger_folder(procfs) else {
            return Ok(Self::default());
        };
        let (to, reports) = sync_channel(QUEUE);
        let (sender, calls) = sync_channel(CALLS);
        let turns = LeaseTurns {
            ledger: LeaseLedger::new(&folder, procfs),
            at_once: settings.starts.at_once,
            status: Arc::clone(status),
            requested: RequestedLeases::default(),
            gangs: GangStarts::new(settings),
            began: Instant::now(),
            known: None,
            reported: None,
        };
        let thread = Builder::new().name("leases".to_owned()).spawn(move || turns.run(&to, &calls));
        thread.context("cannot start the thread of the leases")?;
        Ok(Self { reports: Some(reports), sender: Some(sender) })
    }

    /// Takes calls for the ledger, if there is one.
    pub(super) fn sender(&self) -> Option<LeaseSender> {
        self.sender.clone()
    }

    /// Takes the new reports without waiting.
    pub(super) fn take(&self, out: &mut Vec<Observation>) {
        let reports = self.reports.iter().flat_map(Receiver::try_iter);
        out.extend(reports.map(|report| Observation::Leases(Box::new(report))));
    }
}

impl LeaseTurns {
    fn run(mut self, to: &SyncSender<LeaseReadings>, calls: &Receiver<LeaseOrder>) {
        loop {
            if let Some(report) = self.turn() {
                let number = report.news.last().map(|news| news.number);
                match to.try_send(report.clone()) {
                    Ok(()) => {
                        self.known = number.or(self.known);
                        self.reported = Some(LeaseReadings { news: Vec::new(), ..report });
                    }
                    Err(std::sync::mpsc::TrySendError::Full(_)) => {}
                    Err(std::sync::mpsc::TrySendError::Disconnected(_)) => return,
                }
            }
            if !self.take_calls(calls) {
                return;
            }
        }
    }

    /// Takes calls until the next turn. Returns whether the program still runs.
    fn take_calls(&self, calls: &Receiver<LeaseOrder>) -> bool {
        let until = Instant::now() + if self.gangs.is_taking() { TAKING_EVERY } else { EVERY };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            match calls.recv_timeout(left) {
                Ok(LeaseOrder::Call { request, call, answer }) => {
                    // Who has called may have gone.
                    let _ = answer.send(self.call(&request, call));
                }
                Ok(LeaseOrder::End { id, by, answer }) => {
                    let ended = self.ledger.update(|book| book.end_by(&id, &by));
                    let _ = answer.send(ended);
                }
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn call(&self, request: &LeaseRequest, call: LeaseCall) -> Result<LeaseReply, String> {
        let status = self.status.load_full();
        let memory = status.gate_memory.as_ref().ok_or("memory of this node is unknown")?;
        let state = self.ledger.update(|book| {
            self.with_context(memory, &status, |context| book.call(request, call, context))
        });
        Ok(LeaseReply { node: self.ledger.name(), state: state.flatten()? })
    }

    fn with_context<T>(
        &self,
        memory: &MemoryPools,
        status: &Status,
        with: impl FnOnce(&LeaseContext<'_>) -> T,
    ) -> T {
        let now = clock::now();
        with(&LeaseContext {
            now: now.uptime,
            utc_ms: now.utc_ms(),
            memory,
            sampled: status.at.uptime,
            at_once: self.at_once,
            has_ended: &|holder| self.ledger.has_ended(holder),
        })
    }

    /// One turn over the ledger. `None` if nothing is new.
    fn turn(&mut self) -> Option<LeaseReadings> {
        let status = self.status.load_full();
        // Without a lease and without a start nothing is written.
        let starting = status.restarts.iter().filter(|restart| is_starting(restart));
        let starting: Vec<LeaseRequest> = starting.map(request_of).collect();
        self.requested.keep(&starting);
        if self.began.elapsed() < ADOPTS_FOR {
            self.requested.adopt(&starting);
        }
        let ledger = self.ledger.clone();
        self.gangs.update(&status.restarts, &ledger.name());
        let has_none = starting.is_empty() && self.gangs.is_empty();
        let book = match ledger.read() {
            Ok(book) if book.leases().is_empty() && has_none => Ok(book),
            _ => ledger.update(|book| {
                self.advance(book, &starting, &status);
                book.clone()
            }),
        };
        let report = match book {
            Ok(book) => self.report(&book),
            Err(error) => LeaseReadings { error: Some(error.into()), ..LeaseReadings::default() },
        };
        let is_new = !report.news.is_empty()
            || self
                .reported
                .as_ref()
                .is_none_or(|old| *old != LeaseReadings { news: Vec::new(), ..report.clone() });
        is_new.then_some(report)
    }

    fn advance(&mut self, book: &mut LeaseBook, starting: &[LeaseRequest], status: &Status) {
        let now = clock::uptime();
        self.requested.repeat(now, starting, book);
        for (id, end) in over(book.leases(), &status.restarts) {
            // What waits for other nodes does not start yet.
            if !self.gangs.has(&id) {
                book.end(&id, end);
            }
        }
        let up = status.engines.iter().filter(|status| status.phase.is_up());
        for id in ready(book.leases(), &up.map(|status| &status.engine).collect::<Vec<_>>()) {
            book.end(&id, LeaseEnd::Ready);
        }
        let Some(memory) = &status.gate_memory else { return };
        let (node, mut gangs) = (self.ledger.name(), std::mem::take(&mut self.gangs));
        self.with_context(memory, status, |context| {
            gangs.advance(book, &node, context);
            book.advance(context);
        });
        self.gangs = gangs;
    }

    fn report(&mut self, book: &LeaseBook) -> LeaseReadings {
        let last = book.news().last().map_or(0, |news| news.number);
        // What was before is in the journal of an earlier run. A new ledger begins anew.
        let known = *self.known.get_or_insert(last);
        let known = if last < known { 0 } else { known };
        let news: Vec<LeaseNews> =
            book.news().filter(|news| news.number > known).cloned().collect();
        let reserved = book.reserved().map(|(pool, bytes, by)| ReservedPool {
            pool: Arc::clone(pool),
            bytes,
            by,
        });
        LeaseReadings {
            leases: book.leases().into(),
            reserved: reserved.collect(),
            at_once: self.at_once,
            news,
            gangs: self.gangs.readings(),
            error: None,
        }
    }
}

/// Whether it starts, and its need is known.
fn is_starting(restart: &RestartStatus) -> bool {
    restart.state == RestartState::Starting && restart.seen.need.need_bytes.is_some()
}

fn request_of(restart: &RestartStatus) -> LeaseRequest {
    let name = &restart.seen.target.name;
    let (id, need) = (format!("{RESTART_LEASE}{name}").into(), restart.seen.need.request(0));
    LeaseRequest {
        requested_ms: restart.since.utc_ms(),
        ..LeaseRequest::new(id, Arc::clone(name), need)
    }
}

/// Leases of restarts that are known to start no longer, and why they end.
fn over(leases: &[Lease], restarts: &[RestartStatus]) -> Vec<(Arc<str>, LeaseEnd)> {
    let ended = leases.iter().filter_map(|lease| {
        let name = lease.request.id.strip_prefix(RESTART_LEASE)?;
        let restart = restarts.iter().find(|restart| *restart.seen.target.name == *name);
        let end = match restart.map(|restart| restart.state) {
            // The first reports of the supervisors come after the program's own start.
            None | Some(RestartState::Starting | RestartState::Unknown) => return None,
            Some(RestartState::Running) => LeaseEnd::Ready,
            _ => LeaseEnd::ProcessEnded,
        };
        Some((Arc::clone(&lease.request.id), end))
    });
    ended.collect()
}

/// Leases whose engine is among those that are up: one of that name, unit or container that began
/// after the grant, or one of whose processes holds the lease.
fn ready(leases: &[Lease], up: &[&EngineSeen]) -> Vec<Arc<str>> {
    let mut of_name: BTreeMap<&str, &EngineSeen> = BTreeMap::new();
    for seen in up {
        let names = [Some(&seen.name), seen.unit.as_ref(), seen.container_name.as_ref()];
        of_name.extend(names.into_iter().flatten().map(|name| (&**name, *seen)));
    }
    let is_ready = |lease: &&Lease| {
        let LeaseState::Granted { at, .. } = lease.state else { return false };
        let named = of_name.get(&*lease.request.who);
        let holds = |seen: &EngineSeen| {
            let mut processes = seen.processes.iter();
            lease.request.holder.is_some_and(|own| processes.any(|one| one.id == own.process))
        };
        // Who holds a lease became the engine, or has begun it.
        named.is_some_and(|seen| began(seen) >= at) || up.iter().any(|seen| holds(seen))
    };
    leases.iter().filter(is_ready).map(|lease| Arc::clone(&lease.request.id)).collect()
}

/// When an engine's main process started, on the uptime clock.
fn began(seen: &EngineSeen) -> Duration {
    // 100 ticks a second on every architecture.
    Duration::from_millis(seen.server.start_ticks.saturating_mul(10))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EngineKind, EngineProcess, GateRequest, LeaseHolder, ProcessId};

    fn request(id: &str, pid: u32) -> LeaseRequest {
        let process = ProcessId { pid, start_ticks: 1_000 };
        LeaseRequest {
            holder: Some(LeaseHolder { process, procfs: 1 }),
            ..LeaseRequest::new(id.into(), id.into(), GateRequest::of(1 << 30))
        }
    }

    #[test]
    fn a_restart_requests_its_lease_once() {
        let (mut requested, mut book) = (RequestedLeases::default(), LeaseBook::default());
        let starting = [request("restart-llm", 1)];
        let mut turn = |second, starting: &[LeaseRequest], book: &mut LeaseBook| {
            requested.keep(starting);
            requested.repeat(Duration::from_secs(second), starting, book);
            book.leases().len()
        };
        assert_eq!((turn(0, &starting, &mut book), turn(1, &starting, &mut book)), (1, 1));
        book.end("restart-llm", LeaseEnd::Taken);
        assert_eq!(turn(2, &starting, &mut book), 0, "its engine loads");
        assert_eq!((turn(3, &[], &mut book), turn(4, &starting, &mut book)), (0, 1));
        // The next run of the program does not know what was taken.
        let (mut requested, mut book) = (RequestedLeases::default(), LeaseBook::default());
        requested.adopt(&starting);
        requested.repeat(Duration::ZERO, &starting, &mut book);
        assert!(book.leases().is_empty());
    }

    #[test]
    fn the_lease_of_a_restart_outlives_the_daemon() {
        let state = LeaseState::waiting(Duration::ZERO);
        let lease = Lease { request: request("restart-llm", 1), since: Duration::ZERO, state };
        assert_eq!(over(&[lease], &[]), [], "its supervisor was not queried yet");
    }

    #[test]
    fn a_lease_ends_when_the_engine_that_holds_or_follows_it_is_up() {
        let granted = |id: &str, pid| {
            let at = Duration::from_secs(100);
            let state =
                LeaseState::Granted { at, shares: Vec::new(), progress: at, renew_by: None };
            Lease { request: request(id, pid), since: at, state }
        };
        let engine = |name: &str, pid, start_ticks| {
            let server = ProcessId { pid, start_ticks };
            let processes = vec![EngineProcess::holding(server, "vllm", 0)];
            EngineSeen::new(name.into(), EngineKind::Vllm, server, processes, "test".into())
        };
        let leases = [granted("chat", 7), granted("code", 8)];
        let ready = |engine: EngineSeen| ready(&leases, &[&engine]).len();
        // `umawarden lease` has become the engine: it began before the grant.
        assert_eq!(ready(engine("qwen", 7, 1_000)), 1);
        assert_eq!(ready(engine("qwen", 7, 1_001)), 0, "another process");
        assert_eq!(ready(engine("code", 9, 10_001)), 1);
        assert_eq!(ready(engine("code", 9, 9_999)), 0, "the engine before it");
    }
}
