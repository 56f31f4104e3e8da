//! Changes of alerts.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{AlertState, Moment, Reading, RuleId, as_number};

/// An alert went from one state to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertChange {
    /// Time of the change.
    pub at: Moment,
    /// Rule of the alert.
    pub rule: RuleId,
    /// Which of the rule's alerts: labels after templating.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// The state before.
    pub from: AlertState,
    /// The state now.
    pub to: AlertState,
    /// The expression's value; `Unsupported`, and not in JSON, where it yields none any more: at
    /// the change to inactive.
    #[serde(with = "as_number", default = "no_value", skip_serializing_if = "is_no_value")]
    pub value: Reading<f64>,
    /// Annotations after templating, for people.
    pub annotations: BTreeMap<Arc<str>, String>,
}

fn no_value() -> Reading<f64> {
    Reading::Unsupported
}

fn is_no_value(value: &Reading<f64>) -> bool {
    *value == Reading::Unsupported
}
