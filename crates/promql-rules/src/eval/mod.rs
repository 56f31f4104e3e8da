//! Evaluates a tree over the store. The height of the tree is bounded, so this may recurse.

mod aggregate;
mod binary;
mod histogram;
mod instant;
mod numbers;
mod over_time;
mod partial;
mod relabel;
mod select;
mod sets;
mod sums;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use super::functions::Function;
use super::syntax::{Kind, Node, Selector};
use super::{EvalTime, Evaluated, Labels, Sample, SeriesKey, TracedRange, Value};
use crate::store::{SeriesStore, Window};

/// The most elements that a vector may have.
const MAX_ELEMENTS: usize = 20_000;

const SAME_LABELSET: &str = "vector cannot contain metrics with the same labelset";

pub(super) use aggregate::reduced;
pub(super) use numbers::{arithmetic, compares, scalars};
pub(super) use over_time::{Range, apply};
use partial::{MissingReadings, PartialNumber, PartialValue, Vector};
pub(super) use select::{is_open, matching_series};

/// The result of an evaluation.
pub(super) struct Evaluation {
    pub(super) evaluated: Evaluated,
    /// Whether it yields any element, or a number that is neither 0 nor NaN; `None` where that is
    /// unknown.
    pub(super) yields: Option<bool>,
    /// Whether it read failed readings, needed or not.
    pub(super) has_failed: bool,
    /// Whether it needs a reading that this machine lacks.
    pub(super) lacks: bool,
}

/// Evaluates a whole expression.
pub(super) fn evaluate_root(
    root: &Node,
    store: &SeriesStore,
    at: EvalTime,
) -> Result<Evaluation, String> {
    let mut evaluator = Evaluator { store, at, missing: Vec::new() };
    let given = evaluator.value(root);
    let missing = evaluator.missing;
    let has_failed = missing.iter().any(|missing| !missing.unsupported);
    let lacks = missing.iter().any(Missing::is_lack);
    let (value, mut yields, because) = match given {
        Err(error) if !has_failed && !lacks => return Err(error),
        // It may be an error of the data that are left.
        Err(_) => (None, None, MissingReadings::ALL),
        Ok(PartialValue::Number(Ok(number))) => {
            let yields = number != 0.0 && !number.is_nan();
            (Some(Value::Scalar(number)), Some(yields), MissingReadings::default())
        }
        Ok(PartialValue::Number(Err(because))) => (None, None, because),
        Ok(PartialValue::Vector(vector)) => match (vector.exists(), vector.open) {
            (yields, None) => {
                (Some(Value::Vector(vector.known)), yields, MissingReadings::default())
            }
            (yields, Some(open)) => (None, yields, open.because),
        },
    };
    yields = yields.filter(|_| !lacks);
    let evaluated = match value.filter(|_| !lacks) {
        Some(value) => Evaluated::Known(value),
        None => Evaluated::Unknown(reasons(missing, because)),
    };
    Ok(Evaluation { evaluated, yields, has_failed, lacks })
}

/// The unsupported readings, and the reasons of the failed ones, once each.
fn reasons(missing: Vec<Missing>, because: MissingReadings) -> Vec<String> {
    let mut reasons: Vec<String> = Vec::new();
    for (index, missing) in missing.into_iter().enumerate() {
        let counts = missing.is_lack() || (!missing.unsupported && because.contains(index));
        if counts && !reasons.contains(&missing.reason) {
            reasons.push(missing.reason);
        }
    }
    reasons
}

/// The samples in a range, series by series, or why they are unknown.
pub(super) fn sampled<'s>(
    selector: &Selector,
    range_ms: i64,
    store: &'s SeriesStore,
    at: EvalTime,
) -> Result<Vec<(&'s SeriesKey, Window<'s>)>, Vec<String>> {
    let mut evaluator = Evaluator { store, at, missing: Vec::new() };
    let windows = evaluator.windows(selector, range_ms);
    if !evaluator.missing.is_empty() {
        return Err(evaluator.missing.into_iter().map(|missing| missing.reason).collect());
    }
    Ok(windows.series.into_iter().map(|series| (series.key, series.window)).collect())
}

/// The samples in a range in short, series by series, or why they are unknown.
pub(super) fn windows(
    selector: &Selector,
    range_ms: i64,
    store: &SeriesStore,
    at: EvalTime,
) -> Result<Vec<TracedRange>, Vec<String>> {
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
    Ok(sampled(selector, range_ms, store, at)?.into_iter().map(range).collect())
}

struct Evaluator<'s> {
    store: &'s SeriesStore,
    at: EvalTime,
    missing: Vec<Missing>,
}

/// A missing reading.
struct Missing {
    /// Whether it is unsupported on this machine; then `absent` and `or` can do without.
    unsupported: bool,
    is_forgiven: bool,
    reason: String,
}

impl Missing {
    /// Whether the result needs it and it is unsupported.
    fn is_lack(&self) -> bool {
        self.unsupported && !self.is_forgiven
    }
}

impl Evaluator<'_> {
    /// Records a missing reading.
    fn note(&mut self, unsupported: bool, reason: String) -> MissingReadings {
        self.missing.push(Missing { unsupported, is_forgiven: false, reason });
        MissingReadings::of(self.missing.len() - 1)
    }

    fn value(&mut self, node: &Node) -> Result<PartialValue, String> {
        Ok(match &node.kind {
            Kind::Number(number) => PartialValue::Number(Ok(*number)),
            Kind::Selector(selector) => PartialValue::Vector(self.select(selector)),
            Kind::Parentheses(inner) => self.value(inner)?,
            Kind::Unary { negative, operand } => match self.value(operand)? {
                given if !negative => given,
                PartialValue::Number(number) => PartialValue::Number(number.map(|number| -number)),
                PartialValue::Vector(vector) => {
                    PartialValue::Vector(vector.mapped(|value| -value)?)
                }
            },
            Kind::Binary(binary) => self.binary(binary)?,
            Kind::Aggregate(aggregate) => PartialValue::Vector(self.aggregate(aggregate)?),
            Kind::Call { arguments, pattern: Some(pattern), .. } => {
                let vector = self.vector_argument(arguments, 0)?;
                let replaced = |samples| relabel::replace(samples, arguments, pattern);
                PartialValue::Vector(vector.each(replaced)?)
            }
            Kind::Call { function, arguments, .. } => self.call(*function, arguments)?,
            Kind::Text(_) | Kind::Range { .. } => {
                return Err("a string or range has no value of its own".to_owned());
            }
        })
    }

    fn vector(&mut self, node: &Node) -> Result<Vector, String> {
        match self.value(node)? {
            PartialValue::Vector(vector) => Ok(vector),
            PartialValue::Number(_) => Err("expected an instant vector, got a scalar".to_owned()),
        }
    }

    fn scalar(&mut self, node: &Node) -> Result<PartialNumber, String> {
        match self.value(node)? {
            PartialValue::Number(number) => Ok(number),
            PartialValue::Vector(_) => Err("expected a scalar, got an instant vector".to_owned()),
        }
    }

    fn call(&mut self, function: Function, arguments: &[Node]) -> Result<PartialValue, String> {
        match function {
            Function::Time => return Ok(PartialValue::Number(Ok(self.at.utc_ms as f64 / 1000.0))),
            Function::Scalar => return self.scalar_of(arguments).map(PartialValue::Number),
            _ => {}
        }
        if let Some(vector) = self.over_range(function, arguments)? {
            return Ok(PartialValue::Vector(vector));
        }
        self.over_instant(function, arguments).map(PartialValue::Vector)
    }

    fn scalar_of(&mut self, arguments: &[Node]) -> Result<PartialNumber, String> {
        let vector = match arguments.first() {
            Some(argument) => self.vector(argument)?,
            None => Vector::default(),
        };
        Ok(match (vector.known.as_slice(), vector.open) {
            ([_, _, ..], _) => Ok(f64::NAN),
            (_, Some(open)) => Err(open.because),
            ([only], None) => Ok(only.value),
            ([], None) => Ok(f64::NAN),
        })
    }

    /// The argument at a position, which the type check has counted.
    fn scalar_argument(
        &mut self,
        arguments: &[Node],
        position: usize,
    ) -> Result<PartialNumber, String> {
        match arguments.get(position) {
            Some(node) => self.scalar(node),
            None => Err(format!("argument {} is missing", position + 1)),
        }
    }

    fn vector_argument(&mut self, arguments: &[Node], position: usize) -> Result<Vector, String> {
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
