//! The past of one series.

use std::collections::VecDeque;

use super::{MAX_SAMPLES, Point, Window, is_stale};

/// The points of a series, including the newest one, as far back as requested. Empty without a
/// request.
#[derive(Debug, Default)]
pub(super) struct SeriesPast {
    pub(super) retain_ms: i64,
    points: VecDeque<Point>,
    /// The instant of the newest point dropped by the bound on samples.
    cut_at_ms: Option<i64>,
    /// The instant of the newest point that is below the one before it, or ends the series.
    fell_at_ms: Option<i64>,
    /// The instant of the newest point that differs from the one before it, if any does.
    changed_at_ms: Option<i64>,
}

impl SeriesPast {
    /// A past with a range.
    pub(super) fn of(retain_ms: i64) -> Self {
        Self { retain_ms, ..Self::default() }
    }

    pub(super) fn begin(&mut self, newest: Option<Point>) {
        self.points.extend(newest);
        self.fell_at_ms = newest.map(|newest| newest.at_ms);
        self.changed_at_ms = self.fell_at_ms;
    }

    /// Adds a point that is no older than the newest one; returns the newest one.
    pub(super) fn append(&mut self, point: Point) -> Option<Point> {
        let Point { at_ms, value } = point;
        let Some(last) = self.points.back_mut() else {
            if !is_stale(value) {
                self.points.push_back(point);
            }
            return self.points.back().copied();
        };
        let replaces = last.at_ms == at_ms;
        if value < last.value || is_stale(value) || replaces && last.value.is_nan() {
            self.fell_at_ms = Some(at_ms);
        }
        if replaces || value.to_bits() != last.value.to_bits() {
            self.changed_at_ms = Some(at_ms);
        }
        if replaces {
            *last = point;
        } else if !(is_stale(last.value) && is_stale(value)) {
            self.points.push_back(point);
        }
        self.trim(at_ms);
        self.points.back().copied()
    }

    /// Drops points out of range; the newest point stays.
    fn trim(&mut self, now_ms: i64) {
        let reach = now_ms.saturating_sub(self.retain_ms);
        while self.points.len() > 1 && self.points.front().is_some_and(|first| first.at_ms <= reach)
        {
            self.points.pop_front();
        }
        while self.points.len() > MAX_SAMPLES {
            self.cut_at_ms = self.points.pop_front().map(|point| point.at_ms);
        }
    }

    /// Adds counts at these sorted instants to all later points.
    pub(super) fn raise(&mut self, since_ms: &[i64]) {
        self.points.iter_mut().for_each(|point| point.raise(since_ms));
        self.changed_at_ms = self.points.back().map(|newest| newest.at_ms);
    }

    /// The newest point at or before an instant.
    pub(super) fn at(&self, at_ms: i64) -> Option<Point> {
        let end = self.points.partition_point(|point| point.at_ms <= at_ms);
        self.points.get(end.checked_sub(1)?).copied()
    }

    /// The points after `after_ms`, up to and including `to_ms`.
    pub(super) fn window(&self, after_ms: i64, to_ms: i64) -> Window<'_> {
        let never_falls = self.fell_at_ms.is_none_or(|fell| fell <= after_ms);
        Window::new(&self.points, after_ms, to_ms, never_falls)
    }

    /// Whether the window from after `after_ms` to `to_ms` has at least two points, all with the
    /// same finite value. False for windows that end before the newest point.
    pub(super) fn is_flat(&self, after_ms: i64, to_ms: i64) -> bool {
        let mut newest = self.points.iter().rev();
        let (Some(last), Some(before)) = (newest.next(), newest.next()) else { return false };
        let is_within = last.at_ms <= to_ms && before.at_ms > after_ms;
        let oldest_ms = self.points.front().map_or(after_ms, |first| first.at_ms.max(after_ms));
        let never_changes = self.changed_at_ms.is_none_or(|changed| changed <= oldest_ms);
        is_within && never_changes && last.value.is_finite()
    }

    /// Whether any points were dropped by the bound on samples.
    pub(super) fn is_cut(&self) -> bool {
        self.cut_at_ms.is_some()
    }

    /// Whether points after an instant were dropped by the bound on samples.
    pub(super) fn is_cut_after(&self, after_ms: i64) -> bool {
        self.cut_at_ms.is_some_and(|cut_at_ms| cut_at_ms > after_ms)
    }
}
