//! Rules in an object of the Prometheus operator.

use std::time::Duration;

use super::*;
use crate::config::mistake::SourceText;
use crate::config::settings::limits::DEFAULT_INTERVAL;
use crate::config::shipped::shipped_rules;

const OBJECT: &str = "\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: a, labels: {release: stack}}
spec:
  groups:
  - name: g
    rules:
    - alert: A
      expr: uma_memory_free_bytes < 1
";

fn read(text: &str) -> Result<RuleSet, Mistakes> {
    parse_rules(&[SourceText::new("rule.yaml", text)], Duration::from_secs(1))
}

#[test]
fn the_rules_of_an_object_are_read_with_their_positions() {
    let rules = read(OBJECT).unwrap();
    assert_eq!(rules.groups[0].rules[0].id.to_string(), "g/A");
    let source = SourceText::new("rule.yaml", OBJECT);
    assert_eq!(places(std::slice::from_ref(&source))[&rules.groups[0].rules[0].id].1, 8);
    assert!(examine(&[source], &rules).findings.is_empty());
    let wrong = OBJECT.replace("free_bytes", "fre_bytes");
    let error = read(&wrong).unwrap_err().to_string();
    assert!(error.contains("rule.yaml:9:13: expr: unknown series"), "{error}");
}

#[test]
fn an_object_without_rules_and_other_objects_are_mistakes() {
    for (from, to, message) in [
        ("spec:\n  groups:", "spc:\n  groups:", "unknown key \"spc\""),
        ("  groups:", "  grups:", "unknown key \"grups\""),
        ("kind: PrometheusRule", "kind: ConfigMap", "this is not a rule file"),
        ("monitoring.coreos.com/v1", "monitoring.coreos.com/v2", "only a PrometheusRule"),
        ("- alert: A", "- record: A", "recording rules are not supported"),
    ] {
        let error = read(&OBJECT.replace(from, to)).expect_err(to).to_string();
        assert!(error.contains(message), "{to}: {error}");
    }
    let head = "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\n";
    let error = read(head).unwrap_err().to_string();
    assert!(error.contains("this PrometheusRule has no spec"), "{error}");
}

#[test]
fn an_exported_object_has_the_rules_of_the_exported_file() {
    let mut rules = parse_rules(&shipped_rules(), DEFAULT_INTERVAL).unwrap();
    // Prometheus has no scope, so that those of the cluster are no rules of a node any more.
    rules.groups.retain(|group| group.scope == RuleScope::Node);
    let options = ExportOptions::default();
    let metadata = ObjectMetadata {
        name: "umawarden".to_owned(),
        namespace: Some("monitoring".to_owned()),
        labels: [("release".to_owned(), "stack: \"1\"".to_owned())].into(),
    };
    let object = prometheus_object(&rules, &options, &metadata);
    assert!(is_export(&object) && object.contains("  namespace: \"monitoring\"\n"), "{object}");
    let again = read(&object).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let file = read(&prometheus_rules(&rules, &options)).unwrap();
    assert!(again.groups.len() > 5);
    for (own, other) in again.groups.iter().zip(&file.groups) {
        assert_eq!((&own.name, &own.rules), (&other.name, &other.rules));
    }
    let none = prometheus_object(&RuleSet::default(), &options, &ObjectMetadata::default());
    assert!(none.contains("\nspec:\n  groups: []\n") && !none.contains("namespace"), "{none}");
}
