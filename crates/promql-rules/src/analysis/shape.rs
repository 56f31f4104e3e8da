//! The possible labels of the elements of a vector.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::KnownSeries;
use super::super::functions::Function;
use super::super::matcher::{MatchOp, Matcher, NAME_LABEL};
use super::super::syntax::{
    Aggregate, AggregateOp, Binary, BinaryOp, Kind, Matching, Node, Selector, ValueType,
};

/// The possible values of a label; "" means that the label is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PossibleValues {
    /// Any value, or absent.
    Any,
    /// Any value, not absent.
    Present,
    /// One of these.
    OneOf(BTreeSet<Arc<str>>),
}

impl PossibleValues {
    fn absent() -> Self {
        Self::one("")
    }

    fn one(value: &str) -> Self {
        Self::OneOf(BTreeSet::from([Arc::from(value)]))
    }

    /// The intersection of two sets.
    fn meet(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Any, possible) | (possible, Self::Any) => possible.clone(),
            (Self::Present, Self::Present) => Self::Present,
            (Self::Present, Self::OneOf(values)) | (Self::OneOf(values), Self::Present) => {
                Self::OneOf(values.iter().filter(|value| !value.is_empty()).cloned().collect())
            }
            (Self::OneOf(one), Self::OneOf(other)) => Self::OneOf(one & other),
        }
    }

    /// The union of two sets.
    fn join(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::OneOf(one), Self::OneOf(other)) => Self::OneOf(one | other),
            (Self::Any, _) | (_, Self::Any) => Self::Any,
            (one, other) if one.can_be_absent() || other.can_be_absent() => Self::Any,
            _ => Self::Present,
        }
    }

    fn can_be_absent(&self) -> bool {
        match self {
            Self::Any => true,
            Self::Present => false,
            Self::OneOf(values) => values.iter().any(|value| value.is_empty()),
        }
    }

    fn is_impossible(&self) -> bool {
        matches!(self, Self::OneOf(values) if values.is_empty())
    }

    fn is_determined(&self) -> bool {
        matches!(self, Self::OneOf(values) if values.len() == 1)
    }

    /// The values as text, for messages.
    pub(super) fn read(&self) -> String {
        match self {
            Self::Any => "anything".to_owned(),
            Self::Present => "always there".to_owned(),
            Self::OneOf(values) => {
                let value = |value: &Arc<str>| match value.is_empty() {
                    true => "absent".to_owned(),
                    false => format!("\"{value}\""),
                };
                values.iter().map(value).collect::<Vec<_>>().join(" or ")
            }
        }
    }
}

/// The labels of a vector's elements.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// All others are absent.
    labels: BTreeMap<Arc<str>, PossibleValues>,
    /// Whether there is at most one element at any time.
    pub(super) single: bool,
}

impl Shape {
    fn single() -> Self {
        Self { labels: BTreeMap::new(), single: true }
    }

    pub(super) fn of(&self, label: &str) -> PossibleValues {
        self.labels.get(label).cloned().unwrap_or_else(PossibleValues::absent)
    }

    /// The labels that elements may have.
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        self.labels.keys().cloned().collect()
    }

    /// A label that no value can satisfy.
    pub(super) fn impossible(&self) -> Option<&str> {
        let found = self.labels.iter().find(|(_, possible)| possible.is_impossible());
        found.map(|(label, _)| &**label)
    }

    /// Element sets are unique by their labels, so one label set is one element.
    fn settled(mut self) -> Self {
        self.single = self.single || self.labels.values().all(PossibleValues::is_determined);
        self
    }

    fn keep(&self, keeps: impl Fn(&str) -> bool) -> BTreeMap<Arc<str>, PossibleValues> {
        let kept = self.labels.iter().filter(|(label, _)| keeps(label));
        kept.map(|(label, possible)| (Arc::clone(label), possible.clone())).collect()
    }

    fn united(
        &self,
        other: &Self,
        unite: fn(&PossibleValues, &PossibleValues) -> PossibleValues,
    ) -> Self {
        let names: BTreeSet<&Arc<str>> = self.labels.keys().chain(other.labels.keys()).collect();
        let labels = names.into_iter().map(|name| {
            let possible = unite(&self.of(name), &other.of(name));
            (Arc::clone(name), possible)
        });
        Self { labels: labels.collect(), single: false }
    }
}

/// The shape of a vector; of a number, that of a single element without labels. `None`: a metric is
/// unknown, or of another exporter.
pub(crate) fn shape(node: &Node, known: &dyn KnownSeries) -> Option<Shape> {
    match &node.kind {
        Kind::Number(_) | Kind::Text(_) => Some(Shape::single()),
        Kind::Selector(inner) | Kind::Range { selector: inner, .. } => selector(inner, known),
        Kind::Unary { operand, .. } | Kind::Parentheses(operand) => shape(operand, known),
        Kind::Aggregate(inner) => aggregate(inner, known),
        Kind::Binary(inner) => binary(inner, known),
        Kind::Call { function, arguments, .. } => call(*function, arguments, known),
    }
}

fn selector(selector: &Selector, known: &dyn KnownSeries) -> Option<Shape> {
    let name = &*selector.name;
    if known.has_other_labels(name) {
        return None;
    }
    let labels = known.labels(name)?.into_iter().map(|label| {
        let of_label = |matcher: &&Matcher| *matcher.label == *label;
        let matchers: Vec<&Matcher> = selector.matchers.iter().filter(of_label).collect();
        let passes = |value: &str| matchers.iter().all(|matcher| matcher.passes(value));
        let exact = matchers.iter().find(|matcher| matcher.op == MatchOp::Equal);
        let possible = match (known.values(name, label), exact) {
            (Some(values), _) => {
                let passing = values.iter().filter(|value| passes(value));
                PossibleValues::OneOf(passing.map(|value| Arc::from(*value)).collect())
            }
            (None, Some(exact)) if passes(&exact.value) && !exact.value.is_empty() => {
                PossibleValues::one(&exact.value)
            }
            (None, Some(exact)) if exact.value.is_empty() && known.may_lack(name, label) => {
                PossibleValues::absent()
            }
            (None, Some(_)) => PossibleValues::OneOf(BTreeSet::new()),
            (None, None) if known.may_lack(name, label) => PossibleValues::Any,
            (None, None) => PossibleValues::Present,
        };
        (Arc::from(label), possible)
    });
    Some(Shape { labels: labels.collect(), single: false }.settled())
}

fn aggregate(aggregate: &Aggregate, known: &dyn KnownSeries) -> Option<Shape> {
    let operand = shape(&aggregate.operand, known)?;
    if matches!(aggregate.op, AggregateOp::Topk | AggregateOp::Bottomk) {
        return Some(operand);
    }
    let named = |label: &str| aggregate.grouping.iter().any(|named| **named == *label);
    let labels = operand.keep(|label| named(label) != aggregate.without);
    Some(Shape { labels, single: operand.single }.settled())
}

fn call(function: Function, arguments: &[Node], known: &dyn KnownSeries) -> Option<Shape> {
    if function.returns() == ValueType::Scalar || function == Function::Vector {
        return Some(Shape::single());
    }
    let is_vector =
        |node: &&Node| matches!(node.value_type(), ValueType::Vector | ValueType::Range);
    let operand = shape(arguments.iter().find(is_vector)?, known)?;
    let any = |label: &Arc<str>| (Arc::clone(label), PossibleValues::Any);
    Some(match function {
        Function::Absent | Function::AbsentOverTime => {
            Shape { labels: operand.labels.keys().map(any).collect(), single: true }
        }
        Function::LabelReplace | Function::LabelJoin => {
            let mut labels = operand.labels;
            if let Some((label, _)) = super::super::typing::text(arguments, 1) {
                labels.insert(Arc::from(label), PossibleValues::Any);
            }
            Shape { labels, single: operand.single }
        }
        _ => operand,
    })
}

fn binary(binary: &Binary, known: &dyn KnownSeries) -> Option<Shape> {
    let (left, right) = (shape(&binary.left, known)?, shape(&binary.right, known)?);
    let scalar = |node: &Node| node.value_type() == ValueType::Scalar;
    if scalar(&binary.left) {
        return Some(right);
    }
    if scalar(&binary.right) || matches!(binary.op, BinaryOp::And | BinaryOp::Unless) {
        return Some(left);
    }
    if binary.op == BinaryOp::Or {
        return Some(left.united(&right, PossibleValues::join));
    }
    if let Some(group) = &binary.matching.group {
        let (mut many, one) = if group.left { (left, right) } else { (right, left) };
        for label in &group.include {
            many.labels.insert(Arc::clone(label), one.of(label));
        }
        return Some(many);
    }
    let both = left.united(&right, PossibleValues::meet);
    let labels = both.keep(|label| is_matched(&binary.matching, label));
    Some(Shape { labels, single: left.single || right.single }.settled())
}

/// Whether elements must agree on a label to match.
fn is_matched(matching: &Matching, label: &str) -> bool {
    matching.labels.iter().any(|named| **named == *label) == matching.on
}

/// Why no elements of two vectors can ever match; `None` if some may.
pub(super) fn mismatch(left: &Shape, right: &Shape, matching: &Matching) -> Option<String> {
    let both = left.united(right, PossibleValues::meet);
    let found = both
        .labels
        .iter()
        .find(|(label, possible)| is_matched(matching, label) && possible.is_impossible());
    let (label, _) = found?;
    let sides = [left, right].map(|side| side.of(label));
    if sides[1] == PossibleValues::absent() {
        return Some(format!("the label {label} is only on the left"));
    }
    if sides[0] == PossibleValues::absent() {
        return Some(format!("the label {label} is only on the right"));
    }
    let (left, right) = (sides[0].read(), sides[1].read());
    Some(format!("the label {label} is {left} on the left and {right} on the right"))
}

/// Whether two single elements always match, if both exist.
pub(super) fn surely_match(left: &Shape, right: &Shape, matching: &Matching) -> bool {
    let both = left.united(right, PossibleValues::meet);
    let by_name = matching.on && matching.labels.iter().any(|label| &**label == NAME_LABEL);
    !by_name
        && left.single
        && right.single
        && both.labels.keys().filter(|label| is_matched(matching, label)).all(|label| {
            let left = left.of(label);
            left.is_determined() && left == right.of(label)
        })
}
