use super::*;
use crate::model::{Pause, Target, UndoReason};

const RULES: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 10
    remedy:
      steps: [{set_sysctl: {vm.swappiness: 10, for: 5s}}]
      cooldown: 0s
      at_most: {times: 1000, per: 30d}
";

/// Takes the first one's setting, and another.
const SECOND: &str = "
  - alert: Lower
    expr: uma_memory_free_bytes < 8
    remedy:
      steps: [{set_sysctl: {vm.swappiness: 0, vm.dirty_ratio: 5}}]
      cooldown: 0s
";

/// Lets time pass while everything that is decided ends as `result` says.
fn run(
    world: &mut World,
    time: Duration,
    result: impl Fn(&DecisionRecord) -> OutcomeResult,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..time.as_millis() / INTERVAL.as_millis() {
        let step = world.tick();
        for act in step.decisions.iter().filter(|made| made.is_act()) {
            world.report(act, result(act));
        }
        steps.push(step);
    }
    steps
}

fn done(decision: &DecisionRecord) -> OutcomeResult {
    match decision.mode {
        Mode::Enforce => OutcomeResult::Done,
        Mode::Observe => OutcomeResult::Skipped,
    }
}

fn undone(steps: &[Step]) -> Vec<(u64, UndoReason)> {
    let undo = |action: &Action| match action {
        Action::Undo { decision, why, .. } => Some((decision.0, *why)),
        _ => None,
    };
    acts(steps).into_iter().filter_map(undo).collect()
}

const SECOND_LONG: Duration = Duration::from_secs(1);

#[test]
fn a_temporary_setting_is_set_once_and_undone_when_its_alert_ends() {
    for mode in [Mode::Observe, Mode::Enforce] {
        let mut world = short(RULES, mode);
        let steps = run(&mut world, 4 * SECOND_LONG, done);
        assert_eq!((acts(&steps).len(), undone(&steps)), (1, vec![]), "{mode:?}");
        assert_eq!(holds(&steps), [HoldReason::InForce]);
        world.free = Reading::Value(100.0);
        let steps = run(&mut world, 3 * SECOND_LONG, done);
        assert_eq!(undone(&steps), [(1, UndoReason::AlertEnded)]);
        let undo = decisions(&steps)[0];
        assert_eq!((undo.mode, undo.target.to_string()), (mode, "settings vm.swappiness".into()));
        world.free = Reading::Value(5.0);
        assert_eq!(acts(&run(&mut world, SECOND_LONG, done)).len(), 1, "and anew");
    }
}

#[test]
fn a_setting_is_undone_after_its_time_and_not_repeated_for_the_same_alert() {
    let mut world = short(RULES, Mode::Enforce);
    let steps = run(&mut world, 60 * SECOND_LONG, done);
    assert_eq!((acts(&steps).len(), undone(&steps)), (2, vec![(1, UndoReason::TimedOut)]));
    world.free = Reading::Value(100.0);
    assert!(acts(&run(&mut world, SECOND_LONG, done)).is_empty());
    world.free = Reading::Value(5.0);
    assert_eq!(acts(&run(&mut world, SECOND_LONG, done)).len(), 1);
}

#[test]
fn a_setting_is_held_by_the_first_of_two_rules() {
    let yaml = format!("{RULES}{}", SECOND.trim_start_matches('\n'));
    let mut world = short(&yaml, Mode::Enforce);
    let steps = run(&mut world, 2 * SECOND_LONG, done);
    assert_eq!(acts(&steps).len(), 1);
    let held = decisions(&steps).into_iter().find(|made| &*made.rule.alert == "Lower").unwrap();
    assert_eq!(held.decision, Decision::Hold(HoldReason::SettingHeld));
    world.free = Reading::Value(9.0);
    run(&mut world, SECOND_LONG, done);
    world.free = Reading::Value(5.0);
    // Its time is over while the second one waits for it.
    let steps = run(&mut world, 5 * SECOND_LONG, done);
    assert_eq!(undone(&steps), [(1, UndoReason::TimedOut)]);
    let taken = acts(&steps).into_iter().any(|act| act.to_string().contains("vm.dirty_ratio=5"));
    assert!(taken, "the second one has it now");
}

#[test]
fn an_unset_setting_is_neither_held_nor_undone() {
    let failed = |_: &DecisionRecord| OutcomeResult::Failed("no".to_owned());
    let mut world = short(RULES, Mode::Enforce);
    let steps = run(&mut world, 10 * SECOND_LONG, failed);
    assert!(acts(&steps).len() > 2, "it is tried until its rails hold it");
    assert!(undone(&steps).is_empty());
    assert!(!holds(&steps).contains(&HoldReason::InForce));
}

#[test]
fn a_timed_out_setting_is_undone() {
    let late = |decision: &DecisionRecord| match decision.action.is_undo() {
        false => OutcomeResult::TimedOut,
        true => OutcomeResult::Done,
    };
    let mut world = short(RULES, Mode::Enforce);
    run(&mut world, SECOND_LONG, late);
    world.free = Reading::Value(100.0);
    assert_eq!(undone(&run(&mut world, SECOND_LONG, late)), [(1, UndoReason::AlertEnded)]);
}

#[test]
fn a_failed_undo_is_retried_with_back_off() {
    let stuck = |decision: &DecisionRecord| match decision.action.is_undo() {
        false => OutcomeResult::Done,
        true => OutcomeResult::Failed("read-only".to_owned()),
    };
    let mut world = short(RULES, Mode::Enforce);
    run(&mut world, SECOND_LONG, stuck);
    world.free = Reading::Value(100.0);
    // At once, then after 10, 20 and 40 s.
    assert_eq!(undone(&run(&mut world, 75 * SECOND_LONG, stuck)).len(), 4);
    world.free = Reading::Value(5.0);
    let steps = run(&mut world, 2 * SECOND_LONG, stuck);
    assert_eq!(holds(&steps), [HoldReason::InForce], "it still is");
    world.free = Reading::Value(100.0);
    assert_eq!(undone(&run(&mut world, 90 * SECOND_LONG, done)).len(), 1);
}

#[test]
fn a_setting_is_undone_despite_a_removed_rule_or_another_mode() {
    let observed = format!("{}    mode: observe\n", RULES.trim_end().to_owned() + "\n");
    for (after, mode) in [("groups: []", Mode::Enforce), (&observed, Mode::Enforce)] {
        let mut world = short(RULES, Mode::Enforce);
        run(&mut world, SECOND_LONG, done);
        world.policy.replace_rules(world.at, mode, &rules(after));
        let steps = run(&mut world, SECOND_LONG, done);
        assert_eq!(undone(&steps), [(1, UndoReason::RuleChanged)], "{after}");
        let undo = decisions(&steps).into_iter().find(|made| made.action.is_undo()).unwrap();
        assert_eq!(undo.mode, Mode::Enforce, "done, and not only reported");
    }
}

#[test]
fn a_pause_does_not_prevent_an_undo() {
    let mut world = short(RULES, Mode::Enforce);
    run(&mut world, SECOND_LONG, done);
    let pause = Pause { author: "ada".to_owned(), comment: String::new(), since: None };
    world.seen.push(Observation::Pause(Some(pause)));
    assert_eq!(undone(&run(&mut world, 10 * SECOND_LONG, done)), [(1, UndoReason::TimedOut)]);
}

#[test]
fn an_unknown_condition_keeps_a_setting_until_its_time() {
    let mut world = short(RULES, Mode::Enforce);
    run(&mut world, SECOND_LONG, done);
    world.free = Reading::Failed;
    let steps = run(&mut world, 3 * SECOND_LONG, done);
    assert!(undone(&steps).is_empty());
    let steps = run(&mut world, 3 * SECOND_LONG, done);
    assert_eq!(undone(&steps), [(1, UndoReason::TimedOut)]);
}

#[test]
fn later_steps_are_all_tried_again_while_a_setting_is_in_force() {
    let steps = "steps: [{set_sysctl: {vm.swappiness: 10}}, {compact_memory: {}}]";
    let yaml = RULES
        .replace("steps: [{set_sysctl: {vm.swappiness: 10, for: 5s}}]", steps)
        .replace("cooldown: 0s", "cooldown: 2s");
    let mut world = short(&yaml, Mode::Enforce);
    let steps = run(&mut world, 7 * SECOND_LONG, done);
    let names: Vec<&str> = acts(&steps).into_iter().map(Action::name).collect();
    assert_eq!(names, ["set_sysctl", "compact_memory", "compact_memory", "compact_memory"]);
}

#[test]
fn a_passed_step_is_retried_once_reported_as_not_done() {
    let steps = "steps: [{set_sysctl: {vm.swappiness: 10}}, {compact_memory: {}}]";
    let yaml = RULES.replace("steps: [{set_sysctl: {vm.swappiness: 10, for: 5s}}]", steps);
    let mut world = short(&yaml, Mode::Enforce);
    let set = decisions(&[world.tick()])[0].clone();
    // The rule changes while that is under way, and keeps firing: its step is passed, and the next
    // one waits for the act.
    let changed = yaml.replace("times: 1000", "times: 999");
    world.policy.replace_rules(world.at, Mode::Enforce, &rules(&changed));
    let waiting = world.run(SECOND_LONG);
    assert_eq!((acts(&waiting).len(), holds(&waiting)), (0, vec![HoldReason::Busy]));
    world.report(&set, OutcomeResult::NotDone("intent could not be written".to_owned()));
    let steps = run(&mut world, SECOND_LONG, done);
    let names: Vec<&str> = acts(&steps).into_iter().map(Action::name).collect();
    assert_eq!(names[..2], ["set_sysctl", "compact_memory"]);
}

#[test]
fn an_undo_costs_nothing_and_a_setting_without_an_aim_opens_no_breaker() {
    let yaml = RULES.replace("times: 1000, per: 30d", "times: 4, per: 1h");
    let mut world = short(&yaml, Mode::Enforce);
    let mut set = 0;
    for _ in 0..6 {
        world.free = Reading::Value(5.0);
        set += acts(&run(&mut world, SECOND_LONG, done)).len();
        world.free = Reading::Value(100.0);
        let steps = run(&mut world, SECOND_LONG, done);
        assert!(steps.iter().all(|step| step.aim_checks.is_empty()));
    }
    assert_eq!(set, 4);
    assert_eq!(world.value("uma_remedy_breaker_open{group=\"g\",rule=\"Low\"}"), Some(0.0));
}

#[test]
fn a_path_that_a_label_does_not_give_is_no_target() {
    let steps = "steps: [{throttle_readahead: {kib: 8, of: '{{ $labels.model }}'}}]";
    let yaml = RULES.replace("steps: [{set_sysctl: {vm.swappiness: 10, for: 5s}}]", steps);
    let mut world = short(&yaml, Mode::Enforce);
    assert_eq!(holds(&run(&mut world, SECOND_LONG, done)), [HoldReason::NoTarget]);
    let yaml = yaml.replace("    remedy:", "    labels: {model: /models}\n    remedy:");
    let mut world =
        short(&yaml.replace("$labels.model", "$labels.alertname | printf \"/%s\""), Mode::Enforce);
    let steps = run(&mut world, SECOND_LONG, done);
    let target = &decisions(&steps)[0].target;
    assert_eq!(*target, Target::settings(["read_ahead_kb of /Low".to_owned()]));
}
