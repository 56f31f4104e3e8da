//! Evaluates a tree over the store. The height of the tree is bounded, so this may recurse.

mod aggregate;
mod binary;
mod histogram;
mod instant;
mod numbers;
mod over_time;
mod relabel;
mod select;
mod sums;

use std::collections::HashSet;

use super::functions::Function;
use super::syntax::{Kind, Node, Selector};
use super::{EvalTime, Evaluated, Labels, Sample, TracedRange, Value};
use crate::model::SeriesKey;
use crate::policy::store::{SeriesStore, Window};

/// The most elements that a vector may have.
const MAX_ELEMENTS: usize = 20_000;

const SAME_LABELSET: &str = "vector cannot contain metrics with the same labelset";

pub(super) use aggregate::reduced;
pub(super) use numbers::{arithmetic, compares, scalars};
pub(super) use over_time::{Range, apply};
pub(super) use select::matching_series;

/// Evaluates a whole expression.
pub(super) fn evaluate(
    root: &Node,
    store: &SeriesStore,
    at: EvalTime,
) -> Result<Evaluated, String> {
    let mut evaluator = Evaluator { store, at, missing: Vec::new() };
    let value = evaluator.value(root);
    if evaluator.missing.is_empty() {
        return value.map(Evaluated::Known);
    }
    let mut reasons: Vec<String> = Vec::new();
    for missing in evaluator.missing {
        if !reasons.contains(&missing.reason) {
            reasons.push(missing.reason);
        }
    }
    Ok(Evaluated::Unknown(reasons))
}

/// The samples in a range, series by series, or why they cannot be told.
pub(super) fn windows(
    selector: &Selector,
    range_ms: i64,
    store: &SeriesStore,
    at: EvalTime,
) -> Result<Vec<TracedRange>, Vec<String>> {
    let mut evaluator = Evaluator { store, at, missing: Vec::new() };
    let windows = evaluator.windows(selector, range_ms);
    if !evaluator.missing.is_empty() {
        return Err(evaluator.missing.into_iter().map(|missing| missing.reason).collect());
    }
    let range = |(key, window): (&SeriesKey, Window<'_>)| {
        let values = || window.points().map(|point| point.value);
        TracedRange {
            labels: key.labels.clone(),
            count: values().count(),
            first: values().next().unwrap_or_default(),
            last: values().next_back().unwrap_or_default(),
            least: if values().count() > 0 { sums::least(values()) } else { 0.0 },
            greatest: if values().count() > 0 { sums::greatest(values()) } else { 0.0 },
        }
    };
    Ok(windows.into_iter().map(range).collect())
}

struct Evaluator<'s> {
    store: &'s SeriesStore,
    at: EvalTime,
    missing: Vec<Missing>,
}

/// A reading that the result would need.
struct Missing {
    /// Whether this machine does not have it at all; `absent` and `or` then can do without.
    unsupported: bool,
    reason: String,
}

impl Evaluator<'_> {
    fn value(&mut self, node: &Node) -> Result<Value, String> {
        Ok(match &node.kind {
            Kind::Number(number) => Value::Scalar(*number),
            Kind::Selector(selector) => Value::Vector(self.select(selector)),
            Kind::Parentheses(inner) => self.value(inner)?,
            Kind::Unary { negative, operand } => match self.value(operand)? {
                value if !negative => value,
                Value::Scalar(number) => Value::Scalar(-number),
                Value::Vector(samples) => Value::Vector(mapped(samples, |value| -value)?),
            },
            Kind::Binary(binary) => self.binary(binary)?,
            Kind::Aggregate(aggregate) => Value::Vector(self.aggregate(aggregate)?),
            Kind::Call { arguments, pattern: Some(pattern), .. } => {
                let samples = self.vector_argument(arguments, 0)?;
                Value::Vector(relabel::replace(samples, arguments, pattern)?)
            }
            Kind::Call { function, arguments, .. } => self.call(*function, arguments)?,
            Kind::Text(_) | Kind::Range { .. } => {
                return Err("a string or range has no value of its own".to_owned());
            }
        })
    }

    fn vector(&mut self, node: &Node) -> Result<Vec<Sample>, String> {
        match self.value(node)? {
            Value::Vector(samples) => Ok(samples),
            Value::Scalar(_) => Err("expected an instant vector, got a scalar".to_owned()),
        }
    }

    fn scalar(&mut self, node: &Node) -> Result<f64, String> {
        match self.value(node)? {
            Value::Scalar(number) => Ok(number),
            Value::Vector(_) => Err("expected a scalar, got an instant vector".to_owned()),
        }
    }

    fn call(&mut self, function: Function, arguments: &[Node]) -> Result<Value, String> {
        match function {
            Function::Time => return Ok(Value::Scalar(self.at.utc_ms as f64 / 1000.0)),
            Function::Scalar => return self.scalar_of(arguments),
            _ => {}
        }
        if let Some(samples) = self.over_range(function, arguments)? {
            return Ok(Value::Vector(samples));
        }
        self.over_instant(function, arguments).map(Value::Vector)
    }

    fn scalar_of(&mut self, arguments: &[Node]) -> Result<Value, String> {
        let samples = match arguments.first() {
            Some(argument) => self.vector(argument)?,
            None => Vec::new(),
        };
        Ok(Value::Scalar(match samples.as_slice() {
            [only] => only.value,
            _ => f64::NAN,
        }))
    }

    /// The argument at a position, which the type check has counted.
    fn scalar_argument(&mut self, arguments: &[Node], position: usize) -> Result<f64, String> {
        match arguments.get(position) {
            Some(node) => self.scalar(node),
            None => Err(format!("argument {} is missing", position + 1)),
        }
    }

    fn vector_argument(
        &mut self,
        arguments: &[Node],
        position: usize,
    ) -> Result<Vec<Sample>, String> {
        match arguments.get(position) {
            Some(node) => self.vector(node),
            None => Err(format!("argument {} is missing", position + 1)),
        }
    }
}

/// Each value changed and each name dropped.
fn mapped(mut samples: Vec<Sample>, change: impl Fn(f64) -> f64) -> Result<Vec<Sample>, String> {
    for sample in &mut samples {
        sample.name = None;
        sample.value = change(sample.value);
    }
    unique(samples)
}

/// Refuses two elements with the same name and labels.
fn unique(samples: Vec<Sample>) -> Result<Vec<Sample>, String> {
    if samples.len() > MAX_ELEMENTS {
        return Err(format!("the result has more than {MAX_ELEMENTS} elements"));
    }
    let is_unique = match samples.as_slice() {
        [] | [_] => true,
        [one, other] => one.name != other.name || one.labels != other.labels,
        many => {
            let mut seen = HashSet::with_capacity(many.len());
            many.iter().all(|sample| seen.insert((&sample.name, &sample.labels)))
        }
    };
    if is_unique { Ok(samples) } else { Err(SAME_LABELSET.to_owned()) }
}

/// The value of a label, or of the name; empty if it is missing.
fn label<'s>(sample: &'s Sample, name: &str) -> &'s str {
    if name == super::matcher::NAME_LABEL {
        return sample.name.as_deref().unwrap_or_default();
    }
    value_of(&sample.labels, name)
}

fn value_of<'l>(labels: &'l Labels, name: &str) -> &'l str {
    let found = labels.iter().find(|(label, _)| &**label == name);
    found.map(|(_, value)| &**value).unwrap_or_default()
}
