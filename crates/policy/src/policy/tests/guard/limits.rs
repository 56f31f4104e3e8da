//! Budgets, breakers and cooldowns, over reloads, modes and restarts.

use proptest::prelude::*;

use super::*;

const TWO: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: One
    expr: uma_memory_free_bytes < 10
    remedy: {steps: [{drop_caches: {}}], cooldown: 1s, breaker: {misses: 0}}
  - alert: Other
    expr: uma_memory_free_bytes < 10
    remedy: {steps: [{compact_memory: {}}], cooldown: 1s, breaker: {misses: 0}}
";

#[test]
fn all_remedies_share_one_budget() {
    let mut world = short(TWO, Mode::Enforce);
    replace_rails(&mut world, TWO, |rails| {
        rails.budget = Some(AtMost { times: 5, per: seconds(3600) });
    });
    let steps = run_in_vain(&mut world, seconds(60));
    assert_eq!(acts(&steps).len(), 5);
    assert!(holds(&steps).contains(&HoldReason::GlobalBudget));
    assert_eq!(world.value("uma_action_budget_left"), Some(0.0));
}

#[test]
fn observe_decisions_use_up_no_enforce_budget() {
    let yaml = LOW.replace("times: 1000, per: 30d", "times: 3, per: 1h");
    let mut world = short(&yaml, Mode::Observe);
    let steps = run_in_vain(&mut world, seconds(30));
    assert_eq!((acts(&steps).len(), holds(&steps).last()), (3, Some(&HoldReason::Budget)));
    world.policy.replace_rules(world.at, Mode::Enforce, &rules(&yaml));
    let steps = run_in_vain(&mut world, seconds(30));
    assert_eq!(acts(&steps).len(), 3, "its own budget, whole");
    world.policy.replace_rules(world.at, Mode::Observe, &rules(&yaml));
    assert!(acts(&run_in_vain(&mut world, seconds(30))).is_empty(), "the old one is spent");
    world.policy.replace_rules(world.at, Mode::Enforce, &rules(&yaml));
    assert!(acts(&run_in_vain(&mut world, seconds(30))).is_empty(), "and so is this one");
}

#[test]
fn a_promoted_rule_has_its_full_budget() {
    let yaml = LOW.replace("times: 1000, per: 30d", "times: 2, per: 1h");
    let mut world = short(&yaml, Mode::Observe);
    assert_eq!(acts(&run_in_vain(&mut world, seconds(30))).len(), 2);
    let promoted = rules(&yaml.replace("    remedy:", "    mode: enforce\n    remedy:"));
    world.policy.replace_rules(world.at, Mode::Observe, &promoted);
    let steps = run_in_vain(&mut world, seconds(30));
    let real = decisions(&steps).into_iter().filter(|made| made.is_act());
    assert!(real.clone().all(|made| made.mode == Mode::Enforce));
    assert_eq!(real.count(), 2);
}

#[test]
fn an_action_under_way_is_measured_although_the_mode_has_changed() {
    let mut world = short(LOW, Mode::Enforce);
    let step = world.tick();
    world.policy.replace_rules(world.at, Mode::Observe, &rules(LOW));
    world.report(&step.decisions[0], OutcomeResult::Done);
    let steps = world.run(seconds(1));
    let aim_checked = steps.iter().flat_map(|step| &step.aim_checks).count();
    assert_eq!(aim_checked, 1);
}

#[test]
fn a_rule_removed_and_restored_keeps_its_used_budget() {
    let yaml = LOW.replace("times: 1000, per: 30d", "times: 2, per: 1h");
    let mut world = short(&yaml, Mode::Enforce);
    assert_eq!(acts(&run_in_vain(&mut world, seconds(30))).len(), 2);
    world.policy.replace_rules(world.at, Mode::Enforce, &rules("groups: []"));
    world.run(seconds(1));
    world.policy.replace_rules(world.at, Mode::Enforce, &rules(&yaml));
    assert!(acts(&run_in_vain(&mut world, seconds(30))).is_empty());
}

#[test]
fn a_rule_removed_within_a_round_is_in_cooldown_when_restored() {
    let yaml = LOW
        .replace("[{drop_caches: {}}]", "[{drop_caches: {}}, {compact_memory: {}}]")
        .replace("cooldown: 1s", "cooldown: 1m");
    let mut world = short(&yaml, Mode::Enforce);
    let step = world.tick();
    world.report(&step.decisions[0], OutcomeResult::Done);
    world.policy.replace_rules(world.at, Mode::Enforce, &rules("groups: []"));
    world.tick();
    world.policy.replace_rules(world.at, Mode::Enforce, &rules(&yaml));
    let steps = run_in_vain(&mut world, seconds(50));
    assert_eq!((acts(&steps).len(), holds(&steps)), (0, vec![HoldReason::Cooldown]));
}

#[test]
fn a_reset_by_a_person_outlives_a_restart_and_forgives_only_what_was_before_it() {
    let yaml = with("breaker: {misses: 2, reset_after: 0s}");
    let held_after = |forgiven: [bool; 2]| {
        let mut world = short(&yaml, Mode::Enforce);
        let rule = RuleId { group: Arc::from("g"), alert: Arc::from("Low") };
        let missed = |ago: u64, is_forgiven: bool| PastAct {
            aim_met: Some(false),
            is_forgiven,
            ..past_act(&rule, Mode::Enforce, world.at, ago)
        };
        let acts = vec![missed(300, forgiven[0]), missed(200, forgiven[1])];
        let past = EarlierRuns { acts, ..EarlierRuns::default() };
        world.policy.resume(world.at, &past);
        holds(&[world.tick()])
    };
    assert_eq!(held_after([true, true]), []);
    assert_eq!(held_after([true, false]), [], "one miss is left");
    assert_eq!(held_after([false, false]), [HoldReason::BreakerOpen]);
}

#[test]
fn every_outcome_counts_as_an_act() {
    let why = || "no".to_owned();
    for result in [
        OutcomeResult::Done,
        OutcomeResult::NotDone(why()),
        OutcomeResult::Failed(why()),
        OutcomeResult::TimedOut,
    ] {
        let yaml = LOW.replace("times: 1000, per: 30d", "times: 2, per: 1h");
        let mut world = short(&yaml, Mode::Enforce);
        let mut count = 0;
        for _ in 0..300 {
            let step = world.tick();
            for act in step.decisions.iter().filter(|made| made.is_act()) {
                world.report(act, result.clone());
                count += 1;
            }
        }
        assert_eq!(count, 2, "{result:?}");
    }
}

#[test]
fn an_unbegun_act_is_no_miss_and_is_retried_after_a_pause() {
    let mut world = short(&with("breaker: {misses: 1}"), Mode::Enforce);
    let mut past = EarlierRuns::default();
    for _ in 0..5 {
        let step = world.run(Duration::from_millis(1500));
        assert!(!holds(&step).contains(&HoldReason::BreakerOpen), "{:?}", holds(&step));
        let acts: Vec<&DecisionRecord> =
            decisions(&step).into_iter().filter(|d| d.is_act()).collect();
        let [act] = acts.as_slice() else { panic!("{acts:?}") };
        past.acts.push(PastAct { aim_met: None, ..remembered(act) });
        let act = (*act).clone();
        world.report(&act, OutcomeResult::NotDone("the disk is full".to_owned()));
        let reported = world.tick();
        assert!(reported.aim_checks.is_empty(), "there is no effect to measure");
        assert_eq!(holds(&[reported]), [HoldReason::Cooldown]);
    }
    assert_eq!(world.policy.status(world.at).guard.breakers, []);
    world.policy =
        Policy::new(world.at, Mode::Enforce, &rules(&with("breaker: {misses: 1}")), DecisionId(99));
    world.policy.resume(world.at, &past);
    assert_eq!(world.policy.status(world.at).guard.breakers, [], "nor after a restart");
}

#[test]
fn a_rested_breaker_is_shown_as_ready_to_retry() {
    let mut world = short(&with("breaker: {misses: 1, reset_after: 10m}"), Mode::Enforce);
    let rule = RuleId { group: Arc::from("g"), alert: Arc::from("Low") };
    let missed =
        |ago| PastAct { aim_met: Some(false), ..past_act(&rule, Mode::Enforce, world.at, ago) };
    for (ago, detail) in [
        (60, "the aim was missed 1 times in a row, of 1"),
        (
            700,
            "the aim was missed 1 times in a row, of 1; 10m (reset_after) have passed, it may try \
             once more",
        ),
    ] {
        let mut policy = Policy::new(
            world.at,
            Mode::Enforce,
            &rules(&with("breaker: {misses: 1, reset_after: 10m}")),
            DecisionId(1),
        );
        policy.resume(world.at, &EarlierRuns { acts: vec![missed(ago)], ..EarlierRuns::default() });
        world.policy = policy;
        let at = world.at;
        world.policy.step(at, &[]);
        let explained =
            world.policy.explain(&rule, at, true).and_then(|explained| explained.remedy);
        let rails = explained.map(|remedy| remedy.rails).unwrap_or_default();
        let rail = rails.iter().find(|rail| rail.reason == HoldReason::BreakerOpen).unwrap();
        assert_eq!((rail.holds, rail.detail.as_str()), (ago == 60, detail));
    }
}

/// An act as the journal has it after a restart.
fn remembered(act: &DecisionRecord) -> PastAct {
    PastAct {
        id: act.id,
        rule: act.rule.clone(),
        mode: act.mode,
        step: act.step,
        is_notice: act.action.is_notice(),
        uptime_ms: act.at.timeline_ms(),
        utc: act.at.utc,
        has_ended: true,
        aim_met: Some(false),
        approved: act.approved,
        started_after: None,
        died_in: None,
        engine: None,
        takes_from_engine: false,
        fleet_action: None,
        is_forgiven: false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn restarts_and_reloads_never_exceed_a_limit(
        events in prop::collection::vec((0u8..6, 1u32..100), 30),
    ) {
        let yaml = TWO.replace("cooldown: 1s", "cooldown: 1s, at_most: {times: 3, per: 1m}");
        let mut all = rules(&yaml);
        all.guard_rails.budget = Some(AtMost { times: 4, per: seconds(90) });
        let mut world = short(&yaml, Mode::Enforce);
        world.policy = Policy::new(world.at, Mode::Enforce, &all, DecisionId(1));
        let mut done: Vec<DecisionRecord> = Vec::new();
        for (event, ticks) in events {
            match event {
                0 => {
                    let acts = done.iter().map(remembered).collect();
                    world.policy = Policy::new(world.at, Mode::Enforce, &all, DecisionId(1));
                    world.policy.resume(world.at, &EarlierRuns { acts, ..EarlierRuns::default() });
                }
                1 => drop(world.policy.replace_rules(world.at, Mode::Enforce, &all)),
                2 => drop(world.policy.replace_rules(world.at, Mode::Observe, &all)),
                _ => {}
            }
            for step in run_in_vain(&mut world, INTERVAL * ticks) {
                let real = step.decisions.into_iter().filter(|made| {
                    made.is_act() && made.mode == Mode::Enforce
                });
                done.extend(real);
            }
        }
        let at = |acts: Vec<&DecisionRecord>| -> Vec<Duration> {
            acts.into_iter().map(|act| act.at.uptime).collect()
        };
        for window in at(done.iter().collect()).windows(5) {
            prop_assert!(window[4] - window[0] >= seconds(90), "all: {window:?}");
        }
        for alert in ["One", "Other"] {
            let own = at(done.iter().filter(|act| &*act.rule.alert == alert).collect());
            for window in own.windows(4) {
                prop_assert!(window[3] - window[0] >= seconds(60), "{alert}: {window:?}");
            }
            for pair in own.windows(2) {
                prop_assert!(pair[1] - pair[0] >= seconds(1), "{alert} rests: {pair:?}");
            }
        }
    }

    #[test]
    fn a_breaker_is_as_open_after_a_restart_as_before(
        ends in prop::collection::vec(any::<bool>(), 1..12),
    ) {
        let yaml = with("breaker: {misses: 3, reset_after: 0s}");
        let mut world = short(&yaml, Mode::Enforce);
        let mut past = EarlierRuns::default();
        for helps in ends {
            let step = world.run(Duration::from_millis(1500));
            let Some(act) = decisions(&step).into_iter().find(|d| d.is_act())
            else { continue };
            past.acts.push(PastAct { aim_met: Some(helps), ..remembered(act) });
            let act = act.clone();
            world.report(&act, OutcomeResult::Done);
            world.free = Reading::Value(if helps { 50.0 } else { 5.0 });
            world.run(Duration::from_millis(300));
            world.free = Reading::Value(5.0);
        }
        let before = world.policy.status(world.at).guard.breakers.clone();
        let mut restarted = short(&yaml, Mode::Enforce);
        restarted.at = world.at;
        restarted.policy.resume(world.at, &past);
        prop_assert_eq!(&restarted.policy.status(world.at).guard.breakers, &before);
    }
}
