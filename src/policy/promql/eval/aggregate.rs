//! Aggregations over the elements of a vector.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::super::matcher::NAME_LABEL;
use super::super::syntax::{Aggregate, AggregateOp};
use super::super::{Labels, Sample};
use super::{Evaluator, sums};

/// A group's name, if it is grouped by, and labels.
type Key = (Option<Arc<str>>, Labels);

impl Evaluator<'_> {
    pub(super) fn aggregate(&mut self, aggregate: &Aggregate) -> Result<Vec<Sample>, String> {
        let parameter = match &aggregate.parameter {
            Some(parameter) => self.scalar(parameter)?,
            None => f64::NAN,
        };
        let samples = self.vector(&aggregate.operand)?;
        if samples.is_empty() {
            return Ok(samples);
        }
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
}

/// The value of an aggregation over at least one.
pub(in crate::policy::promql) fn reduced(
    op: AggregateOp,
    parameter: f64,
    values: impl Iterator<Item = f64>,
) -> f64 {
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

/// The groups in the order in which they are met.
fn grouped(samples: Vec<Sample>, aggregate: &Aggregate) -> Vec<(Key, Vec<Sample>)> {
    if !aggregate.without && aggregate.grouping.is_empty() {
        return vec![((None, [].into()), samples)];
    }
    let mut places: HashMap<Key, usize> = HashMap::new();
    let mut groups: Vec<(Key, Vec<Sample>)> = Vec::new();
    for sample in samples {
        let key = key(&sample, aggregate);
        let place = *places.entry(key.clone()).or_insert(groups.len());
        match groups.get_mut(place) {
            Some((_, members)) => members.push(sample),
            None => groups.push((key, vec![sample])),
        }
    }
    groups
}

fn key(sample: &Sample, aggregate: &Aggregate) -> Key {
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
    groups: Vec<(Key, Vec<Sample>)>,
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
