//! Finds orphans that hold memory, on a thread of its own: a scan of processes may hang in the
//! kernel as long as the driver.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use super::node::GateSetup;
use crate::cli::control::ControlClient;
use crate::model::{Baseline, Orphan, Reading};
use crate::policy::gate::orphans;
use crate::sources::engines::Scanner;

/// Between two scans of all processes.
const EVERY: Duration = Duration::from_secs(1);

/// Timeout of the first scan.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);

/// An older scan is ignored.
const VALID_FOR: Duration = Duration::from_secs(10);

/// Timeout of a request to the daemon, and the pause after a failed one.
const DAEMON_TIMEOUT: Duration = Duration::from_millis(500);
const DAEMON_EVERY: Duration = Duration::from_secs(5);

/// The most orphans that are listed.
const MOST_ORPHANS: usize = 64;

/// The result of a scan.
struct GateScan {
    at: Instant,
    orphans: Option<Arc<[Orphan]>>,
    /// The model files of running engines.
    living: Vec<Arc<str>>,
    baselines: BTreeMap<Arc<str>, Baseline>,
}

/// The used part of the daemon's response about a pool.
#[derive(Deserialize)]
struct PoolReport {
    pool: Arc<str>,
    #[serde(rename = "unaccounted_baseline")]
    baseline: Option<Baseline>,
    orphans: Option<Vec<Orphan>>,
}

/// The pools in the daemon's response: a list where there are several, else the one.
fn pool_reports(data: &mut Value) -> Vec<PoolReport> {
    let pools = match data["pools"].take() {
        Value::Array(pools) => pools,
        _ => {
            let mut only = data["memory"].take();
            only["pool"] = data["pool"].take();
            vec![only]
        }
    };
    pools.into_iter().filter_map(|pool| serde_json::from_value(pool).ok()).collect()
}

/// The main thread's handle of the scanner.
pub(super) struct Holders {
    from: Receiver<GateScan>,
    latest: Option<GateScan>,
}

impl Holders {
    pub(super) fn start(setup: GateSetup) -> io::Result<Self> {
        let (to, from) = sync_channel(4);
        let GateSetup { procfs, declared, daemon, .. } = setup;
        let scan = GateScanThread {
            scanner: Scanner::new(procfs, declared),
            began: Instant::now(),
            daemon,
            query_next: Duration::ZERO,
            report: Vec::new(),
        };
        Builder::new().name("holders".to_owned()).spawn(move || scan.run(&to))?;
        let latest = from.recv_timeout(FIRST_TIMEOUT).ok();
        Ok(Self { from, latest })
    }

    /// Takes a new result, if there is one. Never blocks.
    pub(super) fn take(&mut self) {
        if let Some(newest) = self.from.try_iter().last() {
            self.latest = Some(newest);
        }
    }

    pub(super) fn orphans(&self) -> Reading<Arc<[Orphan]>> {
        let known = self.latest.as_ref().filter(|seen| seen.at.elapsed() <= VALID_FOR);
        known.and_then(|seen| seen.orphans.clone()).map_or(Reading::Failed, Reading::Value)
    }

    pub(super) fn living(&self) -> &[Arc<str>] {
        self.latest.as_ref().map_or(&[], |seen| &seen.living)
    }

    /// The daemon's baseline of a pool, if it has learned one.
    pub(super) fn baseline(&self, pool: &str) -> Option<Baseline> {
        let baselines = &self.latest.as_ref()?.baselines;
        baselines.get(pool).copied().filter(|baseline| baseline.is_learned)
    }
}

struct GateScanThread {
    scanner: Scanner,
    began: Instant,
    daemon: Option<ControlClient>,
    /// The time of the next request to the daemon, since the start.
    query_next: Duration,
    report: Vec<PoolReport>,
}

impl GateScanThread {
    fn run(mut self, to: &SyncSender<GateScan>) {
        loop {
            let seen = self.scan();
            // Without a receiver the thread ends.
            if let Err(TrySendError::Disconnected(_)) = to.try_send(seen) {
                return;
            }
            std::thread::sleep(EVERY);
        }
    }

    fn scan(&mut self) -> GateScan {
        self.query_daemon();
        let now = self.began.elapsed();
        let found = self.scanner.scan(now, true);
        let engines = found.as_ref().map_or(&[][..], |readings| &readings.engines);
        let living = engines.iter().filter(|seen| orphans(seen).next().is_none());
        let living = living.flat_map(|seen| seen.model_files.clone()).collect();
        let orphans = found.ok().map(|readings| {
            let mut all: Vec<Orphan> = readings.engines.iter().flat_map(orphans).collect();
            for orphan in self.report.iter().flat_map(|pool| pool.orphans.iter().flatten()) {
                if all.iter().all(|known| known.id != orphan.id) {
                    all.push(orphan.clone());
                }
            }
            all.truncate(MOST_ORPHANS);
            all.into()
        });
        let baselines =
            self.report.iter().filter_map(|pool| Some((Arc::clone(&pool.pool), pool.baseline?)));
        GateScan { at: Instant::now(), orphans, living, baselines: baselines.collect() }
    }

    /// Queries the daemon, which knows more: the baseline of this boot, and the engines of
    /// processes that have lost their names.
    fn query_daemon(&mut self) {
        let now = self.began.elapsed();
        let Some(daemon) = self.daemon.as_ref().filter(|_| now >= self.query_next) else { return };
        let reply = daemon.request("GET", "/api/v1/gate?need=0", None).ok();
        // An open and a closed gate both report the memory.
        let report = reply.map(|mut reply| pool_reports(&mut reply.data)).unwrap_or_default();
        self.query_next = now + if report.is_empty() { DAEMON_EVERY } else { EVERY };
        self.report = report;
    }
}

/// The daemon's client with a short timeout, since waiting for memory does not depend on it.
pub(super) fn patient(client: ControlClient) -> ControlClient {
    client.with_patience(DAEMON_TIMEOUT)
}
