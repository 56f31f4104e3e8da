use super::*;
use crate::model::{AlertState, NodeHealthLevel};

const LOW: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 10
    for: 300ms
    keep_firing_for: 500ms
    labels: {severity: warning}
    annotations: {summary: '{{ $value }} left'}
";

#[test]
fn an_alert_fires_when_its_condition_has_held_for_long_enough() {
    let mut world = World::new(LOW, Mode::Observe);
    world.run(Duration::from_secs(1));
    assert_eq!(world.state(0), RuleState::Inactive);
    world.free = Reading::Value(5.0);
    let pending = world.tick();
    assert_eq!(pending.alerts[0].to, AlertState::Pending);
    world.run(Duration::from_millis(200));
    assert_eq!(world.state(0), RuleState::Pending);
    let firing = world.tick();
    let change = &firing.alerts[0];
    assert_eq!((change.from, change.to), (AlertState::Pending, AlertState::Firing));
    assert_eq!(&*change.labels["alertname"], "Low");
    assert_eq!(&*change.labels["severity"], "warning");
    assert_eq!(change.annotations["summary"], "5 left");
}

#[test]
fn a_dip_shorter_than_for_never_fires() {
    let mut world = World::new(LOW, Mode::Observe);
    for _ in 0..20 {
        world.free = Reading::Value(5.0);
        world.run(Duration::from_millis(300));
        world.free = Reading::Value(50.0);
        let steps = world.run(Duration::from_millis(100));
        assert!(steps.iter().flat_map(|step| &step.alerts).all(|a| a.to != AlertState::Firing));
    }
}

#[test]
fn a_firing_alert_keeps_firing_for_a_while_and_then_ends() {
    let mut world = World::new(LOW, Mode::Observe);
    world.free = Reading::Value(5.0);
    world.run(Duration::from_millis(500));
    world.free = Reading::Value(50.0);
    world.run(Duration::from_millis(500));
    assert_eq!(world.state(0), RuleState::Firing);
    world.run(Duration::from_millis(100));
    assert_eq!(world.state(0), RuleState::Inactive);
}

#[test]
fn a_failing_source_neither_advances_nor_resolves_and_is_reported() {
    let mut world = World::new(LOW, Mode::Observe);
    world.free = Reading::Value(5.0);
    world.run(Duration::from_millis(200));
    assert_eq!(world.state(0), RuleState::Pending);
    world.free = Reading::Failed;
    let steps = world.run(Duration::from_secs(5));
    assert_eq!(world.state(0), RuleState::Unknown);
    assert!(steps.iter().all(|step| step.alerts.is_empty()));
    let doubts: Vec<_> = steps.iter().flat_map(|step| &step.doubts).collect();
    assert_eq!(doubts.len(), 1, "said once, and not at every evaluation");
    assert!(doubts[0].reasons[0].contains(FREE), "{doubts:?}");

    world.free = Reading::Value(5.0);
    let back = world.tick();
    assert!(back.doubts[0].reasons.is_empty());
    assert_eq!(world.state(0), RuleState::Pending, "the five seconds do not count");
    world.run(Duration::from_millis(200));
    assert_eq!(world.state(0), RuleState::Firing);
    world.free = Reading::Failed;
    let steps = world.run(Duration::from_secs(5));
    assert!(steps.iter().all(|step| step.alerts.is_empty()), "still firing");
}

#[test]
fn rule_states_are_series_that_start_at_zero_and_rules_are_counted_by_state() {
    let mut world = World::new(LOW, Mode::Observe);
    world.tick();
    let state =
        |state: &str| format!("uma_rule_state{{group=\"g\",rule=\"Low\",state=\"{state}\"}}");
    let rules = |state: &str| format!("uma_rules{{state=\"{state}\"}}");
    let mut values = |names: [String; 4]| names.map(|name| world.value(&name).unwrap());
    let names = [state("pending"), state("firing"), rules("inactive"), rules("firing")];
    assert_eq!(values(names.clone()), [0.0, 0.0, 1.0, 0.0]);
    world.free = Reading::Value(5.0);
    world.run(Duration::from_secs(1));
    let mut values = |names: [String; 4]| names.map(|name| world.value(&name).unwrap());
    assert_eq!(values(names), [0.0, 1.0, 0.0, 1.0]);
}

#[test]
fn the_level_of_the_node_is_a_series() {
    let yaml = LOW.replace("severity: warning", "severity: critical");
    let mut world = World::new(&yaml, Mode::Observe);
    world.tick();
    let levels = |world: &mut World| {
        let series = |level: NodeHealthLevel| format!("uma_node_health{{level=\"{level}\"}}");
        NodeHealthLevel::ALL.map(|level| world.value(&series(level)).unwrap())
    };
    assert_eq!(levels(&mut world), [1.0, 0.0, 0.0, 0.0]);
    world.free = Reading::Value(5.0);
    world.run(Duration::from_secs(1));
    assert_eq!(levels(&mut world), [0.0, 0.0, 0.0, 1.0], "critical");
}

/// A second rule reads what the first one did: a counter that appears at 1 has increased by 1.
#[test]
fn the_first_event_of_a_counter_that_appears_late_is_an_increase() {
    let rules = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 10
    remedy:
      steps: [notify: {message: low}]
      cooldown: 1h
  - alert: Decided
    expr: increase(uma_decisions_total{rule=\"Low\"}[10s]) > 0.5
  - alert: Held
    expr: increase(uma_holds_total[10s]) > 0.5
  - alert: Done
    expr: increase(uma_actions_total{action=\"notify\"}[10s]) > 0.5
";
    let mut world = World::new(rules, Mode::Observe);
    world.run(Duration::from_secs(20));
    assert_eq!(world.value("uma_decisions_total{decision=\"act\",rule=\"Low\"}"), None);
    world.free = Reading::Value(5.0);
    let step = world.tick();
    assert_eq!(step.decisions.len(), 1);
    let act = step.decisions[0].clone();
    world.report(&act, OutcomeResult::Skipped);
    let fired = |steps: &[Step], rule: &str| {
        let changes = steps.iter().flat_map(|step| &step.alerts);
        changes.filter(|to| &*to.rule.alert == rule && to.to == AlertState::Firing).count()
    };
    let steps = world.run(Duration::from_secs(3));
    assert_eq!(fired(&steps, "Decided"), 2, "to act, and then to hold");
    assert_eq!(["Held", "Done"].map(|rule| fired(&steps, rule)), [1, 1]);
}

#[test]
fn a_reload_keeps_the_alerts_of_rules_that_stay_and_ends_those_of_others() {
    let mut world = World::new(LOW, Mode::Observe);
    world.free = Reading::Value(5.0);
    world.run(Duration::from_secs(1));
    let ended = world.policy.replace_rules(world.at, Mode::Observe, &rules(LOW));
    assert!(ended.is_empty());
    assert_eq!(world.state(0), RuleState::Firing);

    let changed = LOW.replace("< 10", "< 9");
    let ended = world.policy.replace_rules(world.at, Mode::Observe, &rules(&changed));
    assert_eq!(ended.len(), 1);
    assert_eq!((ended[0].from, ended[0].to), (AlertState::Firing, AlertState::Inactive));
    world.tick();
    assert_eq!(world.state(0), RuleState::Pending);

    let ended = world.policy.replace_rules(world.at, Mode::Observe, &rules("groups: []"));
    assert_eq!(ended.len(), 1);
    world.tick();
    let gone = "uma_rule_state{group=\"g\",rule=\"Low\",state=\"firing\"}";
    assert_eq!(world.value(gone), None);
}

#[test]
fn an_alert_that_ends_has_no_value_since_its_expression_yields_none() {
    let mut world = World::new(LOW, Mode::Observe);
    world.free = Reading::Value(5.0);
    let mut changes: Vec<_> = world.run(Duration::from_secs(1));
    world.free = Reading::Value(50.0);
    changes.extend(world.run(Duration::from_secs(1)));
    let changes: Vec<_> = changes.iter().flat_map(|step| &step.alerts).collect();
    let values: Vec<_> = changes.iter().map(|change| (change.to, change.value)).collect();
    assert_eq!(
        values,
        [
            (AlertState::Pending, Reading::Value(5.0)),
            (AlertState::Firing, Reading::Value(5.0)),
            (AlertState::Inactive, Reading::Unsupported),
        ]
    );
    let json = serde_json::to_value(changes[2]).unwrap();
    assert_eq!(json.get("value"), None, "{json}");
    assert_eq!(&serde_json::from_value::<crate::model::AlertChange>(json).unwrap(), changes[2]);

    world.free = Reading::Value(5.0);
    world.run(Duration::from_secs(1));
    let ended = world.policy.replace_rules(world.at, Mode::Observe, &rules("groups: []"));
    assert_eq!(ended[0].value, Reading::Unsupported, "its rule is gone");
}
