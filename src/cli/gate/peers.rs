//! Other nodes that must be able to take it, too: each is asked on a thread of its own, so that one
//! that hangs holds up nobody.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::clients::peer::{ANSWER_TAKES, Peer};
use crate::config::cluster::MOST_PEERS;
use crate::model::{GateQuestion, PeerAddress, PeerAnswer, PeerGate};

/// Between an answer and the next question.
const EVERY: Duration = Duration::from_millis(500);

/// What was said longer ago than this is not known any more.
const KNOWN_FOR: Duration = ANSWER_TAKES.saturating_add(EVERY.saturating_mul(4));

/// All of them.
pub(crate) struct Peers {
    each: Vec<OnePeer>,
}

struct OnePeer {
    node: Arc<str>,
    from: Receiver<(Instant, PeerGate)>,
    latest: Option<(Instant, PeerGate)>,
}

impl Peers {
    /// Begins to ask them.
    ///
    /// # Errors
    /// There are too many, or a thread cannot be started.
    pub(crate) fn start(addresses: &[PeerAddress], question: GateQuestion) -> io::Result<Self> {
        if addresses.len() > MOST_PEERS {
            let text = format!("{} are more than {MOST_PEERS}", addresses.len());
            return Err(io::Error::other(text));
        }
        let each = addresses.iter().map(|address| OnePeer::start(address, question));
        Ok(Self { each: each.collect::<io::Result<_>>()? })
    }

    /// What they said last.
    pub(super) fn take(&mut self) -> Vec<PeerAnswer> {
        self.each.iter_mut().map(OnePeer::take).collect()
    }

    /// Whether each has answered by now, or has let its time pass.
    pub(super) fn have_been_asked(&self) -> bool {
        self.each.iter().all(|peer| peer.latest.is_some())
    }
}

impl OnePeer {
    fn start(address: &PeerAddress, question: GateQuestion) -> io::Result<Self> {
        let (to, from) = sync_channel(4);
        let peer = Peer::open(address, question).map_err(io::Error::other)?;
        Builder::new().name("peers".to_owned()).spawn(move || ask(&peer, &to))?;
        Ok(Self { node: address.to_string().into(), from, latest: None })
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

fn ask(peer: &Peer, to: &SyncSender<(Instant, PeerGate)>) {
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
