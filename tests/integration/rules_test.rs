//! `umawarden rules test`.

mod oracle;

use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

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
