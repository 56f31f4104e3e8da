//! The reference of metrics and rules is written from the program's own tables, and each example of
//! the documents can be used as it stands.
//! `UPDATE_GOLDEN=1 cargo test` writes them anew.

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
         the program's own table.\n\nA series is missing where this kernel or machine does not have \
         it, and where reading it failed: absence is never written as 0. \
         `uma_source_up` shows which.\n",
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
            for (label, values) in metric.closed {
                let values = values.iter().filter(|value| !value.is_empty());
                write!(meaning, " *{label}*: {}.", code_list(values)).unwrap();
            }
            writeln!(text, "| `{}{labels}` | {kind} | {meaning} |", metric.name).unwrap();
        }
    }
    text.push_str(
        "\n## Why a remedy holds back\n\nThe `reason` of `uma_decisions_total`, of `umawarden \
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
         every threshold. Remedies are carried out with `--mode enforce` only; otherwise they are \
         told.\n",
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

/// What a rule may say, from the tables that rule files are read by.
/// What the reference says of readings that fail.
const FAILED_READINGS: &str = "
## Readings that fail

What is the same whatever a failed reading was is known; all else is unknown. A rule is *unknown* while its condition is: no alert of it begins, advances or ends. Which side decides:

- `a and b`: an empty side, whichever failed. An element of `a` stays if `b` surely has a match, and goes if it can have none.
- `a or b`: the left. Where `a` surely has an element, what failed of `b` in its group is not needed (`on()`: nothing of `b` is). Where `a` failed and `b` has an element, something is there, but whose labels and value it has is unknown. That is enough on the right of `and` and `unless`, in `absent(…)` and for an `aim`; as the condition itself it is unknown. So what may fail stands on the right, or in `known and on() (… or on() …)`.
- `a unless b`: an empty `a`; and where `b` surely has a match, that element of `a` goes, even if it failed.
- A comparison decides element by element. A condition of which one element is unknown is unknown.
- An aggregation is unknown for a group with a member that failed, `group` only where no other is there. So is a function over a range whose newest reading failed, and a calculation with such a number.
- A series that the machine does not have at all makes the condition unknown, whatever the rest is, but for `absent(…)`, and `or` whose other side is there.

`umawarden explain` shows which reading was not needed, and what decides.
";

fn writing_rules() -> String {
    let words = vocabulary();
    let mut text = String::from(
        "\n# Writing rules\n\nA rule file has the shape of Prometheus' own; `remedy` and `mode` are \
         added. `umawarden rules check` tells what is miswritten, and what can be written and yet \
         cannot be meant; `umawarden rules test` plays promtool's unit tests; `umawarden rules \
         export` writes the alerts for a Prometheus. Their `--help` shows examples.\n\n\
         ## Expressions\n\nPromQL as Prometheus 3 evaluates it, over the series of this node alone \
         ([Metrics](metrics.md)), which carry no labels but their own: no `instance`, no `job`. \
         A series, a label or a value of a label that this build does not export is refused. A \
         range reaches back an hour at most, and an expression has at most 4096 bytes.\n\nRules of a \
         group with `scope: cluster` read the same series of all nodes of the cluster, with the \
         labels `cluster` and `node` (a label `node` of their own is `exported_node`). Without \
         `cluster` in the configuration they are idle. While a node does not answer, what they read \
         of it is unknown. Where an alert names a node, only that node acts.\n\n| | \
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
        "| not here, and what to do is told | {}, `@`, subqueries `metric[5m:1m]`, selectors \
         without a name |",
        names(true)
    )
    .unwrap();
    writeln!(text, "| not here | {} |", names(false)).unwrap();
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
         one comes only if the aim was measured after the one before and was missed.\n- `aim`: met \
         when it yields anything. Without one, the aim is that `expr` ends.\n- `cooldown` is the rest \
         after a *round*: from its last step, whether the aim was met or the steps ran out, to the \
         next first step. Default 30s.\n- `at_most` counts *acts*: each step that is decided is one, \
         so a round of three steps takes three of `times` in any window of length `per`. Default 20 \
         in 1h.\n- Where all steps but notices take from one engine what it can spare \
         (`evict_checkpoint`, `empty_cache`, `reclaim` with `engine`), `cooldown`, `at_most` and the \
         breaker count for each engine apart; with `stop_engine` among them the breaker \
         does.\n- `set_sysctl` and `throttle_readahead` last as long as the alert, and no longer than \
         their `for` (30m). Without an `aim` they are not judged, and the next step follows.\n- \
         `mode: enforce` or `observe` is this rule's own, whatever the node's is. The \
         node's is `--mode`, else `mode` of the configuration file; a reload reads the file's again, \
         and the flag still wins.\n",
    );
    text
}

#[test]
fn an_expression_has_at_most_4096_bytes_as_it_is_documented() {
    let of_length = |length: usize| format!("vector(1){}", " ".repeat(length - 9));
    assert!(parse(&of_length(4096)).is_ok());
    assert!(parse(&of_length(4097)).is_err());
}

#[test]
fn every_word_that_is_listed_is_taken_or_refused_as_listed() {
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
        assert!(error.message.contains("not supported in rules here"), "{name}: {error}");
        assert_eq!(error.hint.as_deref(), hint, "{name}");
    }
    for operator in words.operators.into_iter().flatten() {
        assert!(parse(&format!("uma_memory_free_bytes {operator} uma_swap_free_bytes")).is_ok());
    }
}
