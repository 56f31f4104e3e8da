//! What people may order, as it comes in: who, what, and what they may not write.

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

/// Longer names are nobody's.
const MOST_AUTHOR_CHARS: usize = 128;
/// Longer remarks belong into a ticket.
const MOST_COMMENT_CHARS: usize = 1024;
/// Longer names are no rule's.
const MOST_RULE_BYTES: usize = 512;
/// A silence that is meant to last longer is a change of the rules.
pub const LONGEST: Duration = Duration::from_secs(366 * 86_400);
/// A reboot that is ordered for later belongs into a calendar.
const LONGEST_DELAY: Duration = Duration::from_secs(86_400);

/// Who asks, once they were let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Somebody on the network, who may look.
    Anybody,
    /// Somebody who has shown who they are, and may do what they ask.
    Known(OrderedBy),
}

/// Where orders go. They are carried out one at a time.
pub type OrderSender = mpsc::Sender<OrderRequest>;

/// Somebody orders something.
#[derive(Debug)]
pub struct OrderRequest {
    /// What.
    pub wish: Wish,
    /// Who, as the connection shows.
    pub by: OrderedBy,
    /// The name that they give beside that.
    pub name: Option<String>,
    /// Why; may be empty.
    pub comment: String,
    /// Takes what came of it.
    pub answer: oneshot::Sender<Result<OrderDone, OrderRefused>>,
}

/// What is ordered, as far as it can be told without knowing the rules and the time.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    /// The remedies of these rules shall hold.
    Silence {
        /// Which.
        rules: RuleChoice,
        /// For how long.
        lasts: Lasts,
    },
    /// A silence shall end.
    EndSilence {
        /// Its number.
        id: u64,
    },
    /// A held decision may be carried out.
    Approve {
        /// Which.
        decision: DecisionId,
        /// For how long; `None` is for the usual time.
        lasts: Option<Lasts>,
    },
    /// A remedy that missed its aim too often may try again.
    ResetBreaker {
        /// Whose.
        rules: RuleChoice,
    },
    /// The machine shall be rebooted.
    Reboot {
        /// After so long; `None` is for the configured time.
        delay: Option<Duration>,
        /// What does not matter.
        force: BTreeSet<RebootForce>,
    },
    /// The reboot that is scheduled shall not be.
    CancelReboot,
    /// Reboots that did not help shall be forgiven.
    ClearReboots,
    /// Nothing shall be done.
    Pause,
    /// The pause shall end.
    Resume,
    /// These processes are an engine that somebody has launched.
    Launched(LaunchedEngine),
    /// One of those has died.
    Died(Box<DeathReport>),
    /// What is said shall be kept in the journal.
    Note,
}

/// Which rules are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleChoice {
    /// These.
    Selected(RuleSelector),
    /// `group/alert`, or the alert's name alone.
    Named(String),
}

/// For how long, or until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// So long; not zero, and at most [`LONGEST`].
    For(Duration),
    /// Until then.
    Until(Timestamp),
}

/// An order that was carried out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OrderDone {
    /// What came of it.
    pub data: Value,
    /// What whoever gave it should know besides.
    pub remarks: Vec<String>,
}

/// Why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderRefused {
    /// What it is about does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It does not fit to how things are.
    #[error("{0}")]
    Conflict(String),
    /// It makes no sense.
    #[error("{0}")]
    Unusable(String),
    /// It could not be kept or carried out.
    #[error("{0}")]
    Failed(String),
}

/// Why a request is no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// It is not JSON.
    Syntax(String),
    /// It is JSON, but says something that makes no sense; the text names the field.
    Content(String),
}

/// An order's words, beside what is ordered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Words {
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

/// As [`RuleSelector`] stands in JSON, but without keys that nobody knows.
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
struct WordsBody {
    author: Option<String>,
    #[serde(default)]
    comment: String,
}

/// Reads the body of a silence.
pub(super) fn silence(body: &[u8]) -> Result<(Wish, Words), Unreadable> {
    let body: SilenceBody = read(body)?;
    let words = words(body.author, body.comment)?;
    let rules = match (body.rules, body.rule) {
        (Some(rules), None) => RuleChoice::Selected(selector(rules)?),
        (None, Some(name)) => RuleChoice::Named(rule_name("rule", name)?),
        (None, None) => {
            return Err(content(
                "rule: say which: \"rule\": \"group/alert\" or the alert's name, or \
                 \"rules\": \"all\"",
            ));
        }
        (Some(_), Some(_)) => return Err(content("rule: it is given, and rules as well")),
    };
    let lasts = lasts(body.duration.as_deref(), body.until)?.ok_or_else(|| {
        content("duration: say for how long, as in \"2h\", or until when, as in RFC 3339")
    })?;
    Ok((Wish::Silence { rules, lasts }, words))
}

/// Reads the body of an approval.
pub(super) fn approval(decision: DecisionId, body: &[u8]) -> Result<(Wish, Words), Unreadable> {
    let body: ApprovalBody = read(body)?;
    let words = words(body.author, body.comment)?;
    let lasts = lasts(body.duration.as_deref(), body.until)?;
    Ok((Wish::Approve { decision, lasts }, words))
}

/// Reads the body that orders a reboot, which says why.
pub(super) fn reboot(body: &[u8]) -> Result<(Wish, Words), Unreadable> {
    let RebootBody { delay, force, author, comment } = read(body)?;
    let words = words(author, comment)?;
    if words.comment.trim().is_empty() {
        return Err(content("comment: say why; everybody who is logged in is told"));
    }
    let delay = match delay {
        Some(text) => {
            let delay = duration_of(&text).map_err(|error| content(format!("delay: {error}")))?;
            if delay > LONGEST_DELAY {
                return Err(content("delay: it must be at most 1d"));
            }
            Some(delay)
        }
        None => None,
    };
    Ok((Wish::Reboot { delay, force }, words))
}

/// Reads the body that tells of a launched engine.
pub(super) fn launched(body: &[u8]) -> Result<Wish, Unreadable> {
    let LaunchBody { name, pid, start_ticks } = read(body)?;
    let is_name = !name.is_empty() && name.len() <= MOST_AUTHOR_CHARS;
    if !is_name || name.contains(char::is_control) {
        return Err(content("name: a name has 1 to 128 characters"));
    }
    if pid == 0 {
        return Err(content("pid: no process has the number 0"));
    }
    let head = ProcessId { pid, start_ticks };
    Ok(Wish::Launched(LaunchedEngine { name: name.into(), head }))
}

/// Reads the body that tells of a death.
pub(super) fn died(body: &[u8]) -> Result<Wish, Unreadable> {
    let report: DeathReport = read(body)?;
    if report.who.name.is_empty() {
        return Err(content("who.name: say who has died"));
    }
    Ok(Wish::Died(Box::new(report)))
}

/// Reads the body of an order that needs none.
pub(super) fn plain_words(body: &[u8]) -> Result<Words, Unreadable> {
    let body: WordsBody = read(body)?;
    words(body.author, body.comment)
}

/// Reads the body of a remark, which says something.
pub(super) fn remark(body: &[u8]) -> Result<Words, Unreadable> {
    let words = plain_words(body)?;
    match words.comment.trim() {
        "" => Err(content("comment: say what is to be kept")),
        _ => Ok(words),
    }
}

/// A rule's name, as it may stand in an order.
pub(super) fn rule_name(field: &str, name: String) -> Result<String, Unreadable> {
    if name.is_empty() || name.len() > MOST_RULE_BYTES || name.contains(char::is_control) {
        return Err(content(format!("{field}: it is no rule's name (group/alert, or alert)")));
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

fn lasts(duration: Option<&str>, until: Option<Timestamp>) -> Result<Option<Lasts>, Unreadable> {
    match (duration, until) {
        (None, None) => Ok(None),
        (None, Some(until)) => Ok(Some(Lasts::Until(until))),
        (Some(_), Some(_)) => Err(content("duration: it is given, and until as well")),
        (Some(text), None) => {
            let duration =
                duration_of(text).map_err(|error| content(format!("duration: {error}")))?;
            if duration.is_zero() || duration > LONGEST {
                return Err(content("duration: it must be above 0 and at most 366d"));
            }
            Ok(Some(Lasts::For(duration)))
        }
    }
}

fn words(author: Option<String>, comment: String) -> Result<Words, Unreadable> {
    let fits = |field: &str, text: &str, most: usize| {
        if text.chars().count() > most {
            return Err(content(format!("{field}: it is longer than {most} characters")));
        }
        if text.contains(char::is_control) {
            return Err(content(format!("{field}: it has a control character, or a second line")));
        }
        Ok(())
    };
    fits("comment", &comment, MOST_COMMENT_CHARS)?;
    let name = author.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    fits("author", name.as_deref().unwrap_or_default(), MOST_AUTHOR_CHARS)?;
    Ok(Words { name, comment })
}
