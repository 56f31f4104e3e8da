//! No more than so many nodes of a cluster do the same at the same time.
//!
//! There is no server. Each node publishes since when it waits for its turn (a claim), and how long
//! ago it acted last; all read that of one another. A node acts if fewer nodes than allowed have
//! acted lately or have an older claim. Claims are ordered by their time, then by name, alike on
//! all nodes; wrong clocks change the order, and nothing else.
//!
//! A value of another node is as old as `known_for` at most. So a claim waits twice as long: a node
//! that acts has a claim that all others know, and one that claims later learns of that act before
//! its own turn. A node that cannot be read may be acting: it counts as one that does.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;
use serde::{Deserialize, Serialize};

use super::{Guard, GuardedProposal, milliseconds};
use crate::model::{
    Action, DecisionRecord, FleetAction, HoldReason, Mode, Moment, counted, duration_text,
};
use crate::policy::act::Proposal;

/// A claim that is not renewed ends: its alert is over, or something else holds it. Rules are
/// evaluated at least once a minute.
const CLAIM_LASTS: Duration = Duration::from_secs(90);

/// What is decided is on the page that other nodes read within this time.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(1);

/// An act is published for so long: no limit reaches further.
pub const LONGEST_FLEET_PER: Duration = Duration::from_secs(86_400);

/// The parts of a whole.
const PERCENT: usize = 100;

/// So many nodes of a fleet: the larger one of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetShare {
    /// At least so many.
    pub nodes: u32,
    /// So many in a hundred, rounded down.
    #[serde(default)]
    pub percent: u32,
}

impl FleetShare {
    /// How many that is of so many nodes.
    fn of(self, nodes: usize) -> usize {
        let share = nodes.saturating_mul(self.percent as usize) / PERCENT;
        share.max(self.nodes as usize)
    }
}

/// The limit for one action: so many nodes in so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetLimit {
    /// How many nodes may do it.
    pub nodes: FleetShare,
    /// Within this time.
    pub per: Duration,
}

/// The limits of a cluster; without other nodes they hold nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetLimits {
    /// For `stop_engine`.
    #[serde(default)]
    pub stop_engine: Option<FleetLimit>,
    /// For `drop_caches`.
    #[serde(default)]
    pub drop_caches: Option<FleetLimit>,
}

impl FleetLimits {
    fn of(&self, action: FleetAction) -> Option<FleetLimit> {
        match action {
            FleetAction::StopEngine => self.stop_engine,
            FleetAction::DropCaches => self.drop_caches,
        }
    }

    /// Whether there are none.
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What another node has published of one action.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::policy) struct FleetTurn {
    /// Since when it waits for its turn, in seconds since 1970; 0: it does not.
    pub(in crate::policy) claimed: f64,
    /// Seconds since it acted last, if it did lately.
    pub(in crate::policy) acted: Option<f64>,
}

/// Another node: what it has published of each action, `None` where that is unknown.
#[derive(Clone, Debug)]
pub(in crate::policy) struct FleetNode {
    pub(in crate::policy) name: Arc<str>,
    pub(in crate::policy) turns: [Option<FleetTurn>; FleetAction::ALL.len()],
}

/// All other nodes as they are known now.
#[derive(Clone, Debug)]
pub(in crate::policy) struct OtherNodes {
    pub(in crate::policy) own_name: Arc<str>,
    /// Age at which values of a node become unknown.
    pub(in crate::policy) known_for: Duration,
    /// Whether there was time to find all of them.
    pub(in crate::policy) are_found: bool,
    pub(in crate::policy) nodes: Vec<FleetNode>,
}

/// A wait of this node for its turn.
#[derive(Clone, Copy, Debug)]
struct Claim {
    since: Moment,
    /// On the uptime clock.
    renewed: Duration,
}

/// What this node itself publishes of one action.
#[derive(Clone, Copy, Debug, Default)]
struct OwnTurn {
    claim: Option<Claim>,
    /// When it acted last, in milliseconds of the uptime clock.
    acted_ms: Option<i64>,
}

/// The state of the limit on this node.
#[derive(Clone, Debug, Default)]
pub(super) struct Fleet {
    /// `None`: it is in no cluster.
    others: Option<OtherNodes>,
    own: [OwnTurn; FleetAction::ALL.len()],
}

/// The nodes that count against an action of this one.
struct Count {
    allowed: usize,
    /// Have acted lately, or come first.
    ahead: Vec<Arc<str>>,
    unknown: Vec<Arc<str>>,
}

impl Fleet {
    pub(super) fn set_others(&mut self, others: Option<OtherNodes>) {
        self.others = others;
    }

    /// Why the action must not be done now.
    pub(super) fn hold(
        &self,
        limits: &FleetLimits,
        action: FleetAction,
        at: Moment,
    ) -> Option<HoldReason> {
        let limit = limits.of(action)?;
        if !self.others.as_ref()?.are_found {
            return Some(HoldReason::FleetUnknown);
        }
        let count = self.count(limit, action, at)?;
        if count.ahead.len() >= count.allowed {
            return Some(HoldReason::FleetLimit);
        }
        if count.ahead.len() + count.unknown.len() >= count.allowed {
            return Some(HoldReason::FleetUnknown);
        }
        (self.waits_for(action, at) > Some(Duration::ZERO)).then_some(HoldReason::FleetTurn)
    }

    /// The other nodes that count; `None` where none of them matters: all nodes may act at once, or
    /// this one has acted lately and counts already.
    fn count(&self, limit: FleetLimit, action: FleetAction, at: Moment) -> Option<Count> {
        let others = self.others.as_ref()?;
        let own = self.own.get(action as usize)?;
        let allowed = limit.nodes.of(others.nodes.len() + 1);
        let per_ms = milliseconds(limit.per);
        let has_acted =
            own.acted_ms.is_some_and(|acted| at.timeline_ms().saturating_sub(acted) < per_ms);
        if allowed > others.nodes.len() || has_acted {
            return None;
        }
        let since = own.claim.map_or(at, |claim| claim.since);
        let own_claim = (seconds(since), &others.own_name);
        let mut count = Count { allowed, ahead: Vec::new(), unknown: Vec::new() };
        for node in &others.nodes {
            let Some(turn) = node.turns.get(action as usize).copied().flatten() else {
                count.unknown.push(Arc::clone(&node.name));
                continue;
            };
            let is_late = |ago: f64| ago.is_nan() || ago < limit.per.as_secs_f64();
            let acted = turn.acted.is_some_and(is_late);
            let is_first = turn.claimed > 0.0 && is_before((turn.claimed, &node.name), own_claim);
            if acted || is_first {
                count.ahead.push(Arc::clone(&node.name));
            }
        }
        Some(count)
    }

    /// How long a claim must still wait until all nodes know of it; `None` in no cluster.
    fn waits_for(&self, action: FleetAction, at: Moment) -> Option<Duration> {
        let whole = self.others.as_ref()?.known_for.saturating_mul(2) + PUBLISHED_WITHIN;
        let claim = self.own.get(action as usize)?.claim;
        let waited = claim.map(|claim| at.uptime.saturating_sub(claim.since.uptime));
        Some(whole.saturating_sub(waited.unwrap_or_default()))
    }

    /// It waits for its turn from now on, or still.
    pub(super) fn claim(&mut self, action: FleetAction, at: Moment) {
        if let Some(own) = self.own.get_mut(action as usize) {
            let since = own.claim.map_or(at, |claim| claim.since);
            own.claim = Some(Claim { since, renewed: at.uptime });
        }
    }

    /// Forgets claims that were not renewed.
    pub(super) fn advance(&mut self, at: Moment) {
        for own in &mut self.own {
            own.claim =
                own.claim.filter(|claim| at.uptime.saturating_sub(claim.renewed) < CLAIM_LASTS);
        }
    }

    /// An act was decided.
    pub(super) fn decided(&mut self, act: &DecisionRecord) {
        if let Some(action) = of_mode(act.mode, &act.action) {
            self.acted(action, act.at.timeline_ms());
        }
    }

    /// It was done, now or in an earlier run.
    pub(super) fn acted(&mut self, action: FleetAction, at_ms: i64) {
        if let Some(own) = self.own.get_mut(action as usize) {
            own.acted_ms = own.acted_ms.max(Some(at_ms));
            own.claim = None;
        }
    }

    /// What this node publishes of an action.
    pub(super) fn own_turn(&self, action: FleetAction, at: Moment) -> FleetTurn {
        let own = self.own.get(action as usize).copied().unwrap_or_default();
        let ago_ms = own.acted_ms.map(|acted| at.timeline_ms().saturating_sub(acted).max(0));
        let ago_ms = ago_ms.filter(|ago| *ago < milliseconds(LONGEST_FLEET_PER));
        #[expect(clippy::cast_precision_loss, reason = "a day at most")]
        FleetTurn {
            claimed: own.claim.map_or(0.0, |claim| seconds(claim.since)),
            acted: ago_ms.map(|ago| (ago / 1_000) as f64),
        }
    }

    /// The state of the limit for an action, for people.
    pub(super) fn explain(
        &self,
        limits: &FleetLimits,
        action: FleetAction,
        at: Moment,
    ) -> Option<String> {
        let limit = limits.of(action)?;
        let Some(others) = &self.others else {
            return Some("this node is in no cluster".to_owned());
        };
        if !others.are_found {
            return Some("the other nodes are not found yet".to_owned());
        }
        let nodes = others.nodes.len() + 1;
        let allowed = counted(limit.nodes.of(nodes) as u64, "node");
        let per = duration_text(limit.per);
        let bound = format!("{allowed} of {nodes} may in {per}");
        let Some(count) = self.count(limit, action, at) else { return Some(bound) };
        let named = |what: &str, names: &[Arc<str>]| match names {
            [] => String::new(),
            names => format!("; {what}: {}", names.join(", ")),
        };
        let waits = self.waits_for(action, at).filter(|wait| !wait.is_zero());
        let waits = waits.map(|wait| format!("; others know of it in {}", duration_text(wait)));
        Some(format!(
            "{bound}{}{}{}",
            named("acted lately or comes first", &count.ahead),
            named("unknown", &count.unknown),
            waits.unwrap_or_default()
        ))
    }
}

impl Guard {
    /// Takes the other nodes as they are known now; `None` in no cluster.
    pub(in crate::policy) fn set_fleet(&mut self, others: Option<OtherNodes>) {
        self.fleet.set_others(others);
    }

    /// Whether other nodes matter.
    pub(in crate::policy) fn bounds_fleet(&self) -> bool {
        !self.rails.fleet.are_none()
    }

    /// Why other nodes hold what may be done otherwise.
    pub(in crate::policy) fn hold_for_fleet(
        &self,
        guarded: &GuardedProposal<'_>,
        at: Moment,
    ) -> Option<HoldReason> {
        let action = bounded(guarded)?;
        self.fleet.hold(&self.rails.fleet, action, at)
    }

    /// This node waits for its turn.
    pub(in crate::policy) fn claim_turn(&mut self, action: FleetAction, at: Moment) {
        self.fleet.claim(action, at);
    }

    /// What this node publishes of an action; `None` before earlier runs are known.
    pub(in crate::policy) fn fleet_turn(
        &self,
        action: FleetAction,
        at: Moment,
    ) -> Option<FleetTurn> {
        (!self.awaits_past).then(|| self.fleet.own_turn(action, at))
    }
}

fn bounded(guarded: &GuardedProposal<'_>) -> Option<FleetAction> {
    let Proposal { mode, action, .. } = guarded.proposal;
    of_mode(mode, action).filter(|_| !guarded.is_free_of_fleet)
}

/// Observe mode waits for nobody's turn.
fn of_mode(mode: Mode, action: &Action) -> Option<FleetAction> {
    FleetAction::of(action).filter(|_| mode == Mode::Enforce)
}

/// Whether an act stops an engine that has lost a rank. It serves nobody any more, on none of its
/// nodes.
pub(in crate::policy) fn stops_lost_rank(action: &Action, store: &SeriesStore) -> bool {
    let Action::StopEngine { engine: Some(engine), .. } = action else { return false };
    store.latest_of("uma_engine_rank_lost", &[("engine", engine)]).value() == Some(1.0)
}

fn is_before(one: (f64, &Arc<str>), other: (f64, &Arc<str>)) -> bool {
    one.0.total_cmp(&other.0).then_with(|| one.1.cmp(other.1)) == Ordering::Less
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 are exact")]
fn seconds(at: Moment) -> f64 {
    at.utc_ms() as f64 / 1_000.0
}
