//! Selectors: from the store's series to samples and windows.

use super::super::Sample;
use super::super::syntax::Selector;
use super::Evaluator;
use super::partial::{MissingReadings, OpenVector, PossibleElement, Vector};
use crate::store::{Point, SeriesId, SeriesStore, Window, is_stale};
use crate::{Reading, SeriesKey};

/// The unknown part of the series that a selector matches.
#[derive(Default)]
struct Gaps {
    /// Whether there may be others.
    any: bool,
    because: MissingReadings,
}

pub(super) struct SeriesWindow<'s> {
    pub(super) key: &'s SeriesKey,
    pub(super) window: Window<'s>,
    /// Whether there may be other samples than these.
    pub(super) is_open: bool,
}

/// The windows of the series that a selector matches.
pub(super) struct Windows<'s> {
    pub(super) series: Vec<SeriesWindow<'s>>,
    /// Whether there may be other series.
    pub(super) any: bool,
    pub(super) because: MissingReadings,
}

impl<'s> Evaluator<'s> {
    /// The latest sample of each series that the selector matches.
    pub(super) fn select(&mut self, selector: &Selector) -> Vector {
        self.select_with(selector, |point| point.value)
    }

    /// The same with each sample's own instant, on the wall clock in milliseconds.
    pub(super) fn select_instants(&mut self, selector: &Selector) -> Vector {
        let to_utc_ms = self.at.utc_ms.saturating_sub(self.at.timeline_ms);
        self.select_with(selector, |point| point.at_ms.saturating_add(to_utc_ms) as f64)
    }

    fn select_with(&mut self, selector: &Selector, value: impl Fn(Point) -> f64) -> Vector {
        let at_ms = self.at.timeline_ms.saturating_sub(selector.offset_ms);
        let mut known = Vec::new();
        let mut possible = Vec::new();
        let gaps = self.matching(selector, |store, id, key, is_failed| {
            if is_failed {
                possible.push(PossibleElement { sample: sample(key, f64::NAN), is_valued: false });
            } else if let Some(point) = store.at(id, at_ms) {
                known.push(sample(key, value(point)));
            }
        });
        let Gaps { any, because } = gaps;
        Vector::new(known, OpenVector { possible, any, because, ..OpenVector::default() })
    }

    /// The windows of all series that the selector matches, with their keys.
    pub(super) fn windows(&mut self, selector: &Selector, range_ms: i64) -> Windows<'s> {
        let to_ms = self.at.timeline_ms.saturating_sub(selector.offset_ms);
        let after_ms = to_ms.saturating_sub(range_ms);
        let mut series = Vec::new();
        let mut cut = None;
        let Gaps { any, mut because } = self.matching(selector, |store, id, key, is_failed| {
            let is_cut = store.is_cut(id, after_ms);
            if is_cut {
                cut = Some(key);
            }
            let window = store.window(id, after_ms, to_ms);
            series.push(SeriesWindow { key, window, is_open: is_failed || is_cut });
        });
        if let Some(key) = cut {
            let reason = format!("{key}: more samples in the range than are kept");
            because = because | self.note(false, reason);
        }
        Windows { series, any, because }
    }

    /// Visits the matching series, with whether each has failed. Records their missing readings.
    fn matching(
        &mut self,
        selector: &Selector,
        mut visit: impl FnMut(&'s SeriesStore, SeriesId, &'s SeriesKey, bool),
    ) -> Gaps {
        let store = self.store;
        let mut gaps = Gaps::default();
        let mut failed: Option<(&SeriesKey, &str)> = None;
        let mut unsupported: Option<&SeriesKey> = None;
        let mut has_value = false;
        let (ids, overflowed) = store.named(&selector.name);
        for id in ids {
            let Some(key) = store.key(*id) else { continue };
            if !matches(selector, key) {
                continue;
            }
            let mut why = None;
            match store.latest_read(*id) {
                Some(Reading::Value(value)) => has_value |= !is_stale(value),
                Some(Reading::Unsupported) => unsupported = unsupported.or(Some(key)),
                Some(Reading::Failed) => why = Some("reading failed"),
                None => why = Some("not read yet"),
            }
            failed = failed.or(why.map(|why| (key, why)));
            visit(store, *id, key, why.is_some());
        }
        if let Some(why) = store.gap(&selector.name) {
            gaps.because = gaps.because | self.note(false, format!("{}: {why}", selector.name));
            gaps.any = true;
        }
        if overflowed {
            let reason = format!("{}: more series than are kept", selector.name);
            gaps.because = gaps.because | self.note(false, reason);
            gaps.any = true;
        }
        if let Some((key, why)) = failed {
            let reason = match store.fault(key) {
                Some(fault) => format!("{key}: {why}: {fault}"),
                None => format!("{key}: {why}"),
            };
            gaps.because = gaps.because | self.note(false, reason);
        } else if let Some(key) = unsupported.filter(|_| !has_value) {
            _ = self.note(true, format!("{key}: not available on this machine"));
        }
        gaps
    }
}

/// Whether the match of a selector is partly unknown.
pub(crate) fn is_open(selector: &Selector, store: &SeriesStore) -> bool {
    let (ids, overflowed) = store.named(&selector.name);
    let has_failed = |id: &SeriesId| {
        matches!(store.latest_read(*id), None | Some(Reading::Failed))
            && store.key(*id).is_some_and(|key| matches(selector, key))
    };
    overflowed || store.gap(&selector.name).is_some() || ids.iter().any(has_failed)
}

/// The series that a selector matches.
pub(crate) fn matching_series(selector: &Selector, store: &SeriesStore) -> Vec<SeriesId> {
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
