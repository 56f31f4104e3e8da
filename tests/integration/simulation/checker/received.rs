//! Invariants of received alerts: all posts, stored as simply as possible.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use umawarden::model::{
    EarlierRuns, EventKind, Moment, Observation, ProgramEvent, ReceivedAlert, ReceivedStatus,
    ReceivedTurn,
};
use umawarden::policy::Step;
use umawarden::policy::status::Status;

use super::shapes::{Expected, Selector, Shape, labels_of_alert};
use super::{Checker, Clock, Labels, Violation, Watched, broken};

/// How long a resolved alert does not fire again, unless it began again.
const RESOLVED_IS_KEPT: Duration = Duration::from_secs(300);

/// Limits for known alerts, for those that are series at once, and for series with a past.
const MAX_KNOWN: usize = 2_000;
const MAX_SHOWN: usize = 250;
const MAX_SERIES: usize = 500;

#[derive(Default)]
pub struct Received {
    forget_after: Duration,
    awaits_past: bool,
    known: BTreeMap<Arc<str>, Known>,
    /// Label sets of firing alerts.
    shown: BTreeSet<Labels>,
    /// More were known than are kept, so the kept ones are unknown from outside.
    is_beyond: bool,
    /// Turns to be reported in this step.
    turns: Vec<(Arc<str>, ReceivedTurn)>,
}

struct Known {
    starts_at: Timestamp,
    fires: bool,
    labels: Labels,
    received_at: Duration,
    ends: Duration,
}

impl Received {
    pub fn begin(&mut self) {
        let forget_after = self.forget_after;
        *self = Self { forget_after, awaits_past: true, ..Self::default() };
    }

    pub fn set_forget_after(&mut self, forget_after: Duration) {
        self.forget_after = forget_after;
    }

    pub fn see(&mut self, clock: &Clock, seen: &Observation) {
        match seen {
            Observation::ReceivedAlerts(post) => {
                for alert in &post.alerts {
                    self.take_alert(clock.at, alert);
                }
            }
            Observation::Past(past) => self.remember(clock.at, past),
            _ => return,
        }
        self.settle();
    }

    fn settle(&mut self) {
        let firing = self.known.values().filter(|known| known.fires);
        self.shown = firing.map(|known| known.labels.clone()).collect();
        self.is_beyond |= self.known.len() > MAX_KNOWN;
    }

    fn take_alert(&mut self, at: Moment, alert: &ReceivedAlert) {
        let fires = alert.status == ReceivedStatus::Firing;
        let ends = self.ends(at, alert);
        let Some(known) = self.known.get_mut(&alert.fingerprint) else {
            return if fires { self.fire(at, alert, true) } else { self.keep_end(at, alert) };
        };
        let (is_older, is_newer) =
            (alert.starts_at < known.starts_at, alert.starts_at > known.starts_at);
        let is_kept = at.uptime.saturating_sub(known.received_at) < RESOLVED_IS_KEPT;
        match (known.fires, fires) {
            (true, true) if is_newer => self.fire(at, alert, true),
            // It still fires; an outdated end does not shorten that.
            (true, true) => {
                known.received_at = at.uptime;
                known.ends = if is_older { known.ends.max(ends) } else { ends };
            }
            (true, false) if !is_older => {
                self.turns.push((Arc::clone(&alert.fingerprint), ReceivedTurn::Resolved));
                self.keep_end(at, alert);
            }
            (false, true) if is_newer || !is_kept => self.fire(at, alert, true),
            (false, false) if is_newer => self.keep_end(at, alert),
            _ => {}
        }
    }

    fn ends(&self, at: Moment, alert: &ReceivedAlert) -> Duration {
        let ahead = alert.ends_at.filter(|ends| *ends > at.utc);
        let ahead = ahead.map(|ends| Duration::try_from(ends.duration_since(at.utc)).unwrap());
        at.uptime + ahead.unwrap_or(Duration::MAX).min(self.forget_after)
    }

    fn fire(&mut self, at: Moment, alert: &ReceivedAlert, is_news: bool) {
        if is_news {
            self.turns.push((Arc::clone(&alert.fingerprint), ReceivedTurn::Firing));
        }
        let ends = self.ends(at, alert);
        let known = Known {
            starts_at: alert.starts_at,
            fires: true,
            labels: alert.labels.clone(),
            received_at: at.uptime,
            ends,
        };
        self.known.insert(Arc::clone(&alert.fingerprint), known);
    }

    fn keep_end(&mut self, at: Moment, alert: &ReceivedAlert) {
        let known = Known {
            starts_at: alert.starts_at,
            fires: false,
            labels: Labels::new(),
            received_at: at.uptime,
            ends: at.uptime + self.forget_after.max(RESOLVED_IS_KEPT),
        };
        self.known.insert(Arc::clone(&alert.fingerprint), known);
    }

    fn remember(&mut self, at: Moment, past: &EarlierRuns) {
        self.awaits_past = false;
        for stored in &past.received {
            let ago = stored.utc.map(|utc| at.utc.duration_since(utc));
            let is_kept = ago
                .and_then(|ago| Duration::try_from(ago).ok())
                .is_some_and(|ago| ago < RESOLVED_IS_KEPT);
            if self.known.contains_key(&stored.alert.fingerprint) {
                continue;
            }
            match stored.to {
                ReceivedTurn::Firing => self.fire(at, &stored.alert, false),
                ReceivedTurn::Resolved if is_kept => self.keep_end(at, &stored.alert),
                // No post has resolved it.
                ReceivedTurn::Resolved | ReceivedTurn::Forgotten => {}
            }
        }
    }

    /// Alerts that are no longer repeated.
    fn forget(&mut self, now: Duration) {
        let turns = &mut self.turns;
        let before = self.known.len();
        self.known.retain(|fingerprint, known| {
            let is_over = known.ends <= now;
            if is_over && known.fires {
                turns.push((Arc::clone(fingerprint), ReceivedTurn::Forgotten));
            }
            !is_over
        });
        if self.known.len() != before {
            self.settle();
        }
    }

    fn is_unknown(&self) -> bool {
        self.awaits_past || self.shown.len() > MAX_SHOWN
    }

    fn matching(&self, selector: &Selector) -> Vec<&Labels> {
        let is_so = |labels: &&Labels| {
            selector.iter().all(|(name, value)| {
                labels.get(name.as_str()).is_some_and(|known| **known == **value)
            })
        };
        self.shown.iter().filter(is_so).collect()
    }

    /// Alerts of a rule of that shape now.
    fn expected(&self, watched: &Watched) -> Option<Expected> {
        let mut expected = Expected::new();
        match &watched.shape {
            Shape::Each(selector) => {
                for labels in self.matching(selector) {
                    let mut labels = labels_of_alert(watched, labels);
                    labels.insert(Arc::from("alertstate"), Arc::from("firing"));
                    expected.insert(labels, 1.0);
                }
            }
            Shape::Count { selector, by, more_than } => {
                let mut counts: BTreeMap<Labels, f64> = BTreeMap::new();
                for labels in self.matching(selector) {
                    let kept =
                        labels.iter().filter(|(name, _)| by.iter().any(|by| **by == ***name));
                    let kept = kept.map(|(name, value)| (Arc::clone(name), Arc::clone(value)));
                    *counts.entry(kept.collect()).or_default() += 1.0;
                }
                counts.retain(|_, count| *count > *more_than);
                let counts = counts.into_iter();
                expected.extend(
                    counts.map(|(labels, count)| (labels_of_alert(watched, &labels), count)),
                );
            }
            _ => return None,
        }
        Some(expected)
    }

    /// Whether a required input of the rule is missing.
    fn forbids(&self, watched: &Watched) -> Option<String> {
        let (selector, needs) = match &watched.shape {
            Shape::Each(selector) | Shape::Needs(selector) => (selector, true),
            Shape::Absent(selector) | Shape::Forbids(selector) => (selector, false),
            Shape::Count { selector, .. } => (selector, true),
            Shape::Nodes { .. } | Shape::Other => return None,
        };
        let found = self.matching(selector);
        (found.is_empty() == needs).then(|| format!("{selector:?}: {found:?}"))
    }
}

/// Whether a rule reads received alerts.
fn reads_alerts(watched: &Watched) -> bool {
    watched.rule.expr.text.contains("ALERTS")
}

/// Whether the condition may be known to be false where not all alerts are known: the other side is
/// empty, or a known alert is there.
fn may_end_without(shape: &Shape) -> bool {
    matches!(shape, Shape::Needs(_) | Shape::Forbids(_) | Shape::Absent(_))
}

impl Checker {
    /// After all observations, and before the decisions are checked.
    pub(super) fn received_turns(&mut self, clock: &Clock, step: &Step) -> Result<(), Violation> {
        if !step.is_only_counted {
            self.received.forget(clock.at.uptime);
        }
        let mut turns = std::mem::take(&mut self.received.turns);
        if self.received.is_beyond {
            return Ok(());
        }
        let reported = step.events.iter().filter_map(|event| match &event.kind {
            EventKind::Program(ProgramEvent::ReceivedAlert { to, alert }) => {
                Some((Arc::clone(&alert.fingerprint), *to))
            }
            _ => None,
        });
        let mut reported: Vec<_> = reported.collect();
        turns.sort();
        reported.sort();
        if turns == reported {
            return Ok(());
        }
        let what = format!("at {:?}\nexpected {turns:?}\nreported {reported:?}", clock.at);
        broken("each received alert is reported once when it turns", what)
    }

    /// Decisions and reports about alerts agree with the received ones.
    pub(super) fn received_is_respected(
        &mut self,
        clock: &Clock,
        step: &Step,
    ) -> Result<(), Violation> {
        let received = &self.received;
        for change in &step.alerts {
            let Some(watched) = self.rules.get(&change.rule).filter(|rule| reads_alerts(rule))
            else {
                continue;
            };
            let is_needed = change.to != umawarden::model::AlertState::Inactive
                || !may_end_without(&watched.shape);
            if received.is_unknown() && is_needed {
                let what = format!("{change:?}");
                return broken("unknown alerts are unknown to every rule", what);
            }
            let Some(expected) = received.expected(watched).filter(|_| !received.is_beyond) else {
                continue;
            };
            let begins = change.to != umawarden::model::AlertState::Inactive;
            let value = expected.get(&change.labels);
            if begins != value.is_some() || begins && change.value.value() != value.copied() {
                let what = format!("{change:?}: {expected:?}");
                return broken("a rule sees the received alerts that fire, and no others", what);
            }
        }
        for decision in &step.decisions {
            let Some(watched) = self.rules.get(&decision.rule).filter(|rule| reads_alerts(rule))
            else {
                continue;
            };
            if !decision.is_act() || decision.action.is_undo() {
                continue;
            }
            let is_kept = !watched.rule.keep_firing_for.is_zero();
            if received.is_unknown() && !(is_kept && may_end_without(&watched.shape)) {
                return broken("unknown alerts are unknown to every rule", format!("{decision:?}"));
            }
            if let Some(why) = received.forbids(watched).filter(|_| !is_kept && !received.is_beyond)
            {
                let what = format!("{why}: {decision:?} at {:?}", clock.at);
                return broken("nothing is done for an alert that is over", what);
            }
        }
        self.received_shows(clock)
    }

    /// A rule that reads received alerts has the state that they give it, from its next evaluation
    /// on.
    fn received_shows(&mut self, clock: &Clock) -> Result<(), Violation> {
        let now = clock.at.uptime;
        let received = &self.received;
        let is_known = self.has_measured && !received.is_unknown() && !received.is_beyond;
        for (id, watched) in &mut self.rules {
            if !reads_alerts(watched) {
                continue;
            }
            let expected = received.expected(watched).filter(|_| is_known);
            let wrong = expected.and_then(|expected| watched.differs_from(&expected, false));
            if let Some(wrong) = watched.differs_for_long(wrong, now, self.slowness) {
                let what = format!("{id} {wrong}");
                return broken("a rule has the state that the received alerts give it", what);
            }
        }
        Ok(())
    }

    pub(super) fn check_received(&self, status: &Status) -> Result<(), Violation> {
        const INVARIANT: &str = "received alerts are bounded, and were posted";
        let series = status.series.iter().filter(|key| *key.name == *"ALERTS").count();
        let firing = status.received.len();
        let expected = self.received.known.values().filter(|known| known.fires).count();
        let is_as_expected = self.received.is_beyond || firing == expected;
        if series > MAX_SERIES || firing > MAX_KNOWN || !is_as_expected {
            let what = format!("{series} series, {firing} fire, {expected} should");
            return broken(INVARIANT, what);
        }
        Ok(())
    }
}
