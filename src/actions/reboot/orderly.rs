//! Reboots through logind, which respects inhibitors; through systemd, if there is no logind.

use std::time::Duration;

use super::Attempt;
use crate::supervisors::logind::{Bus, BusError, Inhibitor, Logind};
use crate::supervisors::systemd::Systemd;
use crate::supervisors::{NotEnded, within};

/// The time limit of the call that reboots: logind responds once it has begun, and inhibitors that
/// delay it have 5 s (InhibitDelayMaxSec=) after that.
const REBOOTING_TAKES: Duration = Duration::from_secs(10);

/// The time limit of all calls together, below that of an action.
const ALL_TAKES: Duration = Duration::from_secs(22);

/// The most inhibitors that are named.
const MOST_NAMED: usize = 3;

pub(super) fn perform(bus: &Bus) -> Attempt {
    let bus = bus.clone();
    let result = within("reboot-logind", ALL_TAKES, move || async move { request(&bus).await });
    result.unwrap_or_else(|not_ended| match not_ended {
        NotEnded::TimedOut => Attempt::Hangs("logind has not answered in time".to_owned()),
        NotEnded::Broken(why) => Attempt::Failed(why),
    })
}

async fn request(bus: &Bus) -> Attempt {
    match logind(bus).await {
        Ok(attempt) => attempt,
        Err(BusError::Absent(no_logind)) => match systemd(bus).await {
            Ok(()) => Attempt::Agreed("systemd reboots the machine; there is no logind".into()),
            Err(BusError::Silent(why)) => Attempt::Hangs(why),
            Err(error) => Attempt::Failed(format!("{no_logind}; {error}")),
        },
        Err(BusError::Silent(why)) => Attempt::Hangs(why),
        Err(error) => Attempt::Failed(error.to_string()),
    }
}

async fn systemd(bus: &Bus) -> Result<(), BusError> {
    Systemd::connect(bus).await?.reboot(REBOOTING_TAKES).await
}

async fn logind(bus: &Bus) -> Result<Attempt, BusError> {
    let logind = Logind::connect(bus).await?;
    let may = logind.can_reboot().await?;
    // Queried first: inhibitors explain other responses than yes.
    let blockers = logind.blockers().await?;
    if !blockers.is_empty() {
        return Ok(Attempt::Refused(format!("a reboot is blocked by {}", named(&blockers))));
    }
    if may != "yes" {
        return Ok(Attempt::Refused(format!(
            "logind answers {may:?} when asked whether this program may reboot: it must run as \
             root, or polkit allow it org.freedesktop.login1.reboot"
        )));
    }
    logind.reboot(REBOOTING_TAKES).await?;
    Ok(Attempt::Agreed("logind reboots the machine".to_owned()))
}

fn named(blockers: &[Inhibitor]) -> String {
    let named = blockers.iter().take(MOST_NAMED).map(ToString::to_string);
    let mut named = named.collect::<Vec<_>>().join(", ");
    if let more @ 1.. = blockers.len().saturating_sub(MOST_NAMED) {
        named.push_str(&format!(" and {more} more"));
    }
    named
}
