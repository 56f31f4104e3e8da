//! `rules`: what a configuration changes in rules, by their names.
//!
//! Condition, aim and steps of a rule cannot be changed here: they are tested together, and with
//! others it would be another rule.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::did_you_mean;
use promql_rules::template::Template;
use serde::{Deserialize, Serialize};

use super::decode::{self, Advice, Findings, Table};
use super::guard_rails::{NamedAlert, named, unknown_window};
use super::mistake::Mistake;
use super::rules::read_rails;
use super::yaml::{Content, YamlNode};
use crate::model::{Mode, RuleId};
use crate::policy::guard::Rails;
use crate::policy::rule::{Overridden, OverrideKey, Rule, RuleGroup, RuleSet};

const LONGEST_SEVERITY: usize = 64;

const ADVICE: [Advice; 4] = [
    (&["remedy"], "write its keys here, such as cooldown; steps and aim cannot be overridden"),
    (&["labels"], "write severity: …; other labels cannot be overridden"),
    (
        &["expr", "aim", "steps"],
        "with another one it is another rule: write that into a file of your own, under another \
         name, and set mode: observe for this one",
    ),
    (&["annotations", "interval", "scope"], "it cannot be overridden: copy the rule into a file"),
];

/// The changes of one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleOverride {
    /// `GROUP/ALERT`, `FILE/ALERT` or `ALERT`, as written.
    rule: String,
    /// Where it is written: `umawarden.yaml:12`.
    place: Arc<str>,
    /// What is changed; the other values count for nothing.
    keys: BTreeSet<OverrideKey>,
    mode: Option<Mode>,
    severity: Option<String>,
    hold_for: Duration,
    keep_firing_for: Duration,
    rails: Rails,
}

/// The same in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenOverride {
    change: RuleOverride,
    /// A mistake at the rule's name, to be completed.
    at: Mistake,
    alerts: Vec<NamedAlert>,
    /// Windows that it names, each with a mistake at its place, to be completed.
    windows: Vec<(Arc<str>, Mistake)>,
}

/// Reads the mapping of names and changes.
pub(super) fn read(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<WrittenOverride>> {
    if !matches!(node.content, Content::Map(_)) {
        decode::wrong_kind(node, "rules", decode::MAPPING, findings).hint(
            "write rule_files: [shipped, my.yaml] to load files, and rules: {GROUP/ALERT: {mode: \
             observe}} to override rules",
        );
        return None;
    }
    let read: Vec<Option<WrittenOverride>> = decode::pairs(node, "rules", findings)?
        .into_iter()
        .map(|(name, key, value)| entry(name, key, value, findings))
        .collect();
    read.into_iter().collect()
}

fn entry(
    name: &str,
    key: &YamlNode,
    value: &YamlNode,
    findings: &mut Findings<'_>,
) -> Option<WrittenOverride> {
    let table = Table::read_advised(value, name, &OverrideKey::NAMES, &ADVICE, findings)?;
    let keys = OverrideKey::ALL.into_iter().filter(|key| table.get(key.name()).is_some());
    let keys: BTreeSet<OverrideKey> = keys.collect();
    if keys.is_empty() {
        findings
            .add(key.span.clone(), format!("the override of {name} is empty"))
            .hint("add mode: observe, for example, or remove it");
        return None;
    }
    let delay = |key: &str, findings: &mut Findings<'_>| {
        table.read_or(key, Duration::ZERO, |at, finds| decode::duration(at, key, finds), findings)
    };
    let mode = table.choice_optional("mode", &Mode::CHOICES, findings);
    let severity = table.value_optional("severity", severity, findings);
    let hold_for = delay("for", findings);
    let keep_firing_for = delay("keep_firing_for", findings);
    let rails = read_rails(&table, findings);
    let source = findings.source();
    let mistake = |node: &YamlNode, text: String| source.mistake(node.span.clone(), text);
    let at = mistake(key, String::new());
    let names = |key: &str| table.get(key).into_iter().flat_map(named).collect::<Vec<_>>();
    let windows = [names("only_in"), names("never_in")].concat().into_iter();
    let alerts = names("inhibited_by").into_iter().map(|(alert, node)| NamedAlert {
        unknown: mistake(node, format!("no rule has the alert \"{alert}\"")),
        alert,
    });
    Some(WrittenOverride {
        alerts: alerts.collect(),
        windows: windows.map(|(name, node)| (name, mistake(node, String::new()))).collect(),
        change: RuleOverride {
            rule: name.to_owned(),
            place: format!("{}:{}", at.file, at.line).into(),
            keys,
            mode: mode?,
            severity: severity?,
            hold_for: hold_for?,
            keep_firing_for: keep_firing_for?,
            rails: rails?,
        },
        at,
    })
}

fn severity(text: &str) -> Result<String, String> {
    let is_fine = !text.is_empty()
        && text.len() <= LONGEST_SEVERITY
        && !text.contains("{{")
        && !text.chars().any(char::is_control);
    match is_fine {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "a severity is a text of at most {LONGEST_SEVERITY} bytes and no template: critical, \
             warning, info"
        )),
    }
}

/// Changes the rules, and returns what changes nothing. The error has every name that does not
/// exist.
pub fn apply(
    overrides: &[WrittenOverride],
    rules: &mut RuleSet,
) -> Result<Vec<Mistake>, Vec<Mistake>> {
    let (mut mistakes, mut idle) = (Vec::new(), Vec::new());
    for written in overrides {
        mistakes.extend(written.names(rules));
        let wrong = |message: String| written.at.saying(message);
        match written.change.apply(rules) {
            Err(OverrideRefusal { message, hint }) => mistakes.push(wrong(message).hint(hint)),
            Ok(unchanged) => idle.extend(unchanged.into_iter().map(wrong)),
        }
    }
    if mistakes.is_empty() { Ok(idle) } else { Err(mistakes) }
}

/// The changes alone, for a recording.
pub fn changes(overrides: &[WrittenOverride]) -> Vec<&RuleOverride> {
    overrides.iter().map(|written| &written.change).collect()
}

/// Changes recorded rules as the daemon did. A rule that is not there is passed over.
pub fn apply_again(changes: &[RuleOverride], rules: &mut RuleSet) {
    for change in changes {
        // Whoever recorded them had checked them.
        let _ = change.apply(rules);
    }
}

impl WrittenOverride {
    /// The mistakes of windows and alerts that it names.
    fn names(&self, rules: &RuleSet) -> Vec<Mistake> {
        let windows = self.windows.iter().filter_map(|(name, at)| {
            let (message, hint) = unknown_window(name, &rules.guard_rails.maintenance_windows)?;
            Some(at.saying(message).hint(hint))
        });
        let all = rules.groups.iter().flat_map(|group| &group.rules);
        let alerts = all.map(|rule| &*rule.id.alert);
        let own = meant(&self.change.rule, rules);
        let unknown = self.alerts.iter().filter_map(|named| {
            if own.iter().any(|own| own.alert == named.alert) {
                return Some(named.unknown.saying("a rule cannot inhibit itself"));
            }
            named.check(alerts.clone())
        });
        windows.chain(unknown).collect()
    }
}

/// The rules that a name can mean. `GROUP/ALERT` is unique and comes before the names of files.
fn meant<'r>(name: &str, rules: &'r RuleSet) -> Vec<&'r RuleId> {
    let all = move || {
        let of_group = |group: &'r RuleGroup| group.rules.iter().map(move |rule| (group, &rule.id));
        rules.groups.iter().flat_map(of_group)
    };
    if let Some((_, exact)) = all().find(|(_, id)| id.to_string() == name) {
        return vec![exact];
    }
    let of_file = name.rsplit_once('/');
    let named = all().filter(|(group, id)| {
        let is_of_file = |(file, alert): (&str, &str)| {
            *id.alert == *alert && stem(&group.file).is_some_and(|stem| stem == file)
        };
        *id.alert == *name || of_file.is_some_and(is_of_file)
    });
    named.map(|(_, id)| id).collect()
}

/// The name of a rule file without folder and ending: `memory` of `shipped:memory.yaml`.
fn stem(file: &Path) -> Option<&str> {
    let stem = file.file_stem()?.to_str()?;
    Some(stem.strip_prefix("shipped:").unwrap_or(stem))
}

/// Why a rule cannot be changed.
struct OverrideRefusal {
    message: String,
    hint: String,
}

impl RuleOverride {
    /// Changes the rule, and returns in words what that changes nothing of.
    fn apply(&self, rules: &mut RuleSet) -> Result<Vec<String>, OverrideRefusal> {
        let id = self.find(rules)?;
        if let Some(other) = rules.overridden.get(&id) {
            return Err(OverrideRefusal {
                message: format!("{id} has two overrides"),
                hint: format!("write the keys of both into the one in {}", other.place),
            });
        }
        let mut all = rules.groups.iter_mut().flat_map(|group| &mut group.rules);
        let Some(rule) = all.find(|rule| rule.id == id) else {
            return Err(self.unknown(rules));
        };
        let mut idle = Vec::new();
        for key in &self.keys {
            if key.is_of_remedy() && rule.remedy.is_none() {
                if *key == OverrideKey::Mode {
                    let message = format!("this override changes nothing: {} only alerts", rule.id);
                    idle.push(message);
                    continue;
                }
                let message = format!("{} has no remedy, and so no {}", rule.id, key.name());
                return Err(OverrideRefusal { message, hint: format!("remove {}", key.name()) });
            }
            let before = rule.clone();
            self.set(*key, rule);
            if *rule == before {
                let key = key.name();
                let message = format!("this override changes nothing: {} has that {key}", rule.id);
                idle.push(message);
            }
        }
        let overridden = Overridden {
            name: self.rule.as_str().into(),
            place: Arc::clone(&self.place),
            keys: self.keys.clone(),
        };
        rules.overridden.insert(id, overridden);
        Ok(idle)
    }

    /// The one rule that it names.
    fn find(&self, rules: &RuleSet) -> Result<RuleId, OverrideRefusal> {
        match meant(&self.rule, rules).as_slice() {
            [only] => Ok((*only).clone()),
            [] => Err(self.unknown(rules)),
            several => {
                let names: Vec<String> = several.iter().map(ToString::to_string).collect();
                Err(OverrideRefusal {
                    message: format!("\"{}\" names {} rules", self.rule, several.len()),
                    hint: format!("write {}", names.join(" or ")),
                })
            }
        }
    }

    fn set(&self, key: OverrideKey, rule: &mut Rule) {
        match key {
            OverrideKey::Mode => rule.mode = self.mode,
            OverrideKey::Severity => self.set_severity(rule),
            OverrideKey::For => rule.hold_for = self.hold_for,
            OverrideKey::KeepFiringFor => rule.keep_firing_for = self.keep_firing_for,
            OverrideKey::Cooldown
            | OverrideKey::AtMost
            | OverrideKey::RequireApproval
            | OverrideKey::Breaker
            | OverrideKey::OnlyIn
            | OverrideKey::NeverIn
            | OverrideKey::InhibitedBy => {
                if let Some(remedy) = &mut rule.remedy {
                    self.set_rail(key, &mut remedy.rails);
                }
            }
        }
    }

    fn set_rail(&self, key: OverrideKey, rails: &mut Rails) {
        let own = &self.rails;
        match key {
            OverrideKey::Cooldown => rails.cooldown = own.cooldown,
            OverrideKey::AtMost => rails.at_most = own.at_most,
            OverrideKey::RequireApproval => {
                (rails.approval, rails.unless_denied) = (own.approval, own.unless_denied);
            }
            OverrideKey::Breaker => rails.breaker = own.breaker,
            OverrideKey::OnlyIn => rails.only_in.clone_from(&own.only_in),
            OverrideKey::NeverIn => rails.never_in.clone_from(&own.never_in),
            OverrideKey::InhibitedBy => rails.inhibited_by.clone_from(&own.inhibited_by),
            OverrideKey::Mode
            | OverrideKey::Severity
            | OverrideKey::For
            | OverrideKey::KeepFiringFor => {}
        }
    }

    fn set_severity(&self, rule: &mut Rule) {
        // It was read as a text without a template.
        let severity = self.severity.as_deref().and_then(|text| Template::parse(text).ok());
        let Some(severity) = severity else { return };
        match rule.labels.iter_mut().find(|(name, _)| **name == *"severity") {
            Some((_, value)) => *value = severity,
            None => {
                rule.labels.push(("severity".into(), severity));
                rule.labels.sort_by(|(a, _), (b, _)| a.cmp(b));
            }
        }
    }

    fn unknown(&self, rules: &RuleSet) -> OverrideRefusal {
        let name = &self.rule;
        let alert = name.rsplit('/').next().unwrap_or(name);
        let all = rules.groups.iter().flat_map(|group| &group.rules);
        let ids: Vec<(String, &str)> =
            all.map(|rule| (rule.id.to_string(), &*rule.id.alert)).collect();
        let same = ids.iter().find(|(_, loaded)| *loaded == alert);
        let is_off =
            |id: &RuleId| id.to_string() == *name || (same.is_none() && *id.alert == *alert);
        if let Some(off) = rules.shipped_off.iter().find(|off| is_off(&off.id)) {
            return OverrideRefusal {
                message: format!("the shipped rule {} is off", off.id),
                hint: "write rule_files: [shipped, …], or remove this override".to_owned(),
            };
        }
        let hint = match same {
            Some((id, _)) => format!("write {id}"),
            None => did_you_mean(name, ids.iter().map(|(id, _)| &**id))
                .unwrap_or_else(|| "`umawarden rules print` lists the rules".to_owned()),
        };
        OverrideRefusal { message: format!("there is no rule \"{name}\""), hint }
    }
}

#[cfg(test)]
mod tests;
