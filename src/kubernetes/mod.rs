//! What Kubernetes is to know of this node: conditions, Events, and memory that pods can request.
//!
//! It runs on a thread of its own, which exists only with the section `kubernetes`, and reads the
//! snapshot once a second. Nothing waits for it. What cannot be sent is tried again, each feature
//! by itself; Events that wait are bounded.

mod backoff;
mod conditions;
mod events;
mod publisher;
mod resource;
mod tally;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::Builder;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::model::{KubernetesSettings, Moment};
use crate::policy::status::Status;
pub use conditions::has_settled;
use publisher::Publisher;
pub use tally::KubernetesTally;

/// Between two readings of the snapshot.
const TURN: Duration = Duration::from_secs(1);

/// What the thread works with.
#[derive(Clone, Debug)]
pub struct KubernetesSetup {
    /// The section of the configuration.
    pub settings: KubernetesSettings,
    /// The snapshot.
    pub status: Arc<ArcSwap<Status>>,
    /// The daemon's clock.
    pub clock: fn() -> Moment,
}

/// The loop's handle of the thread.
#[derive(Debug)]
pub struct Kubernetes {
    tally: Option<Arc<KubernetesTally>>,
    end: watch::Sender<bool>,
    ended: Option<Receiver<()>>,
}

impl Kubernetes {
    /// Without a cluster.
    pub fn off() -> Self {
        let (end, _) = watch::channel(false);
        Self { tally: None, end, ended: None }
    }

    /// Starts the thread, which connects later.
    ///
    /// # Errors
    /// The thread or its runtime cannot be created.
    pub fn start(setup: KubernetesSetup) -> io::Result<Self> {
        let tally = Arc::new(KubernetesTally::default());
        let (end, mut ending) = watch::channel(false);
        let (done, ended) = channel();
        // Only name resolution needs another thread, and it may hang.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .thread_name("kube-name")
            .enable_all()
            .build()?;
        let mut publisher = Publisher::new(setup, Arc::clone(&tally));
        Builder::new().name("kubernetes".to_owned()).spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = ending.changed() => break,
                        () = tokio::time::sleep(TURN) => {}
                    }
                    // A request must not delay the end.
                    tokio::select! {
                        _ = ending.changed() => break,
                        () = publisher.turn() => {}
                    }
                }
                publisher.leave().await;
            });
            // The loop may have ended without waiting.
            let _ = done.send(());
            runtime.shutdown_background();
        })?;
        Ok(Self { tally: Some(tally), end, ended: Some(ended) })
    }

    /// Counters of requests. `None` without a cluster.
    pub fn tally(&self) -> Option<&Arc<KubernetesTally>> {
        self.tally.as_ref()
    }

    /// Ends the thread, which says that the conditions are no longer known. Does not wait.
    pub fn end(&self) {
        self.end.send_replace(true);
    }

    /// Waits for its end, at most this long.
    pub fn close(&self, deadline: Duration) {
        if let Some(ended) = &self.ended {
            // The node's conditions keep their last heartbeat, which says how old they are.
            let _ = ended.recv_timeout(deadline);
        }
    }
}
