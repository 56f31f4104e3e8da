//! Other nodes that must be able to take it, too: each is asked on a thread of its own, so that one
//! that hangs holds up nobody.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::clients::peer::{ANSWER_TAKES, Peer};
use crate::config::cluster::MOST_PEERS;
use crate::model::{Access, ClusterSettings, GateQuestion, PeerAddress, PeerAnswer, PeerGate};
use crate::sources::cluster::{Discovery, Found};

/// Between an answer and the next question.
const EVERY: Duration = Duration::from_millis(500);

/// What was said longer ago than this is not known any more.
const KNOWN_FOR: Duration = ANSWER_TAKES.saturating_add(EVERY.saturating_mul(4));

/// Between two looks who they are, where that may change.
const LOOKS_EVERY: Duration = Duration::from_secs(5);

/// All of them.
pub(crate) struct Peers {
    each: Vec<OnePeer>,
    access: Access,
    question: GateQuestion,
    /// Who they are, where that is looked up.
    found: Option<Receiver<Found>>,
    /// Whether that has been looked up once.
    are_known: bool,
    /// What tells of peers and cannot be used: then nobody knows who is missing.
    faults: Vec<PeerAnswer>,
}

struct OnePeer {
    node: Arc<str>,
    address: PeerAddress,
    from: Receiver<(Instant, PeerGate)>,
    latest: Option<(Instant, PeerGate)>,
}

impl Peers {
    /// Begins to ask them.
    ///
    /// # Errors
    /// There are too many, or a thread cannot be started.
    pub(crate) fn start(
        addresses: &[PeerAddress],
        access: &Access,
        question: GateQuestion,
    ) -> io::Result<Self> {
        if addresses.len() > MOST_PEERS {
            let text = format!("{} are more than {MOST_PEERS}", addresses.len());
            return Err(io::Error::other(text));
        }
        let each = addresses.iter().map(|address| OnePeer::start(address, access, question));
        Ok(Self {
            each: each.collect::<io::Result<_>>()?,
            access: access.clone(),
            question,
            found: None,
            are_known: true,
            faults: Vec::new(),
        })
    }

    /// Begins to ask those of the configuration, and to look who they are.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn of_cluster(
        settings: &ClusterSettings,
        question: GateQuestion,
    ) -> io::Result<Self> {
        let mut discovery = Discovery::new(settings);
        let (to, found) = sync_channel(1);
        Builder::new().name("peers-found".to_owned()).spawn(move || {
            while to.send(discovery.discover()).is_ok() {
                std::thread::sleep(LOOKS_EVERY);
            }
        })?;
        let nobody = Self::start(&[], &settings.access, question)?;
        Ok(Self { found: Some(found), are_known: false, ..nobody })
    }

    /// Takes in who they are.
    fn look(&mut self) {
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
            if let Some(place) = known.iter().position(|peer| peer.address == address) {
                self.each.push(known.swap_remove(place));
                continue;
            }
            match OnePeer::start(&address, &self.access, self.question) {
                Ok(peer) => self.each.push(peer),
                Err(error) => self.faults.push(unknown((node.into(), error.to_string()))),
            }
        }
    }

    /// What they said last.
    pub(super) fn take(&mut self) -> Vec<PeerAnswer> {
        self.look();
        let mut told: Vec<PeerAnswer> = self.each.iter_mut().map(OnePeer::take).collect();
        told.extend(self.faults.iter().cloned());
        let why = match (self.are_known, told.is_empty()) {
            (false, _) => "it is still looked up who they are",
            (true, true) => "what the configuration names tells of no node (cluster)",
            (true, false) => return told,
        };
        told.push(PeerAnswer {
            node: "cluster".into(),
            gate: PeerGate::Unknown { why: why.into() },
        });
        told
    }

    /// Whether each has answered by now, or has let its time pass.
    pub(super) fn have_been_asked(&self) -> bool {
        self.are_known && self.each.iter().all(|peer| peer.latest.is_some())
    }
}

impl OnePeer {
    fn start(address: &PeerAddress, access: &Access, question: GateQuestion) -> io::Result<Self> {
        let (to, from) = sync_channel(4);
        let mut peer = Peer::open(address, access, question).map_err(io::Error::other)?;
        Builder::new().name("peers".to_owned()).spawn(move || ask(&mut peer, &to))?;
        let node = address.to_string().into();
        Ok(Self { node, address: address.clone(), from, latest: None })
    }

    fn take(&mut self) -> PeerAnswer {
        if let Some(newest) = self.from.try_iter().last() {
            self.latest = Some(newest);
        }
        let gate = match &self.latest {
            Some((at, gate)) if at.elapsed() <= KNOWN_FOR => gate.clone(),
            Some(_) => PeerGate::Unknown { why: "it has said nothing of late".into() },
            None => PeerGate::Unknown { why: "it has not answered yet".into() },
        };
        PeerAnswer { node: Arc::clone(&self.node), gate }
    }
}

fn ask(peer: &mut Peer, to: &SyncSender<(Instant, PeerGate)>) {
    loop {
        // What it says is at most as old as the question.
        let at = Instant::now();
        // What nobody has taken nobody waits for.
        if let Err(TrySendError::Disconnected(_)) = to.try_send((at, peer.ask())) {
            return;
        }
        std::thread::sleep(EVERY);
    }
}
