//! Selectors: from the store's series to samples and windows.

use super::super::Sample;
use super::super::syntax::Selector;
use super::{Evaluator, Missing};
use crate::model::{Reading, SeriesKey};
use crate::policy::store::{SeriesId, SeriesStore, Window};

impl<'s> Evaluator<'s> {
    /// The latest sample of each series that the selector matches.
    pub(super) fn select(&mut self, selector: &Selector) -> Vec<Sample> {
        let at_ms = self.at.timeline_ms.saturating_sub(selector.offset_ms);
        let mut samples = Vec::new();
        self.matching(selector, |store, id, key| {
            if let Some(point) = store.at(id, at_ms) {
                samples.push(sample(key, point.value));
            }
        });
        samples
    }

    /// The same with each sample's own instant, on the wall clock in milliseconds.
    pub(super) fn select_instants(&mut self, selector: &Selector) -> Vec<Sample> {
        let at_ms = self.at.timeline_ms.saturating_sub(selector.offset_ms);
        let to_utc_ms = self.at.utc_ms.saturating_sub(self.at.timeline_ms);
        let mut samples = Vec::new();
        self.matching(selector, |store, id, key| {
            if let Some(point) = store.at(id, at_ms) {
                samples.push(sample(key, point.at_ms.saturating_add(to_utc_ms) as f64));
            }
        });
        samples
    }

    /// The windows of all series that the selector matches, with their keys.
    pub(super) fn windows(
        &mut self,
        selector: &Selector,
        range_ms: i64,
    ) -> Vec<(&'s SeriesKey, Window<'s>)> {
        let to_ms = self.at.timeline_ms.saturating_sub(selector.offset_ms);
        let after_ms = to_ms.saturating_sub(range_ms);
        let mut windows = Vec::new();
        let mut cut = None;
        self.matching(selector, |store, id, key| {
            if store.is_cut(id, after_ms) {
                cut = Some(key);
            }
            windows.push((key, store.window(id, after_ms, to_ms)));
        });
        if let Some(key) = cut {
            let reason = format!("{key}: more samples in the range than are kept");
            self.missing.push(Missing { unsupported: false, reason });
        }
        windows
    }

    /// Visits the series that match, and notes what cannot be known of them.
    fn matching(
        &mut self,
        selector: &Selector,
        mut visit: impl FnMut(&'s SeriesStore, SeriesId, &'s SeriesKey),
    ) {
        let store = self.store;
        let mut failed: Option<(&SeriesKey, &str)> = None;
        let mut unsupported: Option<&SeriesKey> = None;
        let mut has_value = false;
        let (ids, overflowed) = store.named(&selector.name);
        for id in ids {
            let Some(key) = store.key(*id) else { continue };
            if !matches(selector, key) {
                continue;
            }
            match store.latest_read(*id) {
                Some(Reading::Value(_)) => has_value = true,
                Some(Reading::Unsupported) => unsupported = unsupported.or(Some(key)),
                Some(Reading::Failed) => failed = failed.or(Some((key, "reading failed"))),
                None => failed = failed.or(Some((key, "not read yet"))),
            }
            visit(store, *id, key);
        }
        if let Some(why) = store.gap(&selector.name) {
            let reason = format!("{}: {why}", selector.name);
            self.missing.push(Missing { unsupported: false, reason });
        }
        if overflowed {
            let reason = format!("{}: more series than are kept", selector.name);
            self.missing.push(Missing { unsupported: false, reason });
        }
        if let Some((key, why)) = failed {
            let reason = match store.fault(key) {
                Some(fault) => format!("{key}: {why}: {fault}"),
                None => format!("{key}: {why}"),
            };
            self.missing.push(Missing { unsupported: false, reason });
        } else if let Some(key) = unsupported.filter(|_| !has_value) {
            let reason = format!("{key}: not available on this machine");
            self.missing.push(Missing { unsupported: true, reason });
        }
    }
}

/// The series that a selector matches.
pub(in crate::policy::promql) fn matching_series(
    selector: &Selector,
    store: &SeriesStore,
) -> Vec<SeriesId> {
    let is_matching = |id: &SeriesId| store.key(*id).is_some_and(|key| matches(selector, key));
    store.named(&selector.name).0.iter().copied().filter(is_matching).collect()
}

fn sample(key: &SeriesKey, value: f64) -> Sample {
    Sample { name: Some(key.name.clone()), labels: key.labels.clone(), value }
}

fn matches(selector: &Selector, key: &SeriesKey) -> bool {
    selector
        .matchers
        .iter()
        .all(|matcher| matcher.passes(super::value_of(&key.labels, &matcher.label)))
}
