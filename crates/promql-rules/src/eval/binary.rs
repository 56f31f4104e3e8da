//! Binary operators, and vector matching.

use std::collections::{HashMap, HashSet};

use super::super::Sample;
use super::super::matcher::NAME_LABEL;
use super::super::syntax::{Binary, BinaryOp, Group, Matching};
use super::numbers::{arithmetic, compares, scalars};
use super::partial::{
    Fate, MissingReadings, OpenVector, PartialNumber, PartialValue, PossibleElement, Vector,
};
use super::{Evaluator, label, relabel, sets, unique};

impl Evaluator<'_> {
    pub(super) fn binary(&mut self, binary: &Binary) -> Result<PartialValue, String> {
        let before = self.missing.len();
        let left = self.value(&binary.left)?;
        let between = self.missing.len();
        let right = self.value(&binary.right)?;
        if binary.op == BinaryOp::Or {
            self.forgive_one_side(before, between);
        }
        match (left, right) {
            (PartialValue::Number(Ok(left)), PartialValue::Number(Ok(right))) => {
                Ok(PartialValue::Number(Ok(scalars(binary.op, left, right))))
            }
            (PartialValue::Number(left), PartialValue::Number(right)) => {
                let because = [left, right].into_iter().filter_map(Result::err);
                Ok(PartialValue::Number(Err(because.sum())))
            }
            (PartialValue::Vector(vector), PartialValue::Number(number)) => {
                with_scalar(binary, vector, number, false).map(PartialValue::Vector)
            }
            (PartialValue::Number(number), PartialValue::Vector(vector)) => {
                with_scalar(binary, vector, number, true).map(PartialValue::Vector)
            }
            (PartialValue::Vector(left), PartialValue::Vector(right)) => {
                vectors(binary, left, right).map(PartialValue::Vector)
            }
        }
    }

    /// One side of an `or` may be missing from this machine, but not both.
    fn forgive_one_side(&mut self, before: usize, between: usize) {
        let (left, right) = self.missing[before..].split_at(between - before);
        let lacks = |side: &[super::Missing]| side.iter().any(super::Missing::is_lack);
        if !(lacks(left) && lacks(right)) {
            self.forgive_unsupported(before);
        }
    }
}

/// An operator between each element and a number, which is the left operand if `swapped`.
fn with_scalar(
    binary: &Binary,
    vector: Vector,
    number: PartialNumber,
    swapped: bool,
) -> Result<Vector, String> {
    let filters = binary.op.is_comparison() && !binary.returns_bool;
    let number = match number {
        Ok(number) => number,
        Err(because) if filters => return Ok(vector.doubtful(because)),
        Err(because) => return Ok(vector.mapped(|value| value)?.valueless(because)),
    };
    let sides = |value: f64| if swapped { (number, value) } else { (value, number) };
    if filters {
        let fate = |value: Option<f64>| match value.map(sides) {
            None => Fate::MayLeave,
            Some((left, right)) if compares(binary.op, left, right) => Fate::Stays,
            Some(_) => Fate::Leaves,
        };
        return Ok(vector.sift(|_, value| fate(value), Fate::MayLeave, MissingReadings::default()));
    }
    vector.mapped(|value| {
        let (left, right) = sides(value);
        scalars(binary.op, left, right)
    })
}

fn vectors(binary: &Binary, left: Vector, right: Vector) -> Result<Vector, String> {
    match (&left.open, &right.open) {
        (None, None) => whole_vectors(binary, left.known, right.known).map(Vector::whole),
        _ if binary.op.is_set() => sets::combined(binary.op, &binary.matching, left, right),
        _ => matched_partly(binary, &left, &right),
    }
}

fn whole_vectors(
    binary: &Binary,
    left: Vec<Sample>,
    right: Vec<Sample>,
) -> Result<Vec<Sample>, String> {
    let matching = &binary.matching;
    if let ([one], [other]) = (left.as_slice(), right.as_slice()) {
        return Ok(of_one_each(binary, one, other));
    }
    match binary.op {
        BinaryOp::And | BinaryOp::Unless => {
            let found: HashSet<MatchSignature<'_>> =
                right.iter().map(|sample| MatchSignature { sample, matching }).collect();
            let wanted = binary.op == BinaryOp::And;
            let mut left = left;
            left.retain(|sample| found.contains(&MatchSignature { sample, matching }) == wanted);
            Ok(left)
        }
        BinaryOp::Or => {
            let found: HashSet<MatchSignature<'_>> =
                left.iter().map(|sample| MatchSignature { sample, matching }).collect();
            let added: Vec<Sample> = right
                .iter()
                .filter(|sample| !found.contains(&MatchSignature { sample, matching }))
                .cloned()
                .collect();
            unique(left.iter().cloned().chain(added).collect())
        }
        _ => matched(binary, &left, &right),
    }
}

/// The case of most rules, without a lookup.
fn of_one_each(binary: &Binary, left: &Sample, right: &Sample) -> Vec<Sample> {
    let matching = &binary.matching;
    let fit =
        MatchSignature { sample: left, matching } == MatchSignature { sample: right, matching };
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
    let mut ones: HashMap<MatchSignature<'_>, &Sample> = HashMap::with_capacity(one.len());
    for sample in one {
        if let Some(first) = ones.insert(MatchSignature { sample, matching }, sample) {
            return Err(duplicate(matching, first, sample, if swapped { "left" } else { "right" }));
        }
    }
    let mut met: HashSet<MatchSignature<'_>> = HashSet::new();
    let mut out = Vec::with_capacity(many.len());
    for sample in many {
        let signature = MatchSignature { sample, matching };
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

/// The same for partly unknown vectors. An element with several possible partners is unknown.
fn matched_partly(binary: &Binary, left: &Vector, right: &Vector) -> Result<Vector, String> {
    if left.is_nothing() || right.is_nothing() {
        return Ok(Vector::default());
    }
    let because = left.because() | right.because();
    if left.has_any() || right.has_any() {
        return Ok(Vector::unknown(because));
    }
    let matching = &binary.matching;
    let swapped = matching.group.as_ref().is_some_and(|group| !group.left);
    let (many, one) = if swapped { (right, left) } else { (left, right) };
    // For its errors.
    matched(binary, &left.known, &right.known)?;
    let mut ones: HashMap<MatchSignature<'_>, Vec<_>> = HashMap::new();
    for element in one.all() {
        ones.entry(MatchSignature { sample: element.0, matching }).or_default().push(element);
    }
    let mut open = OpenVector { because, ..OpenVector::default() };
    let mut known = Vec::new();
    for (sample, value, is_sure) in many.all() {
        let Some(partners) = ones.get(&MatchSignature { sample, matching }) else { continue };
        let &[(partner, other, is_partner_sure), ..] = partners.as_slice() else { continue };
        let is_only = partners.len() == 1;
        let mut found = None;
        if let (Some(value), Some(other), true) = (value, other, is_only) {
            let (left, right) = if swapped { (other, value) } else { (value, other) };
            found = element(binary, left, right);
            if found.is_none() {
                continue;
            }
        }
        open.any |= !is_only && matching.group.as_ref().is_some_and(|group| group.copies());
        let sample = result(binary, sample, partner, found.unwrap_or(f64::NAN));
        if is_sure && is_partner_sure && is_only {
            known.push(sample);
        } else {
            open.possible.push(PossibleElement { sample, is_valued: found.is_some() });
        }
    }
    Ok(Vector::new(known, open))
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
    let group: Vec<String> = MatchSignature { sample: first, matching }
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
#[derive(Clone, Copy)]
pub(super) struct MatchSignature<'s> {
    pub(super) sample: &'s Sample,
    pub(super) matching: &'s Matching,
}

impl<'s> MatchSignature<'s> {
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

impl PartialEq for MatchSignature<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.labels().eq(other.labels())
    }
}

impl Eq for MatchSignature<'_> {}

impl std::hash::Hash for MatchSignature<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.labels().for_each(|label| label.hash(state));
    }
}
