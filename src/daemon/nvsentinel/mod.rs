//! Reports critical alerts and faults of the kernel log to NVSentinel on this node.
//!
//! One thread reads once a second which alerts fire, and takes faults from the loop. The loop waits
//! for neither it nor the connector: a full queue drops faults, and the number is logged.

mod reports;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use tokio::runtime;

use self::reports::Reports;
use super::clock;
use crate::clients::nvsentinel::{HealthEvents, report};
use crate::config::nvsentinel::NvsentinelSettings;
use crate::model::{Event, RebootStage};
use crate::policy::status::Status;

/// How often the states of rules are read.
const UPDATE_EVERY: Duration = Duration::from_secs(1);

/// Faults in the queue.
const FAULTS: usize = 256;

/// Longest time of connecting, and of a call.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pause after a failure, at first and at most.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const AGAIN_AT_MOST: Duration = Duration::from_secs(60);

/// The loop's handle.
#[derive(Debug, Default)]
pub(super) struct HealthReports {
    to: Option<SyncSender<Event>>,
    shared: Arc<NvsentinelShared>,
}

/// What the loop and the thread share.
#[derive(Debug, Default)]
struct NvsentinelShared {
    /// Faults that did not fit.
    lost: AtomicU64,
    /// Whether NVSentinel may repair the node: no rule of this program reboots it.
    repairs: AtomicBool,
}

impl HealthReports {
    /// Starts the thread, if NVSentinel is configured.
    pub(super) fn start(
        settings: Option<&NvsentinelSettings>,
        status: &Arc<ArcSwap<Status>>,
    ) -> anyhow::Result<Self> {
        let Some(settings) = settings.cloned() else { return Ok(Self::default()) };
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the runtime of the thread nvsentinel")?;
        let (to, faults) = sync_channel(FAULTS);
        let own = Self { to: Some(to), shared: Arc::default() };
        own.let_repair(settings.repairs.is_some());
        // Nodes of Kubernetes have lower-case names.
        let of_machine = || super::alerting::node_name().to_lowercase();
        let name = settings.node.unwrap_or_else(of_machine);
        let sender = Sender {
            socket: settings.socket,
            runtime,
            status: Arc::clone(status),
            shared: Arc::clone(&own.shared),
            reports: Reports::new(name, clock::uptime()),
            outage: None,
        };
        let thread = Builder::new().name("nvsentinel".to_owned());
        let started = thread.spawn(move || sender.run(&faults));
        started.context("cannot start the thread nvsentinel")?;
        Ok(own)
    }

    /// Sets whether NVSentinel may repair the node.
    pub(super) fn let_repair(&self, repairs: bool) {
        self.shared.repairs.store(repairs, Ordering::Relaxed);
    }

    /// Hands over the faults among these events.
    pub(super) fn record(&self, events: &[Event]) {
        let Some(to) = &self.to else { return };
        for event in events.iter().filter(|event| reports::is_reported(event)) {
            if to.try_send(event.clone()).is_err() {
                self.shared.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Since when the connector does not take events.
#[derive(Debug)]
struct Outage {
    failures: u32,
    /// On the uptime clock.
    again_at: Duration,
}

struct Sender {
    socket: PathBuf,
    runtime: runtime::Runtime,
    status: Arc<ArcSwap<Status>>,
    shared: Arc<NvsentinelShared>,
    reports: Reports,
    outage: Option<Outage>,
}

impl Sender {
    /// Until the loop ends.
    fn run(mut self, faults: &Receiver<Event>) {
        loop {
            match faults.recv_timeout(UPDATE_EVERY) {
                Ok(fault) => {
                    self.reports.fault(&fault);
                    faults.try_iter().for_each(|fault| self.reports.fault(&fault));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = clock::now();
            let status = self.status.load();
            let may_repair = self.shared.repairs.load(Ordering::Relaxed)
                && status.reboot.stage == RebootStage::None;
            self.reports.update(now, &status.rules, may_repair);
            drop(status);
            self.lose();
            let may_send = self.outage.as_ref().is_none_or(|outage| now.uptime >= outage.again_at);
            if may_send {
                self.send();
            }
        }
    }

    fn lose(&mut self) {
        let lost = self.shared.lost.swap(0, Ordering::Relaxed) + self.reports.take_dropped();
        if lost > 0 {
            tracing::warn!(
                count = lost,
                effect = "they are in the journal alone",
                "nvsentinel_dropped"
            );
        }
    }

    fn send(&mut self) {
        let events = self.reports.due();
        if events.is_empty() {
            return;
        }
        let socket = &self.socket;
        let sent = self.runtime.block_on(report(socket, HealthEvents::new(events), PATIENCE));
        match sent {
            Ok(()) => {
                self.reports.taken();
                if self.outage.take().is_some() {
                    tracing::info!(socket = %socket.display(), "nvsentinel_up");
                }
            }
            Err(error) => {
                let failures = self.outage.as_ref().map_or(0, |outage| outage.failures);
                if failures == 0 {
                    tracing::warn!(
                        socket = %socket.display(),
                        error = error.to_string(),
                        effect = "health events wait, and alerts are reported once it answers",
                        remedy = "check that its platform connector runs, or remove nvsentinel",
                        "nvsentinel_down"
                    );
                }
                let pause = AGAIN_AFTER.saturating_mul(1 << failures.min(8)).min(AGAIN_AT_MOST);
                let again_at = clock::uptime().saturating_add(pause);
                self.outage = Some(Outage { failures: failures.saturating_add(1), again_at });
            }
        }
    }
}
