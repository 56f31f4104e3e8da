//! `umawarden rules export`: our rules evaluated by Prometheus.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use assert_cmd::Command;
use umawarden::config::mistake::SourceText;
use umawarden::config::rules::{ExportOptions, parse_rules, prometheus_rules};
use umawarden::config::shipped::shipped_rules;
use umawarden::policy::rule::{Rule, RuleScope, RuleSet};

fn export(arguments: &[&str]) -> Output {
    Command::cargo_bin("umawarden")
        .expect("the binary")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["rules", "export"])
        .args(arguments)
        .output()
        .expect("it runs")
}

fn exported(arguments: &[&str]) -> String {
    let output = export(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Debian's promtool, of Prometheus 2, and that of Prometheus 3 where there is one.
fn promtools() -> impl Iterator<Item = String> {
    std::iter::once("promtool".to_owned()).chain(std::env::var("UMAWARDEN_PROMTOOL"))
}

fn run_promtool(promtool: &str, folder: &Path, arguments: [&str; 3]) -> (bool, String) {
    let output = std::process::Command::new(promtool)
        .current_dir(folder)
        .args(arguments)
        .output()
        .expect("promtool runs; it is in the Debian package prometheus");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

/// Every odd construct that a rule file may have.
const ODD: &str = r#"
groups:
- name: "odd: # \"group\" \\ é \u2028"
  labels: {team: "a b", kept: group}
  rules:
  - alert: "{odd} 'alert' \u202e \U0001F600"
    expr: |
      # as it was meant
      uma_memory_free_bytes
        < 5e9   
        and on() uma_scrape_collector_success{collector="meminfo"} == 1

      or absent(uma_scrape_collector_success)
    labels: {kept: own, empty: "", severity: 'it''s'}
    annotations: {summary: "{{ $value | humanize }}\n\tsecond line", yes: "no", number: "1e3\x07\x85"}
    mode: enforce
    remedy: {steps: [{compact_memory: {}}]}
  - alert: Tab
    expr: "sum(rate(uma_swap_out_pages_total[10s]))\t> 5"
    for: 90s
    keep_firing_for: 1d
- name: none
  interval: 2s
  rules: []
"#;

fn odd() -> RuleSet {
    let source = SourceText::new("odd \n file.yaml", ODD);
    parse_rules(&[source], Duration::ZERO).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

fn without_what_is_ours(rules: RuleSet) -> Vec<(Arc<str>, Duration, Vec<Rule>)> {
    let rule = |rule: Rule| Rule { mode: None, is_exported: true, remedy: None, ..rule };
    let groups = rules.groups.into_iter().map(|group| {
        (group.name, group.interval, group.rules.into_iter().map(rule).collect::<Vec<Rule>>())
    });
    groups.collect()
}

#[test]
fn an_export_as_is_has_the_same_rules() {
    let mut shipped = parse_rules(&shipped_rules(), Duration::ZERO).expect("fine");
    // Rules that compare nodes cannot be read back: Prometheus has no scope.
    shipped.groups.retain(|group| group.scope == RuleScope::Node);
    for rules in [shipped, odd()] {
        let text = prometheus_rules(&rules, &ExportOptions::default());
        let again = parse_rules(&[SourceText::new("export", text.clone())], Duration::ZERO);
        let again = again.unwrap_or_else(|mistakes| panic!("{mistakes}\n{text}"));
        let (again, rules) = (without_what_is_ours(again), without_what_is_ours(rules));
        let lines = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        for (ours, theirs) in rules.iter().zip(&again) {
            for (ours, theirs) in ours.2.iter().zip(&theirs.2) {
                assert_eq!(lines(&ours.expr.text), lines(&theirs.expr.text));
                let theirs = Rule { expr: ours.expr.clone(), ..theirs.clone() };
                assert_eq!(*ours, theirs, "{text}");
            }
            assert_eq!((&ours.0, ours.1, ours.2.len()), (&theirs.0, theirs.1, theirs.2.len()));
        }
    }
}

#[test]
fn promtool_accepts_exported_rules() {
    let folder = tempfile::tempdir().expect("a folder");
    let adapted = ExportOptions {
        by: vec!["instance".into(), "cluster".into()],
        scrape_interval: Some(Duration::from_secs(5)),
        runbook_url: None,
    };
    fs::write(folder.path().join("shipped.yaml"), exported(&[])).expect("written");
    fs::write(folder.path().join("as-is.yaml"), exported(&["--as-is"])).expect("written");
    fs::write(folder.path().join("good.yaml"), exported(&["tests/fixtures/rules/good"]))
        .expect("written");
    for (name, options) in [("odd.yaml", ExportOptions::default()), ("odd-by.yaml", adapted)] {
        fs::write(folder.path().join(name), prometheus_rules(&odd(), &options)).expect("written");
    }
    let alerts = |more: &[&str]| exported(more).matches("- alert: ").count();
    let (shipped, all) = (alerts(&[]), alerts(&["--as-is"]));
    let by_node = ["--by", "cluster,node"];
    fs::write(folder.path().join("cluster.yaml"), exported(&by_node)).expect("written");
    let on_node_only =
        ["PageCacheEatsReserve", "MemoryRunsOutSoon", "MemoryCollapse", "CheckpointLoads"];
    let for_prometheus = exported(&by_node);
    for rule in on_node_only {
        let left_out = format!("only the node itself can raise it: \"{rule}\".");
        assert!(for_prometheus.contains(&left_out), "{rule}");
    }
    assert_eq!(alerts(&by_node), all - on_node_only.len());
    assert!(all > shipped && exported(&[]).contains("Left out, since it compares nodes"));
    for promtool in promtools() {
        for (name, rules) in [
            ("shipped.yaml", shipped),
            ("as-is.yaml", all),
            ("cluster.yaml", all - on_node_only.len()),
            ("good.yaml", 4),
            ("odd.yaml", 2),
            ("odd-by.yaml", 2),
        ] {
            let (fine, printed) = run_promtool(&promtool, folder.path(), ["check", "rules", name]);
            assert!(fine && printed.contains(&format!("{rules} rules found")), "{name}: {printed}");
        }
    }
}

/// Two nodes as Prometheus scrapes them every 15 s: one with fragmented memory, one with slow
/// writes.
const TWO_NODES: &str = r#"
rule_files: [RULES]
evaluation_interval: 15s
tests:
- interval: 15s
  input_series:
  - {series: 'uma_pool_total_bytes{instance="a",job="n",pool="host"}', values: '100+0x40'}
  - {series: 'uma_pool_total_bytes{instance="b",job="n",pool="host"}', values: '100+0x40'}
  - {series: 'uma_zone_free_bytes{instance="a",job="n",node="0",zone="Normal"}', values: '20+0x40'}
  - {series: 'uma_pool_free_bytes{instance="a",job="n",pool="host"}', values: '20+0x40'}
  - {series: 'uma_zone_free_bytes{instance="b",job="n",node="0",zone="Normal"}', values: '20+0x40'}
  - {series: 'uma_pool_free_bytes{instance="b",job="n",pool="host"}', values: '20+0x40'}
  - {series: 'uma_pool_contiguous_bytes{instance="a",job="n",block="2MiB",pool="host"}', values: '1+0x40'}
  - {series: 'uma_pool_contiguous_bytes{instance="b",job="n",block="2MiB",pool="host"}', values: '19+0x40'}
  - {series: 'uma_pool_page_cache_bytes{instance="a",job="n",state="dirty",pool="host"}', values: '1+0x40'}
  - {series: 'uma_pool_page_cache_bytes{instance="b",job="n",state="dirty",pool="host"}', values: '50+0x40'}
  - {series: 'uma_engine_phase{instance="b",job="n",engine="a",phase="loading"}', values: '1+0x40'}
  - {series: 'uma_kernel_xids_total{instance="a",job="n",class="other"}', values: '0x30 1x10'}
  - {series: 'uma_kernel_xids_total{instance="b",job="n",class="other"}', values: '0+0x40'}
  promql_expr_test:
  - expr: count by (alertname, instance) (ALERTS{alertstate="firing"})
    eval_time: 8m
    exp_samples:
    - {labels: '{alertname="DirtyPageCacheHigh", instance="b"}', value: 1}
    - {labels: '{alertname="MemoryFragmented", instance="a"}', value: 1}
    - {labels: '{alertname="XidReported", instance="a"}', value: 1}
"#;

#[test]
fn each_node_is_evaluated_by_its_own_series() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, rules) in [("by.yaml", exported(&[])), ("as-is.yaml", exported(&["--as-is"]))] {
        fs::write(folder.path().join(name), rules).expect("written");
        let test = TWO_NODES.replace("RULES", name);
        fs::write(folder.path().join(format!("{name}.test")), test).expect("written");
    }
    for promtool in promtools() {
        let test = |name: &str| run_promtool(&promtool, folder.path(), ["test", "rules", name]);
        let (fine, printed) = test("by.yaml.test");
        assert!(fine, "{printed}");
        // Rules as they are do not fit Prometheus: the rest of the export is for that.
        assert!(!test("as-is.yaml.test").0);
    }
}

#[test]
fn indistinguishable_nodes_are_noted_beside_the_rule() {
    let options =
        ExportOptions { by: vec!["instance".into()], scrape_interval: None, runbook_url: None };
    let text = prometheus_rules(&odd(), &options);
    assert!(
        text.contains("  # Not distinguished by node: absent(…) is one for all nodes"),
        "{text}"
    );
    assert!(text.contains("sum by (instance) (rate(uma_swap_out_pages_total[10s])) > 5"), "{text}");
    assert!(!text.contains("mode:") && !text.contains("remedy:"), "{text}");
}

#[test]
fn an_export_goes_to_a_file_or_reports_why_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("alerts.yaml").display().to_string();
    assert_eq!(exported(&["--output", &file, "rules/kernel.yaml"]), "");
    let text = fs::read_to_string(&file).expect("there");
    assert!(text.starts_with("# Alerting rules") && text.contains("rules/kernel.yaml"), "{text}");
    for (arguments, expected) in [
        (["--output", "/nowhere/alerts.yaml"].as_slice(), "cannot write /nowhere/alerts.yaml"),
        (&["tests/fixtures/rules/broken/tab.yaml"], "tab.yaml:3:"),
        (&["nowhere.yaml"], "there is no such file"),
        (&["--by", "a b"], "not a label"),
        (&["--scrape-interval", "1y"], "out of bounds"),
    ] {
        let output = export(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn an_export_never_overwrites_its_rules_under_any_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    fs::write(path("pr.yaml"), ODD).expect("written");
    std::os::unix::fs::symlink(path("pr.yaml"), path("link.yaml")).expect("a link");
    fs::hard_link(path("pr.yaml"), path("hard")).expect("a link");
    for output in ["pr.yaml", "./pr.yaml", "link.yaml", "hard"] {
        for force in [&[][..], &["--force"]] {
            let output = path(output);
            let done = export(&[&["-o", &output, &path("pr.yaml")], force].concat());
            assert_eq!(done.status.code(), Some(2), "{output}");
            let stderr = String::from_utf8_lossy(&done.stderr);
            assert!(stderr.contains("their remedies would be lost"), "{stderr}");
            assert_eq!(fs::read_to_string(path("pr.yaml")).expect("read"), ODD);
        }
    }
}

#[test]
fn only_an_earlier_export_is_overwritten_unless_forced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("alerts.yaml");
    let output = path.to_str().expect("UTF-8");
    exported(&["-o", output]);
    exported(&["-o", output, "--as-is"]);
    fs::write(&path, "groups: []\n").expect("written");
    let refused = export(&["-o", output]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--force"));
    assert_eq!(fs::read_to_string(&path).expect("read"), "groups: []\n");
    exported(&["-o", output, "--force"]);
    fs::write(&path, "").expect("written");
    exported(&["-o", output]);
    exported(&["-o", "/dev/null"]);
}

#[test]
fn an_export_for_kubernetes_is_an_object_with_a_valid_name() {
    let text = exported(&[
        "--kubernetes",
        "--name",
        "gpu.alerts",
        "--namespace",
        "monitoring",
        "--object-label",
        "release=stack",
        "--object-label",
        "umawarden.dev/of=",
    ]);
    let object: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(object["apiVersion"], "monitoring.coreos.com/v1");
    assert_eq!(object["kind"], "PrometheusRule");
    assert_eq!(object["metadata"]["name"], "gpu.alerts");
    assert_eq!(object["metadata"]["namespace"], "monitoring");
    let labels = serde_json::json!({"release": "stack", "umawarden.dev/of": ""});
    assert_eq!(object["metadata"]["labels"], labels);
    let file: serde_json::Value = serde_saphyr::from_str(&exported(&[])).unwrap();
    assert_eq!(object["spec"]["groups"], file["groups"]);
    for wrong in [
        &["--kubernetes", "--name", "Upper"][..],
        &["--kubernetes", "--name", "a..b"],
        &["--kubernetes", "--namespace", "a.b"],
        &["--kubernetes", "--object-label", "alone"],
        &["--kubernetes", "--object-label", "a=b c"],
        &["--kubernetes", "--object-label", "-a=b"],
        &["--kubernetes", "--object-label", "A_/a=b"],
        &["--name", "alone"],
        &["--object-label", "a=b"],
    ] {
        assert_eq!(export(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// The groups of the object are a rule file of Prometheus, and the object is one of ours.
#[test]
fn promtool_and_the_program_read_an_export_for_kubernetes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("object.yaml");
    let output = path.to_str().expect("UTF-8");
    exported(&["--kubernetes", "--output", output]);
    // An earlier export is overwritten, an object of others is not.
    exported(&["--kubernetes", "--output", output, "--name", "again"]);
    let object: serde_json::Value =
        serde_saphyr::from_str(&fs::read_to_string(&path).expect("read")).unwrap();
    assert_eq!(object["metadata"]["name"], "again");
    let alerts = exported(&[]).matches("- alert: ").count();
    fs::write(folder.path().join("spec.yaml"), object["spec"].to_string()).expect("written");
    for promtool in promtools() {
        let arguments = ["check", "rules", "spec.yaml"];
        let (fine, printed) = run_promtool(&promtool, folder.path(), arguments);
        assert!(fine && printed.contains(&format!("{alerts} rules found")), "{printed}");
    }
    // A node's own series have no label `instance`.
    exported(&["--kubernetes", "--output", output, "--as-is", "rules/memory.yaml"]);
    let mut check = Command::cargo_bin("umawarden").expect("the binary");
    let checked = check.args(["rules", "check", output]).output().expect("it runs");
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    let others = "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nspec: {groups: []}\n";
    fs::write(&path, others).expect("written");
    assert_eq!(export(&["--kubernetes", "--output", output]).status.code(), Some(2));
}

#[test]
fn an_export_has_the_overrides_and_the_files_of_the_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("umawarden.yaml");
    let own = "groups: [{name: own, rules: [{alert: Own, expr: uma_memory_free_bytes < 1e9}]}]";
    fs::write(folder.path().join("own.yaml"), own).expect("written");
    let text = "rule_files: [shipped, own.yaml]\nrules:\n  \
                memory/SwapHidesExhaustion: {severity: page, for: 7m, cooldown: 9m}\n  \
                memory/MemoryPressureFull: {cooldown: 9m}\n";
    fs::write(&config, text).expect("written");
    let config = config.to_str().expect("UTF-8");
    for kubernetes in [&[][..], &["--kubernetes"]] {
        let arguments = [&["--config.file", config][..], kubernetes].concat();
        let text = exported(&arguments);
        let rule = text.split("- alert: ").find(|rule| rule.starts_with("\"SwapHidesExhaustion\""));
        let rule = rule.expect("exported");
        assert!(rule.contains("for: 7m") && rule.contains("\"severity\": \"page\""), "{rule}");
        let place = format!("# Overridden in \"{config}:3\": severity, for.\n");
        assert!(text.contains(&place), "{text}");
        assert_eq!(text.matches("Overridden in").count(), 1, "cooldown is of the remedy");
        assert!(text.contains("\"Own\"") && text.contains("own.yaml"), "{text}");
        let alone = exported(&[&arguments[..], &["rules/memory.yaml"]].concat());
        assert!(!alone.contains("\"Own\""), "paths replace rule_files");
    }
    // Without the flag nothing is read but the rules.
    assert!(!exported(&[]).contains("\"severity\": \"page\""));
    let forced = export(&["--config.file", config, "--output", config, "--force"]);
    assert_eq!(forced.status.code(), Some(2), "the configuration is never overwritten");
}
