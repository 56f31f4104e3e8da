//! Which steps are carried out, by their grades.

use proptest::prelude::*;

use super::*;
use crate::model::Grade;

/// A rule whose remedy has these steps.
fn yaml(steps: &[&str], rails: &str) -> String {
    let steps: String = steps.iter().map(|step| format!("      - {step}\n")).collect();
    format!(
        "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 10
    remedy:
      aim: uma_memory_free_bytes > 20
      steps:
{steps}      cooldown: 5s
{rails}"
    )
}

/// A node short of memory that has that rule, and enforces these grades.
fn world(steps: &[&str], rails: &str, grades: &[Grade]) -> World {
    let yaml = yaml(steps, rails);
    let mut world = World::new(&yaml, Mode::Enforce);
    let mut set = rules(&yaml);
    set.guard_rails.enforced = grades.iter().copied().collect();
    world.policy.replace_rules(world.at, Mode::Enforce, &set);
    world.free = Reading::Value(5.0);
    world
}

/// Step, mode, and the reason of a hold.
fn said(decisions: &[DecisionRecord]) -> Vec<(usize, Mode, Option<HoldReason>)> {
    let one = |made: &DecisionRecord| (made.step, made.mode, made.hold_reason());
    decisions.iter().map(one).collect()
}

const DROP: &str = "drop_caches: {what: pagecache}";
const NOTIFY: &str = "notify: {message: short}";
const UNENFORCED: Option<HoldReason> = Some(HoldReason::NotEnforced);

#[test]
fn a_step_that_is_not_enforced_is_reported_and_the_next_one_acts() {
    let mut world = world(&[DROP, "compact_memory: {}", NOTIFY], "", &[Grade::Notice]);
    let step = world.tick();
    let enforce = Mode::Enforce;
    let expected = [(0, enforce, UNENFORCED), (1, enforce, UNENFORCED), (2, enforce, None)];
    assert_eq!(said(&step.decisions), expected);
    let text = step.decisions[0].unenforced();
    let would = "would drop_caches pagecache, grade drop is not enforced";
    assert_eq!(text.as_deref(), Some(would));
    assert_eq!(step.decisions[2].unenforced(), None);
    // The round ends as any does, and the next begins after the cooldown.
    world.report(&step.decisions[2], OutcomeResult::Done);
    let later = world.run(Duration::from_secs(4));
    assert_eq!(
        said(&later.iter().flat_map(|step| step.decisions.clone()).collect::<Vec<_>>()),
        [(0, enforce, Some(HoldReason::Cooldown))]
    );
    let later = world.run(Duration::from_secs(2));
    let acts: Vec<_> = decisions(&later).into_iter().filter(|made| made.is_act()).collect();
    assert_eq!((acts.len(), acts[0].step), (1, 2));
}

#[test]
fn steps_behind_the_last_enforced_one_end_the_round() {
    let mut world = world(&[NOTIFY, DROP], "", &[Grade::Notice]);
    let first = world.tick();
    assert_eq!(said(&first.decisions), [(0, Mode::Enforce, None)]);
    world.report(&first.decisions[0], OutcomeResult::Done);
    let later = world.run(Duration::from_secs(3));
    let later: Vec<DecisionRecord> = decisions(&later).into_iter().cloned().collect();
    let cooldown = Some(HoldReason::Cooldown);
    let expected = [(1, Mode::Enforce, UNENFORCED), (0, Mode::Enforce, cooldown)];
    assert_eq!(said(&later), expected);
}

#[test]
fn nothing_is_passed_over_while_something_else_holds_the_remedy() {
    let mut world = world(&[DROP, NOTIFY], "", &[Grade::Notice]);
    world.free = Reading::Value(30.0);
    assert!(world.run(Duration::from_secs(1)).iter().all(|step| step.decisions.is_empty()));
    world.seen.push(Observation::Pause(Some(crate::model::Pause {
        author: "a".into(),
        comment: "b".into(),
        since: None,
    })));
    world.free = Reading::Value(5.0);
    let held = said(&world.tick().decisions);
    assert_eq!(held, [(0, Mode::Enforce, Some(HoldReason::Paused))]);
}

#[test]
fn a_remedy_without_an_enforced_step_observes() {
    let mut world = world(&[DROP, "compact_memory: {}"], "", &[Grade::Evict, Grade::Reboot]);
    let step = world.tick();
    assert_eq!(said(&step.decisions), [(0, Mode::Observe, None)]);
    assert_eq!(world.policy.status(world.at).rules[0].mode, Mode::Observe);
}

#[test]
fn nobody_is_asked_to_approve_of_what_is_not_enforced() {
    let approval = "      require_approval: true\n";
    let mut world = world(&[DROP, NOTIFY], approval, &[Grade::Notice]);
    let step = world.tick();
    assert_eq!(said(&step.decisions), [(0, Mode::Enforce, UNENFORCED), (1, Mode::Enforce, None)]);
    assert!(world.policy.status(world.at).guard.approvals.is_empty());
}

#[test]
fn a_reload_that_takes_a_grade_away_is_obeyed_at_once() {
    let mut world = world(&[DROP, NOTIFY], "", &[Grade::Drop, Grade::Notice]);
    let first = world.tick();
    assert_eq!(said(&first.decisions), [(0, Mode::Enforce, None)]);
    world.report(&first.decisions[0], OutcomeResult::Done);
    let mut fewer = rules(&yaml(&[DROP, NOTIFY], ""));
    fewer.guard_rails.enforced = [Grade::Notice].into_iter().collect();
    world.policy.replace_rules(world.at, Mode::Enforce, &fewer);
    let mut later = Vec::new();
    for _ in 0..100 {
        let step = world.tick();
        let acts = step.decisions.iter().filter(|made| made.is_act());
        acts.for_each(|made| world.report(made, OutcomeResult::Done));
        later.extend(step.decisions);
    }
    let acts = later.iter().filter(|made| made.is_act());
    assert!(acts.clone().all(|made| made.action.grade() == Grade::Notice) && acts.count() > 1);
    assert!(later.iter().any(|made| made.step == 0 && made.hold_reason() == UNENFORCED));
}

fn step() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        DROP,
        "compact_memory: {}",
        NOTIFY,
        "set_sysctl: {vm.swappiness: 1, for: 2s}",
        "reclaim: {cgroup: /a, bytes: 1MiB}",
        "empty_cache: {engine: llm}",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_step_of_another_grade_is_ever_an_act(
        steps in prop::collection::vec(step(), 1..5),
        grades in prop::collection::btree_set(prop::sample::select(Grade::ALL.to_vec()), 0..6),
        missed in any::<bool>(),
    ) {
        let settings = steps.iter().filter(|step| step.starts_with("set_sysctl")).count();
        prop_assume!(settings <= 1);
        let grades: Vec<Grade> = grades.into_iter().collect();
        let mut world = world(&steps, "", &grades);
        for _ in 0..200 {
            let step = world.tick();
            for made in &step.decisions {
                let acts = made.is_act() && made.mode == Mode::Enforce;
                if acts && !made.action.is_undo() {
                    prop_assert!(grades.contains(&made.action.grade()), "{made:?}");
                }
                if made.is_act() {
                    let result = match made.mode {
                        Mode::Observe => OutcomeResult::Skipped,
                        Mode::Enforce => OutcomeResult::Done,
                    };
                    world.report(made, result);
                }
            }
            if !missed {
                let is_well = world.at.uptime.as_secs().is_multiple_of(3);
                world.free = Reading::Value(if is_well { 30.0 } else { 5.0 });
            }
        }
    }
}
