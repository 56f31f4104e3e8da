//! Units of a user's own systemd.

use std::sync::Arc;

use super::world::{RestartWorld, container};
use crate::model::{
    Action, DecisionRecord, DeferredRestart, HoldReason, Mode, Observation, OnRequest,
    RestartReadings, RestartState, Supervisor, Target, Workload, WorkloadEnd, WorkloadHealth,
    WorkloadState,
};

const UNIT: &str = "vllm.service";
const OWNER: Supervisor = Supervisor::SystemdOfUser(1000);

/// Its user's systemd reports that state for so many ticks.
fn report(world: &mut RestartWorld, state: &WorkloadState, ticks: u32) {
    for _ in 0..ticks {
        let name: Arc<str> = UNIT.into();
        let target = Workload { supervisor: OWNER, id: Arc::clone(&name), name };
        let seen = DeferredRestart { target, state: state.clone(), ..container(UNIT) };
        let readings = RestartReadings {
            supervisor: OWNER,
            read_at: world.at.uptime,
            deferred: vec![seen],
            ended: Vec::new(),
            error: None,
        };
        world.seen.push(Observation::Restarts(Box::new(readings)));
        world.tick();
    }
}

fn running() -> WorkloadState {
    WorkloadState::Running { mark: "life 0".into(), health: Some(WorkloadHealth::Healthy) }
}

#[test]
fn a_dead_unit_of_a_user_is_started_by_that_users_systemd() {
    let mut world = RestartWorld::with(Mode::Enforce, &[]);
    report(&mut world, &running(), 8);
    assert_eq!(world.state(UNIT).0, RestartState::Running);
    let end = world.end(1);
    report(&mut world, &WorkloadState::Ended(end.clone()), 8);
    let acts: Vec<&DecisionRecord> = world.decisions.iter().filter(|made| made.is_act()).collect();
    assert_eq!(acts.len(), 1, "{acts:#?}");
    assert_eq!(acts[0].action, Action::StartUnit { ended: end.mark });
    assert_eq!(acts[0].target, Target::held(OWNER, UNIT, UNIT));
}

#[test]
fn a_unit_of_a_user_that_may_have_been_stopped_stays_down() {
    let mut world = RestartWorld::with(Mode::Enforce, &[]);
    report(&mut world, &WorkloadState::Fresh, 4);
    let (state, reason) = world.state(UNIT);
    assert_eq!(state, RestartState::Stopped);
    assert!(reason.contains("`systemctl --user enable vllm.service`"), "{reason}");
    let end = WorkloadEnd { requested: OnRequest::Unknown, ..world.end(0) };
    report(&mut world, &WorkloadState::Ended(end), 4);
    assert!(world.holds().contains(&HoldReason::StopUnclear));
}

/// A system's unit, and another user's, may have the same name.
#[test]
fn a_kill_explains_the_end_of_a_users_unit_only_in_its_own_control_group() {
    let of_user = |user| format!("/user.slice/user-{user}.slice/user@{user}.service/app.slice");
    for (above, is_its) in
        [(of_user(1000), true), (of_user(1001), false), ("/system.slice".to_owned(), false)]
    {
        let mut world = RestartWorld::with(Mode::Enforce, &[]);
        report(&mut world, &running(), 8);
        world.kernel_kills_in(&format!("{above}/{UNIT}"));
        let requested = OnRequest::Unknown;
        let end = WorkloadEnd { requested, is_oom_killed: false, ..world.end(137) };
        report(&mut world, &WorkloadState::Ended(end), 8);
        let has_started = world.decisions.iter().any(DecisionRecord::is_act);
        assert_eq!(has_started, is_its, "{above}: {:?}", world.holds());
    }
}
