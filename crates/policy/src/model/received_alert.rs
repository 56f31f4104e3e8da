//! Alerts that somebody else has found: what an Alertmanager posts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::named;

/// The series that received alerts are, as in Prometheus.
pub const ALERTS: &str = "ALERTS";

/// How long a firing alert is kept where nobody repeats it: Alertmanager does so every four hours
/// unless it is told otherwise, and not to the second.
pub const FORGET_RECEIVED_AFTER: Duration = Duration::from_secs(5 * 3600);

/// What a post says of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceivedStatus {
    /// It fires.
    Firing,
    /// It has ended.
    Resolved,
}

/// One alert, as a post tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivedAlert {
    /// Tells it from all others.
    pub fingerprint: Arc<str>,
    /// Whether it fires.
    pub status: ReceivedStatus,
    /// Since when, by the clock of whoever found it.
    pub starts_at: Timestamp,
    /// When it has ended or will, if that was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// Its labels, those of them that can be kept.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Who posted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Arc<str>>,
}

impl ReceivedAlert {
    /// What people call it.
    pub fn name(&self) -> &str {
        self.labels.get("alertname").map_or("(no alertname)", |name| &**name)
    }
}

/// As a series is written, with everything escaped that is no plain text: labels are whatever
/// somebody else has chosen.
impl fmt::Display for ReceivedAlert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name().escape_debug())?;
        let others = self.labels.iter().filter(|(name, _)| &***name != "alertname");
        for (place, (name, value)) in others.enumerate() {
            write!(f, "{}{name}={value:?}", if place == 0 { '{' } else { ',' })?;
        }
        if self.labels.keys().any(|name| &**name != "alertname") {
            f.write_str("}")?;
        }
        Ok(())
    }
}

/// What one post has brought.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceivedAlerts {
    /// The alerts, in its order.
    pub alerts: Vec<Arc<ReceivedAlert>>,
    /// Whether they are the rest of a post of which a part was taken in before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_rest: bool,
    /// Labels that could not be kept, of all of them together.
    #[serde(default)]
    pub unusable_labels: u64,
    /// Alerts that whoever posted has left out.
    #[serde(default)]
    pub truncated: u64,
}

named! {
    /// What has become of a received alert.
    pub enum ReceivedTurn {
        /// It has begun to fire.
        Firing = "firing",
        /// It has ended.
        Resolved = "resolved",
        /// Nobody has repeated it for too long, or its time was up.
        Forgotten = "forgotten",
    }
}

impl ReceivedTurn {
    /// What is said of the alert.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Firing => "fires",
            Self::Resolved => "is resolved",
            Self::Forgotten => "is forgotten, since nobody repeats it",
        }
    }
}

named! {
    /// Why what was told of an alert has changed nothing.
    pub enum ReceivedIgnored {
        /// It was known already.
        Repeated = "repeated",
        /// Something newer is known of it.
        Outdated = "outdated",
        /// As many fire as can be kept.
        TooMany = "too_many",
    }
}

/// What was last known of an alert, from an earlier run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastReceived {
    /// What had become of it.
    pub to: ReceivedTurn,
    /// The alert.
    pub alert: Arc<ReceivedAlert>,
    /// When that was, on the wall clock.
    pub utc: Option<Timestamp>,
}

/// A received alert that fires, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReceivedAlertStatus {
    /// The alert.
    #[serde(flatten)]
    pub alert: Arc<ReceivedAlert>,
    /// When it was told, or repeated, last.
    pub heard: Timestamp,
    /// When it will be forgotten unless it is repeated.
    pub forgotten: Timestamp,
    /// Whether it is a series that rules can read. More fire than can be if not.
    pub is_series: bool,
}
