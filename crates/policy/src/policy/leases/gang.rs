//! A start over several nodes: memory on all of them, or on none.
//!
//! It waits on all nodes, and takes nothing. Once each says that it could grant the memory, it
//! takes it on one after the other, in an order that is the same for every start. When one refuses
//! or does not answer, all of it is given back and it waits again. So of several starts that
//! contend the one that has the last contended node goes on, and none waits for memory while it
//! holds some.
//!
//! At the end each node confirms: from then on its lease outlasts a network that is down for a
//! while.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{LeaseCall, LeaseStage};

/// A node that has not granted within this time is lost. What others have granted is given back
/// within a second.
const TAKES_WITHIN: Duration = Duration::from_millis(700);

/// The last response of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberResponse {
    /// The node, by a name that all requesters see: the order in which memory is taken.
    pub node: Arc<str>,
    /// The turn of the call that it responds to.
    pub turn: u64,
    /// How far it has come there.
    pub stage: LeaseStage,
}

/// Whether a node has answered that it has not granted it.
fn refuses(stage: Option<LeaseStage>) -> bool {
    stage.is_some_and(|stage| stage != LeaseStage::Granted)
}

/// A start over several nodes.
#[derive(Clone, Debug, Default)]
pub struct LeaseGang {
    members: Vec<MemberCall>,
    turn: u64,
    phase: Phase,
}

/// What is called on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberCall {
    /// The call, which is repeated.
    pub call: LeaseCall,
    /// It is higher than that of every earlier call of this start.
    pub turn: u64,
    /// Start of this call, on the uptime clock.
    since: Duration,
}

#[derive(Clone, Debug, Default)]
enum Phase {
    #[default]
    Waiting,
    /// Memory is taken in this order; so many have granted it.
    Taking {
        order: Vec<usize>,
        granted: usize,
    },
    /// All have granted it, and confirm that.
    Confirming {
        since: Duration,
    },
    Complete,
}

impl MemberCall {
    fn stage(self, answer: Option<&MemberResponse>) -> Option<LeaseStage> {
        answer.filter(|answer| answer.turn == self.turn).map(|answer| answer.stage)
    }
}

impl LeaseGang {
    /// One whose calls come after all those that an earlier requester of the same lease made
    /// before that time, in milliseconds of UTC.
    pub fn after(utc_ms: i64) -> Self {
        Self { turn: u64::try_from(utc_ms).unwrap_or(0), ..Self::default() }
    }

    /// Whether all nodes have granted memory. The last calls are to be repeated as long as the
    /// start lives.
    pub fn is_complete(&self) -> bool {
        matches!(self.phase, Phase::Complete)
    }

    /// Whether it takes memory, which goes on for less than a second a node.
    pub fn is_taking(&self) -> bool {
        matches!(self.phase, Phase::Taking { .. } | Phase::Confirming { .. })
    }

    /// Takes the last answers, one of each node and always in the same order; `None`: there was
    /// none. Returns what to call on each.
    pub fn advance(&mut self, now: Duration, answers: &[Option<MemberResponse>]) -> &[MemberCall] {
        if self.members.len() != answers.len() {
            let call = MemberCall { call: LeaseCall::Wait, turn: 0, since: now };
            self.members = vec![call; answers.len()];
            self.give_back(now);
        }
        let stages: Vec<Option<LeaseStage>> =
            self.members.iter().zip(answers).map(|(own, seen)| own.stage(seen.as_ref())).collect();
        match &mut self.phase {
            Phase::Waiting => {
                let is_ready = |stage: &Option<LeaseStage>| *stage == Some(LeaseStage::Grantable);
                if !stages.is_empty() && stages.iter().all(is_ready) {
                    let mut order: Vec<usize> = (0..answers.len()).collect();
                    let node = |index: &usize| answers.get(*index)?.as_ref().map(|one| &one.node);
                    order.sort_by(|one, other| node(one).cmp(&node(other)));
                    self.phase = Phase::Taking { order, granted: 0 };
                    self.take(now, 0);
                }
            }
            Phase::Taking { order, granted } => {
                let stage = |index: &usize| stages.get(*index).copied().flatten();
                let (done, rest) = order.split_at(*granted);
                let are_kept = done.iter().all(|index| stage(index) == Some(LeaseStage::Granted));
                let next = rest.first();
                let since = next.and_then(|next| self.members.get(*next)).map(|next| next.since);
                let is_late = since.is_some_and(|then| now.saturating_sub(then) >= TAKES_WITHIN);
                match next.and_then(stage) {
                    _ if !are_kept => self.give_back(now),
                    Some(LeaseStage::Granted) => {
                        *granted += 1;
                        let granted = *granted;
                        self.take(now, granted);
                    }
                    None if !is_late => {}
                    _ => self.give_back(now),
                }
            }
            Phase::Confirming { since } => {
                let is_late = now.saturating_sub(*since) >= TAKES_WITHIN;
                if stages.iter().all(|stage| *stage == Some(LeaseStage::Granted)) {
                    self.phase = Phase::Complete;
                } else if is_late || stages.iter().any(|stage| refuses(*stage)) {
                    self.give_back(now);
                }
            }
            Phase::Complete => {}
        }
        &self.members
    }

    /// Takes memory on the node of that place in the order; after the last one all confirm.
    fn take(&mut self, now: Duration, place: usize) {
        let Phase::Taking { order, .. } = &self.phase else { return };
        if let Some(member) = order.get(place).and_then(|index| self.members.get_mut(*index)) {
            self.turn += 1;
            *member = MemberCall { call: LeaseCall::Take, turn: self.turn, since: now };
        } else {
            self.call_all(LeaseCall::Renew, now);
            self.phase = Phase::Confirming { since: now };
        }
    }

    fn give_back(&mut self, now: Duration) {
        self.call_all(LeaseCall::Wait, now);
        self.phase = Phase::Waiting;
    }

    fn call_all(&mut self, call: LeaseCall, now: Duration) {
        self.turn += 1;
        self.members.fill(MemberCall { call, turn: self.turn, since: now });
    }
}
