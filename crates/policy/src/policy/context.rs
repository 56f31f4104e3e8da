//! The context in which rules are evaluated and decide.

use std::time::Duration;

use promql_rules::store::SeriesStore;

use super::Step;
use super::act::DecisionNumbers;
use super::brake::Brake;
use super::cluster::Cluster;
use super::counters::Counters;
use super::death::Kills;
use super::engines::Engines;
use super::guard::Guard;
use super::leases::Leases;
use super::reboot::{RebootFacts, Reboots};
use super::rule::{Rule, RuleScope};
use crate::model::{MemoryAssessment, MemoryPools, Mode, Moment, Reading};

/// What the evaluation of a rule may read and change, besides the rule.
pub(super) struct Context<'a> {
    pub(super) at: Moment,
    pub(super) mode: Mode,
    pub(super) store: &'a SeriesStore,
    pub(super) cluster: &'a Cluster,
    /// When memory was last measured, on the uptime clock.
    pub(super) measured: Option<Duration>,
    /// The memory for an engine that is to start, if the sample is current.
    pub(super) memory: Option<&'a MemoryPools>,
    /// Memory that is reserved for starts.
    pub(super) leases: &'a Leases,
    pub(super) engines: &'a Engines,
    pub(super) brake: &'a Brake,
    pub(super) assessment: &'a MemoryAssessment,
    pub(super) reboots: &'a mut Reboots,
    pub(super) kills: &'a Kills,
    pub(super) guard: &'a mut Guard,
    pub(super) numbers: &'a mut DecisionNumbers,
    pub(super) counters: &'a mut Counters,
    pub(super) step: &'a mut Step,
}

impl<'a> Context<'a> {
    /// What that rule reads. Where there is no cluster, its series are this node's.
    pub(super) fn store_of(&self, rule: &Rule) -> &'a SeriesStore {
        match rule.scope {
            RuleScope::Node => self.store,
            RuleScope::Cluster => self.cluster.store().unwrap_or(self.store),
        }
    }

    /// The present value of the only series of that name.
    pub(super) fn latest(&self, name: &str) -> Reading<f64> {
        self.store.latest_of(name, &[])
    }

    /// What a reboot depends on.
    pub(super) fn reboot_facts(&self) -> RebootFacts<'_> {
        RebootFacts {
            at: self.at,
            guard: self.guard,
            engines: self.engines,
            store: self.store,
            assessment: self.assessment,
        }
    }
}
