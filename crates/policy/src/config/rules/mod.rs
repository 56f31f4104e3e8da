//! Rule files: Prometheus' own shape, plus `mode` and `remedy`.
//!
//! To add a step: a variant of [`RemedyStep`](crate::policy::rule::RemedyStep) and of
//! [`Action`](crate::model::Action), a reader in `remedy.rs` (in `temporary.rs` if it is undone
//! later).

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::decode::{self, Advice, Findings, Table};
use super::guard_rails::{NamedAlert, default_guard_rails, unknown_window};
use super::mistake::{Mistake, Mistakes, SourceText};
use super::settings::limits;
use super::shipped::is_shipped;
use super::yaml::{self, Content, YamlNode};
use crate::policy::guard::{GuardRails, MaintenanceWindow};
use crate::policy::rule::{Rule, RuleGroup, RuleScope, RuleSet};
use rails::{NameUse, ReferenceKind};

mod alert;
mod always;
mod claims;
mod empty;
mod evict;
mod examine;
mod export;
mod machines;
#[cfg(test)]
mod object_tests;
mod places;
mod rails;
mod remedy;
mod temporary;
#[cfg(test)]
mod tests;
mod write;

use self::examine::value;
pub use self::examine::{Examined, examine};
pub use self::export::{
    ExportOptions, ObjectMetadata, is_export, prometheus_object, prometheus_rules,
};
pub use self::places::places;
pub(super) use self::rails::read as read_rails;
pub use self::write::{Comments, rails as written_rails, step_settings, write_head, write_rule};

/// Each takes tens of kibibytes for as long as the rules are loaded.
const MOST_PATTERNS: usize = 1_000;

/// Nobody wants to read more of them at once.
const MOST_UNKNOWN_NAMES: usize = 100;

/// With it, `group/alert` can still be asked for over HTTP.
const LONGEST_NAME: usize = 255;

/// What to do about a shipped group that a file defines again.
const TWICE_SHIPPED: &str = "to change a shipped rule, override it by its name in the \
    configuration, rules: {GROUP/ALERT: {mode: observe}}; to add rules, name the group differently";

const FILE_KEYS: [&str; 1] = ["groups"];

/// Those of a PrometheusRule.
const OBJECT_KEYS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

const GROUP_KEYS: [&str; 7] =
    ["name", "scope", "interval", "limit", "query_offset", "labels", "rules"];

const GROUP_ADVICE: [Advice; 2] = [
    (
        &["alert", "expr", "for", "keep_firing_for", "annotations", "remedy", "mode"],
        "it belongs to a rule: indent it as deep as the rule's other keys",
    ),
    (&["evaluation_interval"], "write interval: …"),
];

/// Reads all rule files together. Groups without an `interval` are evaluated every
/// `evaluation_interval`. The error holds every mistake of every file. Maintenance windows are not
/// looked up, since there is no configuration.
pub fn parse_rules(
    files: &[SourceText],
    evaluation_interval: Duration,
) -> Result<RuleSet, Mistakes> {
    parse_rules_alone(files, evaluation_interval).map(|parsed| parsed.rules)
}

/// Rules without the configuration that they will run under.
#[derive(Clone, Debug)]
pub struct ParsedAlone {
    /// The rules, under the guard rails that hold where nothing is written.
    pub rules: RuleSet,
    /// Maintenance windows that they name: only a configuration can define them.
    pub unchecked: Vec<Mistake>,
}

/// The same as [`parse_rules`], and what could not be checked.
pub fn parse_rules_alone(
    files: &[SourceText],
    evaluation_interval: Duration,
) -> Result<ParsedAlone, Mistakes> {
    let (groups, uses) = read_all(files, evaluation_interval, None)?;
    let guard_rails = default_guard_rails();
    let rules = RuleSet { groups, guard_rails, ..RuleSet::default() };
    let windows = uses.iter().filter(|used| used.used.kind == ReferenceKind::Window);
    let unchecked = windows.take(MOST_UNKNOWN_NAMES).map(|used| {
        let NameUse { name, span, .. } = &used.used;
        let message = format!("whether there is a maintenance window \"{name}\" was not checked");
        used.source.mistake(span.clone(), message).hint(
            "a configuration defines windows; with --config.file FILE it is checked. Without \
             it, umawarden run refuses this rule",
        )
    });
    Ok(ParsedAlone { rules, unchecked: unchecked.collect() })
}

/// The same under the guard rails of a configuration, whose maintenance windows rules may name.
pub fn parse_rules_under(
    files: &[SourceText],
    evaluation_interval: Duration,
    guard_rails: GuardRails,
) -> Result<RuleSet, Mistakes> {
    let windows = &guard_rails.maintenance_windows;
    let (groups, _) = read_all(files, evaluation_interval, Some(windows))?;
    Ok(RuleSet { groups, guard_rails, ..RuleSet::default() })
}

fn read_all<'f>(
    files: &'f [SourceText],
    evaluation_interval: Duration,
    windows: Option<&[MaintenanceWindow]>,
) -> Result<(Vec<RuleGroup>, Vec<RemedyNameUse<'f>>), Mistakes> {
    let mut reader =
        RuleReader { evaluation_interval, names: BTreeMap::new(), patterns: 0, uses: Vec::new() };
    let mut groups = Vec::new();
    let mut mistakes = Vec::new();
    for source in files {
        let mut findings = Findings::new(source);
        match yaml::parse(source) {
            Ok(root) => groups.extend(reader.file(&root, &mut findings)),
            Err(mistake) => mistakes.push(mistake),
        }
        mistakes.extend(findings.into_mistakes());
    }
    // A group that could not be read hides its alerts.
    if mistakes.is_empty() {
        let unknown = reader.uses.iter().filter_map(|used| used.mistake(&groups, windows));
        mistakes.extend(unknown.take(MOST_UNKNOWN_NAMES));
    }
    if mistakes.is_empty() { Ok((groups, reader.uses)) } else { Err(Mistakes(mistakes)) }
}

struct RuleReader<'f> {
    evaluation_interval: Duration,
    /// Group names so far, each with the file and the byte of its first use.
    names: BTreeMap<String, (&'f SourceText, usize)>,
    /// Regular expressions so far.
    patterns: usize,
    /// Names of alerts and windows in remedies so far.
    uses: Vec<RemedyNameUse<'f>>,
}

struct RemedyNameUse<'f> {
    source: &'f SourceText,
    alert: Arc<str>,
    used: NameUse,
}

impl RemedyNameUse<'_> {
    /// What is wrong with it, if anything is.
    fn mistake(
        &self,
        groups: &[RuleGroup],
        windows: Option<&[MaintenanceWindow]>,
    ) -> Option<Mistake> {
        let NameUse { kind, name, span } = &self.used;
        if *kind == ReferenceKind::Window {
            let (message, hint) = unknown_window(name, windows?)?;
            return Some(self.source.mistake(span.clone(), message).hint(hint));
        }
        if *kind == ReferenceKind::Series {
            let message = claims::acts_on_them(name, groups)?;
            return Some(self.source.mistake(span.clone(), message).hint(claims::FORGED));
        }
        if *name == self.alert {
            let mistake = self.source.mistake(span.clone(), "a rule cannot inhibit itself");
            return Some(mistake.hint("name the alerts of other rules"));
        }
        let message = format!("no rule has the alert \"{name}\"");
        let unknown = self.source.mistake(span.clone(), message);
        let alerts = groups.iter().flat_map(|group| &group.rules).map(|rule| &*rule.id.alert);
        NamedAlert { alert: Arc::clone(name), unknown }.check(alerts)
    }
}

impl<'f> RuleReader<'f> {
    fn file(&mut self, root: &YamlNode, findings: &mut Findings<'f>) -> Vec<RuleGroup> {
        if matches!(root.content, Content::Null) {
            return Vec::new();
        }
        if let Some((place, hint)) = other_shape(root) {
            findings.add(place, "this is not a rule file").hint(hint);
            return Vec::new();
        }
        let Some(table) = table_of_groups(root, findings) else { return Vec::new() };
        let Some(groups) = table.get("groups") else { return Vec::new() };
        let Some(groups) = decode::list(groups, "groups", findings) else { return Vec::new() };
        let read = decode::each(groups, findings, |node, findings| {
            let group = self.group(node, findings);
            // A rule that is left out in silence is worse than a message that says little.
            if group.is_none() && findings.is_empty() {
                findings.add(node.span.clone(), "this group cannot be read");
            }
            group
        });
        read.unwrap_or_default()
    }

    fn group(&mut self, node: &YamlNode, findings: &mut Findings<'f>) -> Option<RuleGroup> {
        let table = Table::read_advised(node, "a group", &GROUP_KEYS, &GROUP_ADVICE, findings)?;
        refuse_unsupported(&table, findings);
        let name = self.group_name(&table, findings);
        let interval =
            table.value_or("interval", self.evaluation_interval, limits::evaluation, findings);
        let scope = table.choice_or("scope", RuleScope::Node, &RuleScope::CHOICES, findings);
        let labels = table.get("labels");
        let labels = alert::templates(labels, "labels", findings).unwrap_or_default();
        let group = name.unwrap_or_else(|| Arc::from(""));
        let context = alert::GroupContext { name: &group, scope: scope?, labels: &labels };
        let entries = match table.get("rules") {
            Some(node) => decode::list(node, "rules", findings)?,
            None => &[],
        };
        let mut alerts: BTreeMap<String, usize> = BTreeMap::new();
        let rules = decode::each(entries, findings, |entry, findings| {
            let table = alert::table(entry, findings)?;
            check_unique(&table, &mut alerts, findings);
            let rule = alert::read(&table, &context, findings)?;
            let (source, alert) = (findings.source(), &rule.id.alert);
            let used = rails::uses(&table).into_iter();
            self.uses.extend(used.map(|used| RemedyNameUse {
                source,
                alert: Arc::clone(alert),
                used,
            }));
            self.count_patterns(&rule, &table, findings)?;
            let read = claims::refuse_acting(&rule, &table, findings)?.into_iter();
            self.uses.extend(read.map(|used| RemedyNameUse {
                source,
                alert: Arc::clone(alert),
                used,
            }));
            Some(rule)
        })?;
        let file = PathBuf::from(&*findings.source().name);
        Some(RuleGroup { name: group, file, scope: scope?, interval: interval?, rules })
    }

    fn count_patterns(
        &mut self,
        rule: &Rule,
        table: &Table<'_>,
        findings: &mut Findings<'f>,
    ) -> Option<()> {
        let aim = rule.remedy.as_ref().and_then(|remedy| remedy.aim.as_ref());
        let in_aim = aim.map_or(0, |aim| aim.expr.patterns());
        self.patterns += rule.expr.expr.patterns() + in_aim;
        if self.patterns <= MOST_PATTERNS {
            return Some(());
        }
        let message =
            format!("more than {MOST_PATTERNS} regular expressions in all rules together");
        let place = table.key("alert").map_or_else(|| table.span(), |key| key.span.clone());
        findings
            .add(place, message)
            .hint("compare labels with = or !=, and join several patterns with |");
        None
    }

    fn group_name(&mut self, table: &Table<'_>, findings: &mut Findings<'f>) -> Option<Arc<str>> {
        let Some(node) = table.get("name") else {
            findings.add(table.span(), "a group needs a name").hint("add name: …");
            return None;
        };
        let name = decode::value(node, "name", name, findings)?;
        if let Some((first, at)) = self.names.get(&name) {
            let (line, column) = first.position(*at);
            let is_shipped = [first, findings.source()].iter().any(|one| is_shipped(&one.name));
            let first = format!("{}:{line}:{column}", first.name);
            findings
                .add(node.span.clone(), format!("group \"{name}\" exists already, at {first}"))
                .hint(match is_shipped {
                    true => TWICE_SHIPPED,
                    false => "give it another name: groups must be unique over all files",
                });
            return None;
        }
        self.names.insert(name.clone(), (findings.source(), node.span.start));
        Some(Arc::from(name))
    }
}

/// The mapping that holds the groups: the file itself, or the spec of a PrometheusRule.
fn table_of_groups<'n>(root: &'n YamlNode, findings: &mut Findings<'_>) -> Option<Table<'n>> {
    if !is_object(root) {
        return Table::read(root, "a rule file", &FILE_KEYS, findings);
    }
    let table = Table::read(root, "a PrometheusRule", &OBJECT_KEYS, findings)?;
    let Some(spec) = table.get("spec") else {
        let place = table.key("spec").map_or_else(|| table.span(), |key| key.span.clone());
        findings.add(place, "this PrometheusRule has no spec").hint("write spec: {groups: […]}");
        return None;
    };
    Table::read(spec, "the spec of a PrometheusRule", &FILE_KEYS, findings)
}

/// Whether a file is an object of the Prometheus operator with rules.
fn is_object(root: &YamlNode) -> bool {
    let is = |key: &str, text: &str| value(root, key).and_then(|node| node.text()) == Some(text);
    is("apiVersion", export::API_VERSION) && is("kind", export::KIND)
}

/// Files of other shapes that people are likely to have, each with what to do.
fn other_shape(root: &YamlNode) -> Option<(Range<usize>, &'static str)> {
    const SHAPE: &str = "write groups: [{name: …, rules: [{alert: …, expr: …}]}]";
    let pairs = match &root.content {
        Content::Map(pairs) => pairs,
        Content::List(_) => return Some((root.span.start..root.span.start + 1, SHAPE)),
        Content::Null | Content::Scalar(_) => return None,
    };
    let key = |name: &str| pairs.iter().map(|(key, _)| key).find(|key| key.text() == Some(name));
    if key("groups").is_some() || is_object(root) {
        return None;
    }
    let resource = key("apiVersion").filter(|_| key("spec").is_some());
    let hint = "of Kubernetes resources only a PrometheusRule (monitoring.coreos.com/v1) is read";
    resource.map(|key| (key.span.clone(), hint)).or_else(|| {
        let part = ["rules", "alert", "expr"].into_iter().find_map(key)?;
        Some((part.span.clone(), SHAPE))
    })
}

/// A group's or an alert's name: it becomes a label value and a part of log lines.
fn name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("a name cannot be empty".to_owned());
    }
    if text.len() > LONGEST_NAME {
        return Err(format!("a name has at most {LONGEST_NAME} bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err("a name cannot contain control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// Alerts of one group are distinguished by their names: in the journal, in metrics, in decisions.
fn check_unique(
    table: &Table<'_>,
    seen: &mut BTreeMap<String, usize>,
    findings: &mut Findings<'_>,
) {
    let Some(node) = table.get("alert") else { return };
    let Some(name) = node.text() else { return };
    if let Some(first) = seen.get(name) {
        let (line, _) = findings.source().position(*first);
        findings
            .add(
                node.span.clone(),
                format!("this group has an alert \"{name}\" already, on line {line}"),
            )
            .hint(
                "give it another name: decisions and metrics are distinguished by group and alert",
            );
        return;
    }
    seen.insert(name.to_owned(), node.span.start);
}

/// What Prometheus has and this program does not, with the reason.
fn refuse_unsupported(table: &Table<'_>, findings: &mut Findings<'_>) {
    let mut refuse = |key: &str, hint: &str| {
        let Some(at) = table.key(key) else { return };
        findings.add(at.span.clone(), format!("{key} is not supported")).hint(hint);
    };
    refuse("limit", "remove it: a node has few series, and every decision has a budget of its own");
    refuse("query_offset", "remove it: readings are never late here");
}
