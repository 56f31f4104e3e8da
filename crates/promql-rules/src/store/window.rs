//! The samples of one series within a range.

use std::collections::VecDeque;

use super::{Point, is_stale};

/// A view of a series' points, which skips the markers that end it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window<'s> {
    older: &'s [Point],
    newer: &'s [Point],
    /// The point of a series that keeps no others.
    only: Option<Point>,
    never_falls: bool,
}

impl<'s> Window<'s> {
    /// The points after `after_ms`, up to and including `to_ms`. `never_falls` promises that none
    /// of them is below the one before it, or ends the series.
    pub(super) fn new(
        points: &'s VecDeque<Point>,
        after_ms: i64,
        to_ms: i64,
        never_falls: bool,
    ) -> Self {
        let (older, newer) = points.as_slices();
        let within = |points: &'s [Point]| {
            let start = points.partition_point(|point| point.at_ms <= after_ms);
            let end = points.partition_point(|point| point.at_ms <= to_ms);
            points.get(start..end).unwrap_or(&[])
        };
        Self { older: within(older), newer: within(newer), only: None, never_falls }
    }

    /// The same for a series with at most one point.
    pub(super) fn of_one(point: Option<Point>, after_ms: i64, to_ms: i64) -> Self {
        let only = point.filter(|point| point.at_ms > after_ms && point.at_ms <= to_ms);
        Self { only, ..Self::default() }
    }

    /// The number of samples, if none is certainly below the one before it.
    pub fn count_if_never_falling(self) -> Option<usize> {
        self.never_falls.then_some(self.older.len() + self.newer.len())
    }

    /// The samples, from the oldest to the newest.
    pub fn points(self) -> impl DoubleEndedIterator<Item = Point> + Clone + 's {
        let kept = self.older.iter().chain(self.newer).copied();
        kept.chain(self.only).filter(|point| !is_stale(point.value))
    }
}
