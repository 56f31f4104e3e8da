//! What nodes publish for the fleet's limit, and what is read of it.

use std::sync::Arc;

use promql_rules::store::SeriesStore;

use super::{Cluster, RemoteNode};
use crate::model::{FleetAction, Moment, Reading, SeriesKey};
use crate::policy::Policy;
use crate::policy::counters::{Cell, Counters};
use crate::policy::guard::{FleetNode, FleetTurn, OtherNodes};

/// Since when a node waits for its turn.
pub(super) const CLAIMED: &str = "uma_fleet_claim_timestamp_seconds";
/// How long ago it acted last.
pub(super) const ACTED: &str = "uma_fleet_act_age_seconds";

/// The label with the name of a [`FleetAction`].
const ACTION: &str = "action";

/// The series of one action.
#[derive(Clone, Copy, Debug)]
pub(super) struct FleetCells {
    claimed: Cell,
    acted: Cell,
}

impl FleetCells {
    fn new(action: FleetAction, counters: &mut Counters, store: &mut SeriesStore) -> Self {
        let mut cell =
            |name| counters.cell(store, &SeriesKey::new(name, &[(ACTION, action.name())]));
        Self { claimed: cell(CLAIMED), acted: cell(ACTED) }
    }

    fn publish(self, turn: Option<FleetTurn>, counters: &mut Counters) {
        let claimed = turn.map_or(Reading::Failed, |turn| Reading::Value(turn.claimed));
        counters.set_reading(self.claimed, claimed);
        let acted = turn.and_then(|turn| turn.acted);
        counters.set_or_retire(self.acted, acted.into());
    }
}

impl RemoteNode {
    /// What it has published of an action; `None`: unknown, or it is of a version that publishes
    /// nothing.
    fn turn(&self, action: FleetAction, store: &SeriesStore) -> Option<FleetTurn> {
        if self.is_silent || self.answered.is_none() {
            return None;
        }
        let latest = |name: &str| {
            let is_it = |key: &SeriesKey| {
                let mut labels = key.labels.iter();
                *key.name == *name
                    && labels.any(|(label, value)| **label == *ACTION && **value == *action.name())
            };
            let place = self.schema.series.iter().position(is_it)?;
            match store.latest(*self.ids.get(place)?) {
                Reading::Value(value) if !value.is_nan() => Some(Some(value)),
                // It is there and has no value now: an act that is long ago.
                Reading::Value(_) | Reading::Unsupported => Some(None),
                Reading::Failed => None,
            }
        };
        let claimed = latest(CLAIMED)??;
        let acted = match latest(ACTED) {
            Some(acted) => acted,
            None if self.has_series(ACTED) => return None,
            None => None,
        };
        Some(FleetTurn { claimed, acted })
    }

    fn has_series(&self, name: &str) -> bool {
        self.schema.series.iter().any(|key| *key.name == *name)
    }
}

impl Cluster {
    /// The other nodes as they are known now; `None`: this node is in no cluster.
    fn other_nodes(&self, at: Moment) -> Option<OtherNodes> {
        let names = self.names.as_ref()?;
        let joined_for = at.uptime.saturating_sub(self.joined.unwrap_or(at.uptime));
        let nodes = self.nodes.iter().map(|(name, node)| FleetNode {
            name: Arc::clone(name),
            turns: FleetAction::ALL.map(|action| node.turn(action, &self.store)),
        });
        Some(OtherNodes {
            own_name: Arc::clone(&names.node),
            known_for: names.known_for,
            // By then each node that was asked has answered, or is silent.
            are_found: joined_for >= names.known_for,
            nodes: nodes.collect(),
        })
    }
}

impl Policy {
    /// Reads the other nodes, if they matter to remedies.
    pub(in crate::policy) fn read_fleet(&mut self, at: Moment) {
        if self.guard.bounds_fleet() {
            self.guard.set_fleet(self.cluster.other_nodes(at));
        }
    }

    /// Publishes what this node does, and waits for, where it is in a cluster.
    pub(in crate::policy) fn publish_fleet(&mut self, at: Moment) {
        if self.cluster.names.is_none() {
            return;
        }
        let Self { cluster, counters, store, guard, .. } = self;
        let cells = cluster.fleet.get_or_insert_with(|| {
            FleetAction::ALL.map(|action| FleetCells::new(action, counters, store))
        });
        for (cells, action) in cells.iter().zip(FleetAction::ALL) {
            cells.publish(guard.fleet_turn(action, at), counters);
        }
    }
}
