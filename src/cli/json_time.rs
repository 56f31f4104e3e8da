//! JSON lines of entries: the form of times and durations in `history --json` and `replay --json`.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::model::{AimCheck, Moment, Outcome, RuleId};

/// One line.
#[derive(Debug, Serialize)]
pub(super) struct TimedObject<'a, T> {
    #[serde(serialize_with = "milliseconds")]
    time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    uptime_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    boot_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    side: Option<&'static str>,
    #[serde(flatten)]
    entry: &'a T,
}

impl<'a, T> TimedObject<'a, T> {
    pub(super) fn new(time: Timestamp, entry: &'a T) -> Self {
        Self { time, uptime_seconds: None, boot_id: None, kind: None, side: None, entry }
    }

    /// For entries without a kind of their own.
    pub(super) fn of_kind(self, kind: &'static str) -> Self {
        Self { kind: Some(kind), ..self }
    }

    /// The time on the uptime clock.
    pub(super) fn at(self, at: Moment) -> Self {
        Self { uptime_seconds: Some(at.uptime.as_secs_f64()), ..self }
    }

    pub(super) fn in_boot(self, boot_id: &'a str) -> Self {
        Self { boot_id: Some(boot_id), ..self }
    }

    /// The side of a comparison.
    pub(super) fn of_side(self, side: &'static str) -> Self {
        Self { side: Some(side), ..self }
    }
}

/// An outcome with its context in the journal.
#[derive(Debug, Serialize)]
pub(super) struct OutcomeObject<'a> {
    rule: Option<&'a RuleId>,
    #[serde(flatten)]
    outcome: &'a Outcome,
    #[serde(serialize_with = "seconds")]
    took_seconds: Duration,
    aim_check: Option<&'a AimCheck>,
}

impl<'a> OutcomeObject<'a> {
    pub(super) fn new(
        rule: Option<&'a RuleId>,
        outcome: &'a Outcome,
        aim_check: Option<&'a AimCheck>,
    ) -> Self {
        Self { rule, outcome, took_seconds: outcome.took, aim_check }
    }
}

/// RFC 3339 in UTC with three digits, so that texts sort like times.
pub(super) fn milliseconds<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{time:.3}"))
}

fn seconds<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(duration.as_secs_f64())
}
