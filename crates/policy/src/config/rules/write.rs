//! Rules as rule files write them, for people: with remedies, and with what the configuration has
//! changed. The text can be read again.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::export::{push, quoted, write_expr, write_templates};
use super::rails::DEFAULT_AT_MOST;
use crate::config::measure::written;
use crate::model::without_unprintable;
use crate::policy::guard::{AtMost, BreakerLimit, Rails};
use crate::policy::rule::{ReclaimFrom, Remedy, RemedyStep, Rule, RuleGroup, RuleScope};

/// Comments of a written rule.
#[derive(Clone, Debug, Default)]
pub struct Comments {
    /// Lines above the rule.
    pub above: Vec<String>,
    /// One for each step.
    pub steps: Vec<String>,
}

/// The head of a group. Its rules follow.
pub fn write_head(group: &RuleGroup, out: &mut String) {
    push(out, format_args!("- name: {}\n", text(&group.name)));
    if group.scope != RuleScope::default() {
        push(out, format_args!("  scope: {}\n", group.scope.name()));
    }
    push(out, format_args!("  interval: {}\n  rules:\n", written(group.interval)));
}

/// One rule of a group.
pub fn write_rule(rule: &Rule, comments: &Comments, out: &mut String) {
    for line in &comments.above {
        push(out, format_args!("  # {}\n", without_unprintable(line, ' ')));
    }
    push(out, format_args!("  - alert: {}\n", text(&rule.id.alert)));
    write_expr(&rule.expr.text, out);
    for (key, duration) in [("for", rule.hold_for), ("keep_firing_for", rule.keep_firing_for)] {
        if !duration.is_zero() {
            push(out, format_args!("    {key}: {}\n", written(duration)));
        }
    }
    write_templates("labels", &rule.labels, out);
    write_templates("annotations", &rule.annotations, out);
    if let Some(mode) = rule.mode {
        push(out, format_args!("    mode: {}\n", mode.name()));
    }
    if !rule.is_exported {
        out.push_str("    export: false\n");
    }
    if let Some(remedy) = &rule.remedy {
        write_remedy(remedy, &comments.steps, out);
    }
}

fn write_remedy(remedy: &Remedy, comments: &[String], out: &mut String) {
    out.push_str("    remedy:\n");
    if let Some(aim) = &remedy.aim {
        let mut expr = String::new();
        write_expr(&aim.text, &mut expr);
        for line in expr.replacen("    expr:", "    aim:", 1).lines() {
            push(out, format_args!("  {line}\n"));
        }
    }
    out.push_str("      steps:\n");
    let mut comments = comments.iter();
    for step in &remedy.steps {
        let (name, settings) = step_settings(step);
        push(out, format_args!("      - {name}: {}", flow(&settings)));
        match comments.next() {
            Some(comment) => push(out, format_args!("  # {}\n", without_unprintable(comment, ' '))),
            None => out.push('\n'),
        }
    }
    for (key, value) in rails(&remedy.rails) {
        push(out, format_args!("      {key}: {}\n", flow(&value)));
    }
}

/// The key of a step and its settings, as rule files write them.
pub fn step_settings(step: &RemedyStep) -> (&'static str, Value) {
    let settings = match step {
        RemedyStep::DropCaches { what, sync } => json!({"what": what.name(), "sync": sync}),
        RemedyStep::CompactMemory => json!({}),
        RemedyStep::Reclaim { from: ReclaimFrom::Cgroup(path), bytes } => {
            json!({"cgroup": &**path.as_written(), "bytes": bytes})
        }
        RemedyStep::Reclaim { from: ReclaimFrom::Engine(engine), bytes } => {
            json!({"engine": &**engine.as_written(), "bytes": bytes})
        }
        RemedyStep::EvictCheckpoint {
            engine,
            behind_bytes,
            floor_bytes,
            prefetch,
            for_at_most,
        } => json!({
            "engine": &**engine.as_written(),
            "behind": behind_bytes,
            "floor": floor_bytes,
            "prefetch": prefetch,
            "for": written(*for_at_most),
        }),
        RemedyStep::EmptyCache { engine, allow } => {
            json!({"engine": &**engine.as_written(), "allow": allow})
        }
        RemedyStep::SetSysctl { values, for_at_most } => {
            let mut settings: Map<String, Value> =
                values.iter().map(|(name, value)| (name.name().to_owned(), json!(value))).collect();
            settings.insert("for".to_owned(), written(*for_at_most).into());
            Value::Object(settings)
        }
        RemedyStep::ThrottleReadahead { kib, devices, of, for_at_most } => {
            let of: Vec<&str> = of.iter().map(|path| &**path.as_written()).collect();
            json!({"kib": kib, "devices": devices, "of": of, "for": written(*for_at_most)})
        }
        RemedyStep::TaintNode { taint, for_at_most } => {
            let mut settings = json!(taint);
            settings["for"] = written(*for_at_most).into();
            settings
        }
        RemedyStep::CordonNode { for_at_most } => json!({"for": written(*for_at_most)}),
        RemedyStep::Notify { message } => json!({"message": &**message.as_written()}),
        RemedyStep::StopEngine { engine, grace_ms } => {
            let grace = written(Duration::from_millis(*grace_ms));
            match engine {
                Some(engine) => json!({"engine": &**engine.as_written(), "grace": grace}),
                None => json!({"grace": grace}),
            }
        }
        RemedyStep::Reboot { why: Some(why) } => json!({"why": &**why.as_written()}),
        RemedyStep::Reboot { why: None } => json!({}),
    };
    (step.name(), settings)
}

/// Guard rails of a remedy by their keys, without empty ones.
pub fn rails(rails: &Rails) -> Vec<(&'static str, Value)> {
    let Rails { cooldown, at_most, approval, breaker, only_in, never_in, inhibited_by, .. } = rails;
    let time_for_people = if rails.unless_denied { "unless_denied_within" } else { "expires" };
    let AtMost { times, per } = at_most.unwrap_or(DEFAULT_AT_MOST);
    let mut all = vec![
        ("cooldown", written(*cooldown).into()),
        ("at_most", json!({"times": times, "per": written(per)})),
    ];
    if let Some(expires) = approval {
        all.push(("require_approval", json!({time_for_people: written(*expires)})));
    }
    if let Some(BreakerLimit { misses, reset_after }) = breaker {
        let reset_after = written(reset_after.unwrap_or_default());
        all.push(("breaker", json!({"misses": misses, "reset_after": reset_after})));
    }
    let lists = [("only_in", only_in), ("never_in", never_in), ("inhibited_by", inhibited_by)];
    let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
    all.extend(lists.map(|(key, names)| {
        (key, Value::Array(names.iter().map(|name| Value::from(&**name)).collect()))
    }));
    all
}

/// A value in one line of YAML.
fn flow(value: &Value) -> String {
    match value {
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| format!("{key}: {}", flow(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", "))
        }
        Value::String(string) => text(string),
        other => other.to_string(),
    }
}

/// A text, in quotes where YAML could take it for something else.
fn text(text: &str) -> String {
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !["true", "false", "yes", "no", "on", "off", "null", "y", "n"]
            .contains(&text.to_ascii_lowercase().as_str());
    let is_duration = text.starts_with(|c: char| c.is_ascii_digit())
        && text.ends_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_digit() || "mshdwy".contains(c));
    if is_word || is_duration {
        return text.to_owned();
    }
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = out.write_str(&quoted(text));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mistake::SourceText;
    use crate::config::rules::parse_rules;
    use crate::config::settings::limits::DEFAULT_INTERVAL;
    use crate::config::shipped::shipped_rules;
    use crate::policy::rule::RuleSet;

    fn written_again(rules: &RuleSet) -> RuleSet {
        let mut out = "groups:\n".to_owned();
        for group in &rules.groups {
            write_head(group, &mut out);
            for rule in &group.rules {
                let comments = Comments {
                    above: vec!["a comment\nof two lines".to_owned()],
                    steps: vec!["of the first step".to_owned()],
                };
                write_rule(rule, &comments, &mut out);
            }
        }
        let source = SourceText::new("written", out.as_str());
        parse_rules(&[source], DEFAULT_INTERVAL).unwrap_or_else(|mistakes| panic!("{mistakes}"))
    }

    fn is_the_same(rules: &RuleSet) {
        for (own, again) in rules.groups.iter().zip(&written_again(rules).groups) {
            assert_eq!((&own.name, own.interval), (&again.name, again.interval));
            assert_eq!(own.scope, again.scope);
            assert_eq!(own.rules, again.rules);
        }
    }

    #[test]
    fn the_shipped_rules_are_the_same_when_they_are_read_again() {
        is_the_same(&parse_rules(&shipped_rules(), DEFAULT_INTERVAL).unwrap());
    }

    #[test]
    fn every_step_and_guard_rail_is_the_same_when_it_is_read_again() {
        let text = r#"
groups:
- name: "odd: {name}"
  scope: node
  rules:
  - alert: "yes"
    expr: "uma_memory_free_bytes\n  < 1"
    for: 1h30m
    keep_firing_for: 300ms
    labels: {a: "x\ty", b: "{{ $value }}", c: ""}
    mode: enforce
    export: false
    remedy:
      aim: "uma_memory_free_bytes > 1 # of all"
      steps:
      - drop_caches: {what: all, sync: true}
      - compact_memory: {}
      - reclaim: {cgroup: "/a b/{{ $labels.x }}", bytes: 2GiB}
      - reclaim: {engine: "a: b", bytes: 1MiB}
      - evict_checkpoint: {engine: deepseek, behind: 64MiB, floor: 3GiB, for: 1h}
      - empty_cache: {engine: "{{ $labels.engine }}", allow: [drop_prefix_cache, unpause]}
      - set_sysctl: {vm.min_free_kbytes: 2097152, vm.swappiness: 1, for: 20m}
      - throttle_readahead: {kib: 8, devices: [nvme0n1], of: [/models], for: 5m}
      - taint_node: {key: umawarden.dev/loads, value: llm, effect: PreferNoSchedule, for: 10m}
      - cordon_node: {for: 1h}
      - notify: {message: "a \"b\"\n# c"}
      - stop_engine: {engine: llm, grace: 0s}
      - reboot: {why: "it's {{ $value }}"}
      cooldown: 0s
      at_most: {times: 1, per: 1d}
      require_approval: {expires: 10m}
      breaker: {misses: 0, reset_after: 0s}
      only_in: [nights, "a, b"]
      never_in: days
      inhibited_by: [Other]
  - alert: Other
    expr: uma_memory_free_bytes < 2
    remedy: {steps: [{reboot: {}}], require_approval: {unless_denied_within: 10m}}
"#;
        let source = SourceText::new("f", text);
        is_the_same(&parse_rules(&[source], DEFAULT_INTERVAL).unwrap());
    }
}
