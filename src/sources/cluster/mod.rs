//! The other nodes of the cluster: their addresses and their metrics.
//!
//! One thread discovers the nodes, since a name server may hang. A second thread scrapes all nodes
//! concurrently. Each node has its own connection, and a deadline that ends before its next scrape.
//! The loop only takes the results.

mod discovery;
mod nodes;
mod prometheus;
mod table;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

pub use self::discovery::{DiscoveredNodes, Discovery};
use crate::model::{
    ClusterNames, ClusterReadings, ClusterSettings, NodeReadings, Observation, Wanted,
};

/// Capacity of the queue to the loop. A report that does not fit is dropped; the next response
/// repeats it.
const QUEUE: usize = 512;

/// The most name lookups and key files at once.
const MAX_LOOKUPS: usize = 16;

/// Delay before a report that must not be lost is sent again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Settings of discovery and scrapes.
#[derive(Clone, Debug)]
pub struct ClusterSetup {
    /// The configuration.
    pub settings: ClusterSettings,
    /// The names of this node and its cluster.
    pub names: ClusterNames,
    /// The identity of this program in the response of a node.
    pub instance: Arc<str>,
    /// The series to read.
    pub wanted: Arc<[Wanted]>,
    /// Reads the uptime clock.
    pub clock: fn() -> Duration,
}

/// The loop's handle of the threads.
#[derive(Debug)]
pub struct ClusterWatch {
    news: Receiver<ClusterReadings>,
    wanted: watch::Sender<Arc<[Wanted]>>,
}

impl ClusterWatch {
    /// Starts the threads, which end when this is dropped.
    ///
    /// # Errors
    /// The system cannot start them.
    pub fn start(setup: ClusterSetup) -> io::Result<Self> {
        let (to, news) = sync_channel(QUEUE);
        let (wanted, wants) = watch::channel(Arc::clone(&setup.wanted));
        let context = Scraping {
            settings: Arc::new(setup.settings),
            names: setup.names,
            instance: setup.instance,
            wants,
            news: ReadingsQueue(to),
            clock: setup.clock,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(MAX_LOOKUPS)
            .thread_name("peers-names")
            .build()?;
        let server = context.settings.prometheus.clone();
        let found = match &server {
            Some(_) => None,
            None => Some(discovery::start(Discovery::new(&context.settings), context.clock)?),
        };
        Builder::new().name("peers".to_owned()).spawn(move || {
            match (server, found) {
                (Some(server), _) => runtime.block_on(prometheus::query_all(context, server)),
                (None, Some(found)) => runtime.block_on(nodes::scrape(context, found)),
                (None, None) => {}
            }
            // A name lookup that hangs is abandoned.
            runtime.shutdown_background();
        })?;
        Ok(Self { news, wanted })
    }

    /// Takes all new reports without waiting.
    pub fn take(&mut self, out: &mut Vec<Observation>) {
        let news = self.news.try_iter();
        out.extend(news.map(|readings| Observation::Cluster(Box::new(readings))));
    }

    /// Replaces the series to read.
    pub fn want(&self, wanted: &Arc<[Wanted]>) {
        self.wanted.send_if_modified(|known| {
            let is_other = **known != **wanted;
            if is_other {
                *known = Arc::clone(wanted);
            }
            is_other
        });
    }
}

/// What a scrape needs to know.
#[derive(Clone, Debug)]
struct Scraping {
    settings: Arc<ClusterSettings>,
    names: ClusterNames,
    instance: Arc<str>,
    wants: watch::Receiver<Arc<[Wanted]>>,
    news: ReadingsQueue,
    clock: fn() -> Duration,
}

impl Scraping {
    fn wanted(&self) -> Arc<[Wanted]> {
        Arc::clone(&self.wants.borrow())
    }
}

/// The queue to the loop.
#[derive(Clone, Debug)]
struct ReadingsQueue(SyncSender<ClusterReadings>);

impl ReadingsQueue {
    /// Reports to the loop; a report that does not fit is repeated with the next response. Returns
    /// whether the loop still runs.
    fn report(&self, nodes: Vec<NodeReadings>) -> bool {
        let sent = self.0.try_send(ClusterReadings { nodes });
        !matches!(sent, Err(TrySendError::Disconnected(_)))
    }

    /// Reports what is not repeated: waits until the queue has space.
    async fn report_reliably(&self, nodes: Vec<NodeReadings>) {
        let mut readings = ClusterReadings { nodes };
        while let Err(TrySendError::Full(back)) = self.0.try_send(readings) {
            readings = back;
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }
}

/// The results of discovery.
type Discovered = mpsc::Receiver<DiscoveredNodes>;

/// The time with up to a tenth added or removed, so that nodes do not scrape in step.
fn jittered(time: Duration) -> Duration {
    use std::hash::BuildHasher as _;
    let random = std::hash::RandomState::new().hash_one(0_u8);
    #[expect(clippy::cast_precision_loss, reason = "a share need not be exact")]
    let share = random as f64 / u64::MAX as f64;
    time.mul_f64(0.9 + 0.2 * share)
}
