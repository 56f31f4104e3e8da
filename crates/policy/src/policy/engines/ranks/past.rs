//! The ranks of an engine whose rank on this node has ended, for its next start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Gang, OtherRank, OtherRanks, RankId};
use crate::model::ProcessId;
use crate::policy::engines::Engines;
use crate::policy::leases::Leases;

/// A rank of this node as it was last, and the ranks on other nodes that lived while it did.
#[derive(Clone, Debug)]
pub(in crate::policy) struct PastRanks {
    /// Name of the engine on this node.
    pub(in crate::policy) engine: Arc<str>,
    gang: Gang,
    /// `None`: its ranks have no numbers, as with Ray.
    number: Option<u32>,
    /// Whether it served requests.
    serves: bool,
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
            serves: own.serves,
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

    /// Whether it starts before all others: it has the lowest number, or it serves where ranks
    /// have no numbers.
    pub(in crate::policy) fn is_first(&self) -> bool {
        let is_behind =
            |own| move |(_, rank, _): &RankId| rank.parse().is_ok_and(|it: u32| own < it);
        let is_lowest = self.number.is_some_and(|own| self.others.keys().all(is_behind(own)));
        self.others.is_empty() || is_lowest || self.before().is_none() && self.serves
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

    /// Why this rank does not start yet, if so: the one before it has not started again; for the
    /// first, one of the last run still runs; for one without a number, the first has neither
    /// started nor reserved memory for it.
    pub(in crate::policy) fn waits_for(
        &self,
        all: &OtherRanks,
        leases: &Leases,
        now: Duration,
    ) -> Option<String> {
        let others = all.gangs.get(&self.gang).map_or(&[][..], Vec::as_slice);
        let mut alive = others.iter().filter(|other| !other.phase.is_ending());
        let is_past = |other: &OtherRank| self.others.contains_key(&other.id());
        if let Some((node, number)) = self.before() {
            let is_it = |other: &&OtherRank| other.rank.parse() == Ok(number) && !is_past(other);
            let has_started = alive.any(|other| is_it(&other));
            return (!has_started)
                .then(|| format!("it waits until its rank {number} on {node} starts"));
        }
        if !self.is_first() {
            let has_started = leases.has_gang(&self.engine, now) || self.has_new_run(all);
            let nodes: BTreeSet<&str> = self.others.keys().map(|(node, ..)| &**node).collect();
            let nodes = Vec::from_iter(nodes).join(" or ");
            return (!has_started).then(|| {
                format!(
                    "it waits until its rank that serves reserves memory here and starts, on \
                     {nodes}: start this one by hand if nothing restarts that one"
                )
            });
        }
        let left = alive.find(|other| is_past(other))?;
        let (node, engine) = (&left.node, &left.engine);
        Some(format!("it waits until its rank on {node} ({engine}) has ended"))
    }

    /// Whether an engine of the same user runs again under the name that a rank had on its node.
    /// Each job of Ray is another gang.
    fn has_new_run(&self, all: &OtherRanks) -> bool {
        let gangs = all.gangs.iter().filter(|((_, user), _)| *user == self.gang.1);
        let alive = gangs.flat_map(|(_, gang)| gang).filter(|other| !other.phase.is_ending());
        let mut new = alive.filter(|other| !self.others.contains_key(&other.id()));
        new.any(|new| {
            let is_it = |((node, ..), engine): (&RankId, &Arc<str>)| {
                *node == new.node && *engine == new.engine
            };
            self.others.iter().any(is_it)
        })
    }
}
