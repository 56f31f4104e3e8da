//! Asks each node for its metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::table::{NodeTable, Told, shown};
use super::{Asking, Found, Founds, jittered};
use crate::clients::connection::{Connection, Question, Server};
use crate::model::{NodeNews, NodeReadings, PEERS_ASKED_CHEAPLY, PeerAddress, Wanted};
use crate::parse::exposition::MetricReader;

/// A node's metrics are no longer: usually they have 100 KiB.
const MOST_BYTES: usize = 4 << 20;

/// What is understood.
const ACCEPT: &str = "text/plain;version=0.0.4";

/// Whoever has not answered so often in a row is asked more seldom, and at last so seldom.
const PATIENCE: u32 = 3;
const SELDOM: Duration = Duration::from_secs(10);

/// That an address is this node's own does not change soon.
const SELF_EVERY: Duration = Duration::from_secs(60);

/// Asks all nodes until the loop has gone.
pub(super) async fn ask(asking: Asking, mut founds: Founds) {
    let mut tasks: BTreeMap<Arc<str>, (PeerAddress, JoinHandle<()>)> = BTreeMap::new();
    let mut faults: Vec<Arc<str>> = Vec::new();
    let mut wants = asking.wants.clone();
    loop {
        let found = tokio::select! {
            found = founds.recv() => found,
            // The loop has gone, or wants something else, which each node is told when it is asked.
            changed = wants.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        let Some(found) = found else { return };
        tell(&asking, &found);
        let stays = |peer: &PeerAddress| found.peers.contains(peer);
        let mut news: Vec<NodeReadings> = Vec::new();
        tasks.retain(|name, (peer, task)| {
            let is_there = stays(peer);
            if !is_there {
                task.abort();
                news.push(has_gone(name));
            }
            is_there
        });
        // Who cannot be looked up is missed as a node would be.
        let cured =
            faults.iter().filter(|name| !found.faults.iter().any(|(what, _)| what == *name));
        news.extend(cured.map(has_gone));
        let wanted = asking.wanted();
        for (what, why) in &found.faults {
            let mut table = NodeTable::new(&asking.names.cluster, what, &wanted);
            news.push(table.silent(why, Duration::ZERO));
        }
        faults = found.faults.iter().map(|(what, _)| Arc::clone(what)).collect();
        if !news.is_empty() {
            asking.news.tell_surely(news).await;
        }
        for peer in &found.peers {
            if !tasks.contains_key(peer.name()) {
                let node = Node::new(asking.clone(), peer);
                let task = tokio::spawn(node.follow());
                tasks.insert(Arc::clone(peer.name()), (peer.clone(), task));
            }
        }
    }
}

fn tell(asking: &Asking, found: &Found) {
    for remark in &found.remarks {
        tracing::warn!("cluster: {}", shown(remark));
    }
    for (what, why) in &found.faults {
        tracing::warn!("cluster: {what}: {}; who is missing is not known", shown(why));
    }
    let count = found.peers.len();
    tracing::info!("cluster: {count} nodes are asked each {:?}", asking.settings.interval);
    if count > PEERS_ASKED_CHEAPLY {
        tracing::warn!(
            "cluster: {count} nodes ask each other; beyond {PEERS_ASKED_CHEAPLY} it costs less to \
             ask a Prometheus: write cluster: {{prometheus: {{url: …}}}}"
        );
    }
}

/// That there is no such node.
pub(super) fn has_gone(node: &Arc<str>) -> NodeReadings {
    let (news, took) = (NodeNews::Gone, Duration::ZERO);
    NodeReadings { node: Arc::clone(node), news, took, refused: Vec::new() }
}

/// One node that is asked.
struct Node {
    asking: Asking,
    name: Arc<str>,
    connection: Connection,
    table: NodeTable,
    failures: u32,
    is_self: bool,
}

impl Node {
    fn new(asking: Asking, peer: &PeerAddress) -> Self {
        let name = Arc::clone(peer.name());
        let server = Server {
            host: peer.host().to_owned(),
            port: peer.port(),
            access: asking.settings.access.clone(),
        };
        Self {
            table: NodeTable::new(&asking.names.cluster, &name, &asking.wanted()),
            connection: Connection::new(server),
            asking,
            name,
            failures: 0,
            is_self: false,
        }
    }

    async fn follow(mut self) {
        // Not all at once.
        sleep(jittered(self.asking.settings.interval).mul_f64(0.1)).await;
        loop {
            let began = (self.asking.clock)();
            if !self.ask(began).await {
                return;
            }
            let took = (self.asking.clock)().saturating_sub(began);
            sleep(self.rest().saturating_sub(took)).await;
        }
    }

    fn rest(&self) -> Duration {
        let interval = self.asking.settings.interval;
        if self.is_self {
            return jittered(SELF_EVERY);
        }
        let beyond = self.failures.saturating_sub(PATIENCE).min(16);
        let rest = interval.saturating_mul(1 << beyond).min(SELDOM.max(interval));
        jittered(rest)
    }

    /// Asks once. Returns whether anybody wants to know.
    async fn ask(&mut self, began: Duration) -> bool {
        let wanted = self.asking.wanted();
        self.table.want(&wanted);
        let path = self.asking.settings.metrics_path.clone();
        let question = question(&mut self.connection, &path, &wanted);
        let answer = match timeout(self.asking.settings.timeout, question).await {
            Ok(answer) => answer,
            Err(_) => {
                let takes = self.asking.settings.timeout;
                Err(format!("no answer within {} ms", takes.as_millis()))
            }
        };
        let took = (self.asking.clock)().saturating_sub(began);
        let (told, instance) = match answer {
            Ok(answer) => answer,
            Err(why) => {
                self.failures = self.failures.saturating_add(1);
                // An address that was this node's may be another's by now.
                self.is_self = false;
                return self.asking.news.tell(vec![self.table.silent(&why, took)]);
            }
        };
        self.failures = 0;
        let is_self = instance.as_deref() == Some(&*self.asking.instance);
        let is_of_this_name = *self.name == *self.asking.names.node;
        if is_of_this_name && !is_self && instance.is_some() {
            let why = "another node has this one's name: give one of them another (cluster.node)";
            return self.asking.news.tell(vec![self.table.silent(why, took)]);
        }
        if is_self || is_of_this_name {
            if !std::mem::replace(&mut self.is_self, true) {
                tracing::info!("cluster: {} is this node", self.name);
                self.asking.news.tell_surely(vec![has_gone(&self.name)]).await;
            }
            return true;
        }
        self.is_self = false;
        let readings = match told.is_empty() {
            true => self.table.silent("nothing of its answer is umawarden's", took),
            false => self.table.answered(&told, took),
        };
        self.asking.news.tell(vec![readings])
    }
}

/// One question; dropped, it ends the connection.
async fn question(
    connection: &mut Connection,
    path: &str,
    wanted: &[Wanted],
) -> Result<(Told, Option<String>), String> {
    let mut told = Told::default();
    let mut reader = MetricReader::new();
    let wants = |name: &str| wanted.iter().any(|wanted| *wanted.name == *name);
    let head = {
        let mut take = |line: crate::parse::exposition::MetricLine<'_>| {
            let labels: Vec<(&str, &str)> =
                line.labels.iter().map(|(name, value)| (*name, &**value)).collect();
            told.take(line.name, &labels, line.value, wanted);
        };
        let mut feed = |part: &[u8]| {
            reader.feed(part, &wants, &mut take).map_err(|error| format!("no metrics: {error}"))
        };
        let asked = Question { path, accept: ACCEPT, most_bytes: MOST_BYTES, also: None };
        let head = connection.get(asked, &mut feed).await?;
        reader.end(&wants, &mut take).map_err(|error| format!("no metrics: {error}"))?;
        head
    };
    Ok((told, head.instance))
}
