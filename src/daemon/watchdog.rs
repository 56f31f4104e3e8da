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
            let age = clock::uptime().saturating_sub(status.load().at.uptime);
            if !is_alive(age, patience) {
                tracing::error!(
                    "the loop has not sampled for {:.1} s; after {} s systemd restarts umawarden",
                    age.as_secs_f64(),
                    patience.as_secs()
                );
                continue;
            }
            if let Err(error) = sd_notify::notify(&[NotifyState::Watchdog]) {
                tracing::debug!("cannot notify systemd: {error}");
            }
        }
    };
    std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch).map(drop)
}

/// systemd ends the process once `patience` is over without a notification. They are a quarter of
/// it apart.
fn is_alive(age: Duration, patience: Duration) -> bool {
    age <= patience / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_alive_for_half_of_the_watchdogs_patience() {
        let minute = Duration::from_secs(60);
        assert!(is_alive(Duration::ZERO, minute) && is_alive(minute / 2, minute));
        assert!(!is_alive(minute / 2 + Duration::from_millis(1), minute));
    }
}
