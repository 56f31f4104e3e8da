//! Compares a test file with the existing rules and series.

use std::collections::BTreeSet;
use std::ops::Range;

use promql_rules::{KnownSeries, did_you_mean};

use super::file::{InputSeries, TestCase, TestFile};
use super::remedy::named_rules;
use crate::config::catalogue::{Catalogue, Scoped};
use crate::config::decode::Findings;
use crate::config::mistake::{Mistake, Mistakes, SourceText};
use crate::policy::rule::{Rule, RuleScope, RuleSet};

/// A hint that is no mistake.
pub type Remark = Mistake;

/// The prefix of everything that this program exports.
const OWN_PREFIX: &str = "uma_";

/// Finds decisions that no rule can make, which are mistakes, and what promtool lets pass: alerts
/// that no rule has, series that no build exports, a series that is declared twice.
pub fn agree(
    source: &SourceText,
    file: &TestFile,
    rules: &RuleSet,
) -> Result<Vec<Remark>, Mistakes> {
    let mut mistakes = Findings::new(source);
    let mut remarks = Findings::new(source);
    let rules: Vec<&Rule> = rules.groups.iter().flat_map(|group| &group.rules).collect();
    let is_of_cluster = rules.iter().any(|rule| rule.scope == RuleScope::Cluster);
    let scope = if is_of_cluster { RuleScope::Cluster } else { RuleScope::Node };
    for test in &file.tests {
        decisions(test, &rules, &mut mistakes);
        guard(test, &rules, &mut mistakes);
        alerts(test, &rules, &mut remarks);
        series(test, scope, &mut remarks);
    }
    let mistakes = mistakes.into_mistakes();
    if mistakes.is_empty() { Ok(remarks.into_mistakes()) } else { Err(Mistakes(mistakes)) }
}

/// The rule of an order must exist.
fn guard(test: &TestCase, rules: &[&Rule], mistakes: &mut Findings<'_>) {
    let alerts = rules.iter().map(|rule| &*rule.id.alert);
    for (name, span) in test.guard.orders.iter().filter_map(|order| order.rule.as_ref()) {
        if rules.iter().any(|rule| *name == *rule.id.alert || *name == rule.id.to_string()) {
            continue;
        }
        no_such_rule(name, span.clone(), rules, mistakes);
    }
    for unknown in test.guard.alerts.iter().filter_map(|named| named.check(alerts.clone())) {
        mistakes.adopt(unknown);
    }
}

fn decisions(test: &TestCase, rules: &[&Rule], mistakes: &mut Findings<'_>) {
    for (name, span) in named_rules(&test.remedies) {
        let named = |rule: &&&Rule| *rule.id.alert == *name || rule.id.to_string() == name;
        match rules.iter().find(named) {
            Some(rule) if rule.remedy.is_some() => {}
            Some(_) => mistakes
                .add(span, format!("the rule \"{name}\" has no remedy, so it decides nothing"))
                .hint("test it with alert_rule_test"),
            None => no_such_rule(name, span, rules, mistakes),
        }
    }
}

fn no_such_rule(name: &str, span: Range<usize>, rules: &[&Rule], findings: &mut Findings<'_>) {
    let names = rules.iter().map(|rule| &*rule.id.alert);
    let hint =
        did_you_mean(name, names).unwrap_or_else(|| "the rules are those of rule_files".to_owned());
    findings.add(span, format!("no rule has the name \"{name}\"")).hint(hint);
}

fn alerts(test: &TestCase, rules: &[&Rule], remarks: &mut Findings<'_>) {
    for expected in &test.alerts {
        if !rules.iter().any(|rule| *rule.id.alert == *expected.alert) {
            no_such_rule(&expected.alert, expected.alert_span.clone(), rules, remarks);
        }
    }
}

fn series(test: &TestCase, scope: RuleScope, remarks: &mut Findings<'_>) {
    let mut seen = BTreeSet::new();
    for InputSeries { key, span, .. } in &test.input {
        if !seen.insert(key) {
            remarks
                .add(span.clone(), format!("{key} is declared twice in this test"))
                .hint("the later one counts; remove the other");
        }
    }
    let then = test.outcomes.iter().flat_map(|outcome| &outcome.then);
    for InputSeries { key, span, .. } in test.input.iter().chain(then) {
        if !key.name.starts_with(OWN_PREFIX) || Catalogue.has_other_labels(&key.name) {
            continue;
        }
        let span = span.clone();
        // What rules of both kinds may read.
        let scoped = Scoped(&Catalogue, scope);
        match Catalogue.labels(&key.name) {
            None => {
                let noted = remarks.add(span, format!("this build exports no {}", key.name));
                if let Some(hint) = did_you_mean(&key.name, Catalogue.names()) {
                    noted.hint(hint);
                }
            }
            Some(mut known) => {
                known.extend(scoped.labels(&key.name).unwrap_or_default());
                let own = key.labels.iter().map(|(name, _)| &**name);
                if let Some(label) = own.into_iter().find(|label| !known.contains(label)) {
                    let message = format!("{} is exported without the label {label}", key.name);
                    remarks.add(span, message);
                }
            }
        }
    }
}
