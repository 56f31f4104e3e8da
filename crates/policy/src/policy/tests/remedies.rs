use proptest::prelude::*;

use super::*;
use crate::model::{CacheKind, EarlierRuns};

const LADDER: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 10
    remedy:
      aim: uma_memory_free_bytes > 20
      steps:
      - drop_caches: {what: pagecache}
      - compact_memory: {}
      cooldown: 5s
      at_most: {times: 3, per: 1h}
";

const DROP: Action = Action::DropCaches { what: CacheKind::PageCache, sync: false };

#[test]
fn an_act_names_its_rule_mode_step_and_the_values_that_led_to_it() {
    let mut world = World::new(LADDER, Mode::Enforce);
    world.free = Reading::Value(5.0);
    let step = world.tick();
    let [decision] = step.decisions.as_slice() else { panic!("{step:#?}") };
    assert_eq!(decision.rule.to_string(), "g/Low");
    assert_eq!(decision.mode, Mode::Enforce);
    assert_eq!(decision.decision, Decision::Act);
    assert_eq!((decision.step, &decision.action), (0, &DROP));
    assert_eq!(decision.because[0].series, FREE);
    assert_eq!(decision.because[0].value, Reading::Value(5.0));
}

#[test]
fn the_next_step_comes_only_if_the_aim_is_missed_after_measuring_again() {
    let mut world = World::new(LADDER, Mode::Enforce);
    world.free = Reading::Value(5.0);
    let first = world.tick();
    assert!(world.tick().decisions.is_empty(), "one action at a time");
    world.report(&first.decisions[0], OutcomeResult::Done);
    let measured_before_the_end = world.policy.step(world.at, &std::mem::take(&mut world.seen));
    assert!(measured_before_the_end.aim_checks.is_empty(), "needs a reading from after it");
    world.free = Reading::Value(15.0);
    let second = world.tick();
    let aim_check = &second.aim_checks[0];
    assert_eq!(aim_check.aim_met, Some(false));
    assert_eq!(aim_check.before[0].value, Reading::Value(5.0));
    assert_eq!(aim_check.after[0].value, Reading::Value(15.0));
    assert!(second.decisions.is_empty(), "15 is no longer under 10");

    world.free = Reading::Value(5.0);
    let rest = world.run(Duration::from_secs(4));
    assert_eq!(holds(&rest), [HoldReason::Cooldown]);
}

#[test]
fn a_ladder_goes_on_to_its_last_step_and_says_that_it_is_exhausted() {
    let mut world = World::new(LADDER, Mode::Enforce);
    world.free = Reading::Value(5.0);
    let first = world.tick();
    world.report(&first.decisions[0], OutcomeResult::Failed("EROFS".to_owned()));
    let second = world.tick();
    assert_eq!(acts(std::slice::from_ref(&second)), [&Action::CompactMemory]);
    let decision = second.decisions.iter().find(|d| d.is_act()).unwrap();
    world.report(decision, OutcomeResult::Done);
    let third = world.tick();
    assert_eq!(third.aim_checks[0].aim_met, Some(false));
    assert_eq!(holds(&[third]), [HoldReason::StepsExhausted, HoldReason::Cooldown]);
}

#[test]
fn an_aim_that_is_met_ends_the_round() {
    let mut world = World::new(LADDER, Mode::Enforce);
    world.free = Reading::Value(5.0);
    let first = world.tick();
    world.report(&first.decisions[0], OutcomeResult::Done);
    world.free = Reading::Value(50.0);
    let steps = world.run(Duration::from_secs(10));
    assert_eq!(steps[0].aim_checks[0].aim_met, Some(true));
    assert!(acts(&steps).is_empty());
}

#[test]
fn observe_mode_decides_the_same_and_goes_no_further_than_the_first_step() {
    let mut world = World::new(LADDER, Mode::Observe);
    world.free = Reading::Value(5.0);
    let first = world.tick();
    assert_eq!(first.decisions[0].mode, Mode::Observe);
    world.report(&first.decisions[0], OutcomeResult::Skipped);
    let steps = world.run(Duration::from_secs(4));
    assert!(acts(&steps).is_empty());
    assert!(steps.iter().all(|step| step.aim_checks.is_empty()), "nothing was done");
    assert_eq!(holds(&steps), [HoldReason::Cooldown]);
    let steps = world.run(Duration::from_secs(2));
    assert_eq!(acts(&steps), [&DROP], "it would try again after the cooldown");
}

#[test]
fn a_rule_back_in_a_mode_reports_its_hold_again() {
    let mut world = World::new(LADDER, Mode::Enforce);
    world.free = Reading::Value(5.0);
    let first = world.tick();
    world.report(&first.decisions[0], OutcomeResult::Skipped);
    assert_eq!(holds(&world.run(Duration::from_secs(1))), [HoldReason::Cooldown]);
    world.policy.replace_rules(world.at, Mode::Observe, &rules(LADDER));
    world.run(Duration::from_secs(1));
    world.policy.replace_rules(world.at, Mode::Enforce, &rules(LADDER));
    assert_eq!(holds(&world.run(Duration::from_secs(1))), [HoldReason::Cooldown]);
}

#[test]
fn a_rules_own_mode_wins_over_the_nodes() {
    let own = LADDER.replace("    remedy:", "    mode: enforce\n    remedy:");
    let mut world = World::new(&own, Mode::Observe);
    world.free = Reading::Value(5.0);
    assert_eq!(world.tick().decisions[0].mode, Mode::Enforce);
}

#[test]
fn a_failing_source_holds_the_remedy_of_a_firing_rule() {
    let mut world = World::new(LADDER, Mode::Enforce);
    world.free = Reading::Value(5.0);
    let first = world.tick();
    world.report(&first.decisions[0], OutcomeResult::Done);
    world.free = Reading::Failed;
    let steps = world.run(Duration::from_secs(60));
    assert!(acts(&steps).is_empty());
    assert!(holds(&steps).contains(&HoldReason::Unknown), "{:?}", holds(&steps));
    let unjudged = steps.iter().flat_map(|step| &step.aim_checks).next().unwrap();
    assert_eq!(unjudged.aim_met, None, "reported as unknown, and not as missed");
}

#[test]
fn two_rules_do_not_act_at_once() {
    let second = "
  - alert: Lower
    expr: uma_memory_free_bytes < 8
    remedy:
      steps:
      - compact_memory: {}
";
    let mut world = World::new(&format!("{}{}", LADDER.trim_end(), second), Mode::Enforce);
    world.free = Reading::Value(5.0);
    let step = world.tick();
    assert_eq!(acts(std::slice::from_ref(&step)), [&DROP]);
    assert_eq!(holds(std::slice::from_ref(&step)), [HoldReason::Busy]);
    let first = step.decisions.iter().find(|d| d.is_act()).unwrap();
    world.report(first, OutcomeResult::Done);
    world.free = Reading::Value(7.0);
    let steps = world.run(Duration::from_millis(300));
    assert_eq!(acts(&steps).len(), 1, "one after the other");
}

#[test]
fn a_missing_outcome_does_not_block_for_ever() {
    let mut world = World::new(LADDER, Mode::Enforce);
    world.free = Reading::Value(5.0);
    world.tick();
    let steps = world.run(Duration::from_secs(16 * 60));
    assert!(!acts(&steps).is_empty());
}

#[test]
fn a_reload_resets_neither_cooldown_nor_budget() {
    let mut world = World::new(LADDER, Mode::Enforce);
    world.free = Reading::Value(5.0);
    let first = world.tick();
    world.report(&first.decisions[0], OutcomeResult::Done);
    world.free = Reading::Value(50.0);
    world.tick();
    world.free = Reading::Value(5.0);
    let changed = rules(&LADDER.replace("< 10", "< 11").replace("times: 3", "times: 1"));
    world.policy.replace_rules(world.at, Mode::Enforce, &changed);
    let steps = world.run(Duration::from_secs(60));
    assert!(acts(&steps).is_empty());
    assert_eq!(holds(&steps), [HoldReason::Cooldown, HoldReason::Budget]);
}

#[test]
fn a_restart_resets_neither_cooldown_nor_budget() {
    let acted = |mode, seconds: &[u64]| {
        let rule = rules(LADDER).groups[0].rules[0].id.clone();
        let mut world = World::new(LADDER, Mode::Enforce);
        let acts = seconds.iter().map(|ago| past_act(&rule, mode, world.at, *ago));
        let past = EarlierRuns { acts: acts.collect(), ..EarlierRuns::default() };
        world.policy.resume(world.at, &past);
        world.free = Reading::Value(5.0);
        let steps = world.run(Duration::from_secs(10));
        (acts_of(&steps), holds(&steps))
    };
    assert_eq!(acted(Mode::Enforce, &[]), (1, vec![]));
    assert_eq!(acted(Mode::Enforce, &[60]), (1, vec![]));
    assert_eq!(acted(Mode::Enforce, &[2]), (1, vec![HoldReason::Cooldown]));
    assert_eq!(acted(Mode::Enforce, &[900, 600, 60]), (0, vec![HoldReason::Budget]));
    assert_eq!(acted(Mode::Observe, &[900, 600, 60, 2]), (1, vec![]), "nothing was done");
    assert_eq!(acted(Mode::Enforce, &[9000, 8000, 7000]), (1, vec![]), "long before this boot");
}

fn acts_of(steps: &[Step]) -> usize {
    acts(steps).len()
}

#[test]
fn a_notice_waits_for_nobody() {
    let second = "
  - alert: Notice
    expr: uma_memory_free_bytes < 8
    remedy:
      steps:
      - notify: {message: '{{ $value }} left'}
      cooldown: 1h
";
    let mut world = World::new(&format!("{}{}", LADDER.trim_end(), second), Mode::Enforce);
    world.free = Reading::Value(5.0);
    let step = world.tick();
    let acts = acts(std::slice::from_ref(&step));
    assert_eq!(acts.len(), 2, "{acts:?}");
}

fn outcome() -> impl Strategy<Value = Option<OutcomeResult>> {
    prop_oneof![
        4 => Just(Some(OutcomeResult::Done)),
        2 => Just(Some(OutcomeResult::Skipped)),
        1 => Just(Some(OutcomeResult::Failed("no".to_owned()))),
        1 => Just(Some(OutcomeResult::NotDone("no".to_owned()))),
        1 => Just(Some(OutcomeResult::TimedOut)),
        1 => Just(None),
    ]
}

fn reading() -> impl Strategy<Value = Reading<f64>> {
    prop_oneof![
        6 => (0.0..40.0f64).prop_map(Reading::Value),
        1 => Just(Reading::Failed),
        1 => Just(Reading::Unsupported),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn never_more_acts_than_the_budget_in_any_window(
        events in prop::collection::vec((reading(), outcome(), 1u32..300), 40),
    ) {
        let mut world = World::new(LADDER, Mode::Enforce);
        let mut acts: Vec<Duration> = Vec::new();
        for (free, outcome, ticks) in events {
            world.free = free;
            for _ in 0..ticks {
                let step = world.tick();
                prop_assert!(step.decisions.iter().all(|d| free == Reading::Failed
                    || free == Reading::Unsupported || d.because[0].value == free));
                for decision in step.decisions.iter().filter(|d| d.is_act()) {
                    prop_assert!(free.value().is_some(), "acted without evidence");
                    acts.push(world.at.uptime);
                    if let Some(result) = outcome.clone() {
                        world.report(decision, result);
                    }
                }
            }
        }
        for window in acts.windows(4) {
            prop_assert!(window[3] - window[0] >= Duration::from_secs(3600), "{window:?}");
        }
    }
}

const NO_AIM: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 10
    keep_firing_for: 10m
    remedy:
      steps:
      - drop_caches: {what: pagecache}
      cooldown: 1s
";

#[test]
fn an_alert_that_only_keeps_firing_is_no_reason_to_act() {
    let mut world = World::new(NO_AIM, Mode::Enforce);
    world.free = Reading::Value(5.0);
    let first = world.tick();
    world.report(&first.decisions[0], OutcomeResult::Done);
    world.free = Reading::Value(50.0);
    let steps = world.run(Duration::from_secs(60));
    assert_eq!(world.state(0), RuleState::Firing);
    assert!(acts(&steps).is_empty(), "the condition is over");
    assert_eq!(holds(&steps), [HoldReason::Cooldown, HoldReason::AimMet]);
}

#[test]
fn a_round_that_is_held_until_its_aim_is_met_begins_anew() {
    let other = "
  rules:
  - alert: Lower
    expr: uma_memory_free_bytes < 8
    remedy:
      steps:
      - compact_memory: {}
";
    let ladder = LADDER.replace("    remedy:", "    keep_firing_for: 10m\n    remedy:");
    let both = ladder.replace("\n  rules:\n", other);
    let mut world = World::new(&both, Mode::Enforce);
    world.free = Reading::Value(9.0);
    let first = world.tick();
    assert_eq!(acts(std::slice::from_ref(&first)), [&DROP]);
    world.report(&first.decisions[0], OutcomeResult::Done);
    world.free = Reading::Value(5.0);
    let second = world.tick();
    assert_eq!(acts(std::slice::from_ref(&second)), [&Action::CompactMemory], "the other rule's");
    assert_eq!(holds(std::slice::from_ref(&second)), [HoldReason::Busy]);
    let other = second.decisions.iter().find(|d| d.is_act()).unwrap();
    world.report(other, OutcomeResult::Done);
    world.free = Reading::Value(50.0);
    let steps = world.run(Duration::from_secs(1));
    assert_eq!(holds(&steps), [HoldReason::AimMet, HoldReason::Cooldown]);
    world.free = Reading::Value(9.0);
    let steps = world.run(Duration::from_secs(6));
    assert_eq!(acts(&steps), [&DROP], "the first step comes first");
}

#[test]
fn a_flapping_rule_does_not_report_each_hold() {
    let mut world = World::new(LADDER, Mode::Enforce);
    world.free = Reading::Value(5.0);
    let first = world.tick();
    world.report(&first.decisions[0], OutcomeResult::Done);
    let mut steps = Vec::new();
    for _ in 0..3000 {
        world.free = Reading::Value(50.0);
        steps.push(world.tick());
        world.free = Reading::Value(5.0);
        let step = world.tick();
        for act in step.decisions.iter().filter(|decision| decision.is_act()) {
            world.report(act, OutcomeResult::Done);
        }
        steps.push(step);
    }
    let count = decisions(&steps).len();
    assert!(count < 40, "{count} decisions in ten minutes");
    assert!(holds(&steps).contains(&HoldReason::Budget));
}

const OF_ONE: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Down
    expr: uma_scrape_collector_success == 0
    remedy:
      aim: absent(uma_scrape_collector_success == 0) and on() uma_mode >= 0
      steps: [drop_caches: {what: pagecache}]
  - alert: Sum
    expr: sum(uma_scrape_collector_success) < 3 and on() uma_mode{mode=\"observe\"} >= 0
    remedy:
      steps: [compact_memory: {}]
";

fn named(evidence: &[crate::model::Evidence]) -> Vec<&str> {
    evidence.iter().map(|evidence| evidence.series.as_str()).collect()
}

#[test]
fn a_decision_names_the_series_that_led_to_it_and_is_measured_by_the_same() {
    let mut world = World::new(OF_ONE, Mode::Enforce);
    let source = |source: Source, error: Option<&str>| {
        Observation::Readings(Readings {
            source,
            schema: Arc::new(Schema { series: Vec::new() }),
            values: Vec::new(),
            took: Duration::ZERO,
            error: error.map(Arc::from),
        })
    };
    world.seen.extend([source(Source::Numa, None), source(Source::Pressure, Some("gone"))]);
    let step = world.tick();
    let [down, sum] = step.decisions.as_slice() else { panic!("{step:#?}") };
    let pressure = "uma_scrape_collector_success{collector=\"pressure\"}";
    let modes = ["uma_mode{mode=\"observe\"}", "uma_mode{mode=\"enforce\"}"];
    let because = named(&down.because);
    assert_eq!(
        because.iter().filter(|series| !modes.contains(series)).collect::<Vec<_>>(),
        [&pressure]
    );
    let because = named(&sum.because);
    assert_eq!(
        because.iter().filter(|series| series.starts_with("uma_scrape_collector_success")).count(),
        3
    );
    assert!(because.contains(&modes[0]) && !because.contains(&modes[1]), "{because:?}");

    world.report(down, OutcomeResult::Done);
    world.seen.push(source(Source::Pressure, None));
    let measured = world.run(Duration::from_millis(200));
    let aim_check = measured.iter().find_map(|step| step.aim_checks.first()).unwrap();
    assert_eq!(aim_check.aim_met, Some(true));
    assert_eq!(named(&aim_check.before), named(&aim_check.after));
    let value = |evidence: &[crate::model::Evidence]| {
        evidence.iter().find(|evidence| evidence.series == pressure).map(|found| found.value)
    };
    assert_eq!(value(&aim_check.before), Some(Reading::Value(0.0)));
    assert_eq!(value(&aim_check.after), Some(Reading::Value(1.0)));
}

#[test]
fn missing_series_come_first_in_unknown_decisions() {
    let rule = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_mode{mode=\"enforce\"} == 1 and on() uma_memory_free_bytes < 10
    remedy:
      steps: [drop_caches: {what: pagecache}]
";
    let mut world = World::new(rule, Mode::Enforce);
    world.free = Reading::Value(5.0);
    let act = world.tick();
    world.report(&act.decisions[0], OutcomeResult::Skipped);
    world.free = Reading::Failed;
    let steps = world.run(Duration::from_secs(600));
    let unknown = Decision::Hold(HoldReason::Unknown);
    let hold = *decisions(&steps).iter().find(|hold| hold.decision == unknown).unwrap();
    assert_eq!((hold.because[0].series.as_str(), hold.because[0].value), (FREE, Reading::Failed));
}

#[test]
fn nothing_is_judged_by_readings_from_before_a_suspend() {
    let mut world = World::new(
        "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Full
    expr: uma_memory_free_bytes < 200
    remedy:
      aim: uma_memory_free_bytes > 50
      steps: [drop_caches: {}]
      cooldown: 0s
",
        Mode::Enforce,
    );
    world.run(Duration::from_secs(1));
    let asleep = Duration::from_secs(3_600);
    world.at.uptime += asleep;
    world.at.utc += asleep;
    // The machine says first that it is awake; memory is read some milliseconds later.
    let step = world.policy.step(world.at, &[record(7, 0, "PM: suspend exit")]);
    assert_eq!(step.decisions, Vec::new());
    assert_eq!(step.alerts, Vec::new());
    let steps = world.run(Duration::from_secs(1));
    assert!(acts(&steps).is_empty(), "the aim was met all the time");
}
