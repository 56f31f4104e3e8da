//! Scrapes the metrics of each node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::table::{NodeSamples, NodeTable, shown};
use super::{Discovered, DiscoveredNodes, Scraping, jittered};
use crate::clients::connection::{ConnectionRequest, Server, ServerConnection};
use crate::model::{NodeNews, NodeReadings, PEERS_ASKED_CHEAPLY, PeerAddress, Wanted};
use crate::parse::exposition::MetricReader;

/// The size limit of a response; usual metrics have 100 KiB.
const MAX_RESPONSE_BYTES: usize = 4 << 20;

/// The accepted format.
const ACCEPT: &str = "text/plain;version=0.0.4";

/// After this many failures in a row a node is scraped less often, at last at this interval.
const FAILURES_BEFORE_BACK_OFF: u32 = 3;
const LONGEST_INTERVAL: Duration = Duration::from_secs(10);

/// The length limit of a path: umawarden accepts 4096 bytes.
const MAX_PATH_BYTES: usize = 4000;

/// After this many scrapes of single metrics without a response, all metrics are requested.
const MAX_SELECTION_FAILURES: u32 = 3;

/// Characters of a metric name that need no escape.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b':');

/// Interval for an address of this node, which rarely changes.
const SELF_EVERY: Duration = Duration::from_secs(60);

/// Scrapes all nodes until the loop ends.
pub(super) async fn scrape(context: Scraping, mut discovered: Discovered) {
    let mut tasks: BTreeMap<Arc<str>, (PeerAddress, JoinHandle<()>)> = BTreeMap::new();
    let mut faults: Vec<Arc<str>> = Vec::new();
    let mut wants = context.wants.clone();
    loop {
        let found = tokio::select! {
            found = discovered.recv() => found,
            // An error: the loop has ended. Each node reads the new list at its next scrape.
            changed = wants.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        let Some(found) = found else { return };
        log_discovery(&context, &found);
        let stays = |peer: &PeerAddress| found.peers.contains(peer);
        let mut news: Vec<NodeReadings> = Vec::new();
        tasks.retain(|name, (peer, task)| {
            let is_there = stays(peer);
            if !is_there {
                task.abort();
                news.push(removed(name));
            }
            is_there
        });
        // An unusable name or file counts as a silent node.
        let resolved =
            faults.iter().filter(|name| !found.faults.iter().any(|(what, _)| what == *name));
        news.extend(resolved.map(removed));
        let wanted = context.wanted();
        for (what, why) in &found.faults {
            let mut table = NodeTable::new(&context.names.cluster, what, &wanted);
            news.push(table.silent(why, Duration::ZERO));
        }
        faults = found.faults.iter().map(|(what, _)| Arc::clone(what)).collect();
        if !news.is_empty() {
            context.news.report_reliably(news).await;
        }
        for peer in &found.peers {
            if !tasks.contains_key(peer.name()) {
                let node = ScrapedNode::new(context.clone(), peer);
                let task = tokio::spawn(node.run());
                tasks.insert(Arc::clone(peer.name()), (peer.clone(), task));
            }
        }
    }
}

fn log_discovery(context: &Scraping, found: &DiscoveredNodes) {
    for remark in &found.remarks {
        tracing::warn!(remark = shown(remark), "remark about the cluster");
    }
    for (what, why) in &found.faults {
        tracing::warn!(of = &**what, why = shown(why), "nodes of the cluster unknown");
    }
    let count = found.peers.len();
    let interval = context.settings.interval;
    tracing::info!(nodes = count, ?interval, "nodes of the cluster are scraped");
    if count > PEERS_ASKED_CHEAPLY {
        tracing::warn!(
            nodes = count,
            cheap_up_to = PEERS_ASKED_CHEAPLY,
            remedy = "query a Prometheus: write cluster: {prometheus: {url: …}}",
            "many nodes scrape each other"
        );
    }
}

/// The report that a node no longer exists.
pub(super) fn removed(node: &Arc<str>) -> NodeReadings {
    NodeReadings::new(Arc::clone(node), NodeNews::Gone, Duration::ZERO)
}

/// The URL of the page of an umawarden that is scraped there.
fn page_url(server: &Server) -> Arc<str> {
    let scheme = if server.access.tls.is_some() { "https" } else { "http" };
    format!("{scheme}://{}:{}/", server.host, server.port).into()
}

struct ScrapedNode {
    context: Scraping,
    name: Arc<str>,
    connection: ServerConnection,
    /// The URL of its page, if it has one.
    url: Arc<str>,
    table: NodeTable,
    failures: u32,
    is_self: bool,
    /// Whether its last response was from umawarden. Other servers may not select single metrics.
    is_umawarden: bool,
    /// Scrapes of single metrics in a row without a response.
    selection_failures: u32,
    /// The path that selects the wanted metrics.
    selection: MetricSelection,
}

/// A path with the names of the wanted metrics.
struct MetricSelection {
    wanted: Arc<[Wanted]>,
    /// `None`: the path would be too long.
    path: Option<String>,
}

impl MetricSelection {
    fn new(metrics_path: &str, wanted: &Arc<[Wanted]>) -> Self {
        let names: BTreeSet<&str> = wanted.iter().map(|wanted| &*wanted.name).collect();
        let mut path = metrics_path.to_owned();
        for (index, name) in names.iter().enumerate() {
            let before = if index == 0 { '?' } else { '&' };
            path.push_str(&format!("{before}name%5B%5D={}", utf8_percent_encode(name, PLAIN)));
        }
        // A path without a name would select all metrics.
        let is_fine = !names.is_empty() && path.len() <= MAX_PATH_BYTES;
        Self { wanted: Arc::clone(wanted), path: is_fine.then_some(path) }
    }
}

impl ScrapedNode {
    fn new(context: Scraping, peer: &PeerAddress) -> Self {
        let name = Arc::clone(peer.name());
        let server = Server {
            host: peer.host().to_owned(),
            port: peer.port(),
            access: context.settings.access.clone(),
        };
        let wanted = context.wanted();
        Self {
            url: page_url(&server),
            table: NodeTable::new(&context.names.cluster, &name, &wanted),
            selection: MetricSelection::new(&context.settings.metrics_path, &wanted),
            connection: ServerConnection::new(server),
            context,
            name,
            failures: 0,
            is_self: false,
            is_umawarden: false,
            selection_failures: 0,
        }
    }

    async fn run(mut self) {
        // Spreads the first scrapes.
        sleep(jittered(self.context.settings.interval).mul_f64(0.1)).await;
        loop {
            let began = (self.context.clock)();
            if !self.scrape(began).await {
                return;
            }
            let took = (self.context.clock)().saturating_sub(began);
            sleep(self.rest().saturating_sub(took)).await;
        }
    }

    fn rest(&self) -> Duration {
        let interval = self.context.settings.interval;
        if self.is_self {
            return jittered(SELF_EVERY);
        }
        let beyond = self.failures.saturating_sub(FAILURES_BEFORE_BACK_OFF).min(16);
        let rest = interval.saturating_mul(1 << beyond).min(LONGEST_INTERVAL.max(interval));
        jittered(rest)
    }

    /// The path of the next scrape, and whether it selects single metrics.
    fn path(&mut self, wanted: &Arc<[Wanted]>) -> (String, bool) {
        let all = &self.context.settings.metrics_path;
        if !Arc::ptr_eq(&self.selection.wanted, wanted) {
            self.selection = MetricSelection::new(all, wanted);
            self.selection_failures = 0;
        }
        let may_select = self.is_umawarden && self.selection_failures < MAX_SELECTION_FAILURES;
        match self.selection.path.as_ref().filter(|_| may_select) {
            Some(path) => (path.clone(), true),
            None => (all.clone(), false),
        }
    }

    /// Scrapes once. Returns whether the loop still runs.
    async fn scrape(&mut self, began: Duration) -> bool {
        let wanted = self.context.wanted();
        self.table.want(&wanted);
        let (path, is_selecting) = self.path(&wanted);
        let request = request(&mut self.connection, &path, &wanted);
        let response = match timeout(self.context.settings.timeout, request).await {
            Ok(response) => response,
            Err(_) => {
                let takes = self.context.settings.timeout;
                Err(format!("no answer within {} ms", takes.as_millis()))
            }
        };
        let took = (self.context.clock)().saturating_sub(began);
        let (samples, instance) = match response {
            Ok(response) => response,
            Err(why) => {
                self.failures = self.failures.saturating_add(1);
                self.selection_failures += u32::from(is_selecting);
                // The address may belong to another node by now.
                (self.is_self, self.is_umawarden) = (false, false);
                return self.context.news.report(vec![self.table.silent(&why, took)]);
            }
        };
        self.failures = 0;
        if is_selecting {
            self.selection_failures = 0;
        }
        self.is_umawarden = instance.is_some();
        let is_self = instance.as_deref() == Some(&*self.context.instance);
        let is_of_this_name = *self.name == *self.context.names.node;
        if is_of_this_name && !is_self && instance.is_some() {
            let why = "another node has this one's name: give one of them another (cluster.node)";
            return self.context.news.report(vec![self.table.silent(why, took)]);
        }
        if is_self || is_of_this_name {
            if !std::mem::replace(&mut self.is_self, true) {
                tracing::info!(node = &*self.name, "node of the cluster is this node");
                self.context.news.report_reliably(vec![removed(&self.name)]).await;
            }
            return true;
        }
        self.is_self = false;
        let readings = match samples.is_empty() {
            true => self.table.silent("its response has no series of umawarden", took),
            false => self.table.accept(&samples, took),
        };
        let url = self.is_umawarden.then(|| Arc::clone(&self.url));
        self.context.news.report(vec![NodeReadings { url, ..readings }])
    }
}

/// One scrape; dropping it closes the connection.
async fn request(
    connection: &mut ServerConnection,
    path: &str,
    wanted: &[Wanted],
) -> Result<(NodeSamples, Option<String>), String> {
    let mut samples = NodeSamples::default();
    let mut reader = MetricReader::new();
    let wants = |name: &str| wanted.iter().any(|wanted| *wanted.name == *name);
    let head = {
        let mut take = |line: crate::parse::exposition::MetricLine<'_>| {
            let labels: Vec<(&str, &str)> =
                line.labels.iter().map(|(name, value)| (*name, &**value)).collect();
            samples.take(line.name, &labels, line.value, wanted);
        };
        let mut feed = |part: &[u8]| {
            reader.feed(part, &wants, &mut take).map_err(|error| format!("no metrics: {error}"))
        };
        let request = ConnectionRequest::get(path, ACCEPT, MAX_RESPONSE_BYTES);
        let head = connection.send(request, &mut feed).await?;
        reader.end(&wants, &mut take).map_err(|error| format!("no metrics: {error}"))?;
        head
    };
    Ok((samples, head.instance))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, sync_channel};

    use tokio::runtime::Runtime;
    use tokio::sync::watch;

    use super::super::ReadingsQueue;
    use super::super::tests::{answer, serve, settings, uptime, wanted};
    use super::*;
    use crate::model::{ClusterNames, ClusterReadings};

    /// A node that is scraped by hand.
    struct TestNode {
        node: ScrapedNode,
        runtime: Runtime,
        news: Receiver<ClusterReadings>,
        wants: watch::Sender<Arc<[Wanted]>>,
    }

    impl TestNode {
        fn new(address: &str) -> Self {
            let mut settings = settings(&[address]);
            settings.timeout = Duration::from_secs(60);
            let peer = settings.peers[0].clone();
            let known_for = settings.known_for();
            let names = ClusterNames { cluster: "c".into(), node: "here".into(), known_for };
            let (to, news) = sync_channel(1);
            let (wants, wanted) = watch::channel(wanted());
            let context = Scraping {
                settings: Arc::new(settings),
                names,
                instance: "me".into(),
                wants: wanted,
                news: ReadingsQueue(to),
                clock: uptime,
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            Self { node: ScrapedNode::new(context, &peer), runtime: runtime.unwrap(), news, wants }
        }

        fn scrape(&mut self) {
            assert!(self.runtime.block_on(self.node.scrape(uptime())), "there is a loop");
            // The queue is emptied for the next scrape.
            let _ = self.news.try_iter().last();
        }
    }

    const METRICS: &str = "uma_memory_free_bytes 5\n";

    #[test]
    fn a_former_address_of_this_node_is_scraped_like_any_other() {
        let says = Arc::new(Mutex::new(""));
        let samples = Arc::clone(&says);
        let address = serve(move |_, stream| {
            let head = match *samples.lock().unwrap() {
                "" => "500 Internal Server Error".to_owned(),
                name => format!("200 OK\r\numawarden-instance: {name}"),
            };
            answer(stream, &head, METRICS);
        });
        let mut test = TestNode::new(&address);
        for other in ["another", ""] {
            *says.lock().unwrap() = "me";
            test.scrape();
            assert!(test.node.is_self && test.node.rest() > SELF_EVERY / 2);
            *says.lock().unwrap() = other;
            test.scrape();
            assert!(!test.node.is_self && test.node.rest() < SELF_EVERY / 2, "{other}");
        }
    }

    #[test]
    fn umawarden_is_asked_for_selected_metrics_and_others_for_all() {
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
        let mut test = TestNode::new(&address);
        let paths = |test: &mut TestNode, times: usize| {
            (0..times).for_each(|_| test.scrape());
            std::mem::take(&mut *paths.lock().unwrap())
        };
        let all = "/metrics";
        assert_eq!(paths(&mut test, 3), [all; 3]);
        *is_umawarden.lock().unwrap() = true;
        let some = "/metrics?name%5B%5D=uma_memory_contiguous_bytes\
                    &name%5B%5D=uma_memory_free_bytes&name%5B%5D=uma_scrape_collector_success";
        assert_eq!(paths(&mut test, 3), [all, some, some]);
        // A proxy before the node may not pass queries.
        *refuses.lock().unwrap() = true;
        assert_eq!(paths(&mut test, 8), [some, all, some, all, some, all, all, all]);
        // Other wanted series are tried again, unless the path would be too long.
        *refuses.lock().unwrap() = false;
        let want = |name: String| Wanted { name: name.into(), labels: Vec::new() };
        test.wants.send_replace([want("a:b\u{e9}".to_owned())].into());
        assert_eq!(paths(&mut test, 1), ["/metrics?name%5B%5D=a:b%C3%A9"]);
        test.wants.send_replace((0..200).map(|one| want(format!("a_long_name_{one}"))).collect());
        assert_eq!(paths(&mut test, 2), [all; 2]);
        test.wants.send_replace([].into());
        assert_eq!(paths(&mut test, 1), [all], "without a name all would be meant");
    }
}
