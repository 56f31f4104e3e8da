//! What was observed of something over the last minutes: closely for the last seconds, sparsely
//! before.

use std::collections::VecDeque;
use std::time::Duration;

/// How far back every observation is kept that is not too near to another. Collapses took 1.5 to
/// 9 s.
pub(super) const CLOSE: Duration = Duration::from_secs(10);

/// How far back anything is kept: memory that goes at 8 MiB/s has lost 2.4 GiB within that time.
pub(super) const LONG: Duration = Duration::from_secs(300);

/// Observations that are nearer to each other add nothing.
pub(super) const APART: Duration = Duration::from_millis(100);

/// The same beyond the last seconds.
const SPARSE: Duration = Duration::from_secs(5);

/// Observations in the order of their times.
#[derive(Debug)]
pub(super) struct History<T> {
    sparse: VecDeque<(Duration, T)>,
    close: VecDeque<(Duration, T)>,
}

impl<T> Default for History<T> {
    fn default() -> Self {
        Self { sparse: VecDeque::new(), close: VecDeque::new() }
    }
}

impl<T> History<T> {
    /// Adds the newest; one that comes too soon takes the place of the one before.
    pub(super) fn push(&mut self, at: Duration, observed: T) {
        while let Some((first, _)) = self.close.front()
            && at.saturating_sub(*first) > CLOSE
            && let Some((first, old)) = self.close.pop_front()
        {
            let last = self.sparse.back().map(|(last, _)| *last);
            if last.is_none_or(|last| first.saturating_sub(last) >= SPARSE) {
                self.sparse.push_back((first, old));
            }
        }
        while self.sparse.front().is_some_and(|(first, _)| at.saturating_sub(*first) > LONG) {
            self.sparse.pop_front();
        }
        // The one before stays the first of its time.
        let before = self.close.len().checked_sub(2).and_then(|place| self.close.get(place));
        if before.is_some_and(|(before, _)| at.saturating_sub(*before) < APART) {
            self.close.pop_back();
        }
        self.close.push_back((at, observed));
    }

    /// All, oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &(Duration, T)> {
        self.sparse.iter().chain(&self.close)
    }

    /// Those from that time on, oldest first.
    pub(super) fn since(&self, from: Duration) -> impl DoubleEndedIterator<Item = &(Duration, T)> {
        self.iter().filter(move |(at, _)| *at >= from)
    }

    /// The last one up to that time.
    pub(super) fn up_to(&self, until: Duration) -> Option<&(Duration, T)> {
        self.iter().rev().find(|(at, _)| *at <= until)
    }

    /// The newest.
    pub(super) fn last(&self) -> Option<&(Duration, T)> {
        self.close.back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_is_dense_for_seconds_and_sparse_for_minutes() {
        let mut history = History::default();
        for step in 0..400_000_u64 {
            history.push(Duration::from_millis(step), step);
        }
        let last = Duration::from_millis(399_999);
        assert_eq!(history.last().unwrap().1, 399_999);
        let close = history.since(last - CLOSE).count();
        assert!((100..=110).contains(&close), "{close}");
        let all: Vec<Duration> = history.iter().map(|(at, _)| *at).collect();
        assert!(all.len() <= 175, "{}", all.len());
        assert!(all.is_sorted());
        assert!(last - all[0] <= LONG && last - all[0] > LONG - SPARSE * 2);
        assert!(all.windows(2).all(|two| two[1] - two[0] <= SPARSE + APART));
        let (at, step) = history.up_to(last - CLOSE / 2).unwrap();
        assert_eq!(at.as_millis(), u128::from(*step));
        assert!(last - CLOSE / 2 - *at <= APART, "{at:?}");
    }
}
