//! The ranks of an engine whose rank on this node has ended, for its next start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{GangKey, OtherRank, OtherRanks};
use crate::model::{PastRank, PastRanks, ProcessId};
use crate::policy::engines::Engines;
use crate::policy::leases::Leases;

impl Engines {
    /// The ranks of the engine with that server in that container or unit, if it spans nodes.
    pub(in crate::policy) fn ranks_of(
        &self,
        server: ProcessId,
        workload: &Arc<str>,
    ) -> Option<PastRanks> {
        let (engine, own) = self.ranks.own.iter().find(|(_, own)| own.server == server)?;
        let (gang, user) = own.gang.clone();
        let others = own.seen.iter().map(|((node, rank, start), seen)| PastRank {
            node: Arc::clone(node),
            rank: Arc::clone(rank),
            start: *start,
            engine: Arc::clone(&seen.engine),
        });
        Some(PastRanks {
            workload: Arc::clone(workload),
            engine: Arc::clone(engine),
            gang,
            user,
            number: own.rank.rank,
            serves: own.serves,
            others: others.collect(),
        })
    }

    /// Whether the engine with that server is up, and spans no nodes.
    pub(in crate::policy) fn is_whole(&self, server: ProcessId) -> bool {
        let lives = self.lives.values().map(|(life, _)| life);
        let mut its = lives.filter(|life| life.server() == server);
        its.any(|life| life.seen().rank.is_none() && life.phase().is_up())
    }

    /// Whether the engine of that name is another run, or another rank, of the same one.
    pub(in crate::policy) fn is_of(&self, name: &str, ranks: &PastRanks) -> bool {
        self.ranks.own.get(name).is_some_and(|own| own.gang == ranks.gang())
    }
}

impl PastRanks {
    fn gang(&self) -> GangKey {
        (Arc::clone(&self.gang), Arc::clone(&self.user))
    }

    /// Whether both are ranks of one engine.
    pub(in crate::policy) fn is_with(&self, other: &Self) -> bool {
        self.gang == other.gang && self.user == other.user
    }

    /// Whether it starts before all others: it has the lowest number, or it serves where ranks
    /// have no numbers.
    pub(in crate::policy) fn is_first(&self) -> bool {
        let is_behind =
            |own: u32| self.others.iter().all(|other| other.number().is_some_and(|it| own < it));
        let is_lowest = self.number.is_some_and(is_behind);
        self.others.is_empty() || is_lowest || self.before().is_none() && self.serves
    }

    /// The rank on another node that starts right before this one: its node and number.
    fn before(&self) -> Option<(&Arc<str>, u32)> {
        let own = self.number?;
        let numbers = self.others.iter().filter_map(|other| Some((other.number()?, &other.node)));
        let (number, node) = numbers.filter(|(number, _)| *number < own).max()?;
        Some((node, number))
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
        let others = all.gangs.get(&self.gang()).map_or(&[][..], Vec::as_slice);
        let mut alive = others.iter().filter(|other| !other.phase.is_ending());
        if let Some((node, number)) = self.before() {
            let is_it =
                |other: &&OtherRank| other.rank.parse() == Ok(number) && !self.has_seen(other);
            let has_started = alive.any(|other| is_it(&other));
            return (!has_started)
                .then(|| format!("it waits until its rank {number} on {node} starts"));
        }
        if !self.is_first() {
            let has_started = leases.has_gang(&self.engine, now) || self.has_new_run(all);
            let nodes: BTreeSet<&str> = self.others.iter().map(|other| &*other.node).collect();
            let nodes = Vec::from_iter(nodes).join(" or ");
            return (!has_started).then(|| {
                format!(
                    "it waits until its rank that serves reserves memory here and starts, on \
                     {nodes}: start this one by hand if nothing restarts that one"
                )
            });
        }
        let left = alive.find(|other| self.has_seen(other))?;
        let (node, engine) = (&left.node, &left.engine);
        Some(format!("it waits until its rank on {node} ({engine}) has ended"))
    }

    /// Whether that one lived while this one did.
    fn has_seen(&self, other: &OtherRank) -> bool {
        let is_it = |past: &PastRank| {
            past.node == other.node && past.rank == other.rank && past.start == other.start
        };
        self.others.iter().any(is_it)
    }

    /// Whether an engine of the same user runs again under the name that a rank had on its node.
    /// Each job of Ray is another gang.
    fn has_new_run(&self, all: &OtherRanks) -> bool {
        let alive = all.of_user(&self.user).filter(|other| !other.phase.is_ending());
        let mut new = alive.filter(|other| !self.has_seen(other));
        let is_it =
            |past: &PastRank, new: &OtherRank| past.node == new.node && past.engine == new.engine;
        new.any(|new| self.others.iter().any(|past| is_it(past, new)))
    }
}

impl PastRank {
    fn number(&self) -> Option<u32> {
        self.rank.parse().ok()
    }
}
