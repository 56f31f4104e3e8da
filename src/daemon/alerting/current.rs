//! The alerts of this node for Alertmanagers: firing ones and those that ended lately.
//!
//! It is a set and not a queue: an unreachable Alertmanager costs nothing, and gets the current set
//! once it is back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use promql_rules::is_label_name;
use serde_json::{Value, json};

use crate::model::{AlertState, Decision, DecisionRecord, Evidence, Mode, Moment, Reading};
use crate::policy::status::{AlertStatus, RuleStatus};

/// The most alerts in the set; firing ones first.
pub(super) const MOST_ALERTS: usize = 500;

/// How long an ended alert is sent, as in Prometheus, since a post may be lost.
pub(super) const ENDED_IS_SENT: Duration = Duration::from_secs(15 * 60);

/// How long an alert of a decision fires after the last such decision.
pub(super) const DECISION_LASTS: Duration = Duration::from_secs(15 * 60);

/// Alert names of decisions.
const DECISION: &str = "UmawardenDecision";

/// Longer texts are truncated.
const MOST_TEXT_CHARS: usize = 1_024;

type CurrentLabels = BTreeMap<Arc<str>, Arc<str>>;

#[derive(Debug, Default)]
pub(super) struct CurrentAlerts {
    /// Labels of every alert.
    common: CurrentLabels,
    alerts: BTreeMap<CurrentLabels, CurrentAlert>,
    /// Firing alerts beyond the limit, which are not sent.
    left_out: usize,
}

#[derive(Clone, Debug)]
struct CurrentAlert {
    annotations: BTreeMap<Arc<str>, String>,
    starts_at: Timestamp,
    /// On both clocks; `None`: firing.
    ended: Option<Moment>,
    /// An alert of a decision ends by itself.
    lasts_until: Option<Duration>,
    is_seen: bool,
}

/// An alert as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) labels: CurrentLabels,
    pub(super) annotations: BTreeMap<Arc<str>, String>,
    pub(super) starts_at: Timestamp,
    /// When it ended; `None`: firing.
    pub(super) ended_at: Option<Timestamp>,
}

impl CurrentAlerts {
    /// An empty set; every alert gets these labels.
    pub(super) fn new(common: CurrentLabels) -> Self {
        Self { common, ..Self::default() }
    }

    /// Updates the alerts of rules. Returns whether the set of firing alerts has changed.
    pub(super) fn update(&mut self, at: Moment, rules: &[RuleStatus]) -> bool {
        let mut has_changed = false;
        self.left_out = 0;
        for current in self.alerts.values_mut() {
            current.is_seen = false;
        }
        let alerts = rules.iter().flat_map(|rule| &rule.alerts);
        for alert in alerts.filter(|alert| alert.state == AlertState::Firing) {
            let annotations = alert.annotations.iter().filter(|(name, _)| is_label_name(name));
            let annotations = annotations.map(|(name, text)| (Arc::clone(name), cut(text)));
            let labels = self.labels_of(alert);
            has_changed |= self.fire(at, labels, annotations.collect(), None);
        }
        for current in self.alerts.values_mut().filter(|current| current.ended.is_none()) {
            let is_over = match current.lasts_until {
                Some(until) => until <= at.uptime,
                None => !current.is_seen,
            };
            if is_over {
                current.ended = Some(at);
                has_changed = true;
            }
        }
        let is_sent = |ended: Moment| at.uptime.saturating_sub(ended.uptime) < ENDED_IS_SENT;
        self.alerts.retain(|_, current| current.ended.is_none_or(is_sent));
        has_changed
    }

    /// Adds a decision. Returns whether its alert is new.
    pub(super) fn decide(&mut self, at: Moment, decision: &DecisionRecord) -> bool {
        let (summary, reason) = match (decision.decision, decision.mode) {
            (Decision::Act, Mode::Enforce) => {
                (format!("{}: {}", decision.rule, decision.deed()), "")
            }
            (Decision::Act, Mode::Observe) => {
                (format!("{}: would {}", decision.rule, decision.deed()), "")
            }
            (Decision::Hold(reason), _) => {
                let what = decision.announced().or_else(|| decision.unenforced());
                let what = what.unwrap_or_else(|| format!("holds {}", decision.deed()));
                (format!("{}: {what}", decision.rule), reason.name())
            }
        };
        let mut labels = self.common.clone();
        for (name, text) in [
            ("alertname", DECISION),
            ("severity", "info"),
            ("rule", &decision.rule.alert),
            ("group", &decision.rule.group),
            ("action", decision.action.name()),
            ("decision", decision.decision.name()),
            ("reason", reason),
            ("mode", decision.mode.name()),
        ] {
            if !text.is_empty() {
                labels.insert(Arc::from(name), Arc::from(text));
            }
        }
        let because: Vec<String> = decision.because.iter().map(evidence_text).collect();
        let annotations = [
            ("summary", cut(&summary)),
            ("description", cut(&because.join(", "))),
            ("decision", decision.id.to_string()),
        ];
        let annotations = annotations.map(|(name, text)| (Arc::from(name), text)).into();
        let until = at.uptime.saturating_add(DECISION_LASTS);
        self.fire(at, labels, annotations, Some(until))
    }

    /// All alerts to send, firing ones first.
    pub(super) fn outgoing(&self) -> Vec<Outgoing> {
        let of = |is_firing: bool| {
            self.alerts.iter().filter(move |(_, current)| current.ended.is_none() == is_firing)
        };
        let all = of(true).chain(of(false));
        all.map(|(labels, current)| Outgoing {
            labels: labels.clone(),
            annotations: current.annotations.clone(),
            starts_at: current.starts_at,
            ended_at: current.ended.map(|ended| ended.utc),
        })
        .collect()
    }

    /// The numbers of firing, ended and omitted alerts.
    pub(super) fn counts(&self) -> [usize; 3] {
        let ended = self.alerts.values().filter(|current| current.ended.is_some()).count();
        [self.alerts.len() - ended, ended, self.left_out]
    }

    fn labels_of(&self, alert: &AlertStatus) -> CurrentLabels {
        let mut labels = self.common.clone();
        let own =
            alert.labels.iter().filter(|(name, text)| is_label_name(name) && !text.is_empty());
        labels.extend(own.map(|(name, text)| (Arc::clone(name), Arc::clone(text))));
        labels
    }

    fn fire(
        &mut self,
        at: Moment,
        labels: CurrentLabels,
        annotations: BTreeMap<Arc<str>, String>,
        lasts_until: Option<Duration>,
    ) -> bool {
        if let Some(current) = self.alerts.get_mut(&labels) {
            (current.annotations, current.lasts_until) = (annotations, lasts_until);
            current.is_seen = true;
            if current.ended.take().is_none() {
                return false;
            }
            current.starts_at = at.utc;
            return true;
        }
        if !self.ensure_space() {
            self.left_out += 1;
            return false;
        }
        let starts_at = at.utc;
        let current =
            CurrentAlert { annotations, starts_at, ended: None, lasts_until, is_seen: true };
        self.alerts.insert(labels, current);
        true
    }

    /// Drops the alert that ended first if the set is full. Returns whether there is space.
    fn ensure_space(&mut self) -> bool {
        if self.alerts.len() < MOST_ALERTS {
            return true;
        }
        let ended = self
            .alerts
            .iter()
            .filter_map(|(labels, current)| Some((current.ended?.uptime, labels.clone())));
        match ended.min() {
            Some((_, labels)) => self.alerts.remove(&labels).is_some(),
            None => false,
        }
    }
}

impl Outgoing {
    /// As JSON of the API. A firing alert ends unless it is sent again.
    pub(super) fn json(&self, now: Timestamp, lasts: Duration, generator: &str) -> Value {
        let ends_at = self.ended_at.unwrap_or_else(|| now.checked_add(lasts).unwrap_or(now));
        // A clock that was set back must not end it before it began.
        let ends_at = ends_at.max(self.starts_at);
        json!({
            "labels": self.labels,
            "annotations": self.annotations,
            "startsAt": format!("{:.3}", self.starts_at),
            "endsAt": format!("{ends_at:.3}"),
            "generatorURL": generator,
        })
    }
}

fn evidence_text(evidence: &Evidence) -> String {
    match evidence.value {
        Reading::Value(value) => format!("{} = {value}", evidence.series),
        Reading::Unsupported => format!("{} is unsupported", evidence.series),
        Reading::Failed => format!("{} failed", evidence.series),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MOST_TEXT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
