//! When a feature is tried again after errors.

use std::time::Duration;

use crate::clients::kubernetes::ApiError;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// The errors of one feature.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    not_before: Duration,
    /// The error that was reported last.
    reported: Option<String>,
    /// The refusal of a single request that was reported last.
    refusal: Option<String>,
}

impl Backoff {
    /// Whether it may be tried at that time on the uptime clock.
    pub(super) fn may_try(&self, now: Duration) -> bool {
        now >= self.not_before
    }

    /// It has worked.
    pub(super) fn succeeded(&mut self, feature: &str) {
        if self.reported.is_some() {
            tracing::info!(feature, "Kubernetes answers again");
        }
        *self = Self { refusal: self.refusal.take(), ..Self::default() };
    }

    /// A single request was refused, which delays no other. Each refusal is logged once.
    pub(super) fn refused(&mut self, feature: &str, error: &ApiError) {
        let text = error.to_string();
        if self.refusal.as_ref() != Some(&text) {
            tracing::warn!(feature, error = text, "Kubernetes request refused");
            self.refusal = Some(text);
        }
    }

    /// It has failed. `spread`, from 0 to 1, keeps the nodes of a cluster apart. An error is logged
    /// once.
    pub(super) fn failed(&mut self, feature: &str, error: &ApiError, now: Duration, spread: f64) {
        let text = error.to_string();
        if self.reported.as_ref() != Some(&text) {
            tracing::warn!(feature, error = text, "Kubernetes request failed");
            self.reported = Some(text);
        }
        let wait = match error.code() {
            // It takes a person to mend these.
            Some(401 | 403 | 404 | 405 | 422) => LONGEST,
            _ => FIRST.saturating_mul(1 << self.failures.min(9)).min(LONGEST),
        };
        let wait = wait.mul_f64(0.8 + 0.4 * spread);
        // Never before the server wants it; nor do all nodes that it has put off return at once.
        let put_off = error.retry_after().unwrap_or_default().min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.not_before = now.saturating_add(wait.max(put_off.mul_f64(1.0 + 0.4 * spread)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, after: Option<u64>) -> ApiError {
        let retry_after = after.map(Duration::from_secs);
        ApiError::Refused { doing: "a", code, message: String::new(), retry_after }
    }

    #[test]
    fn waits_grow_to_five_minutes_and_heed_the_server() {
        let away = ApiError::Unreachable { server: "s".to_owned(), what: "is away".to_owned() };
        let mut backoff = Backoff::default();
        let mut waits = Vec::new();
        for _ in 0..12 {
            backoff.failed("events", &away, Duration::ZERO, 0.5);
            waits.push(backoff.not_before.as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        backoff.succeeded("events");
        assert!(backoff.may_try(Duration::ZERO));
        for (error, seconds) in [
            (refused(403, None), 300),
            (refused(429, Some(20)), 24),
            (refused(429, Some(86_400)), 360),
            (refused(500, None), 1),
        ] {
            let mut backoff = Backoff::default();
            backoff.failed("events", &error, Duration::ZERO, 0.5);
            assert_eq!(backoff.not_before.as_secs(), seconds, "{error}");
        }
    }

    #[test]
    fn nodes_of_a_cluster_do_not_ask_at_once_nor_before_the_server_wants_it() {
        let wait = |error: ApiError, spread| {
            let mut backoff = Backoff::default();
            backoff.failed("events", &error, Duration::ZERO, spread);
            backoff.not_before.as_secs()
        };
        assert_eq!([0.0, 1.0].map(|spread| wait(refused(403, None), spread)), [240, 360]);
        assert_eq!([0.0, 1.0].map(|spread| wait(refused(429, Some(20)), spread)), [20, 28]);
    }
}
