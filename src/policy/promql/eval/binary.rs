//! Binary operators, and how the elements of two vectors find each other.

use std::collections::{HashMap, HashSet};

use super::super::matcher::NAME_LABEL;
use super::super::syntax::{Binary, BinaryOp, Group, Matching};
use super::super::{Sample, Value};
use super::numbers::{arithmetic, compares, scalars};
use super::{Evaluator, label, relabel, unique};

impl Evaluator<'_> {
    pub(super) fn binary(&mut self, binary: &Binary) -> Result<Value, String> {
        let before = self.missing.len();
        let left = self.value(&binary.left)?;
        let between = self.missing.len();
        let right = self.value(&binary.right)?;
        if binary.op == BinaryOp::Or {
            self.forgive_one_side(before, between);
        }
        match (left, right) {
            (Value::Scalar(left), Value::Scalar(right)) => {
                Ok(Value::Scalar(scalars(binary.op, left, right)))
            }
            (Value::Vector(samples), Value::Scalar(number)) => {
                with_scalar(binary, samples, number, false).map(Value::Vector)
            }
            (Value::Scalar(number), Value::Vector(samples)) => {
                with_scalar(binary, samples, number, true).map(Value::Vector)
            }
            (Value::Vector(left), Value::Vector(right)) => {
                vectors(binary, left, right).map(Value::Vector)
            }
        }
    }

    /// One side of an `or` may be missing from this machine, but not both.
    fn forgive_one_side(&mut self, before: usize, between: usize) {
        let (left, right) = self.missing[before..].split_at(between - before);
        let lacks = |side: &[super::Missing]| side.iter().any(|missing| missing.unsupported);
        if !(lacks(left) && lacks(right)) {
            self.forgive_unsupported(before);
        }
    }
}

/// An operator between each element and a number, which stands on the left if `swapped`.
fn with_scalar(
    binary: &Binary,
    mut samples: Vec<Sample>,
    number: f64,
    swapped: bool,
) -> Result<Vec<Sample>, String> {
    let sides = |value: f64| if swapped { (number, value) } else { (value, number) };
    if binary.op.is_comparison() && !binary.returns_bool {
        samples.retain(|sample| {
            let (left, right) = sides(sample.value);
            compares(binary.op, left, right)
        });
        return Ok(samples);
    }
    super::mapped(samples, |value| {
        let (left, right) = sides(value);
        scalars(binary.op, left, right)
    })
}

fn vectors(binary: &Binary, left: Vec<Sample>, right: Vec<Sample>) -> Result<Vec<Sample>, String> {
    let matching = &binary.matching;
    if let ([one], [other]) = (left.as_slice(), right.as_slice()) {
        return Ok(of_one_each(binary, one, other));
    }
    match binary.op {
        BinaryOp::And | BinaryOp::Unless => {
            let found: HashSet<Signature<'_>> =
                right.iter().map(|sample| Signature { sample, matching }).collect();
            let wanted = binary.op == BinaryOp::And;
            let mut left = left;
            left.retain(|sample| found.contains(&Signature { sample, matching }) == wanted);
            Ok(left)
        }
        BinaryOp::Or => {
            let found: HashSet<Signature<'_>> =
                left.iter().map(|sample| Signature { sample, matching }).collect();
            let added: Vec<Sample> = right
                .iter()
                .filter(|sample| !found.contains(&Signature { sample, matching }))
                .cloned()
                .collect();
            unique(left.iter().cloned().chain(added).collect())
        }
        _ => matched(binary, &left, &right),
    }
}

/// What most rules come to: nothing has to be looked up.
fn of_one_each(binary: &Binary, left: &Sample, right: &Sample) -> Vec<Sample> {
    let matching = &binary.matching;
    let fit = Signature { sample: left, matching } == Signature { sample: right, matching };
    match binary.op {
        BinaryOp::And | BinaryOp::Unless => {
            let is_kept = fit == (binary.op == BinaryOp::And);
            is_kept.then(|| left.clone()).into_iter().collect()
        }
        BinaryOp::Or => {
            let added = (!fit).then(|| right.clone());
            [left.clone()].into_iter().chain(added).collect()
        }
        _ if !fit => Vec::new(),
        _ => {
            let swapped = matching.group.as_ref().is_some_and(|group| !group.left);
            let (many, one) = if swapped { (right, left) } else { (left, right) };
            let value = element(binary, left.value, right.value);
            value.map(|value| result(binary, many, one, value)).into_iter().collect()
        }
    }
}

/// One-to-one and many-to-one matching.
fn matched(binary: &Binary, left: &[Sample], right: &[Sample]) -> Result<Vec<Sample>, String> {
    if left.is_empty() || right.is_empty() {
        return Ok(Vec::new());
    }
    let matching = &binary.matching;
    let swapped = matching.group.as_ref().is_some_and(|group| !group.left);
    let (many, one) = if swapped { (right, left) } else { (left, right) };
    let mut ones: HashMap<Signature<'_>, &Sample> = HashMap::with_capacity(one.len());
    for sample in one {
        if let Some(first) = ones.insert(Signature { sample, matching }, sample) {
            return Err(duplicate(matching, first, sample, if swapped { "left" } else { "right" }));
        }
    }
    let mut met: HashSet<Signature<'_>> = HashSet::new();
    let mut out = Vec::with_capacity(many.len());
    for sample in many {
        let signature = Signature { sample, matching };
        let Some(partner) = ones.get(&signature) else { continue };
        let (left, right) = if swapped { (*partner, sample) } else { (sample, *partner) };
        let Some(value) = element(binary, left.value, right.value) else { continue };
        if matching.group.is_none() && !met.insert(signature) {
            return Err("multiple matches for labels: many-to-one matching must be explicit \
                        (group_left/group_right)"
                .to_owned());
        }
        out.push(result(binary, sample, partner, value));
    }
    unique(out).map_err(|_| {
        "multiple matches for labels: grouping labels must ensure unique matches".to_owned()
    })
}

fn element(binary: &Binary, left: f64, right: f64) -> Option<f64> {
    if !binary.op.is_comparison() {
        return Some(arithmetic(binary.op, left, right));
    }
    let holds = compares(binary.op, left, right);
    match binary.returns_bool {
        true => Some(f64::from(u8::from(holds))),
        false => holds.then_some(left),
    }
}

/// The labels of a match: those of the many side, less what the matching drops.
fn result(binary: &Binary, many: &Sample, one: &Sample, value: f64) -> Sample {
    let matching = &binary.matching;
    let drops_name = !binary.op.is_comparison() || binary.returns_bool;
    let mut sample = Sample { value, ..many.clone() };
    match &matching.group {
        None => {
            let keeps =
                |name: &str| matching.labels.iter().any(|label| &**label == name) == matching.on;
            if !sample.labels.iter().all(|(name, _)| keeps(name)) {
                sample.labels =
                    sample.labels.iter().filter(|(name, _)| keeps(name)).cloned().collect();
            }
            if drops_name || !keeps(NAME_LABEL) {
                sample.name = None;
            }
        }
        Some(Group { include, .. }) => {
            if drops_name {
                sample.name = None;
            }
            for name in include {
                relabel::set(&mut sample, name, label(one, name));
            }
        }
    }
    sample
}

fn duplicate(matching: &Matching, first: &Sample, second: &Sample, side: &str) -> String {
    let group: Vec<String> = Signature { sample: first, matching }
        .labels()
        .map(|(name, value)| format!("{name}={value:?}"))
        .collect();
    format!(
        "found duplicate series for the match group {{{}}} on the {side} hand-side of the \
         operation: [{}, {}];many-to-many matching not allowed: matching labels must be unique on \
         one side",
        group.join(", "),
        shown(first),
        shown(second)
    )
}

fn shown(sample: &Sample) -> String {
    let labels: Vec<String> =
        sample.labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    format!("{}{{{}}}", sample.name.as_deref().unwrap_or_default(), labels.join(", "))
}

/// The part of an element's labels by which it is matched; compared without copying it.
struct Signature<'s> {
    sample: &'s Sample,
    matching: &'s Matching,
}

impl<'s> Signature<'s> {
    fn labels(&self) -> impl Iterator<Item = (&'s str, &'s str)> {
        let matching = self.matching;
        let is_named =
            move |name: &str| matching.labels.iter().any(|label| &**label == name) == matching.on;
        let name = self.sample.name.as_deref().filter(|_| matching.on && is_named(NAME_LABEL));
        let labels = self.sample.labels.iter().map(|(name, value)| (&**name, &**value));
        name.map(|name| (NAME_LABEL, name))
            .into_iter()
            .chain(labels.filter(move |(name, _)| is_named(name)))
    }
}

impl PartialEq for Signature<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.labels().eq(other.labels())
    }
}

impl Eq for Signature<'_> {}

impl std::hash::Hash for Signature<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.labels().for_each(|label| label.hash(state));
    }
}
