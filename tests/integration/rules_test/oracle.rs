//! Generated test files get the same results from promtool and from us.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use umawarden::config::mistake::SourceText;
use umawarden::config::rules::parse_rules;
use umawarden::policy::rule::RuleSet;
use umawarden::scenario::{Check, TestReport, parse_tests, play};

use crate::dice::{Dice, rounds};

use super::{json_lines, promtool, rules_test};

const WORLDS: usize = 40;
const NIGHTLY_WORLDS: usize = 400;
const RIGHT_CHECKS: usize = 8;
const WRONG_CHECKS: usize = 3;

const SERIES: [&str; 11] = [
    "uma_memory_free_bytes",
    "uma_memory_available_bytes",
    "uma_zone_free_bytes{node=\"0\",zone=\"Normal\"}",
    "uma_zone_free_bytes{node=\"0\",zone=\"DMA\"}",
    "uma_zone_free_bytes{zone='Normal', node=`1`,}",
    "uma_swap_out_pages_total",
    "uma_kernel_events_total{event=\"xid\"}",
    "uma_kernel_events_total{event=\"oom_kill\"}",
    "uma_scrape_collector_success{collector=\"meminfo\"}",
    "{\"uma_scrape_collector_success\", collector=\"numa\"}",
    "node_foreign:ratio{job=\"x y\",empty=\"\"}",
];

fn values(dice: &mut Dice) -> String {
    let mut items = Vec::new();
    for _ in 0..dice.roll(7) {
        let number = dice.pick(&[
            "0", "1", "5", "9", "3.5", "-2", "+4", "1e1", ".5", "010", "1_0", "2e-1", "0.1", "-0",
        ]);
        let times = dice.roll(9);
        items.push(match dice.roll(14) {
            0..=2 => number.to_owned(),
            3..=5 => format!("{number}x{times}"),
            6..=8 => format!("{number}{}x{times}", dice.pick(&["+1", "+0.1", "+2.5", "+1e-1"])),
            9..=10 => format!("{number}{}x{times}", dice.pick(&["-1", "-0.3", "-1e0"])),
            11 => "_".to_owned(),
            12 => format!("_x{times}"),
            _ => dice.pick(&["stale", "Inf", "-Inf", "NaN", "inf+1x2"]).to_owned(),
        });
    }
    items.join(dice.pick(&[" ", " ", "  "]))
}

fn expression(dice: &mut Dice) -> String {
    let gauge = dice.pick(&[
        "uma_memory_free_bytes",
        "uma_memory_available_bytes",
        "uma_zone_free_bytes",
        "uma_scrape_collector_success",
        "uma_zone_free_bytes{zone=\"Normal\"}",
    ]);
    let counter = dice.pick(&["uma_swap_out_pages_total", "uma_kernel_events_total"]);
    let (op, bound) = (dice.pick(&[">", "<", ">=", "==", "!="]), dice.pick(&["0", "1", "3", "5"]));
    let range = dice.pick(&["1m", "2m", "45s", "5m"]);
    match dice.roll(15) {
        0..=4 => format!("{gauge} {op} {bound}"),
        5 => format!("rate({counter}[{range}]) {op} 0"),
        6 => format!("increase({counter}[{range}])"),
        7 => format!("sum by (zone) (uma_zone_free_bytes) {op} {bound}"),
        8 => format!("avg_over_time({gauge}[{range}]) {op} {bound}"),
        9 => format!(
            "absent(uma_scrape_collector_success{{collector=\"{}\"}})",
            dice.pick(&["numa", "sysctl"])
        ),
        10 => format!("{gauge} > on() group_left uma_swap_out_pages_total"),
        11 => format!("{gauge} and on() {counter} {op} {bound}"),
        12 => format!("count_over_time({gauge}[{range}]) {op} {bound}"),
        13 => format!("vector(time()) / 60 {op} {bound}"),
        _ => format!("{gauge} offset 30s {op} {bound}"),
    }
}

/// Rules that our checks accept, and their names.
fn rules(dice: &mut Dice) -> (String, Vec<String>) {
    let mut out = "groups:\n".to_owned();
    let mut names = Vec::new();
    for group in 0..=dice.roll(2) {
        let _ = writeln!(out, "- name: g{group}\n  interval: {}", dice.pick(&["10s", "1m", "7s"]));
        if dice.chance(30) {
            out.push_str("  labels: {team: a, kept: group}\n");
        }
        out.push_str("  rules:\n");
        for rule in 0..=dice.roll(2) {
            // The same name in two groups is one name to a test.
            let name = if dice.chance(10) { "Same".to_owned() } else { format!("A{group}{rule}") };
            if names.contains(&name) && out.rfind("- name:") < out.rfind("alert: Same") {
                continue;
            }
            let _ = writeln!(out, "  - alert: {name}\n    expr: '{}'", expression(dice));
            for key in ["for", "keep_firing_for"] {
                if dice.chance(50) {
                    let _ = writeln!(out, "    {key}: {}", dice.pick(&["15s", "1m", "90s", "0s"]));
                }
            }
            let labels = dice.pick(&[
                "{severity: page}",
                "{kept: own, empty: ''}",
                "{zone: '{{ $labels.zone }}x'}",
                "{v: '{{ $value }}'}",
                "{zone: one, node: one, collector: one}",
                "{kept: '{{ $labels.none }}', alertstate: mine}",
                "{}",
            ]);
            let notes = dice.pick(&[
                "{summary: '{{ $labels.zone }} {{ $value | humanize }}'}",
                "{summary: 'at {{ printf \"%.3f\" $value }}', empty: ''}",
                "{}",
            ]);
            let _ = writeln!(out, "    labels: {labels}\n    annotations: {notes}");
            names.push(name);
        }
    }
    (out, names)
}

/// One expectation.
#[derive(Clone, Debug)]
struct Stated {
    /// The name of the alert, or the expression.
    subject: String,
    is_alert: bool,
    at: String,
    /// As our report shows them: labels and annotations, or labels and value.
    rows: Vec<[String; 2]>,
}

fn stated(dice: &mut Dice, names: &[String], is_short: bool) -> Stated {
    let is_alert = dice.chance(55);
    let subject = match is_alert {
        true if dice.chance(4) => "NoSuchAlert".to_owned(),
        true => names[dice.roll(names.len())].clone(),
        false => match dice.roll(8) {
            0 => "ALERTS".to_owned(),
            1 => "ALERTS_FOR_STATE".to_owned(),
            2 => "count by (alertstate) (count_over_time(ALERTS[3m]))".to_owned(),
            3 => "node_foreign:ratio".to_owned(),
            4 => "scalar(uma_memory_free_bytes) + time()".to_owned(),
            _ => expression(dice),
        },
    };
    let at = match is_short {
        true => dice.pick(&["0", "15s", "44s", "1m", "80s", "81s", "1m23s"]),
        false => dice.pick(&["0", "1m", "90s", "2m30s", "3m", "3m59s999ms", "4m10s", "6m", "8m9s"]),
    };
    Stated { subject, is_alert, at: at.to_owned(), rows: Vec::new() }
}

/// Head of a test file, and head of each of its tests.
struct World {
    head: String,
    body: String,
    rules: RuleSet,
    rules_text: String,
    names: Vec<String>,
    /// Whether no later times have expectations, when most series have ended.
    is_short: bool,
}

fn world(dice: &mut Dice, number: usize) -> World {
    let (rules_text, names) = rules(dice);
    let source = SourceText::new("rules.yaml", rules_text.clone());
    let rules = parse_rules(&[source], std::time::Duration::from_secs(1));
    let rules = rules.unwrap_or_else(|mistakes| panic!("{rules_text}\n{mistakes}"));
    let mut head = format!("rule_files: [rules{number}.yaml]\n");
    if dice.chance(80) {
        let interval = dice.pick(&["15s", "30s", "1m", "20s", "7s500ms"]);
        let _ = writeln!(head, "evaluation_interval: {interval}");
    }
    if dice.chance(20) {
        head.push_str("group_eval_order: [g1, g0]\n");
    }
    head.push_str("tests:\n");
    let mut body = String::new();
    if dice.chance(80) {
        let interval = dice.pick(&["10s", "15s", "1m", "7s", "33s"]);
        let _ = writeln!(body, "  interval: {interval}");
    }
    body.push_str("  input_series:\n");
    for series in SERIES {
        if dice.chance(75) {
            let series = serde_json::to_string(series).expect("a string");
            let _ = writeln!(body, "  - series: {series}\n    values: '{}'", values(dice));
        }
    }
    World { head, body, rules, rules_text, names, is_short: dice.chance(50) }
}

impl World {
    fn test(&self, name: &str, checks: &[Stated]) -> String {
        let mut out = format!("- name: {name}\n{}", self.body);
        // The last time with an expectation decides how much is sampled.
        let end = if self.is_short { "1m24s" } else { "8m10s" };
        let end = format!("  - {{alertname: NoSuchAlert, eval_time: {end}}}\n");
        for (key, is_alert) in [("alert_rule_test", true), ("promql_expr_test", false)] {
            let _ = write!(out, "  {key}:\n{}", if is_alert { end.as_str() } else { "" });
            for check in checks.iter().filter(|check| check.is_alert == is_alert) {
                out.push_str(&check.written());
            }
        }
        out
    }

    /// Fills in the right rows by our own evaluation; `None` where the rules cannot be evaluated.
    fn evaluate(&self, check: &mut Stated) -> Option<()> {
        let text = format!("{}{}", self.head, self.test("evaluate", std::slice::from_ref(check)));
        let report = self.report(&text);
        if let Some(failure) = report.failures.first() {
            if failure.check == Check::Evaluation || failure.message.is_some() {
                return None;
            }
            let row = |row: &umawarden::scenario::ComparisonRow| {
                [row.cells[0].clone(), row.cells[1].clone()]
            };
            check.rows = failure.got.iter().map(row).collect();
        }
        Some(())
    }

    fn report(&self, text: &str) -> TestReport {
        let source = SourceText::new("test.yaml", text);
        let file = parse_tests(&source).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        play(&file, &file.tests[0], &self.rules)
    }
}

impl Stated {
    fn written(&self) -> String {
        let quoted = |text: &str| serde_json::to_string(text).expect("a string");
        let subject = quoted(&self.subject);
        let mut out = match self.is_alert {
            true => format!("  - alertname: {subject}\n    exp_alerts:\n"),
            false => format!("  - expr: {subject}\n    exp_samples:\n"),
        };
        for [labels, rest] in &self.rows {
            match self.is_alert {
                true => {
                    let map = |braces: &str| braces.replace("=\"", ": \"");
                    let (labels, notes) = (map(labels), map(rest));
                    let _ = writeln!(out, "    - exp_labels: {labels}");
                    let _ = writeln!(out, "      exp_annotations: {notes}");
                }
                false => {
                    let value = yaml_number(rest.parse().expect("a number"));
                    let _ = writeln!(out, "    - labels: {}\n      value: {value}", quoted(labels));
                }
            }
        }
        out + &format!("    eval_time: {}\n", self.at)
    }

    /// The same with one flaw.
    fn flawed(&self, dice: &mut Dice) -> Self {
        let mut flawed = self.clone();
        let bogus = if self.is_alert { "{}" } else { "1" };
        if flawed.rows.is_empty() {
            flawed.rows.push(["{bogus=\"x\"}".to_owned(), bogus.to_owned()]);
            return flawed;
        }
        let row = dice.roll(flawed.rows.len());
        match dice.roll(4) {
            0 => drop(flawed.rows.remove(row)),
            1 => flawed.rows.push(["{bogus=\"x\"}".to_owned(), bogus.to_owned()]),
            2 => flawed.rows[row][0] = flaw_in_labels(&flawed.rows[row][0]),
            _ if self.is_alert => {
                flawed.rows[row][1] = flaw_in_labels(&flawed.rows[row][1]);
            }
            _ => {
                let value: f64 = flawed.rows[row][1].parse().expect("a number");
                let other = if value.is_finite() { value.next_up() } else { 0.0 };
                flawed.rows[row][1] = format!("{other:?}");
            }
        }
        flawed
    }
}

fn flaw_in_labels(labels: &str) -> String {
    match labels.strip_suffix('}') {
        Some(open) if open.ends_with('{') => format!("{open}bogus=\"x\"}}"),
        Some(open) => format!("{open}, bogus=\"x\"}}"),
        None => format!("{labels}{{bogus=\"x\"}}"),
    }
}

fn yaml_number(value: f64) -> String {
    match value {
        f64::INFINITY => ".inf".to_owned(),
        f64::NEG_INFINITY => "-.inf".to_owned(),
        value if value.is_nan() => ".nan".to_owned(),
        value => format!("{value:?}"),
    }
}

/// Which tests of a file pass, by name.
type Verdicts = BTreeMap<String, bool>;

fn our_verdicts(file: &Path) -> Verdicts {
    let output = rules_test(&["--json", file.to_str().expect("UTF-8")]);
    let tests = json_lines(&output).into_iter().filter(|line| line["kind"] == "test");
    tests
        .map(|line| (line["test"].as_str().unwrap_or_default().to_owned(), line["ok"] == true))
        .collect()
}

/// Those of the tests that the patterns name, of all without patterns; and what promtool printed.
pub(super) fn promtools_verdicts(
    promtool: &str,
    file: &Path,
    patterns: &[String],
) -> (Verdicts, String) {
    let report = file.with_extension("xml");
    let mut junit = std::ffi::OsString::from("--junit=");
    junit.push(&report);
    let patterns = patterns.iter().map(|pattern| format!("--run={pattern}"));
    let mut command = Command::new(promtool);
    let output = command.args(["test", "rules"]).arg(junit).args(patterns).arg(file).output();
    let output = output.expect("promtool runs");
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let xml = std::fs::read_to_string(&report).expect("promtool reports");
    let mut verdicts = Verdicts::new();
    for case in xml.split("<testcase ").skip(1) {
        let name = case.split("name=\"").nth(1).and_then(|rest| rest.split('"').next());
        let failed = case.contains("<failure") || case.contains("<error");
        verdicts.insert(name.expect("a name").to_owned(), !failed);
    }
    assert!(!verdicts.is_empty(), "{printed}");
    (verdicts, printed)
}

#[test]
fn promtool_gives_every_generated_check_the_same_result() {
    let Some(promtool) = promtool() else { return };
    let mut dice = Dice::new(77);
    let worlds = rounds(WORLDS, NIGHTLY_WORLDS);
    let folder = tempfile::tempdir().expect("a folder");
    let (mut caught, mut passed, mut with_rows) = (0, 0, 0);
    for number in 0..worlds {
        let world = world(&mut dice, number);
        let mut right: Vec<Stated> =
            (0..RIGHT_CHECKS).map(|_| stated(&mut dice, &world.names, world.is_short)).collect();
        let are_evaluable = right.iter_mut().all(|check| world.evaluate(check).is_some());
        let mut text = format!("{}{}", world.head, world.test("right", &right));
        for (wrong, check) in right.iter().take(WRONG_CHECKS).enumerate() {
            text += &world.test(&format!("wrong{wrong}"), &[check.flawed(&mut dice)]);
        }
        let file = folder.path().join(format!("{number}.yaml"));
        std::fs::write(folder.path().join(format!("rules{number}.yaml")), &world.rules_text)
            .expect("written");
        std::fs::write(&file, &text).expect("written");
        let (ours, theirs) = (our_verdicts(&file), promtools_verdicts(&promtool, &file, &[]).0);
        assert_eq!(ours, theirs, "ours, then promtool's\n{}\n{text}", world.rules_text);
        let is_right = |name: &String| name == "right";
        for (name, ok) in &ours {
            assert!(!ok || is_right(name), "{name} is not caught\n{}\n{text}", world.rules_text);
            caught += usize::from(!is_right(name));
        }
        // NaN equals nothing, so a right expectation of it fails too.
        let has_nan = right.iter().any(|c| !c.is_alert && c.rows.iter().any(|row| row[1] == "NaN"));
        assert_eq!(ours["right"], are_evaluable && !has_nan, "{}\n{text}", world.rules_text);
        passed += usize::from(ours["right"]);
        with_rows += right.iter().filter(|check| !check.rows.is_empty()).count();
    }
    assert!(caught >= worlds * WRONG_CHECKS && passed >= worlds / 2, "{caught} {passed}");
    assert!(with_rows >= worlds * 2, "only {with_rows} checks expect anything");
}
