//! Aggregations over the elements of a vector.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::super::matcher::NAME_LABEL;
use super::super::syntax::{Aggregate, AggregateOp};
use super::super::{Labels, Sample};
use super::partial::{OpenVector, PartialNumber, PossibleElement, Vector};
use super::{Evaluator, sums};

/// A group's name, if it is grouped by, and labels.
type GroupKey = (Option<Arc<str>>, Labels);

impl Evaluator<'_> {
    pub(super) fn aggregate(&mut self, aggregate: &Aggregate) -> Result<Vector, String> {
        let parameter = match &aggregate.parameter {
            Some(parameter) => self.scalar(parameter)?,
            None => Ok(f64::NAN),
        };
        let vector = self.vector(&aggregate.operand)?;
        if vector.is_nothing() {
            return Ok(vector);
        }
        match (parameter, &vector.open) {
            (Ok(parameter), None) => whole(aggregate, parameter, vector.known).map(Vector::whole),
            (parameter, _) => partly(aggregate, parameter, vector),
        }
    }
}

fn whole(
    aggregate: &Aggregate,
    parameter: f64,
    samples: Vec<Sample>,
) -> Result<Vec<Sample>, String> {
    let groups = grouped(samples, aggregate);
    match aggregate.op {
        AggregateOp::Topk => selected(groups, parameter, true),
        AggregateOp::Bottomk => selected(groups, parameter, false),
        op => Ok(groups
            .into_iter()
            .map(|((name, labels), members)| Sample {
                name,
                labels,
                value: reduced(op, parameter, members.iter().map(|member| member.value)),
            })
            .collect()),
    }
}

/// The known part of a group.
#[derive(Default)]
struct Members {
    known: Vec<Sample>,
    possible: Vec<PossibleElement>,
    /// Whether there may be others.
    any: bool,
    /// Whether there is certainly one.
    exists: bool,
}

impl Members {
    fn is_whole(&self) -> bool {
        self.possible.is_empty() && !self.any
    }
}

/// Groups in the order of their first element.
#[derive(Default)]
struct Groups {
    indexes: HashMap<GroupKey, usize>,
    groups: Vec<(GroupKey, Members)>,
}

impl Groups {
    fn of(&mut self, key: GroupKey) -> &mut Members {
        let index = *self.indexes.entry(key.clone()).or_insert(self.groups.len());
        if index == self.groups.len() {
            self.groups.push((key, Members::default()));
        }
        &mut self.groups[index].1
    }
}

/// The aggregation of a partly unknown vector: a group is known if all its members are.
fn partly(
    aggregate: &Aggregate,
    parameter: PartialNumber,
    vector: Vector,
) -> Result<Vector, String> {
    let is_one = !aggregate.without && aggregate.grouping.is_empty();
    let exists = vector.exists() == Some(true);
    let because = vector.because() | parameter.as_ref().err().copied().unwrap_or_default();
    let mut open = OpenVector { exists, because, ..OpenVector::default() };
    let mut groups = Groups::default();
    for sample in vector.known {
        let members = groups.of(key(&sample, aggregate));
        members.exists = true;
        members.known.push(sample);
    }
    if let Some(of) = vector.open {
        let keys: Vec<GroupKey> = of.possible.iter().map(|of| key(&of.sample, aggregate)).collect();
        for set in &of.some {
            let mut keys = set.iter().filter_map(|index| keys.get(*index));
            let Some(first) = keys.next() else { continue };
            if keys.all(|key| key == first) {
                groups.of(first.clone()).exists = true;
            }
        }
        for (key, possible) in keys.into_iter().zip(of.possible) {
            groups.of(key).possible.push(possible);
        }
        if is_one {
            let all = groups.of((None, [].into()));
            all.exists = exists;
        }
        groups.groups.iter_mut().for_each(|(_, members)| members.any = of.any);
        let selects = matches!(aggregate.op, AggregateOp::Topk | AggregateOp::Bottomk);
        open.any = of.any && (selects || !is_one);
    }
    match aggregate.op {
        AggregateOp::Topk => partly_selected(groups, parameter, open, true),
        AggregateOp::Bottomk => partly_selected(groups, parameter, open, false),
        op => Ok(partly_reduced(op, &parameter, groups, open)),
    }
}

fn partly_reduced(
    op: AggregateOp,
    parameter: &PartialNumber,
    groups: Groups,
    mut open: OpenVector,
) -> Vector {
    let mut known = Vec::new();
    for ((name, labels), members) in groups.groups {
        let value = match parameter {
            _ if op == AggregateOp::Group => Some(1.0),
            Ok(parameter) if members.is_whole() => {
                Some(reduced(op, *parameter, members.known.iter().map(|member| member.value)))
            }
            _ => None,
        };
        let sample = Sample { name, labels, value: value.unwrap_or(f64::NAN) };
        if members.exists && value.is_some() {
            known.push(sample);
            continue;
        }
        if members.exists {
            open.some.push(vec![open.possible.len()]);
        }
        open.possible.push(PossibleElement { sample, is_valued: value.is_some() });
    }
    Vector::new(known, open)
}

fn partly_selected(
    groups: Groups,
    parameter: PartialNumber,
    mut open: OpenVector,
    from_top: bool,
) -> Result<Vector, String> {
    let mut whole = Vec::new();
    open.exists = false;
    for (key, members) in groups.groups {
        if members.is_whole() && parameter.is_ok() {
            whole.push((key, members.known));
            continue;
        }
        open.possible.extend(members.possible);
        let known = members.known.into_iter();
        open.possible.extend(known.map(|sample| PossibleElement { sample, is_valued: true }));
    }
    match parameter {
        Ok(count) if count < 1.0 => Ok(Vector::default()),
        Ok(count) => Ok(Vector::new(selected(whole, count, from_top)?, open)),
        Err(_) => Ok(Vector::new(Vec::new(), open)),
    }
}

/// The value of an aggregation over at least one.
pub(crate) fn reduced(op: AggregateOp, parameter: f64, values: impl Iterator<Item = f64>) -> f64 {
    match op {
        AggregateOp::Sum => {
            let mut sum = sums::Sum::default();
            values.for_each(|value| sum.add(value));
            sum.total()
        }
        AggregateOp::Avg => sums::mean(values),
        AggregateOp::Min => sums::least(values),
        AggregateOp::Max => sums::greatest(values),
        AggregateOp::Count => values.count() as f64,
        AggregateOp::Group => 1.0,
        AggregateOp::Stddev => sums::variance_over_series(values).sqrt(),
        AggregateOp::Stdvar => sums::variance_over_series(values),
        AggregateOp::Quantile => sums::quantile(parameter, values.collect()),
        AggregateOp::Topk | AggregateOp::Bottomk => f64::NAN,
    }
}

/// The groups in the order of their first element.
fn grouped(samples: Vec<Sample>, aggregate: &Aggregate) -> Vec<(GroupKey, Vec<Sample>)> {
    if !aggregate.without && aggregate.grouping.is_empty() {
        return vec![((None, [].into()), samples)];
    }
    let mut indexes: HashMap<GroupKey, usize> = HashMap::new();
    let mut groups: Vec<(GroupKey, Vec<Sample>)> = Vec::new();
    for sample in samples {
        let key = key(&sample, aggregate);
        let index = *indexes.entry(key.clone()).or_insert(groups.len());
        match groups.get_mut(index) {
            Some((_, members)) => members.push(sample),
            None => groups.push((key, vec![sample])),
        }
    }
    groups
}

fn key(sample: &Sample, aggregate: &Aggregate) -> GroupKey {
    let is_named = |label: &str| aggregate.grouping.iter().any(|named| &**named == label);
    let keeps = |label: &str| is_named(label) != aggregate.without;
    let keeps_name = !aggregate.without && is_named(NAME_LABEL);
    let name = sample.name.clone().filter(|_| keeps_name);
    if sample.labels.iter().all(|(label, _)| keeps(label)) {
        return (name, sample.labels.clone());
    }
    let labels = sample.labels.iter().filter(|(label, _)| keeps(label)).cloned().collect();
    (name, labels)
}

/// `topk` and `bottomk`: the elements themselves, NaN last.
fn selected(
    groups: Vec<(GroupKey, Vec<Sample>)>,
    count: f64,
    from_top: bool,
) -> Result<Vec<Sample>, String> {
    if count.is_nan() {
        return Err("Parameter value is NaN".to_owned());
    }
    if count < 1.0 {
        return Ok(Vec::new());
    }
    let mut out = Vec::new();
    for (_, mut members) in groups {
        members.sort_by(|one, other| {
            let by_value = one.value.partial_cmp(&other.value).unwrap_or(Ordering::Equal);
            let nan_last = one.value.is_nan().cmp(&other.value.is_nan());
            nan_last.then(if from_top { by_value.reverse() } else { by_value })
        });
        members.truncate(count.min(1e9) as usize);
        out.append(&mut members);
    }
    Ok(out)
}
