//! Invariants of other nodes: their reports, and how long those are known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    AlertState, ClusterNames, ClusterReadings, DecisionRecord, Moment, NodeNews, Observation,
    Reading, RuleId, SeriesKey, Source,
};
use umawarden::policy::Step;
use umawarden::policy::rule::RuleScope;
use umawarden::policy::status::Status;

use super::shapes::{Expected, Fold, Shape, labels_of_alert};
use super::{Checker, Clock, Labels, Violation, Watched, broken};

/// A node that has brought so many series may be ignored.
const MAX_SERIES: usize = 300;

/// Nodes with a series of their own among those of this node.
const MAX_PUBLISHED: usize = 128;

#[derive(Default)]
pub struct Neighbours {
    names: Option<ClusterNames>,
    nodes: BTreeMap<Arc<str>, Neighbour>,
    /// A node has brought more than is kept: the store may be full, or be created again.
    is_worn: bool,
    brought: BTreeMap<Arc<str>, BTreeSet<SeriesKey>>,
    /// The last reading of this node's memory.
    own: BTreeMap<Arc<str>, Reading<f64>>,
}

#[derive(Default)]
struct Neighbour {
    reported: BTreeMap<SeriesKey, Reading<f64>>,
    answered: Option<Duration>,
}

impl Neighbours {
    pub fn begin(&mut self) {
        *self = Self { names: self.names.take(), ..Self::default() };
    }

    pub fn name(&mut self, names: Option<&ClusterNames>) {
        self.names = names.cloned();
    }

    pub fn see(&mut self, clock: &Clock, seen: &Observation) {
        match seen {
            Observation::Readings(readings) if readings.source == Source::Meminfo => {
                let series = readings.schema.series.iter().zip(&readings.values);
                let plain = series.filter(|(key, _)| key.labels.is_empty());
                self.own = plain.map(|(key, value)| (Arc::clone(&key.name), *value)).collect();
            }
            Observation::Cluster(readings) => self.take_readings(clock.at.uptime, readings),
            _ => {}
        }
    }

    fn take_readings(&mut self, now: Duration, readings: &ClusterReadings) {
        let Some(names) = &self.names else { return };
        for report in readings.nodes.iter().filter(|report| report.node != names.node) {
            if let NodeNews::Answered { schema, .. } | NodeNews::Silent { schema, .. } =
                &report.news
            {
                let brought = self.brought.entry(report.node.clone()).or_default();
                brought.extend(schema.series.iter().cloned());
                self.is_worn |= brought.len() > MAX_SERIES;
            }
            match &report.news {
                NodeNews::Gone => _ = self.nodes.remove(&report.node),
                NodeNews::Silent { .. } => _ = self.nodes.entry(report.node.clone()).or_default(),
                NodeNews::Answered { schema, values } => {
                    let node = self.nodes.entry(report.node.clone()).or_default();
                    node.answered = Some(now);
                    let values = values.iter().copied();
                    node.reported = schema.series.iter().cloned().zip(values).collect();
                }
            }
        }
    }

    pub fn own_name(&self) -> Option<Arc<str>> {
        self.names.as_ref().map(|names| Arc::clone(&names.node))
    }

    /// The reason why a node is unknown now, if it is.
    fn is_silent(&self, node: &Neighbour, now: Duration) -> bool {
        let known_for = self.names.as_ref().map_or(Duration::ZERO, |names| names.known_for);
        node.answered.is_none_or(|answered| now.saturating_sub(answered) > known_for)
    }

    /// The values of that metric on all nodes; `None` if one is silent or unknown.
    fn values(
        &self,
        metric: &str,
        of: Option<&str>,
        now: Duration,
    ) -> Option<BTreeMap<Labels, f64>> {
        let names = self.names.as_ref()?;
        let is_meant = |node: &str| of.is_none_or(|of| of == node);
        let mut values = BTreeMap::new();
        let mut add = |labels: Labels, reading: Reading<f64>| match reading {
            Reading::Value(value) => {
                values.insert(labels, value);
                true
            }
            Reading::Unsupported => true,
            Reading::Failed => false,
        };
        if is_meant(&names.node) {
            let own = self.own.get(metric).copied().unwrap_or(Reading::Failed);
            // A value that equals this node's own may be refused.
            let possible = 0.0..=2f64.powi(60);
            if own.value().is_some_and(|value| !possible.contains(&value)) {
                return None;
            }
            let pairs = [("cluster", &names.cluster), ("node", &names.node)];
            let labels = pairs.map(|(name, value)| (Arc::from(name), Arc::clone(value)));
            if !add(labels.into(), own) {
                return None;
            }
        }
        for (_, node) in self.nodes.iter().filter(|(name, _)| is_meant(name)) {
            if self.is_silent(node, now) {
                return None;
            }
            for (key, reading) in node.reported.iter().filter(|(key, _)| *key.name == *metric) {
                if !add(key.labels.iter().cloned().collect(), *reading) {
                    return None;
                }
            }
        }
        Some(values)
    }

    /// Alerts of a rule of that shape now; `None`: unknown from outside.
    fn expected(&self, watched: &Watched, now: Duration) -> Option<Expected> {
        let Shape::Nodes { fold, metric, node, below, bound } = &watched.shape else { return None };
        let values = self.values(metric, node.as_deref(), now)?;
        let names = self.names.as_ref()?;
        // Beyond all numbers even a sum has no value.
        let is_finite = |value: &f64| value.abs() < 1e299;
        if !values
            .values()
            .all(|value| is_finite(value) || !matches!(fold, Fold::Sum) && !value.is_nan())
        {
            return None;
        }
        let cluster = [(Arc::from("cluster"), Arc::clone(&names.cluster))];
        let all = values.values().copied();
        let folded = match fold {
            Fold::Each => values,
            _ if values.is_empty() => values,
            Fold::Min => [(cluster.into(), all.fold(f64::INFINITY, f64::min))].into(),
            Fold::Max => [(cluster.into(), all.fold(f64::NEG_INFINITY, f64::max))].into(),
            Fold::Sum => [(cluster.into(), all.sum())].into(),
            Fold::Count => [(cluster.into(), all.count() as f64)].into(),
        };
        let holds = |value: f64| if *below { value < *bound } else { value > *bound };
        let kept = folded.into_iter().filter(|(_, value)| holds(*value));
        Some(kept.map(|(labels, value)| (labels_of_alert(watched, &labels), value)).collect())
    }

    /// Whether an input of the rule is certainly unknown.
    fn is_unknown(&self, watched: &Watched, now: Duration) -> Option<String> {
        let text = &watched.rule.expr.text;
        let named = |node: &str| text.contains(&format!("node=\"{node}\""));
        // A node that last reported none of the series is not missed.
        let had = |node: &Neighbour| {
            node.answered.is_none() || node.reported.keys().any(|key| text.contains(&*key.name))
        };
        let mut silent = self.nodes.iter().filter(|(name, node)| {
            self.is_silent(node, now) && had(node) && (!text.contains("node=") || named(name))
        });
        silent.next().map(|(name, node)| format!("{name} has answered at {:?}", node.answered))
    }
}

fn is_of_cluster(watched: &Watched) -> bool {
    watched.rule.scope == RuleScope::Cluster
}

/// Whether two values are the same, up to the order of summation.
fn same(one: f64, other: f64) -> bool {
    one.to_bits() == other.to_bits() || (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
}

impl Checker {
    fn unknown_of_nodes(&self, rule: &RuleId, now: Duration) -> Option<String> {
        let watched = self.rules.get(rule).filter(|watched| is_of_cluster(watched))?;
        self.neighbours.is_unknown(watched, now)
    }

    pub(super) fn neighbours_are_respected(
        &mut self,
        clock: &Clock,
        step: &Step,
    ) -> Result<(), Violation> {
        let now = clock.at.uptime;
        for change in &step.alerts {
            let Some(watched) = self.rules.get(&change.rule).filter(|rule| is_of_cluster(rule))
            else {
                continue;
            };
            if let Some(silent) = self.unknown_of_nodes(&change.rule, now) {
                let what = format!("{silent}: {change:?} at {now:?}");
                return broken("a silent node is neither present nor absent", what);
            }
            if self.neighbours.is_worn {
                continue;
            }
            let Some(expected) = self.neighbours.expected(watched, now) else { continue };
            let begins = change.to != AlertState::Inactive;
            let value = expected.get(&change.labels).copied();
            let is_its =
                change.value.value().zip(value).is_some_and(|(one, other)| same(one, other));
            if begins != value.is_some() || begins && !is_its {
                let what = format!("{change:?}: {expected:?} of {:?}", watched.shape);
                return broken("a rule sees the reports of the nodes", what);
            }
        }
        for decision in &step.decisions {
            self.is_of_this_node(decision, now)?;
        }
        self.neighbours_show(clock)
    }

    /// An alert that names a node is handled by that node alone, and by none if that node is
    /// silent.
    fn is_of_this_node(&self, decision: &DecisionRecord, now: Duration) -> Result<(), Violation> {
        let Some(watched) = self.rules.get(&decision.rule).filter(|rule| is_of_cluster(rule))
        else {
            return Ok(());
        };
        if decision.action.is_undo() {
            return Ok(());
        }
        if self.neighbours.names.is_none() {
            return broken("a rule about nodes needs a cluster", format!("{decision:?}"));
        }
        if decision.is_act()
            && let Some(silent) = self.unknown_of_nodes(&decision.rule, now)
        {
            let what = format!("{silent}: {decision:?}");
            return broken("a silent node is neither present nor absent", what);
        }
        if decision.is_act() && !watched.is_firing_here() {
            let what = format!("{:?}: {decision:?}", watched.alerts.keys());
            return broken("a node acts on its own alerts alone", what);
        }
        self.evidence_was_reported(decision, now)
    }

    /// A value in the evidence was reported, and is still known.
    fn evidence_was_reported(
        &self,
        decision: &DecisionRecord,
        now: Duration,
    ) -> Result<(), Violation> {
        let nodes = &self.neighbours;
        for evidence in decision.because.iter().filter(|_| !nodes.is_worn) {
            for (name, node) in &nodes.nodes {
                if !evidence.series.contains(&format!("node=\"{name}\"")) {
                    continue;
                }
                let reported =
                    node.reported.iter().find(|(key, _)| key.to_string() == evidence.series);
                let reported =
                    reported.map(|(_, reading)| *reading).filter(|_| !nodes.is_silent(node, now));
                let is_reported = match (reported, evidence.value) {
                    (Some(Reading::Value(reported)), Reading::Value(value)) => {
                        reported.to_bits() == value.to_bits()
                    }
                    (
                        None | Some(Reading::Failed | Reading::Unsupported),
                        Reading::Value(value),
                    ) => value.is_nan(),
                    (Some(Reading::Value(_)), _) => false,
                    _ => true,
                };
                if !is_reported {
                    let what =
                        format!("{name} has reported {reported:?}: {evidence:?} of {decision:?}");
                    return broken("evidence is a recent report of a node", what);
                }
            }
        }
        Ok(())
    }

    /// A rule that reads other nodes has the state that they give it, from its next evaluation on.
    fn neighbours_show(&mut self, clock: &Clock) -> Result<(), Violation> {
        let now = clock.at.uptime;
        let nodes = &self.neighbours;
        for (id, watched) in &mut self.rules {
            if !is_of_cluster(watched) {
                continue;
            }
            let is_known = self.has_measured && !nodes.is_worn;
            let expected = nodes.expected(watched, now).filter(|_| is_known);
            let wrong = expected.and_then(|expected| {
                // Without any of its inputs the reason is unknown.
                let may_be_unknown = expected.is_empty();
                watched.differs_from(&expected, may_be_unknown)
            });
            if let Some(wrong) = watched.differs_for_long(wrong, now, self.slowness) {
                let what = format!("{id} {wrong}");
                return broken("a rule has the state that the nodes give it", what);
            }
        }
        Ok(())
    }

    pub(super) fn check_neighbours(&self, at: Moment, status: &Status) -> Result<(), Violation> {
        const INVARIANT: &str = "nodes are shown as they reported";
        let published =
            status.series.iter().filter(|key| *key.name == *"uma_cluster_peer_up").count();
        if published > MAX_PUBLISHED {
            return broken(
                "nodes that come and go are bounded",
                format!("{published} are published"),
            );
        }
        let nodes = &self.neighbours;
        let (Some(_), Some(cluster)) = (&nodes.names, &status.cluster) else {
            return match nodes.names.is_none() == status.cluster.is_none() {
                true => Ok(()),
                false => broken(INVARIANT, format!("{:?}", status.cluster)),
            };
        };
        let shown: Vec<&Arc<str>> = cluster.nodes.iter().map(|shown| &shown.node).collect();
        if !shown.iter().copied().eq(nodes.nodes.keys()) {
            return broken(INVARIANT, format!("{shown:?} of {:?}", nodes.nodes.keys()));
        }
        let is_certain = !nodes.is_worn && self.has_measured && self.failed.is_empty();
        for shown in cluster.nodes.iter().filter(|_| is_certain) {
            let node = &nodes.nodes[&shown.node];
            let is_silent = nodes.is_silent(node, at.uptime);
            let free = shown.memory.available;
            let is_wrong = is_silent && matches!(free, Reading::Value(_));
            if shown.unknown.is_some() != is_silent || is_wrong {
                let what = format!("{shown:?}, answered at {:?} now {at:?}", node.answered);
                return broken(INVARIANT, what);
            }
        }
        Ok(())
    }
}
