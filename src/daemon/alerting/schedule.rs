//! When an Alertmanager is sent alerts, and when again.

use std::time::Duration;

/// The pause after the first failure, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The schedule of one Alertmanager.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Schedule {
    /// The version of the last set that it accepted.
    sent: u64,
    /// When to send again, by uptime.
    next: Duration,
    failures: u32,
}

impl Schedule {
    /// How long to wait while nothing changes; `None`: send now.
    pub(super) fn waits(&self, now: Duration, version: u64) -> Option<Duration> {
        let is_news = self.failures == 0 && version != self.sent;
        let left = self.next.saturating_sub(now);
        (!is_news && !left.is_zero()).then_some(left)
    }

    /// It accepted the set, or there was nothing to send.
    pub(super) fn succeeded(&mut self, now: Duration, version: u64, resend_every: Duration) {
        *self = Self { sent: version, next: now.saturating_add(resend_every), failures: 0 };
    }

    /// It did not accept the set. `chance`, from 0 to 1, spreads the retries of many nodes.
    pub(super) fn failed(&mut self, now: Duration, resend_every: Duration, chance: f64) {
        self.failures = self.failures.saturating_add(1);
        let doubled = FIRST_PAUSE.saturating_mul(1 << (self.failures - 1).min(10));
        let pause = doubled.min(LONGEST_PAUSE).min(resend_every);
        self.next = now.saturating_add(pause.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0));
    }

    /// Whether it failed the last time.
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
    fn changes_are_sent_at_once_and_everything_again_periodically() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.waits(SECOND, 1), None);
        schedule.succeeded(SECOND, 1, EVERY);
        assert_eq!(schedule.waits(SECOND * 2, 1), Some(SECOND * 59));
        assert_eq!(schedule.waits(SECOND * 2, 2), None, "something is new");
        assert_eq!(schedule.waits(SECOND * 61, 1), None);
    }

    #[test]
    fn a_failing_server_is_retried_with_growing_delays_despite_changes() {
        let mut schedule = Schedule::default();
        let mut waits = Vec::new();
        for version in 0..9 {
            schedule.failed(SECOND, EVERY, 1.0);
            waits.push(schedule.waits(SECOND, version).unwrap().as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        schedule.failed(SECOND, EVERY, 0.0);
        assert_eq!(schedule.waits(SECOND, 0), Some(SECOND * 30), "not all at once");
        for _ in 0..10_000 {
            schedule.failed(SECOND, SECOND * 5, 1.0);
        }
        assert_eq!(
            schedule.waits(SECOND, 0),
            Some(SECOND * 5),
            "no longer than the resend interval"
        );
        schedule.succeeded(SECOND, 7, EVERY);
        schedule.failed(SECOND, EVERY, 1.0);
        assert_eq!(schedule.waits(SECOND, 7), Some(SECOND), "the first pause is short again");
    }
}
