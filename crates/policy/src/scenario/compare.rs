//! Expected and got: equal, or shown side by side.

use std::collections::BTreeMap;
use std::sync::Arc;

use promql_rules::template::go_float;
use promql_rules::{Sample, Value};

use super::file::{AlertTest, ExpectedAlert, ExprTest};
use super::notation::{LabelMap, NAME_LABEL};
use super::remedy::{ExpectedDecision, ExpectedEntry, RemedyTest};
use super::report::{Check, ComparisonRow, Failure};
use crate::config::measure::written;
use crate::model::{AlertState, DecisionRecord};
use crate::policy::status::AlertStatus;

/// The alerts that fire.
pub(super) fn alerts<'a>(
    test: &AlertTest,
    alerts: impl Iterator<Item = &'a AlertStatus>,
) -> Option<Failure> {
    let firing = alerts.filter(|alert| alert.state == AlertState::Firing);
    let mut got: Vec<ExpectedAlert> = firing.map(alert).collect();
    let mut expected = test.expected.clone();
    got.sort();
    expected.sort();
    if got == expected {
        return None;
    }
    let row = |alert: &ExpectedAlert, others: &[ExpectedAlert]| ComparisonRow {
        cells: vec![braces(&alert.labels), braces(&alert.annotations)],
        matched: others.contains(alert),
    };
    Some(Failure {
        check: Check::Alert,
        span: test.span.clone(),
        at: test.at,
        subject: test.alert.clone(),
        message: None,
        expected: expected.iter().map(|alert| row(alert, &got)).collect(),
        got: got.iter().map(|alert| row(alert, &expected)).collect(),
    })
}

fn alert(alert: &AlertStatus) -> ExpectedAlert {
    let own = |(name, value): &(Arc<str>, Arc<str>)| (name.to_string(), value.to_string());
    let text = |(name, text): &(Arc<str>, String)| (name.to_string(), text.clone());
    ExpectedAlert {
        labels: alert.labels.iter().map(own).collect(),
        annotations: alert.annotations.iter().map(text).collect(),
    }
}

fn braces(labels: &BTreeMap<String, String>) -> String {
    let labels: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    format!("{{{}}}", labels.join(", "))
}

/// What an expression yields.
pub(super) fn samples(test: &ExprTest, value: Value, is_fuzzy: bool) -> Option<Failure> {
    let mut got: Vec<(LabelMap, f64)> = match value {
        Value::Scalar(value) => vec![(LabelMap::new(), value)],
        Value::Vector(samples) => samples.iter().map(sample).collect(),
    };
    let mut expected = test.expected.clone();
    got.sort_by(|one, other| one.0.cmp(&other.0));
    expected.sort_by(|one, other| one.0.cmp(&other.0));
    let same = |one: &(LabelMap, f64), other: &(LabelMap, f64)| {
        one.0 == other.0 && equal(one.1, other.1, is_fuzzy)
    };
    let pairs = || expected.iter().zip(&got);
    if expected.len() == got.len() && pairs().all(|(expected, got)| same(expected, got)) {
        return None;
    }
    let row = |sample: &(LabelMap, f64), others: &[(LabelMap, f64)]| ComparisonRow {
        cells: vec![metric(&sample.0), go_float(sample.1)],
        matched: others.iter().any(|other| same(sample, other)),
    };
    let compares_nan = pairs().any(|(expected, got)| expected.1.is_nan() && got.1.is_nan());
    Some(Failure {
        check: Check::Expr,
        span: test.span.clone(),
        at: test.at,
        subject: test.text.clone(),
        message: compares_nan
            .then(|| "NaN equals nothing, not even NaN: test `expr != expr` instead".to_owned()),
        expected: expected.iter().map(|sample| row(sample, &got)).collect(),
        got: got.iter().map(|sample| row(sample, &expected)).collect(),
    })
}

/// As promtool compares: exactly, or with a tolerance of one last digit.
#[expect(clippy::float_cmp, reason = "expectations are exact")]
fn equal(one: f64, other: f64, is_fuzzy: bool) -> bool {
    one == other || is_fuzzy && (one.next_up() == other || one.next_down() == other)
}

fn sample(sample: &Sample) -> (LabelMap, f64) {
    let own = sample.labels.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    let name = sample.name.as_deref().map(|name| (NAME_LABEL.to_owned(), name.to_owned()));
    (own.chain(name).collect(), sample.value)
}

fn metric(labels: &LabelMap) -> String {
    let mut own = labels.clone();
    let name = own.remove(NAME_LABEL).unwrap_or_default();
    if own.is_empty() && !name.is_empty() { name } else { format!("{name}{}", braces(&own)) }
}

/// An expression that yields nothing to compare.
pub(super) fn unusable(test: &ExprTest, message: String) -> Failure {
    Failure {
        check: Check::Expr,
        span: test.span.clone(),
        at: test.at,
        subject: test.text.clone(),
        message: Some(message),
        expected: Vec::new(),
        got: Vec::new(),
    }
}

/// The decisions since the test before.
pub(super) fn decisions(test: &RemedyTest, got: &[DecisionRecord]) -> Option<Failure> {
    let fits = |index: usize| {
        let pair = test.expected.get(index).zip(got.get(index));
        pair.is_some_and(|(expected, decision)| expected.fits(decision))
    };
    if test.expected.len() == got.len() && (0..got.len()).all(fits) {
        return None;
    }
    let expected = test.expected.iter().enumerate();
    let made = got.iter().enumerate();
    Some(Failure {
        check: Check::Remedy,
        span: test.span.clone(),
        at: test.at,
        subject: "decisions".to_owned(),
        message: None,
        expected: expected
            .map(|(index, expected)| ComparisonRow {
                cells: expected_cells(expected),
                matched: fits(index),
            })
            .collect(),
        got: made
            .map(|(index, decision)| ComparisonRow {
                cells: decision_cells(decision),
                matched: fits(index),
            })
            .collect(),
    })
}

/// What is not said is shown as a dot.
fn expected_cells(expected: &ExpectedEntry) -> Vec<String> {
    let open = || "·".to_owned();
    let (decision, reason) = match expected.decision {
        ExpectedDecision::Act => ("act", String::new()),
        ExpectedDecision::Hold(Some(reason)) => ("hold", reason.name().to_owned()),
        ExpectedDecision::Hold(None) => ("hold", open()),
    };
    vec![
        expected.at.map_or_else(open, written),
        expected.rule.clone(),
        expected.step.map_or_else(open, |step| step.to_string()),
        expected.action.clone().unwrap_or_else(open),
        expected.target.clone().unwrap_or_else(open),
        decision.to_owned(),
        reason,
    ]
}

fn decision_cells(decision: &DecisionRecord) -> Vec<String> {
    vec![
        written(decision.at.uptime),
        decision.rule.to_string(),
        decision.step.to_string(),
        decision.action.to_string(),
        decision.target.to_string(),
        decision.decision.name().to_owned(),
        decision.decision.reason().to_owned(),
    ]
}
