//! The ranks of an engine whose rank on this node has ended, for its next start.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Gang, OtherRank, OtherRanks, RankId};
use crate::model::ProcessId;
use crate::policy::engines::Engines;

/// A rank of this node as it was last, and the ranks on other nodes that lived while it did.
#[derive(Clone, Debug)]
pub(in crate::policy) struct PastRanks {
    /// Name of the engine on this node.
    pub(in crate::policy) engine: Arc<str>,
    gang: Gang,
    /// `None`: its ranks have no numbers, as with Ray.
    number: Option<u32>,
    others: BTreeMap<RankId, Arc<str>>,
}

impl Engines {
    /// The ranks of the engine with that server, if it spans nodes.
    pub(in crate::policy) fn ranks_of(&self, server: ProcessId) -> Option<PastRanks> {
        let (engine, own) = self.ranks.own.iter().find(|(_, own)| own.server == server)?;
        let seen = own.seen.iter();
        Some(PastRanks {
            engine: Arc::clone(engine),
            gang: own.gang.clone(),
            number: own.rank.rank,
            others: seen.map(|(id, seen)| (id.clone(), Arc::clone(&seen.engine))).collect(),
        })
    }

    /// Whether the engine of that name is another run, or another rank, of the same one.
    pub(in crate::policy) fn is_of(&self, name: &str, ranks: &PastRanks) -> bool {
        self.ranks.own.get(name).is_some_and(|own| own.gang == ranks.gang)
    }
}

impl PastRanks {
    /// Whether both are ranks of one engine.
    pub(in crate::policy) fn is_with(&self, other: &Self) -> bool {
        self.gang == other.gang
    }

    /// The other nodes, and the engine's name on each.
    pub(in crate::policy) fn nodes(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let of =
            |((node, ..), engine): (&RankId, &Arc<str>)| (Arc::clone(node), Arc::clone(engine));
        self.others.iter().map(of).collect::<BTreeMap<_, _>>().into_iter().collect()
    }

    /// Whether another rank is to start before this one.
    pub(in crate::policy) fn is_first(&self) -> bool {
        self.before().is_none()
    }

    /// The rank on another node that starts right before this one: its node and number.
    fn before(&self) -> Option<(&Arc<str>, u32)> {
        let own = self.number?;
        let numbers = self.others.keys().filter_map(|(node, rank, _)| {
            let number: u32 = rank.parse().ok()?;
            (number < own).then_some((number, node))
        });
        numbers.max().map(|(number, node)| (node, number))
    }

    /// Why this rank does not start yet, if so: the one before it has not started again, or, for
    /// the first, one of the last run still runs.
    pub(in crate::policy) fn waits_for(&self, all: &OtherRanks) -> Option<String> {
        let others = all.gangs.get(&self.gang).map_or(&[][..], Vec::as_slice);
        let mut alive = others.iter().filter(|other| !other.phase.is_ending());
        let is_past = |other: &OtherRank| self.others.contains_key(&other.id());
        if let Some((node, number)) = self.before() {
            let is_it = |other: &&OtherRank| other.rank.parse() == Ok(number) && !is_past(other);
            let has_started = alive.any(|other| is_it(&other));
            return (!has_started)
                .then(|| format!("it waits until its rank {number} on {node} starts"));
        }
        let left = alive.find(|other| is_past(other))?;
        let (node, engine) = (&left.node, &left.engine);
        Some(format!("it waits until its rank on {node} ({engine}) has ended"))
    }
}
