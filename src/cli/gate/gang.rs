//! A start that reserves memory on this node, or on this node and its peers together.

use std::sync::Arc;
use std::time::Duration;

use super::lease::StartLease;
use crate::daemon::clock;
use crate::daemon::peers::Peers;
use crate::model::{
    GateReason, GateResponse, LeaseCall, LeaseRequest, LeaseStage, LeaseState, MemoryPools,
};
use crate::policy::gate::with_turn;
use crate::policy::leases::gang::{LeaseGang, MemberCall, MemberResponse};

/// The reservation of a start that waits.
pub(super) struct Reservation {
    gang: LeaseGang,
    /// What is called on this node.
    called: Option<MemberCall>,
    /// What the peers are to reserve.
    shared: Option<Arc<LeaseRequest>>,
    /// Peers whose refusal was reported.
    reported: Vec<Arc<str>>,
    /// Whether the ledger could be used.
    pub(super) has_begun: bool,
}

impl Default for Reservation {
    fn default() -> Self {
        Self {
            gang: LeaseGang::after(clock::now().utc_ms()),
            called: None,
            shared: None,
            reported: Vec::new(),
            has_begun: false,
        }
    }
}

impl Reservation {
    /// Requests memory on this node alone. The response is open once it is reserved.
    ///
    /// # Errors
    /// Nothing can be reserved here, for this reason.
    pub(super) fn advance(
        lease: &mut StartLease,
        memory: (&MemoryPools, Duration),
        response: &mut GateResponse,
    ) -> Result<(), String> {
        // What was granted may be over at once: its memory was taken before.
        if let Some(LeaseState::Waiting { reasons, .. }) =
            lease.call(memory, (LeaseCall::Take, 0))?
        {
            with_turn(response, &reasons);
        }
        Ok(())
    }

    /// The same on this node and its peers: the response is open once it is reserved on all of
    /// them. Adds what people should know to `news`.
    ///
    /// # Errors
    /// Nothing can be reserved here, for this reason.
    pub(super) fn advance_with(
        &mut self,
        (lease, peers): (&mut StartLease, &mut Peers),
        memory: (&MemoryPools, Duration),
        (response, news): (&mut GateResponse, &mut Vec<String>),
    ) -> Result<(), String> {
        let shared = Arc::clone(self.shared.get_or_insert_with(|| lease.span()));
        let called = self.called.map_or((LeaseCall::Wait, 0), |own| (own.call, own.turn));
        let state = lease.call(memory, called)?;
        let stage = state.as_ref().map_or(LeaseStage::Ended, LeaseState::stage);
        let mut answers = vec![Some(MemberResponse { node: lease.node(), turn: called.1, stage })];
        answers.extend(peers.leases());
        let calls = self.gang.advance(clock::uptime(), &answers);
        self.called = calls.first().copied();
        peers.call(|_| Arc::clone(&shared), calls.get(1..).unwrap_or_default());
        for (node, why) in peers.refusals() {
            if !self.reported.contains(node) {
                self.reported.push(Arc::clone(node));
                news.push(format!("nothing is reserved on {node}: {why}"));
            }
        }
        if self.gang.is_complete() {
            lease.call(memory, (LeaseCall::Keep, called.1))?;
            response.is_open = true;
            response.reasons.clear();
            return Ok(());
        }
        if let Some(LeaseState::Waiting { reasons, .. }) = &state {
            with_turn(response, reasons);
        }
        if response.reasons.is_empty() {
            response.reasons.push(GateReason::Turn { why: "all nodes reserve memory now".into() });
        }
        response.is_open = false;
        Ok(())
    }
}
