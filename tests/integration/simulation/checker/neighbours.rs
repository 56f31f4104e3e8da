//! What must hold of other nodes: what they said, and for how long that is known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    AlertState, ClusterNames, ClusterReadings, Decision, Moment, NodeNews, Observation, Reading,
    RuleId, SeriesKey, Source, Verdict,
};
use umawarden::policy::Step;
use umawarden::policy::rule::RuleScope;
use umawarden::policy::status::Status;

use super::shapes::{Expected, Fold, Shape, labels_of_alert};
use super::{Checker, Clock, Labels, Violation, Watched, broken};

/// Whoever has brought so many series may not be listened to any more.
const MOST_SERIES: usize = 300;

/// Nodes that have a series of their own among this node's.
const MOST_TOLD: usize = 128;

#[derive(Default)]
pub struct Neighbours {
    names: Option<ClusterNames>,
    nodes: BTreeMap<Arc<str>, Neighbour>,
    /// Somebody has brought more than is kept: the store may be full, or be made anew.
    is_worn: bool,
    brought: BTreeMap<Arc<str>, BTreeSet<SeriesKey>>,
    /// This node's memory, as it was read last.
    own: BTreeMap<Arc<str>, Reading<f64>>,
}

#[derive(Default)]
struct Neighbour {
    told: BTreeMap<SeriesKey, Reading<f64>>,
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
            Observation::Cluster(readings) => self.hear(clock.at.uptime, readings),
            _ => {}
        }
    }

    fn hear(&mut self, now: Duration, readings: &ClusterReadings) {
        let Some(names) = &self.names else { return };
        for told in readings.nodes.iter().filter(|told| told.node != names.node) {
            if let NodeNews::Answered { schema, .. } | NodeNews::Silent { schema, .. } = &told.news
            {
                let brought = self.brought.entry(told.node.clone()).or_default();
                brought.extend(schema.series.iter().cloned());
                self.is_worn |= brought.len() > MOST_SERIES;
            }
            match &told.news {
                NodeNews::Gone => _ = self.nodes.remove(&told.node),
                NodeNews::Silent { .. } => _ = self.nodes.entry(told.node.clone()).or_default(),
                NodeNews::Answered { schema, values } => {
                    let node = self.nodes.entry(told.node.clone()).or_default();
                    node.answered = Some(now);
                    let values = values.iter().copied();
                    node.told = schema.series.iter().cloned().zip(values).collect();
                }
            }
        }
    }

    pub fn own_name(&self) -> Option<Arc<str>> {
        self.names.as_ref().map(|names| Arc::clone(&names.node))
    }

    /// Why nothing is known of a node now, if that is so.
    fn is_silent(&self, node: &Neighbour, now: Duration) -> bool {
        let known_for = self.names.as_ref().map_or(Duration::ZERO, |names| names.known_for);
        node.answered.is_none_or(|answered| now.saturating_sub(answered) > known_for)
    }

    /// What all nodes say of that metric, if nobody is silent or does not know.
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
            // What this node's own files say may be refused.
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
            for (key, reading) in node.told.iter().filter(|(key, _)| *key.name == *metric) {
                if !add(key.labels.iter().cloned().collect(), *reading) {
                    return None;
                }
            }
        }
        Some(values)
    }

    /// What the alerts of a rule of such a shape are now; `None`: nobody can tell.
    fn expected(&self, watched: &Watched, now: Duration) -> Option<Expected> {
        let Shape::Nodes { fold, metric, node, below, bound } = &watched.shape else { return None };
        let values = self.values(metric, node.as_deref(), now)?;
        let names = self.names.as_ref()?;
        // Beyond all numbers even a sum is none.
        let is_told = |value: &f64| value.abs() < 1e299;
        if !values
            .values()
            .all(|value| is_told(value) || !matches!(fold, Fold::Sum) && !value.is_nan())
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
        let held = folded.into_iter().filter(|(_, value)| holds(*value));
        Some(held.map(|(labels, value)| (labels_of_alert(watched, &labels), value)).collect())
    }

    /// Whether something that the rule reads is certainly not known.
    fn is_unknown(&self, watched: &Watched, now: Duration) -> Option<String> {
        let text = &watched.rule.expr.text;
        let named = |node: &str| text.contains(&format!("node=\"{node}\""));
        // Whoever has last said that it has none of what is read is not missed.
        let had = |node: &Neighbour| {
            node.answered.is_none() || node.told.keys().any(|key| text.contains(&*key.name))
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

/// Whether two values are the same, but for the order in which they were added up.
fn same(one: f64, other: f64) -> bool {
    one.to_bits() == other.to_bits() || (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
}

impl Checker {
    fn unknown_of_nodes(&self, rule: &RuleId, now: Duration) -> Option<String> {
        let watched = self.rules.get(rule).filter(|watched| is_of_cluster(watched))?;
        self.neighbours.is_unknown(watched, now)
    }

    pub(super) fn neighbours_are_heeded(
        &mut self,
        clock: &Clock,
        said: &Step,
    ) -> Result<(), Violation> {
        let now = clock.at.uptime;
        for change in &said.alerts {
            let Some(watched) = self.rules.get(&change.rule).filter(|rule| is_of_cluster(rule))
            else {
                continue;
            };
            if let Some(silent) = self.unknown_of_nodes(&change.rule, now) {
                let what = format!("{silent}: {change:?} at {now:?}");
                return broken("who is silent is neither there nor absent", what);
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
                return broken("a rule sees what the nodes have said", what);
            }
        }
        for decision in &said.decisions {
            self.is_of_this_node(decision, now)?;
        }
        self.neighbours_show(clock)
    }

    /// Where an alert names a node, only that one acts; and nobody does for one that is silent.
    fn is_of_this_node(&self, decision: &Decision, now: Duration) -> Result<(), Violation> {
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
        if decision.verdict == Verdict::Act
            && let Some(silent) = self.unknown_of_nodes(&decision.rule, now)
        {
            let what = format!("{silent}: {decision:?}");
            return broken("who is silent is neither there nor absent", what);
        }
        if decision.verdict == Verdict::Act && !watched.is_firing_here() {
            let what = format!("{:?}: {decision:?}", watched.alerts.keys());
            return broken("a node acts on its own alerts alone", what);
        }
        self.evidence_was_told(decision, now)
    }

    /// What is named as evidence was said, and is known still.
    fn evidence_was_told(&self, decision: &Decision, now: Duration) -> Result<(), Violation> {
        let nodes = &self.neighbours;
        for evidence in decision.because.iter().filter(|_| !nodes.is_worn) {
            for (name, node) in &nodes.nodes {
                if !evidence.series.contains(&format!("node=\"{name}\"")) {
                    continue;
                }
                let told = node.told.iter().find(|(key, _)| key.to_string() == evidence.series);
                let told =
                    told.map(|(_, reading)| *reading).filter(|_| !nodes.is_silent(node, now));
                let is_told = match (told, evidence.value) {
                    (Some(Reading::Value(told)), Reading::Value(value)) => {
                        told.to_bits() == value.to_bits()
                    }
                    (
                        None | Some(Reading::Failed | Reading::Unsupported),
                        Reading::Value(value),
                    ) => value.is_nan(),
                    (Some(Reading::Value(_)), _) => false,
                    _ => true,
                };
                if !is_told {
                    let what = format!("{name} has said {told:?}: {evidence:?} of {decision:?}");
                    return broken("evidence is what a node has said of late", what);
                }
            }
        }
        Ok(())
    }

    /// Whoever reads them stands, when it was evaluated next, where they have it stand.
    fn neighbours_show(&mut self, clock: &Clock) -> Result<(), Violation> {
        let now = clock.at.uptime;
        let nodes = &self.neighbours;
        for (id, watched) in &mut self.rules {
            if !is_of_cluster(watched) {
                continue;
            }
            let is_told = self.has_measured && !nodes.is_worn;
            let expected = nodes.expected(watched, now).filter(|_| is_told);
            let wrong = expected.and_then(|expected| {
                // Where there is none of what it reads, nobody can say why.
                let may_be_unknown = expected.is_empty();
                watched.differs_from(&expected, may_be_unknown)
            });
            if let Some(wrong) = watched.differs_for_long(wrong, now, self.slowness) {
                let what = format!("{id} {wrong}");
                return broken("a rule stands as the nodes have it", what);
            }
        }
        Ok(())
    }

    pub(super) fn look_at_neighbours(&self, at: Moment, status: &Status) -> Result<(), Violation> {
        const INVARIANT: &str = "what is shown of nodes is what they said";
        let told = status.series.iter().filter(|key| *key.name == *"uma_cluster_peer_up").count();
        if told > MOST_TOLD {
            return broken("nodes that come and go are bounded", format!("{told} are told of"));
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
        let is_judged = !nodes.is_worn && self.has_measured && self.failed.is_empty();
        for shown in cluster.nodes.iter().filter(|_| is_judged) {
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
