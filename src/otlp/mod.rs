//! Telemetry for a collector, by OTLP over HTTP: the metrics of `/metrics`, and each round of a
//! remedy as a trace.
//!
//! It runs on a thread of its own, which exists only with `otlp.endpoint`. The loop hands over its
//! journal entries without waiting. Undelivered telemetry is bounded: the oldest is dropped first,
//! and counted.

mod delivery;
mod metrics;
mod queue;
mod resource;
mod tally;
#[cfg(test)]
mod tests;
mod worker;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::Builder;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, watch};

use crate::clients::collector::CollectorEndpoint;
use crate::model::{Moment, Signal};
use crate::policy::status::Status;
use crate::traces::TraceInput;
pub use tally::OtlpTally;

/// Journal entries that wait for the thread.
const MOST_PENDING: usize = 1024;

/// Settings of the exporter.
#[derive(Clone, Debug)]
pub struct OtlpSetup {
    /// The collector's endpoint.
    pub collector: CollectorEndpoint,
    /// The signals to send.
    pub signals: Vec<Signal>,
    /// Time between two exports of metrics.
    pub interval: Duration,
    /// Timeout of one request.
    pub timeout: Duration,
    /// Attributes of the resource, in addition to the default ones.
    pub resource: Vec<(String, String)>,
    /// The node's name.
    pub node: String,
    /// The boot id, from which trace ids are derived.
    pub boot_id: Arc<str>,
    /// The snapshot that has the metrics.
    pub status: Arc<ArcSwap<Status>>,
    /// The daemon's clock.
    pub clock: fn() -> Moment,
}

/// The loop's handle of the exporter.
#[derive(Debug)]
pub struct Otlp {
    /// `None` if the exporter is off or exports no traces.
    to: Option<mpsc::Sender<TraceInput>>,
    tally: Option<Arc<OtlpTally>>,
    end: watch::Sender<bool>,
    ended: Option<Receiver<()>>,
}

impl Otlp {
    /// An exporter that is off.
    pub fn off() -> Self {
        let (end, _) = watch::channel(false);
        Self { to: None, tally: None, end, ended: None }
    }

    /// An exporter whose traces go to a channel, without a thread.
    #[cfg(test)]
    pub(crate) fn to_channel(to: mpsc::Sender<TraceInput>) -> Self {
        Self { to: Some(to), ..Self::off() }
    }

    /// Starts the thread, which connects later.
    ///
    /// # Errors
    /// The thread or its runtime cannot be created.
    pub fn start(setup: OtlpSetup) -> io::Result<Self> {
        let tally = Arc::new(OtlpTally::default());
        let (to, inputs) = mpsc::channel(MOST_PENDING);
        let (end, ending) = watch::channel(false);
        let (done, ended) = channel();
        let wants_traces = setup.signals.contains(&Signal::Traces);
        // Only name resolution needs another thread, and it may hang.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .thread_name("otlp-name")
            .enable_all()
            .build()?;
        let counted = Arc::clone(&tally);
        Builder::new().name("otlp".to_owned()).spawn(move || {
            runtime.block_on(worker::run(setup, inputs, ending, counted));
            // The loop may have ended without waiting.
            let _ = done.send(());
            runtime.shutdown_background();
        })?;
        let to = wants_traces.then_some(to);
        Ok(Self { to, tally: Some(tally), end, ended: Some(ended) })
    }

    /// Hands over an entry for a trace. `input` is called only if traces are exported.
    pub fn record(&self, input: impl FnOnce() -> TraceInput) {
        let Some(to) = &self.to else { return };
        if to.try_send(input()).is_err()
            && let Some(tally) = &self.tally
        {
            tally.dropped(Signal::Traces, 1);
        }
    }

    /// Counters of the exporter. `None` if it is off.
    pub fn tally(&self) -> Option<&Arc<OtlpTally>> {
        self.tally.as_ref()
    }

    /// Ends the exporter, which sends its queue once. Does not wait.
    pub fn end(&self) {
        self.end.send_replace(true);
    }

    /// Waits for the end of the exporter, at most this long.
    pub fn close(&self, deadline: Duration) {
        if let Some(ended) = &self.ended
            && ended.recv_timeout(deadline).is_err()
        {
            tracing::warn!(effect = "the last telemetry may be lost", "otlp flush timed out");
        }
    }
}
