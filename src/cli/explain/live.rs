//! Explains from the daemon itself: it has the present values, so that nothing is replayed.
//!
//! The daemon's answer has the values. The shape of the condition comes from the recorded rules,
//! which must be the daemon's.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use promql_rules::{Sample, Traced, TracedRange, TracedValue, Value};
use serde::Deserialize;
use serde_json::Value as Json;

use super::journalled::OpenedJournal;
use super::{DECISIONS, ReportSource, RuleReport, StateSince, recorded};
use crate::cli::control::ControlClient;
use crate::daemon::clock;
use crate::model::{AlertState, DecisionId, HoldReason, Mode, Moment, Reading, RuleId, as_number};
use crate::policy::Policy;
use crate::policy::explain::{Explanation, RemedyExplanation};
use crate::policy::guard::Rail;
use crate::policy::status::{AlertStatus, RuleState};

/// The time limit of a response. A daemon that takes longer is explained from its recording.
const ANSWER_TAKES: Duration = Duration::from_secs(1);

/// The daemon's answer.
#[derive(Debug, Deserialize)]
struct ExplainResponse {
    rule: String,
    expr: String,
    state: String,
    mode: Mode,
    unknown: Vec<String>,
    condition: ExpressionPart,
    remedy: Option<Remedy>,
}

#[derive(Debug, Deserialize)]
struct Remedy {
    aim_met: Option<bool>,
    aim: Option<ExpressionPart>,
    steps: Vec<Json>,
    step: usize,
    under_way: Option<DecisionId>,
    guard_rails: Vec<GuardRail>,
}

#[derive(Debug, Deserialize)]
struct GuardRail {
    reason: HoldReason,
    holds: bool,
    left_seconds: Option<f64>,
    used: Option<u64>,
    at_most: Option<u64>,
    detail: String,
}

/// A part of an expression, with its value under the key of its kind.
#[derive(Debug, Deserialize)]
struct ExpressionPart {
    expr: String,
    parts: Vec<ExpressionPart>,
    not_needed: Option<String>,
    #[serde(flatten)]
    value: PartValue,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PartValue {
    Scalar(Json),
    Vector(Vec<Element>),
    Range(Vec<ValueRange>),
    Unknown(Vec<String>),
    Error(String),
}

#[derive(Debug, Deserialize)]
struct Element {
    name: Option<Arc<str>>,
    labels: SortedLabels,
    value: Json,
}

#[derive(Debug, Deserialize)]
struct ValueRange {
    labels: SortedLabels,
    count: usize,
    first: Json,
    last: Json,
    least: Json,
    greatest: Json,
}

/// Labels by name, which are sorted so.
type SortedLabels = std::collections::BTreeMap<Arc<str>, Arc<str>>;

/// The present explanation of a rule. `None` if the daemon cannot give it: what is recorded is to
/// be explained then.
pub(super) fn explain(
    client: &ControlClient,
    dir: &Path,
    name: &str,
    journal: &OpenedJournal,
) -> Option<RuleReport> {
    let client = client.clone().with_patience(ANSWER_TAKES);
    let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
    let get = |path: &str| {
        let reply = client.request("GET", path, None).ok()?;
        (reply.status == 200).then_some(reply.data)
    };
    let answer: ExplainResponse =
        serde_json::from_value(get(&format!("/api/v1/explain?rule={name}"))?).ok()?;
    let at = clock::now();
    let (_, kept) = recorded::kept(dir)?;
    let rules = recorded::parsed(&kept).ok()?;
    let all = rules.groups.iter().flat_map(|group| &group.rules);
    let rule = { all }.map(|rule| &rule.id).find(|rule| rule.to_string() == answer.rule)?;
    // Its values are those of the answer.
    let shape = Policy::rehearsing(at, answer.mode, &rules).explain(rule, at, false)?;
    let alerts = get("/api/v1/alerts").map(|data| alerts(&data, rule, at)).unwrap_or_default();
    let explanation = filled(shape, answer, alerts)?;
    let state = explanation.rule.state.name();
    let since = journal.last_change(rule, at.utc).filter(|change| change.to.name() == state);
    Some(RuleReport {
        at: at.utc,
        source: ReportSource::Daemon,
        decisions: journal.decisions(rule, at.utc, DECISIONS),
        since: since.map(|change| StateSince::Exactly(change.at.utc)),
        explanation,
        remarks: Vec::from_iter(journal.remark()),
    })
}

/// The shape with the values of the answer; `None` if the two are of different rules.
fn filled(
    mut shape: Explanation,
    answer: ExplainResponse,
    alerts: Vec<AlertStatus>,
) -> Option<Explanation> {
    if *shape.rule.expr != *answer.expr {
        return None;
    }
    let status = &mut shape.rule;
    status.state = RuleState::ALL.into_iter().find(|state| state.name() == answer.state)?;
    (status.mode, status.unknown, status.alerts) = (answer.mode, answer.unknown, alerts);
    fill(&mut shape.condition, answer.condition)?;
    match (&mut shape.remedy, answer.remedy) {
        (None, None) => {}
        (Some(shape), Some(answer)) => fill_remedy(shape, answer)?,
        _ => return None,
    }
    Some(shape)
}

fn fill_remedy(shape: &mut RemedyExplanation, answer: Remedy) -> Option<()> {
    match (&mut shape.aim, answer.aim) {
        (None, None) => {}
        (Some(aim), Some(part)) => fill(aim, part)?,
        _ => return None,
    }
    if shape.steps.len() != answer.steps.len() {
        return None;
    }
    (shape.aim_met, shape.step) = (answer.aim_met, answer.step);
    shape.under_way = answer.under_way;
    shape.rails = answer.guard_rails.into_iter().map(rail).collect();
    Some(())
}

fn rail(answer: GuardRail) -> Rail {
    let GuardRail { reason, holds, left_seconds, used, at_most, detail } = answer;
    let left = left_seconds.and_then(|left| Duration::try_from_secs_f64(left).ok());
    Rail { reason, holds, left, used: used.zip(at_most), detail }
}

fn fill(shape: &mut Traced, part: ExpressionPart) -> Option<()> {
    if shape.text != part.expr || shape.parts.len() != part.parts.len() {
        return None;
    }
    shape.value = match part.value {
        PartValue::Scalar(number) => TracedValue::Known(Value::Scalar(known(&number)?)),
        PartValue::Vector(elements) => {
            let samples = elements.into_iter().map(sample).collect::<Option<_>>()?;
            TracedValue::Known(Value::Vector(samples))
        }
        PartValue::Range(ranges) => {
            TracedValue::Range(ranges.into_iter().map(range).collect::<Option<_>>()?)
        }
        PartValue::Unknown(reasons) => TracedValue::Unknown(reasons),
        PartValue::Error(error) => TracedValue::Failed(error),
    };
    shape.yields = match &shape.value {
        TracedValue::Known(Value::Vector(samples)) => Some(!samples.is_empty()),
        _ => None,
    };
    // It is one of a few texts, and this process ends soon.
    shape.decided_by = part.not_needed.map(|text| &*text.leak());
    shape.parts.iter_mut().zip(part.parts).try_for_each(|(shape, part)| fill(shape, part))
}

fn sample(element: Element) -> Option<Sample> {
    let Element { name, labels, value } = element;
    Some(Sample { name, labels: labels.into_iter().collect(), value: known(&value)? })
}

fn range(range: ValueRange) -> Option<TracedRange> {
    Some(TracedRange {
        labels: range.labels.into_iter().collect(),
        count: range.count,
        first: known(&range.first)?,
        last: known(&range.last)?,
        least: known(&range.least)?,
        greatest: known(&range.greatest)?,
    })
}

fn known(number: &Json) -> Option<f64> {
    match as_number::deserialize(number).ok()? {
        Reading::Value(number) => Some(number),
        Reading::Unsupported | Reading::Failed => None,
    }
}

/// The alerts of the rule, in the form of Prometheus.
fn alerts(data: &Json, rule: &RuleId, now: Moment) -> Vec<AlertStatus> {
    #[derive(Deserialize)]
    struct Active {
        labels: SortedLabels,
        state: AlertState,
        #[serde(rename = "activeAt")]
        active_at: Timestamp,
        value: String,
    }
    let all = data["alerts"].as_array().into_iter().flatten();
    let read = all.filter_map(|alert| serde_json::from_value::<Active>(alert.clone()).ok());
    let name: &str = &rule.alert;
    read.filter(|alert| alert.labels.get("alertname").is_some_and(|alert| **alert == *name))
        .map(|alert| {
            let ago = Duration::try_from(now.utc.duration_since(alert.active_at));
            let uptime = now.uptime.saturating_sub(ago.unwrap_or_default());
            AlertStatus {
                labels: alert.labels.into_iter().collect(),
                annotations: Vec::new(),
                state: alert.state,
                active_since: Moment { uptime, utc: alert.active_at },
                value: alert.value.parse().unwrap_or(f64::NAN),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::mistake::SourceText;
    use crate::config::rules::parse_rules;

    const EXPR: &str = "uma_memory_free_bytes < 2 * uma_memory_reserve_bytes";

    fn shape() -> Explanation {
        let text = format!("groups:\n- name: g\n  rules:\n  - alert: Low\n    expr: {EXPR}\n");
        let rules = parse_rules(&[SourceText::new("r.yaml", &text)], Duration::from_secs(1));
        let rules = rules.unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let at = Moment { uptime: Duration::from_secs(9), utc: Timestamp::UNIX_EPOCH };
        let rule = &rules.groups[0].rules[0].id;
        Policy::rehearsing(at, Mode::Observe, &rules).explain(rule, at, false).unwrap()
    }

    fn answer(free: &Json) -> Json {
        json!({
            "rule": "g/Low", "expr": EXPR, "state": "inactive", "mode": "observe", "unknown": [],
            "remedy": null,
            "condition": {"expr": EXPR, "vector": [], "parts": [
                {"expr": "uma_memory_free_bytes", "vector": [
                    {"name": "uma_memory_free_bytes", "labels": {"pool": "host"}, "value": free},
                ], "parts": []},
                {"expr": "2 * uma_memory_reserve_bytes", "unknown": ["not read"], "parts": [
                    {"expr": "uma_memory_reserve_bytes", "unknown": ["not read"], "parts": [],
                     "not_needed": "the rest decides"},
                ]},
            ]},
        })
    }

    #[test]
    fn values_of_the_daemon_are_put_into_the_shape_of_the_rule() {
        let answer = serde_json::from_value(answer(&json!(7.0))).unwrap();
        let filled = filled(shape(), answer, Vec::new()).unwrap();
        assert_eq!(filled.rule.state, RuleState::Inactive);
        assert_eq!(filled.condition.yields, Some(false));
        let [free, reserve] = &filled.condition.parts[..] else { panic!("{filled:?}") };
        let TracedValue::Known(Value::Vector(samples)) = &free.value else { panic!("{free:?}") };
        assert_eq!((samples[0].value, samples[0].labels.len()), (7.0, 1));
        assert_eq!(reserve.value, TracedValue::Unknown(vec!["not read".to_owned()]));
        assert_eq!(reserve.parts[0].decided_by, Some("the rest decides"));
    }

    #[test]
    fn an_answer_about_another_rule_is_not_used() {
        let mut other = answer(&json!(7.0));
        other["expr"] = "uma_memory_free_bytes".into();
        let other: ExplainResponse = serde_json::from_value(other).unwrap();
        assert!(filled(shape(), other, Vec::new()).is_none());
        let mut other = answer(&json!(7.0));
        other["condition"]["parts"] = json!([]);
        let other: ExplainResponse = serde_json::from_value(other).unwrap();
        assert!(filled(shape(), other, Vec::new()).is_none());
        let other: ExplainResponse = serde_json::from_value(answer(&json!({"x": 1}))).unwrap();
        assert!(filled(shape(), other, Vec::new()).is_none());
    }
}
