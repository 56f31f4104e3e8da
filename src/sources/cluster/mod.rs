//! The other nodes of the cluster: who they are, and what they say.
//!
//! A thread of its own looks who they are, since names are looked up by whoever may hang. Another
//! asks them, all at the same time: each on a connection of its own, with an end to each question
//! that is before the next. The loop only takes what was said.

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

pub use self::discovery::{Discovery, Found};
use crate::model::{
    ClusterNames, ClusterReadings, ClusterSettings, NodeReadings, Observation, Wanted,
};

/// What may wait for the loop; more is dropped, and said again with the next answer.
const NEWS: usize = 512;

/// Names that are looked up, and keys that are read, at once.
const LOOKUPS: usize = 16;

/// Before what must not be lost is offered again.
const AGAIN: Duration = Duration::from_millis(100);

/// How the other nodes are known, and asked.
#[derive(Clone, Debug)]
pub struct ClusterSetup {
    /// As it is configured.
    pub settings: ClusterSettings,
    /// How this node is called.
    pub names: ClusterNames,
    /// By what this program knows itself among those who answer.
    pub instance: Arc<str>,
    /// What is wanted of them.
    pub wanted: Arc<[Wanted]>,
    /// The uptime.
    pub clock: fn() -> Duration,
}

/// The loop's end of the threads.
#[derive(Debug)]
pub struct ClusterWatch {
    news: Receiver<ClusterReadings>,
    wanted: watch::Sender<Arc<[Wanted]>>,
}

impl ClusterWatch {
    /// Starts the threads. They end when this is gone.
    ///
    /// # Errors
    /// They cannot be started.
    pub fn start(setup: ClusterSetup) -> io::Result<Self> {
        let (to, news) = sync_channel(NEWS);
        let (wanted, wants) = watch::channel(Arc::clone(&setup.wanted));
        let asking = Asking {
            settings: Arc::new(setup.settings),
            names: setup.names,
            instance: setup.instance,
            wants,
            news: News(to),
            clock: setup.clock,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(LOOKUPS)
            .thread_name("peers-names")
            .build()?;
        let server = asking.settings.prometheus.clone();
        let found = match &server {
            Some(_) => None,
            None => Some(discovery::start(Discovery::new(&asking.settings), asking.clock)?),
        };
        Builder::new().name("peers".to_owned()).spawn(move || {
            match (server, found) {
                (Some(server), _) => runtime.block_on(prometheus::ask(asking, server)),
                (None, Some(found)) => runtime.block_on(nodes::ask(asking, found)),
                (None, None) => {}
            }
            // Whoever looks up a name that nobody answers is left behind.
            runtime.shutdown_background();
        })?;
        Ok(Self { news, wanted })
    }

    /// What is new. Never waits.
    pub fn take(&mut self, out: &mut Vec<Observation>) {
        let news = self.news.try_iter();
        out.extend(news.map(|readings| Observation::Cluster(Box::new(readings))));
    }

    /// From now on that is wanted.
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

/// What whoever asks needs to know.
#[derive(Clone, Debug)]
struct Asking {
    settings: Arc<ClusterSettings>,
    names: ClusterNames,
    instance: Arc<str>,
    wants: watch::Receiver<Arc<[Wanted]>>,
    news: News,
    clock: fn() -> Duration,
}

impl Asking {
    fn wanted(&self) -> Arc<[Wanted]> {
        Arc::clone(&self.wants.borrow())
    }
}

/// Where news go.
#[derive(Clone, Debug)]
struct News(SyncSender<ClusterReadings>);

impl News {
    /// Tells the loop; what it does not take is said again with the next answer. Returns whether
    /// there is a loop.
    fn tell(&self, nodes: Vec<NodeReadings>) -> bool {
        let told = self.0.try_send(ClusterReadings { nodes });
        !matches!(told, Err(TrySendError::Disconnected(_)))
    }

    /// The same for what is said once: waits until the loop has room for it.
    async fn tell_surely(&self, nodes: Vec<NodeReadings>) {
        let mut readings = ClusterReadings { nodes };
        while let Err(TrySendError::Full(back)) = self.0.try_send(readings) {
            readings = back;
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// Where it is told who the nodes are.
type Founds = mpsc::Receiver<Found>;

/// A tenth of the time, more or less, so that nodes do not ask in step.
fn jittered(time: Duration) -> Duration {
    use std::hash::BuildHasher as _;
    let random = std::hash::RandomState::new().hash_one(0_u8);
    #[expect(clippy::cast_precision_loss, reason = "a share need not be exact")]
    let share = random as f64 / u64::MAX as f64;
    time.mul_f64(0.9 + 0.2 * share)
}
