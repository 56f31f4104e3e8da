//! Containers that die on a machine of 24 GiB, as the policy sees them.

mod for_start;
mod gang;
mod memory;
mod of_user;
mod watched;
mod world;

use std::time::Duration;

use crate::model::{
    DecisionId, DecisionRecord, EarlierRuns, EnginePhase, Event, EventKind, HoldReason, Mode,
    Observation, OnRequest, OperatorCommand, OperatorOrder, OutcomeResult, PastAct, Pause,
    ProgramEvent, Reading, RestartState, RuleId, RuleSelector, WorkloadEnd, WorkloadHealth,
    WorkloadState,
};
use crate::policy::Policy;
use crate::policy::guard::{Glob, Protected};
use crate::policy::rule::RuleSet;
use world::{GIB, RestartWorld, engine_in, id};

#[test]
fn a_dead_engine_waits_for_memory_and_is_started_once() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    assert_eq!(world.state("vllm").0, RestartState::Running);
    world.free = 5 * GIB;
    world.dies("vllm");
    world.run(20);
    assert_eq!(world.holds(), [HoldReason::Memory]);
    let (state, reason) = world.state("vllm");
    assert_eq!(state, RestartState::Waiting);
    assert!(reason.contains("killed for memory") && reason.contains("8.0 GiB needed"), "{reason}");
    assert!(world.value("uma_restart_waiting_seconds{engine=\"vllm\"}").unwrap() > 18.0);
    world.free = 20 * GIB;
    let (_, took) = world.until_start(5).unwrap();
    assert!(took <= Duration::from_secs(1), "{took:?}");
    let act = world.decisions.last().unwrap().clone();
    assert_eq!(act.rule.to_string(), "restarts/vllm");
    assert!(act.because.iter().any(|evidence| evidence.series == "uma_memory_free_bytes"));
    assert_eq!(world.until_start(200), None, "once");
    assert_eq!(world.state("vllm").0, RestartState::Running);
    let ready = "uma_restarts_total{engine=\"vllm\",outcome=\"ready\"}";
    assert_eq!(world.value(ready), Some(1.0));
    assert_eq!(world.aim_checks.len(), 1);
    assert_eq!(world.aim_checks[0].aim_met, Some(true));
    let states: Vec<_> = world
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Program(ProgramEvent::EngineRestart { to, container, .. }) => {
                assert_eq!(container.as_deref(), Some(&*id("vllm")));
                Some(*to)
            }
            _ => None,
        })
        .collect();
    let (running, starting) = (RestartState::Running, RestartState::Starting);
    assert_eq!(states, [starting, running, RestartState::Waiting, starting, running]);
    assert_eq!(world.value("uma_events_total{event=\"engine_restart\"}"), Some(5.0));
}

#[test]
fn the_back_off_grows_with_each_death_until_the_restart_is_given_up() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.dies("vllm");
    let mut waits = Vec::new();
    while let Some((_, took)) = world.until_start(60) {
        waits.push(took.as_secs());
        world.tick();
        world.dies("vllm");
    }
    assert_eq!(waits, [0, 4, 8, 16, 20]);
    assert_eq!(world.state("vllm").0, RestartState::GivenUp);
    assert_eq!(world.value("uma_restart_deaths_in_a_row{engine=\"vllm\"}"), Some(5.0));
    assert_eq!(world.value("uma_restarts_total{engine=\"vllm\",outcome=\"died\"}"), Some(5.0));
    let (back_off, open) = (HoldReason::BackOff, HoldReason::BreakerOpen);
    assert_eq!(world.holds(), [back_off, back_off, back_off, back_off, open]);
    let breakers = world.policy.status(world.at).guard.breakers.clone();
    assert!(breakers[0].is_open && breakers[0].rule.to_string() == "restarts/vllm");
    // A person says that it may go on.
    let rule = RuleId { group: "restarts".into(), alert: "vllm".into() };
    world.seen.push(Observation::Operator(OperatorCommand {
        at: world.at,
        author: "amal".to_owned(),
        comment: String::new(),
        order: OperatorOrder::ResetBreaker { rules: RuleSelector::Rule(rule) },
        refused: None,
    }));
    assert!(world.until_start(2).is_some());
}

#[test]
fn a_successful_manual_start_ends_a_given_up_restart() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.of("vllm").limits.give_up_after = 1;
    world.dies("vllm");
    world.until_start(5).unwrap();
    world.tick();
    world.dies("vllm");
    world.run(60);
    assert_eq!(world.state("vllm").0, RestartState::GivenUp);
    let act = world.aim_checks.last().unwrap().decision;
    world.starts("vllm");
    // One that dies before it is ready proves nothing.
    world.run(10);
    world.dies("vllm");
    world.run(10);
    assert_eq!(world.state("vllm").0, RestartState::GivenUp);
    world.starts("vllm");
    world.run(61);
    assert_eq!(world.state("vllm").0, RestartState::Running);
    let last = world.aim_checks.last().unwrap();
    assert_eq!((last.decision, last.aim_met), (act, Some(true)), "so that the journal knows");
    world.dies("vllm");
    assert!(world.until_start(2).is_some());
}

#[test]
fn a_successful_manual_start_is_recorded_for_the_last_start() {
    let begun = |world: &mut RestartWorld| {
        world.dies("vllm");
        world.until_start(5).unwrap();
        world.tick();
        world.dies("vllm");
        world.run(1);
        world.aim_checks.last().unwrap().decision
    };
    let last_check = |world: &RestartWorld| {
        let last = world.aim_checks.last().unwrap();
        (last.decision, last.aim_met)
    };
    // The next start came too late: another client was faster.
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    let act = begun(&mut world);
    let is_start = |made: &DecisionRecord| made.is_act();
    let started = loop {
        if let Some(made) = world.tick().decisions.iter().find(|made| is_start(made)) {
            break made.clone();
        }
    };
    world.starts("vllm");
    world.report(&started, OutcomeResult::NotDone("another client has started it".to_owned()));
    world.run(70);
    assert_ne!(started.id, act);
    assert_eq!(last_check(&world), (act, Some(true)));
    // Docker has not reported it for a while.
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.of("vllm").limits.give_up_after = 1;
    let act = begun(&mut world);
    let gone = std::mem::take(&mut world.held);
    world.run(2);
    world.held = gone;
    world.run(2);
    world.starts("vllm");
    world.run(70);
    assert_eq!(last_check(&world), (act, Some(true)));
}

#[test]
fn a_death_in_another_phase_counts_as_the_first() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.of("vllm").limits.give_up_after = 2;
    world.dies("vllm");
    world.until_start(5).unwrap();
    world.tick();
    world.dies("vllm");
    world.until_start(10).unwrap();
    // It is ready for a while, and dies then.
    world.run(70);
    world.dies("vllm");
    assert!(world.until_start(10).is_some(), "it died ready: a first time");
    let died: Vec<_> = world.aim_checks.iter().map(|one| one.died_in).collect();
    assert_eq!(died, [Some(EnginePhase::Starting), Some(EnginePhase::Ready)]);
    world.run(70);
    world.dies("vllm");
    world.run(30);
    assert_eq!(world.state("vllm").0, RestartState::GivenUp);
}

#[test]
fn three_dead_engines_are_started_one_by_one() {
    let mut world = RestartWorld::with(Mode::Enforce, &["a", "b", "c"]);
    for name in ["c", "a", "b"] {
        world.dies(name);
        world.tick();
        assert_eq!(world.decisions.iter().filter(|made| made.is_act()).count(), 1);
    }
    // The first was started, without an executor it shows soon that it was not.
    world.decisions.clear();
    let mut world = RestartWorld::with(Mode::Enforce, &["a", "b", "c"]);
    ["a", "b", "c"].iter().for_each(|name| world.dies(name));
    let (first, _) = world.until_start(2).unwrap();
    assert_eq!(world.until_start(30), None, "{first} is not ready yet");
    assert!(world.state("b").1.contains("waits until a is ready or has failed"));
    // Its supervisor says that it is ready.
    let WorkloadState::Running { health, .. } = &mut world.of("a").state else { panic!() };
    *health = Some(WorkloadHealth::Healthy);
    let (second, took) = world.until_start(5).unwrap();
    assert!(took <= Duration::from_secs(1));
    // This one dies, and the next one's turn has come.
    world.run(10);
    world.dies(&second);
    let (third, _) = world.until_start(2).unwrap();
    let mut all = [first, second, third];
    all.sort();
    assert_eq!(all, ["a", "b", "c"]);
}

#[test]
fn an_engine_that_is_never_ready_delays_others_only_for_its_time() {
    let mut world = RestartWorld::with(Mode::Enforce, &["a", "b"]);
    for name in ["a", "b"] {
        world.of(name).limits.ready_within = Duration::from_secs(90);
        world.dies(name);
    }
    world.until_start(2).unwrap();
    let WorkloadState::Running { health, .. } = &mut world.of("a").state else { panic!() };
    *health = Some(WorkloadHealth::Starting);
    let (second, took) = world.until_start(120).unwrap();
    assert_eq!(second, "b");
    assert!((89..=91).contains(&took.as_secs()), "{took:?}");
}

#[test]
fn another_loading_engine_has_precedence() {
    let mut world = RestartWorld::with(Mode::Enforce, &["a"]);
    let mut other = engine_in("elsewhere", 70, GIB);
    other.container = None;
    other.processes[0].mapped_files = Reading::Value(3);
    world.engines = vec![other];
    world.run(1);
    for _ in 0..40 {
        world.engines[0].processes[0].read_bytes =
            world.engines[0].processes[0].read_bytes.map(|bytes| bytes + GIB);
        if world.policy.engines()[0].phase == EnginePhase::Loading {
            break;
        }
        world.tick();
    }
    assert_eq!(world.policy.engines()[0].phase, EnginePhase::Loading);
    world.dies("a");
    world.tick();
    assert_eq!(world.holds(), [HoldReason::OtherStarts]);
    world.engines.clear();
    assert!(world.until_start(2).is_some());
}

#[test]
fn a_stopped_engine_stays_down() {
    for (requested, exit_code, hold) in [
        (OnRequest::Yes, 143, Some(HoldReason::Stopped)),
        (OnRequest::Yes, 0, Some(HoldReason::Stopped)),
        (OnRequest::Unknown, 143, Some(HoldReason::StopUnclear)),
        (OnRequest::Unknown, 1, None),
        // vLLM ends with 0 when its worker is killed.
        (OnRequest::Unknown, 0, None),
        (OnRequest::No, 143, None),
    ] {
        let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
        let end = WorkloadEnd { requested, is_oom_killed: false, ..world.end(exit_code) };
        world.of("vllm").state = WorkloadState::Ended(end);
        let started = world.until_start(120).is_some();
        assert_eq!(started, hold.is_none(), "{requested:?} {exit_code}");
        if let Some(hold) = hold {
            assert_eq!(world.holds(), [hold], "and is reported once");
            assert_eq!(world.state("vllm").0, RestartState::Stopped);
        }
    }
    // What ended before this boot was ended by its end, as far as is known.
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    let before = world.at.utc - Duration::from_secs(5_000);
    let end = WorkloadEnd {
        utc: Some(before),
        requested: OnRequest::Unknown,
        is_oom_killed: false,
        ..world.end(137)
    };
    world.of("vllm").state = WorkloadState::Ended(end);
    assert!(world.until_start(2).is_some());
}

#[test]
fn containers_never_started_or_restarted_by_docker_are_ignored() {
    let mut world = RestartWorld::with(Mode::Enforce, &["a", "b", "c"]);
    world.of("a").state = WorkloadState::Fresh;
    world.of("b").state = WorkloadState::Between { status: "removing".into() };
    world.dies("c");
    world.of("c").obstacle = Some("Docker starts it again itself".into());
    assert_eq!(world.until_start(30), None);
    assert_eq!(world.state("a").0, RestartState::Stopped);
    assert_eq!(world.state("b").0, RestartState::Unknown);
    assert_eq!(world.state("c").0, RestartState::NotOurs);
    world.of("c").obstacle = None;
    assert!(world.until_start(2).is_some());
}

#[test]
fn an_unreachable_docker_is_neither_a_death_nor_a_reason_to_start() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.docker_fails = true;
    world.run(5);
    assert_eq!(world.state("vllm"), (RestartState::Unknown, "it hangs".to_owned()));
    world.docker_fails = false;
    world.dies("vllm");
    world.tick();
    world.docker_fails = true;
    world.decisions.clear();
    world.run(60);
    assert_eq!(world.decisions, []);
    world.docker_fails = false;
    world.starts("vllm");
    assert_eq!(world.until_start(30), None, "it runs");
}

#[test]
fn a_failed_start_counts_and_a_superfluous_one_does_not() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.dies("vllm");
    let step = world.tick();
    let act = step.decisions[0].clone();
    world.report(&act, OutcomeResult::Failed("no such image".to_owned()));
    world.run(9);
    assert_eq!(world.decisions.len(), 1, "Docker is left some time to show it");
    world.until_start(3).unwrap();
    world.tick();
    assert_eq!(world.value("uma_restarts_total{engine=\"vllm\",outcome=\"failed\"}"), Some(1.0));
    assert_eq!(world.value("uma_restart_deaths_in_a_row{engine=\"vllm\"}"), Some(1.0));
    // Somebody else was faster.
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.dies("vllm");
    let act = world.tick().decisions[0].clone();
    world.starts("vllm");
    world.report(&act, OutcomeResult::NotDone("another client has started it".to_owned()));
    assert_eq!(world.until_start(70), None);
    assert_eq!(world.value("uma_restart_deaths_in_a_row{engine=\"vllm\"}"), Some(0.0));
}

#[test]
fn observe_mode_says_once_what_it_would_do() {
    let mut world = RestartWorld::with(Mode::Observe, &["a", "b"]);
    world.dies("a");
    world.dies("b");
    world.tick();
    for act in world.decisions.clone() {
        world.report(&act, OutcomeResult::Skipped);
        assert_eq!(act.mode, Mode::Observe);
    }
    world.run(1);
    let second: Vec<_> = world.decisions.iter().skip(1).cloned().collect();
    for act in second.iter().filter(|act| act.is_act()) {
        world.report(act, OutcomeResult::Skipped);
    }
    world.run(120);
    let acts = world.decisions.iter().filter(|made| made.is_act());
    let mut names: Vec<_> = acts.map(|act| act.rule.alert.to_string()).collect();
    names.sort();
    assert_eq!(names, ["a", "b"]);
    assert!(world.state("a").1.contains("would be started now (observe mode)"));
    assert_eq!(world.state("a").0, RestartState::Waiting);
    // One of them may be in earnest.
    let mut world = RestartWorld::with(Mode::Observe, &["a"]);
    world.of("a").mode = Some(Mode::Enforce);
    world.dies("a");
    world.until_start(2).unwrap();
}

#[test]
fn people_and_guard_rails_hold_a_restart() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    let pause = Pause { author: "amal".to_owned(), comment: String::new(), since: None };
    world.seen.push(Observation::Pause(Some(pause)));
    world.dies("vllm");
    assert_eq!(world.until_start(30), None);
    assert_eq!(world.holds(), [HoldReason::Paused]);
    world.seen.push(Observation::Pause(None));
    assert!(world.until_start(2).is_some());
    let rule = RuleId { group: "restarts".into(), alert: "vllm".into() };
    world.seen.push(Observation::Operator(OperatorCommand {
        at: world.at,
        author: "amal".to_owned(),
        comment: String::new(),
        order: OperatorOrder::Silence {
            id: 1,
            rules: RuleSelector::Rule(rule),
            until: world.at.utc + Duration::from_secs(60),
        },
        refused: None,
    }));
    world.tick();
    world.dies("vllm");
    assert!(world.until_start(70).unwrap().1 >= Duration::from_secs(59));
    // Protected things are not touched, and a bound is a bound.
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm", "other"]);
    let containers = vec![Glob::try_from("vll*".to_owned()).unwrap()];
    let mut rules = RuleSet::default();
    rules.guard_rails.protect = Protected { containers, ..Protected::default() };
    drop(world.policy.replace_rules(world.at, Mode::Enforce, &rules));
    world.dies("vllm");
    assert_eq!(world.until_start(30), None);
    assert_eq!(world.holds(), [HoldReason::Protected]);
    world.of("other").limits.times = 1;
    world.dies("other");
    world.until_start(2).unwrap();
    world.run(61);
    world.dies("other");
    assert_eq!(world.until_start(60), None);
    assert!(world.holds().contains(&HoldReason::Budget));
}

/// The same machine, with a process that has just been started and that knows this past.
fn restarted(world: RestartWorld, past: EarlierRuns) -> RestartWorld {
    let mut policy = Policy::new(world.at, Mode::Enforce, &RuleSet::default(), DecisionId(900));
    policy.await_past();
    let mut again = RestartWorld { policy, decisions: Vec::new(), ..world };
    again.run(2);
    assert_eq!(again.decisions.iter().filter(|made| made.is_act()).count(), 0);
    again.decisions.clear();
    again.seen.push(Observation::Past(Box::new(past)));
    again
}

fn past_act(act: &DecisionRecord, aim_met: Option<bool>, has_ended: bool) -> PastAct {
    PastAct {
        id: act.id,
        rule: act.rule.clone(),
        mode: act.mode,
        step: 0,
        is_notice: false,
        uptime_ms: act.at.timeline_ms(),
        utc: act.at.utc,
        has_ended,
        aim_met,
        approved: None,
        started_after: act.action.starts_after().cloned(),
        died_in: (aim_met == Some(false)).then_some(EnginePhase::Starting),
        engine: None,
        takes_from_engine: false,
        fleet_action: None,
        is_forgiven: false,
    }
}

#[test]
fn a_restart_of_this_program_neither_starts_twice_nor_forgets() {
    // Killed before the outcome came, while the container runs by now.
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.dies("vllm");
    let act = world.tick().decisions[0].clone();
    world.starts("vllm");
    let acts = vec![past_act(&act, None, false)];
    let mut world = restarted(world, EarlierRuns { acts, ..EarlierRuns::default() });
    assert_eq!(world.until_start(30), None, "it runs");
    // Killed after the outcome; the container has died since: that is its first failure.
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.dies("vllm");
    let act = world.tick().decisions[0].clone();
    world.obey(&act);
    world.run(1);
    world.dies("vllm");
    let acts = vec![past_act(&act, None, true)];
    let mut world = restarted(world, EarlierRuns { acts, ..EarlierRuns::default() });
    let (_, took) = world.until_start(30).unwrap();
    assert!((1..=4).contains(&took.as_secs()), "it backs off, {took:?}");
    let judged = &world.aim_checks[0];
    assert_eq!((judged.decision, judged.aim_met), (act.id, Some(false)));
    // Given up, and so it stays.
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.of("vllm").limits.give_up_after = 3;
    world.dies("vllm");
    while world.until_start(60).is_some() {
        world.tick();
        world.dies("vllm");
    }
    let acts = world.decisions.iter().filter(|made| made.is_act());
    let acts: Vec<_> = acts.map(|act| past_act(act, Some(false), true)).collect();
    assert_eq!(acts.len(), 3);
    let mut world = restarted(world, EarlierRuns { acts, ..EarlierRuns::default() });
    assert_eq!(world.until_start(60), None);
    assert_eq!(world.state("vllm").0, RestartState::GivenUp);
}

#[test]
fn a_stop_is_remembered_after_a_restart_of_the_program() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    let end = WorkloadEnd { requested: OnRequest::Unknown, ..world.end(0) };
    world.of("vllm").state = WorkloadState::Ended(end);
    let restart_states = [("vllm".into(), RestartState::Stopped)].into();
    let past = EarlierRuns { restart_states, ..EarlierRuns::default() };
    let mut world = restarted(world, past);
    assert_eq!(world.until_start(30), None);
    assert_eq!(world.holds(), [HoldReason::Stopped]);
    // Until a person starts it.
    world.starts("vllm");
    world.run(61);
    world.dies("vllm");
    assert!(world.until_start(2).is_some());
}

#[test]
fn an_unpaused_container_is_the_same_life_and_its_end_is_reported_once() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.dies("vllm");
    world.until_start(5).unwrap();
    world.run(61);
    assert_eq!(world.state("vllm").0, RestartState::Running);
    let runs = world.of("vllm").state.clone();
    world.of("vllm").state = WorkloadState::Between { status: "paused".into() };
    world.run(2);
    assert_eq!(world.state("vllm").0, RestartState::Unknown);
    world.of("vllm").state = runs.clone();
    world.tick();
    assert_eq!(world.state("vllm").0, RestartState::Running, "it does not begin anew");
    // A death behind it is one.
    world.dies("vllm");
    let first = world.of("vllm").state.clone();
    world.of("vllm").state = WorkloadState::Between { status: "paused".into() };
    world.run(2);
    world.of("vllm").state = first.clone();
    world.until_start(30).unwrap();
    world.run(61);
    // Docker forgets what has come since.
    let second = world.of("vllm").state.clone();
    world.of("vllm").state = first;
    assert_eq!(world.until_start(30), None);
    let (state, reason) = world.state("vllm");
    assert_eq!(state, RestartState::Unknown);
    assert!(reason.contains("came before the life"), "{reason}");
    world.of("vllm").state = second;
    world.run(1);
    assert_eq!(world.state("vllm").0, RestartState::Running);
    let died =
        |event: &&Event| matches!(event.kind, EventKind::Program(ProgramEvent::EngineDied { .. }));
    assert_eq!(world.events.iter().filter(died).count(), 2);
}

#[test]
fn a_start_without_response_that_succeeded_counts_as_done() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.dies("vllm");
    let act = world.tick().decisions[0].clone();
    world.starts("vllm");
    let result = OutcomeResult::Failed("the connection was closed".to_owned());
    world.report(&act, result);
    world.run(61);
    let came = |world: &mut RestartWorld, outcome: &str| {
        world.value(&format!("uma_restarts_total{{engine=\"vllm\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!(came(&mut world, "ready"), Some(1.0));
    assert_eq!(came(&mut world, "failed"), Some(0.0));
}

#[test]
fn without_stop_events_exit_0_may_be_a_stop() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    let end = WorkloadEnd {
        requested: OnRequest::Unknown,
        is_oom_killed: false,
        are_stops_silent: true,
        ..world.end(0)
    };
    world.of("vllm").state = WorkloadState::Ended(end.clone());
    assert_eq!(world.until_start(60), None);
    assert_eq!(world.holds(), [HoldReason::StopUnclear]);
    assert!(world.state("vllm").1.contains("Podman does not report"));
    // The kernel does where it was the kernel, and of no other container.
    for (name, is_started) in [("other", false), ("vllm", true)] {
        let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
        world.kernel_kills(name);
        let end = WorkloadEnd { utc: Some(world.at.utc), exit_code: Some(137), ..end.clone() };
        world.of("vllm").state = WorkloadState::Ended(end);
        assert_eq!(world.until_start(60).is_some(), is_started, "{name}");
    }
}
