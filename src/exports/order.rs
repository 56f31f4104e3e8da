//! Reads and validates orders of people.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::model::{
    DeathReport, DecisionId, LaunchedEngine, OrderedBy, ProcessId, RebootForce, RuleId,
    RuleSelector, duration as duration_of,
};

/// The longest author's name.
const MOST_AUTHOR_CHARS: usize = 128;
/// The longest comment.
const MOST_COMMENT_CHARS: usize = 1024;
/// The longest name of a rule.
const MOST_RULE_BYTES: usize = 512;
/// The longest silence. A longer one is a change of the rules.
pub const LONGEST: Duration = Duration::from_secs(366 * 86_400);
/// The longest delay of a reboot.
const LONGEST_DELAY: Duration = Duration::from_secs(86_400);

/// Who sends an admitted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// A client without credentials, who may read.
    Anonymous,
    /// A client whose identity is proven.
    Authenticated(OrderedBy),
}

/// The queue of orders, which are carried out one at a time.
pub type OrderSender = mpsc::Sender<OrderRequest>;

/// An order, with its sender.
#[derive(Debug)]
pub struct OrderRequest {
    /// What is ordered, with its parameters.
    pub kind: OrderKind,
    /// The sender, from the connection.
    pub by: OrderedBy,
    /// The author's name that the sender gives in addition.
    pub name: Option<String>,
    /// The reason; may be empty.
    pub comment: String,
    /// Takes the result.
    pub answer: oneshot::Sender<Result<OrderDone, OrderRefused>>,
}

/// An order, validated as far as possible without rules and time.
#[derive(Clone, Debug, PartialEq)]
pub enum OrderKind {
    /// Remedies of these rules hold.
    Silence {
        /// Those rules.
        rules: RuleChoice,
        /// For how long.
        lasts: OrderPeriod,
    },
    /// Ends a silence.
    EndSilence {
        /// The id of the silence.
        id: u64,
    },
    /// Approves a decision that waits for approval.
    Approve {
        /// The decision that waits for approval.
        decision: DecisionId,
        /// How long the approval is valid; `None`: the default.
        lasts: Option<OrderPeriod>,
    },
    /// Denies a decision that waits for approval, or that was announced.
    Deny {
        /// That decision.
        decision: DecisionId,
        /// How long it is denied; `None`: the default.
        lasts: Option<OrderPeriod>,
    },
    /// Closes the circuit breaker of remedies.
    ResetBreaker {
        /// Whose remedies.
        rules: RuleChoice,
    },
    /// Reboots the machine.
    Reboot {
        /// The delay; `None`: the configured one.
        delay: Option<Duration>,
        /// Conditions to ignore.
        force: BTreeSet<RebootForce>,
    },
    /// Cancels the scheduled reboot.
    CancelReboot,
    /// Clears reboots that did not help.
    ClearReboots,
    /// Pauses the daemon.
    Pause,
    /// Ends the pause.
    Resume,
    /// These processes are a launched engine.
    Launched(LaunchedEngine),
    /// A launched engine has died.
    Died(Box<DeathReport>),
    /// Records a remark in the journal.
    Note,
}

/// Selects rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleChoice {
    /// By labels, names or all.
    Selected(RuleSelector),
    /// `group/alert`, or the alert's name alone.
    Named(String),
}

/// A duration or an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderPeriod {
    /// Above zero, at most [`LONGEST`].
    For(Duration),
    /// The end.
    Until(Timestamp),
}

/// The result of an order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OrderDone {
    /// The result as JSON.
    pub data: Value,
    /// Warnings for the sender.
    pub remarks: Vec<String>,
}

/// Why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderRefused {
    /// Its subject does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It conflicts with the current state.
    #[error("{0}")]
    Conflict(String),
    /// It is invalid.
    #[error("{0}")]
    Unusable(String),
    /// It could not be recorded or carried out.
    #[error("{0}")]
    Failed(String),
}

/// Why a body is not an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// It is not JSON.
    Syntax(String),
    /// It is JSON with an invalid value. The text names the field.
    Content(String),
}

/// Author and comment of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attribution {
    pub(super) name: Option<String>,
    pub(super) comment: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SilenceBody {
    rules: Option<RulesBody>,
    rule: Option<String>,
    duration: Option<String>,
    until: Option<Timestamp>,
    author: Option<String>,
    #[serde(default)]
    comment: String,
}

/// [`RuleSelector`] as JSON, without unknown keys.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum RulesBody {
    All,
    Alert(String),
    Rule(RuleBody),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleBody {
    group: String,
    alert: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApprovalBody {
    duration: Option<String>,
    until: Option<Timestamp>,
    author: Option<String>,
    #[serde(default)]
    comment: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RebootBody {
    delay: Option<String>,
    #[serde(default)]
    force: BTreeSet<RebootForce>,
    author: Option<String>,
    #[serde(default)]
    comment: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LaunchBody {
    name: String,
    pid: u32,
    start_ticks: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttributionBody {
    author: Option<String>,
    #[serde(default)]
    comment: String,
}

/// Reads the body of a silence.
pub(super) fn silence(body: &[u8]) -> Result<(OrderKind, Attribution), Unreadable> {
    let body: SilenceBody = read(body)?;
    let words = words(body.author, body.comment)?;
    let rules = match (body.rules, body.rule) {
        (Some(rules), None) => RuleChoice::Selected(selector(rules)?),
        (None, Some(name)) => RuleChoice::Named(rule_name("rule", name)?),
        (None, None) => {
            return Err(content(
                "rule: name one: \"rule\": \"group/alert\" or the alert's name, or \
                 \"rules\": \"all\"",
            ));
        }
        (Some(_), Some(_)) => return Err(content("rule: give either rule or rules")),
    };
    let lasts = lasts(body.duration.as_deref(), body.until)?.ok_or_else(|| {
        content("duration: give a duration like \"2h\", or until as an RFC 3339 time")
    })?;
    Ok((OrderKind::Silence { rules, lasts }, words))
}

/// Reads the body of an approval or a denial: how long it is valid, and who gives it.
pub(super) fn reply(body: &[u8]) -> Result<(Option<OrderPeriod>, Attribution), Unreadable> {
    let body: ApprovalBody = read(body)?;
    let words = words(body.author, body.comment)?;
    Ok((lasts(body.duration.as_deref(), body.until)?, words))
}

/// Reads the body of a reboot, which needs a comment.
pub(super) fn reboot(body: &[u8]) -> Result<(OrderKind, Attribution), Unreadable> {
    let RebootBody { delay, force, author, comment } = read(body)?;
    let words = words(author, comment)?;
    if words.comment.trim().is_empty() {
        return Err(content("comment: give the reason; it is sent to all logged-in users"));
    }
    let delay = match delay {
        Some(text) => {
            let delay = duration_of(&text).map_err(|error| content(format!("delay: {error}")))?;
            if delay > LONGEST_DELAY {
                return Err(content("delay: must be at most 1d"));
            }
            Some(delay)
        }
        None => None,
    };
    Ok((OrderKind::Reboot { delay, force }, words))
}

/// Reads the report of a launched engine.
pub(super) fn launched(body: &[u8]) -> Result<OrderKind, Unreadable> {
    let LaunchBody { name, pid, start_ticks } = read(body)?;
    let is_name = !name.is_empty() && name.len() <= MOST_AUTHOR_CHARS;
    if !is_name || name.contains(char::is_control) {
        return Err(content("name: must have 1 to 128 characters"));
    }
    if pid == 0 {
        return Err(content("pid: must not be 0"));
    }
    let head = ProcessId { pid, start_ticks };
    Ok(OrderKind::Launched(LaunchedEngine { name: name.into(), head }))
}

/// Reads the report of a death.
pub(super) fn died(body: &[u8]) -> Result<OrderKind, Unreadable> {
    let report: DeathReport = read(body)?;
    if report.who.name.is_empty() {
        return Err(content("who.name: name the engine that died"));
    }
    Ok(OrderKind::Died(Box::new(report)))
}

/// Reads the body of an order without parameters.
pub(super) fn attribution(body: &[u8]) -> Result<Attribution, Unreadable> {
    let body: AttributionBody = read(body)?;
    words(body.author, body.comment)
}

/// Reads the body of a remark, which must not be empty.
pub(super) fn remark(body: &[u8]) -> Result<Attribution, Unreadable> {
    let words = attribution(body)?;
    match words.comment.trim() {
        "" => Err(content("comment: must not be empty")),
        _ => Ok(words),
    }
}

/// Checks the name of a rule in an order.
pub(super) fn rule_name(field: &str, name: String) -> Result<String, Unreadable> {
    if name.is_empty() || name.len() > MOST_RULE_BYTES || name.contains(char::is_control) {
        return Err(content(format!("{field}: must be a rule's name (group/alert, or alert)")));
    }
    Ok(name)
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Unreadable> {
    let body = if body.trim_ascii().is_empty() { b"{}".as_slice() } else { body };
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(Unreadable::Syntax("the body must be a JSON object".to_owned()));
    }
    let no_json = |error: &dyn std::fmt::Display| {
        Unreadable::Syntax(format!("the body is not JSON: {error}"))
    };
    let body = std::str::from_utf8(body).map_err(|error| no_json(&error))?;
    serde_json::from_str::<IgnoredAny>(body).map_err(|error| no_json(&error))?;
    let mut json = serde_json::Deserializer::from_str(body);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        match (error.into_inner(), path.as_str()) {
            (inner, ".") => content(inner.to_string()),
            (inner, path) => content(format!("{path}: {inner}")),
        }
    })
}

fn content(text: impl Into<String>) -> Unreadable {
    Unreadable::Content(text.into())
}

fn selector(rules: RulesBody) -> Result<RuleSelector, Unreadable> {
    Ok(match rules {
        RulesBody::All => RuleSelector::All,
        RulesBody::Alert(alert) => RuleSelector::Alert(rule_name("rules.alert", alert)?.into()),
        RulesBody::Rule(RuleBody { group, alert }) => RuleSelector::Rule(RuleId {
            group: rule_name("rules.rule.group", group)?.into(),
            alert: rule_name("rules.rule.alert", alert)?.into(),
        }),
    })
}

fn lasts(
    duration: Option<&str>,
    until: Option<Timestamp>,
) -> Result<Option<OrderPeriod>, Unreadable> {
    match (duration, until) {
        (None, None) => Ok(None),
        (None, Some(until)) => Ok(Some(OrderPeriod::Until(until))),
        (Some(_), Some(_)) => Err(content("duration: give either duration or until")),
        (Some(text), None) => {
            let duration =
                duration_of(text).map_err(|error| content(format!("duration: {error}")))?;
            if duration.is_zero() || duration > LONGEST {
                return Err(content("duration: must be above 0 and at most 366d"));
            }
            Ok(Some(OrderPeriod::For(duration)))
        }
    }
}

fn words(author: Option<String>, comment: String) -> Result<Attribution, Unreadable> {
    let fits = |field: &str, text: &str, most: usize| {
        if text.chars().count() > most {
            return Err(content(format!("{field}: must have at most {most} characters")));
        }
        if text.contains(char::is_control) {
            return Err(content(format!(
                "{field}: must not have control characters or line breaks"
            )));
        }
        Ok(())
    };
    fits("comment", &comment, MOST_COMMENT_CHARS)?;
    let name = author.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    fits("author", name.as_deref().unwrap_or_default(), MOST_AUTHOR_CHARS)?;
    Ok(Attribution { name, comment })
}
