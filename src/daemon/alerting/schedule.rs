//! When an Alertmanager is told, and told again.

use std::time::Duration;

/// After the first failure, and after many.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How it has gone with one Alertmanager.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Course {
    /// Which set it was told last.
    told: u64,
    /// When it is told again, on the uptime clock.
    next: Duration,
    failures: u32,
}

impl Course {
    /// How long it may wait while nothing changes; `None`: it is to be told now.
    pub(super) fn waits(&self, now: Duration, version: u64) -> Option<Duration> {
        let is_news = self.failures == 0 && version != self.told;
        let left = self.next.saturating_sub(now);
        (!is_news && !left.is_zero()).then_some(left)
    }

    /// It has taken that set, or there was nothing to tell.
    pub(super) fn succeeded(&mut self, now: Duration, version: u64, resend_every: Duration) {
        *self = Self { told: version, next: now.saturating_add(resend_every), failures: 0 };
    }

    /// It has not taken it. `chance`, from 0 to 1, keeps many nodes from coming back at once.
    pub(super) fn failed(&mut self, now: Duration, resend_every: Duration, chance: f64) {
        self.failures = self.failures.saturating_add(1);
        let doubled = FIRST_PAUSE.saturating_mul(1 << (self.failures - 1).min(10));
        let pause = doubled.min(LONGEST_PAUSE).min(resend_every);
        self.next = now.saturating_add(pause.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0));
    }

    /// Whether it did not take what it was told last.
    pub(super) fn has_failed(&self) -> bool {
        self.failures > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const EVERY: Duration = Duration::from_secs(60);

    #[test]
    fn it_is_told_at_once_of_what_is_new_and_again_in_time() {
        let mut course = Course::default();
        assert_eq!(course.waits(SECOND, 1), None);
        course.succeeded(SECOND, 1, EVERY);
        assert_eq!(course.waits(SECOND * 2, 1), Some(SECOND * 59));
        assert_eq!(course.waits(SECOND * 2, 2), None, "something is new");
        assert_eq!(course.waits(SECOND * 61, 1), None);
    }

    #[test]
    fn one_that_fails_is_left_alone_longer_and_longer_whatever_is_new() {
        let mut course = Course::default();
        let mut waits = Vec::new();
        for version in 0..9 {
            course.failed(SECOND, EVERY, 1.0);
            waits.push(course.waits(SECOND, version).unwrap().as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        course.failed(SECOND, EVERY, 0.0);
        assert_eq!(course.waits(SECOND, 0), Some(SECOND * 30), "not all at once");
        for _ in 0..10_000 {
            course.failed(SECOND, SECOND * 5, 1.0);
        }
        assert_eq!(course.waits(SECOND, 0), Some(SECOND * 5), "no longer than it is told anyway");
        course.succeeded(SECOND, 7, EVERY);
        course.failed(SECOND, EVERY, 1.0);
        assert_eq!(course.waits(SECOND, 7), Some(SECOND), "the first pause is short again");
    }
}
