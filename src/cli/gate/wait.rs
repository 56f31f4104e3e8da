//! The waiting itself, for every command that waits for memory.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::node::GateNode;
use super::peers::Peers;
use super::prepare::Preparer;
use crate::model::{GateAnswer, GateQuestion};
use crate::policy::gate::{SETTLES, judge, with_peers};

/// Between two looks. A gate that opens is seen within this time.
const TICK: Duration = Duration::from_millis(100);

/// Nobody is told that the gate is closed before it is known whether memory comes or goes.
const LEAST: Duration = SETTLES.saturating_add(TICK.saturating_mul(3));

/// What is waited for, and for how long.
pub(crate) struct Waiting<'w> {
    /// How much memory.
    pub(crate) question: GateQuestion,
    /// For how long at most; `None`: for ever.
    pub(crate) limit: Option<Duration>,
    /// Whoever makes room meanwhile, if anybody.
    pub(crate) preparer: Option<&'w mut Preparer>,
    /// The other nodes that must be able to take it, too, if any.
    pub(crate) peers: Option<&'w mut Peers>,
}

/// One look, for whoever tells of the waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked<'l> {
    /// What the gate says.
    pub(crate) answer: &'l GateAnswer,
    /// How long it was waited.
    pub(crate) waited: Duration,
    /// What has been done to make room since the last look, and what could not be.
    pub(crate) news: &'l [String],
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The node can take it.
    Open,
    /// The time is over.
    TimedOut,
    /// This node never can.
    Hopeless,
    /// Whoever is told of the looks did not want to wait on.
    Stopped,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Waited {
    /// How it ended.
    pub(crate) ended: Ended,
    /// What the gate said last.
    pub(crate) answer: GateAnswer,
    /// How long it took.
    pub(crate) waited: Duration,
}

impl Waiting<'_> {
    /// Waits until the gate opens, or the time is over. `tell` is told of every look, ten times a
    /// second, of the last one too, and may end the waiting.
    pub(crate) fn run(
        mut self,
        node: &mut GateNode,
        mut tell: impl FnMut(Looked<'_>) -> ControlFlow<()>,
    ) -> Waited {
        let began = Instant::now();
        let limit = self.limit.map(|limit| limit.max(LEAST));
        loop {
            let room = node.look();
            let mut answer = judge(&self.question, &room);
            let makes_room = self
                .preparer
                .as_mut()
                .is_some_and(|preparer| preparer.heed(&answer, node.living()));
            let news = self.preparer.as_mut().map(|preparer| preparer.news()).unwrap_or_default();
            let mut have_been_asked = true;
            if let Some(peers) = &mut self.peers {
                answer = with_peers(answer, peers.take());
                have_been_asked = peers.have_been_asked();
            }
            let waited = began.elapsed();
            let goes_on = tell(Looked { answer: &answer, waited, news: &news });
            let ended = match (answer.is_open && !makes_room, goes_on) {
                (true, _) => Some(Ended::Open),
                (false, ControlFlow::Break(())) => Some(Ended::Stopped),
                (false, ControlFlow::Continue(())) if answer.is_hopeless => Some(Ended::Hopeless),
                (false, ControlFlow::Continue(())) => {
                    let is_over = limit.is_some_and(|limit| waited >= limit) && have_been_asked;
                    // What is being done to make room does not keep an open gate closed.
                    let open = if answer.is_open { Ended::Open } else { Ended::TimedOut };
                    is_over.then_some(open)
                }
            };
            if let Some(ended) = ended {
                return Waited { ended, answer, waited };
            }
            let left = limit.map_or(TICK, |limit| limit.saturating_sub(waited));
            std::thread::sleep(if have_been_asked { TICK.min(left) } else { TICK });
        }
    }
}
