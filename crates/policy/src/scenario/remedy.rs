//! What remedies are expected to decide, and what their actions come to: our part of the format.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use promql_rules::did_you_mean;

use super::file::{InputSeries, entries, eval_time, input_series, required};
use crate::config::decode::{self, Findings, Table};
use crate::config::yaml::YamlNode;
use crate::model::{
    Action, CacheKind, Decision, DecisionRecord, HoldReason, OutcomeResult, Target,
};

const EXPECTED_KEYS: [&str; 8] =
    ["at", "rule", "alert", "step", "action", "target", "decision", "reason"];

/// The decisions between the test before, or the start, and this time.
#[derive(Debug)]
pub(super) struct RemedyTest {
    pub span: Range<usize>,
    pub at: Duration,
    pub expected: Vec<ExpectedEntry>,
}

/// What is said of one decision; what is not said is not compared.
#[derive(Debug)]
pub(super) struct ExpectedEntry {
    /// `Alert` or `group/Alert`.
    pub rule: String,
    pub rule_span: Range<usize>,
    pub at: Option<Duration>,
    pub step: Option<usize>,
    pub action: Option<String>,
    /// `node`, `cgroup /path`, or `settings vm.swappiness, …`.
    pub target: Option<String>,
    /// The decision; a hold without a reason matches any.
    pub decision: ExpectedDecision,
}

/// Act, or hold, perhaps for a certain reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedDecision {
    Act,
    Hold(Option<HoldReason>),
}

/// What one act comes to.
#[derive(Debug)]
pub(super) struct DeclaredOutcome {
    pub action: String,
    pub result: OutcomeResult,
    pub after: Duration,
    /// Series that take other values from then on.
    pub then: Vec<InputSeries>,
}

/// Whether an action is the one that is named: by its name alone, or as texts show it.
pub(super) fn is_named(action: &Action, name: &str) -> bool {
    action.name() == name || action.to_string() == name
}

impl ExpectedEntry {
    /// Whether a decision matches.
    pub(super) fn fits(&self, decision: &DecisionRecord) -> bool {
        let rule = *self.rule == *decision.rule.alert || self.rule == decision.rule.to_string();
        let is_decided = match (self.decision, decision.decision) {
            (ExpectedDecision::Act, Decision::Act) => true,
            (ExpectedDecision::Hold(expected), Decision::Hold(reason)) => {
                expected.is_none_or(|expected| expected == reason)
            }
            _ => false,
        };
        rule && is_decided
            && self.at.is_none_or(|at| at == decision.at.uptime)
            && self.step.is_none_or(|step| step == decision.step)
            && self.action.as_deref().is_none_or(|name| is_named(&decision.action, name))
            && self.target.as_deref().is_none_or(|target| target == decision.target.to_string())
    }
}

/// Reads `remedy_test`.
pub(super) fn tests(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Vec<RemedyTest>> {
    let mut last: Option<Duration> = None;
    let list = entries(table, "remedy_test", findings)?;
    decode::each(list, findings, |node, findings| {
        let keys = ["eval_time", "exp_decisions"];
        let table = Table::read(node, "a remedy_test", &keys, findings)?;
        let expected = entries(&table, "exp_decisions", findings).and_then(|list| {
            decode::each(list, findings, |node, findings| expected(node, findings))
        });
        required(&table, "eval_time", "a remedy_test", findings)?;
        let at = eval_time(&table, findings)?;
        if last.is_some_and(|last| at <= last) {
            findings
                .add(table.span(), "the times of remedy_test must rise")
                .hint("each entry lists the decisions since the entry before");
            return None;
        }
        last = Some(at);
        Some(RemedyTest { span: table.span(), at, expected: expected? })
    })
}

fn expected(node: &YamlNode, findings: &mut Findings<'_>) -> Option<ExpectedEntry> {
    let what = "an entry of exp_decisions";
    let table = Table::read(node, what, &EXPECTED_KEYS, findings)?;
    if let (Some(_), Some(alert)) = (table.key("rule"), table.key("alert")) {
        findings.add(alert.span.clone(), "rule and alert say the same").hint("remove one of them");
    }
    let rule = match table.get("alert") {
        Some(node) => Some(node),
        None => required(&table, "rule", what, findings),
    };
    let name = rule.and_then(|node| decode::text(node, "rule", findings));
    let at = match table.get("at") {
        Some(node) => decode::duration(node, "at", findings).map(Some),
        None => Some(None),
    };
    let step = match table.get("step") {
        Some(node) => decode::value(node, "step", step, findings).map(Some),
        None => Some(None),
    };
    let action = match table.get("action") {
        Some(node) => action(node, findings).map(Some),
        None => Some(None),
    };
    let target = match table.get("target") {
        Some(node) => decode::value(node, "target", target, findings).map(Some),
        None => Some(None),
    };
    let decision = decision(&table, findings);
    Some(ExpectedEntry {
        rule: name?.to_owned(),
        rule_span: rule?.span.clone(),
        at: at?,
        step: step?,
        action: action?,
        target: target?,
        decision: decision?,
    })
}

fn target(text: &str) -> Result<String, String> {
    let is_target = text == Target::Node.to_string()
        || text == Target::Engine(Box::default()).to_string()
        || ["cgroup ", "settings ", "engine "].iter().any(|kind| text.starts_with(kind));
    let wrong = || {
        format!(
            "\"{text}\" is no target; write node, cgroup /its/path, settings vm.swappiness, or \
             engine its-name"
        )
    };
    is_target.then(|| text.to_owned()).ok_or_else(wrong)
}

fn step(text: &str) -> Result<usize, String> {
    let hint = "is not a step's number; the first step has the number 0";
    text.parse().map_err(|_| format!("\"{text}\" {hint}"))
}

fn decision(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<ExpectedDecision> {
    let reason = match table.get("reason") {
        Some(node) => Some(decode::choice(node, "reason", &HoldReason::CHOICES, findings)?),
        None => None,
    };
    // A reason alone says that the rule held.
    if reason.is_some() && table.get("decision").is_none() {
        return Some(ExpectedDecision::Hold(reason));
    }
    let node = required(table, "decision", "an entry of exp_decisions", findings)?;
    let holds = decode::choice(node, "decision", &[("act", false), ("hold", true)], findings)?;
    if let (false, Some(key)) = (holds, table.key("reason").filter(|_| reason.is_some())) {
        findings.add(key.span.clone(), "only a hold has a reason").hint("remove it");
        return None;
    }
    Some(if holds { ExpectedDecision::Hold(reason) } else { ExpectedDecision::Act })
}

/// An action's name, perhaps with what follows it in texts: `drop_caches all`.
fn action(node: &YamlNode, findings: &mut Findings<'_>) -> Option<String> {
    let text = decode::text(node, "action", findings)?;
    let with_details = [
        "notify \"",
        "reclaim ",
        "empty_cache of ",
        "set_sysctl ",
        "throttle_readahead ",
        "undo #",
        "stop_engine ",
    ];
    if with_details.iter().any(|beginning| text.starts_with(beginning)) {
        return Some(text.to_owned());
    }
    let drops = CacheKind::ALL
        .into_iter()
        .flat_map(|what| [false, true].map(|sync| Action::DropCaches { what, sync }.to_string()));
    let known: Vec<String> = Action::NAMES.map(str::to_owned).into_iter().chain(drops).collect();
    if known.iter().any(|known| known == text) {
        return Some(text.to_owned());
    }
    let hint = did_you_mean(text, known.iter().map(String::as_str))
        .unwrap_or_else(|| format!("known actions: {}", known.join(", ")));
    findings.add(node.span.clone(), format!("unknown action \"{text}\"")).hint(hint);
    None
}

/// Reads `outcomes`.
pub(super) fn outcomes(
    table: &Table<'_>,
    findings: &mut Findings<'_>,
) -> Option<Vec<DeclaredOutcome>> {
    let list = entries(table, "outcomes", findings)?;
    decode::each(list, findings, |node, findings| outcome(node, findings))
}

fn outcome(node: &YamlNode, findings: &mut Findings<'_>) -> Option<DeclaredOutcome> {
    let what = "an entry of outcomes";
    let table = Table::read(node, what, &["action", "result", "after", "then"], findings)?;
    let action = required(&table, "action", what, findings).and_then(|node| action(node, findings));
    let why = || "as the test declares".to_owned();
    let results = [("done", 0), ("failed", 1), ("skipped", 2), ("timed_out", 3), ("not_done", 4)];
    let result = match table.get("result") {
        Some(node) => decode::choice(node, "result", &results, findings),
        None => Some(0),
    };
    let after = match table.get("after") {
        Some(node) => decode::duration(node, "after", findings),
        None => Some(Duration::ZERO),
    };
    let then = input_series(&table, "then", findings);
    Some(DeclaredOutcome {
        action: action?,
        result: match result? {
            1 => OutcomeResult::Failed(why()),
            2 => OutcomeResult::Skipped,
            3 => OutcomeResult::TimedOut,
            4 => OutcomeResult::NotDone(why()),
            _ => OutcomeResult::Done,
        },
        after: after?,
        then: then?,
    })
}

/// The names of rules that the expectations use, each with its range.
pub(super) fn named_rules(tests: &[RemedyTest]) -> Vec<(&str, Range<usize>)> {
    let mut seen = BTreeSet::new();
    let expected = tests.iter().flat_map(|test| &test.expected);
    let first = expected.filter(|expected| seen.insert(expected.rule.as_str()));
    first.map(|expected| (expected.rule.as_str(), expected.rule_span.clone())).collect()
}
