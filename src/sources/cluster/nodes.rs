//! Asks each node for its metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
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

/// No address that is asked for is longer: umawarden takes 4096 bytes.
const LONGEST_PATH: usize = 4000;

/// Whoever has so often left a question for single metrics without an answer is asked for all.
const UNANSWERED_NAMES: u32 = 3;

/// What a metric's name in an address need not be escaped for.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b':');

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
    /// Whether its last answer was umawarden's: others need not know how to ask for single metrics.
    is_umawarden: bool,
    /// Questions for single metrics in a row that had no answer.
    unanswered_names: u32,
    /// The path that asks for what is wanted alone.
    selecting: Selecting,
}

/// A path with the names of what is wanted.
struct Selecting {
    wanted: Arc<[Wanted]>,
    /// `None`: there are too many.
    path: Option<String>,
}

impl Selecting {
    fn new(metrics_path: &str, wanted: &Arc<[Wanted]>) -> Self {
        let names: BTreeSet<&str> = wanted.iter().map(|wanted| &*wanted.name).collect();
        let mut path = metrics_path.to_owned();
        for (place, name) in names.iter().enumerate() {
            let before = if place == 0 { '?' } else { '&' };
            path.push_str(&format!("{before}name%5B%5D={}", utf8_percent_encode(name, PLAIN)));
        }
        // Without a name all would be meant.
        let is_fine = !names.is_empty() && path.len() <= LONGEST_PATH;
        Self { wanted: Arc::clone(wanted), path: is_fine.then_some(path) }
    }
}

impl Node {
    fn new(asking: Asking, peer: &PeerAddress) -> Self {
        let name = Arc::clone(peer.name());
        let server = Server {
            host: peer.host().to_owned(),
            port: peer.port(),
            access: asking.settings.access.clone(),
        };
        let wanted = asking.wanted();
        Self {
            table: NodeTable::new(&asking.names.cluster, &name, &wanted),
            selecting: Selecting::new(&asking.settings.metrics_path, &wanted),
            connection: Connection::new(server),
            asking,
            name,
            failures: 0,
            is_self: false,
            is_umawarden: false,
            unanswered_names: 0,
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

    /// Where it is asked, and whether only for what is wanted.
    fn path(&mut self, wanted: &Arc<[Wanted]>) -> (String, bool) {
        let all = &self.asking.settings.metrics_path;
        if !Arc::ptr_eq(&self.selecting.wanted, wanted) {
            self.selecting = Selecting::new(all, wanted);
            self.unanswered_names = 0;
        }
        let may_select = self.is_umawarden && self.unanswered_names < UNANSWERED_NAMES;
        match self.selecting.path.as_ref().filter(|_| may_select) {
            Some(path) => (path.clone(), true),
            None => (all.clone(), false),
        }
    }

    /// Asks once. Returns whether anybody wants to know.
    async fn ask(&mut self, began: Duration) -> bool {
        let wanted = self.asking.wanted();
        self.table.want(&wanted);
        let (path, is_selecting) = self.path(&wanted);
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
                self.unanswered_names += u32::from(is_selecting);
                // An address that was this node's may be another's by now.
                (self.is_self, self.is_umawarden) = (false, false);
                return self.asking.news.tell(vec![self.table.silent(&why, took)]);
            }
        };
        self.failures = 0;
        if is_selecting {
            self.unanswered_names = 0;
        }
        self.is_umawarden = instance.is_some();
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, sync_channel};

    use tokio::runtime::Runtime;
    use tokio::sync::watch;

    use super::super::News;
    use super::super::tests::{answer, serve, settings, uptime, wanted};
    use super::*;
    use crate::model::{ClusterNames, ClusterReadings};

    /// One that is asked by hand.
    struct Asked {
        node: Node,
        runtime: Runtime,
        news: Receiver<ClusterReadings>,
        wants: watch::Sender<Arc<[Wanted]>>,
    }

    impl Asked {
        fn new(address: &str) -> Self {
            let mut settings = settings(&[address]);
            settings.timeout = Duration::from_secs(60);
            let peer = settings.peers[0].clone();
            let known_for = settings.known_for();
            let names = ClusterNames { cluster: "c".into(), node: "here".into(), known_for };
            let (to, news) = sync_channel(1);
            let (wants, wanted) = watch::channel(wanted());
            let asking = Asking {
                settings: Arc::new(settings),
                names,
                instance: "me".into(),
                wants: wanted,
                news: News(to),
                clock: uptime,
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            Self { node: Node::new(asking, &peer), runtime: runtime.unwrap(), news, wants }
        }

        fn ask(&mut self) {
            assert!(self.runtime.block_on(self.node.ask(uptime())), "there is a loop");
            let _news = self.news.try_iter().last();
        }
    }

    const METRICS: &str = "uma_memory_free_bytes 5\n";

    #[test]
    fn an_address_that_was_this_nodes_is_asked_as_others_are_once_it_is_not() {
        let says = Arc::new(Mutex::new(""));
        let told = Arc::clone(&says);
        let address = serve(move |_, stream| {
            let head = match *told.lock().unwrap() {
                "" => "500 Internal Server Error".to_owned(),
                name => format!("200 OK\r\numawarden-instance: {name}"),
            };
            answer(stream, &head, METRICS);
        });
        let mut asked = Asked::new(&address);
        for other in ["another", ""] {
            *says.lock().unwrap() = "me";
            asked.ask();
            assert!(asked.node.is_self && asked.node.rest() > SELF_EVERY / 2);
            *says.lock().unwrap() = other;
            asked.ask();
            assert!(!asked.node.is_self && asked.node.rest() < SELF_EVERY / 2, "{other}");
        }
    }

    #[test]
    fn umawarden_is_asked_for_what_is_wanted_alone_and_others_for_all() {
        let paths = Arc::new(Mutex::new(Vec::new()));
        let (is_umawarden, refuses) = (Arc::new(Mutex::new(false)), Arc::new(Mutex::new(false)));
        let seen = (Arc::clone(&paths), Arc::clone(&is_umawarden), Arc::clone(&refuses));
        let address = serve(move |request, stream| {
            let path = request.split(' ').nth(1).unwrap().to_owned();
            let is_refused = *seen.2.lock().unwrap() && path.contains('?');
            seen.0.lock().unwrap().push(path);
            let head = match (is_refused, *seen.1.lock().unwrap()) {
                (true, _) => "400 Bad Request",
                (false, true) => "200 OK\r\numawarden-instance: another",
                (false, false) => "200 OK",
            };
            answer(stream, head, METRICS);
        });
        let mut asked = Asked::new(&address);
        let asks = |asked: &mut Asked, times: usize| {
            (0..times).for_each(|_| asked.ask());
            std::mem::take(&mut *paths.lock().unwrap())
        };
        let all = "/metrics";
        assert_eq!(asks(&mut asked, 3), [all; 3]);
        *is_umawarden.lock().unwrap() = true;
        let some = "/metrics?name%5B%5D=uma_memory_contiguous_bytes\
                    &name%5B%5D=uma_memory_free_bytes&name%5B%5D=uma_source_up";
        assert_eq!(asks(&mut asked, 3), [all, some, some]);
        // What stands before it may not let a query through.
        *refuses.lock().unwrap() = true;
        assert_eq!(asks(&mut asked, 8), [some, all, some, all, some, all, all, all]);
        // When something else is wanted, it is tried again, but for what no address has room for.
        *refuses.lock().unwrap() = false;
        let want = |name: String| Wanted { name: name.into(), labels: Vec::new() };
        asked.wants.send_replace([want("a:b\u{e9}".to_owned())].into());
        assert_eq!(asks(&mut asked, 1), ["/metrics?name%5B%5D=a:b%C3%A9"]);
        asked.wants.send_replace((0..200).map(|one| want(format!("a_long_name_{one}"))).collect());
        assert_eq!(asks(&mut asked, 2), [all; 2]);
        asked.wants.send_replace([].into());
        assert_eq!(asks(&mut asked, 1), [all], "without a name all would be meant");
    }
}
