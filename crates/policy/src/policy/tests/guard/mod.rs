//! Guard rails from outside: observations and orders in, suppressed acts out.

mod announced;
mod limits;

use super::*;
use crate::config::guard_rails::default_guard_rails;
use crate::model::{EarlierRuns, OperatorCommand, OperatorOrder, Pause, RuleSelector, Target};
use crate::policy::guard::{AtMost, GuardRails, MaintenanceWindow, WrittenWindow};

const LOW: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 10
    remedy:
      steps: [{drop_caches: {}}]
      cooldown: 1s
      at_most: {times: 1000, per: 30d}
";

fn with(own: &str) -> String {
    format!("{}\n      {own}\n", LOW.trim_end())
}

fn replace_rails(world: &mut World, yaml: &str, change: impl FnOnce(&mut GuardRails)) {
    let mut rules = rules(yaml);
    rules.guard_rails = default_guard_rails();
    change(&mut rules.guard_rails);
    world.policy.replace_rules(world.at, Mode::Enforce, &rules);
}

fn order(world: &World, order: OperatorOrder) -> Observation {
    let (author, comment) = ("ada".to_owned(), String::new());
    Observation::Operator(OperatorCommand { at: world.at, author, comment, order, refused: None })
}

/// Lets time pass while every action ends at once and changes nothing.
fn run_in_vain(world: &mut World, time: Duration) -> Vec<Step> {
    let ticks = time.as_millis() / INTERVAL.as_millis();
    let mut steps = Vec::new();
    for _ in 0..ticks {
        let step = world.tick();
        for act in step.decisions.iter().filter(|decision| decision.is_act()) {
            let skipped = act.mode == Mode::Observe;
            let result = if skipped { OutcomeResult::Skipped } else { OutcomeResult::Done };
            world.report(act, result);
        }
        steps.push(step);
    }
    steps
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn a_pause_holds_everything_and_says_so_until_it_ends() {
    let mut world = short(LOW, Mode::Enforce);
    let pause = Pause { author: "ada".to_owned(), comment: String::new(), since: None };
    world.seen.push(Observation::Pause(Some(pause.clone())));
    let steps = run_in_vain(&mut world, seconds(5));
    assert_eq!((acts(&steps).len(), holds(&steps)), (0, vec![HoldReason::Paused]));
    assert_eq!(world.state(0), RuleState::Firing, "alerts go on");
    assert_eq!(world.value("uma_paused"), Some(1.0));
    assert_eq!(world.policy.status(world.at).guard.pause, Some(pause));
    world.seen.push(Observation::Pause(None));
    assert_eq!(acts(&[world.tick()]).len(), 1);
    assert_eq!(world.value("uma_paused"), Some(0.0));
}

#[test]
fn a_pause_shows_also_where_there_are_no_rules() {
    let mut world = World::new("groups: []", Mode::Observe);
    let pause = Pause { author: String::new(), comment: String::new(), since: None };
    world.seen.push(Observation::Pause(Some(pause)));
    world.tick();
    assert_eq!(world.value("uma_paused"), Some(1.0));
}

#[test]
fn nothing_is_done_before_earlier_runs_are_known() {
    let mut world = short(LOW, Mode::Enforce);
    world.policy.await_past();
    let steps = run_in_vain(&mut world, seconds(5));
    assert_eq!((acts(&steps).len(), holds(&steps)), (0, vec![HoldReason::JournalUnreadable]));
    assert_eq!(world.value("uma_guard_rails_restored"), Some(0.0));
    world.seen.push(Observation::Past(Box::default()));
    assert_eq!(acts(&[world.tick()]).len(), 1);
    assert_eq!(world.value("uma_guard_rails_restored"), Some(1.0));
}

#[test]
fn a_lost_journal_holds_for_the_longest_limit() {
    let budget = LOW.replace("at_most: {times: 1000, per: 30d}", "at_most: {times: 3, per: 2h}");
    let mut world = short(&budget, Mode::Enforce);
    let lost_before_ms = Some(world.at.timeline_ms() - 7_190_000);
    world.policy.resume(world.at, &EarlierRuns { lost_before_ms, ..EarlierRuns::default() });
    let steps = run_in_vain(&mut world, seconds(9));
    assert_eq!((acts(&steps).len(), holds(&steps)), (0, vec![HoldReason::JournalUnreadable]));
    assert!(!acts(&run_in_vain(&mut world, seconds(2))).is_empty());
}

#[test]
fn a_silence_holds_the_remedy_and_not_the_alert_and_ends_by_the_wall_clock() {
    let mut world = short(LOW, Mode::Enforce);
    let until = world.at.utc + seconds(60);
    let silence = OperatorOrder::Silence { id: 4, rules: RuleSelector::All, until };
    world.seen.push(order(&world, silence));
    let steps = run_in_vain(&mut world, seconds(59));
    assert_eq!((acts(&steps).len(), holds(&steps)), (0, vec![HoldReason::Silenced]));
    assert_eq!(world.value("uma_silences"), Some(1.0));
    assert_eq!(world.policy.status(world.at).guard.silences[0].author, "ada");
    assert!(!acts(&run_in_vain(&mut world, seconds(2))).is_empty());
    assert_eq!(world.value("uma_silences"), Some(0.0));
}

const INHIBITED: &str = "
groups:
- name: first
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 10
    remedy:
      steps: [{drop_caches: {}}]
      inhibited_by: [Backup]
- name: second
  interval: 100ms
  rules:
  - alert: Backup
    expr: uma_memory_available_bytes > 0
";

fn show(world: &mut World, name: &str, value: Reading<f64>) {
    let series = SeriesKey::new(name, &[]);
    world.seen.push(Observation::Sample { series, value });
}

#[test]
fn a_rule_that_fires_or_is_unknown_inhibits_those_that_name_it_also_in_the_same_step() {
    for (inhibitor, holds_back) in
        [(Reading::Value(1.0), true), (Reading::Failed, true), (Reading::Value(0.0), false)]
    {
        let mut world = short(INHIBITED, Mode::Enforce);
        show(&mut world, "uma_memory_available_bytes", inhibitor);
        let step = world.tick();
        let expected = if holds_back { vec![HoldReason::Inhibited] } else { vec![] };
        assert_eq!(holds(std::slice::from_ref(&step)), expected, "{inhibitor:?}");
        assert_eq!(acts(&[step]).is_empty(), holds_back, "{inhibitor:?}");
    }
}

#[test]
fn an_alert_that_inhibits_everything_leaves_its_own_remedy_alone() {
    let both = INHIBITED.replace("      inhibited_by: [Backup]\n", "")
        + "    remedy:\n      steps: [{compact_memory: {}}]\n";
    let mut world = short(&both, Mode::Enforce);
    replace_rails(&mut world, &both, |rails| rails.inhibited_by = vec![Arc::from("Backup")]);
    show(&mut world, "uma_memory_available_bytes", Reading::Value(1.0));
    let step = world.tick();
    assert_eq!(holds(std::slice::from_ref(&step)), [HoldReason::Inhibited]);
    assert_eq!(acts(&[step]), [&Action::CompactMemory]);
}

fn window(name: &str, from: u16, to: u16) -> MaintenanceWindow {
    let written = WrittenWindow {
        name: Arc::from(name),
        days: Default::default(),
        from,
        to,
        time_zone: "UTC".to_owned(),
    };
    MaintenanceWindow::try_from(written).unwrap()
}

#[test]
fn windows_allow_or_forbid_and_unknown_ones_hold() {
    // The world begins at midnight.
    for (own, window_of, expected) in [
        ("only_in: [w]", window("w", 0, 60), true),
        ("only_in: [w]", window("w", 60, 120), false),
        ("never_in: [w]", window("w", 0, 60), false),
        ("never_in: [w]", window("w", 60, 120), true),
        ("only_in: [w]", window("other", 0, 60), false),
        ("never_in: [w]", window("other", 60, 120), false),
    ] {
        let yaml = with(own);
        let mut world = short(&yaml, Mode::Enforce);
        replace_rails(&mut world, &yaml, |rails| {
            rails.maintenance_windows = vec![window_of.clone()];
        });
        let step = world.tick();
        let maintenance = if expected { vec![] } else { vec![HoldReason::Maintenance] };
        assert_eq!(holds(&[step]), maintenance, "{own} {window_of:?}");
    }
}

#[test]
fn everything_can_be_kept_out_of_a_window() {
    let mut world = short(LOW, Mode::Enforce);
    replace_rails(&mut world, LOW, |rails| {
        rails.maintenance_windows = vec![window("day", 0, 1)];
        rails.never_in = vec![Arc::from("day")];
    });
    let steps = run_in_vain(&mut world, seconds(59));
    assert_eq!((acts(&steps).len(), holds(&steps)), (0, vec![HoldReason::Maintenance]));
    assert!(world.policy.status(world.at).guard.windows[0].is_open);
    assert!(!acts(&run_in_vain(&mut world, seconds(2))).is_empty());
}

#[test]
fn three_vain_rounds_open_the_breaker_until_its_time_or_a_reset() {
    let yaml = with("breaker: {misses: 3, reset_after: 10m}");
    let mut world = short(&yaml, Mode::Enforce);
    let open = "uma_remedy_breaker_open{group=\"g\",rule=\"Low\"}";
    let steps = run_in_vain(&mut world, seconds(60));
    assert_eq!(acts(&steps).len(), 3);
    assert_eq!(holds(&steps).last(), Some(&HoldReason::BreakerOpen));
    assert_eq!(world.value(open), Some(1.0));
    let breaker = world.policy.status(world.at).guard.breakers[0].clone();
    assert!(breaker.is_open && breaker.misses == 3, "{breaker:?}");

    let steps = run_in_vain(&mut world, seconds(600));
    assert_eq!(acts(&steps).len(), 1, "one try after ten minutes");
    assert_eq!(world.value(open), Some(1.0));

    let rules = RuleSelector::Alert(Arc::from("Low"));
    world.seen.push(order(&world, OperatorOrder::ResetBreaker { rules: rules.clone() }));
    let step = world.tick();
    assert_eq!(step.answers[0].refused, None);
    assert_eq!(acts(std::slice::from_ref(&step)).len(), 1, "a person said so");
    world.report(&step.decisions[0], OutcomeResult::Done);
    let steps = run_in_vain(&mut world, seconds(60));
    assert_eq!(acts(&steps).len(), 2, "and it has three tries again");
}

#[test]
fn an_aim_that_is_met_forgives_the_misses_before() {
    let yaml = with("breaker: {misses: 2, reset_after: 0s}");
    let mut world = short(&yaml, Mode::Enforce);
    for round in 0..4 {
        for left in [5.0, 50.0] {
            world.free = Reading::Value(5.0);
            let steps = world.run(Duration::from_millis(1500));
            let act = decisions(&steps).into_iter().find(|made| made.is_act());
            let act = act.unwrap_or_else(|| panic!("stopped in round {round}: {steps:?}"));
            world.report(act, OutcomeResult::Done);
            world.free = Reading::Value(left);
            world.tick();
        }
    }
}

fn approval_of(steps: &[Step]) -> Option<DecisionId> {
    let held = decisions(steps).into_iter().rev();
    let mut held = held.filter(|made| made.hold_reason() == Some(HoldReason::Approval));
    held.next().map(|decision| decision.id)
}

#[test]
fn approval_is_requested_once_and_allows_one_act() {
    let yaml = with("require_approval: {expires: 10m}");
    let mut world = short(&yaml, Mode::Enforce);
    let pending = "uma_remedy_approval_pending{group=\"g\",rule=\"Low\"}";
    let steps = run_in_vain(&mut world, seconds(300));
    assert_eq!((acts(&steps).len(), holds(&steps)), (0, vec![HoldReason::Approval]));
    assert_eq!(world.value(pending), Some(1.0));
    let decision = approval_of(&steps).unwrap();
    let until = world.at.utc + seconds(60);
    world.seen.push(order(&world, OperatorOrder::Approve { decision, until }));
    let step = world.tick();
    assert_eq!(step.answers[0].refused, None);
    assert_eq!(step.decisions[0].approved, Some(decision));
    let act = step.decisions[0].clone();
    assert_eq!((act.decision, act.target), (Decision::Act, Target::Node));
    assert_eq!(world.value(pending), Some(0.0));
    world.report(&step.decisions[0], OutcomeResult::Done);
    let steps = run_in_vain(&mut world, seconds(30));
    assert_eq!(acts(&steps).len(), 0, "used up");
    assert_ne!(approval_of(&steps), None, "asked for again");
    world.seen.push(order(&world, OperatorOrder::Approve { decision, until }));
    let step = world.tick();
    assert!(step.answers[0].refused.is_some(), "{:?}", step.answers);
    assert!(acts(&[step]).is_empty());
}

#[test]
fn an_approved_undone_act_is_done_later_without_a_new_approval() {
    let yaml = with("require_approval: {expires: 10m}");
    let mut world = short(&yaml, Mode::Enforce);
    let steps = run_in_vain(&mut world, seconds(5));
    let decision = approval_of(&steps).unwrap();
    let until = world.at.utc + seconds(60);
    world.seen.push(order(&world, OperatorOrder::Approve { decision, until }));
    let act = world.tick().decisions[0].clone();
    assert_eq!((act.decision, act.approved), (Decision::Act, Some(decision)));
    world.report(&act, OutcomeResult::NotDone("paused by ada".to_owned()));
    let acts_of = |step: Step| {
        let mut made = step.decisions.into_iter();
        made.find(|decision| decision.is_act())
    };
    let again = (0..20).find_map(|_| acts_of(world.tick())).unwrap();
    assert_eq!(again.approved, Some(decision), "after its cooldown");
    world.report(&again, OutcomeResult::Done);
    let steps = run_in_vain(&mut world, seconds(30));
    assert_eq!(acts(&steps).len(), 0, "now it is used up");
    assert_ne!(approval_of(&steps), None);
}

#[test]
fn an_approval_that_was_given_before_a_restart_is_used_once_after_it() {
    let yaml = with("require_approval: true");
    let mut world = short(&yaml, Mode::Enforce);
    let steps = run_in_vain(&mut world, seconds(2));
    let held = decisions(&steps)[0].clone();
    let asked = crate::model::PendingApproval {
        decision: held.id,
        rule: held.rule.clone(),
        mode: held.mode,
        step: held.step,
        action: held.action.clone(),
        target: held.target.clone(),
        since: held.at.utc,
        goes_ahead: None,
    };
    let approve = OperatorOrder::Approve { decision: held.id, until: world.at.utc + seconds(600) };
    let Observation::Operator(command) = order(&world, approve) else { unreachable!() };
    let mut past =
        EarlierRuns { asked: vec![asked], commands: vec![command], ..EarlierRuns::default() };
    let restarted = |past: &EarlierRuns| {
        let mut world = short(&yaml, Mode::Enforce);
        world.at.utc += seconds(10);
        world.policy.resume(world.at, past);
        world.tick()
    };
    assert_eq!(restarted(&past).decisions[0].approved, Some(held.id));
    let shorter = OperatorOrder::Approve { decision: held.id, until: world.at.utc + seconds(5) };
    let Observation::Operator(shorter) = order(&world, shorter) else { unreachable!() };
    let commands = vec![past.commands[0].clone(), shorter];
    let lapsed = EarlierRuns { commands, ..past.clone() };
    assert!(acts(&[restarted(&lapsed)]).is_empty(), "the later approval counts, and has lapsed");
    past.acts
        .push(PastAct { approved: Some(held.id), ..past_act(&held.rule, held.mode, world.at, 60) });
    assert!(acts(&[restarted(&past)]).is_empty(), "used before the restart");
}

#[test]
fn notices_need_no_approval_and_cost_nothing_of_the_budget_of_all() {
    let yaml = with("require_approval: true").replace("drop_caches: {}", "notify: {message: m}");
    let mut world = short(&yaml, Mode::Enforce);
    replace_rails(&mut world, &yaml, |rails| {
        rails.budget = Some(AtMost { times: 1, per: seconds(3600) });
    });
    let steps = run_in_vain(&mut world, seconds(10));
    assert!(acts(&steps).len() > 3);
    assert_eq!(world.value("uma_action_budget_left"), Some(1.0));
}

const RECLAIM: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 10
    labels: {cgroup: CGROUP, container: prod}
    remedy:
      steps: [{reclaim: {cgroup: '{{ $labels.cgroup }}', bytes: 1GiB}}]
      require_approval: true
";

#[test]
fn a_target_is_what_the_alert_names_if_it_can_be_one_and_is_not_protected() {
    let protect = |pattern: &str| crate::policy::guard::Protected {
        units: vec![crate::policy::guard::Glob::try_from(pattern.to_owned()).unwrap()],
        ..Default::default()
    };
    for (cgroup, pattern, expected) in [
        ("/system.slice/a.service", "b*", HoldReason::Approval),
        ("/system.slice/a.service", "a*", HoldReason::Protected),
        ("/system.slice", "a*", HoldReason::Protected),
        ("/system.slice/../a.service", "b*", HoldReason::NoTarget),
        ("''", "b*", HoldReason::NoTarget),
        ("a.service", "b*", HoldReason::NoTarget),
    ] {
        let yaml = RECLAIM.replace("CGROUP", cgroup);
        let mut world = short(&yaml, Mode::Enforce);
        replace_rails(&mut world, &yaml, |rails| rails.protect = protect(pattern));
        let step = world.tick();
        assert_eq!(holds(std::slice::from_ref(&step)), [expected], "{cgroup} {pattern}");
        let target = Target::Cgroup { path: Arc::from(cgroup.trim_matches('\'')) };
        assert_eq!(step.decisions[0].target, target);
    }
}
