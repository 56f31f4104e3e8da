//! `alerts/`: files that Prometheus accepts, and a section of the runbook for each alert.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use umawarden::config::rules::{ExportOptions, parse_rules, prometheus_rules};
use umawarden::config::shipped::shipped_rules;
use umawarden::policy::rule::RuleScope;

use crate::dice::rounds;
use crate::documents::assert_document;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("alerts")
}

fn files(ending: &str) -> Vec<PathBuf> {
    let listed = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        listed.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    files.sort();
    files
}

#[test]
fn the_shipped_rules_are_exported_to_alerts() {
    let rules = parse_rules(&shipped_rules(), Duration::ZERO).unwrap();
    let options = ExportOptions {
        by: vec!["instance".into()],
        scrape_interval: Some(Duration::from_secs(15)),
        runbook_url: None,
    };
    assert_document("alerts/umawarden.yaml", &prometheus_rules(&rules, &options));
}

#[test]
fn cluster_rules_are_exported_with_the_labels_they_need() {
    let mut files = shipped_rules();
    files.retain(|file| file.name.ends_with("cluster.yaml"));
    let mut rules = parse_rules(&files, Duration::ZERO).unwrap();
    // Rules of scope `node` about peers are in the other file.
    rules.groups.retain(|group| group.scope == RuleScope::Cluster);
    let options = ExportOptions {
        by: vec!["cluster".into(), "node".into()],
        scrape_interval: Some(Duration::from_secs(15)),
        runbook_url: None,
    };
    let text = prometheus_rules(&rules, &options);
    assert!(text.contains("AvailableMemoryUneven"), "{text}");
    assert_document("alerts/cluster.yaml", &text);
}

/// Debian's promtool, of Prometheus 2, and that of Prometheus 3 where there is one.
fn promtools() -> Vec<String> {
    std::iter::once("promtool".to_owned()).chain(std::env::var("UMAWARDEN_PROMTOOL")).collect()
}

#[test]
fn promtool_accepts_every_file_and_every_test_passes() {
    let rules: Vec<_> = files(".yaml").into_iter().filter(|path| !is_test(path)).collect();
    let tests = files("_test.yaml");
    assert_eq!(rules.len(), tests.len(), "each file has its tests");
    let promtools = promtools();
    let run = |promtool: &str, verb: &str, files: &[PathBuf]| {
        let mut command = Command::new(promtool);
        let output = command.args([verb, "rules"]).args(files).current_dir(folder()).output();
        let output = output.expect("promtool runs; it is in the Debian package prometheus");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{promtool} {verb}: {printed}");
    };
    for promtool in &promtools {
        run(promtool, "check", &rules);
    }
    // The tests take long: the older promtool has them nightly.
    for promtool in rounds(&promtools[promtools.len() - 1..], &promtools[..]) {
        run(promtool, "test", &tests);
    }
}

fn is_test(path: &Path) -> bool {
    path.to_string_lossy().ends_with("_test.yaml")
}

/// The text after `word` in each line that begins with it.
fn after(text: &str, word: &str) -> BTreeSet<String> {
    let found = text.lines().filter_map(|line| line.trim_start().strip_prefix(word));
    found.map(|name| name.trim().trim_matches('"').to_owned()).collect()
}

#[test]
fn each_alert_fires_in_a_promtool_test() {
    for path in files(".yaml").into_iter().filter(|path| !is_test(path)) {
        let test = path.with_file_name(
            path.file_stem().unwrap().to_string_lossy().into_owned() + "_test.yaml",
        );
        let test = fs::read_to_string(test).unwrap();
        // A test that the alert does not fire is not enough.
        let fires = test.lines().filter(|line| !line.contains("exp_alerts: []"));
        let words: BTreeSet<&str> =
            fires.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric())).collect();
        for alert in after(&fs::read_to_string(&path).unwrap(), "- alert:") {
            assert!(words.contains(&*alert), "{}: {alert}", path.display());
        }
    }
}

#[test]
fn each_alert_has_a_runbook_section_and_each_section_an_alert() {
    let runbook = fs::read_to_string(folder().join("RUNBOOK.md")).unwrap();
    let rules = files(".yaml").into_iter().filter(|path| !is_test(path));
    let mut alerts: BTreeSet<String> =
        rules.flat_map(|path| after(&fs::read_to_string(path).unwrap(), "- alert:")).collect();
    // What only the node raises is sent by the node.
    alerts.extend(shipped_rules().iter().flat_map(|rules| after(&rules.text, "- alert:")));
    let sections = after(&runbook, "## ");
    assert!(alerts.len() > 20, "{alerts:?}");
    let missing: Vec<_> = alerts.difference(&sections).collect();
    let idle: Vec<_> = sections.difference(&alerts).collect();
    assert!(missing.is_empty() && idle.is_empty(), "no section: {missing:?}, no alert: {idle:?}");
}

/// A Prometheus has a sample every 15 s: it cannot see what the next second brings.
#[test]
fn no_exported_alert_claims_what_happens_within_seconds() {
    for name in ["umawarden.yaml", "cluster.yaml"] {
        let text = fs::read_to_string(folder().join(name)).unwrap();
        for claim in ["predict_linear", "deriv(", "within 10 s", "CheckpointLoads"] {
            let claims = text.lines().filter(|line| !line.trim_start().starts_with('#'));
            assert!(!claims.into_iter().any(|line| line.contains(claim)), "{name}: {claim}");
        }
    }
}

#[test]
fn each_alert_links_to_its_section_if_a_runbook_url_is_given() {
    let rules = parse_rules(&shipped_rules(), Duration::ZERO).unwrap();
    let runbook_url: Arc<str> = "https://wiki.example/runbook".into();
    let options = ExportOptions { runbook_url: Some(runbook_url), ..ExportOptions::default() };
    let text = prometheus_rules(&rules, &options);
    let alerts = after(&text, "- alert:");
    for alert in &alerts {
        let link = format!("\"https://wiki.example/runbook#{}\"", alert.to_lowercase());
        assert!(text.contains(&link), "{link}");
    }
    assert_eq!(text.matches("runbook_url").count(), alerts.len());
}
