//! Who the other nodes are: those that are named, every address of a name, and what files tell.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use tokio::sync::mpsc;

use super::Founds;
use crate::model::{ClusterSettings, MOST_PEERS, PeerAddress};
use crate::parse::file_sd;

/// Between two looks at files; and every sixth time at names.
const EVERY: Duration = Duration::from_secs(5);
const NAMES_EVERY: u32 = 6;

/// No file of targets is longer.
const LONGEST_FILE: u64 = 1 << 20;

/// Files that a pattern may stand for.
const MOST_FILES: usize = 64;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The nodes, this one perhaps among them.
    pub peers: Vec<PeerAddress>,
    /// What tells of nodes and cannot be used, with the reason: then nobody knows who is missing.
    pub faults: Vec<(Arc<str>, String)>,
    /// What people should know beside.
    pub remarks: Vec<String>,
}

/// Looks who the nodes are. What was known stays known while it cannot be looked up.
#[derive(Debug)]
pub struct Discovery {
    peers: Vec<PeerAddress>,
    names: Vec<Looked<PeerAddress>>,
    files: Vec<Looked<PathBuf>>,
    looks: u32,
}

#[derive(Debug)]
struct Looked<Of> {
    of: Of,
    /// The last answer.
    peers: Option<Vec<PeerAddress>>,
    fault: Option<String>,
}

impl<Of> Looked<Of> {
    fn new(of: Of) -> Self {
        Self { of, peers: None, fault: None }
    }

    fn take(&mut self, looked: Result<Vec<PeerAddress>, String>) {
        match looked {
            Ok(peers) => (self.peers, self.fault) = (Some(peers), None),
            Err(why) => self.fault = Some(why),
        }
    }
}

impl Discovery {
    /// One that has looked nowhere yet.
    pub fn new(settings: &ClusterSettings) -> Self {
        Self {
            peers: settings.peers.clone(),
            names: settings.dns.iter().cloned().map(Looked::new).collect(),
            files: settings.files.iter().cloned().map(Looked::new).collect(),
            looks: 0,
        }
    }

    /// Looks. It may take as long as whoever looks up names wants.
    pub fn look(&mut self) -> Found {
        for file in &mut self.files {
            let looked = read_files(&file.of);
            file.take(looked);
        }
        if self.looks.is_multiple_of(NAMES_EVERY) {
            for name in &mut self.names {
                let looked = addresses(&name.of);
                name.take(looked);
            }
        }
        self.looks = self.looks.wrapping_add(1);
        self.found()
    }

    fn found(&self) -> Found {
        let mut found = Found::default();
        let looked = self.names.iter().map(|name| (name.of.to_string(), &name.peers, &name.fault));
        let files =
            self.files.iter().map(|file| (file.of.display().to_string(), &file.peers, &file.fault));
        let mut more = 0;
        let mut add = |peer: &PeerAddress| {
            if found.peers.iter().any(|known| known.is_at(peer)) {
                return;
            }
            // Two nodes of one name would be taken for one.
            let is_taken = found.peers.iter().any(|known| known.name() == peer.name());
            let place = format!("{}:{}", peer.host(), peer.port());
            let peer = if is_taken { peer.clone().named(place.into()) } else { peer.clone() };
            match found.peers.len() < MOST_PEERS {
                true => found.peers.push(peer),
                false => more += 1,
            }
        };
        self.peers.iter().for_each(&mut add);
        for (what, peers, fault) in looked.chain(files) {
            peers.iter().flatten().for_each(&mut add);
            match (fault, peers) {
                (Some(why), None) => found.faults.push((what.into(), why.clone())),
                (Some(why), Some(_)) => {
                    let text = format!("{what}: {why}; the nodes that it told of before stay");
                    found.remarks.push(text);
                }
                (None, _) => {}
            }
        }
        if more > 0 {
            let why = format!(
                "{more} of them are not asked: for so many write cluster: {{prometheus: {{url: \
                 …}}}}"
            );
            found.faults.push((format!("nodes beyond {MOST_PEERS}").into(), why));
        }
        found
    }
}

/// Every address of a name is a node; where each has one of both families, those of the first.
fn addresses(name: &PeerAddress) -> Result<Vec<PeerAddress>, String> {
    let host = name.host().trim_start_matches('[').trim_end_matches(']');
    let found = (host, name.port()).to_socket_addrs();
    let found = found.map_err(|error| format!("the name cannot be looked up: {error}"))?;
    let mut addresses: Vec<_> = found.collect();
    addresses.sort();
    addresses.dedup();
    if addresses.is_empty() {
        return Err("the name has no address".to_owned());
    }
    of_one_family(addresses)?.iter().map(|address| address.to_string().parse()).collect()
}

/// A node with two addresses would count twice.
fn of_one_family(addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, String> {
    let (first, second): (Vec<_>, Vec<_>) = addresses.into_iter().partition(SocketAddr::is_ipv4);
    match (first.len(), second.len()) {
        (_, 0) => Ok(first),
        (0, _) => Ok(second),
        (one, other) if one == other => Ok(first),
        (one, other) => Err(format!(
            "the name has {one} IPv4 and {other} IPv6 addresses, so that nobody can tell which of \
             them are one node: give each node one address of each, or all of one kind"
        )),
    }
}

/// Reads all files that a pattern stands for.
fn read_files(pattern: &Path) -> Result<Vec<PeerAddress>, String> {
    let text = pattern.to_str().ok_or("the path is not UTF-8")?;
    let found = glob::glob(text).map_err(|error| format!("the pattern is none: {error}"))?;
    // What cannot be looked into may hold nodes.
    let files: Result<Vec<PathBuf>, _> = found.take(MOST_FILES + 1).collect();
    let mut files = files.map_err(|error| error.to_string())?;
    files.sort();
    if files.is_empty() {
        return Err("there is no such file".to_owned());
    }
    if files.len() > MOST_FILES {
        return Err(format!("it stands for more than {MOST_FILES} files"));
    }
    let mut peers = Vec::new();
    for file in files {
        let told = |why: String| format!("{}: {why}", file.display());
        let text = read_file(&file).map_err(|error| told(error.to_string()))?;
        let is_json = file.extension().is_some_and(|name| name == "json");
        peers.extend(file_sd::targets(&text, is_json).map_err(told)?);
    }
    Ok(peers)
}

fn read_file(path: &Path) -> io::Result<String> {
    // A pipe in its place must not hold anybody up.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = String::new();
    file.take(LONGEST_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST_FILE {
        return Err(io::Error::other("it is longer than 1 MiB"));
    }
    Ok(text)
}

/// Looks on a thread of its own, and tells what has changed.
pub(super) fn start(mut discovery: Discovery, clock: fn() -> Duration) -> io::Result<Founds> {
    let (to, found) = mpsc::channel(1);
    Builder::new().name("peers-found".to_owned()).spawn(move || {
        let mut known: Option<Found> = None;
        loop {
            let began = clock();
            let found = discovery.look();
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
