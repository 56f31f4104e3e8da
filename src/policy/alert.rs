//! The life cycle of alerts: inactive, pending, firing, and back.

use std::sync::Arc;
use std::time::Duration;

use promql_rules::{Labels, Sample};

use super::rule::Rule;
use super::status::AlertStatus;
use crate::model::{AlertChange, AlertState, Moment, Reading};

/// The active alerts of one rule, one for each label set.
#[derive(Clone, Debug, Default)]
pub(super) struct Alerts {
    active: Vec<Alert>,
}

#[derive(Clone, Debug)]
struct Alert {
    labels: Labels,
    annotations: Vec<(Arc<str>, String)>,
    state: AlertState,
    active_since: Moment,
    /// On the uptime clock; moved forward by time that cannot be told.
    held_from: Duration,
    /// When the condition ended, while `keep_firing_for` lasts.
    ended_from: Option<Duration>,
    value: f64,
    seen: bool,
}

impl Alerts {
    /// Takes the result of an evaluation: every sample is an alert whose condition holds.
    ///
    /// An error leaves everything as it was: two samples may give the same alert once templates are
    /// filled in.
    pub(super) fn update(
        &mut self,
        rule: &Rule,
        at: Moment,
        samples: &[Sample],
        changes: &mut Vec<AlertChange>,
    ) -> Result<(), String> {
        if samples.is_empty() && self.active.is_empty() {
            return Ok(());
        }
        let mut current: Vec<Alert> =
            samples.iter().map(|sample| Alert::new(rule, at, sample)).collect();
        current.sort_by(|left, right| left.labels.cmp(&right.labels));
        if let Some(pair) = current.windows(2).find(|pair| pair[0].labels == pair[1].labels) {
            return Err(format!(
                "two samples give one alert, {:?}: keep a label that tells them apart",
                pair[0].labels
            ));
        }
        for alert in &mut self.active {
            alert.seen = false;
        }
        for alert in current {
            match self.active.iter_mut().find(|known| known.labels == alert.labels) {
                Some(known) => known.refresh(alert),
                None => {
                    changes.push(alert.change(rule, AlertState::Inactive, at));
                    self.active.push(alert);
                }
            }
        }
        for alert in &mut self.active {
            alert.advance(rule, at, changes);
        }
        self.active.retain(|alert| alert.state != AlertState::Inactive);
        Ok(())
    }

    /// The condition cannot be told: nothing advances, nothing resolves.
    pub(super) fn stand_still(&mut self, unknown_for: Duration) {
        for alert in &mut self.active {
            alert.held_from += unknown_for;
            if let Some(ended_from) = &mut alert.ended_from {
                *ended_from += unknown_for;
            }
        }
    }

    /// The most advanced of the alerts.
    pub(super) fn state(&self) -> AlertState {
        let states = self.active.iter().map(|alert| alert.state);
        states.max().unwrap_or(AlertState::Inactive)
    }

    /// Labels and value of a firing alert: the one whose condition has held for the longest.
    pub(super) fn firing(&self) -> Option<(&Labels, f64)> {
        self.firing_where(|_| true)
    }

    /// The same of those with such labels.
    pub(super) fn firing_where(
        &self,
        is_meant: impl Fn(&Labels) -> bool,
    ) -> Option<(&Labels, f64)> {
        let firing = self.active.iter().filter(|alert| alert.state == AlertState::Firing);
        let firing = firing.filter(|alert| is_meant(&alert.labels));
        let first = firing.min_by_key(|alert| alert.held_from)?;
        Some((&first.labels, first.value))
    }

    /// For exports.
    pub(super) fn statuses(&self) -> Vec<AlertStatus> {
        self.active.iter().map(Alert::status).collect()
    }

    /// Ends all alerts, since their rule has gone or has changed.
    pub(super) fn end(&mut self, rule: &Rule, at: Moment, changes: &mut Vec<AlertChange>) {
        for mut alert in self.active.drain(..) {
            let from = alert.state;
            alert.state = AlertState::Inactive;
            changes.push(alert.change(rule, from, at));
        }
    }
}

impl Alert {
    fn new(rule: &Rule, at: Moment, sample: &Sample) -> Self {
        let own = rule.labels.iter().map(|(name, template)| {
            (Arc::clone(name), Arc::from(template.render(&sample.labels, sample.value)))
        });
        let mut labels: Vec<(Arc<str>, Arc<str>)> = own.collect();
        labels.retain(|(name, _)| &**name != "alertname");
        labels.push((Arc::from("alertname"), Arc::clone(&rule.id.alert)));
        for (name, value) in sample.labels.iter() {
            if !labels.iter().any(|(known, _)| known == name) {
                labels.push((Arc::clone(name), Arc::clone(value)));
            }
        }
        labels.retain(|(_, value)| !value.is_empty());
        labels.sort();
        let annotations = rule.annotations.iter().map(|(name, template)| {
            (Arc::clone(name), template.render(&sample.labels, sample.value))
        });
        Self {
            labels: labels.into(),
            annotations: annotations.collect(),
            state: AlertState::Pending,
            active_since: at,
            held_from: at.uptime,
            ended_from: None,
            value: sample.value,
            seen: true,
        }
    }

    fn refresh(&mut self, newer: Self) {
        self.value = newer.value;
        self.annotations = newer.annotations;
        self.ended_from = None;
        self.seen = true;
    }

    fn advance(&mut self, rule: &Rule, at: Moment, changes: &mut Vec<AlertChange>) {
        let from = self.state;
        if self.seen {
            let held = at.uptime.saturating_sub(self.held_from);
            if from == AlertState::Pending && held >= rule.hold_for {
                self.state = AlertState::Firing;
            }
        } else {
            let ended_from = *self.ended_from.get_or_insert(at.uptime);
            let keeps_firing = from == AlertState::Firing
                && at.uptime.saturating_sub(ended_from) < rule.keep_firing_for;
            if !keeps_firing {
                self.state = AlertState::Inactive;
            }
        }
        if self.state != from {
            changes.push(self.change(rule, from, at));
        }
    }

    fn change(&self, rule: &Rule, from: AlertState, at: Moment) -> AlertChange {
        AlertChange {
            rule: rule.id.clone(),
            labels: self.labels.iter().cloned().collect(),
            from,
            to: self.state,
            at,
            // The expression yields no value for an alert that has ended; the last one is history.
            value: match self.state {
                AlertState::Inactive => Reading::Unsupported,
                AlertState::Pending | AlertState::Firing => Reading::Value(self.value),
            },
            annotations: self.annotations.iter().cloned().collect(),
        }
    }

    fn status(&self) -> AlertStatus {
        AlertStatus {
            labels: self.labels.to_vec(),
            annotations: self.annotations.clone(),
            state: self.state,
            active_since: self.active_since,
            value: self.value,
        }
    }
}
