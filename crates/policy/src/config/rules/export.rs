//! Rules as Prometheus reads them: alerts without what only this program does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::Expr;
use promql_rules::template::Template;

use crate::config::catalogue::Catalogue;
use crate::config::measure::written;
use crate::model::{CLUSTER_LABEL, NODE_LABEL};
use crate::policy::rule::{Overridden, Rule, RuleGroup, RuleScope, RuleSet};

/// A range should hold so many scrapes, so that one that is missed does no harm.
const SCRAPES_IN_A_RANGE: u32 = 4;

/// The first line of every export.
const TITLE: &str =
    "# Alerting rules for Prometheus 2.42 or later, made by `umawarden rules export`";

/// Whether a text begins as every export does.
pub fn is_export(text: &str) -> bool {
    text.lines().next() == Some(TITLE)
}

/// The object of the Prometheus operator that holds a rule file: its `spec` has the `groups`
/// (docs.okd.io, REST API, "PrometheusRule [monitoring.coreos.com/v1]").
pub(super) const API_VERSION: &str = "monitoring.coreos.com/v1";
pub(super) const KIND: &str = "PrometheusRule";

/// What is adapted for the Prometheus that will read the rules.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// Labels by which Prometheus distinguishes nodes; none leaves expressions as they are.
    pub by: Vec<Arc<str>>,
    /// How often Prometheus scrapes; `None` leaves intervals and ranges as they are.
    pub scrape_interval: Option<Duration>,
    /// Where each alert has its section: the annotation `runbook_url` leads there.
    pub runbook_url: Option<Arc<str>>,
}

impl ExportOptions {
    /// Whether targets have the labels by which rules compare nodes.
    fn has_node_labels(&self) -> bool {
        let has = |label: &str| self.by.iter().any(|by| **by == *label);
        self.by.is_empty() || [CLUSTER_LABEL, NODE_LABEL].into_iter().all(has)
    }

    /// Whether a rule is not for a Prometheus that scrapes.
    fn leaves_out(&self, rule: &Rule) -> bool {
        !rule.is_exported && self.scrape_interval.is_some()
    }
}

/// What a rule with `export: false` is left out for.
const ON_NODE_ONLY: &str = "  # Left out (export: false), since only the node itself can raise it:";

/// What compares nodes needs their labels.
const LEFT_OUT: &str = "# Left out, since it compares nodes (--by cluster,node, where targets have \
                        these labels):";

/// The rules as a file of alerting rules. An `interval` of zero is left to Prometheus.
pub fn prometheus_rules(rules: &RuleSet, options: &ExportOptions) -> String {
    let mut out = header(rules, options);
    let is_left_out =
        |group: &RuleGroup| group.scope == RuleScope::Cluster && !options.has_node_labels();
    let is_empty = rules.groups.iter().all(is_left_out);
    out.push_str(if is_empty { "groups: []\n" } else { "groups:\n" });
    for group in &rules.groups {
        match is_left_out(group) {
            false => write_group(group, rules, options, &mut out),
            true => push(&mut out, format_args!("{} {}.\n", LEFT_OUT, quoted(&group.name))),
        }
    }
    out
}

pub(super) fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(text);
}

fn write_group(group: &RuleGroup, all: &RuleSet, options: &ExportOptions, out: &mut String) {
    push(out, format_args!("- name: {}\n", quoted(&group.name)));
    let least = options.scrape_interval.unwrap_or_default();
    if !group.interval.is_zero() {
        push(out, format_args!("  interval: {}\n", written(group.interval.max(least))));
    }
    let is_empty = group.rules.iter().all(|rule| options.leaves_out(rule));
    out.push_str(if is_empty { "  rules: []\n" } else { "  rules:\n" });
    for rule in &group.rules {
        match options.leaves_out(rule) {
            false => {
                write_overridden(rule, all, out);
                write_rule(rule, options, out);
            }
            true => push(out, format_args!("{} {}.\n", ON_NODE_ONLY, quoted(&rule.id.alert))),
        }
    }
}

/// Where the configuration has changed what is exported.
fn write_overridden(rule: &Rule, all: &RuleSet, out: &mut String) {
    let Some(Overridden { place, keys, .. }) = all.overridden.get(&rule.id) else { return };
    let keys: Vec<&str> =
        keys.iter().filter(|key| !key.is_of_remedy()).map(|key| key.name()).collect();
    if !keys.is_empty() {
        push(out, format_args!("  # Overridden in {}: {}.\n", quoted(place), keys.join(", ")));
    }
}

fn write_rule(rule: &Rule, options: &ExportOptions, out: &mut String) {
    let (expr, remark) = adapted(rule, options);
    if let Some(remark) = remark {
        push(out, format_args!("  # {remark}\n"));
    }
    push(out, format_args!("  - alert: {}\n", quoted(&rule.id.alert)));
    write_expr(expr.as_deref().unwrap_or(&rule.expr.text), out);
    for (key, duration) in [("for", rule.hold_for), ("keep_firing_for", rule.keep_firing_for)] {
        if !duration.is_zero() {
            push(out, format_args!("    {key}: {}\n", written(duration)));
        }
    }
    write_templates("labels", &rule.labels, out);
    write_templates("annotations", &rule.annotations, out);
    write_runbook_url(rule, options, out);
}

pub(super) fn write_templates(key: &str, templates: &[(Arc<str>, Template)], out: &mut String) {
    if templates.is_empty() {
        return;
    }
    push(out, format_args!("    {key}:\n"));
    for (name, template) in templates {
        push(out, format_args!("      {}: {}\n", quoted(name), quoted(template.as_written())));
    }
}

/// One more annotation, unless the rule has one of its own.
fn write_runbook_url(rule: &Rule, options: &ExportOptions, out: &mut String) {
    let Some(url) = &options.runbook_url else { return };
    if rule.annotations.iter().any(|(name, _)| &**name == "runbook_url") {
        return;
    }
    if rule.annotations.is_empty() {
        out.push_str("    annotations:\n");
    }
    // What renders Markdown writes anchors in lower case.
    let link = format!("{url}#{}", rule.id.alert.to_lowercase());
    push(out, format_args!("      \"runbook_url\": {}\n", quoted(&link)));
}

/// The expression as it must be written there, if not as it is, and what cannot be adapted.
fn adapted(rule: &Rule, options: &ExportOptions) -> (Option<String>, Option<String>) {
    let own = &rule.expr.expr;
    let (separated, remark) = match options.by.as_slice() {
        // Nodes are distinguished as the rule is written.
        _ if rule.scope == RuleScope::Cluster => (None, None),
        [] => (None, None),
        labels => match own.by(labels, &Catalogue) {
            Ok(separated) => (separated, None),
            Err(error) => (None, Some(format!("Not distinguished by node: {}.", error.message))),
        },
    };
    let expr = separated.as_ref().unwrap_or(own);
    let widened = options.scrape_interval.and_then(|interval| {
        expr.widened((interval * SCRAPES_IN_A_RANGE).as_millis().try_into().unwrap_or(i64::MAX))
    });
    (widened.or(separated).map(|expr| format!("{expr:#}")), remark)
}

/// Several lines stay several lines.
pub(super) fn write_expr(expr: &str, out: &mut String) {
    let is_plain = |line: &str| !line.is_empty() && !line.chars().any(needs_escape);
    // A string in backticks may hold the end of a line.
    let lines: Vec<&str> = expr.lines().collect();
    let is_block = lines.len() > 1
        && !expr.contains('\r')
        && lines.iter().all(|line| is_plain(line) && !line.ends_with(' '))
        && !lines[0].starts_with(' ');
    if !is_block {
        push(out, format_args!("    expr: {}\n", quoted(expr)));
        return;
    }
    out.push_str("    expr: |-\n");
    for line in lines {
        push(out, format_args!("      {line}\n"));
    }
}

/// What YAML does not take as it is, or a reader could be deceived by.
fn needs_escape(c: char) -> bool {
    let is_printable = matches!(c, ' '..='~' | '\u{a1}'..='\u{2027}' | '\u{2030}'..='\u{205f}')
        || matches!(c, '\u{2070}'..='\u{d7ff}' | '\u{f900}'..='\u{fdff}' | '\u{fe10}'..='\u{fefe}')
        || matches!(c, '\u{10000}'..='\u{dffff}');
    !is_printable
}

/// A text in double quotes, as YAML reads them.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => push(&mut out, format_args!("\\{c}")),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if !needs_escape(c) => out.push(c),
            c => match u32::from(c) {
                code @ ..=0xff => push(&mut out, format_args!("\\x{code:02x}")),
                code @ ..=0xffff => push(&mut out, format_args!("\\u{code:04x}")),
                code => push(&mut out, format_args!("\\U{code:08x}")),
            },
        }
    }
    out.push('"');
    out
}

/// What identifies an object of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectMetadata {
    /// `metadata.name`.
    pub name: String,
    /// Its namespace; `None`: that of whoever applies it.
    pub namespace: Option<String>,
    /// Its labels, by which a Prometheus selects it.
    pub labels: BTreeMap<String, String>,
}

/// The same as the object of the Prometheus operator that holds such a file.
pub fn prometheus_object(
    rules: &RuleSet,
    options: &ExportOptions,
    metadata: &ObjectMetadata,
) -> String {
    let file = prometheus_rules(rules, options);
    let (header, groups) = file.split_at(file.find("\ngroups:").map_or(file.len(), |at| at + 1));
    let mut out = header.to_owned();
    push(&mut out, format_args!("apiVersion: {API_VERSION}\nkind: {KIND}\nmetadata:\n"));
    push(&mut out, format_args!("  name: {}\n", quoted(&metadata.name)));
    if let Some(namespace) = &metadata.namespace {
        push(&mut out, format_args!("  namespace: {}\n", quoted(namespace)));
    }
    if !metadata.labels.is_empty() {
        out.push_str("  labels:\n");
    }
    for (key, value) in &metadata.labels {
        push(&mut out, format_args!("    {}: {}\n", quoted(key), quoted(value)));
    }
    out.push_str("spec:\n");
    // A text of several lines is a block, whose lines may all be indented further.
    groups.lines().for_each(|line| push(&mut out, format_args!("  {line}\n")));
    out
}

/// Says how the file was made and what it takes to read it.
fn header(rules: &RuleSet, options: &ExportOptions) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut out = format!(
        "{TITLE}\n\
         # (version {version}) from\n"
    );
    let mut files: Vec<String> =
        rules.groups.iter().map(|group| group.file.display().to_string()).collect();
    files.dedup();
    for file in files {
        push(&mut out, format_args!("#   {}\n", quoted(&file)));
    }
    out.push_str(
        "# Change them there and export them again. Left out: remedy and mode. Where a source\n\
         # fails, umawarden says \"unknown\"; Prometheus sees nothing and resolves.\n",
    );
    match options.by.as_slice() {
        [] => out.push_str(
            "# Expressions are as written: for series without any label of a scraped target.\n",
        ),
        labels => {
            push(&mut out, format_args!("# Nodes are distinguished by {}.\n", labels.join(", ")))
        }
    }
    if let Some(interval) = options.scrape_interval {
        let (interval, range) = (written(interval), written(interval * SCRAPES_IN_A_RANGE));
        push(
            &mut out,
            format_args!(
                "# For a scrape every {interval}: no group is evaluated more often, no range is \
                 below {range}.\n"
            ),
        );
    } else if let Some(shortest) = shortest_range(rules) {
        let (range, scrape) = (written(shortest), written(shortest / SCRAPES_IN_A_RANGE));
        push(
            &mut out,
            format_args!("# The shortest range is {range}: scrape every {scrape} or more often.\n"),
        );
    }
    out
}

fn shortest_range(rules: &RuleSet) -> Option<Duration> {
    let exprs = rules.groups.iter().flat_map(|group| &group.rules).map(|rule| &rule.expr.expr);
    let shortest_ms = exprs.filter_map(Expr::shortest_range_ms).min()?;
    u64::try_from(shortest_ms).ok().map(Duration::from_millis)
}
