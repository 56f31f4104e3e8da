//! A trace of an expression: the value of each of its parts at one instant.

use super::eval;
use super::functions::Function;
use super::matcher::MatchOp;
use super::syntax::{AggregateOp, BinaryOp, Kind, Node, ValueType};
use super::{EvalTime, Evaluated, Expr, Labels, Value};
use crate::SeriesKey;
use crate::store::SeriesStore;

/// The reason for parts that need past samples, if there are none.
const NO_PAST: &str = "only present values are kept, and this needs past ones";

/// A part of an expression, with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// Its text, in one line.
    pub text: String,
    /// The relation of its value to its parts.
    pub relation: Relation,
    /// Whether its numbers are bytes.
    pub is_bytes: bool,
    /// The value at the time of the evaluation.
    pub value: TracedValue,
    /// Whether it has a result; `None`: unknown. It may be known even if the value is not.
    pub yields: Option<bool>,
    /// The part that decides, if this one is unknown without effect.
    pub decided_by: Option<&'static str>,
    /// Its parts, without literal numbers.
    pub parts: Vec<Self>,
}

/// The required knowledge of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Each element, with its value.
    Value,
    /// Whether there is any element.
    Existence,
}

/// The relation of a value to its parts, to explain a missing result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Both must have a result.
    And,
    /// Either must have a result.
    Or,
    /// The second removes elements of the first.
    Unless,
    /// It filters by a comparison.
    Compares,
    /// Its result is that of its parts, in another form.
    Other,
}

/// The value of a part.
#[derive(Clone, Debug, PartialEq)]
pub enum TracedValue {
    /// A number or an instant vector.
    Known(Value),
    /// The samples of each series in a range.
    Range(Vec<TracedRange>),
    /// Unknown, with the reasons.
    Unknown(Vec<String>),
    /// It cannot be computed from the data.
    Failed(String),
}

/// The samples of one series in a range.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedRange {
    /// The series' labels.
    pub labels: Labels,
    /// Number of samples; the other fields are 0 where there is none.
    pub count: usize,
    /// Value of the oldest sample.
    pub first: f64,
    /// Value of the newest sample.
    pub last: f64,
    /// Smallest value.
    pub least: f64,
    /// Greatest value.
    pub greatest: f64,
}

impl TracedValue {
    /// Whether it certainly has no result.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Known(Value::Vector(samples)) if samples.is_empty())
    }

    /// Whether both are unknown with a common reason.
    fn shares_reason(&self, other: &Self) -> bool {
        let (Self::Unknown(one), Self::Unknown(other)) = (self, other) else { return false };
        one.iter().any(|reason| other.contains(reason))
    }
}

impl Traced {
    /// Whether the required knowledge is complete.
    fn is_decided(&self, need: Need) -> bool {
        match &self.value {
            TracedValue::Unknown(_) => need == Need::Existence && self.yields.is_some(),
            _ => true,
        }
    }

    /// Sets the deciding part for all unknown parts below.
    fn leave_out(&mut self, decided_by: &'static str) {
        if matches!(self.value, TracedValue::Unknown(_)) {
            self.decided_by.get_or_insert(decided_by);
        }
        self.parts.iter_mut().for_each(|part| part.leave_out(decided_by));
    }

    /// The parts that explain a missing result: of an `and` the missing side, of an `or` both.
    pub fn culprits(&self) -> Vec<&Self> {
        if !self.value.is_nothing() {
            return Vec::new();
        }
        let empty: Vec<&Self> = self.parts.iter().filter(|part| part.value.is_nothing()).collect();
        match self.relation {
            Relation::And | Relation::Or if !empty.is_empty() => {
                empty.into_iter().flat_map(Self::culprits).collect()
            }
            Relation::Unless | Relation::Compares | Relation::Other => match empty.as_slice() {
                [only] if self.parts.first() == Some(*only) => only.culprits(),
                _ => vec![self],
            },
            Relation::And | Relation::Or => vec![self],
        }
    }
}

impl Expr {
    /// Traces the expression. `text` is its source. Without past samples, parts that need them are
    /// unknown.
    pub fn trace(&self, text: &str, store: &SeriesStore, at: EvalTime, has_past: bool) -> Traced {
        Tracer { text, store, at, has_past }.trace(self.root.bare(), Need::Value)
    }

    /// As [`Self::trace`], if only the existence of a result matters.
    pub fn trace_aim(
        &self,
        text: &str,
        store: &SeriesStore,
        at: EvalTime,
        has_past: bool,
    ) -> Traced {
        Tracer { text, store, at, has_past }.trace(self.root.bare(), Need::Existence)
    }

    /// The series, if the part is a bare selector of one.
    pub fn as_series(&self) -> Option<SeriesKey> {
        let Kind::Selector(selector) = &self.root.bare().kind else { return None };
        let is_label = |op| op == MatchOp::Equal;
        if selector.offset_ms != 0 || !selector.matchers.iter().all(|label| is_label(label.op)) {
            return None;
        }
        let labels: Vec<(&str, &str)> =
            selector.matchers.iter().map(|label| (&*label.label, &*label.value)).collect();
        Some(SeriesKey::new(&selector.name, &labels))
    }
}

struct Tracer<'t> {
    text: &'t str,
    store: &'t SeriesStore,
    at: EvalTime,
    has_past: bool,
}

impl Tracer<'_> {
    fn trace(&self, node: &Node, need: Need) -> Traced {
        let (value, yields) = self.value(node);
        let mut traced = Traced {
            text: one_line(self.text.get(node.span.clone()).unwrap_or_default()),
            relation: relation(node),
            is_bytes: is_bytes(node),
            value,
            yields,
            decided_by: None,
            parts: Vec::new(),
        };
        let is_decided = traced.is_decided(need);
        for (index, part) in node.children().into_iter().map(Node::bare).enumerate() {
            if is_literal(part) {
                continue;
            }
            let need = part_need(node, index, need);
            let mut part = self.trace(part, need);
            if !part.is_decided(need) && (is_decided || !traced.value.shares_reason(&part.value)) {
                part.leave_out(what_decides(traced.relation, index));
            }
            part.is_bytes |= traced.is_bytes && has_unit_of_operands(node);
            traced.parts.push(part);
        }
        traced
    }

    fn value(&self, node: &Node) -> (TracedValue, Option<bool>) {
        if !self.has_past && looks_back(node) {
            return (TracedValue::Unknown(vec![NO_PAST.to_owned()]), None);
        }
        if let Kind::Range { selector, range_ms } = &node.kind {
            let value = match eval::windows(selector, *range_ms, self.store, self.at) {
                Ok(ranges) => TracedValue::Range(ranges),
                Err(reasons) => TracedValue::Unknown(reasons),
            };
            return (value, None);
        }
        match eval::evaluate_root(node, self.store, self.at) {
            Ok(evaluation) => match evaluation.evaluated {
                Evaluated::Known(value) => (TracedValue::Known(value), evaluation.yields),
                Evaluated::Unknown(reasons) => (TracedValue::Unknown(reasons), evaluation.yields),
            },
            Err(error) => (TracedValue::Failed(error), None),
        }
    }
}

/// The required knowledge of a part, from that of its parent.
fn part_need(node: &Node, index: usize, need: Need) -> Need {
    match &node.kind {
        Kind::Binary(binary) => match (binary.op, index) {
            (BinaryOp::And | BinaryOp::Unless, 1) => Need::Existence,
            (BinaryOp::And | BinaryOp::Or | BinaryOp::Unless, _) => need,
            _ => Need::Value,
        },
        Kind::Call { function: Function::Absent, .. } => Need::Existence,
        _ => Need::Value,
    }
}

fn what_decides(relation: Relation, index: usize) -> &'static str {
    match (relation, index) {
        (Relation::And, _) => "the other side of `and` decides",
        (Relation::Or, 0) => "the right side of `or` decides",
        (Relation::Or, _) => "the left side of `or` decides",
        (Relation::Unless, _) => "the other side of `unless` decides",
        _ => "the rest decides",
    }
}

fn is_literal(node: &Node) -> bool {
    match &node.kind {
        Kind::Number(_) | Kind::Text(_) => true,
        Kind::Unary { operand, .. } => is_literal(operand.bare()),
        Kind::Binary(binary) => is_literal(binary.left.bare()) && is_literal(binary.right.bare()),
        _ => false,
    }
}

fn looks_back(node: &Node) -> bool {
    match &node.kind {
        Kind::Range { .. } => true,
        Kind::Selector(selector) => selector.offset_ms != 0,
        _ => node.children().into_iter().any(looks_back),
    }
}

fn relation(node: &Node) -> Relation {
    match &node.kind {
        Kind::Binary(binary) => match binary.op {
            BinaryOp::And => Relation::And,
            BinaryOp::Or => Relation::Or,
            BinaryOp::Unless => Relation::Unless,
            op if op.is_comparison() && !binary.returns_bool => Relation::Compares,
            _ => Relation::Other,
        },
        _ => Relation::Other,
    }
}

/// Whether both operands have the unit of the result: `a_bytes + 60 * deriv(a_bytes[1m])`.
fn has_unit_of_operands(node: &Node) -> bool {
    let Kind::Binary(binary) = &node.kind else { return false };
    matches!(binary.op, BinaryOp::Add | BinaryOp::Subtract) || binary.op.is_comparison()
}

/// Whether a part's numbers are bytes, by names and operators.
fn is_bytes(node: &Node) -> bool {
    match &node.kind {
        Kind::Selector(selector) | Kind::Range { selector, .. } => {
            selector.name.ends_with("_bytes")
        }
        Kind::Unary { operand, .. } => is_bytes(operand),
        Kind::Parentheses(inner) => is_bytes(inner),
        Kind::Binary(binary) => {
            let sides = [&binary.left, &binary.right].map(is_bytes);
            match binary.op {
                BinaryOp::Add | BinaryOp::Subtract => sides[0] || sides[1],
                BinaryOp::Multiply => sides[0] != sides[1],
                BinaryOp::Divide | BinaryOp::Remainder => sides[0] && !sides[1],
                BinaryOp::Power | BinaryOp::Atan2 => false,
                BinaryOp::Or => sides[0] && sides[1],
                op if op.is_comparison() && binary.returns_bool => false,
                op if op.is_comparison() && binary.left.value_type() == ValueType::Scalar => {
                    sides[1]
                }
                _ => sides[0],
            }
        }
        Kind::Aggregate(aggregate) => {
            !matches!(aggregate.op, AggregateOp::Count | AggregateOp::Group | AggregateOp::Stdvar)
                && is_bytes(&aggregate.operand)
        }
        Kind::Call { function, arguments, .. } => {
            keeps_unit(*function) && arguments.iter().any(is_bytes)
        }
        Kind::Number(_) | Kind::Text(_) => false,
    }
}

fn keeps_unit(function: Function) -> bool {
    !matches!(
        function,
        Function::Absent
            | Function::AbsentOverTime
            | Function::Changes
            | Function::CountOverTime
            | Function::Deriv
            | Function::Exp
            | Function::HistogramQuantile
            | Function::Irate
            | Function::Ln
            | Function::Log10
            | Function::Log2
            | Function::PresentOverTime
            | Function::Rate
            | Function::Resets
            | Function::Sgn
            | Function::Sqrt
            | Function::StdvarOverTime
            | Function::Time
            | Function::Timestamp
    )
}

/// On one line with single spaces, unless it has quotes.
fn one_line(text: &str) -> String {
    if !text.contains('\n') || text.contains('#') {
        return text.replace('\n', " ");
    }
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}
