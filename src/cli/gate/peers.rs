//! Other nodes that must be able to take the engine too. Each is queried on a thread of its own,
//! since it may hang.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::clients::peer::{ANSWER_TAKES, Peer};
use crate::config::cluster::MOST_PEERS;
use crate::model::{Access, ClusterSettings, GateRequest, PeerAddress, PeerAnswer, PeerGate};
use crate::sources::cluster::{Discovery, Found};

/// Between a response and the next request.
const EVERY: Duration = Duration::from_millis(500);

/// An older response is ignored.
const VALID_FOR: Duration = ANSWER_TAKES.saturating_add(EVERY.saturating_mul(4));

/// Between two lookups of peers by name or file.
const LOOKUP_EVERY: Duration = Duration::from_secs(5);

/// All peers.
pub(crate) struct Peers {
    each: Vec<OnePeer>,
    access: Access,
    request: GateRequest,
    /// Results of lookups, if there are any.
    found: Option<Receiver<Found>>,
    /// Whether the first lookup is done.
    are_known: bool,
    /// Sources of peers that cannot be used, so that peers may be missing.
    faults: Vec<PeerAnswer>,
}

struct OnePeer {
    node: Arc<str>,
    address: PeerAddress,
    from: Receiver<(Instant, PeerGate)>,
    latest: Option<(Instant, PeerGate)>,
}

impl Peers {
    /// Starts to query the peers.
    ///
    /// # Errors
    /// Too many peers, or a thread cannot be started.
    pub(crate) fn start(
        addresses: &[PeerAddress],
        access: &Access,
        request: &GateRequest,
    ) -> io::Result<Self> {
        if addresses.len() > MOST_PEERS {
            let text = format!("{} are more than {MOST_PEERS}", addresses.len());
            return Err(io::Error::other(text));
        }
        let each = addresses.iter().map(|address| OnePeer::start(address, access, request));
        Ok(Self {
            each: each.collect::<io::Result<_>>()?,
            access: access.clone(),
            request: request.clone(),
            found: None,
            are_known: true,
            faults: Vec::new(),
        })
    }

    /// Starts to look up and query the configured peers.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn of_cluster(
        settings: &ClusterSettings,
        request: &GateRequest,
    ) -> io::Result<Self> {
        let mut discovery = Discovery::new(settings);
        let (to, found) = sync_channel(1);
        Builder::new().name("peers-found".to_owned()).spawn(move || {
            while to.send(discovery.discover()).is_ok() {
                std::thread::sleep(LOOKUP_EVERY);
            }
        })?;
        let none = Self::start(&[], &settings.access, request)?;
        Ok(Self { found: Some(found), are_known: false, ..none })
    }

    /// Takes the result of a lookup.
    fn take_lookup(&mut self) {
        let Some(found) = self.found.as_ref().and_then(|found| found.try_iter().last()) else {
            return;
        };
        self.are_known = true;
        let unknown = |(node, why): (Arc<str>, String)| PeerAnswer {
            node,
            gate: PeerGate::Unknown { why: why.into() },
        };
        self.faults = found.faults.into_iter().map(unknown).collect();
        let mut known = std::mem::take(&mut self.each);
        for address in found.peers {
            let node = address.to_string();
            if let Some(index) = known.iter().position(|peer| peer.address == address) {
                self.each.push(known.swap_remove(index));
                continue;
            }
            match OnePeer::start(&address, &self.access, &self.request) {
                Ok(peer) => self.each.push(peer),
                Err(error) => self.faults.push(unknown((node.into(), error.to_string()))),
            }
        }
    }

    /// Their latest responses.
    pub(super) fn take(&mut self) -> Vec<PeerAnswer> {
        self.take_lookup();
        let mut answers: Vec<PeerAnswer> = self.each.iter_mut().map(OnePeer::take).collect();
        answers.extend(self.faults.iter().cloned());
        let why = match (self.are_known, answers.is_empty()) {
            (false, _) => "the lookup of the peers is pending",
            (true, true) => "the configuration names no node (cluster)",
            (true, false) => return answers,
        };
        answers.push(PeerAnswer {
            node: "cluster".into(),
            gate: PeerGate::Unknown { why: why.into() },
        });
        answers
    }

    /// Whether each peer has responded or timed out.
    pub(super) fn have_responded(&self) -> bool {
        self.are_known && self.each.iter().all(|peer| peer.latest.is_some())
    }
}

impl OnePeer {
    fn start(address: &PeerAddress, access: &Access, request: &GateRequest) -> io::Result<Self> {
        let (to, from) = sync_channel(4);
        let mut peer = Peer::open(address, access, request.clone()).map_err(io::Error::other)?;
        Builder::new().name("peers".to_owned()).spawn(move || query(&mut peer, &to))?;
        let node = address.to_string().into();
        Ok(Self { node, address: address.clone(), from, latest: None })
    }

    fn take(&mut self) -> PeerAnswer {
        if let Some(newest) = self.from.try_iter().last() {
            self.latest = Some(newest);
        }
        let gate = match &self.latest {
            Some((at, gate)) if at.elapsed() <= VALID_FOR => gate.clone(),
            Some(_) => PeerGate::Unknown { why: "its last response is outdated".into() },
            None => PeerGate::Unknown { why: "no response yet".into() },
        };
        PeerAnswer { node: Arc::clone(&self.node), gate }
    }
}

fn query(peer: &mut Peer, to: &SyncSender<(Instant, PeerGate)>) {
    loop {
        // The response is at most as old as the request.
        let at = Instant::now();
        // Without a receiver the thread ends.
        if let Err(TrySendError::Disconnected(_)) = to.try_send((at, peer.query())) {
            return;
        }
        std::thread::sleep(EVERY);
    }
}
