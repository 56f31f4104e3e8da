//! The reference of metrics and rules is generated from the program's own tables.
//! `UPDATE_GOLDEN=1 cargo test` writes it anew.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use promql_rules::template::function_names;
use promql_rules::{parse, vocabulary};
use umawarden::config::measure::written;
use umawarden::config::rules::parse_rules;
use umawarden::config::shipped::shipped_rules;
use umawarden::model::{HoldReason, METRICS, MetricKind, Source};
use umawarden::policy::rule::{Remedy, Rule, RuleScope, RuleSet};

pub fn assert_document(name: &str, wanted: &str) {
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
         the program's own table. A scrape has the first clause of each meaning as its \
         help.\n\nA series is missing where this kernel or machine does not have \
         it, and where reading it failed: absence is never written as 0, with the exceptions \
         below. Rules, and scrapes that select a metric by `name[]`, have each 0. \
         `uma_scrape_collector_success` shows which.\n",
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
                MetricKind::Histogram => "histogram",
            };
            let labels = metric.labels.join(", ");
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            let mut meaning = cell(metric.help);
            if metric.hides_zero {
                meaning.push_str(" A scrape of everything leaves out a 0.");
            }
            for (label, values) in metric.closed {
                let values = values.iter().filter(|value| !value.is_empty());
                write!(meaning, " *{label}*: {}.", code_list(values)).unwrap();
            }
            writeln!(text, "| `{}{labels}` | {kind} | {meaning} |", metric.name).unwrap();
        }
    }
    text.push_str(
        "\n## Why a remedy holds back\n\nThe `reason` of `uma_holds_total`, of `umawarden \
         history` and of `remedy_test`; the first that applies is given.\n\n| reason | meaning \
         |\n|---|---|\n",
    );
    for reason in HoldReason::ALL {
        writeln!(text, "| `{}` | {} |", reason.name(), cell(reason.meaning())).unwrap();
    }
    assert_document("docs/src/reference/metrics.md", &text);
}

fn remedy(remedy: &Remedy) -> String {
    let steps: Vec<String> = remedy.steps.iter().map(ToString::to_string).collect();
    let aim = remedy.aim.as_ref().map_or("the condition ends", |aim| &aim.text);
    let mut text = format!("- remedy: {}\n", steps.join(", then "));
    writeln!(text, "- until: `{}`", cell(aim.trim())).unwrap();
    write!(text, "- at most: once in {}", written(remedy.rails.cooldown)).unwrap();
    if let Some(at_most) = remedy.rails.at_most {
        write!(text, ", {} times in {}", at_most.times, written(at_most.per)).unwrap();
    }
    text.push('\n');
    if let Some(breaker) = remedy.rails.breaker {
        let until = breaker.reset_after.map_or_else(
            || "until a person says so".to_owned(),
            |after| format!("for {}", written(after)),
        );
        writeln!(text, "- stopped {until} by {} misses in a row", breaker.misses).unwrap();
    }
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
         every threshold. A remedy acts in enforce mode, of the node or of \
         its rule; otherwise it is only reported.\n",
    );
    for rule in rules.groups.iter().flat_map(|group| &group.rules) {
        let scope = match rule.scope {
            RuleScope::Node => "",
            RuleScope::Cluster => ", over all nodes (scope: cluster)",
        };
        write!(text, "\n## {}\n\n", rule.id.alert).unwrap();
        let summary = annotation(rule, "summary");
        assert!(summary.is_some(), "{} has no summary", rule.id);
        writeln!(text, "{}", summary.unwrap_or_default()).unwrap();
        if let Some(description) = annotation(rule, "description") {
            write!(text, "\n{}\n", description.trim()).unwrap();
        }
        let severity = label(rule, "severity");
        assert!(!severity.is_empty(), "{} has no severity", rule.id);
        write!(text, "\n- group {}, severity {severity}{scope}\n", rule.id.group).unwrap();
        writeln!(text, "- holds for: {}", written(rule.hold_for)).unwrap();
        if let Some(own) = &rule.remedy {
            text.push_str(&remedy(own));
        }
        write!(text, "\n```promql\n{}\n```\n", rule.expr.text.trim()).unwrap();
    }
    text.push_str(&writing_rules());
    assert_document("docs/src/reference/rules.md", &text);
}

fn code_list(words: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    words.into_iter().map(|word| format!("`{}`", word.as_ref())).collect::<Vec<_>>().join(", ")
}

/// The semantics of failed readings, for the reference of rules.
const FAILED_READINGS: &str = "
## Readings that fail

A result is known if it is the same for every possible value of the failed readings. Otherwise it is unknown. A rule is *unknown* while its condition is: no alert of it begins, advances or ends. For each operator:

- `a and b`: an empty side decides, even if the other side failed. An element of `a` stays if `b` certainly has a match, and goes if it can have none.
- `a or b`: the left side decides. If `a` certainly has an element, failed readings of `b` in its group do not matter (with `on()`: none of `b`). If `a` failed and `b` has an element, the result has an element with unknown labels and value. That is enough on the right of `and` and `unless`, in `absent(…)` and for an `aim`; a whole condition of that kind is unknown. So put what may fail on the right, or write `known and on() (… or on() …)`.
- `a unless b`: an empty `a` decides. If `b` certainly has a match, that element of `a` goes, even if it failed.
- A comparison decides for each element. A condition with one unknown element is unknown.
- An aggregation is unknown for a group with a failed member; `group` only if it has no other member. A function over a range is unknown if the newest reading failed, and so is a calculation with such a number.
- A series that the machine does not have makes the condition unknown. The exceptions are `absent(…)`, and `or` if its other side has elements.

`umawarden explain` shows which reading was not needed, and what decides.
";

/// The language of rules, from the tables that the readers of rule files use.
fn writing_rules() -> String {
    let words = vocabulary();
    let mut text = String::from(
        "\n# Writing rules\n\nA rule file has the format of Prometheus, with `remedy` and `mode` added. \
         `umawarden rules check` finds mistakes, and conditions that can never or always hold. \
         `umawarden rules test` runs promtool's unit tests. `umawarden rules export` writes the \
         alerts for Prometheus. Their `--help` shows examples.\n\n\
         ## Expressions\n\nPromQL as Prometheus 3 evaluates it, over the series of this node alone \
         ([Metrics](metrics.md)). They have their own labels only: no `instance`, no `job`. \
         Unknown series, labels and label values are refused. A range covers at most an hour, and \
         an expression has at most 4096 bytes.\n\nRules of a \
         group with `scope: cluster` read the same series of all nodes of the cluster, with the \
         labels `cluster` and `node` (a label `node` of their own is `exported_node`). Without \
         `cluster` in the configuration they are idle. The readings of a node that does not answer \
         are unknown. If an alert names a node, only that node acts.\n\n| | \
         |\n|---|---|\n",
    );
    let operators: Vec<String> = words.operators.iter().map(code_list).collect();
    writeln!(
        text,
        "| selectors | `metric{{label=\"value\"}}` with `=`, `!=`, `=~`, `!~`; `metric[5m]`; `offset` |"
    )
    .unwrap();
    writeln!(text, "| operators, the weakest first | {} |", cell(&operators.join(" – "))).unwrap();
    text.push_str(
        "| matching | `on(…)`, `ignoring(…)`, `group_left(…)`, `group_right(…)`, `bool` |\n",
    );
    let aggregations = code_list(&words.aggregations);
    writeln!(text, "| aggregations, with `by` or `without` | {aggregations} |").unwrap();
    writeln!(text, "| functions | {} |", code_list(&words.functions)).unwrap();
    let names = |has_hint: bool| {
        let refused = words.refused.iter().filter(move |(_, hint)| hint.is_some() == has_hint);
        code_list(refused.map(|(name, _)| *name))
    };
    writeln!(
        text,
        "| not supported, with a hint | {}, `@`, subqueries `metric[5m:1m]`, selectors \
         without a name |",
        names(true)
    )
    .unwrap();
    writeln!(text, "| not supported | {} |", names(false)).unwrap();
    let functions = code_list(function_names());
    write!(
        text,
        "\nTexts of labels, annotations and messages are templates with `$value`, `$labels.name`, \
         pipes and the functions {functions}; control structures and queries are refused. Recording \
         rules, `limit` and `query_offset` are refused, since nothing is stored between evaluations.\n"
    )
    .unwrap();
    text.push_str(FAILED_READINGS);
    text.push_str(
        "\n## Remedies\n\n- While a rule fires, the steps of its remedy are tried in order; the next \
         step follows only if the aim was measured after the step before, and missed.\n- `aim` is \
         met if it yields an element. Without it, the aim is that `expr` ends.\n- `cooldown` is the \
         time from the last step of a *round* to the next first step. A round ends when the aim is \
         met or no step is left. Default 30s.\n- `at_most` counts *acts*: each decided step is one. \
         A round of three steps uses three of `times` in any window of length `per`. Default 20 \
         in 1h.\n- If all steps but notices concern one engine (`evict_checkpoint`, `empty_cache`, \
         `reclaim` with `engine`), `cooldown`, `at_most` and the breaker count for each engine \
         separately; with `stop_engine` only the breaker does.\n- `set_sysctl` and `throttle_readahead` last as long as the alert, and at most for \
         their `for` (30m). Without an `aim` their effect is not measured, and the next step follows.\n- \
         `mode: enforce` or `observe` in a rule overrides the node's mode. That is `--mode`, else \
         `mode` of the configuration file. A reload reads the file again; the flag still \
         wins.\n",
    );
    text
}

#[test]
fn an_expression_longer_than_the_documented_4096_bytes_is_rejected() {
    let of_length = |length: usize| format!("vector(1){}", " ".repeat(length - 9));
    assert!(parse(&of_length(4096)).is_ok());
    assert!(parse(&of_length(4097)).is_err());
}

#[test]
fn every_listed_function_and_operator_is_accepted_or_rejected_as_documented() {
    let words = vocabulary();
    for usage in words.functions.iter().chain(&words.aggregations) {
        let example = usage.replace("metric[5m]", "uma_swap_in_pages_total[5m]");
        let example = example.replace("vector)", "uma_memory_free_bytes)");
        let example = example.replace("(vector,", "(uma_memory_free_bytes,");
        let example = example.replace("number", "1").replace("\"text\"", "\"a\"");
        let fine = parse(&example);
        assert!(fine.is_ok(), "{example}: {:?}", fine.err());
    }
    for (name, hint) in words.refused {
        let error = parse(&format!("{name}(uma_memory_free_bytes)")).unwrap_err();
        assert!(error.message.contains("not supported here"), "{name}: {error}");
        assert_eq!(error.hint.as_deref(), hint, "{name}");
    }
    for operator in words.operators.into_iter().flatten() {
        assert!(parse(&format!("uma_memory_free_bytes {operator} uma_swap_free_bytes")).is_ok());
    }
}
