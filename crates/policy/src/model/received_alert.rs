//! Alerts received from an Alertmanager.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::named;

/// Name of the series of received alerts, as in Prometheus.
pub const ALERTS: &str = "ALERTS";

/// Time after which a firing alert without repetition is forgotten. Alertmanager repeats every four
/// hours by default, with some delay.
pub const FORGET_RECEIVED_AFTER: Duration = Duration::from_secs(5 * 3600);

/// The status of an alert in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceivedStatus {
    /// The alert fires.
    Firing,
    /// The alert has ended.
    Resolved,
}

/// One alert of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivedAlert {
    /// Identifies the alert.
    pub fingerprint: Arc<str>,
    /// Whether it fires.
    pub status: ReceivedStatus,
    /// Start of the alert, by the clock of its sender.
    pub starts_at: Timestamp,
    /// Time of its end, past or expected, if it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// Its labels within the limits.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Name of the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Arc<str>>,
}

impl ReceivedAlert {
    /// Name of the alert.
    pub fn name(&self) -> &str {
        self.labels.get("alertname").map_or("(no alertname)", |name| &**name)
    }
}

/// Written like a series, with all special characters escaped, since labels are not trusted.
impl fmt::Display for ReceivedAlert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name().escape_debug())?;
        let others = self.labels.iter().filter(|(name, _)| &***name != "alertname");
        for (index, (name, value)) in others.enumerate() {
            write!(f, "{}{name}={value:?}", if index == 0 { '{' } else { ',' })?;
        }
        if self.labels.keys().any(|name| &**name != "alertname") {
            f.write_str("}")?;
        }
        Ok(())
    }
}

/// The alerts of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivedAlerts {
    /// The alerts, in the order of the request.
    pub alerts: Vec<Arc<ReceivedAlert>>,
    /// Whether they are the rest of a request of which a part was accepted before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_rest: bool,
    /// Labels beyond the limits, of all alerts together.
    #[serde(default)]
    pub unusable_labels: u64,
    /// Alerts that the sender has left out.
    #[serde(default)]
    pub truncated: u64,
}

named! {
    /// A change of a received alert.
    pub enum ReceivedTurn {
        /// It has begun to fire.
        Firing = "firing",
        /// It has ended.
        Resolved = "resolved",
        /// It was not repeated in time, or its end has passed.
        Forgotten = "forgotten",
    }
}

impl ReceivedTurn {
    /// The change in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Firing => "fires",
            Self::Resolved => "is resolved",
            Self::Forgotten => "is forgotten, since it was not repeated",
        }
    }
}

named! {
    /// Why a received alert has changed nothing.
    pub enum ReceivedIgnored {
        /// It was known already.
        Repeated = "repeated",
        /// A newer state of it was received.
        Outdated = "outdated",
        /// The most alerts that can be kept are firing.
        TooMany = "too_many",
    }
}

/// The last known change of an alert, from an earlier run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastReceived {
    /// The change.
    pub to: ReceivedTurn,
    /// The alert as it was received.
    pub alert: Arc<ReceivedAlert>,
    /// Time of the change, on the wall clock.
    pub utc: Option<Timestamp>,
}

/// A received alert that fires, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReceivedAlertStatus {
    /// The alert as it was received.
    #[serde(flatten)]
    pub alert: Arc<ReceivedAlert>,
    /// Time of the last request with the alert.
    pub last_received: Timestamp,
    /// Time at which it is forgotten unless repeated.
    pub forgotten: Timestamp,
    /// Whether it is a series that rules can read. More fire than can be if not.
    pub is_series: bool,
}
