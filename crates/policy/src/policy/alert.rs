//! What the life cycle of alerts takes from a rule, and what is reported of alerts.

use std::sync::Arc;
use std::time::Duration;

use promql_rules::template::Template;
use promql_rules::{Alert, AlertRule};

use super::rule::Rule;
use super::status::AlertStatus;
use crate::model::{AlertChange, AlertState, Moment, Reading};

impl AlertRule for Rule {
    fn name(&self) -> &Arc<str> {
        &self.id.alert
    }

    fn hold_for(&self) -> Duration {
        self.hold_for
    }

    fn keep_firing_for(&self) -> Duration {
        self.keep_firing_for
    }

    fn labels(&self) -> &[(Arc<str>, Template)] {
        &self.labels
    }

    fn annotations(&self) -> &[(Arc<str>, Template)] {
        &self.annotations
    }
}

/// The report of an alert of that rule that was in the state `from` before.
pub(super) fn change(
    rule: &Rule,
    alert: &Alert<Moment>,
    from: AlertState,
    at: Moment,
) -> AlertChange {
    AlertChange {
        rule: rule.id.clone(),
        labels: alert.labels.iter().cloned().collect(),
        from,
        to: alert.state,
        at,
        // The expression yields no value for an alert that has ended; the last one is history.
        value: match alert.state {
            AlertState::Inactive => Reading::Unsupported,
            AlertState::Pending | AlertState::Firing => Reading::Value(alert.value),
        },
        annotations: alert.annotations.iter().cloned().collect(),
    }
}

/// The state of an active alert, for exports.
pub(super) fn status(alert: &Alert<Moment>) -> AlertStatus {
    AlertStatus {
        labels: alert.labels.to_vec(),
        annotations: alert.annotations.clone(),
        state: alert.state,
        active_since: alert.active_since,
        value: alert.value,
    }
}
