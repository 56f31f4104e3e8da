//! The values that lead to a decision, and those that show its effect.

use std::sync::Arc;

use promql_rules::store::{SeriesId, SeriesStore};
use promql_rules::{EvalTime, Evaluated, Expr, Labels, Sample, Value};

use super::rule::Rule;
use crate::model::{Evidence, Moment, Reading, Wanted};

/// Bound on what one decision names.
const MOST_SERIES: usize = 24;

/// The metrics that a rule reads, each with how much past it needs, in milliseconds.
pub(super) fn reads(rule: &Rule) -> Vec<(Arc<str>, i64)> {
    let mut reads = rule.expr.expr.reads();
    if let Some(aim) = rule.remedy.as_ref().and_then(|remedy| remedy.aim.as_ref()) {
        reads.extend(aim.expr.reads());
    }
    reads
}

/// The series that a rule reads of any node.
pub(super) fn wanted(rule: &Rule) -> Vec<Wanted> {
    exprs(rule).flat_map(Expr::wanted).collect()
}

/// The present value of the series that the rule's expression and aim name. Where the expression
/// yields samples, a selector means those of its series that they can have come from: which
/// have the same value of each label that both bear. Where it is unknown, what is missing comes
/// first.
pub(super) fn evidence(rule: &Rule, at: Moment, store: &SeriesStore) -> Vec<Evidence> {
    let at = EvalTime { timeline_ms: at.timeline_ms(), utc_ms: at.utc_ms() };
    let result = rule.expr.expr.evaluate(store, at);
    let samples = match &result {
        Ok(Evaluated::Known(Value::Vector(samples))) => samples.as_slice(),
        Ok(Evaluated::Known(Value::Scalar(_)) | Evaluated::Unknown(_)) | Err(_) => &[],
    };
    let mut ids: Vec<SeriesId> = exprs(rule)
        .flat_map(|expr| expr.selected(store))
        .flat_map(|selected| led_to(selected, samples, store))
        .collect();
    // By name, and not as they were met: the same whichever version decides.
    ids.sort_by_key(|id| store.key(*id));
    ids.dedup();
    if matches!(result, Ok(Evaluated::Unknown(_))) {
        ids.sort_by_key(|id| matches!(store.latest(*id), Reading::Value(_)));
    }
    ids.into_iter().filter_map(|id| present(id, store)).take(MOST_SERIES).collect()
}

/// The present values of the series named before: the same series show the effect of an action.
pub(super) fn again(before: &[Evidence], rule: &Rule, store: &SeriesStore) -> Vec<Evidence> {
    let mut ids: Vec<SeriesId> =
        exprs(rule).flat_map(|expr| expr.selected(store)).flatten().collect();
    ids.sort_unstable();
    ids.dedup();
    let now: Vec<Evidence> = ids.into_iter().filter_map(|id| present(id, store)).collect();
    let same = |before: &Evidence| now.iter().find(|now| now.series == before.series).cloned();
    before.iter().filter_map(same).collect()
}

fn exprs(rule: &Rule) -> impl Iterator<Item = &Expr> {
    let aim = rule.remedy.as_ref().and_then(|remedy| remedy.aim.as_ref());
    [Some(&rule.expr), aim].into_iter().flatten().map(|query| &query.expr)
}

/// Those of a selector's series that the samples can have come from; all, if none can.
fn led_to(selected: Vec<SeriesId>, samples: &[Sample], store: &SeriesStore) -> Vec<SeriesId> {
    let agrees = |id: &SeriesId| {
        let key = store.key(*id);
        key.is_some_and(|key| samples.iter().any(|sample| agree(&key.labels, &sample.labels)))
    };
    let led: Vec<SeriesId> = selected.iter().copied().filter(agrees).collect();
    if led.is_empty() { selected } else { led }
}

/// Whether no label that both bear differs.
fn agree(one: &Labels, other: &Labels) -> bool {
    let differs = |name: &str, value: &str| {
        other.iter().any(|(known, other)| **known == *name && **other != *value)
    };
    !one.iter().any(|(name, value)| differs(name, value))
}

/// Nothing of a series that has ended.
fn present(id: SeriesId, store: &SeriesStore) -> Option<Evidence> {
    let value = store.latest_read(id).unwrap_or(Reading::Failed);
    let series = store.key(id).filter(|_| !value.is_end())?.to_string();
    Some(Evidence { series, value })
}
