//! The foreign alerts and nodes that a rule reads, from its text.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::AlertState;

use super::{Labels, Watched};

/// An expression whose value is known from outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Each of these.
    Each(Selector),
    /// So many of them, counted by these labels.
    Count {
        selector: Selector,
        by: Vec<String>,
        more_than: f64,
    },
    /// None of them.
    Absent(Selector),
    /// Some of them, and something else.
    Needs(Selector),
    /// None of them, and something else.
    Forbids(Selector),
    /// A value of each node, or of all of them.
    Nodes {
        fold: Fold,
        metric: String,
        node: Option<String>,
        below: bool,
        bound: f64,
    },
    Other,
}

/// Accepted values of a label.
pub type Selector = BTreeMap<String, String>;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fold {
    Each,
    Min,
    Max,
    Sum,
    Count,
}

/// The text between braces, as `name="value"`.
fn selector(text: &str) -> Selector {
    let inner = text.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let pairs = inner.map(|(inner, _)| inner.split(',')).into_iter().flatten();
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        Some((name.trim().to_owned(), value.trim().trim_matches('"').to_owned()))
    };
    pairs.filter_map(pair).collect()
}

impl Shape {
    pub fn of(text: &str) -> Self {
        if text.contains("ALERTS") { Self::of_alerts(text) } else { Self::of_nodes(text) }
    }

    fn of_alerts(text: &str) -> Self {
        let selector = selector(text);
        let (head, bound) = text.rsplit_once(" > ").unwrap_or((text, ""));
        let bound = bound.parse::<f64>();
        if text.starts_with("absent(") {
            return Self::Absent(selector);
        }
        if text.contains(" unless on() ALERTS") {
            return Self::Forbids(selector);
        }
        if text.starts_with("ALERTS") && text.contains(" and on() ") {
            return Self::Needs(selector);
        }
        if text.starts_with("ALERTS") {
            return Self::Each(selector);
        }
        match bound {
            Ok(more_than) if head.starts_with("count by (team) (ALERTS") => {
                Self::Count { selector, by: vec!["team".to_owned()], more_than }
            }
            Ok(more_than) if head.starts_with("count(ALERTS") => {
                Self::Count { selector, by: Vec::new(), more_than }
            }
            _ => Self::Other,
        }
    }

    fn of_nodes(text: &str) -> Self {
        let below = text.contains(" < ");
        let Some((head, bound)) = text.split_once(if below { " < " } else { " > " }) else {
            return Self::Other;
        };
        let Ok(bound) = bound.parse::<f64>() else { return Self::Other };
        let folds = [("min", Fold::Min), ("max", Fold::Max), ("sum", Fold::Sum)];
        let folds = folds.into_iter().chain([("count", Fold::Count)]);
        let inner = |name: &str| {
            let inner = head.strip_prefix(name)?.strip_prefix(" by (cluster) (")?;
            inner.strip_suffix(')')
        };
        let folded = folds.into_iter().find_map(|(name, fold)| Some((fold, inner(name)?)));
        let (fold, metric) = folded.unwrap_or((Fold::Each, head));
        let node = selector(metric).remove("node");
        let metric = metric.split('{').next().unwrap_or_default().to_owned();
        let is_plain = metric.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if is_plain { Self::Nodes { fold, metric, node, below, bound } } else { Self::Other }
    }
}

/// Expected alerts of a rule: by labels, with a value.
pub type Expected = BTreeMap<Labels, f64>;

/// The labels of a rule's alert for a sample with those labels.
pub fn labels_of_alert(watched: &Watched, sample: &Labels) -> Labels {
    let mut labels = sample.clone();
    labels.insert(Arc::from("alertname"), Arc::clone(&watched.rule.id.alert));
    labels
}

impl Watched {
    /// The difference between expected and actual alerts.
    pub fn differs_from(&self, expected: &Expected, may_be_unknown: bool) -> Option<String> {
        let wrong = match self.is_unknown {
            true => (!may_be_unknown).then(|| "it is unknown".to_owned()),
            false => self.alerts_differ_from(expected),
        };
        wrong.map(|wrong| format!("{wrong}, {expected:?}"))
    }

    /// The difference, if it has lasted longer than an evaluation takes.
    pub fn differs_for_long(
        &mut self,
        wrong: Option<String>,
        now: Duration,
        slowness: Duration,
    ) -> Option<String> {
        let Some(wrong) = wrong else {
            self.differs_since = None;
            return None;
        };
        // During a sleep nothing could be evaluated.
        let passed_over = self.differs_since.filter(|_| slowness < self.patience());
        let since = *self.differs_since.insert(passed_over.unwrap_or(now));
        let is_long = now - since >= self.patience() + slowness;
        is_long.then(|| format!("since {since:?} at {now:?}: {wrong}"))
    }

    fn alerts_differ_from(&self, expected: &Expected) -> Option<String> {
        for (labels, value) in expected {
            if !self.alerts.contains_key(labels) {
                return Some(format!("{labels:?} at {value} is no alert"));
            }
        }
        let is_kept = !self.rule.keep_firing_for.is_zero();
        for (labels, (state, _)) in &self.alerts {
            let may_go_on = is_kept && *state == AlertState::Firing;
            if !expected.contains_key(labels) && !may_go_on {
                return Some(format!("{labels:?} is {state:?}"));
            }
        }
        None
    }
}

#[test]
fn shapes_are_parsed_as_written() {
    let one = |name: &str, value: &str| Selector::from([(name.to_owned(), value.to_owned())]);
    assert_eq!(Shape::of("ALERTS{alertname=\"Hot\"} == 1"), Shape::Each(one("alertname", "Hot")));
    let counted = Shape::Count { selector: Selector::new(), by: Vec::new(), more_than: 3.0 };
    assert_eq!(Shape::of("count(ALERTS) > 3"), counted);
    let forbids = Shape::of("uma_memory_free_bytes < 1 unless on() ALERTS{team=\"a\"}");
    assert_eq!(forbids, Shape::Forbids(one("team", "a")));
    assert_eq!(Shape::of("count(count_over_time(ALERTS{team=\"b\"}[1s])) > 1"), Shape::Other);
    let metric = "uma_memory_free_bytes".to_owned();
    let nodes = |fold, node: Option<&str>| Shape::Nodes {
        fold,
        metric: metric.clone(),
        node: node.map(str::to_owned),
        below: true,
        bound: 10.0,
    };
    let sum = "sum by (cluster) (uma_memory_free_bytes) < 10";
    assert_eq!(Shape::of(sum), nodes(Fold::Sum, None));
    let one = "uma_memory_free_bytes{node=\"x\"} < 10";
    assert_eq!(Shape::of(one), nodes(Fold::Each, Some("x")));
    let two = "uma_memory_free_bytes < on(cluster) group_left 0.5 * max by (cluster) (a)";
    assert_eq!(Shape::of(two), Shape::Other);
}
