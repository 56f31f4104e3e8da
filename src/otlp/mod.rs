//! Telemetry for a collector, by OTLP over HTTP: the metrics of `/metrics`, and each round of a
//! remedy as a trace.
//!
//! All of it happens on a thread of its own, which is there only with `otlp.endpoint`. The loop
//! hands over what it tells the journal, without waiting. What a collector that is away does not
//! take is kept within bounds, oldest dropped first, and counted.

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

use crate::clients::collector::CollectorPlace;
use crate::model::{Moment, Signal};
use crate::policy::status::Status;
use crate::traces::Told;
pub use tally::Tally;

/// What waits to be joined to traces; the thread takes it at once, unless it does not run at all.
const MOST_TOLD: usize = 1024;

/// How it is done.
#[derive(Clone, Debug)]
pub struct OtlpSetup {
    /// Where it is sent.
    pub collector: CollectorPlace,
    /// What is sent.
    pub signals: Vec<Signal>,
    /// Time between two looks at the metrics.
    pub interval: Duration,
    /// How long one request may take.
    pub timeout: Duration,
    /// What tells this node from others, beyond the usual.
    pub resource: Vec<(String, String)>,
    /// The node's name.
    pub node: String,
    /// The name of this boot; ids of traces follow from it.
    pub boot_id: Arc<str>,
    /// What the metrics are read from.
    pub status: Arc<ArcSwap<Status>>,
    /// The daemon's clock.
    pub clock: fn() -> Moment,
}

/// The loop's end of it.
#[derive(Debug)]
pub struct Otlp {
    /// `None`: nothing of it runs, or no traces are wanted.
    to: Option<mpsc::Sender<Told>>,
    tally: Option<Arc<Tally>>,
    end: watch::Sender<bool>,
    ended: Option<Receiver<()>>,
}

impl Otlp {
    /// One that does nothing.
    pub fn off() -> Self {
        let (end, _) = watch::channel(false);
        Self { to: None, tally: None, end, ended: None }
    }

    /// One whose traces go there, without a thread.
    #[cfg(test)]
    pub(crate) fn told_to(to: mpsc::Sender<Told>) -> Self {
        Self { to: Some(to), ..Self::off() }
    }

    /// Starts the thread; nothing is connected yet.
    ///
    /// # Errors
    /// The thread, or what it waits with, cannot be had.
    pub fn start(setup: OtlpSetup) -> io::Result<Self> {
        let tally = Arc::new(Tally::default());
        let (to, told) = mpsc::channel(MOST_TOLD);
        let (end, ending) = watch::channel(false);
        let (done, ended) = channel();
        let wants_traces = setup.signals.contains(&Signal::Traces);
        // Looking up a name may hang, and is the only thing that needs another thread.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .thread_name("otlp-name")
            .enable_all()
            .build()?;
        let counted = Arc::clone(&tally);
        Builder::new().name("otlp".to_owned()).spawn(move || {
            runtime.block_on(worker::run(setup, told, ending, counted));
            // The loop may have gone without waiting.
            let _gone = done.send(());
            runtime.shutdown_background();
        })?;
        let to = wants_traces.then_some(to);
        Ok(Self { to, tally: Some(tally), end, ended: Some(ended) })
    }

    /// Tells what belongs into a trace; it is made only where somebody wants it.
    pub fn tell(&self, told: impl FnOnce() -> Told) {
        let Some(to) = &self.to else { return };
        if to.try_send(told()).is_err()
            && let Some(tally) = &self.tally
        {
            tally.dropped(Signal::Traces, 1);
        }
    }

    /// What it has done so far; `None` where nothing of it runs.
    pub fn tally(&self) -> Option<&Arc<Tally>> {
        self.tally.as_ref()
    }

    /// The program ends: what is there is sent, once. Nothing is waited for.
    pub fn end(&self) {
        self.end.send_replace(true);
    }

    /// Waits for that; a collector that hangs is left behind.
    pub fn close(&self, deadline: Duration) {
        if let Some(ended) = &self.ended
            && ended.recv_timeout(deadline).is_err()
        {
            tracing::warn!("the collector of telemetry (otlp) may lack the last: it is slow");
        }
    }
}
