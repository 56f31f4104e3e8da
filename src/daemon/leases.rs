//! The daemon's part in leases: it ends those whose engine is ready, adds those of deferred
//! restarts, and reports all of them to the policy.
//!
//! A thread of its own, since the ledger is a file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, sleep};
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;

use super::clock;
use crate::config::settings::Settings;
use crate::leases::Ledger;
use crate::model::{
    Lease, LeaseEnd, LeaseNews, LeaseReadings, LeaseRequest, LeaseState, Observation, ReservedPool,
    RestartState, RestartStatus,
};
use crate::policy::leases::{LeaseBook, LeaseContext};
use crate::policy::status::{EngineStatus, Status};

/// Between two turns.
const EVERY: Duration = Duration::from_millis(500);

/// Reports that wait for the loop; further ones are dropped, and the next one repeats them.
const QUEUE: usize = 4;

/// How long the memory of a deferred restart stays reserved.
const RESTART_LASTS: Duration = Duration::from_secs(600);

/// The loop's handle of the thread, if there is a ledger to watch.
pub(super) struct LeaseWatch(Option<Receiver<LeaseReadings>>);

struct Turns {
    ledger: Ledger,
    at_once: u32,
    status: Arc<ArcSwap<Status>>,
    /// Starting restarts that have requested their lease. A lease that is over is not requested
    /// again: its memory was taken.
    requested: BTreeSet<Arc<str>>,
    /// The last change that was reported; `None` before the first turn.
    known: Option<u64>,
    reported: Option<LeaseReadings>,
}

impl LeaseWatch {
    /// Starts the thread, unless the settings are for the files of another machine.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(super) fn open(settings: &Settings, status: &Arc<ArcSwap<Status>>) -> anyhow::Result<Self> {
        let procfs = &settings.path.procfs;
        let Some(folder) = settings.starts.ledger_folder(procfs) else { return Ok(Self(None)) };
        let (to, reports) = sync_channel(QUEUE);
        let turns = Turns {
            ledger: Ledger::new(&folder, procfs),
            at_once: settings.starts.at_once,
            status: Arc::clone(status),
            requested: BTreeSet::new(),
            known: None,
            reported: None,
        };
        let thread = Builder::new().name("leases".to_owned()).spawn(move || turns.run(&to));
        thread.context("cannot start the thread of the leases")?;
        Ok(Self(Some(reports)))
    }

    /// Takes the new reports without waiting.
    pub(super) fn take(&self, out: &mut Vec<Observation>) {
        let reports = self.0.iter().flat_map(Receiver::try_iter);
        out.extend(reports.map(|report| Observation::Leases(Box::new(report))));
    }
}

impl Turns {
    fn run(mut self, to: &SyncSender<LeaseReadings>) {
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
            sleep(EVERY);
        }
    }

    /// One turn over the ledger. `None` if nothing is new.
    fn turn(&mut self) -> Option<LeaseReadings> {
        let status = self.status.load_full();
        // Without a lease and without a start nothing is written.
        let starts = status.restarts.iter().any(is_starting);
        let ledger = self.ledger.clone();
        let book = match ledger.read() {
            Ok(book) if book.leases().is_empty() && !starts => Ok(book),
            _ => ledger.update(|book| {
                self.advance(book, &status);
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
                .is_none_or(|old| old.leases != report.leases || old.error != report.error);
        is_new.then_some(report)
    }

    fn advance(&mut self, book: &mut LeaseBook, status: &Status) {
        let now = clock::uptime();
        let starting = || status.restarts.iter().filter(|restart| is_starting(restart));
        self.requested.retain(|id| starting().any(|restart| request_of(restart).id == *id));
        for request in starting().map(request_of) {
            if self.requested.insert(Arc::clone(&request.id)) || book.get(&request.id).is_some() {
                // What cannot be added is too much already.
                let _ = book.request(now, request);
            }
        }
        for id in ready(book.leases(), &status.engines) {
            book.end(&id, LeaseEnd::Ready);
        }
        let Some(memory) = &status.gate_memory else { return };
        book.advance(&LeaseContext {
            now,
            memory,
            at_once: self.at_once,
            has_ended: &|holder| self.ledger.has_ended(holder),
            id: None,
        });
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
            error: None,
        }
    }
}

/// Whether it starts, and its need is known.
fn is_starting(restart: &RestartStatus) -> bool {
    restart.state == RestartState::Starting && restart.seen.need.need_bytes.is_some()
}

fn request_of(restart: &RestartStatus) -> LeaseRequest {
    LeaseRequest {
        id: format!("restart-{}", restart.seen.target.name).into(),
        who: Arc::clone(&restart.seen.target.name),
        priority: 0,
        holder: None,
        need: restart.seen.need.request(0),
        lasts: RESTART_LASTS,
    }
}

/// Leases whose engine is ready: one of that name, unit or container that began after the grant, or
/// one of whose processes holds the lease.
fn ready(leases: &[Lease], engines: &[EngineStatus]) -> Vec<Arc<str>> {
    let mut of_name: BTreeMap<&str, &EngineStatus> = BTreeMap::new();
    for status in engines.iter().filter(|status| status.phase.is_up()) {
        let seen = &status.engine;
        let names = [Some(&seen.name), seen.unit.as_ref(), seen.container_name.as_ref()];
        of_name.extend(names.into_iter().flatten().map(|name| (&**name, status)));
    }
    let is_ready = |lease: &&Lease| {
        let LeaseState::Granted { at, .. } = lease.state else { return false };
        let named = of_name.get(&*lease.request.who).copied();
        let held = engines.iter().filter(|status| status.phase.is_up()).find(|status| {
            let mut processes = status.engine.processes.iter();
            lease.request.holder.is_some_and(|holder| processes.any(|own| own.id == holder.process))
        });
        // Who holds a lease became the engine, or has begun it.
        named.is_some_and(|status| began(status) >= at) || held.is_some()
    };
    leases.iter().filter(is_ready).map(|lease| Arc::clone(&lease.request.id)).collect()
}

/// When an engine's main process started, on the uptime clock.
fn began(status: &EngineStatus) -> Duration {
    // 100 ticks a second on every architecture.
    Duration::from_millis(status.engine.server.start_ticks.saturating_mul(10))
}
