//! What people order while a test's time passes, and the guard rails that it is played under: our
//! part of the format.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::file::{entries, required};
use crate::config::decode::{self, Findings, Table};
use crate::config::guard_rails::{KEYS, NamedAlert, grades, read_table};
use crate::config::yaml::YamlNode;
use crate::model::{
    DecisionId, DecisionRecord, Grades, HoldReason, Moment, Observation, OperatorCommand,
    OperatorOrder, Pause, RuleId, RuleSelector,
};
use crate::policy::guard::GuardRails;

const OWN_KEYS: [&str; 7] = [
    "enforce",
    "pauses",
    "silences",
    "approvals",
    "denials",
    "breaker_resets",
    "journal_readable_from",
];

/// How long what is ordered lasts where the test does not say.
const DEFAULT_LASTS: Duration = Duration::from_secs(3_600);

/// The block of one test.
#[derive(Debug, Default)]
pub(super) struct GuardTest {
    pub rails: Option<GuardRails>,
    pub alerts: Vec<NamedAlert>,
    /// In the order of time.
    pub orders: Vec<GuardEvent>,
}

/// Something that happens to the guard rails at a time.
#[derive(Debug)]
pub(super) struct GuardEvent {
    pub at: Duration,
    pub what: GuardEventKind,
    /// The selected rule and the range of its name; `None`: all rules.
    pub rule: Option<(String, Range<usize>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuardEventKind {
    Pause,
    Resume,
    Silence {
        until: Duration,
    },
    /// An approval or a denial of the last decision that waits for one.
    ApproveOrDeny {
        is_approved: bool,
        step: Option<usize>,
        until: Duration,
    },
    ResetBreaker,
    /// What earlier runs did becomes known.
    ReadJournal,
}

/// Reads `guard_rails`.
pub(super) fn guard(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<GuardTest> {
    let Some(node) = table.get("guard_rails") else { return Some(GuardTest::default()) };
    // A test has no other nodes.
    let keys = KEYS.into_iter().filter(|key| *key != "fleet");
    let keys: Vec<&str> = keys.chain(OWN_KEYS).collect();
    let table = Table::read(node, "guard_rails", &keys, findings)?;
    let rails = read_table(&table, findings);
    let enforced = table.read_or("enforce", Grades::default(), grades, findings);
    let mut orders = Vec::new();
    let mut fine = true;
    for (key, read) in [
        ("pauses", pause as fn(&Table<'_>, &mut Findings<'_>) -> Option<Vec<GuardEvent>>),
        ("silences", silence),
        ("approvals", approval),
        ("denials", denial),
        ("breaker_resets", reset),
    ] {
        let what = format!("an entry of {key}");
        let known = entry_keys(key);
        let read = entries(&table, key, findings).and_then(|list| {
            decode::each(list, findings, |node: &YamlNode, findings| {
                read(&Table::read(node, &what, known, findings)?, findings)
            })
        });
        match read {
            Some(read) => orders.extend(read.into_iter().flatten()),
            None => fine = false,
        }
    }
    if let Some(node) = table.get("journal_readable_from") {
        let at = decode::duration(node, "journal_readable_from", findings)?;
        orders.push(GuardEvent { at, what: GuardEventKind::ReadJournal, rule: None });
    }
    orders.sort_by_key(|order| order.at);
    let (rails, alerts) = rails?;
    let rails = GuardRails { enforced: enforced?, ..rails };
    fine.then_some(GuardTest { rails: Some(rails), alerts, orders })
}

fn entry_keys(key: &str) -> &'static [&'static str] {
    match key {
        "pauses" => &["from", "to"],
        "silences" => &["from", "to", "rule"],
        "approvals" | "denials" => &["at", "rule", "step", "expires"],
        _ => &["at", "rule"],
    }
}

fn time(
    table: &Table<'_>,
    key: &str,
    default: Duration,
    findings: &mut Findings<'_>,
) -> Option<Duration> {
    match table.get(key) {
        Some(node) => decode::duration(node, key, findings),
        None => Some(default),
    }
}

/// From when to when.
fn span(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<(Duration, Duration)> {
    let from = time(table, "from", Duration::ZERO, findings)?;
    let to = time(table, "to", from.saturating_add(DEFAULT_LASTS), findings)?;
    if to <= from {
        findings.add(table.span(), "it ends before it begins").hint("let to be later than from");
        return None;
    }
    Some((from, to))
}

fn rule(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Option<(String, Range<usize>)>> {
    let Some(node) = table.get("rule") else { return Some(None) };
    let name = decode::text(node, "rule", findings)?;
    Some(Some((name.to_owned(), node.span.clone())))
}

fn pause(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Vec<GuardEvent>> {
    let (from, to) = span(table, findings)?;
    Some(vec![
        GuardEvent { at: from, what: GuardEventKind::Pause, rule: None },
        GuardEvent { at: to, what: GuardEventKind::Resume, rule: None },
    ])
}

fn silence(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Vec<GuardEvent>> {
    let (from, until) = span(table, findings)?;
    let rule = rule(table, findings)?;
    Some(vec![GuardEvent { at: from, what: GuardEventKind::Silence { until }, rule }])
}

fn approval(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Vec<GuardEvent>> {
    approve_or_deny(table, true, findings)
}

fn denial(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Vec<GuardEvent>> {
    approve_or_deny(table, false, findings)
}

fn approve_or_deny(
    table: &Table<'_>,
    is_approved: bool,
    findings: &mut Findings<'_>,
) -> Option<Vec<GuardEvent>> {
    let what = if is_approved { "an entry of approvals" } else { "an entry of denials" };
    required(table, "rule", what, findings)?;
    let rule = rule(table, findings)?;
    let at = time(table, "at", Duration::ZERO, findings)?;
    let lasts = time(table, "expires", DEFAULT_LASTS, findings)?;
    let step = match table.get("step") {
        Some(node) => {
            let read = |text: &str| {
                text.parse().map_err(|_| format!("\"{text}\" is not a step's number, from 0"))
            };
            Some(decode::value(node, "step", read, findings)?)
        }
        None => None,
    };
    let until = at.saturating_add(lasts);
    Some(vec![GuardEvent {
        at,
        what: GuardEventKind::ApproveOrDeny { is_approved, step, until },
        rule,
    }])
}

fn reset(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Vec<GuardEvent>> {
    let rule = rule(table, findings)?;
    let at = time(table, "at", Duration::ZERO, findings)?;
    Some(vec![GuardEvent { at, what: GuardEventKind::ResetBreaker, rule }])
}

/// When a test begins, as promtool's newer versions read it: RFC 3339, or seconds since 1970.
pub(super) fn start(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Timestamp> {
    let Some(node) = table.get("start_timestamp") else { return Some(Timestamp::UNIX_EPOCH) };
    let read = |text: &str| {
        let seconds = text.parse().ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
        seconds.or_else(|| text.parse().ok()).ok_or_else(|| {
            format!("\"{text}\" is no time; write it like 2026-03-29T00:30:00Z, or in seconds")
        })
    };
    decode::value(node, "start_timestamp", read, findings)
}

impl GuardEvent {
    /// The observation for the policy; `None` for an approval that no decision waits for.
    pub(super) fn observation(
        &self,
        number: usize,
        now: Moment,
        decisions: &[DecisionRecord],
    ) -> Option<Observation> {
        let instant = |at: Duration| {
            let left = at.saturating_sub(now.uptime);
            now.utc.checked_add(left).unwrap_or(Timestamp::MAX)
        };
        let order = match self.what {
            GuardEventKind::Pause => {
                let author = "the test".to_owned();
                let since = Some(now.utc);
                let pause = Pause { author, comment: String::new(), since };
                return Some(Observation::Pause(Some(pause)));
            }
            GuardEventKind::Resume => return Some(Observation::Pause(None)),
            GuardEventKind::ReadJournal => return Some(Observation::Past(Box::default())),
            GuardEventKind::Silence { until } => OperatorOrder::Silence {
                id: u64::try_from(number).unwrap_or(u64::MAX),
                rules: self.selector(),
                until: instant(until),
            },
            GuardEventKind::ApproveOrDeny { is_approved, step, until } => {
                let (decision, until) = (self.asked(step, decisions)?, instant(until));
                match is_approved {
                    true => OperatorOrder::Approve { decision, until },
                    false => OperatorOrder::Deny { decision, until },
                }
            }
            GuardEventKind::ResetBreaker => OperatorOrder::ResetBreaker { rules: self.selector() },
        };
        let (author, comment) = ("the test".to_owned(), String::new());
        Some(Observation::Operator(OperatorCommand {
            at: now,
            author,
            comment,
            order,
            refused: None,
        }))
    }

    fn selector(&self) -> RuleSelector {
        match self.rule.as_ref().map(|(name, _)| name.as_str()) {
            None => RuleSelector::All,
            Some(name) => match name.split_once('/') {
                None => RuleSelector::Alert(Arc::from(name)),
                Some((group, alert)) => {
                    RuleSelector::Rule(RuleId { group: Arc::from(group), alert: Arc::from(alert) })
                }
            },
        }
    }

    /// The last decision of the rule that was held for want of approval, or announced.
    fn asked(&self, step: Option<usize>, decisions: &[DecisionRecord]) -> Option<DecisionId> {
        let selector = self.selector();
        let is_asked =
            |reason| matches!(reason, Some(HoldReason::Approval | HoldReason::Announced));
        let mut held = decisions.iter().rev().filter(|decision| {
            is_asked(decision.hold_reason()) && selector.selects(&decision.rule)
        });
        let found = held.find(|decision| step.is_none_or(|step| step == decision.step));
        found.map(|decision| decision.id)
    }
}
