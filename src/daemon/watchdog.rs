//! systemd's watchdog (`WatchdogSec=`). It is notified while the loop samples.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use sd_notify::NotifyState;

use super::clock;
use crate::policy::status::Status;

/// Starts the watchdog's thread if systemd wants to be notified. The loop cannot do it: systemd may
/// not read, and then a notification waits.
pub(super) fn start(status: Arc<ArcSwap<Status>>) -> io::Result<()> {
    let Some(patience) = sd_notify::watchdog_enabled() else { return Ok(()) };
    let watch = move || {
        loop {
            std::thread::sleep(patience / 4);
            let notify = || sd_notify::notify(&[NotifyState::Watchdog]);
            check(&status.load(), clock::uptime(), patience, notify);
        }
    };
    std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch).map(drop)
}

/// Notifies systemd unless the loop hangs.
fn check(
    status: &Status,
    now: Duration,
    patience: Duration,
    notify: impl FnOnce() -> io::Result<()>,
) {
    let age = now.saturating_sub(status.at.uptime);
    if !is_alive(age, patience) {
        tracing::error!(
            ?age,
            ?patience,
            effect = "systemd restarts umawarden after that patience",
            "the loop has not sampled"
        );
        return;
    }
    if let Err(error) = notify() {
        tracing::debug!(%error, "cannot notify systemd");
    }
}

/// systemd ends the process once `patience` is over without a notification. They are a quarter of
/// it apart.
fn is_alive(age: Duration, patience: Duration) -> bool {
    age <= patience / 2
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use jiff::Timestamp;

    use super::*;
    use crate::model::{DecisionId, Mode, Moment};
    use crate::policy::Policy;
    use crate::policy::rule::RuleSet;

    /// As in the packaged unit.
    const PATIENCE: Duration = Duration::from_secs(120);

    fn sampled(uptime: Duration) -> Status {
        let at = Moment { uptime, utc: Timestamp::UNIX_EPOCH };
        Policy::new(at, Mode::Observe, &RuleSet::default(), DecisionId(1)).status(at)
    }

    /// The seconds at which systemd is notified within ten minutes, while the loop samples every
    /// five seconds, but not in `hangs`.
    fn notified(hangs: &Range<u64>) -> Vec<u64> {
        let status = ArcSwap::from_pointee(sampled(Duration::ZERO));
        let mut notified = Vec::new();
        for second in (0..600).step_by(5) {
            let now = Duration::from_secs(second);
            if !hangs.contains(&second) {
                status.store(Arc::new(sampled(now)));
            }
            if second % 30 == 0 {
                let notify = || {
                    notified.push(second);
                    Ok(())
                };
                check(&status.load(), now, PATIENCE, notify);
            }
        }
        notified
    }

    #[test]
    fn systemd_is_notified_until_the_loop_has_hung_for_half_of_the_watchdogs_patience() {
        let each: Vec<u64> = (0..600).step_by(30).collect();
        assert_eq!(notified(&(600..700)), each);
        // The last sample is of 195 s. systemd ends the process 120 s after the last notification.
        let hung = notified(&(200..600));
        assert_eq!(hung.last(), Some(&240), "{hung:?}");
        let recovered = notified(&(200..330));
        let missing: Vec<u64> =
            each.into_iter().filter(|second| !recovered.contains(second)).collect();
        assert_eq!(missing, [270, 300]);
    }

    #[test]
    fn a_loop_is_alive_for_half_of_the_watchdogs_patience() {
        let minute = Duration::from_secs(60);
        assert!(is_alive(Duration::ZERO, minute) && is_alive(minute / 2, minute));
        assert!(!is_alive(minute / 2 + Duration::from_millis(1), minute));
    }
}
