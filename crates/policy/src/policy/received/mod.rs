//! Received alerts: those that fire, as series that rules read.
//!
//! The fingerprint identifies an alert; a later start begins it again. Posts may be repeated, cut,
//! late or out of order, and the clock of their sender may differ. So only starts of one alert are
//! compared with each other, and the time since the last repetition counts on this clock.

mod series;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use self::series::{ReceivedCells, Slots};
use super::counters::Counters;
use crate::model::{
    ALERTS, Event, FORGET_RECEIVED_AFTER, Moment, PastReceived, ProgramEvent, ReceivedAlert,
    ReceivedAlertStatus, ReceivedAlerts, ReceivedIgnored, ReceivedStatus, ReceivedTurn,
};

/// Most alerts, including those that ended lately.
const MOST_ALERTS: usize = 2_000;

/// An ended alert does not fire again for this time unless it started again: one of two
/// Alertmanagers may repeat an old state late. After that its state counts again, since an alert
/// fires on where only its evaluator was away.
const RESOLVED_HOLDS: Duration = Duration::from_secs(300);

/// Interval of writing the series. Rules read values of the last five minutes.
const EVERY: Duration = Duration::from_secs(1);

const TOO_MANY: &str = "more alerts fire than are kept";
const NO_PAST: &str = "which alerts earlier runs have received is not known yet";

/// The received alerts.
#[derive(Debug)]
pub(super) struct TrackedAlerts {
    forget_after: Duration,
    /// The tracked alerts, by their fingerprints.
    alerts: BTreeMap<Arc<str>, TrackedAlert>,
    /// The ended ones: time of the report, and fingerprint.
    over: BTreeSet<(Duration, Arc<str>)>,
    slots: Slots,
    cells: ReceivedCells,
    /// Nothing ends before, on the uptime clock.
    next_end: Duration,
    /// When the series are written next.
    next_write: Duration,
    /// Until then there may be alerts of which nothing is kept at all.
    blind_until: Option<Duration>,
    awaits_past: bool,
    /// Whether rules cannot know all that fires.
    has_gap: bool,
    has_changed: bool,
    /// Whether what has come of a change is not shown yet.
    is_unsettled: bool,
    status: Arc<[ReceivedAlertStatus]>,
}

#[derive(Debug)]
struct TrackedAlert {
    alert: Arc<ReceivedAlert>,
    is_firing: bool,
    /// When it was last reported.
    reported: Moment,
    /// When it is forgotten.
    ends: Duration,
    /// Its series, if it fires and a slot was free.
    slot: Option<usize>,
}

/// The parts of the policy that an alert changes.
pub(super) struct ReceivedContext<'a> {
    pub(super) at: Moment,
    pub(super) counters: &'a mut Counters,
    pub(super) store: &'a mut SeriesStore,
    pub(super) events: &'a mut Vec<Event>,
}

impl ReceivedContext<'_> {
    fn report_turn(&mut self, cells: &ReceivedCells, to: ReceivedTurn, alert: &Arc<ReceivedAlert>) {
        cells.count_turn(to, self.counters);
        let kind = ProgramEvent::ReceivedAlert { to, alert: Arc::clone(alert) };
        self.events.push(Event { kind: kind.into(), utc: Some(self.at.utc), seq: None });
    }
}

impl TrackedAlerts {
    pub(super) fn new(counters: &mut Counters, store: &mut SeriesStore) -> Self {
        Self {
            forget_after: FORGET_RECEIVED_AFTER,
            alerts: BTreeMap::new(),
            over: BTreeSet::new(),
            slots: Slots::default(),
            cells: ReceivedCells::new(counters, store),
            next_end: Duration::MAX,
            next_write: Duration::ZERO,
            blind_until: None,
            awaits_past: false,
            has_gap: false,
            has_changed: false,
            is_unsettled: false,
            status: Arc::new([]),
        }
    }

    /// Sets after how long an alert without a repeat is forgotten.
    pub(super) fn set_forget_after(&mut self, forget_after: Duration) {
        self.forget_after = forget_after;
    }

    /// Which alerts fire is not known before the past is.
    pub(super) fn await_past(&mut self, store: &mut SeriesStore) {
        self.awaits_past = true;
        self.set_gap(store);
    }

    /// Those that fire, by fingerprint; the same `Arc` while nothing changes.
    pub(super) fn statuses(&mut self) -> Arc<[ReceivedAlertStatus]> {
        if std::mem::take(&mut self.has_changed) {
            let firing = self.alerts.values().filter(|tracked| tracked.is_firing);
            self.status = firing.map(TrackedAlert::status).collect();
        }
        Arc::clone(&self.status)
    }

    /// A post has come, or a part of one. What comes of it shows with the next [`Self::advance`].
    pub(super) fn take(&mut self, post: &ReceivedAlerts, context: &mut ReceivedContext<'_>) {
        if !post.is_rest {
            self.cells.count_post(post, context.at, context.counters);
        }
        for alert in &post.alerts {
            if let Err(ignored) = self.take_alert(alert, context) {
                self.cells.count_ignored(ignored, context.counters);
            }
        }
        self.is_unsettled = true;
    }

    /// Restores the alerts of an earlier run. Their last repetition is unknown, so the time
    /// restarts.
    pub(super) fn restore(&mut self, past: &[PastReceived], context: &mut ReceivedContext<'_>) {
        self.awaits_past = false;
        for PastReceived { to, alert, utc } in past {
            if self.alerts.contains_key(&alert.fingerprint) {
                // A later report wins.
                continue;
            }
            match to {
                ReceivedTurn::Firing => _ = self.begin(alert, context),
                ReceivedTurn::Resolved if utc.is_some_and(|utc| is_recent(utc, context.at)) => {
                    // Without space for it, the alert may begin again if it comes late.
                    let _ = self.keep_end(alert, context.at);
                }
                // No sender has resolved it.
                ReceivedTurn::Resolved | ReceivedTurn::Forgotten => {}
            }
        }
        self.settle(context);
    }

    /// Drops unrepeated alerts, and writes the series.
    pub(super) fn advance(&mut self, context: &mut ReceivedContext<'_>) {
        let now = context.at.uptime;
        if self.next_end <= now {
            self.forget(context);
            self.is_unsettled = true;
        }
        if self.blind_until.is_some_and(|until| until <= now) {
            self.blind_until = None;
            self.is_unsettled = true;
        }
        if self.is_unsettled {
            self.settle(context);
        }
        if self.next_write <= now {
            self.next_write = now.saturating_add(EVERY);
            self.slots.write(context.at, context.store);
        }
    }

    fn take_alert(
        &mut self,
        alert: &Arc<ReceivedAlert>,
        context: &mut ReceivedContext<'_>,
    ) -> Result<(), ReceivedIgnored> {
        let forget_after = self.forget_after;
        let Some(tracked) = self.alerts.get_mut(&alert.fingerprint) else {
            return match alert.status {
                ReceivedStatus::Firing => self.begin_firing(alert, context),
                ReceivedStatus::Resolved => self.keep_end(alert, context.at),
            };
        };
        let is_older = alert.starts_at < tracked.alert.starts_at;
        let is_newer = alert.starts_at > tracked.alert.starts_at;
        let is_recent = context.at.uptime.saturating_sub(tracked.reported.uptime) < RESOLVED_HOLDS;
        match (tracked.is_firing, alert.status) {
            (true, ReceivedStatus::Resolved) if is_older => Err(ReceivedIgnored::Outdated),
            (true, ReceivedStatus::Resolved) => {
                self.end(alert, ReceivedTurn::Resolved, context);
                Ok(())
            }
            (true, ReceivedStatus::Firing) if is_newer => {
                // Its end was not reported.
                self.release(&alert.fingerprint, context);
                self.begin_firing(alert, context)
            }
            (true, ReceivedStatus::Firing) => {
                // What is outdated shows that it fires on, and does not make that shorter.
                let least = if is_older { tracked.ends } else { Duration::ZERO };
                tracked.repeat(alert, context.at, forget_after, least);
                self.next_end = self.next_end.min(tracked.ends);
                self.has_changed = true;
                Err(if is_older { ReceivedIgnored::Outdated } else { ReceivedIgnored::Repeated })
            }
            (false, ReceivedStatus::Firing) if is_newer || !is_recent => {
                self.begin_firing(alert, context)
            }
            (false, ReceivedStatus::Firing) => Err(ReceivedIgnored::Outdated),
            (false, ReceivedStatus::Resolved) if is_newer => self.keep_end(alert, context.at),
            (false, ReceivedStatus::Resolved) => Err(match is_older {
                true => ReceivedIgnored::Outdated,
                false => ReceivedIgnored::Repeated,
            }),
        }
    }

    fn begin_firing(
        &mut self,
        alert: &Arc<ReceivedAlert>,
        context: &mut ReceivedContext<'_>,
    ) -> Result<(), ReceivedIgnored> {
        let begun = self.begin(alert, context);
        if self.alerts.get(&alert.fingerprint).is_some_and(|tracked| tracked.is_firing) {
            context.report_turn(&self.cells, ReceivedTurn::Firing, alert);
        }
        begun
    }

    /// It fires from now on. An error: it is no series, or not even tracked.
    fn begin(
        &mut self,
        alert: &Arc<ReceivedAlert>,
        context: &mut ReceivedContext<'_>,
    ) -> Result<(), ReceivedIgnored> {
        self.make_space(alert, context.at)?;
        let ends = ends(alert, context.at, self.forget_after);
        let (alert, reported) = (Arc::clone(alert), context.at);
        let fingerprint = Arc::clone(&alert.fingerprint);
        self.keep(TrackedAlert { alert, is_firing: true, reported, ends, slot: None });
        self.next_end = self.next_end.min(ends);
        self.has_changed = true;
        if self.show(&fingerprint, context) { Ok(()) } else { Err(ReceivedIgnored::TooMany) }
    }

    /// It has ended, which is kept for a while, so that what comes late does not begin it again.
    fn keep_end(&mut self, alert: &ReceivedAlert, at: Moment) -> Result<(), ReceivedIgnored> {
        self.make_space(alert, at)?;
        let ends = at.uptime.saturating_add(self.forget_after.max(RESOLVED_HOLDS));
        let bare = ReceivedAlert {
            fingerprint: Arc::clone(&alert.fingerprint),
            labels: BTreeMap::new(),
            by: alert.by.clone(),
            ..*alert
        };
        let alert = Arc::new(bare);
        self.keep(TrackedAlert { alert, is_firing: false, reported: at, ends, slot: None });
        self.next_end = self.next_end.min(ends);
        Ok(())
    }

    fn keep(&mut self, tracked: TrackedAlert) {
        let fingerprint = Arc::clone(&tracked.alert.fingerprint);
        self.drop_known(&fingerprint);
        if !tracked.is_firing {
            self.over.insert((tracked.reported.uptime, Arc::clone(&fingerprint)));
        }
        self.alerts.insert(fingerprint, tracked);
    }

    fn drop_known(&mut self, fingerprint: &Arc<str>) {
        if let Some(tracked) = self.alerts.remove(fingerprint)
            && !tracked.is_firing
        {
            self.over.remove(&(tracked.reported.uptime, Arc::clone(fingerprint)));
        }
    }

    /// What has ended the longest ago gives way.
    fn make_space(&mut self, alert: &ReceivedAlert, at: Moment) -> Result<(), ReceivedIgnored> {
        if self.alerts.len() < MOST_ALERTS || self.alerts.contains_key(&alert.fingerprint) {
            return Ok(());
        }
        match self.over.pop_first() {
            Some((_, fingerprint)) => {
                self.alerts.remove(&fingerprint);
                Ok(())
            }
            None => {
                if alert.status == ReceivedStatus::Firing {
                    self.blind_until = Some(at.uptime.saturating_add(self.forget_after));
                }
                Err(ReceivedIgnored::TooMany)
            }
        }
    }

    /// It fires no more.
    fn end(
        &mut self,
        alert: &Arc<ReceivedAlert>,
        to: ReceivedTurn,
        context: &mut ReceivedContext<'_>,
    ) {
        self.release(&alert.fingerprint, context);
        // The report of the end may have other labels; the published ones count.
        let shown = self.alerts.get(&alert.fingerprint).map(|tracked| &tracked.alert.labels);
        let ended = match shown.filter(|shown| **shown != alert.labels) {
            Some(shown) => {
                Arc::new(ReceivedAlert { labels: shown.clone(), ..ReceivedAlert::clone(alert) })
            }
            None => Arc::clone(alert),
        };
        context.report_turn(&self.cells, to, &ended);
        // Without space for it, the alert may begin again if it comes late.
        let _ = self.keep_end(&ended, context.at);
    }

    /// Takes its series away.
    fn release(&mut self, fingerprint: &str, context: &mut ReceivedContext<'_>) {
        self.has_changed = true;
        if let Some(slot) = self.alerts.get_mut(fingerprint).and_then(|tracked| tracked.slot.take())
        {
            self.slots.release(slot, context.at, context.store);
        }
    }

    /// Gives it a series, unless all of them are taken. Returns whether it has one.
    fn show(&mut self, fingerprint: &str, context: &mut ReceivedContext<'_>) -> bool {
        let Some(tracked) = self.alerts.get_mut(fingerprint) else { return false };
        tracked.slot = self.slots.take(&tracked.alert.labels, context.at, context.store);
        tracked.slot.is_some()
    }

    fn forget(&mut self, context: &mut ReceivedContext<'_>) {
        let now = context.at.uptime;
        let due: Vec<Arc<ReceivedAlert>> = self
            .alerts
            .values()
            .filter(|tracked| tracked.ends <= now)
            .map(|tracked| Arc::clone(&tracked.alert))
            .collect();
        for alert in due {
            let is_firing =
                self.alerts.get(&alert.fingerprint).is_some_and(|tracked| tracked.is_firing);
            if is_firing {
                self.end(&alert, ReceivedTurn::Forgotten, context);
            }
            // An expired alert may fire again.
            self.drop_known(&alert.fingerprint);
        }
        self.next_end =
            self.alerts.values().map(|tracked| tracked.ends).min().unwrap_or(Duration::MAX);
    }

    /// Shows what has come of a change.
    fn settle(&mut self, context: &mut ReceivedContext<'_>) {
        self.is_unsettled = false;
        let firing = self.alerts.values().filter(|tracked| tracked.is_firing).count();
        self.cells.set_firing(firing, context.counters);
        self.show_left_out(context);
        self.set_gap(context.store);
    }

    /// Publishes alerts over the bound once others have ended: their sender may not repeat them
    /// for hours.
    fn show_left_out(&mut self, context: &mut ReceivedContext<'_>) {
        let left_out = self.alerts.values().filter(|tracked| tracked.is_left_out());
        let left_out: Vec<_> =
            left_out.map(|tracked| Arc::clone(&tracked.alert.fingerprint)).collect();
        for fingerprint in left_out {
            if !self.show(&fingerprint, context) {
                break;
            }
            self.has_changed = true;
        }
    }

    fn set_gap(&mut self, store: &mut SeriesStore) {
        let has_too_many =
            self.blind_until.is_some() || self.alerts.values().any(TrackedAlert::is_left_out);
        let gap = match (self.awaits_past, has_too_many) {
            (true, _) => Some(NO_PAST),
            (false, true) => Some(TOO_MANY),
            (false, false) => None,
        };
        if gap.is_some() || self.has_gap {
            store.set_gap(ALERTS, gap);
        }
        self.has_gap = gap.is_some();
    }
}

impl TrackedAlert {
    fn is_left_out(&self) -> bool {
        self.is_firing && self.slot.is_none()
    }

    /// `least`: it ends no sooner.
    fn repeat(
        &mut self,
        alert: &ReceivedAlert,
        at: Moment,
        forget_after: Duration,
        least: Duration,
    ) {
        self.reported = at;
        self.ends = ends(alert, at, forget_after).max(least);
    }

    fn status(&self) -> ReceivedAlertStatus {
        let left = self.ends.saturating_sub(self.reported.uptime);
        ReceivedAlertStatus {
            alert: Arc::clone(&self.alert),
            last_received: self.reported.utc,
            forgotten: self.reported.utc.checked_add(left).unwrap_or(self.reported.utc),
            is_series: self.slot.is_some(),
        }
    }
}

/// When a firing alert expires: at its own end if that is in the future, or else without a
/// repetition.
fn ends(alert: &ReceivedAlert, at: Moment, forget_after: Duration) -> Duration {
    let ahead = alert.ends_at.and_then(|ends| Duration::try_from(ends.duration_since(at.utc)).ok());
    let lasts = ahead
        .filter(|ahead| !ahead.is_zero())
        .map_or(forget_after, |ahead| ahead.min(forget_after));
    at.uptime.saturating_add(lasts)
}

/// Whether an end at that time prevents a late report from starting it again.
fn is_recent(utc: jiff::Timestamp, at: Moment) -> bool {
    Duration::try_from(at.utc.duration_since(utc)).is_ok_and(|ago| ago < RESOLVED_HOLDS)
}
