//! Each shipped rule has a test in which it fires and one in which it must not, and the source of
//! their figures is known.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;
use promql_rules::{EvalTime, Reading, SeriesKey, parse};
use umawarden::config::mistake::SourceText;
use umawarden::config::rules::parse_rules;
use umawarden::config::shipped::shipped_rules;
use umawarden::config::yaml::{self, Content, YamlNode};
use umawarden::policy::rule::Rule;

/// One test, as written, with the rule files that it runs under.
struct Written {
    name: String,
    files: Vec<String>,
    test: Arc<YamlNode>,
}

fn value<'n>(node: &'n YamlNode, key: &str) -> Option<&'n Arc<YamlNode>> {
    let Content::Map(pairs) = &node.content else { return None };
    pairs.iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
}

fn list<'n>(node: &'n YamlNode, key: &str) -> &'n [Arc<YamlNode>] {
    match value(node, key).map(|node| &node.content) {
        Some(Content::List(entries)) => entries,
        _ => &[],
    }
}

fn text<'n>(node: &'n YamlNode, key: &str) -> &'n str {
    value(node, key).and_then(|node| node.text()).unwrap_or_default()
}

fn written() -> Vec<Written> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("rules");
    let mut written = Vec::new();
    for entry in fs::read_dir(folder).expect("rules") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        if !name.ends_with("_test.yaml") {
            continue;
        }
        let source = SourceText::new(name.clone(), fs::read_to_string(&path).expect("read"));
        let root = yaml::parse(&source).unwrap_or_else(|mistake| panic!("{mistake}"));
        let files = list(&root, "rule_files").iter().filter_map(|file| file.text());
        let files: Vec<String> = files.map(str::to_owned).collect();
        written.extend(list(&root, "tests").iter().map(|test| Written {
            name: format!("{name}: {}", text(test, "name")),
            files: files.clone(),
            test: Arc::clone(test),
        }));
    }
    written
}

/// Whether an expression over ALERTS selects the alert while it fires.
fn selects(expr: &str, rule: &Rule) -> bool {
    let severity = rule.labels.iter().find(|(name, _)| **name == *"severity");
    let severity = severity.map(|(_, text)| text.as_written().to_string()).unwrap_or_default();
    let labels =
        [("alertname", &*rule.id.alert), ("alertstate", "firing"), ("severity", severity.as_str())];
    let mut store = SeriesStore::default();
    let id = store.intern(&SeriesKey::new("ALERTS", &labels));
    store.append(id, 0, Reading::Value(1.0));
    let at = EvalTime { timeline_ms: 0, utc_ms: 0 };
    expr.contains("ALERTS")
        && parse(expr).is_ok_and(|expr| expr.yields(&store, at) == Ok(Some(true)))
}

impl Written {
    /// Whether the alert must fire in it.
    fn fires(&self, rule: &Rule) -> bool {
        let alert = &*rule.id.alert;
        let expected = list(&self.test, "alert_rule_test").iter().any(|check| {
            text(check, "alertname") == alert && !list(check, "exp_alerts").is_empty()
        });
        let named = format!("alertname=\"{alert}\"");
        let mut samples = list(&self.test, "promql_expr_test")
            .iter()
            .flat_map(|check| list(check, "exp_samples"));
        let mut decisions =
            list(&self.test, "remedy_test").iter().flat_map(|check| list(check, "exp_decisions"));
        expected
            || samples.any(|sample| text(sample, "labels").contains(&named))
            || decisions.any(|decision| text(decision, "alert") == alert)
    }

    /// Whether the alert must not fire at any time in it, although there is what its condition
    /// compares first.
    fn must_not(&self, rule: &Rule) -> bool {
        let alert = &*rule.id.alert;
        let is_silent = list(&self.test, "alert_rule_test")
            .iter()
            .any(|check| text(check, "alertname") == alert && list(check, "exp_alerts").is_empty())
            // A remedy decides something whenever its rule fires.
            || rule.remedy.is_some()
                && list(&self.test, "remedy_test").iter().any(|check| {
                    value(check, "exp_decisions").is_some()
                        && list(check, "exp_decisions").is_empty()
                })
            || list(&self.test, "promql_expr_test").iter().any(|check| {
                list(check, "exp_samples").is_empty() && selects(text(check, "expr"), rule)
            });
        let reads = rule.expr.expr.reads().into_iter();
        let first = reads.min_by_key(|(name, _)| rule.expr.text.find(&**name));
        let first = first.map(|(name, _)| name.to_string()).unwrap_or_default();
        let mut series = list(&self.test, "input_series").iter().map(|one| text(one, "series"));
        let is_there = series.any(|series| {
            series.strip_prefix(&first).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
        });
        is_silent && is_there && !self.fires(rule)
    }
}

#[test]
fn each_shipped_rule_must_fire_in_one_test_and_must_not_in_another() {
    let tests = written();
    assert!(tests.len() > 100, "{}", tests.len());
    let mut lacking = Vec::new();
    for file in shipped_rules() {
        let name = file.name.replace("shipped:", "");
        let rules = parse_rules(&[file], Duration::from_millis(100)).expect("fine");
        let own: Vec<&Written> = tests.iter().filter(|test| test.files.contains(&name)).collect();
        for rule in rules.groups.iter().flat_map(|group| &group.rules) {
            if !own.iter().any(|test| test.fires(rule)) {
                lacking.push(format!("{}: no test in which it must fire", rule.id));
            }
            if !own.iter().any(|test| test.must_not(rule)) {
                lacking.push(format!("{}: no test in which it must not fire", rule.id));
            }
        }
    }
    assert!(lacking.is_empty(), "{}", lacking.join("\n"));
}

/// Where figures may come from.
const SOURCES: [&str; 5] = ["report: ", "measured: ", "log: ", "own: ", "modelled"];

/// `sources.yaml` names for each rule two tests, and where their figures come from.
fn sources() -> Arc<YamlNode> {
    let path = "tests/fixtures/rules_test/sources.yaml";
    let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    let table = yaml::parse(&SourceText::new(path, source.expect("read")));
    table.unwrap_or_else(|mistake| panic!("{mistake}"))
}

/// What is wrong with a source. One of the program's own is a file and a sentence of it.
fn wrong_source(source: &str) -> Option<String> {
    if !SOURCES.iter().any(|kind| source.starts_with(kind)) {
        return Some(format!("source \"{source}\""));
    }
    let own = source.strip_prefix("own: ")?;
    let Some((path, sentence)) = own.split_once(": ") else {
        return Some(format!("source \"{source}\" has no sentence"));
    };
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    let text = text.unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    (!words.join(" ").contains(sentence)).then(|| format!("{path} does not say \"{sentence}\""))
}

#[test]
fn the_sources_of_both_tests_of_each_shipped_rule_are_known() {
    let table = sources();
    let tests = written();
    let (mut wrong, mut known) = (Vec::new(), 0);
    for file in shipped_rules() {
        let name = file.name.replace("shipped:", "");
        let rules = parse_rules(&[file], Duration::from_millis(100)).expect("fine");
        for rule in rules.groups.iter().flat_map(|group| &group.rules) {
            known += 1;
            let Some(row) = value(&table, &rule.id.alert) else {
                wrong.push(format!("{}: no row", rule.id));
                continue;
            };
            for (key, is_one) in [
                ("fires", &Written::fires as &dyn Fn(&Written, &Rule) -> bool),
                ("must_not", &Written::must_not),
            ] {
                let entry = value(row, key).map_or_else(|| Arc::clone(row), Arc::clone);
                let (test, source) = (text(&entry, "test"), text(&entry, "source"));
                let is_named = |written: &&Written| {
                    written.files.contains(&name) && written.name.ends_with(&format!(": {test}"))
                };
                if !tests.iter().filter(is_named).any(|written| is_one(written, rule)) {
                    wrong.push(format!("{}: {key}: \"{test}\" is no such test", rule.id));
                }
                if let Some(what) = wrong_source(source) {
                    wrong.push(format!("{}: {key}: {what}", rule.id));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let Content::Map(rows) = &table.content else { panic!("no table") };
    assert_eq!(rows.len(), known, "a rule that is gone has a row");
}

#[test]
fn a_source_of_the_programs_own_is_a_sentence_of_a_document() {
    let of = |sentence: &str| wrong_source(&format!("own: CONTRIBUTING.md: {sentence}"));
    assert_eq!(of("functions of at most 70 lines"), None);
    assert!(of("functions of at most 7000 lines").is_some());
    assert!(wrong_source("own: CONTRIBUTING.md").is_some(), "no sentence");
    assert!(wrong_source("own: no-such-file.md: A sentence.").is_some());
    assert!(wrong_source("hearsay").is_some());
    assert_eq!(wrong_source("modelled"), None);
}

/// Figures that nobody has reported prove little: one of the two tests of a rule has others.
#[test]
fn no_shipped_rule_has_only_modelled_figures() {
    let table = sources();
    let Content::Map(rows) = &table.content else { panic!("no table") };
    let is_modelled = |row: &YamlNode, key: &str| {
        value(row, key).is_some_and(|entry| text(entry, "source") == "modelled")
    };
    let only = rows
        .iter()
        .filter(|(_, row)| is_modelled(row, "fires") && is_modelled(row, "must_not"))
        .filter_map(|(name, _)| name.text());
    assert_eq!(only.collect::<Vec<_>>(), [] as [&str; 0]);
}

#[test]
fn each_rule_test_has_a_name() {
    let unnamed = written().into_iter().filter(|test| test.name.ends_with(": "));
    assert_eq!(unnamed.map(|test| test.name).collect::<Vec<_>>(), [] as [&str; 0]);
}

/// A test that names the alert only before it fires is no test in which it must not.
#[test]
fn a_test_in_which_an_alert_fires_later_is_not_one_in_which_it_must_not() {
    let rules = "groups: [{name: g, rules: [{alert: A, expr: uma_paused == 1}]}]";
    let rules = [SourceText::new("r.yaml", rules)];
    let rules = parse_rules(&rules, Duration::from_secs(1)).expect("fine");
    let rule = &rules.groups[0].rules[0];
    let judge = |series: &str, checks: &str| {
        let text = format!("{{name: t, input_series: [{{series: {series}}}], {checks}}}");
        let source = SourceText::new("t.yaml", text);
        let test = yaml::parse(&source).unwrap_or_else(|mistake| panic!("{mistake}"));
        let written = Written { name: "t".to_owned(), files: Vec::new(), test };
        (written.fires(rule), written.must_not(rule))
    };
    let quiet = "{eval_time: 1s, alertname: A}";
    let loud = "{eval_time: 2s, alertname: A, exp_alerts: [{exp_labels: {}}]}";
    let only = |check: &str| format!("alert_rule_test: [{check}]");
    assert_eq!(judge("uma_paused", &only(quiet)), (false, true));
    assert_eq!(judge("uma_paused", &only(&format!("{quiet}, {loud}"))), (true, false));
    assert_eq!(judge("uma_pausedness", &only(quiet)), (false, false), "nothing is compared");
    let samples = |expr: &str| format!("promql_expr_test: [{{expr: '{expr}', exp_samples: []}}]");
    assert_eq!(judge("uma_paused", &samples("ALERTS")), (false, true));
    assert_eq!(judge("uma_paused", &samples("ALERTS{alertname!=\"A\"}")), (false, false));
    assert_eq!(judge("uma_paused", &samples("ALERTS{severity=\"x\"}")), (false, false));
}
