//! `umawarden rules test`.

mod coverage;
mod oracle;
mod shipped;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

use super::rules_check::assert_golden;

fn rules_test(arguments: &[&str]) -> Output {
    Command::cargo_bin("umawarden")
        .expect("the binary")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("NO_COLOR")
        .args(["rules", "test"])
        .args(arguments)
        .output()
        .expect("it runs")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn json_lines(output: &Output) -> Vec<Value> {
    text(output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn promtool() -> Option<String> {
    let promtool = std::env::var("UMAWARDEN_PROMTOOL").ok();
    if promtool.is_none() {
        println!("skipped: set UMAWARDEN_PROMTOOL to the promtool of Prometheus 3");
    }
    promtool
}

fn fixtures(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new("tests/fixtures/rules_test").join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{folder:?} is empty");
    files
}

fn code(file: &Path) -> (Option<i32>, String) {
    let output = rules_test(&[file.to_str().expect("UTF-8")]);
    (output.status.code(), text(&output))
}

#[test]
fn every_mistake_is_reported_with_position_caret_and_advice() {
    for file in fixtures("broken") {
        let (code, report) = code(&file);
        assert_golden(&file.with_extension("txt"), &report);
        assert_eq!(code, Some(2), "{}", file.display());
    }
}

#[test]
fn differences_are_shown_as_expected_and_got_in_columns() {
    for file in fixtures("differs") {
        let (code, report) = code(&file);
        assert_golden(&file.with_extension("txt"), &report);
        assert_eq!(code, Some(1), "{}", file.display());
    }
}

#[test]
fn remedies_outcomes_and_both_modes_can_be_tested() {
    for file in fixtures("good") {
        let (code, report) = code(&file);
        assert_eq!(code, Some(0), "{report}");
    }
}

#[test]
fn hard_cases_get_the_result_of_promtool() {
    let promtool = promtool();
    for file in fixtures("parity") {
        let (code, report) = code(&file);
        let passes = file.to_string_lossy().contains("/pass-");
        assert_eq!(code, Some(i32::from(!passes)), "{report}");
        let Some(promtool) = &promtool else { continue };
        let output =
            std::process::Command::new(promtool).args(["test", "rules"]).arg(&file).output();
        let status = output.expect("promtool runs").status;
        assert_eq!(status.success(), passes, "promtool on {}", file.display());
    }
}

#[test]
fn json_has_one_object_a_line() {
    let lines = json_lines(&rules_test(&["--json", "tests/fixtures/rules_test/differs/all.yaml"]));
    let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).collect::<Vec<_>>();
    assert_eq!(
        (of("file")[0]["ok"].as_bool(), of("file")[0]["failed"].as_u64()),
        (Some(false), Some(4))
    );
    assert_eq!(of("test")[0]["line"], 4);
    assert_eq!(of("remark")[0]["line"], 7);
    let alert = of("failure")[0];
    assert_eq!(
        (&alert["check"], &alert["subject"], &alert["at"]),
        (&"alert".into(), &"Low".into(), &"5s".into())
    );
    assert_eq!(alert["got"][0][0], "{alertname=\"Low\"}");
    assert_eq!(alert["expected"].as_array().map(Vec::len), Some(0));

    let lines =
        json_lines(&rules_test(&["--json", "tests/fixtures/rules_test/broken/names.yaml", "none"]));
    assert_eq!(lines[0]["ok"], false);
    assert_eq!((&lines[1]["kind"], &lines[1]["line"]), (&"mistake".into(), &6.into()));
    let last = lines.last().expect("a line");
    assert_eq!((&last["kind"], &last["path"]), (&"unreadable".into(), &"none".into()));
    assert_eq!(last["why"], "there is no such file");
}

#[test]
fn odd_names_of_rule_files_get_the_result_of_promtool() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("folder")).expect("a folder");
    let rules = "groups: [{name: g, rules: [{alert: A, expr: vector(1)}]}]";
    fs::write(path("folder/rules.yml"), rules).expect("written");
    fs::write(path("rules.yml"), rules).expect("written");
    fs::write(path("rules_test.yml"), "tests: []").expect("written");
    fs::write(path("empty.yml"), "").expect("written");
    std::os::unix::fs::symlink("nowhere.yml", path("link.yml")).expect("a link");
    for (name, passes) in [
        ("nope.yml", true),
        ("nope*.yml", true),
        ("nowhere/nope.yml", true),
        ("rules.yml/nope.yml", true),
        ("", true),
        ("rules.yml", true),
        ("[^el]*s.yml", true),
        ("empty.yml", true),
        ("folder", false),
        ("fold*", false),
        ("link.yml", false),
        ("*.yml", false),
        ("rules_*.yml", false),
        ("[", false),
    ] {
        let test = path("test.yaml");
        let text = format!(
            "rule_files: ['{name}']\ntests:\n- promql_expr_test: [{{expr: vector(1), \
             exp_samples: [{{value: 1}}]}}]\n"
        );
        fs::write(&test, text).expect("written");
        let (code, report) = code(&test);
        assert_eq!(code, Some(if passes { 0 } else { 2 }), "{name}: {report}");
        let Some(promtool) = promtool() else { continue };
        let output =
            std::process::Command::new(promtool).args(["test", "rules"]).arg(&test).output();
        assert_eq!(output.expect("promtool runs").status.success(), passes, "{name}");
    }
}

#[test]
fn help_lists_every_reason_and_every_key_of_a_test() {
    let help = text(&rules_test(&["--help"]));
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for reason in umawarden::model::HoldReason::ALL {
        assert!(help.contains(reason.name()) && help.contains(reason.meaning()), "{reason:?}");
    }
    for key in [
        "start_timestamp",
        "guard_rails",
        "maintenance_windows",
        "approvals",
        "pauses",
        "silences",
        "breaker_resets",
        "journal_readable_from",
    ] {
        assert!(help.contains(key), "{key}");
    }
}

#[test]
fn the_worst_file_decides_the_exit_code() {
    let (good, differs, broken) = (
        "tests/fixtures/rules_test/good/ladder.yaml",
        "tests/fixtures/rules_test/differs/all.yaml",
        "tests/fixtures/rules_test/broken/names.yaml",
    );
    assert_eq!(rules_test(&[good, differs]).status.code(), Some(1));
    assert_eq!(rules_test(&[broken, differs, good]).status.code(), Some(2));
    assert_eq!(rules_test(&["nowhere.yaml", good]).status.code(), Some(2));
    assert_eq!(rules_test(&[]).status.code(), Some(2), "no file at all");
}

#[test]
fn a_folder_runs_its_test_files_and_counts_its_rules() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    assert_eq!(rules_test(&[path]).status.code(), Some(2), "it holds none");
    let rules = fs::read_to_string("tests/fixtures/rules_test/ladder.yaml").expect("read");
    fs::write(folder.path().join("ladder.yaml"), rules).expect("written");
    let test = "rule_files: ['l*r.yaml']\ntests:\n- alert_rule_test: [{alertname: Low}]\n";
    fs::write(folder.path().join("ladder_test.yaml"), test).expect("written");
    let output = rules_test(&[path]);
    assert!(
        text(&output).ends_with("ladder_test.yaml: SUCCESS, 1 test, 1 check\n"),
        "{}",
        text(&output)
    );
    let check =
        Command::cargo_bin("umawarden").expect("it").args(["rules", "check", path]).output();
    assert_eq!(check.expect("it runs").status.code(), Some(0), "tests are no rules");
}

#[test]
fn hostile_test_files_end_within_their_limits() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("hostile.yaml");
    let input = |values: &str| {
        format!(
            "tests:\n- input_series: [{{series: a, values: '{values}'}}]\n  promql_expr_test: [{{expr: a}}]\n"
        )
    };
    let cases = [
        input(&format!("1x{}", u64::MAX)),
        input(&format!("1+1e308x{}", u64::MAX)),
        input(&"1x9 ".repeat(100_000)),
        input(&"(".repeat(60_000)),
        input("1x99999999999999999999999"),
        format!("tests:\n- promql_expr_test: [{{expr: '{}'}}]\n", "(".repeat(60_000)),
        format!("tests:\n- promql_expr_test: [{{expr: 'a{}'}}]\n", "+a".repeat(20_000)),
        format!("tests:\n- input_series: [{{series: 'a{{{}', values: 1}}]\n", "b=\"c\",".repeat(9_000)),
        "tests:\n- promql_expr_test: [{expr: a, eval_time: 290000y}]\n".to_owned(),
        "evaluation_interval: 290000y\ntests:\n- promql_expr_test: [{expr: a, eval_time: 290000y}]\n".to_owned(),
        "rule_files: ['/**', '[']\ntests: []\n".to_owned(),
        "tests: [[[[[[[[[[".to_owned(),
        "tests:\n- &a\n  input_series: *a\n".to_owned(),
        "\u{feff}tests: []".to_owned(),
        "tests: {name: \u{1b}[31m}".to_owned(),
    ];
    for case in cases {
        fs::write(&path, &case).expect("written");
        let (code, report) = code(&path);
        assert!(code.is_some_and(|code| code <= 2), "{code:?} {report}");
        assert!(!report.contains('\x1b'), "{report:?}");
    }
}
