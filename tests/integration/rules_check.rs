//! `umawarden rules check`, and the texts of its errors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

use crate::dice::is_nightly;

const PROGRAM: &str = env!("CARGO_BIN_EXE_umawarden");
const EXAMPLE: &str = include_str!("../fixtures/rules/good/page-cache.yaml");

fn check(arguments: &[&str]) -> Output {
    Command::cargo_bin("umawarden")
        .expect("the binary")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("NO_COLOR")
        .args(["rules", "check"])
        .args(arguments)
        .output()
        .expect("it runs")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn objects(output: &Output) -> Vec<Value> {
    text(output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn yaml_files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .filter(|path| !path.to_string_lossy().ends_with("_test.yaml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{folder} is empty");
    files
}

/// Compares with the file, or with `UPDATE_GOLDEN=1` writes it.
pub fn assert_golden(golden: &Path, found: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(golden, found).expect("written");
    }
    let expected = fs::read_to_string(golden).unwrap_or_default();
    assert_eq!(found, expected, "{} differs; UPDATE_GOLDEN=1 rewrites it", golden.display());
}

#[test]
fn every_broken_file_is_reported_with_position_caret_and_advice() {
    for file in yaml_files("tests/fixtures/rules/broken") {
        let output = check(&[file.to_str().expect("UTF-8")]);
        assert_golden(&file.with_extension("txt"), &text(&output));
        assert_eq!(output.status.code(), Some(1), "{}", file.display());
    }
}

#[test]
fn every_suspicious_file_is_reported_with_position_caret_and_advice() {
    for file in yaml_files("tests/fixtures/rules/findings") {
        let output = check(&[file.to_str().expect("UTF-8")]);
        assert_golden(&file.with_extension("txt"), &text(&output));
        assert_eq!(output.status.code(), Some(1), "{}", file.display());
    }
}

#[test]
fn rules_of_several_files_are_compared_with_each_other() {
    let rule = |name: &str, expr: &str, aim: &str| {
        format!(
            "groups:\n- name: {name}\n  rules:\n  - alert: A\n    expr: {expr}\n    remedy:\n      \
             aim: {aim}\n      steps: [{{compact_memory: {{}}}}]\n"
        )
    };
    let folder = tempfile::tempdir().expect("a folder");
    let one = rule("one", "uma_memory_free_bytes < 5e9", "uma_memory_free_bytes > 9e9");
    let two = rule("two", "uma_memory_free_bytes > 8e9", "uma_memory_free_bytes < 4e9");
    fs::write(folder.path().join("1.yaml"), one).expect("written");
    fs::write(folder.path().join("2.yaml"), two).expect("written");
    let output = check(&[folder.path().to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(1));
    let text = text(&output);
    assert!(text.contains("1.yaml: OK") && text.contains("2.yaml: 1 finding"), "{text}");
    assert!(text.contains("this rule and one/A (") && text.contains("1.yaml:4) fight"), "{text}");
}

#[test]
fn a_path_without_rule_files_is_reported_as_unreadable() {
    let folder = tempfile::tempdir().expect("a folder");
    let glob = folder.path().join("nope*.yaml");
    for path in [folder.path().to_str().expect("UTF-8"), glob.to_str().expect("UTF-8")] {
        let output = check(&[path]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output).contains("it holds no rule files"), "{}", text(&output));
        let lines = objects(&check(&["--json", path]));
        assert_eq!((&lines[0]["kind"], &lines[0]["path"]), (&"unreadable".into(), &path.into()));
        assert_eq!(lines[0]["why"], "it holds no rule files");
    }
}

const AT_NIGHT: &str = "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: \
                        uma_memory_free_bytes < 1e9\n    remedy:\n      steps: \
                        [{compact_memory: {}}]\n      only_in: [nights]\n";

/// Whether `umawarden run` would load the configuration, without starting.
fn loads(config: &Path, rules: Option<&Path>) -> bool {
    let flags = umawarden::config::flags::LoadFlags {
        config_file: Some(config.to_owned()),
        rules: rules.map(Path::to_owned).into_iter().collect(),
        ..Default::default()
    };
    let environment = umawarden::config::settings::Environment::default();
    umawarden::config::reader::load(&flags.into(), &environment).is_ok()
}

#[test]
fn under_a_configuration_rules_are_refused_as_run_refuses_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, rules) = (folder.path().join("umawarden.yaml"), folder.path().join("r.yaml"));
    fs::write(&rules, AT_NIGHT).expect("written");
    let nights = "guard_rails: {maintenance_windows: [{name: nights}]";
    for (text, code) in [
        ("mode: observe\n".to_owned(), 1),
        (format!("{nights}}}\n"), 0),
        (format!("{nights}, inhibited_by: [A]}}\n"), 0),
        (format!("{nights}, inhibited_by: [B]}}\n"), 1),
        (format!("{nights}, never_in: [days]}}\n"), 1),
        ("rule_fils: []\n".to_owned(), 1),
    ] {
        fs::write(&config, &text).expect("written");
        let paths = [config.to_str().expect("UTF-8"), rules.to_str().expect("UTF-8")];
        let output = check(&["--config.file", paths[0], paths[1]]);
        assert_eq!(output.status.code(), Some(code), "{text}{}", self::text(&output));
        assert_eq!(loads(&config, Some(&rules)), code == 0, "{text}");
    }
}

#[test]
fn the_rules_of_the_configuration_are_checked_without_paths() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("umawarden.yaml");
    fs::write(folder.path().join("r.yaml"), AT_NIGHT).expect("written");
    fs::write(&config, "rule_files: [r.yaml]\n").expect("written");
    let config = config.to_str().expect("UTF-8");
    let output = check(&["--config.file", config]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("no maintenance window has the name \"nights\""));
    let nowhere = folder.path().join("nowhere.yaml");
    let output = check(&["--config.file", nowhere.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
}

#[test]
fn features_that_this_node_lacks_are_reported_apart_from_mistakes() {
    let folder = tempfile::tempdir().expect("a folder");
    let procfs = folder.path().join("proc");
    fs::create_dir(&procfs).expect("made");
    // This pid is another process here.
    std::os::unix::fs::symlink("1", procfs.join("self")).expect("made");
    let rules = "groups: [{name: g, rules: [{alert: A, expr: uma_engine_growth_bytes > 1, \
                 remedy: {steps: [{stop_engine: {grace: 1s}}], cooldown: 1m}}]}]\n";
    fs::write(folder.path().join("r.yaml"), rules).expect("written");
    let config = folder.path().join("umawarden.yaml");
    for (mode, expected) in [
        ("observe", "on this node: would not be available in enforce mode: action stop_engine: "),
        ("enforce", "on this node: not available: action stop_engine: "),
    ] {
        let text = format!("mode: {mode}\nrule_files: [r.yaml]\npath: {{procfs: proc}}\n");
        fs::write(&config, text).expect("written");
        let config = config.to_str().expect("UTF-8");
        let output = check(&["--config.file", config]);
        let found = self::text(&output);
        assert_eq!(output.status.code(), Some(0), "{found}");
        let line = found.lines().find(|line| line.contains("another PID namespace"));
        assert!(line.is_some_and(|line| line.starts_with(expected)), "{found}");
        assert!(found.contains("--pid=host"), "{found}");
        let lines = objects(&check(&["--json", "--config.file", config]));
        let of_node = |line: &&Value| {
            let what = line["what"].as_str().unwrap_or_default();
            line["kind"] == "node" && what.contains("another PID namespace")
        };
        let line = lines.iter().find(of_node).expect("a line of the node");
        assert_eq!(line["wanted_now"], mode == "enforce");
        // Without a configuration rules are checked on their own, on any node.
        let rules = folder.path().join("r.yaml");
        let alone = self::text(&check(&[rules.to_str().expect("UTF-8")]));
        assert!(!alone.contains("on this node"), "{alone}");
    }
}

#[test]
fn names_that_only_a_configuration_defines_are_reported_as_unchecked() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("r.yaml");
    fs::write(&rules, AT_NIGHT).expect("written");
    let rules = rules.to_str().expect("UTF-8");
    let output = check(&[rules]);
    assert_eq!(output.status.code(), Some(0));
    let report = text(&output);
    assert!(
        report.contains("OK") && report.contains(":8:17: whether there is a maint"),
        "{report}"
    );
    assert!(report.contains("--config.file"), "{report}");
    let lines = objects(&check(&["--json", rules]));
    assert_eq!((&lines[1]["kind"], &lines[1]["line"]), (&"remark".into(), &8.into()));
}

#[test]
fn every_good_file_passes() {
    for file in yaml_files("tests/fixtures/rules/good") {
        let output = check(&[file.to_str().expect("UTF-8")]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        assert!(text(&output).contains(": OK, 1 group, "), "{}", text(&output));
    }
}

#[test]
fn the_shipped_rules_are_checked_without_a_path() {
    let output = check(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let shipped = text(&output);
    assert!(shipped.contains("shipped:memory.yaml: OK"), "{shipped}");
    assert!(shipped.contains("shipped:kernel.yaml: OK"), "{shipped}");
    assert_eq!(check(&["rules"]).status.code(), Some(0));
}

#[test]
fn folders_and_globs_are_accepted_and_groups_are_unique_over_all_files() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.yaml"), EXAMPLE).expect("written");
    fs::write(folder.path().join("b.yml"), EXAMPLE).expect("written");
    let path = folder.path().to_str().expect("UTF-8");
    let output = check(&[path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("a.yaml: OK"), "{}", text(&output));
    assert!(text(&output).contains("group \"memory\" exists already, at "), "{}", text(&output));
    assert_eq!(check(&[&format!("{path}/a*")]).status.code(), Some(0));
}

#[test]
fn an_unreadable_path_is_reported_with_the_mistakes() {
    let output = check(&["tests/fixtures/rules/none.yaml", "tests/fixtures/rules/broken/tab.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    let text = text(&output);
    assert!(text.contains("tests/fixtures/rules/broken/tab.yaml:3:"), "{text}");
    assert!(text.contains("none.yaml: there is no such file"), "{text}");
}

#[test]
fn json_has_one_object_a_line() {
    let found = objects(&check(&["--json", "tests/fixtures/rules/broken/same-names.yaml"]));
    assert_eq!(found[0]["kind"], "file");
    assert_eq!(found[0]["ok"], false);
    assert_eq!(found[1]["kind"], "mistake");
    assert_eq!((&found[1]["line"], &found[1]["column"]), (&Value::from(5), &Value::from(13)));
    assert!(found[1]["message"].as_str().is_some_and(|m| m.contains("already, on line 4")));
    assert_eq!(found.len(), 3);

    let found = objects(&check(&["--json", "tests/fixtures/rules/findings/no-groups.yaml"]));
    assert_eq!((&found[0]["ok"], &found[1]["kind"]), (&Value::from(false), &"finding".into()));
    assert!(found[1]["hint"].is_string() && found[1]["line"] == 1);

    let found =
        objects(&check(&["--json", "tests/fixtures/rules/good/page-cache.yaml", "nowhere"]));
    assert_eq!(found[0]["rules"], 1);
    assert_eq!(found[1]["kind"], "unreadable");
}

#[test]
fn a_pipe_gets_no_colours() {
    let output = check(&["tests/fixtures/rules/broken/tab.yaml"]);
    assert!(!text(&output).contains('\x1b'));
}

/// The file without `remedy` and everything below it.
pub fn without_remedies(text: &str) -> String {
    let mut remedy_indent = None;
    let mut kept = String::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        if remedy_indent.is_some_and(|start| indent > start || line.trim().is_empty()) {
            continue;
        }
        remedy_indent = (line.trim() == "remedy:").then_some(indent);
        if remedy_indent.is_none()
            && !["scope:", "export:"].iter().any(|key| line.trim().starts_with(key))
        {
            kept += &format!("{line}\n");
        }
    }
    kept
}

#[test]
fn promtool_accepts_all_rules_once_remedies_are_removed() {
    let files = yaml_files("rules").into_iter().chain(yaml_files("tests/fixtures/rules/good"));
    for file in files {
        let rules = without_remedies(&fs::read_to_string(&file).expect("read"));
        let stripped = tempfile::NamedTempFile::with_suffix(".yaml").expect("a file");
        fs::write(stripped.path(), rules).expect("written");
        let output = std::process::Command::new("promtool")
            .args(["check", "rules"])
            .arg(stripped.path())
            .output()
            .expect("promtool runs; it is in the Debian package prometheus");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned() + &text(&output);
        assert!(output.status.success(), "{}: {stderr}", file.display());
    }
}

/// An idle PC, a model's load, and a dip. Prometheus itself evaluates them nightly: it takes 20 s.
#[test]
fn the_shipped_rules_fire_when_they_should_and_only_then() {
    let play = |program: &str, arguments: [&str; 2], rules_of: fn(&str) -> String| {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text);
        for file in yaml_files("rules") {
            let name = file.file_name().and_then(|name| name.to_str()).expect("a name");
            let rules = rules_of(&fs::read_to_string(&file).expect("read"));
            write(name, &rules).expect("written");
        }
        write("scenarios.yaml", include_str!("../fixtures/rules/scenarios.yaml")).expect("written");
        let mut command = std::process::Command::new(program);
        let output = command.current_dir(&folder).args(arguments).arg("scenarios.yaml").output();
        let output = output.expect("it runs; promtool is in the Debian package prometheus");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned() + &text(&output);
        assert!(output.status.success() && printed.contains("SUCCESS"), "{program}: {printed}");
    };
    play(PROGRAM, ["rules", "test"], str::to_owned);
    if is_nightly() {
        play("promtool", ["test", "rules"], without_remedies);
    }
}

/// Within a second, or within many where the machine is busy: the bound here only ends a hang.
#[test]
fn hostile_rule_files_are_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("hostile.yaml");
    let rule =
        |expr: &str| format!("groups:\n- name: g\n  rules:\n  - alert: A\n    expr: '{expr}'\n");
    let metric = "uma_memory_free_bytes";
    let cases = [
        rule(&"(".repeat(60_000)),
        rule(&format!("{}1{}", "(".repeat(30_000), ")".repeat(30_000))),
        rule(&format!("{metric}{}", " + 1".repeat(20_000))),
        rule(&format!("{metric} > 1{}", format!(" or {metric} > 1").repeat(20_000))),
        rule(&format!("{}{metric}", "abs(".repeat(15_000))),
        rule(&format!("{metric}{}", "[5m:".repeat(15_000))),
        rule(&format!("{metric}{{{}}}", "a=~\"(a*)*b\",".repeat(300))),
        rule(&"-".repeat(60_000)),
        rule(&"\"".repeat(60_001)),
        "[".repeat(60_000),
        "{a: ".repeat(15_000),
        format!("groups:\n- name: g\n  rules: {}", "[{alert: A, expr: ".repeat(4_000)),
        format!("a: &a [{}]\n", "*a, ".repeat(15_000)),
        "groups:\n- name: g\n  rules:\n  - alert: '{{ '\n    expr: \"".to_owned()
            + &"(".repeat(60_000),
    ];
    for case in cases {
        fs::write(&path, &case).expect("written");
        let output = Command::cargo_bin("umawarden")
            .expect("the binary")
            .args(["rules", "check"])
            .arg(&path)
            .timeout(std::time::Duration::from_secs(30))
            .output()
            .expect("it runs");
        let start: String = case.chars().take(90).collect();
        assert_eq!(output.status.code(), Some(1), "{start}");
        // Of one long line only a part is shown.
        assert!(
            output.stdout.len() < 8 << 10,
            "{start}: {} bytes are printed",
            output.stdout.len()
        );
    }
}

const NOW: &str = "groups:\n- name: g\n  rules:\n  \
                   - {alert: There, expr: uma_memory_total_bytes > 1, for: 300ms, \
                   remedy: {steps: [{compact_memory: {}}]}}\n  \
                   - {alert: Full, expr: uma_memory_free_bytes < 1}\n  \
                   - {alert: Logged, expr: 'rate(uma_kernel_log_records_total[1m]) > 1'}\n";

#[test]
fn with_now_rules_that_are_true_on_this_node_are_printed_with_values() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("r.yaml");
    fs::write(&rules, NOW).expect("written");
    let rules = rules.to_str().expect("UTF-8");
    let began = std::time::Instant::now();
    let output = check(&["--now", rules]);
    assert!(began.elapsed() < std::time::Duration::from_secs(30), "{:?}", began.elapsed());
    let found = text(&output);
    let (_, now) = found.split_once("\nnow, by 3 s of this node: 1 true, 1 false\n").expect("now");
    let lines: Vec<&str> = now.lines().collect();
    assert_eq!(lines[0], "  g/There: true, fires after 300ms, its remedy: compact_memory");
    assert!(lines[1].starts_with("    {} ") && lines[1].ends_with(" GiB"), "{found}");
    assert!(lines[2].starts_with("  1 rule of which only a daemon knows"), "{found}");
    assert!(lines[2].ends_with(": g/Logged"), "{found}");
    let lines = objects(&check(&["--now", "--json", rules]));
    let now: Vec<&Value> = lines.iter().filter(|line| line["kind"] == "now").collect();
    assert_eq!((&now[0]["rule"], &now[0]["holds"]), (&"g/There".into(), &Value::Bool(true)));
    assert!(now[0]["alerts"][0]["value"].as_f64() > Some(1e8), "{now:?}");
    assert_eq!(now[1]["needs_daemon"], "uma_kernel_log_records_total");
    assert_eq!(now.len(), 2, "what is false is left out");
}

#[test]
fn what_cannot_be_read_now_is_unknown() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("proc")).expect("made");
    fs::write(folder.path().join("r.yaml"), NOW).expect("written");
    let config = folder.path().join("umawarden.yaml");
    fs::write(&config, "rule_files: [r.yaml]\npath: {procfs: proc}\n").expect("written");
    let output = check(&["--now", "--config.file", config.to_str().expect("UTF-8")]);
    let found = text(&output);
    assert!(found.contains("now, by 3 s of this node: 0 true, 0 false"), "{found}");
    assert!(found.contains("  g/There: unknown: ") && found.contains("  g/Full: unknown: "));
}
