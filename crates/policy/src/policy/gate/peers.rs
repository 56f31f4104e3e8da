//! Reasons beside this node's memory: the turn of a start, and the other nodes of one that spans
//! several, where each must be able to take its part at the same time.

use std::sync::Arc;

use crate::model::{GateReason, GateResponse, PeerGate, PeerGateResponse};

/// The same answer for a start that waits for its turn in the ledger, for these reasons.
pub fn with_turn(own: &mut GateResponse, reasons: &[Arc<str>]) {
    let known: Vec<String> = own.reasons.iter().map(ToString::to_string).collect();
    let others = reasons.iter().filter(|why| !known.iter().any(|known| *known == ***why));
    own.reasons.extend(others.map(|why| GateReason::Turn { why: Arc::clone(why) }));
    own.is_open &= own.reasons.is_empty();
    if !own.is_open {
        own.wait = own.wait.filter(|wait| !wait.is_zero());
    }
}

/// The same answer, for this node and those: open where all are, hopeless where one is.
pub fn with_peers(mut own: GateResponse, peers: Vec<PeerGateResponse>) -> GateResponse {
    for PeerGateResponse { node, gate } in &peers {
        let node = Arc::clone(node);
        let (wait, is_hopeless) = match gate {
            PeerGate::Open => continue,
            PeerGate::Closed { reasons, wait, is_hopeless } => {
                // A node that is closed without a reason counts as closed.
                let unexplained = [Arc::from("it is closed, and does not say why")];
                let all = if reasons.is_empty() { &unexplained[..] } else { reasons };
                own.reasons.extend(
                    all.iter()
                        .map(|why| GateReason::Peer { node: Arc::clone(&node), why: why.clone() }),
                );
                (*wait, *is_hopeless)
            }
            PeerGate::Unknown { why } => {
                own.reasons.push(GateReason::PeerUnknown { node, why: why.clone() });
                (None, false)
            }
        };
        own.is_open = false;
        own.is_hopeless |= is_hopeless;
        own.wait = own.wait.zip(wait).map(|(own, other)| own.max(other));
    }
    own.peers = peers;
    own
}
