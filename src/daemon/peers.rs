//! Other nodes that must be able to take the engine too. Each is queried on a thread of its own,
//! since it may hang.
//!
//! A start that has a lease reserves memory there as well. What is reserved goes back when this is
//! dropped, unless the peers keep it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel,
};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::clients::peer::{ANSWER_TAKES, Peer, PeerLease, PeerReply};
use crate::config::cluster::MOST_PEERS;
use crate::model::{
    Access, ClusterSettings, GateRequest, LeaseCall, LeaseRequest, LeaseStage, PeerAddress,
    PeerGate, PeerGateResponse,
};
use crate::policy::leases::gang::{MemberCall, MemberResponse};
use crate::sources::cluster::{DiscoveredNodes, Discovery};

/// Between a response and the next request.
const EVERY: Duration = Duration::from_millis(500);

/// What all have granted is renewed so often.
const RENEWED_EVERY: Duration = Duration::from_secs(5);

/// An older response is ignored.
const VALID_FOR: Duration = ANSWER_TAKES.saturating_add(EVERY.saturating_mul(4));

/// Giving memory back, or keeping it, may take as long for all of them together. Where a peer is
/// lost, its lease ends by itself.
const ENDING_TAKES: Duration = Duration::from_secs(1);

/// Between two lookups of peers by name or file.
const LOOKUP_EVERY: Duration = Duration::from_secs(5);

/// The other nodes that must be able to take the engine, each with the thread that queries it.
pub(crate) struct Peers {
    each: Vec<PeerTask>,
    access: Access,
    request: GateRequest,
    /// Results of lookups, if there are any.
    found: Option<Receiver<DiscoveredNodes>>,
    /// Whether the first lookup is done.
    are_known: bool,
    /// The names of those that count; `None`: all that are found.
    only: Option<Vec<Arc<str>>>,
    /// Sources of peers that cannot be used, so that peers may be missing.
    faults: Vec<PeerGateResponse>,
}

struct PeerTask {
    node: Arc<str>,
    address: PeerAddress,
    from: Receiver<PeerResponse>,
    latest: Option<PeerResponse>,
    to: Sender<PeerRequest>,
    /// The turn of the last call, if there was one.
    turn: Option<u64>,
    /// Ends with whether the peer has done what was wanted last.
    thread: JoinHandle<bool>,
}

/// What a peer has answered, and to which call.
struct PeerResponse {
    at: Instant,
    called: Option<MemberCall>,
    reply: PeerResponseKind,
}

/// The answer of a peer that is only queried, or called.
enum PeerResponseKind {
    Queried(PeerGate),
    Called(PeerReply),
}

/// What is wanted of a peer. Before the first one it is only queried.
enum PeerRequest {
    Call(Arc<LeaseRequest>, MemberCall),
    /// The lease is to go on without calls, and the thread to end.
    Keep,
    /// The lease is to end, and the thread, too.
    End,
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
        let each = addresses.iter().map(|address| PeerTask::start(address, access, request));
        Ok(Self {
            each: each.collect::<io::Result<_>>()?,
            access: access.clone(),
            request: request.clone(),
            found: None,
            are_known: true,
            only: None,
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
        let mut peers = Self::start(&[], &settings.access, request)?;
        (peers.found, peers.are_known) = (Some(found), false);
        Ok(peers)
    }

    /// The same of the nodes with these names alone.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn of_nodes(
        settings: &ClusterSettings,
        request: &GateRequest,
        nodes: Vec<Arc<str>>,
    ) -> io::Result<Self> {
        let mut peers = Self::of_cluster(settings, request)?;
        peers.only = Some(nodes);
        Ok(peers)
    }

    /// Those that are not among the configured peers, by the last lookup.
    pub(super) fn without_address(&self) -> impl Iterator<Item = &Arc<str>> {
        let nodes = self.only.iter().flatten().filter(|_| self.are_known);
        nodes.filter(|node| !self.each.iter().any(|peer| peer.node == **node))
    }

    /// Takes the result of a lookup.
    fn take_lookup(&mut self) {
        let Some(found) = self.found.as_ref().and_then(|found| found.try_iter().last()) else {
            return;
        };
        self.are_known = true;
        let unknown = |(node, why): (Arc<str>, String)| PeerGateResponse {
            node,
            gate: PeerGate::Unknown { why: why.into() },
        };
        self.faults = found.faults.into_iter().map(unknown).collect();
        let mut known = std::mem::take(&mut self.each);
        let counts = |address: &PeerAddress| {
            self.only.as_ref().is_none_or(|only| only.contains(address.name()))
        };
        for address in found.peers.into_iter().filter(counts) {
            let node = address.to_string();
            if let Some(index) = known.iter().position(|peer| peer.address == address) {
                self.each.push(known.swap_remove(index));
                continue;
            }
            match PeerTask::start(&address, &self.access, &self.request) {
                Ok(peer) => self.each.push(peer),
                Err(error) => self.faults.push(unknown((node.into(), error.to_string()))),
            }
        }
    }

    /// Their latest responses.
    pub(crate) fn take(&mut self) -> Vec<PeerGateResponse> {
        self.take_lookup();
        let mut answers: Vec<PeerGateResponse> = self.each.iter_mut().map(PeerTask::take).collect();
        answers.extend(self.faults.iter().cloned());
        let why = match (self.are_known, answers.is_empty()) {
            (false, _) => "the lookup of the peers is pending",
            (true, true) if self.only.is_some() => return answers,
            (true, true) => "the configuration names no node (cluster)",
            (true, false) => return answers,
        };
        answers.push(PeerGateResponse {
            node: "cluster".into(),
            gate: PeerGate::Unknown { why: why.into() },
        });
        answers
    }

    /// Calls each peer for its part of a lease, in the order of [`Peers::leases`]. The request may
    /// depend on the peer's name.
    pub(crate) fn call(&mut self, lease: impl Fn(&str) -> Arc<LeaseRequest>, calls: &[MemberCall]) {
        for (peer, call) in self.each.iter_mut().zip(calls) {
            if peer.turn != Some(call.turn) {
                peer.turn = Some(call.turn);
                // A thread that has ended answers no more, which is noticed.
                let _ = peer.to.send(PeerRequest::Call(lease(&peer.node), *call));
            }
        }
    }

    /// Their latest answers about the lease. `None` where one has not answered, also for a peer
    /// that was not found.
    pub(crate) fn leases(&self) -> Vec<Option<MemberResponse>> {
        let known = self.each.iter().map(PeerTask::lease);
        let is_whole = self.are_known && self.faults.is_empty();
        known.chain((!is_whole).then_some(None)).collect()
    }

    /// Peers that reserve nothing, and why.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.each.iter().filter_map(|peer| match &peer.latest.as_ref()?.reply {
            PeerResponseKind::Called(PeerReply { lease: PeerLease::Refused(why), .. }) => {
                Some((&peer.node, why))
            }
            _ => None,
        })
    }

    /// Lets the peers keep what they have reserved when this process ends. Returns those that have
    /// not confirmed it: their leases end within two minutes.
    pub(crate) fn keep(mut self) -> Vec<Arc<str>> {
        self.end(|| PeerRequest::Keep)
    }

    /// Ends the threads, which do the rest. Returns the peers that have not done it in time.
    fn end(&mut self, how: impl Fn() -> PeerRequest) -> Vec<Arc<str>> {
        let called = std::mem::take(&mut self.each).into_iter().filter(|peer| peer.turn.is_some());
        let threads = called.map(|peer| {
            // A thread that has ended has nothing to do.
            let _ = peer.to.send(how());
            (peer.node, peer.thread)
        });
        let (threads, until) = (threads.collect::<Vec<_>>(), Instant::now() + ENDING_TAKES);
        while Instant::now() < until && threads.iter().any(|(_, thread)| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let is_done =
            |thread: JoinHandle<bool>| thread.is_finished() && thread.join().is_ok_and(|done| done);
        let failed =
            threads.into_iter().filter_map(|(node, thread)| (!is_done(thread)).then_some(node));
        failed.collect()
    }

    /// Whether each peer has responded or timed out.
    pub(crate) fn have_responded(&self) -> bool {
        self.are_known && self.each.iter().all(|peer| peer.latest.is_some())
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.end(|| PeerRequest::End);
    }
}

impl PeerTask {
    fn start(address: &PeerAddress, access: &Access, request: &GateRequest) -> io::Result<Self> {
        let (answers, from) = sync_channel(4);
        let (to, wanted) = channel();
        let peer = Peer::open(address, access, request.clone())?;
        let thread = Builder::new()
            .name("peers".to_owned())
            .spawn(move || query(peer, &answers, &wanted))?;
        let node = address.to_string().into();
        Ok(Self { node, address: address.clone(), from, latest: None, to, turn: None, thread })
    }

    fn take(&mut self) -> PeerGateResponse {
        if let Some(newest) = self.from.try_iter().last() {
            self.latest = Some(newest);
        }
        let gate = match &self.latest {
            Some(answered) if answered.at.elapsed() <= VALID_FOR => match &answered.reply {
                PeerResponseKind::Queried(gate)
                | PeerResponseKind::Called(PeerReply { gate, .. }) => gate.clone(),
            },
            Some(_) => PeerGate::Unknown { why: "its last response is outdated".into() },
            None => PeerGate::Unknown { why: "no response yet".into() },
        };
        PeerGateResponse { node: Arc::clone(&self.node), gate }
    }

    fn lease(&self) -> Option<MemberResponse> {
        let PeerResponse { called: Some(called), reply: PeerResponseKind::Called(reply), .. } =
            self.latest.as_ref().filter(|answered| answered.at.elapsed() <= VALID_FOR)?
        else {
            return None;
        };
        let (node, stage) = match &reply.lease {
            PeerLease::Unknown => (Arc::clone(&self.node), LeaseStage::Waiting),
            PeerLease::Known(node, stage) => (Arc::clone(node), *stage),
            // Its memory can only be queried.
            PeerLease::Refused(_) => {
                let stage = match (called.call, reply.gate == PeerGate::Open) {
                    (_, false) => LeaseStage::Waiting,
                    (LeaseCall::Wait, true) => LeaseStage::Grantable,
                    (_, true) => LeaseStage::Granted,
                };
                (Arc::clone(&self.node), stage)
            }
        };
        Some(MemberResponse { node, turn: called.turn, stage })
    }
}

/// Returns whether the peer has done what was wanted last.
fn query(
    mut peer: Peer,
    answers: &SyncSender<PeerResponse>,
    wanted: &Receiver<PeerRequest>,
) -> bool {
    let mut lease: Option<(Arc<LeaseRequest>, MemberCall)> = None;
    loop {
        // The response is at most as old as the request.
        let at = Instant::now();
        let reply = match &lease {
            None => PeerResponseKind::Queried(peer.query()),
            Some((request, called)) => {
                PeerResponseKind::Called(peer.call(request, (called.call, called.turn)))
            }
        };
        let called = lease.as_ref().map(|(_, called)| *called);
        let has_ended = matches!(
            &reply,
            PeerResponseKind::Called(PeerReply {
                lease: PeerLease::Known(_, LeaseStage::Ended),
                ..
            })
        );
        // Without a receiver the thread ends, unless it has something to give back.
        if let (Err(TrySendError::Disconnected(_)), None) =
            (answers.try_send(PeerResponse { at, called, reply }), &lease)
        {
            return true;
        }
        let every = match called.map(|called| called.call) {
            // It was taken there, and is over.
            Some(LeaseCall::Renew) if has_ended => Duration::MAX,
            Some(LeaseCall::Renew) => RENEWED_EVERY,
            _ => EVERY,
        };
        let newest = match wanted.recv_timeout(every) {
            Ok(first) => wanted.try_iter().last().unwrap_or(first),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return true,
        };
        match (newest, &lease) {
            (PeerRequest::Call(request, called), _) => lease = Some((request, called)),
            (PeerRequest::Keep, Some((request, called))) => {
                // One that is busy may answer the second time.
                return (0..2).any(|_| {
                    let lease = peer.call(request, (LeaseCall::Keep, called.turn)).lease;
                    !matches!(lease, PeerLease::Unknown)
                });
            }
            (PeerRequest::End, Some((request, _))) => {
                peer.end(&request.id);
                return true;
            }
            (PeerRequest::Keep | PeerRequest::End, None) => return true,
        }
    }
}
