//! A journal that was lost: what was counted of reboots is lost with it. Then none is done for as
//! long as the longest budget reaches back, by uptimes as all that is counted of reboots.

use std::time::Duration;

use super::{RebootContext, RebootHold, Reboots};
use crate::model::{Event, HoldReason, Moment, PastReboots, ProgramEvent, Reading, duration_text};

/// How often the journal was lost in this process.
const LOST: &str = "uma_journal_lost_total";

/// The last loss of the journal.
#[derive(Debug, Default)]
pub(super) struct Loss {
    /// When it was noticed last, on the uptime clock of this boot, in milliseconds.
    since_ms: Option<i64>,
    /// It was not reported yet.
    is_new: bool,
    /// Number of losses that the journal has reported.
    reported: f64,
}

impl Loss {
    /// What earlier runs have noted.
    pub(super) fn restore(&mut self, known: &PastReboots) {
        self.since_ms = self.since_ms.max(known.lost_ms);
        self.is_new |= known.is_newly_lost;
    }

    /// A person takes the budget for whole.
    pub(super) fn clear(&mut self) {
        (self.since_ms, self.is_new) = (None, false);
    }
}

impl Reboots {
    /// Reports a lost journal, so that the new one has the time of the loss.
    pub(super) fn notice_loss(&mut self, context: &mut RebootContext<'_>) {
        if let Reading::Value(reported) = context.store.latest_of(LOST, &[]) {
            self.loss.is_new |= reported > self.loss.reported;
            self.loss.reported = reported;
        }
        if !std::mem::take(&mut self.loss.is_new) {
            return;
        }
        let uptime_ms = context.at.timeline_ms();
        self.loss.since_ms = Some(uptime_ms);
        self.has_changed = true;
        let boot_id = self.boot_id.as_deref().unwrap_or_default().to_owned();
        let kind = ProgramEvent::JournalLost { boot_id, uptime_ms };
        Self::report(context, Event { kind: kind.into(), utc: Some(context.at.utc), seq: None });
    }

    /// Whether reboots may be missing from what is counted.
    pub(super) fn is_journal_lost(&self, now_ms: i64) -> bool {
        let longest = i64::try_from(self.longest_budget().as_millis()).unwrap_or(i64::MAX);
        self.loss.is_new
            || self.loss.since_ms.is_some_and(|since| now_ms.saturating_sub(since) < longest)
    }

    /// Why none is done then.
    pub(super) fn loss_holds(&self, at: Moment) -> Option<RebootHold> {
        let now_ms = at.timeline_ms();
        self.is_journal_lost(now_ms).then(|| {
            let since = self.loss.since_ms.map_or(0, |since| now_ms.saturating_sub(since));
            let since = Duration::from_millis(u64::try_from(since).unwrap_or_default());
            let left = self.longest_budget().saturating_sub(since);
            let left = duration_text(Duration::from_secs(left.as_secs().div_ceil(60).max(1) * 60));
            let text = format!(
                "the journal was lost, and with it what was counted of reboots: that matters for \
                 {left} of uptime more, or until umawarden reboot --clear"
            );
            RebootHold::new(HoldReason::JournalUnreadable, text)
        })
    }

    fn longest_budget(&self) -> Duration {
        self.settings.at_most.iter().map(|budget| budget.per).max().unwrap_or_default()
    }
}
