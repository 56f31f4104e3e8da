//! `umawarden rules print`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use clap::Args;
use promql_rules::template::Template;
use serde_json::{Map, Value, json};

use super::super::Exit;
use crate::cli::explain::resolve;
use crate::cli::output::{self, errln, outln};
use crate::config::flags::LoadFlags;
use crate::config::reader::{LoadedConfig, environment, load};
use crate::config::rules::{
    Comments, places, step_settings, write_head, write_rule, written_rails,
};
use crate::daemon::{MissingAbility, missing};
use crate::model::{ADD_SHIPPED, Mode, RuleId, mode_text, off_text};
use crate::policy::rule::{RemedyStep, Rule, RuleGroup, RuleSet};

/// Arguments of `umawarden rules print`.
#[derive(Debug, Args)]
#[command(after_help = PRINT_HELP)]
pub struct RulesPrintArguments {
    /// One rule, by its alert or as GROUP/ALERT [default: all].
    #[arg(value_name = "RULE")]
    pub rule: Option<String>,

    /// The configuration and the rules, as in `umawarden run`.
    #[command(flatten)]
    pub load: LoadFlags,

    /// One JSON object a rule.
    #[arg(long)]
    pub json: bool,
}

const PRINT_HELP: &str = "\
Prints the rules that `umawarden run` with the same flags would use, as a rule file with remedies: \
defaults are written out, and what the configuration overrides is changed. Comments say where each \
rule is written, where it is overridden, whether each step would be carried out, and what this \
user lacks on this node. The text can be used as a rule file.

  umawarden rules print MemoryCollapse
  umawarden rules print --json | jq 'select(.remedy) | .rule'

Exit codes: 0 printed, 2 there is no such rule, or the configuration or the rules cannot be used.";

/// Runs the command.
///
/// # Errors
/// The configuration or the rules cannot be used, or there is no such rule.
pub(super) fn execute(arguments: &RulesPrintArguments) -> anyhow::Result<Exit> {
    let mut loaded = load(&arguments.load.clone().into(), &environment())?;
    if let Some(name) = &arguments.rule {
        let ids = loaded.rules.groups.iter().flat_map(|group| &group.rules).map(|rule| &rule.id);
        let wanted = resolve(name, ids, "are loaded")?;
        for group in &mut loaded.rules.groups {
            group.rules.retain(|rule| rule.id == wanted);
        }
        loaded.rules.groups.retain(|group| !group.rules.is_empty());
    } else {
        for remark in &loaded.remarks {
            errln!("umawarden: {remark}");
        }
    }
    let lacks_anyway = missing(&loaded.settings, &RuleSet::default());
    let printed = PrintedRules { places: places(&loaded.texts), loaded: &loaded, lacks_anyway };
    match arguments.json {
        true => printed.json(),
        false => output::print(&printed.text(arguments.rule.is_none())),
    }
    Ok(Exit::Fine)
}

/// Rules, and where each is written.
struct PrintedRules<'l> {
    loaded: &'l LoadedConfig,
    /// What is missing whatever the rules are.
    lacks_anyway: Vec<MissingAbility>,
    places: BTreeMap<RuleId, (Arc<str>, usize)>,
}

impl PrintedRules<'_> {
    fn mode(&self, rule: &Rule) -> Mode {
        rule.mode_in_force(self.loaded.settings.mode, &self.loaded.rules.guard_rails.enforced)
    }

    /// Why a step would not be carried out, whatever the guard rails say; `None`: it would.
    fn observed(&self, rule: &Rule, step: &RemedyStep) -> Option<String> {
        let grade = step.grade();
        let is_enforced = self.loaded.rules.guard_rails.enforced.has(grade);
        match (rule.mode.unwrap_or(self.loaded.settings.mode), rule.mode) {
            (Mode::Enforce, _) if is_enforced => None,
            (Mode::Enforce, _) => Some(format!("grade {grade} is not enforced")),
            (Mode::Observe, Some(_)) => Some("the rule's mode is observe".to_owned()),
            (Mode::Observe, None) => Some("the node's mode is observe".to_owned()),
        }
    }

    fn place(&self, rule: &Rule, group: &RuleGroup) -> String {
        match self.places.get(&rule.id) {
            Some((file, line)) => format!("{file}:{line}"),
            None => group.file.display().to_string(),
        }
    }

    /// What this user lacks here for the rule's remedy.
    fn lacks(&self, rule: &Rule, group: &RuleGroup) -> Vec<String> {
        let group = RuleGroup { rules: vec![rule.clone()], ..group.clone() };
        let guard_rails = self.loaded.rules.guard_rails.clone();
        let alone = RuleSet { groups: vec![group], guard_rails, ..RuleSet::default() };
        let lacks = missing(&self.loaded.settings, &alone).into_iter();
        lacks
            .filter(|one| !self.lacks_anyway.contains(one))
            .map(|one| format!("{}; {}", one.what, one.remedy))
            .collect()
    }

    fn text(&self, is_whole: bool) -> String {
        let mut out = String::new();
        let enforced = &self.loaded.rules.guard_rails.enforced;
        let mode = mode_text(self.loaded.settings.mode, enforced);
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# Made by `umawarden rules print`; the node's mode is {mode}.");
        if let Some(off) = off_text(&self.loaded.rules.shipped_off).filter(|_| is_whole) {
            let _ = writeln!(out, "# {off}: {ADD_SHIPPED}");
        }
        let groups = &self.loaded.rules.groups;
        out.push_str(if groups.is_empty() { "groups: []\n" } else { "groups:\n" });
        for group in groups {
            write_head(group, &mut out);
            for rule in &group.rules {
                write_rule(rule, &self.comments(rule, group), &mut out);
            }
        }
        out
    }

    fn comments(&self, rule: &Rule, group: &RuleGroup) -> Comments {
        let mut above = vec![self.place(rule, group)];
        above.extend(self.loaded.rules.overridden.get(&rule.id).map(ToString::to_string));
        let steps = rule.remedy.iter().flat_map(|remedy| &remedy.steps);
        let steps = steps.map(|step| match self.observed(rule, step) {
            None => format!("{}: carried out", step.grade()),
            Some(why) => format!("{}: only reported, {why}", step.grade()),
        });
        let steps = steps.collect();
        if rule.remedy.is_some() {
            let lacks = self.lacks(rule, group).into_iter();
            above.extend(lacks.map(|lack| format!("on this node: not available: {lack}")));
        }
        Comments { above, steps }
    }

    fn json(&self) {
        for group in &self.loaded.rules.groups {
            for rule in &group.rules {
                outln!("{}", self.rule_json(rule, group));
            }
        }
    }

    fn rule_json(&self, rule: &Rule, group: &RuleGroup) -> Value {
        let texts = |all: &[(Arc<str>, Template)]| -> Value {
            let pairs = all.iter();
            pairs.map(|(name, text)| (name.to_string(), json!(&**text.as_written()))).collect()
        };
        let overridden = self.loaded.rules.overridden.get(&rule.id);
        let place = self.places.get(&rule.id);
        json!({
            "rule": rule.id.to_string(),
            "file": group.file.display().to_string(),
            "line": place.map(|(_, line)| line),
            "overridden": overridden.map(|own| json!({"place": own.place, "keys": own.keys})),
            "scope": group.scope.name(),
            "interval_seconds": group.interval.as_secs_f64(),
            "expr": rule.expr.text,
            "for_seconds": rule.hold_for.as_secs_f64(),
            "keep_firing_for_seconds": rule.keep_firing_for.as_secs_f64(),
            "labels": texts(&rule.labels),
            "annotations": texts(&rule.annotations),
            "mode": self.mode(rule).name(),
            "remedy": rule.remedy.as_ref().map(|remedy| json!({
                "aim": remedy.aim.as_ref().map(|aim| &aim.text),
                "steps": remedy.steps.iter().map(|step| self.step_json(rule, step))
                    .collect::<Vec<_>>(),
                "guard_rails": written_rails(&remedy.rails).into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect::<Map<_, _>>(),
                "lacks": self.lacks(rule, group),
            })),
        })
    }

    fn step_json(&self, rule: &Rule, step: &RemedyStep) -> Value {
        let (name, settings) = step_settings(step);
        let observed = self.observed(rule, step);
        json!({
            "step": name,
            "settings": settings,
            "grade": step.grade(),
            "carried_out": observed.is_none(),
            "why": observed,
        })
    }
}
