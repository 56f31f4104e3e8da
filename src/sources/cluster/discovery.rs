//! Discovery of the other nodes: configured addresses, all addresses of a name, and target files.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use tokio::sync::mpsc;

use super::Discovered;
use crate::model::{ClusterSettings, MOST_PEERS, PeerAddress};
use crate::parse::file_sd;

/// Interval between two reads of the files; names are resolved every sixth time.
const EVERY: Duration = Duration::from_secs(5);
const NAMES_EVERY: u32 = 6;

/// The size limit of a target file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The most files that a pattern may match.
const MAX_FILES: usize = 64;

/// The discovered nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveredNodes {
    /// The nodes, possibly including this one.
    pub peers: Vec<PeerAddress>,
    /// Unusable names and files, with the reason: the nodes behind them are unknown.
    pub faults: Vec<(Arc<str>, String)>,
    /// Warnings for people.
    pub remarks: Vec<String>,
}

/// Discovers the nodes. Known nodes stay known while a lookup fails.
#[derive(Debug)]
pub struct Discovery {
    peers: Vec<PeerAddress>,
    names: Vec<Lookup<PeerAddress>>,
    files: Vec<Lookup<PathBuf>>,
    lookups: u32,
}

#[derive(Debug)]
struct Lookup<Of> {
    of: Of,
    /// The last successful result.
    peers: Option<Vec<PeerAddress>>,
    fault: Option<String>,
}

impl<Of> Lookup<Of> {
    fn new(of: Of) -> Self {
        Self { of, peers: None, fault: None }
    }

    fn take(&mut self, result: Result<Vec<PeerAddress>, String>) {
        match result {
            Ok(peers) => (self.peers, self.fault) = (Some(peers), None),
            Err(why) => self.fault = Some(why),
        }
    }
}

impl Discovery {
    /// Starts with no result.
    pub fn new(settings: &ClusterSettings) -> Self {
        Self {
            peers: settings.peers.clone(),
            names: settings.dns.iter().cloned().map(Lookup::new).collect(),
            files: settings.files.iter().cloned().map(Lookup::new).collect(),
            lookups: 0,
        }
    }

    /// Discovers the nodes. A name server may delay it without limit.
    pub fn discover(&mut self) -> DiscoveredNodes {
        for file in &mut self.files {
            let result = read_files(&file.of);
            file.take(result);
        }
        if self.lookups.is_multiple_of(NAMES_EVERY) {
            for name in &mut self.names {
                let result = addresses(&name.of);
                name.take(result);
            }
        }
        self.lookups = self.lookups.wrapping_add(1);
        self.found()
    }

    fn found(&self) -> DiscoveredNodes {
        let mut found = DiscoveredNodes::default();
        let result = self.names.iter().map(|name| (name.of.to_string(), &name.peers, &name.fault));
        let files =
            self.files.iter().map(|file| (file.of.display().to_string(), &file.peers, &file.fault));
        let mut more = 0;
        let mut add = |peer: &PeerAddress| {
            if found.peers.iter().any(|known| known.is_at(peer)) {
                return;
            }
            // Two nodes with the same name would count as one.
            let is_taken = found.peers.iter().any(|known| known.name() == peer.name());
            let address = format!("{}:{}", peer.host(), peer.port());
            let peer = if is_taken { peer.clone().named(address.into()) } else { peer.clone() };
            match found.peers.len() < MOST_PEERS {
                true => found.peers.push(peer),
                false => more += 1,
            }
        };
        self.peers.iter().for_each(&mut add);
        for (what, peers, fault) in result.chain(files) {
            peers.iter().flatten().for_each(&mut add);
            match (fault, peers) {
                (Some(why), None) => found.faults.push((what.into(), why.clone())),
                (Some(why), Some(_)) => {
                    let text = format!("{what}: {why}; the nodes that it listed before stay");
                    found.remarks.push(text);
                }
                (None, _) => {}
            }
        }
        if more > 0 {
            let why = format!(
                "{more} of them are not scraped: for so many write cluster: {{prometheus: {{url: \
                 …}}}}"
            );
            found.faults.push((format!("nodes beyond {MOST_PEERS}").into(), why));
        }
        found
    }
}

/// Each address of a name is a node. If each node has an address of both families, only the first
/// family counts.
fn addresses(name: &PeerAddress) -> Result<Vec<PeerAddress>, String> {
    let host = name.host().trim_start_matches('[').trim_end_matches(']');
    let found = (host, name.port()).to_socket_addrs();
    let found = found.map_err(|error| format!("the name cannot be resolved: {error}"))?;
    let mut addresses: Vec<_> = found.collect();
    addresses.sort();
    addresses.dedup();
    if addresses.is_empty() {
        return Err("the name has no address".to_owned());
    }
    of_one_family(addresses)?.iter().map(|address| address.to_string().parse()).collect()
}

/// Keeps one address family: a node with two addresses would count twice.
fn of_one_family(addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, String> {
    let (first, second): (Vec<_>, Vec<_>) = addresses.into_iter().partition(SocketAddr::is_ipv4);
    match (first.len(), second.len()) {
        (_, 0) => Ok(first),
        (0, _) => Ok(second),
        (one, other) if one == other => Ok(first),
        (one, other) => Err(format!(
            "the name has {one} IPv4 and {other} IPv6 addresses, so that it is unknown \
             which of them belong to one node: give each node one address of each, or all \
             of one kind"
        )),
    }
}

/// Reads all files that match a pattern.
fn read_files(pattern: &Path) -> Result<Vec<PeerAddress>, String> {
    let text = pattern.to_str().ok_or("the path is not UTF-8")?;
    let found = glob::glob(text).map_err(|error| format!("the pattern is invalid: {error}"))?;
    // An unreadable folder may contain target files.
    let files: Result<Vec<PathBuf>, _> = found.take(MAX_FILES + 1).collect();
    let mut files = files.map_err(|error| error.to_string())?;
    files.sort();
    if files.is_empty() {
        return Err("there is no such file".to_owned());
    }
    if files.len() > MAX_FILES {
        return Err(format!("it matches more than {MAX_FILES} files"));
    }
    let mut peers = Vec::new();
    for file in files {
        let describe = |why: String| format!("{}: {why}", file.display());
        let text = read_file(&file).map_err(|error| describe(error.to_string()))?;
        let is_json = file.extension().is_some_and(|name| name == "json");
        peers.extend(file_sd::targets(&text, is_json).map_err(describe)?);
    }
    Ok(peers)
}

fn read_file(path: &Path) -> io::Result<String> {
    // A FIFO in its place must not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other("it is longer than 1 MiB"));
    }
    Ok(text)
}

/// Runs discovery on its own thread, which reports changes.
pub(super) fn start(mut discovery: Discovery, clock: fn() -> Duration) -> io::Result<Discovered> {
    let (to, found) = mpsc::channel(1);
    Builder::new().name("peers-found".to_owned()).spawn(move || {
        let mut known: Option<DiscoveredNodes> = None;
        loop {
            let began = clock();
            let found = discovery.discover();
            if known.as_ref() != Some(&found) {
                known = Some(found.clone());
                if to.blocking_send(found).is_err() {
                    return;
                }
            }
            let took = clock().saturating_sub(began);
            std::thread::sleep(EVERY.saturating_sub(took).max(EVERY / 5));
            if to.is_closed() {
                return;
            }
        }
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_an_address_of_each_family_is_one() {
        let of = |addresses: &[&str]| {
            let all = addresses.iter().map(|address| address.parse().unwrap()).collect();
            of_one_family(all).map(|found| found.len())
        };
        let (one, two) = ("10.0.0.1:1", "10.0.0.2:1");
        assert_eq!(of(&[one, two, "[fd00::1]:1", "[fd00::2]:1"]), Ok(2));
        assert_eq!((of(&[one, two]), of(&["[fd00::1]:1"])), (Ok(2), Ok(1)));
        let why = of(&[one, "[fd00::1]:1", "[fd00::2]:1"]).unwrap_err();
        assert!(why.contains("1 IPv4 and 2 IPv6"), "{why}");
    }
}
