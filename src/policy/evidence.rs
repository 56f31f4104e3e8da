//! The values that lead to a decision, and those that judge it.

use std::sync::Arc;

use super::rule::Rule;
use super::store::SeriesStore;
use crate::model::Evidence;

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

/// The present value of every series that the rule's expression and aim name.
pub(super) fn evidence(rule: &Rule, store: &SeriesStore) -> Vec<Evidence> {
    let mut ids = rule.expr.expr.series(store);
    if let Some(aim) = rule.remedy.as_ref().and_then(|remedy| remedy.aim.as_ref()) {
        ids.extend(aim.expr.series(store));
    }
    ids.sort_unstable();
    ids.dedup();
    let keys = store.keys();
    ids.into_iter()
        .take(MOST_SERIES)
        .filter_map(|id| {
            let key = keys.get(id.0 as usize)?;
            Some(Evidence { series: key.to_string(), value: store.latest(id) })
        })
        .collect()
}
