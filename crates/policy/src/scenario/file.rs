//! Reads a test file. Each mistake has its position.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use promql_rules::Expr;

use super::guard::{self, GuardTest};
use super::notation::{self, LabelMap, NAME_LABEL, NotationError, Sequence};
use super::remedy::{self, DeclaredOutcome, RemedyTest};
use crate::config::decode::{self, Findings, Table};
use crate::config::measure::written;
use crate::config::mistake::{Mistakes, SourceText};
use crate::config::yaml::{self, Content, YamlNode};
use crate::model::{Mode, SeriesKey};

const FILE_KEYS: [&str; 5] =
    ["rule_files", "evaluation_interval", "group_eval_order", "fuzzy_compare", "tests"];

const TEST_KEYS: [&str; 13] = [
    "name",
    "node",
    "interval",
    "input_series",
    "promql_expr_test",
    "alert_rule_test",
    "external_labels",
    "external_url",
    "remedy_test",
    "mode",
    "outcomes",
    "guard_rails",
    "start_timestamp",
];

const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);

/// Most evaluations of a test: more would take too long.
const MOST_EVALUATIONS: u128 = 2_000_000;

/// Most samples of all series together: more would take too long.
const MOST_SAMPLES: u128 = 50_000_000;

/// The content of a test file.
#[derive(Debug, Default)]
pub struct TestFile {
    /// Files and globs, relative to the test file, each with its range.
    pub rule_files: Vec<(String, Range<usize>)>,
    /// In file order.
    pub tests: Vec<TestCase>,
    pub(super) evaluation_interval: Duration,
    pub(super) group_eval_order: Vec<String>,
    pub(super) fuzzy_compare: bool,
}

/// One test, with its own series.
#[derive(Debug)]
pub struct TestCase {
    /// As given, or counted.
    pub name: String,
    pub(super) span: Range<usize>,
    pub(super) interval: Duration,
    pub(super) mode: Mode,
    /// The node of the cluster where it plays; if none, every alert is of this node.
    pub(super) node: Option<String>,
    pub(super) input: Vec<InputSeries>,
    pub(super) alerts: Vec<AlertTest>,
    pub(super) exprs: Vec<ExprTest>,
    pub(super) remedies: Vec<RemedyTest>,
    pub(super) outcomes: Vec<DeclaredOutcome>,
    pub(super) guard: GuardTest,
    /// The wall clock at the beginning.
    pub(super) start: Timestamp,
}

/// A declared series.
#[derive(Clone, Debug)]
pub(super) struct InputSeries {
    pub key: SeriesKey,
    pub values: Sequence,
    /// Range of its name in the file.
    pub span: Range<usize>,
}

/// Which alerts of one name fire at a time.
#[derive(Debug)]
pub(super) struct AlertTest {
    pub span: Range<usize>,
    pub at: Duration,
    pub alert: String,
    pub alert_span: Range<usize>,
    pub expected: Vec<ExpectedAlert>,
}

/// Labels, `alertname` among them, and annotations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ExpectedAlert {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// What an expression yields at a time.
#[derive(Debug)]
pub(super) struct ExprTest {
    pub span: Range<usize>,
    pub at: Duration,
    pub text: String,
    pub expr: Expr,
    pub expected: Vec<(LabelMap, f64)>,
}

impl TestCase {
    /// Whether it declares readings that fail, so that rules may be unknown.
    pub(super) fn lets_readings_fail(&self) -> bool {
        let then = self.outcomes.iter().flat_map(|outcome| &outcome.then);
        self.input.iter().chain(then).any(|series| series.values.may_fail())
    }

    /// The last time that anything is expected of.
    pub(super) fn end(&self) -> Duration {
        let alerts = self.alerts.iter().map(|test| test.at);
        let exprs = self.exprs.iter().map(|test| test.at);
        let remedies = self.remedies.iter().map(|test| test.at);
        alerts.chain(exprs).chain(remedies).max().unwrap_or_default()
    }
}

/// Reads a test file without its rules, which [`super::agree`] compares.
pub fn parse_tests(source: &SourceText) -> Result<TestFile, Mistakes> {
    let root = yaml::parse(source).map_err(|mistake| Mistakes(vec![mistake]))?;
    let mut findings = Findings::new(source);
    let file = file(&root, &mut findings);
    match file {
        Some(file) if findings.is_empty() => Ok(file),
        _ => Err(Mistakes(findings.into_mistakes())),
    }
}

fn file(root: &YamlNode, findings: &mut Findings<'_>) -> Option<TestFile> {
    if matches!(root.content, Content::Null) {
        return Some(TestFile::default());
    }
    let table = Table::read(root, "a test file", &FILE_KEYS, findings)?;
    let evaluation_interval = interval(&table, "evaluation_interval", DEFAULT_INTERVAL, findings);
    let rule_files = entries(&table, "rule_files", findings).and_then(|files| {
        decode::each(files, findings, |node, findings| {
            let path = decode::text(node, "an entry of rule_files", findings)?;
            Some((path.to_owned(), node.span.clone()))
        })
    });
    let group_eval_order = group_order(&table, findings);
    let fuzzy_compare = match table.get("fuzzy_compare") {
        Some(node) => decode::boolean(node, "fuzzy_compare", findings),
        None => Some(false),
    };
    let for_tests = evaluation_interval.unwrap_or(DEFAULT_INTERVAL);
    let mut number = 0;
    let tests = entries(&table, "tests", findings).and_then(|tests| {
        decode::each(tests, findings, |node, findings| {
            number += 1;
            test(node, number, for_tests, findings)
        })
    });
    Some(TestFile {
        rule_files: rule_files?,
        tests: tests?,
        evaluation_interval: evaluation_interval?,
        group_eval_order: group_eval_order?,
        fuzzy_compare: fuzzy_compare?,
    })
}

/// The entries of a list that may be missing.
pub(super) fn entries<'n>(
    table: &Table<'n>,
    key: &str,
    findings: &mut Findings<'_>,
) -> Option<&'n [Arc<YamlNode>]> {
    match table.get(key) {
        Some(node) => decode::list(node, key, findings),
        None => Some(&[]),
    }
}

/// A value that must be there.
pub(super) fn required<'n>(
    table: &Table<'n>,
    key: &str,
    what: &str,
    findings: &mut Findings<'_>,
) -> Option<&'n YamlNode> {
    let found = table.get(key);
    if found.is_none() {
        let span = table.key(key).map_or_else(|| table.span(), |key| key.span.clone());
        findings.add(span, format!("{what} needs {key}")).hint(format!("add {key}: …"));
    }
    found
}

/// Zero is promtool's way to say: the default.
fn interval(
    table: &Table<'_>,
    key: &str,
    default: Duration,
    findings: &mut Findings<'_>,
) -> Option<Duration> {
    let given = match table.get(key) {
        Some(node) => decode::duration(node, key, findings)?,
        None => Duration::ZERO,
    };
    Some(if given.is_zero() { default } else { given })
}

/// A time since the test's start.
pub(super) fn eval_time(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Duration> {
    match table.get("eval_time") {
        Some(node) => decode::duration(node, "eval_time", findings),
        None => Some(Duration::ZERO),
    }
}

fn group_order(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Vec<String>> {
    let mut seen = BTreeSet::new();
    let groups = entries(table, "group_eval_order", findings)?;
    decode::each(groups, findings, |node, findings| {
        let name = decode::text(node, "a group of group_eval_order", findings)?;
        if !seen.insert(name.to_owned()) {
            findings.add(node.span.clone(), format!("group \"{name}\" is here twice"));
            return None;
        }
        Some(name.to_owned())
    })
}

fn test(
    node: &YamlNode,
    number: usize,
    evaluation_interval: Duration,
    findings: &mut Findings<'_>,
) -> Option<TestCase> {
    let table = Table::read(node, "a test", &TEST_KEYS, findings)?;
    let name = match table.get("name") {
        Some(node) => decode::text(node, "name", findings).map(str::to_owned),
        None => Some(format!("test {number}")),
    };
    let mode = match table.get("mode") {
        Some(node) => decode::choice(node, "mode", &Mode::CHOICES, findings),
        None => Some(Mode::Enforce),
    };
    let played = match table.get("node") {
        Some(node) => decode::text(node, "node", findings).map(|text| Some(text.to_owned())),
        None => Some(None),
    };
    check_external(&table, findings);
    let interval = interval(&table, "interval", evaluation_interval, findings);
    let input = input_series(&table, "input_series", findings);
    let alerts = entries(&table, "alert_rule_test", findings).and_then(|tests| {
        decode::each(tests, findings, |node, findings| alert_test(node, findings))
    });
    let exprs = entries(&table, "promql_expr_test", findings).and_then(|tests| {
        decode::each(tests, findings, |node, findings| expr_test(node, findings))
    });
    let remedies = remedy::tests(&table, findings);
    let outcomes = remedy::outcomes(&table, findings);
    let guard = guard::guard(&table, findings);
    let start = guard::start(&table, findings);
    let test = TestCase {
        name: name?,
        span: table.span(),
        interval: interval?,
        mode: mode?,
        node: played?,
        input: input?,
        alerts: alerts?,
        exprs: exprs?,
        remedies: remedies?,
        outcomes: outcomes?,
        guard: guard?,
        start: start?,
    };
    check_length(&test, evaluation_interval, findings);
    Some(test)
}

/// Templates here cannot refer to them, so that they have no effect.
fn check_external(table: &Table<'_>, findings: &mut Findings<'_>) {
    if let Some(node) = table.get("external_labels") {
        text_map(node, "external_labels", findings);
    }
    if let Some(node) = table.get("external_url") {
        decode::text(node, "external_url", findings);
    }
}

fn check_length(test: &TestCase, evaluation_interval: Duration, findings: &mut Findings<'_>) {
    let times = |interval: Duration| test.end().as_nanos() / interval.as_nanos().max(1);
    let evaluations = times(evaluation_interval);
    let samples = times(test.interval).saturating_mul(test.input.len() as u128);
    let end = written(test.end());
    let message = if evaluations > MOST_EVALUATIONS {
        format!("{evaluations} evaluations up to {end} are too many for a test")
    } else if samples > MOST_SAMPLES {
        format!("{samples} samples up to {end} are too many for a test")
    } else {
        return;
    };
    let hint = "test a shorter time, or choose longer intervals";
    findings.add(test.span.clone(), message).hint(hint);
}

/// Series with their values; also those that an outcome changes.
pub(super) fn input_series(
    table: &Table<'_>,
    key: &str,
    findings: &mut Findings<'_>,
) -> Option<Vec<InputSeries>> {
    let list = entries(table, key, findings)?;
    let what = format!("an entry of {key}");
    decode::each(list, findings, |node, findings| {
        let table = Table::read(node, &what, &["series", "values"], findings)?;
        let series = required(&table, "series", &what, findings);
        let key = series.and_then(|node| series_key(node, findings));
        let values = match table.get("values") {
            Some(node) => sequence(node, findings),
            None => Some(Sequence::default()),
        };
        Some(InputSeries { span: series?.span.clone(), key: key?, values: values? })
    })
}

fn sequence(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Sequence> {
    let text = decode::text(node, "values", findings)?;
    if text.contains('\n') {
        findings
            .add(node.span.clone(), "values must be on one line")
            .hint("begin a long text with >- instead of | or >");
        return None;
    }
    let read = Sequence::parse(text);
    note(read, node, "values", findings)
}

fn note<T>(
    read: Result<T, NotationError>,
    node: &YamlNode,
    what: &str,
    findings: &mut Findings<'_>,
) -> Option<T> {
    match read {
        Ok(found) => Some(found),
        Err(error) => {
            let span = node.span_of(findings.source(), error.span);
            findings.add(span, format!("{what}: {}", error.message));
            None
        }
    }
}

fn series_key(node: &YamlNode, findings: &mut Findings<'_>) -> Option<SeriesKey> {
    let text = decode::text(node, "series", findings)?;
    let mut labels = note(notation::parse_metric(text), node, "series", findings)?;
    let Some(name) = labels.remove(NAME_LABEL).filter(|name| !name.is_empty()) else {
        findings
            .add(node.span.clone(), "a series needs a name")
            .hint("write name{label=\"value\"}");
        return None;
    };
    let labels: Vec<(&str, &str)> =
        labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    Some(SeriesKey::new(&name, &labels))
}

/// Names and texts; a name without a value has the empty text.
pub(super) fn text_map(
    node: &YamlNode,
    what: &str,
    findings: &mut Findings<'_>,
) -> Option<BTreeMap<String, String>> {
    let mut map = BTreeMap::new();
    for (name, _, value) in decode::pairs(node, what, findings)? {
        let text = match value.content {
            Content::Null => "",
            _ => decode::text(value, &format!("{what}.{name}"), findings)?,
        };
        map.insert(name.to_owned(), text.to_owned());
    }
    Some(map)
}

fn alert_test(node: &YamlNode, findings: &mut Findings<'_>) -> Option<AlertTest> {
    let what = "an alert_rule_test";
    let table = Table::read(node, what, &["eval_time", "alertname", "exp_alerts"], findings)?;
    let at = eval_time(&table, findings);
    let name = required(&table, "alertname", what, findings);
    let alert = name.and_then(|node| decode::text(node, "alertname", findings));
    let expected = entries(&table, "exp_alerts", findings).and_then(|list| {
        decode::each(list, findings, |node, findings| {
            expected_alert(node, alert.unwrap_or_default(), findings)
        })
    });
    Some(AlertTest {
        span: table.span(),
        at: at?,
        alert: alert?.to_owned(),
        alert_span: name?.span.clone(),
        expected: expected?,
    })
}

fn expected_alert(
    node: &YamlNode,
    alert: &str,
    findings: &mut Findings<'_>,
) -> Option<ExpectedAlert> {
    // An entry without anything is an alert without labels of its own.
    let (mut labels, mut annotations) = (BTreeMap::new(), BTreeMap::new());
    if !matches!(node.content, Content::Null) {
        let keys = ["exp_labels", "exp_annotations"];
        let table = Table::read(node, "an entry of exp_alerts", &keys, findings)?;
        if let Some(node) = table.get("exp_labels") {
            labels = text_map(node, "exp_labels", findings)?;
        }
        if let Some(node) = table.get("exp_annotations") {
            annotations = text_map(node, "exp_annotations", findings)?;
        }
    }
    labels.insert("alertname".to_owned(), alert.to_owned());
    Some(ExpectedAlert { labels, annotations })
}

fn expr_test(node: &YamlNode, findings: &mut Findings<'_>) -> Option<ExprTest> {
    let what = "a promql_expr_test";
    let table = Table::read(node, what, &["expr", "eval_time", "exp_samples"], findings)?;
    let at = eval_time(&table, findings);
    let expr = required(&table, "expr", what, findings).and_then(|node| expr(node, findings));
    let expected = entries(&table, "exp_samples", findings).and_then(|list| {
        decode::each(list, findings, |node, findings| expected_sample(node, findings))
    });
    let (text, expr) = expr?;
    Some(ExprTest { span: table.span(), at: at?, text, expr, expected: expected? })
}

/// An expression over any series, also those that this build does not export.
fn expr(node: &YamlNode, findings: &mut Findings<'_>) -> Option<(String, Expr)> {
    let text = decode::text(node, "expr", findings)?;
    match promql_rules::parse(text) {
        Ok(expr) => Some((text.trim().to_owned(), expr)),
        Err(error) => {
            let span = node.span_of(findings.source(), error.span);
            let noted = findings.add(span, format!("expr: {}", error.message));
            if let Some(hint) = error.hint {
                noted.hint(hint);
            }
            None
        }
    }
}

fn expected_sample(node: &YamlNode, findings: &mut Findings<'_>) -> Option<(LabelMap, f64)> {
    let what = "an entry of exp_samples";
    let table = Table::read(node, what, &["labels", "value", "histogram"], findings)?;
    if let Some(key) = table.key("histogram") {
        findings
            .add(key.span.clone(), "native histograms are not supported")
            .hint("nothing here exports any; classic ones are series with the label le");
        return None;
    }
    let labels = match table.get("labels") {
        Some(node) => {
            let text = decode::text(node, "labels", findings)?;
            note(notation::parse_metric(text), node, "labels", findings)
        }
        None => Some(LabelMap::new()),
    };
    let value = match table.get("value") {
        Some(node) => decode::value(node, "value", yaml_number, findings),
        None => Some(0.0),
    };
    Some((labels?, value?))
}

/// A number as YAML writes it, which is not as PromQL does.
fn yaml_number(text: &str) -> Result<f64, String> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let plain = unsigned.replace('_', "");
    let radix = |prefix: &str, radix: u32| {
        let digits = plain.strip_prefix(prefix)?;
        i64::from_str_radix(digits, radix).ok().map(|number| number as f64)
    };
    let octal = || radix("0", 8).filter(|_| plain.len() > 1);
    let is_decimal = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    let decimal = || plain.parse().ok().filter(|_| plain.chars().all(is_decimal));
    let magnitude = match unsigned {
        ".inf" | ".Inf" | ".INF" => Some(f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" => Some(f64::NAN),
        _ => radix("0x", 16)
            .or_else(|| radix("0b", 2))
            .or_else(|| radix("0o", 8))
            .or_else(octal)
            .or_else(decimal),
    };
    match magnitude {
        Some(magnitude) if text.starts_with('-') => Ok(-magnitude),
        Some(magnitude) => Ok(magnitude),
        None => Err(format!("\"{text}\" is not a number; infinity is .inf, and not a number .nan")),
    }
}
