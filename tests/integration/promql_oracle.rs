//! Our PromQL against Prometheus' own: promtool must agree with every result to the last digit.

mod templates;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use promql_rules::store::{SeriesStore, stale_marker};
use promql_rules::{EvalTime, Evaluated, Sample, Value};
use umawarden::model::{Reading, SeriesKey};

use crate::dice::Dice;

const EXPRESSIONS: usize = 1800;
const EXPRESSIONS_A_FILE: usize = 500;
/// How often the order of the series is changed, to see whether it matters.
const SHUFFLES: usize = 32;
const STEP_MS: i64 = 15_000;
const STEPS: i64 = 60;

/// One series: a key and its value at each step.
struct Scraped {
    key: SeriesKey,
    values: Vec<Option<f64>>,
}

fn series(dice: &mut Dice) -> Vec<Scraped> {
    let mut all = Vec::new();
    for (name, is_counter) in [("uma_a", false), ("uma_b", false), ("uma_c_total", true)] {
        for zone in ["dma", "normal", "movable"] {
            for node in ["0", "1"] {
                let key = SeriesKey::new(name, &[("zone", zone), ("node", node)]);
                all.push(Scraped { key, values: values(dice, is_counter) });
            }
        }
    }
    for name in ["uma_d", "uma_e_total"] {
        let key = SeriesKey::new(name, &[]);
        all.push(Scraped { key, values: values(dice, name == "uma_e_total") });
    }
    let key = SeriesKey::new("uma_f", &[("zone", "dma")]);
    all.push(Scraped { key, values: values(dice, false) });
    all.extend(buckets(dice));
    all
}

/// Classic histograms with every fault: a bound in two spellings, no `+Inf`, an invalid bound,
/// decreasing counts, buckets that are not scraped.
fn buckets(dice: &mut Dice) -> Vec<Scraped> {
    let mut all = Vec::new();
    for (zone, bounds) in [
        ("dma", &["0.5", "1", "2.5", "+Inf"][..]),
        ("normal", &["-1", "1", "1.0", "1e1", "Inf", "none"]),
        ("movable", &["0.1", "10"]),
        ("high", &["+Inf"]),
    ] {
        let mut below: Vec<f64> = vec![0.0; STEPS as usize];
        for bound in bounds {
            let key = SeriesKey::new("uma_h_bucket", &[("zone", zone), ("le", bound)]);
            let mut total = 0.0;
            let values = below.iter_mut().map(|below| {
                total += dice.roll(40) as f64 / 4.0;
                *below = total + if dice.chance(90) { *below } else { 0.0 };
                (!dice.chance(4)).then_some(*below)
            });
            all.push(Scraped { key, values: values.collect() });
        }
    }
    all
}

fn values(dice: &mut Dice, is_counter: bool) -> Vec<Option<f64>> {
    let scale = [1.0, 0.1, 1e9, 1e-3][dice.roll(4)];
    let mut level = dice.roll(1000) as f64;
    (0..STEPS)
        .map(|_| {
            if dice.chance(6) {
                return None;
            }
            if dice.chance(4) {
                return Some(stale_marker());
            }
            let step = dice.roll(1000) as f64;
            level = match is_counter {
                true if dice.chance(5) => step / 10.0,
                true if dice.chance(20) => level,
                true => level + step,
                false => step - 300.0,
            };
            Some(level * scale)
        })
        .collect()
}

/// The series, added in a random order; `None`: in their own order.
fn store_until(series: &[Scraped], until_ms: i64, order: Option<&mut Dice>) -> SeriesStore {
    let mut store = SeriesStore::default();
    let mut series: Vec<&Scraped> = series.iter().collect();
    if let Some(dice) = order {
        for last in (1..series.len()).rev() {
            series.swap(last, dice.roll(last + 1));
        }
    }
    for scraped in series {
        let id = store.intern(&scraped.key);
        store.retain(&scraped.key.name, i64::MAX);
        for (at_ms, value) in (0..).step_by(STEP_MS as usize).zip(&scraped.values) {
            if let Some(value) = value.filter(|_| at_ms <= until_ms) {
                store.append(id, at_ms, Reading::Value(value));
            }
        }
    }
    store
}

struct Grammar<'d>(&'d mut Dice);

impl Grammar<'_> {
    fn vector(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.selector();
        }
        match self.0.roll(18) {
            0..=1 => self.selector(),
            17 => self.histogram_quantile(),
            2..=4 => self.over_time(),
            5 => self.over_vector(depth),
            6..=7 => self.aggregate(depth),
            8..=9 => {
                let op = self.0.pick(&["+", "-", "*", "/", "%", "^"]);
                let right = if op == "^" { self.exponent() } else { self.scalar(depth - 1) };
                format!("{} {op} {right}", self.vector(depth - 1))
            }
            10 => {
                let op = self.0.pick(&["+", "-", "*", "/", "%"]);
                format!("({} {op} {})", self.scalar(depth - 1), self.vector(depth - 1))
            }
            11 => {
                let op = self.comparison();
                format!("{} {op} {}", self.vector(depth - 1), self.scalar(depth - 1))
            }
            12..=13 => self.matched(depth),
            14 => {
                let op = self.0.pick(&["and", "or", "unless", "AND", "Or"]);
                let matching =
                    self.0.pick(&["", "on(zone)", "ignoring(node)", "on()", "on (zone, node)"]);
                format!("{} {op} {matching} {}", self.vector(depth - 1), self.vector(depth - 1))
            }
            15 => format!("(-{})", self.vector(depth - 1)),
            _ => format!("({})", self.vector(depth - 1)),
        }
    }

    fn scalar(&mut self, depth: usize) -> String {
        if depth == 0 || self.0.chance(60) {
            return self.number();
        }
        match self.0.roll(5) {
            0 => format!("scalar({})", self.vector(depth - 1)),
            1 => "time()".to_owned(),
            2 => format!("-{}", self.number()),
            3 => {
                let op = self.0.pick(&["+", "-", "*", "/", "%", "^"]);
                let right = if op == "^" { self.exponent() } else { self.scalar(depth - 1) };
                format!("({} {op} {right})", self.scalar(depth - 1))
            }
            _ => {
                let op = self.0.pick(&["==", "!=", "<", "<=", ">", ">="]);
                format!("({} {op} bool {})", self.scalar(depth - 1), self.scalar(depth - 1))
            }
        }
    }

    /// Whole or a half: for any other number, as for `exp` and `ln`, the last digit of Prometheus'
    /// own result depends on the processor.
    fn exponent(&mut self) -> String {
        self.0.pick(&["0", "1", "2", "3", "-2", "0.5", "-.5", "Inf", "1e3", "010"]).to_owned()
    }

    fn number(&mut self) -> String {
        self.0
            .pick(&[
                "0", "1", "2", "3.5", "1e3", "0x1F", "100", "Inf", "1_000", "0.1", "5m", "1024",
                "010", ".5", "300", "2e-3",
            ])
            .to_owned()
    }

    fn comparison(&mut self) -> &'static str {
        self.0.pick(&["==", "!=", "<", "<=", ">", ">=", "> bool", "<= bool", "== BOOL"])
    }

    fn name(&mut self) -> &'static str {
        self.0.pick(&["uma_a", "uma_b", "uma_c_total", "uma_d", "uma_e_total", "uma_f"])
    }

    fn plain_selector(&mut self) -> String {
        let matchers = self.0.pick(&[
            "",
            "",
            "",
            "{}",
            "{node=\"0\"}",
            "{zone!=\"dma\"}",
            "{zone=~\"d.*|normal\"}",
            "{zone!~'mov.+', node=\"1\",}",
            "{zone=~\"m\"}",
            "{none=\"\"}",
            "{node=~`[0-9]`}",
            "{zone=\"none\"}",
            "{none!=\"x\", zone=~\"\\\\w+\"}",
        ]);
        format!("{}{matchers}", self.name())
    }

    fn offset(&mut self) -> &'static str {
        self.0.pick(&["", "", "", "", "", " offset 1m", " OFFSET 37s", " offset 2m"])
    }

    fn selector(&mut self) -> String {
        self.plain_selector() + self.offset()
    }

    fn range(&mut self) -> String {
        let selector = self.plain_selector();
        let range = self.0.pick(&["1m", "5m", "2m30s", "90s", "37s", "10m", "300", "1m15s500ms"]);
        format!("{selector}[{range}]{}", self.offset())
    }

    fn over_time(&mut self) -> String {
        let range = self.range();
        match self.0.roll(22) {
            0 => format!("predict_linear({range}, {})", self.number()),
            1 => format!("quantile_over_time(0.{}, {range})", self.0.roll(10)),
            2 => format!("absent_over_time({range})"),
            function => {
                let functions = [
                    "rate",
                    "increase",
                    "delta",
                    "deriv",
                    "irate",
                    "idelta",
                    "avg_over_time",
                    "min_over_time",
                    "max_over_time",
                    "sum_over_time",
                    "count_over_time",
                    "last_over_time",
                    "present_over_time",
                    "stddev_over_time",
                    "stdvar_over_time",
                    "changes",
                    "resets",
                    "rate",
                    "increase",
                ];
                format!("{}({range})", functions[function - 3])
            }
        }
    }

    fn histogram_quantile(&mut self) -> String {
        let q = self.0.pick(&["0", "0.5", "0.9", "0.99", "1", "-1", "2", "0.1 + 0.2"]);
        let buckets = match self.0.roll(6) {
            0..=1 => format!("uma_h_bucket{}", self.offset()),
            2 => format!("rate(uma_h_bucket[{}])", self.0.pick(&["1m", "5m"])),
            3 => "sum by (le) (uma_h_bucket)".to_owned(),
            4 => format!("sum without (zone) (increase(uma_h_bucket[{}]))", "2m30s"),
            _ => format!("uma_h_bucket{{zone=\"dma\"}} or {}", self.plain_selector()),
        };
        format!("histogram_quantile({q}, {buckets})")
    }

    fn over_vector(&mut self, depth: usize) -> String {
        let vector = self.vector(depth - 1);
        match self.0.roll(16) {
            0 => format!("clamp({vector}, {}, {})", self.number(), self.number()),
            1 => format!("clamp_min({vector}, {})", self.scalar(1)),
            2 => format!("clamp_max({vector}, {})", self.scalar(1)),
            3 => format!("round({vector}, {})", self.0.pick(&["5", "0.1", "0.5", "1e3"])),
            4 => format!("round({vector})"),
            5 => format!("absent({vector})"),
            6 => format!("vector({})", self.scalar(depth - 1)),
            7 => format!("timestamp({vector})"),
            8 => format!("label_replace({vector}, \"new\", \"$1-x\", \"zone\", \"(d.*|n.*)\")"),
            9 => format!("label_join({vector}, \"new\", \"/\", \"zone\", \"node\")"),
            10 => format!("absent({})", self.plain_selector()),
            11 => format!("sort_desc({vector})"),
            function => {
                format!("{}({vector})", ["abs", "ceil", "floor", "sgn"][function - 12])
            }
        }
    }

    fn aggregate(&mut self, depth: usize) -> String {
        let vector = self.vector(depth - 1);
        let grouping = self.0.pick(&[
            "",
            "by (zone)",
            "without (node)",
            "by (node, zone)",
            "without()",
            "by ()",
            "BY (none)",
            "by (__name__)",
        ]);
        let (op, argument) = match self.0.roll(13) {
            0 => ("quantile", format!("0.{}, {vector}", self.0.roll(10))),
            1 => ("topk", format!("{}, {vector}", self.0.roll(5))),
            2 => ("bottomk", format!("{}, {vector}", self.0.roll(5))),
            op => {
                let ops = [
                    "sum", "min", "max", "avg", "count", "group", "stddev", "stdvar", "sum", "avg",
                ];
                (ops[op - 3], vector)
            }
        };
        match self.0.chance(50) {
            true => format!("{op} {grouping} ({argument})"),
            false => format!("{op}({argument}) {grouping}"),
        }
    }

    fn matched(&mut self, depth: usize) -> String {
        let op = match self.0.chance(60) {
            true => self.0.pick(&["+", "-", "*", "/", "%"]),
            false => self.comparison(),
        };
        let matching = self.0.pick(&[
            "",
            "",
            "",
            "on(zone, node)",
            "ignoring(none)",
            "on(zone)",
            "on(zone) group_left",
            "ignoring(node) group_left(none)",
            "on() group_right(zone)",
            "ignoring(node, zone) group_left",
        ]);
        format!("{} {op} {matching} {}", self.vector(depth - 1), self.vector(depth - 1))
    }
}

/// An expression and our result.
struct Case {
    text: String,
    at_ms: i64,
    outcome: Result<Vec<Sample>, String>,
    /// Whether the order of the series matters: sums round in the order of their elements, and
    /// promtool adds its series in another order each time.
    depends_on_order: bool,
}

fn cases(series: &[Scraped], dice: &mut Dice) -> Vec<Case> {
    let instants = [60_000, 307_000, 450_000, 600_000, 761_000, 885_000];
    let mut store =
        |at_ms, is_shuffled: bool| store_until(series, at_ms, is_shuffled.then_some(&mut *dice));
    let stores = instants.map(|at_ms| store(at_ms, false));
    let shuffled = instants.map(|at_ms| [(); SHUFFLES].map(|()| store(at_ms, true)));
    let mut cases = Vec::new();
    while cases.len() < EXPRESSIONS {
        let depth = dice.roll(4);
        let text = match dice.chance(92) {
            true => Grammar(dice).vector(depth),
            false => Grammar(dice).scalar(depth),
        };
        let Ok(expr) = promql_rules::parse(&text) else { continue };
        let at_step = dice.roll(instants.len());
        let at_ms = instants[at_step];
        let outcome = outcome(&expr, &stores[at_step], at_ms);
        let known = comparable(&outcome);
        let depends_on_order = shuffled[at_step]
            .iter()
            .any(|store| comparable(&self::outcome(&expr, store, at_ms)) != known);
        cases.push(Case { text, at_ms, outcome, depends_on_order });
    }
    cases
}

fn outcome(
    expr: &promql_rules::Expr,
    store: &SeriesStore,
    at_ms: i64,
) -> Result<Vec<Sample>, String> {
    let at = EvalTime { timeline_ms: at_ms, utc_ms: at_ms };
    expr.evaluate(store, at).map(|evaluated| match evaluated {
        Evaluated::Known(Value::Vector(samples)) => samples,
        Evaluated::Known(Value::Scalar(value)) => {
            vec![Sample { name: None, labels: [].into(), value }]
        }
        Evaluated::Unknown(reasons) => panic!("{expr}: unknown, {reasons:?}"),
    })
}

/// The samples in the order of their labels, each to the last digit.
fn comparable(outcome: &Result<Vec<Sample>, String>) -> Option<Vec<String>> {
    let mut samples: Vec<String> =
        outcome.as_ref().ok()?.iter().map(|s| format!("{s:?}")).collect();
    samples.sort();
    Some(samples)
}

/// The series and expectations in the format of promtool's unit tests.
fn test_file(series: &[Scraped], cases: &[&Case]) -> String {
    let mut out = "rule_files: []\nevaluation_interval: 1s\ntests:\n- interval: 15s\n".to_owned();
    out.push_str("  input_series:\n");
    for scraped in series {
        let values: Vec<String> = scraped.values.iter().map(|value| scrape(*value)).collect();
        let _ = writeln!(out, "  - series: '{}'\n    values: '{}'", scraped.key, values.join(" "));
    }
    out.push_str("  promql_expr_test:\n");
    for case in cases {
        let text = serde_json::to_string(&case.text).expect("a string");
        let _ = writeln!(out, "  - expr: {text}\n    eval_time: {}s", case.at_ms / 1000);
        let samples = case.outcome.as_deref().unwrap_or_default();
        let _ = writeln!(out, "    exp_samples:{}", if samples.is_empty() { " []" } else { "" });
        for sample in samples {
            let labels: Vec<String> =
                sample.labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
            let name = sample.name.as_deref().unwrap_or_default();
            let value = number(sample.value);
            let _ = writeln!(
                out,
                "    - labels: '{name}{{{}}}'\n      value: {value}",
                labels.join(",")
            );
        }
    }
    out
}

fn scrape(value: Option<f64>) -> String {
    match value {
        None => "_".to_owned(),
        Some(value) if value.to_bits() == stale_marker().to_bits() => "stale".to_owned(),
        Some(value) => format!("{value:?}"),
    }
}

fn number(value: f64) -> String {
    match value {
        f64::INFINITY => ".inf".to_owned(),
        f64::NEG_INFINITY => "-.inf".to_owned(),
        value => format!("{value:?}"),
    }
}

fn promtool() -> Option<String> {
    let promtool = std::env::var("UMAWARDEN_PROMTOOL").ok();
    if promtool.is_none() {
        println!("skipped: set UMAWARDEN_PROMTOOL to the promtool of Prometheus 3");
    }
    promtool
}

/// Runs `promtool COMMAND rules` on that text; what it prints if it fails.
fn run(promtool: &str, folder: &Path, command: &str, content: &str) -> Result<(), String> {
    let path = folder.join(format!("{command}.yaml"));
    std::fs::write(&path, content).expect("the test file is written");
    let output = Command::new(promtool)
        .args([command, "rules"])
        .arg(&path)
        .output()
        .expect("promtool starts");
    let report = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    if output.status.success() { Ok(()) } else { Err(report) }
}

/// promtool treats NaN as different from itself, so such results cannot be expected of it.
fn is_statable(samples: &[Sample]) -> bool {
    samples.iter().all(|sample| !sample.value.is_nan())
}

#[test]
fn promtool_agrees_with_every_result_to_the_last_digit() {
    let Some(promtool) = promtool() else { return };
    let mut dice = Dice::new(20_261_121);
    let series = series(&mut dice);
    let cases = cases(&series, &mut dice);
    let folder = tempfile::tempdir().unwrap();
    let stated: Vec<&Case> = cases
        .iter()
        .filter(|case| !case.depends_on_order && case.outcome.as_deref().is_ok_and(is_statable))
        .collect();
    assert!(stated.len() >= 1000, "only {} expressions can be compared", stated.len());
    let with_result =
        stated.iter().filter(|case| case.outcome.as_ref().is_ok_and(|all| !all.is_empty()));
    assert!(with_result.count() >= 600, "too few expressions yield anything");
    let mut reports = String::new();
    for cases in stated.chunks(EXPRESSIONS_A_FILE) {
        let content = test_file(&series, cases);
        if let Err(report) = run(&promtool, folder.path(), "test", &content) {
            reports.push_str(&report);
        }
    }
    let failures = reports.matches("expr: ").count();
    let shown: String = reports.chars().take(6000).collect();
    assert!(reports.is_empty(), "promtool differs in {failures} cases:\n{shown}");
}

#[test]
fn promtool_refuses_to_evaluate_the_expressions_that_we_refuse() {
    let Some(promtool) = promtool() else { return };
    let mut dice = Dice::new(7);
    let series = series(&mut dice);
    let cases = cases(&series, &mut dice);
    let refused: Vec<&Case> = cases.iter().filter(|case| case.outcome.is_err()).take(25).collect();
    assert!(refused.len() >= 10, "too few expressions are refused");
    let folder = tempfile::tempdir().unwrap();
    for case in refused {
        let report = run(&promtool, folder.path(), "test", &test_file(&series, &[case]));
        let report = report.expect_err(&case.text);
        assert!(report.contains("err:"), "{}: {:?}\n{report}", case.text, case.outcome);
    }
}

/// Texts of which about half have a flaw.
fn texts(dice: &mut Dice) -> Vec<String> {
    let text = |_| {
        let mut text = Grammar(dice).vector(3);
        if dice.chance(50) {
            let at = dice.roll(text.len());
            if dice.chance(50) {
                text.remove(at);
            } else {
                let flaws = ["(", ")", ",", " by ", " 1 ", " or ", "-", "{", "]"];
                text.insert_str(at, dice.pick(&flaws));
            }
        }
        text
    };
    let mut texts: Vec<String> = (0..3000).map(text).collect();
    let pieces =
        ["[", "]", "-", "^", "&&", "~", "a", "9", ":", "+", r"\d", r"\w", r"\x41", "{", "2}"];
    for _ in 0..1000 {
        let length = dice.roll(8);
        let pattern: String = (0..length).map(|_| dice.pick(&pieces)).collect();
        texts.push(format!("uma_a{{node=~`[{pattern}]`}}"));
    }
    texts
}

/// The numbers, from 1, of the texts that `promtool check rules` rejects.
fn rejected_by_promtool(promtool: &str, texts: &[String]) -> BTreeSet<usize> {
    let rules = texts
        .iter()
        .enumerate()
        .map(|(at, text)| serde_json::json!({"alert": format!("A{at}"), "expr": text}));
    let rules: Vec<serde_json::Value> = rules.collect();
    let file = serde_json::json!({"groups": [{"name": "g", "rules": rules}]});
    let folder = tempfile::tempdir().unwrap();
    let report = run(promtool, folder.path(), "check", &file.to_string()).unwrap_err();
    let numbers = report.lines().filter_map(|line| {
        let (_, rest) = line.split_once("group \"g\", rule ")?;
        let (number, error) = rest.split_once(',')?;
        assert!(error.contains("could not parse expression"), "{line}");
        number.parse().ok()
    });
    numbers.collect()
}

#[test]
fn promtool_accepts_and_rejects_the_same_texts() {
    let Some(promtool) = promtool() else { return };
    let texts = texts(&mut Dice::new(3));
    let rejected = rejected_by_promtool(&promtool, &texts);
    assert!((500..2500).contains(&rejected.len()), "{} are rejected", rejected.len());
    for (at, text) in texts.iter().enumerate() {
        let ours = promql_rules::parse(text);
        if let Ok(expr) = &ours {
            let printed = expr.to_string();
            let again = promql_rules::parse(&printed).map(|expr| expr.to_string());
            assert_eq!(again, Ok(printed), "{text}");
        }
        let is_beyond_the_subset = ours.as_ref().is_err_and(|error| {
            error.message.ends_with("not supported here")
                || error.message.starts_with("a negative offset")
                // Prometheus finds this only when it evaluates.
                || error.message.starts_with("invalid regular expression in label_replace")
        });
        if !is_beyond_the_subset {
            assert_eq!(ours.is_err(), rejected.contains(&(at + 1)), "{text}\nours: {ours:?}");
        }
    }
}
