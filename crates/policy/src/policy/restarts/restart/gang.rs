//! The start of a rank of an engine that spans nodes: in the order of ranks, and with memory on all
//! nodes.

use std::sync::Arc;

use super::Restart;
use crate::model::{EngineSeen, GangStart, Mode, PastRanks, WorkloadEnd};
use crate::policy::Context;

impl Restart {
    /// The names under which memory may be reserved for it.
    pub(super) fn names(&self) -> Vec<&str> {
        let engine = self.ranks.as_ref().map(|ranks| &*ranks.engine);
        [Some(&*self.seen.target.name), engine].into_iter().flatten().collect()
    }

    pub(in crate::policy::restarts) fn ranks(&self) -> Option<&PastRanks> {
        self.ranks.as_ref()
    }

    /// Takes its ranks as an earlier run knew them.
    pub(super) fn remember_ranks(&mut self, ranks: Option<PastRanks>) {
        let is_its = |ranks: &PastRanks| ranks.workload == self.seen.target.id;
        if self.ranks.is_none()
            && let Some(ranks) = ranks.filter(is_its)
        {
            self.ranks = Some(ranks);
            self.is_reported = false;
        }
    }

    /// Remembers its ranks. A change is an event, so that the next run of the program knows it.
    pub(super) fn observe_ranks(&mut self, engine: &EngineSeen, context: &Context<'_>) {
        let ranks = context.engines.ranks_of(engine.server, &self.seen.target.id);
        // With Ray it has no rank until it has workers.
        let is_whole = ranks.is_none() && context.engines.is_whole(engine.server);
        if ranks != self.ranks && (ranks.is_some() || is_whole) {
            self.ranks = ranks;
            self.is_reported &= self.is_left_to_others();
        }
    }

    /// Whether both are ranks of one engine, which start together.
    pub(in crate::policy::restarts) fn is_rank_with(&self, other: &Self) -> bool {
        self.ranks().zip(other.ranks()).is_some_and(|(own, other)| own.is_with(other))
    }

    /// Why it waits for its ranks on other nodes, if it does.
    pub(super) fn waits_for_ranks(&self, context: &Context<'_>) -> Option<String> {
        let ranks = self.ranks.as_ref()?;
        ranks.waits_for(&context.cluster.ranks()?, context.leases, context.at.uptime)
    }

    /// The memory that it needs on other nodes before it starts: all ranks take as much.
    pub(super) fn gang_start(&self, end: &WorkloadEnd, mode: Mode) -> Option<GangStart> {
        let ranks = self.ranks.as_ref().filter(|ranks| ranks.is_first())?;
        let nodes = ranks.nodes();
        // What is only reported reserves nothing.
        (!nodes.is_empty() && mode == Mode::Enforce).then(|| GangStart {
            after: Arc::clone(&end.mark),
            need: self.seen.need.request(self.peak_bytes),
            nodes,
        })
    }

    /// Why the memory on other nodes is not reserved, if so.
    pub(super) fn waits_for_nodes(
        &self,
        gang: &GangStart,
        context: &Context<'_>,
    ) -> Option<String> {
        let reading = context.leases.gang(&self.seen.target.name, &gang.after);
        let Some(reading) = reading else {
            let nodes: Vec<&str> = gang.nodes.iter().map(|(node, _)| &**node).collect();
            return Some(format!("it waits for memory on {}", nodes.join(", ")));
        };
        (!reading.is_complete).then(|| match reading.reasons.as_slice() {
            [] => "its nodes reserve memory now".to_owned(),
            reasons => format!("it waits for memory on all its nodes: {}", reasons.join("; ")),
        })
    }
}
