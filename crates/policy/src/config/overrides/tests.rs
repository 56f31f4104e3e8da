use super::*;
use crate::config::mistake::SourceText;
use crate::config::rules::parse_rules;
use crate::config::settings::parse_settings;

const RULES: &str = "
groups:
- name: memory
  rules:
  - alert: Short
    expr: uma_memory_free_bytes < 1
    for: 5s
    labels: {severity: warning, team: gpu}
    remedy: {steps: [drop_caches: {}], cooldown: 30s}
  - alert: Quiet
    expr: uma_memory_free_bytes < 2
";

fn rules() -> RuleSet {
    let source = SourceText::new("rules.yaml", RULES);
    parse_rules(&[source], Duration::from_secs(1)).expect("rules")
}

fn written(text: &str) -> Result<Vec<WrittenOverride>, String> {
    let source = SourceText::new("umawarden.yaml", format!("mode: observe\nrules:\n{text}"));
    let file = parse_settings(&source).map_err(|mistakes| mistakes.to_string())?;
    Ok(file.overrides)
}

/// Rules, and what changes nothing; or the mistakes.
fn overridden(text: &str) -> Result<(RuleSet, Vec<String>), String> {
    let mut rules = rules();
    let text_of = |all: Vec<Mistake>| all.iter().map(ToString::to_string).collect::<String>();
    let idle = apply(&written(text)?, &mut rules).map_err(text_of)?;
    Ok((rules, idle.iter().map(Mistake::line_text).collect()))
}

#[test]
fn every_key_changes_its_part_of_the_rule_and_no_other() {
    let all = "  memory/Short: {mode: enforce, severity: critical, for: 1m, keep_firing_for: 2m, \
               cooldown: 1h, at_most: {times: 1, per: 1d}, require_approval: true, breaker: \
               {misses: 1}, inhibited_by: Quiet}\n";
    let (rules, idle) = overridden(all).unwrap();
    assert_eq!(idle, [""; 0]);
    let rule = &rules.groups[0].rules[0];
    let rails = &rule.remedy.as_ref().unwrap().rails;
    let labels: Vec<(&str, &str)> =
        rule.labels.iter().map(|(name, text)| (&**name, &**text.as_written())).collect();
    assert_eq!(labels, [("severity", "critical"), ("team", "gpu")]);
    assert_eq!((rule.mode, rule.hold_for.as_secs()), (Some(Mode::Enforce), 60));
    assert_eq!((rule.keep_firing_for.as_secs(), rails.cooldown.as_secs()), (120, 3600));
    assert_eq!((rails.at_most.unwrap().times, rails.breaker.unwrap().misses), (1, 1));
    assert_eq!((rails.approval.is_some(), &*rails.inhibited_by[0]), (true, "Quiet"));
    let place = &rules.overridden[&rule.id];
    assert_eq!(&*place.name, "memory/Short");
    assert!(place.to_string().starts_with("overridden in umawarden.yaml:3: mode, severity"));
    // One key alone leaves the others as they are.
    let (rules, _) = overridden("  memory/Short: {cooldown: 1h}\n").unwrap();
    let changed = &rules.groups[0].rules[0];
    let original = &self::rules().groups[0].rules[0];
    let mut expected = original.clone();
    expected.remedy.as_mut().unwrap().rails.cooldown = Duration::from_secs(3_600);
    assert_eq!(*changed, expected);
}

#[test]
fn recorded_overrides_change_the_same() {
    let all = "  memory/Short: {mode: observe, require_approval: {expires: 10m}}\n  \
               memory/Quiet: {severity: info}\n";
    let written = written(all).unwrap();
    let recorded = serde_json::to_string(&changes(&written)).unwrap();
    let (mut original, mut replayed) = (rules(), rules());
    apply(&written, &mut original).unwrap();
    let changes: Vec<RuleOverride> = serde_json::from_str(&recorded).unwrap();
    apply_again(&changes, &mut replayed);
    assert_eq!(original.groups[0].rules, replayed.groups[0].rules);
    assert_eq!(original.overridden, replayed.overridden);
    assert_ne!(original.groups[0].rules, rules().groups[0].rules);
}

#[test]
fn what_changes_nothing_is_said() {
    for (text, expected) in [
        ("  memory/Short: {severity: warning}\n", "memory/Short has that severity"),
        ("  memory/Short: {mode: enforce, cooldown: 30s}\n", "memory/Short has that cooldown"),
        ("  memory/Quiet: {mode: observe}\n", "memory/Quiet only alerts"),
    ] {
        let (_, idle) = overridden(text).unwrap();
        assert_eq!(
            idle,
            [format!("umawarden.yaml:3:3: this override changes nothing: {expected}")]
        );
    }
}

#[test]
fn mistakes_have_their_place_and_what_to_do() {
    for (text, message, hint) in [
        ("  memory/Shrot: {mode: observe}\n", "no rule \"memory/Shrot\"", "\"memory/Short\"?"),
        ("  brake/Short: {mode: observe}\n", "no rule \"brake/Short\"", "write memory/Short"),
        ("  Short: {inhibited_by: Short}\n", "a rule cannot inhibit itself", ""),
        ("  memory/Quiet: {cooldown: 1m}\n", "has no remedy, and so no cooldown", "remove"),
        ("  memory/Short: {inhibited_by: Short}\n", "a rule cannot inhibit itself", ""),
        ("  memory/Short: {inhibited_by: Quite}\n", "no rule has the alert", "\"Quiet\"?"),
        ("  memory/Short: {only_in: nights}\n", "nights", "maintenance_windows"),
        ("  memory/Short: {expr: a}\n", "expr", "a file of your own"),
        ("  memory/Short: {severity: '{{ x }}'}\n", "no template", ""),
        ("  memory/Short: {}\n", "is empty", "add mode: observe"),
        ("  - my.yaml\n", "rules must be a mapping", "rule_files: [shipped, my.yaml]"),
        ("  memory/Short: {mode: enforc}\n", "mode", "\"enforce\"?"),
    ] {
        let error = overridden(text).expect_err(text);
        assert!(error.contains(message) && error.contains(hint), "{text}: {error}");
        assert!(error.contains("umawarden.yaml:3:"), "{error}");
    }
}

#[test]
fn a_rule_is_named_by_its_alert_or_by_its_file_as_well() {
    for name in ["Short", "rules/Short", "memory/Short"] {
        let (rules, idle) = overridden(&format!("  {name}: {{severity: info}}\n")).unwrap();
        assert_eq!(idle, [""; 0], "{name}");
        let changed: Vec<String> = rules.overridden.keys().map(ToString::to_string).collect();
        assert_eq!(changed, ["memory/Short"], "{name}");
    }
    let mut shipped =
        parse_rules(&crate::config::shipped::shipped_rules(), Duration::from_secs(1)).unwrap();
    apply(&written("  memory/MemoryCollapse: {mode: observe}\n").unwrap(), &mut shipped).unwrap();
    let changed: Vec<String> = shipped.overridden.keys().map(ToString::to_string).collect();
    assert_eq!(changed, ["brake/MemoryCollapse"]);
}

#[test]
fn a_name_of_several_rules_is_refused_and_names_them() {
    let second = "- name: swap\n  rules:\n  - {alert: Short, expr: uma_memory_free_bytes < 3}\n";
    let other = "groups:\n- name: other\n  rules:\n  - {alert: Short, expr: uma_swap_free_bytes < \
                 1}\n";
    let texts = [
        SourceText::new("rules.yaml", format!("{RULES}{second}")),
        SourceText::new("/etc/mine.yaml", other),
    ];
    let parsed = || parse_rules(&texts, Duration::from_secs(1)).expect("rules");
    let refused = |name: &str| {
        let written = written(&format!("  {name}: {{severity: info}}\n")).unwrap();
        let mistakes = apply(&written, &mut parsed()).unwrap_err();
        mistakes.iter().map(ToString::to_string).collect::<String>()
    };
    for (name, message, hint) in [
        ("Short", "\"Short\" names 3 rules", "write memory/Short or swap/Short or other/Short"),
        ("rules/Short", "\"rules/Short\" names 2 rules", "write memory/Short or swap/Short"),
    ] {
        let error = refused(name);
        assert!(error.contains(message) && error.contains(hint), "{name}: {error}");
        assert!(error.contains("umawarden.yaml:3:"), "{error}");
    }
    for name in ["mine/Short", "other/Short"] {
        let mut rules = parsed();
        apply(&written(&format!("  {name}: {{severity: info}}\n")).unwrap(), &mut rules).unwrap();
        assert!(rules.overridden.keys().all(|id| &*id.group == "other"), "{name}");
    }
}

#[test]
fn a_rule_under_two_names_is_refused() {
    let error = overridden("  memory/Short: {for: 1m}\n  Short: {cooldown: 1h}\n").unwrap_err();
    assert!(error.contains("umawarden.yaml:4:"), "{error}");
    assert!(error.contains("memory/Short has two overrides"), "{error}");
    assert!(error.contains("the one in umawarden.yaml:3"), "{error}");
}

#[test]
fn an_override_of_a_shipped_rule_that_is_off_says_so() {
    let mut rules = rules();
    rules.shipped_off = crate::config::shipped::shipped_off(&rules).into();
    for name in ["brake/MemoryCollapse", "MemoryCollapse", "memory/MemoryCollapse"] {
        let written = written(&format!("  {name}: {{mode: observe}}\n")).unwrap();
        let error = apply(&written, &mut rules).unwrap_err()[0].to_string();
        assert!(error.contains("brake/MemoryCollapse is off"), "{error}");
        assert!(error.contains("rule_files: [shipped, …]"), "{error}");
    }
}
