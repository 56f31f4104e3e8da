//! One alert of a group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::template::Template;
use promql_rules::{Expr, is_label_name};

use super::remedy;
use crate::config::catalogue::{Catalogue, Scoped};
use crate::config::decode::{self, Advice, Findings, Table};
use crate::config::measure::written;
use crate::config::yaml::{Content, YamlNode};
use crate::model::{Mode, RuleId};
use crate::policy::rule::{Query, Rule, RuleScope};

const KEYS: [&str; 10] = [
    "alert",
    "record",
    "expr",
    "for",
    "keep_firing_for",
    "labels",
    "annotations",
    "mode",
    "export",
    "remedy",
];

const ADVICE: [Advice; 5] = [
    (&["name"], "write alert: …"),
    (&["action", "actions", "do", "steps"], "write remedy: {steps: [{drop_caches: {}}]}"),
    (
        &[
            "aim",
            "cooldown",
            "at_most",
            "only_in",
            "never_in",
            "inhibited_by",
            "require_approval",
            "breaker",
        ],
        "it belongs to remedy",
    ),
    (&["summary", "description"], "it belongs to annotations"),
    (&["severity"], "it belongs to labels"),
];

/// At ten readings a second, an hour of one series takes half a mebibyte.
const LONGEST_PAST: Duration = Duration::from_secs(3_600);

/// Templates by name, in name order.
pub(super) type Templates = Vec<(Arc<str>, Template)>;

/// What an alert has from its group.
pub(super) struct GroupContext<'g> {
    pub name: &'g Arc<str>,
    pub scope: RuleScope,
    pub labels: &'g Templates,
}

/// The mapping of one rule.
pub(super) fn table<'n>(node: &'n YamlNode, findings: &mut Findings<'_>) -> Option<Table<'n>> {
    let table = Table::read_advised(node, "a rule", &KEYS, &ADVICE, findings)?;
    if let Some(record) = table.key("record") {
        findings.add(record.span.clone(), "recording rules are not supported").hint(
            "rules here read what this node measures and nothing is stored in between: \
                 write the expression into the alert, or record it in Prometheus",
        );
        return None;
    }
    Some(table)
}

/// Reads one alert; every part is read even if another is wrong.
pub(super) fn read(
    table: &Table<'_>,
    group: &GroupContext<'_>,
    findings: &mut Findings<'_>,
) -> Option<Rule> {
    let alert = required(table, "alert", findings)
        .and_then(|node| decode::value(node, "alert", super::name, findings));
    let expr = required(table, "expr", findings)
        .and_then(|node| query(node, "expr", group.scope, findings));
    let hold_for = delay(table, "for", findings);
    let keep_firing_for = delay(table, "keep_firing_for", findings);
    let labels = templates(table.get("labels"), "labels", findings);
    let annotations = templates(table.get("annotations"), "annotations", findings);
    let mode = table.choice_optional("mode", &Mode::CHOICES, findings);
    let is_exported = table.read_optional(
        "export",
        |node, findings| decode::boolean(node, "export", findings),
        findings,
    );
    let remedy = match (table.get("remedy"), table.key("remedy")) {
        (Some(node), _) => remedy::read(node, group.scope, findings).map(Some),
        (None, Some(key)) => {
            findings.add(key.span.clone(), "remedy is empty").hint("add steps, or remove it");
            None
        }
        (None, None) => Some(None),
    };
    Some(Rule {
        id: RuleId { group: Arc::clone(group.name), alert: Arc::from(alert?) },
        scope: group.scope,
        expr: expr?,
        hold_for: hold_for?,
        keep_firing_for: keep_firing_for?,
        labels: merge(group.labels, labels?),
        annotations: annotations?,
        mode: mode?,
        is_exported: is_exported?.unwrap_or(true),
        remedy: remedy?,
    })
}

/// A rule's own labels win over its group's.
fn merge(group: &Templates, own: Templates) -> Templates {
    let mut merged: BTreeMap<Arc<str>, Template> = group.iter().cloned().collect();
    merged.extend(own);
    merged.into_iter().collect()
}

fn required<'n>(table: &Table<'n>, key: &str, findings: &mut Findings<'_>) -> Option<&'n YamlNode> {
    let found = table.get(key);
    if found.is_none() {
        let place = table.key(key).map_or_else(|| table.span(), |key| key.span.clone());
        findings.add(place, format!("a rule needs {key}")).hint(format!("add {key}: …"));
    }
    found
}

fn delay(table: &Table<'_>, key: &str, findings: &mut Findings<'_>) -> Option<Duration> {
    table.read_or(
        key,
        Duration::ZERO,
        |node, findings| decode::duration(node, key, findings),
        findings,
    )
}

fn reads_too_far_back(expr: &Expr) -> bool {
    let longest = i64::try_from(LONGEST_PAST.as_millis()).unwrap_or(i64::MAX);
    expr.reads().iter().any(|(_, past_ms)| *past_ms > longest)
}

/// An expression, parsed and checked against what this build exports.
pub(super) fn query(
    node: &YamlNode,
    what: &str,
    scope: RuleScope,
    findings: &mut Findings<'_>,
) -> Option<Query> {
    let text = decode::text(node, what, findings)?;
    let check = |expr: Expr| expr.check(&Scoped(&Catalogue, scope)).map(|()| expr);
    let checked = promql_rules::parse(text).and_then(check);
    match checked {
        Ok(expr) if reads_too_far_back(&expr) => {
            let longest = written(LONGEST_PAST);
            findings
                .add(node.span.clone(), format!("{what} reads more than {longest} of the past"))
                .hint("shorten the range: every reading of it is kept in memory");
            None
        }
        Ok(expr) => Some(Query { text: Arc::from(text.trim()), expr }),
        Err(error) => {
            let place = node.span_of(findings.source(), error.span);
            let noted = findings.add(place, format!("{what}: {}", error.message));
            let compares_nodes = || {
                let expr = promql_rules::parse(text).ok()?;
                expr.check(&Scoped(&Catalogue, RuleScope::Cluster)).ok()
            };
            if compares_nodes().is_some() {
                noted.hint(
                    "to read the series of other nodes, too, add scope: cluster to the group",
                );
            } else if let Some(hint) = error.hint {
                noted.hint(hint);
            }
            None
        }
    }
}

/// Labels or annotations: names and templates.
pub(super) fn templates(
    node: Option<&YamlNode>,
    what: &str,
    findings: &mut Findings<'_>,
) -> Option<Templates> {
    let Some(node) = node else { return Some(Vec::new()) };
    if node.text().is_some() {
        decode::wrong_kind(node, what, decode::MAPPING, findings)
            .hint(format!("write {what}: {{name: value}}"));
        return None;
    }
    let mut templates: BTreeMap<Arc<str>, Template> = BTreeMap::new();
    let mut fine = true;
    for (name, key, value) in decode::pairs(node, what, findings)? {
        fine &= check_name(name, key, what, findings);
        match template(value, &format!("{what}.{name}"), findings) {
            Some(template) => drop(templates.insert(Arc::from(name), template)),
            None => fine = false,
        }
    }
    fine.then(|| templates.into_iter().collect())
}

fn check_name(name: &str, key: &YamlNode, what: &str, findings: &mut Findings<'_>) -> bool {
    if !is_label_name(name) || name == "__name__" {
        findings
            .add(key.span.clone(), format!("\"{name}\" cannot be a name in {what}"))
            .hint("use letters, digits and _, and do not begin with a digit");
        return false;
    }
    if what == "labels" && name == "alertname" {
        findings
            .add(key.span.clone(), "the label alertname is always the alert's name")
            .hint("remove it");
        return false;
    }
    true
}

/// A template's text is checked here and rendered when its alert fires.
pub(super) fn template(
    node: &YamlNode,
    what: &str,
    findings: &mut Findings<'_>,
) -> Option<Template> {
    // In YAML an empty value is nothing; as a label it is the empty text, which removes the label.
    let text = match node.content {
        Content::Null => "",
        Content::Scalar(_) => decode::text(node, what, findings)?,
        Content::List(_) | Content::Map(_) => {
            findings
                .add(node.span.clone(), format!("{what} must be text, but this is {}", node.kind()))
                .hint("put quotes around text that begins with { or [");
            return None;
        }
    };
    match Template::parse_all(text) {
        Ok(template) => Some(template),
        Err(errors) => {
            for error in errors {
                let place = node.span_of(findings.source(), error.span);
                findings.add(place, format!("{what}: {}", error.message));
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::rules::tests::rule;

    #[test]
    fn a_rule_is_exported_unless_it_says_otherwise() {
        assert!(rule("").is_exported);
        assert!(rule("export: true").is_exported);
        assert!(!rule("export: false").is_exported);
    }
}
