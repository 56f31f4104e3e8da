//! Tests of the shipped rules: they pass, and fail for wrong rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::template::Template;
use umawarden::config::mistake::SourceText;
use umawarden::config::rules::parse_rules;
use umawarden::config::shipped::shipped_rules;
use umawarden::policy::rule::{Query, RemedyStep, Rule, RuleSet};
use umawarden::scenario::{TestFile, agree, parse_tests, play};

use super::oracle::promtools_verdicts;
use super::{promtool, rules_test, text};

fn source(path: &str) -> SourceText {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = fs::read_to_string(&path);
    SourceText::new("test", text.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Each shipped rule file's rules and tests.
fn shipped() -> Vec<(RuleSet, TestFile)> {
    let files = shipped_rules().into_iter().map(|rules| {
        let name = rules.name.replace("shipped:", "").replace(".yaml", "_test.yaml");
        let tests = source(&format!("rules/{name}"));
        let rules = parse_rules(&[rules], Duration::from_millis(100));
        let rules = rules.unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let file = parse_tests(&tests).unwrap_or_else(|mistakes| panic!("{name}\n{mistakes}"));
        let remarks = agree(&tests, &file, &rules).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!(remarks, [], "{name}");
        (rules, file)
    });
    files.collect()
}

/// The first failing test, searched from that one, as the tests of one rule are adjacent.
fn failing(file: &TestFile, rules: &RuleSet, first: usize) -> Option<usize> {
    let tests = file.tests.iter().enumerate().cycle().skip(first).take(file.tests.len());
    let mut failing = tests.filter(|(_, test)| !play(file, test, rules).failures.is_empty());
    failing.next().map(|(index, _)| index)
}

#[test]
fn the_shipped_rules_pass_their_tests() {
    let output = rules_test(&["rules"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    // The brake, machines with several pools, healthy nodes and pairs, and what must page have test
    // files of their own in addition.
    assert_eq!(text(&output).matches("SUCCESS").count(), shipped_rules().len() + 5);
}

/// A possible mistake in a rule, and how to make it.
type Flaw<'f> = (&'f str, &'f dyn Fn(&mut Rule));

/// A rule that never fires, always fires, or does something else must fail a test: a rule without
/// tests would pass them all.
#[test]
fn every_shipped_rule_has_tests_that_fail_when_it_is_wrong() {
    let query =
        |text: &str| Query { text: Arc::from(text), expr: promql_rules::parse(text).expect(text) };
    let other = Template::parse("other").unwrap();
    let (never, always) = (query("vector(1) < 0"), query("vector(1) > 0"));
    let flaws: [Flaw<'_>; 3] = [
        ("never fires", &|rule| rule.expr = never.clone()),
        ("always fires", &|rule| {
            rule.expr = always.clone();
            rule.hold_for = Duration::ZERO;
        }),
        ("does something else", &|rule| {
            for step in rule.remedy.iter_mut().flat_map(|remedy| &mut remedy.steps) {
                *step = match step {
                    RemedyStep::CompactMemory => RemedyStep::Notify { message: other.clone() },
                    _ => RemedyStep::CompactMemory,
                };
            }
        }),
    ];
    let mut unnoticed = Vec::new();
    for (rules, file) in shipped() {
        let mut noticed = 0;
        let groups = rules.groups.iter().enumerate();
        let positions = groups.flat_map(|(group, g)| (0..g.rules.len()).map(move |at| (group, at)));
        for ((group, at), (what, spoil)) in positions.flat_map(|p| flaws.map(|flaw| (p, flaw))) {
            let mut spoilt = rules.clone();
            let rule = &mut spoilt.groups[group].rules[at];
            spoil(rule);
            // A rule without a remedy has no action to change.
            if rule.remedy.is_some() || what != "does something else" {
                assert_ne!(*rule, rules.groups[group].rules[at], "{what}");
            } else {
                continue;
            }
            let id = rule.id.clone();
            match failing(&file, &spoilt, noticed) {
                Some(index) => noticed = index,
                None => unnoticed.push(format!("{id} {what}")),
            }
        }
    }
    assert!(unnoticed.is_empty(), "no test fails if\n{}", unnoticed.join("\n"));
}

/// The last time that a test checks, in seconds.
fn lasts(test: &str) -> u64 {
    let seconds = |text: &str| {
        let digits = text.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = text[..digits].parse().ok()?;
        let unit = text[digits..].split(|c: char| !c.is_ascii_alphabetic()).next();
        Some(match unit {
            Some("h") => number * 3600,
            Some("m") => number * 60,
            Some("s") => number,
            _ => 0,
        })
    };
    test.split("eval_time: ").skip(1).filter_map(seconds).max().unwrap_or(0)
}

/// The file without our keys and without tests with failing readings, which promtool rejects, and
/// without tests that last long: promtool takes minutes for the ranges of a rule in them.
fn for_promtool(text: &str) -> Vec<String> {
    let mut tests: Vec<String> = vec![String::new()];
    let mut skipping = false;
    for line in text.lines() {
        if line.starts_with("- name:") {
            tests.push(String::new());
        }
        let is_key = line.starts_with("  ") && line[2..].starts_with(|c: char| c.is_alphabetic());
        if is_key || line.starts_with("- ") {
            let ours = [
                "  remedy_test:",
                "  outcomes:",
                "  mode:",
                "  guard_rails:",
                "  start_timestamp:",
            ];
            skipping = ours.iter().any(|key| line.starts_with(key));
        }
        if !skipping && let Some(test) = tests.last_mut() {
            *test += &format!("{line}\n");
        }
    }
    tests.retain(|test| !test.contains("failedx") && lasts(test) <= 100);
    tests
}

/// The words that follow a key, each once.
fn values(text: &str, key: &str) -> BTreeSet<String> {
    let value = |rest: &str| rest.split(['}', ',', '\n']).next().map(|word| word.trim().to_owned());
    text.split(key).skip(1).filter_map(value).collect()
}

/// A rule file with the named alerts alone.
fn only(rules: &str, alerts: &BTreeSet<String>) -> String {
    let mut is_kept = true;
    let mut kept = String::new();
    for line in rules.lines() {
        if let Some(name) = line.trim_start().strip_prefix("- alert: ") {
            is_kept = alerts.contains(name);
        } else if line.starts_with("- name:") {
            is_kept = true;
        }
        if is_kept {
            kept += &format!("{line}\n");
        }
    }
    kept
}

/// No shipped rule depends on another one, and promtool evaluates all rules that it loads: each test
/// meets only the rules that it names.
#[test]
fn the_tests_of_the_shipped_rules_pass_in_promtool() {
    let Some(promtool) = promtool() else { return };
    for name in ["memory", "kernel"] {
        let rules =
            crate::rules_check::without_remedies(&source(&format!("rules/{name}.yaml")).text);
        assert!(!rules.contains("ALERTS") && !rules.contains("record:"), "{name}");
        let tests = for_promtool(&source(&format!("rules/{name}_test.yaml")).text);
        let mut by_alerts: BTreeMap<BTreeSet<String>, Vec<String>> = BTreeMap::new();
        for test in &tests[1..] {
            let title = test.lines().next().and_then(|line| line.strip_prefix("- name: "));
            let title = title.unwrap_or_else(|| panic!("a name: {test}"));
            by_alerts.entry(values(test, "alertname: ")).or_default().push(title.to_owned());
        }
        by_alerts.remove(&BTreeSet::new());
        assert!(by_alerts.keys().flatten().collect::<BTreeSet<_>>().len() > 5, "{by_alerts:?}");
        for (alerts, titles) in by_alerts {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join(format!("{name}_test.yaml"));
            fs::write(folder.path().join(format!("{name}.yaml")), only(&rules, &alerts))
                .expect("written");
            fs::write(&path, tests.concat()).expect("written");
            let any = |title: &String| title.replace(|c: char| !c.is_alphanumeric(), ".");
            let patterns: Vec<_> = titles.iter().map(|title| format!("^{}$", any(title))).collect();
            let (verdicts, printed) = promtools_verdicts(&promtool, &path, &patterns);
            assert!(verdicts.values().all(|passed| *passed), "{alerts:?}: {printed}");
            assert_eq!(verdicts.len(), titles.len(), "{titles:?}: {printed}");
        }
    }
}
