use std::time::Duration;

use promql_rules::template::Template;

use crate::config::mistake::SourceText;
use crate::config::rules::parse_rules;
use crate::policy::rule::RemedyStep;

pub(in crate::config::rules) fn template(text: &str) -> Template {
    Template::parse(text).unwrap()
}

/// The only step of a rule about an engine, or its mistakes.
pub(in crate::config::rules) fn step_of(step: &str) -> Result<RemedyStep, String> {
    let rule = "alert: A, expr: uma_memory_free_bytes < 1, labels: {engine: a}";
    let remedy = format!("remedy: {{steps: [{{{step}}}]}}");
    let text = format!("groups: [{{name: g, rules: [{{{rule}, {remedy}}}]}}]\n");
    let rules = parse_rules(&[SourceText::new("rules.yaml", text)], Duration::from_secs(1));
    let rules = rules.map_err(|mistakes| mistakes.to_string())?;
    Ok(rules.groups[0].rules[0].remedy.as_ref().unwrap().steps[0].clone())
}

#[test]
fn stop_engine_is_the_last_step_and_its_grace_fits_the_action_timeout() {
    let steps = |steps: &str| {
        let text = format!(
            "groups: [{{name: a, rules: [{{alert: A, expr: uma_memory_free_bytes < 1, \
             remedy: {{steps: [{steps}]}}}}]}}]"
        );
        let source = SourceText::new("a.yaml", text);
        parse_rules(&[source], Duration::from_secs(1)).map_err(|mistakes| mistakes.to_string())
    };
    for (written, grace_ms) in [
        ("stop_engine: {grace: 5s}", 5_000),
        ("stop_engine: {grace: 500ms}", 500),
        ("stop_engine: {grace: 0s}", 0),
        ("stop_engine: {}", 2_000),
    ] {
        let rules =
            steps(&format!("{{drop_caches: {{}}}}, {{{written}}}, {{notify: {{message: a}}}}"));
        let rules = rules.unwrap();
        let remedy = rules.groups[0].rules[0].remedy.as_ref().unwrap();
        assert_eq!(remedy.steps[1], RemedyStep::StopEngine { engine: None, grace_ms }, "{written}");
    }
    for (written, expected) in [
        ("{drop_caches: pagecache}", "write drop_caches: {what: pagecache}"),
        ("{drop_caches: all}", "drop_caches must be a mapping"),
        ("{stop_engine: {grace: 21s}}", "20s"),
        ("{stop_engine: {grace: soon}}", "grace"),
        ("{stop_engine: 5s}", "0s sends no SIGTERM"),
        ("stop_engine", "stop_engine: {}"),
        ("{stop_engine: {name: vllm}}", "engine names one whose restarts are deferred"),
        ("{stop_engine: {engine: 5}}, {drop_caches: {}}", "comes after stop_engine"),
        ("{stop_engine: {grce: 1s}}", "did you mean"),
        ("{stop_engine: {}}, {drop_caches: {}}", "drop_caches comes after stop_engine"),
        ("{stop_engine: {}}, {stop_engine: {}}", "stop_engine comes after stop_engine"),
    ] {
        let error = steps(written).unwrap_err();
        assert!(error.contains(expected), "{written}: {error}");
    }
}
