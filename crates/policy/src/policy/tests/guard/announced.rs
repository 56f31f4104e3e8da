//! Acts that go ahead unless a person denies them.

use super::*;
use crate::model::{Grade, PendingApproval};

const GOES_AHEAD: &str = "uma_remedy_goes_ahead_timestamp_seconds{group=\"g\",rule=\"Low\"}";

fn yaml() -> String {
    with("require_approval: {unless_denied_within: 1m}")
}

/// A world in which the act was announced at its first tick.
fn announced() -> (World, DecisionRecord) {
    let mut world = short(&yaml(), Mode::Enforce);
    let step = world.tick();
    let decision = step.decisions[0].clone();
    assert_eq!(decision.hold_reason(), Some(HoldReason::Announced));
    assert_eq!(decision.goes_ahead, Some(world.at.utc + seconds(60)));
    (world, decision)
}

/// What was done, or would have been.
fn done(steps: &[Step]) -> Vec<&DecisionRecord> {
    decisions(steps).into_iter().filter(|decision| decision.is_act()).collect()
}

fn announcements(steps: &[Step]) -> usize {
    let all = decisions(steps).into_iter();
    all.filter(|made| made.hold_reason() == Some(HoldReason::Announced)).count()
}

fn deny(world: &World, decision: &DecisionRecord, lasts: u64) -> Observation {
    let until = world.at.utc + seconds(lasts);
    order(world, OperatorOrder::Deny { decision: decision.id, until })
}

#[test]
fn it_is_announced_once_and_done_when_its_time_is_over() {
    let (mut world, asked) = announced();
    let due = asked.goes_ahead.unwrap();
    assert_eq!(world.value(GOES_AHEAD), Some(due.as_second() as f64));
    assert_eq!(world.value("uma_remedy_approval_pending{group=\"g\",rule=\"Low\"}"), Some(1.0));
    let steps = run_in_vain(&mut world, seconds(59));
    assert_eq!((acts(&steps).len(), announcements(&steps)), (0, 0));
    let steps = run_in_vain(&mut world, seconds(4));
    let act = done(&steps)[0];
    assert_eq!((act.approved, act.at.utc >= due), (Some(asked.id), true));
    assert_eq!((acts(&steps).len(), announcements(&steps)), (1, 1), "the next one is announced");
}

#[test]
fn a_denied_act_is_not_done_and_an_approved_one_at_once() {
    let (mut world, asked) = announced();
    world.seen.push(deny(&world, &asked, 600));
    let step = world.tick();
    assert_eq!(step.answers[0].refused, None);
    assert_eq!(step.decisions[0].hold_reason(), Some(HoldReason::Denied));
    assert_eq!(world.value(GOES_AHEAD), Some(0.0));
    let steps = run_in_vain(&mut world, seconds(598));
    assert_eq!((acts(&steps).len(), announcements(&steps)), (0, 0));
    let steps = run_in_vain(&mut world, seconds(58));
    assert_eq!((acts(&steps).len(), announcements(&steps)), (0, 1), "announced anew");
    let (mut world, asked) = announced();
    let until = world.at.utc + seconds(60);
    world.seen.push(order(&world, OperatorOrder::Approve { decision: asked.id, until }));
    assert_eq!(acts(&[world.tick()]).len(), 1);
}

#[test]
fn after_its_alert_has_ended_it_is_announced_anew() {
    let (mut world, _) = announced();
    run_in_vain(&mut world, seconds(30));
    world.free = Reading::Value(50.0);
    world.tick();
    world.free = Reading::Value(5.0);
    let steps = run_in_vain(&mut world, seconds(59));
    assert_eq!((acts(&steps).len(), announcements(&steps)), (0, 1));
    assert_eq!(acts(&run_in_vain(&mut world, seconds(2))).len(), 1);
}

#[test]
fn a_silence_and_a_pause_are_denials() {
    for is_pause in [true, false] {
        let (mut world, _) = announced();
        run_in_vain(&mut world, seconds(30));
        let pause = Pause { author: "ada".into(), comment: String::new(), since: None };
        let until = world.at.utc + seconds(10);
        world.seen.push(match is_pause {
            true => Observation::Pause(Some(pause)),
            false => {
                order(&world, OperatorOrder::Silence { id: 1, rules: RuleSelector::All, until })
            }
        });
        let mut steps = run_in_vain(&mut world, seconds(11));
        if is_pause {
            world.seen.push(Observation::Pause(None));
        }
        steps.extend(run_in_vain(&mut world, seconds(58)));
        assert_eq!((acts(&steps).len(), announcements(&steps)), (0, 1), "{is_pause}");
        assert_eq!(acts(&run_in_vain(&mut world, seconds(3))).len(), 1);
    }
}

#[test]
fn without_evidence_at_the_end_it_holds_until_that_is_back() {
    let (mut world, asked) = announced();
    run_in_vain(&mut world, seconds(50));
    world.free = Reading::Failed;
    let steps = run_in_vain(&mut world, seconds(30));
    assert!(acts(&steps).is_empty());
    assert!(holds(&steps).contains(&HoldReason::Unknown), "{:?}", holds(&steps));
    world.free = Reading::Value(5.0);
    let step = world.tick();
    assert_eq!(done(&[step])[0].approved, Some(asked.id), "it was announced long enough ago");
}

#[test]
fn a_clock_that_is_set_forward_shortens_nothing() {
    for jump in [40, 100, 10_000] {
        let (mut world, _) = announced();
        run_in_vain(&mut world, seconds(10));
        world.at.utc += seconds(jump);
        let steps = run_in_vain(&mut world, seconds(49));
        assert!(acts(&steps).is_empty(), "{jump}: ten more seconds are people's");
    }
}

#[test]
fn what_is_not_enforced_is_only_reported_and_calls_nobody() {
    let mut world = short(&yaml(), Mode::Enforce);
    replace_rails(&mut world, &yaml(), |rails| {
        rails.enforced = [Grade::Reboot].into_iter().collect();
    });
    for mut world in [world, short(&yaml(), Mode::Observe)] {
        let step = world.tick();
        let held = &step.decisions[0];
        assert_eq!(held.mode, Mode::Observe);
        assert!(held.announced().unwrap().starts_with("would "), "{held:?}");
        assert_eq!(world.value(GOES_AHEAD), Some(0.0));
        let pending = "uma_remedy_approval_pending{group=\"g\",rule=\"Low\"}";
        assert_eq!(world.value(pending), Some(0.0));
        let steps = run_in_vain(&mut world, seconds(90));
        assert!(done(&steps).iter().all(|act| act.mode == Mode::Observe));
    }
}

/// The announcement as the journal of this boot has it.
fn past(asked: &DecisionRecord, uptime: Duration, commands: Vec<OperatorCommand>) -> EarlierRuns {
    let asked = PendingApproval {
        decision: asked.id,
        rule: asked.rule.clone(),
        mode: asked.mode,
        step: asked.step,
        action: asked.action.clone(),
        target: asked.target.clone(),
        since: asked.at.utc,
        goes_ahead: Some(Moment { utc: asked.goes_ahead.unwrap(), uptime: uptime + seconds(60) }),
    };
    EarlierRuns { asked: vec![asked], commands, ..EarlierRuns::default() }
}

#[test]
fn a_restart_keeps_the_time_of_the_announcement() {
    let (mut world, asked) = announced();
    let began = world.at.uptime;
    run_in_vain(&mut world, seconds(20));
    let restarted = |past: &EarlierRuns| {
        let mut again = short(&yaml(), Mode::Enforce);
        again.at = world.at;
        again.policy.resume(again.at, past);
        again
    };
    let mut again = restarted(&past(&asked, began, Vec::new()));
    let steps = run_in_vain(&mut again, seconds(38));
    assert_eq!((acts(&steps).len(), announcements(&steps)), (0, 0));
    let steps = run_in_vain(&mut again, seconds(3));
    assert_eq!(done(&steps)[0].approved, Some(asked.id));
    // A denial of before the restart counts, long after the announcement itself has lapsed.
    let Observation::Operator(denial) = deny(&world, &asked, 900) else { unreachable!() };
    let mut later = restarted(&past(&asked, began, vec![denial]));
    let steps = run_in_vain(&mut later, seconds(890));
    assert_eq!((acts(&steps).len(), announcements(&steps)), (0, 0));
    // What was used before the restart is announced anew.
    let act =
        PastAct { approved: Some(asked.id), ..past_act(&asked.rule, asked.mode, world.at, 9) };
    let used = EarlierRuns { acts: vec![act], ..past(&asked, began, Vec::new()) };
    let steps = run_in_vain(&mut restarted(&used), seconds(50));
    assert_eq!((acts(&steps).len(), announcements(&steps)), (0, 1));
}

#[test]
fn a_restart_between_the_notice_and_the_announced_step_starts_no_cooldown() {
    let yaml = yaml().replace("[{drop_caches: {}}]", "[{notify: {message: m}}, {drop_caches: {}}]");
    let yaml = yaml.replace("cooldown: 1s", "cooldown: 1h");
    let mut world = short(&yaml, Mode::Enforce);
    let steps = run_in_vain(&mut world, seconds(5));
    let made = decisions(&steps);
    let asked = made.iter().find(|made| made.hold_reason() == Some(HoldReason::Announced));
    let asked = (*asked.unwrap()).clone();
    let notice = PastAct {
        id: done(&steps)[0].id,
        aim_met: Some(false),
        is_notice: true,
        ..past_act(&asked.rule, asked.mode, world.at, 5)
    };
    let past = EarlierRuns { acts: vec![notice], ..past(&asked, asked.at.uptime, Vec::new()) };
    let mut again = short(&yaml, Mode::Enforce);
    again.at = world.at;
    again.policy.resume(again.at, &past);
    let steps = run_in_vain(&mut again, seconds(60));
    let steps = done(&steps).into_iter();
    let act = steps.clone().find(|act| !act.action.is_notice()).unwrap();
    assert_eq!(act.approved, Some(asked.id));
    assert!(act.at.utc >= asked.goes_ahead.unwrap());
}
