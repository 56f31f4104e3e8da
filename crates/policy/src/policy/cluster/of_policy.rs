//! What the policy has to do with other nodes.

use std::sync::Arc;

use promql_rules::store::SeriesStore;

use crate::model::{ClusterNames, Moment, Wanted};
use crate::policy::Policy;
use crate::policy::rule::{Rule, RuleScope};

impl Policy {
    /// The declared world is that of a cluster, in which this node has that name.
    pub fn rehearse_on(&mut self, node: &str) {
        self.cluster.declare(Some(node.into()));
    }

    /// From now on this node is one of a cluster, under these names; or of none.
    pub fn set_cluster(&mut self, names: Option<ClusterNames>) {
        self.cluster.set_names(names);
    }

    /// What is to be asked of the other nodes of the cluster.
    pub fn wanted_of_others(&self) -> Arc<[Wanted]> {
        Arc::clone(self.cluster.wanted())
    }

    /// Brings the series of all nodes up to date.
    pub(in crate::policy) fn advance_cluster(&mut self, at: Moment) {
        let mut groups = self.groups.iter().filter(|group| group.scope() == RuleScope::Cluster);
        let is_due = groups.any(|group| group.due() <= at.uptime);
        self.cluster.advance(at, &self.store, is_due);
    }

    /// What that rule reads.
    pub(in crate::policy) fn store_of(&self, rule: &Rule) -> &SeriesStore {
        match rule.scope {
            RuleScope::Node => &self.store,
            RuleScope::Cluster => self.cluster.store().unwrap_or(&self.store),
        }
    }
}
