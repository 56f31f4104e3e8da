//! The node's memory in the last seconds. An engine is found some time after it began, and may have
//! taken much by then; its last living sample is read when it may be dead.

use std::collections::VecDeque;
use std::time::Duration;

use super::release::Levels;

/// Points that are kept, and the least time between two: a scan of `/proc` may take ten seconds.
const POINTS: usize = 64;
const APART: Duration = Duration::from_millis(250);

/// What was measured longer before an instant says nothing about it.
const NEAR: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct RecentLevels {
    points: VecDeque<(Duration, Levels)>,
}

impl RecentLevels {
    pub(super) fn new() -> Self {
        Self { points: VecDeque::with_capacity(POINTS) }
    }

    /// Memory was measured then. The newest point is always kept, however near the last one is.
    pub(super) fn take(&mut self, at: Duration, levels: Levels) {
        if self.points.back().is_some_and(|(newest, _)| *newest >= at) {
            return;
        }
        let before = self.points.len().checked_sub(2).and_then(|place| self.points.get(place));
        if before.is_some_and(|(before, _)| at.saturating_sub(*before) < APART) {
            self.points.pop_back();
        } else if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back((at, levels));
    }

    /// What there was then, as last measured.
    pub(super) fn at(&self, at: Duration) -> Option<Levels> {
        let (measured, levels) = self.points.iter().rev().find(|(measured, _)| *measured <= at)?;
        (at.saturating_sub(*measured) <= NEAR).then_some(*levels)
    }
}
