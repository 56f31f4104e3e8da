//! Alert templates against promtool's.

use std::fmt::Write as _;

use promql_rules::template::Template;

use super::{promtool, run};

const TEMPLATES: [&str; 22] = [
    "{{ $value }}",
    "{{ .Value | humanize }}",
    "{{ $value | humanize1024 }}B",
    "{{ $value | humanizeDuration }}",
    "{{ $value | humanizePercentage }}",
    "{{ humanizeTimestamp $value }}",
    "{{ printf \"%.2f\" $value }}",
    "{{ printf \"%f|%e|%g|%v\" $value $value $value $value }}",
    "{{ printf \"%8.1f|%-8.1f|%08.1f|%+.1f\" $value $value $value $value }}",
    "{{ printf \"%.3g|%.3e|%.0f\" $value $value $value }}",
    "{{ printf \"%d\" $value }}",
    "{{ printf \"%s\" $value }}",
    "{{ printf \"%q %s %v %5s|%-5s|\" \"a\" \"b\" \"c\" \"d\" \"e\" }}",
    "{{ printf \"%.1f%%\" $value }}",
    "{{ $labels.zone | toUpper | title }}",
    "{{ $labels.none }}|{{ .Labels.zone }}|{{ $labels }}",
    "a  {{- $value -}}  b",
    "{{ \"x y_z\" | title }} {{ toLower \"ABC\" }}",
    "{{ reReplaceAll \"(d)m\" \"$1-\" $labels.zone }}",
    "{{/* note */}}{{ 1e3 }} {{ 0.5 }} {{ `raw` }}",
    "{{ printf \"%v\" (humanize $value) }}",
    "{{ print $labels.zone \"x\" }}",
];

#[test]
fn promtool_renders_templates_as_we_do() {
    let Some(promtool) = promtool() else { return };
    let values = [
        0.0,
        1.0,
        -1.5,
        0.1,
        1e6,
        123_456.0,
        1_234_567.0,
        1e9,
        0.000_012,
        1023.0,
        1024.0,
        -2048.0,
        3661.5,
        90_061.0,
        59.999_9,
        1_435_065_584.128,
        0.012_345,
        2.5,
        1e-9,
        987_654_321.0,
    ];
    let labels = [("zone".into(), "dma".into())];
    let mut rules = "groups:\n- name: g\n  rules:\n".to_owned();
    let mut tests = "rule_files: [rules.yaml]\nevaluation_interval: 1m\ntests:\n\
                     - interval: 1m\n  alert_rule_test:\n"
        .to_owned();
    for (number, value) in values.iter().enumerate() {
        let expr = format!("label_replace(vector({value:?}), 'zone', 'dma', '', '')");
        let _ = writeln!(rules, "  - alert: A{number}\n    expr: \"{expr}\"\n    annotations:");
        let _ = writeln!(tests, "  - alertname: A{number}\n    eval_time: 1m\n    exp_alerts:");
        let _ = writeln!(tests, "    - exp_labels: {{zone: dma}}\n      exp_annotations:");
        for (number, text) in TEMPLATES.iter().enumerate() {
            let template = Template::parse(text).expect(text);
            let quoted = |text: &str| serde_json::to_string(text).expect("a string");
            let _ = writeln!(rules, "      t{number}: {}", quoted(text));
            let rendered = quoted(&template.render(&labels, *value));
            let _ = writeln!(tests, "        t{number}: {rendered}");
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("rules.yaml"), rules).expect("the rules are written");
    if let Err(report) = run(&promtool, folder.path(), "test", &tests) {
        panic!("{}", report.chars().take(8000).collect::<String>());
    }
}
