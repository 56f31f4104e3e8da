//! METRICS.md and RULES.md say what the program says: they are written from its own tables.
//! `UPDATE_GOLDEN=1 cargo test` writes them anew.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use umawarden::config::measure::written;
use umawarden::config::rules::parse_rules;
use umawarden::config::shipped::shipped_rules;
use umawarden::model::{HoldReason, METRICS, MetricKind, Source};
use umawarden::policy::rule::{Remedy, Rule, RuleSet};

fn assert_document(name: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{name} is out of date: UPDATE_GOLDEN=1 cargo test documents");
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[test]
fn metrics_md_lists_every_series() {
    let mut text = String::from(
        "# Metrics\n\nEverything on `/metrics`, and every series that a rule may read. Written from \
         the program's own table.\n\nA series is missing where this kernel or machine does not have \
         it, and where reading it failed: absence is never written as 0. `uma_source_up` tells \
         which.\n",
    );
    for source in Source::ALL {
        let metrics: Vec<_> = METRICS.iter().filter(|metric| metric.source == source).collect();
        if metrics.is_empty() {
            continue;
        }
        write!(text, "\n## {}\n\n| series | type | meaning |\n|---|---|---|\n", source.name())
            .unwrap();
        for metric in metrics {
            let kind = match metric.kind {
                MetricKind::Gauge => "gauge",
                MetricKind::Counter => "counter",
                MetricKind::Info => "info",
            };
            let labels = metric.labels.join(", ");
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            writeln!(text, "| `{}{labels}` | {kind} | {} |", metric.name, cell(metric.help))
                .unwrap();
        }
    }
    text.push_str(
        "\n## Why a remedy holds back\n\nThe `reason` of `uma_decisions_total`, of `umawarden \
         history` and of `remedy_test`; the first that holds is told.\n\n| reason | meaning \
         |\n|---|---|\n",
    );
    for reason in HoldReason::ALL {
        writeln!(text, "| `{}` | {} |", reason.name(), cell(reason.meaning())).unwrap();
    }
    assert_document("METRICS.md", &text);
}

fn remedy(remedy: &Remedy) -> String {
    let steps: Vec<String> = remedy.steps.iter().map(ToString::to_string).collect();
    let aim = remedy.aim.as_ref().map_or("the condition ends", |aim| &aim.text);
    let mut text = format!("- remedy: {}\n", steps.join(", then "));
    writeln!(text, "- until: `{}`", cell(aim.trim())).unwrap();
    write!(text, "- at most: once in {}", written(remedy.cooldown)).unwrap();
    if let Some(at_most) = remedy.at_most {
        write!(text, ", {} times in {}", at_most.times, written(at_most.per)).unwrap();
    }
    text.push('\n');
    text
}

fn annotation<'a>(rule: &'a Rule, name: &str) -> Option<&'a str> {
    rule.annotations
        .iter()
        .find(|(own, _)| &**own == name)
        .map(|(_, text)| text.as_written().as_ref())
}

fn label<'a>(rule: &'a Rule, name: &str) -> &'a str {
    rule.labels.iter().find(|(own, _)| &**own == name).map_or("", |(_, text)| text.as_written())
}

#[test]
fn rules_md_lists_every_shipped_rule() {
    let rules: RuleSet = parse_rules(&shipped_rules(), Duration::from_millis(100)).unwrap();
    let mut text = String::from(
        "# Shipped rules\n\nUsed where no other rule files are named. The files in `rules/` argue \
         every threshold. Remedies are carried out with `--mode enforce` only; otherwise they are \
         told.\n",
    );
    for rule in rules.groups.iter().flat_map(|group| &group.rules) {
        write!(text, "\n## {}\n\n", rule.id.alert).unwrap();
        let summary = annotation(rule, "summary");
        assert!(summary.is_some(), "{} has no summary", rule.id);
        writeln!(text, "{}", summary.unwrap_or_default()).unwrap();
        if let Some(description) = annotation(rule, "description") {
            write!(text, "\n{}\n", description.trim()).unwrap();
        }
        let severity = label(rule, "severity");
        assert!(!severity.is_empty(), "{} has no severity", rule.id);
        write!(text, "\n- group {}, severity {severity}\n", rule.id.group).unwrap();
        writeln!(text, "- holds for: {}", written(rule.hold_for)).unwrap();
        if let Some(own) = &rule.remedy {
            text.push_str(&remedy(own));
        }
        write!(text, "\n```promql\n{}\n```\n", rule.expr.text.trim()).unwrap();
    }
    assert_document("RULES.md", &text);
}
