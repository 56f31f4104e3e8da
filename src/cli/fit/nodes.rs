//! The nodes: this one, queried peers, and planned ones.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::FitArguments;
use crate::cli::gate::{GateNode, daemon, setup};
use crate::clients::peer::Peer;
use crate::config::measure::ListenAddress;
use crate::config::settings::Settings;
use crate::fit::FitNode;
use crate::model::{ClusterSettings, GateRequest, PeerAddress};
use crate::policy::gate::check_gate;
use crate::sources::cluster::Discovery;

/// The share of a planned node that kernel and other services take.
const TAKEN_PART: u64 = 16;

/// Timeout of the lookup of peers.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// Nodes whose memory is known.
    pub(super) known: Vec<FitNode>,
    /// Nodes without a response, and why.
    pub(super) silent: Vec<(Arc<str>, String)>,
    /// Remarks for the reader.
    pub(super) notes: Vec<String>,
}

/// Reads this node and queries the others.
///
/// # Errors
/// The configuration cannot be read, a thread cannot be started, or --nodes is less than the named
/// nodes.
pub(super) fn query(arguments: &FitArguments) -> anyhow::Result<Nodes> {
    let mut nodes = match arguments.memory {
        Some(total) => planned(total, arguments.taken),
        None => present(arguments)?,
    };
    let found = nodes.known.len() + nodes.silent.len();
    let wanted = arguments.nodes.map_or(found, |nodes| nodes as usize);
    anyhow::ensure!(
        wanted >= found,
        "--nodes {wanted} is less than the number of nodes: this one and --peers are {found}"
    );
    if let Some(first) = nodes.known.first().cloned() {
        if wanted > found && arguments.memory.is_none() {
            nodes.notes.push(format!(
                "{} assumed to be like this one; name the others with --peers to query them",
                if wanted - found == 1 { "one node is" } else { "the other nodes are" }
            ));
        }
        let name = match arguments.memory {
            Some(_) => Arc::clone(&first.name),
            None => format!("like {}", first.name).into(),
        };
        let like = FitNode { name, ..first };
        nodes.known.resize(wanted - nodes.silent.len(), like);
    }
    Ok(nodes)
}

fn planned(total: u64, taken: Option<u64>) -> Nodes {
    let taken = taken.unwrap_or(total / TAKEN_PART);
    let available = total.saturating_sub(taken);
    let node = FitNode {
        name: "planned".into(),
        total_bytes: total,
        available_bytes: available,
        seen_least_bytes: available,
        seen_most_bytes: available,
    };
    Nodes { known: vec![node], ..Nodes::default() }
}

fn present(arguments: &FitArguments) -> anyhow::Result<Nodes> {
    let settings = arguments.node.settings()?;
    let mut nodes = Nodes::default();
    // Peers are queried while this node is read.
    let access = settings.cluster.as_ref().map(|cluster| cluster.access.clone());
    let access = access.unwrap_or_default();
    let queried: Vec<_> = peers(arguments, &settings, &mut nodes)?
        .into_iter()
        .map(|address| {
            let name: Arc<str> = address.to_string().into();
            let mut peer = Peer::open(&address, &access, GateRequest::default())
                .with_context(|| format!("cannot query {address}"))?;
            Ok((name, std::thread::spawn(move || peer.memory())))
        })
        .collect::<anyhow::Result<_>>()?;
    let mut gate = GateNode::start(setup(&settings, daemon(&arguments.node, &settings)))
        .context("cannot start the scan of processes")?;
    let answer = check_gate(&GateRequest::default(), &gate.sample());
    nodes.notes.extend(answer.notes.iter().map(ToString::to_string));
    let pools = arguments.pool.as_deref().unwrap_or_default();
    nodes.take(&this(), &json!(answer), pools);
    for (name, queried) in queried {
        match queried.join() {
            Ok(Ok(answer)) => nodes.take(&name, &answer, pools),
            Ok(Err(why)) => nodes.silent.push((name, why)),
            Err(_) => nodes.silent.push((name, "its query failed".to_owned())),
        }
    }
    Ok(nodes)
}

fn this() -> Arc<str> {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into()
}

/// The given peers, or else the configured ones, without this node itself.
fn peers(
    arguments: &FitArguments,
    settings: &Settings,
    nodes: &mut Nodes,
) -> anyhow::Result<Vec<PeerAddress>> {
    let cluster = settings.cluster.as_ref().filter(|cluster| cluster.has_peers());
    let peers = match (arguments.peers.as_deref(), cluster) {
        (None, _) => return Ok(Vec::new()),
        (Some([]), Some(cluster)) => configured(cluster, nodes)?,
        (Some(given), _) => given.to_vec(),
    };
    anyhow::ensure!(
        !peers.is_empty() || !nodes.silent.is_empty(),
        "--peers names no nodes, and neither does the configuration file: write --peers \
         spark-2,spark-3, or there cluster: {{peers: [spark-2, spark-3]}} (--config.file)"
    );
    let (own, others): (Vec<_>, Vec<_>) =
        peers.into_iter().partition(|peer| is_this(peer, settings));
    nodes.notes.extend(own.iter().map(|peer| format!("{peer} is this node, and counts once")));
    Ok(others)
}

/// The configured peers. Sources that fail become remarks.
fn configured(cluster: &ClusterSettings, nodes: &mut Nodes) -> anyhow::Result<Vec<PeerAddress>> {
    let mut discovery = Discovery::new(cluster);
    let (to, from) = sync_channel(1);
    // DNS and files may hang.
    let thread = std::thread::Builder::new().name("peers-found".to_owned());
    thread
        .spawn(move || _ = to.send(discovery.discover()))
        .context("cannot start the lookup of the peers")?;
    let found = from
        .recv_timeout(LOOKUP_TIMEOUT)
        .context("the lookup of the peers timed out (cluster.dns, cluster.file_sd)")?;
    nodes.silent.extend(found.faults);
    Ok(found.peers)
}

/// Whether its address is that of this machine's own daemon.
fn is_this(peer: &PeerAddress, settings: &Settings) -> bool {
    let authority = peer.origin().trim_start_matches("http://");
    let Ok(mut addresses) = authority.to_socket_addrs() else { return false };
    let is_own = |ip: IpAddr| UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok();
    let listen = settings.web.listen.iter().flat_map(ListenAddress::candidates);
    let ports: Vec<u16> = listen.map(|address| address.port()).collect();
    addresses.any(|address| ports.contains(&address.port()) && is_own(address.ip()))
}

impl Nodes {
    /// Takes the gate's answer of a node, if it is plausible. Each of the pools is a place of its
    /// own.
    fn take(&mut self, name: &Arc<str>, answer: &Value, pools: &[Arc<str>]) {
        let mut take = |name: &Arc<str>, node: Result<FitNode, String>| match node {
            Ok(node) => self.known.push(node),
            Err(why) => self.silent.push((Arc::clone(name), why)),
        };
        if pools.is_empty() {
            take(name, node(name, answer));
        }
        for pool in pools {
            let of_pool: Arc<str> = format!("{name} {pool}").into();
            take(&of_pool, pool_of(&of_pool, answer, pool));
        }
    }
}

fn pool_of(name: &Arc<str>, answer: &Value, pool: &str) -> Result<FitNode, String> {
    if answer["pools"].is_null() && answer["pool"] == *pool {
        return node(name, answer);
    }
    let pools = answer["pools"].as_array().into_iter().flatten();
    let found = { pools }.find(|own| own["pool"] == *pool);
    let found = found.ok_or_else(|| format!("it has no pool {pool}"))?;
    of_memory(name, found, found["obtainable_bytes"].as_u64())
}

/// The memory of a node where engines put their weights.
fn node(name: &Arc<str>, answer: &Value) -> Result<FitNode, String> {
    let reasons = answer.get("reasons").and_then(Value::as_array).into_iter().flatten();
    let is_unknown = |reason: &&Value| reason["kind"] == "pool_unknown";
    if let Some(reason) = { reasons }.find(is_unknown) {
        let text = reason["text"].as_str().unwrap_or("where engines put their memory is unknown");
        return Err(format!("{text}, or plan with --memory"));
    }
    let had = answer.get("available_bytes").and_then(Value::as_u64);
    of_memory(name, answer.get("memory").unwrap_or(&Value::Null), had)
}

fn of_memory(name: &Arc<str>, memory: &Value, had: Option<u64>) -> Result<FitNode, String> {
    let of = |key: &str| memory.get(key).and_then(Value::as_u64);
    let need = |key: &str| of(key).ok_or_else(|| format!("its answer has no {key}"));
    let or_none = |key: &str| of(key).unwrap_or(0);
    let had = had.ok_or("its answer has no available memory")?;
    let total = need("total_bytes")?;
    let (free, clean) = (need("free_bytes")?, need("clean_cache_bytes")?);
    let reserve = or_none("reserve_bytes");
    let others = ["dirty_cache_bytes", "mapped_cache_bytes", "reclaimable_slab_bytes"];
    let caches = others.map(or_none).into_iter().fold(clean, u64::saturating_add);
    if had > total || free > total {
        return Err("its answer has more memory than it has in total".to_owned());
    }
    Ok(FitNode {
        name: Arc::clone(name),
        total_bytes: total,
        available_bytes: had,
        seen_least_bytes: had.saturating_sub(reserve).saturating_sub(reserve.min(clean / 2)),
        seen_most_bytes: free.saturating_add(caches).min(total),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implausible_responses_are_rejected() {
        let name = "two".into();
        let answer = |had: Value, free: u64| {
            json!({"available_bytes": had, "memory": {
                "total_bytes": 1000, "free_bytes": free, "clean_cache_bytes": 300,
                "dirty_cache_bytes": 50, "mapped_cache_bytes": null, "reserve_bytes": 100,
            }})
        };
        let node = node(&name, &answer(json!(600), 400)).unwrap();
        assert_eq!((node.seen_least_bytes, node.seen_most_bytes), (400, 750));
        for (wrong, expected) in [
            (answer(json!(null), 400), "no available memory"),
            (answer(json!(-1), 400), "no available memory"),
            (answer(json!(1e300), 400), "no available memory"),
            (answer(json!(1001), 400), "more memory than it has"),
            (answer(json!(600), 2000), "more memory than it has"),
            (json!({"available_bytes": 1}), "its answer has no total_bytes"),
            (json!([]), "no available memory"),
        ] {
            let why = super::node(&name, &wrong).unwrap_err();
            assert!(why.contains(expected), "{wrong}: {why}");
        }
    }
}
