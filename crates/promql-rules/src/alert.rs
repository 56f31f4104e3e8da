//! The life cycle of alerts: inactive, pending, firing, and back.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::template::Template;
use super::{Labels, Sample};

/// An alerting rule: the labels, texts and times of its alerts.
pub trait AlertRule {
    /// The label `alertname` of its alerts.
    fn name(&self) -> &Arc<str>;
    /// How long the condition must hold before an alert fires.
    fn hold_for(&self) -> Duration;
    /// How long an alert keeps firing after the condition ended.
    fn keep_firing_for(&self) -> Duration;
    /// Labels added to the sample's, templates by name.
    fn labels(&self) -> &[(Arc<str>, Template)];
    /// Texts for people, templates by name.
    fn annotations(&self) -> &[(Arc<str>, Template)];
}

/// The state of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertState {
    /// Its condition does not hold.
    Inactive,
    /// Its condition holds, but not for long enough yet.
    Pending,
    /// Its condition has held for long enough.
    Firing,
}

impl AlertState {
    /// The name, as Prometheus writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inactive => "inactive",
            Self::Pending => "pending",
            Self::Firing => "firing",
        }
    }
}

/// The active alerts of one rule, one for each label set. `T` is an instant of the caller.
#[derive(Clone, Debug)]
pub struct Alerts<T> {
    active: Vec<Alert<T>>,
}

/// One alert of a rule.
#[derive(Clone, Debug)]
pub struct Alert<T> {
    /// Labels after templating, `alertname` included.
    pub labels: Labels,
    /// Annotations after templating.
    pub annotations: Vec<(Arc<str>, String)>,
    /// Pending or firing; of one that has just ended, inactive.
    pub state: AlertState,
    /// Since when the condition has held.
    pub active_since: T,
    /// The expression's value.
    pub value: f64,
    /// On the clock of `now`; moved forward by time in which the condition is unknown.
    held_from: Duration,
    /// When the condition ended, while `keep_firing_for` lasts.
    ended_from: Option<Duration>,
    seen: bool,
}

impl<T> Default for Alerts<T> {
    fn default() -> Self {
        Self { active: Vec::new() }
    }
}

impl<T: Copy> Alerts<T> {
    /// Takes the result of an evaluation: every sample is an alert whose condition holds. `now` is
    /// the same instant as `at`, on a clock that never runs backwards. `on_change` gets each alert
    /// that is in another state, with the state before.
    ///
    /// An error changes nothing: two samples may give the same alert once templates are rendered.
    pub fn update(
        &mut self,
        rule: &impl AlertRule,
        at: T,
        now: Duration,
        samples: &[Sample],
        mut on_change: impl FnMut(&Alert<T>, AlertState),
    ) -> Result<(), String> {
        if samples.is_empty() && self.active.is_empty() {
            return Ok(());
        }
        let mut current: Vec<Alert<T>> =
            samples.iter().map(|sample| Alert::new(rule, at, now, sample)).collect();
        current.sort_by(|left, right| left.labels.cmp(&right.labels));
        if let Some(pair) = current.windows(2).find(|pair| pair[0].labels == pair[1].labels) {
            return Err(format!(
                "two samples give one alert, {:?}: keep a label that distinguishes them",
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
                    on_change(&alert, AlertState::Inactive);
                    self.active.push(alert);
                }
            }
        }
        for alert in &mut self.active {
            alert.advance(rule, now, &mut on_change);
        }
        self.active.retain(|alert| alert.state != AlertState::Inactive);
        Ok(())
    }

    /// The condition is unknown: nothing advances, nothing resolves.
    pub fn stand_still(&mut self, unknown_for: Duration) {
        for alert in &mut self.active {
            alert.held_from += unknown_for;
            if let Some(ended_from) = &mut alert.ended_from {
                *ended_from += unknown_for;
            }
        }
    }

    /// The most advanced of the alerts.
    pub fn state(&self) -> AlertState {
        let states = self.active.iter().map(|alert| alert.state);
        states.max().unwrap_or(AlertState::Inactive)
    }

    /// Labels and value of a firing alert: the one whose condition has held for the longest.
    pub fn firing(&self) -> Option<(&Labels, f64)> {
        self.firing_where(|_| true)
    }

    /// The same of those with such labels.
    pub fn firing_where(&self, is_meant: impl Fn(&Labels) -> bool) -> Option<(&Labels, f64)> {
        let firing = self.active.iter().filter(|alert| alert.state == AlertState::Firing);
        let firing = firing.filter(|alert| is_meant(&alert.labels));
        let first = firing.min_by_key(|alert| alert.held_from)?;
        Some((&first.labels, first.value))
    }

    /// The pending and firing alerts.
    pub fn active(&self) -> &[Alert<T>] {
        &self.active
    }

    /// Ends all alerts, since their rule was removed or changed.
    pub fn end(&mut self, mut on_change: impl FnMut(&Alert<T>, AlertState)) {
        for mut alert in self.active.drain(..) {
            let from = alert.state;
            alert.state = AlertState::Inactive;
            on_change(&alert, from);
        }
    }
}

impl<T: Copy> Alert<T> {
    fn new(rule: &impl AlertRule, at: T, now: Duration, sample: &Sample) -> Self {
        let own = rule.labels().iter().map(|(name, template)| {
            (Arc::clone(name), Arc::from(template.render(&sample.labels, sample.value)))
        });
        let mut labels: Vec<(Arc<str>, Arc<str>)> = own.collect();
        labels.retain(|(name, _)| &**name != "alertname");
        labels.push((Arc::from("alertname"), Arc::clone(rule.name())));
        for (name, value) in sample.labels.iter() {
            if !labels.iter().any(|(known, _)| known == name) {
                labels.push((Arc::clone(name), Arc::clone(value)));
            }
        }
        labels.retain(|(_, value)| !value.is_empty());
        labels.sort();
        let annotations = rule.annotations().iter().map(|(name, template)| {
            (Arc::clone(name), template.render(&sample.labels, sample.value))
        });
        Self {
            labels: labels.into(),
            annotations: annotations.collect(),
            state: AlertState::Pending,
            active_since: at,
            held_from: now,
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

    fn advance(
        &mut self,
        rule: &impl AlertRule,
        now: Duration,
        on_change: &mut impl FnMut(&Self, AlertState),
    ) {
        let from = self.state;
        if self.seen {
            let held = now.saturating_sub(self.held_from);
            if from == AlertState::Pending && held >= rule.hold_for() {
                self.state = AlertState::Firing;
            }
        } else {
            let ended_from = *self.ended_from.get_or_insert(now);
            let keeps_firing = from == AlertState::Firing
                && now.saturating_sub(ended_from) < rule.keep_firing_for();
            if !keeps_firing {
                self.state = AlertState::Inactive;
            }
        }
        if self.state != from {
            on_change(self, from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Low {
        labels: Vec<(Arc<str>, Template)>,
        annotations: Vec<(Arc<str>, Template)>,
        name: Arc<str>,
    }

    impl AlertRule for Low {
        fn name(&self) -> &Arc<str> {
            &self.name
        }

        fn hold_for(&self) -> Duration {
            Duration::from_secs(3)
        }

        fn keep_firing_for(&self) -> Duration {
            Duration::from_secs(2)
        }

        fn labels(&self) -> &[(Arc<str>, Template)] {
            &self.labels
        }

        fn annotations(&self) -> &[(Arc<str>, Template)] {
            &self.annotations
        }
    }

    fn rule(labels: &[(&str, &str)]) -> Low {
        let template = |text: &str| Template::parse(text).unwrap();
        let labels = labels.iter().map(|(name, text)| (Arc::from(*name), template(text)));
        let annotations = vec![(Arc::from("summary"), template("{{ $value }} left"))];
        Low { labels: labels.collect(), annotations, name: "Low".into() }
    }

    fn sample(disk: &str, value: f64) -> Sample {
        Sample { name: None, labels: Arc::new([("disk".into(), disk.into())]), value }
    }

    /// The changes of one update: the label `disk`, the state before, the state now.
    fn update(
        alerts: &mut Alerts<u64>,
        rule: &Low,
        second: u64,
        samples: &[Sample],
    ) -> Result<Vec<(String, AlertState, AlertState)>, String> {
        let mut changes = Vec::new();
        let now = Duration::from_secs(second);
        alerts.update(rule, second, now, samples, |alert, from| {
            let disk = alert.labels.iter().find(|(name, _)| &**name == "disk");
            changes.push((disk.unwrap().1.to_string(), from, alert.state));
        })?;
        Ok(changes)
    }

    #[test]
    fn an_alert_is_pending_then_firing_and_ends_later_than_its_condition() {
        use AlertState::{Firing, Inactive, Pending};
        let (rule, mut alerts) = (rule(&[("severity", "warning")]), Alerts::default());
        let a = |from, to| Ok(vec![("a".to_owned(), from, to)]);
        let low = [sample("a", 5.0)];
        assert_eq!(update(&mut alerts, &rule, 10, &low), a(Inactive, Pending));
        assert_eq!(update(&mut alerts, &rule, 12, &low), Ok(vec![]));
        assert_eq!(alerts.firing(), None);
        // A second in which nothing is known does not count.
        alerts.stand_still(Duration::from_secs(1));
        assert_eq!(update(&mut alerts, &rule, 13, &low), Ok(vec![]));
        assert_eq!(update(&mut alerts, &rule, 14, &low), a(Pending, Firing));
        let [alert] = alerts.active() else { panic!("{alerts:?}") };
        assert_eq!((alert.active_since, alert.value), (10, 5.0));
        assert_eq!(alert.annotations, [("summary".into(), "5 left".to_owned())]);
        let labels: Vec<_> = alert.labels.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(labels, [("alertname", "Low"), ("disk", "a"), ("severity", "warning")]);
        assert_eq!(update(&mut alerts, &rule, 15, &[]), Ok(vec![]));
        assert_eq!(alerts.state(), Firing);
        assert_eq!(update(&mut alerts, &rule, 17, &[]), a(Firing, Inactive));
        assert!(alerts.active().is_empty());
    }

    #[test]
    fn samples_that_give_one_alert_are_an_error_and_change_nothing() {
        let (rule, mut alerts) = (rule(&[("disk", "any")]), Alerts::default());
        let two = [sample("a", 1.0), sample("b", 2.0)];
        let error = update(&mut alerts, &rule, 1, &two).unwrap_err();
        assert!(error.starts_with("two samples give one alert"), "{error}");
        assert!(alerts.active().is_empty());
    }

    #[test]
    fn alerts_of_a_removed_rule_end() {
        let (rule, mut alerts) = (rule(&[]), Alerts::default());
        update(&mut alerts, &rule, 1, &[sample("a", 1.0)]).unwrap();
        let mut ended = Vec::new();
        alerts.end(|alert, from| ended.push((from, alert.state)));
        assert_eq!(ended, [(AlertState::Pending, AlertState::Inactive)]);
        assert_eq!(alerts.state(), AlertState::Inactive);
    }
}
