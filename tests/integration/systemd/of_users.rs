//! Units of a user's own systemd. The user is that of the test.

use std::path::PathBuf;
use std::time::Duration;

use umawarden::model::{
    DeferredRestart, EngineUser, Observation, OnRequest, OutcomeResult, RestartLimits,
    RestartMatch, StartNeed, Supervisor, Workload, WorkloadState,
};

use super::{UNIT, World, declared, requested, usec};

fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn of_user(user: u32) -> RestartMatch {
    RestartMatch::UnitOfUser(EngineUser::Id(user), UNIT.into())
}

/// The systemd of this user at its usual socket below the folder of all users.
fn world(user: u32) -> World {
    let socket: PathBuf = ["users", &own().to_string(), "systemd", "private"].iter().collect();
    let nobodys = EngineUser::Name("no-such-user".into());
    let entries = [RestartMatch::UnitOfUser(nobodys, "other.service".into()), of_user(user)];
    let entries = entries.map(declared).to_vec();
    World::of(Supervisor::SystemdOfUser(user), &socket, entries)
}

#[test]
fn a_unit_of_a_user_is_reported_and_started_by_that_users_systemd() {
    let world = world(own());
    let seen = world.runs();
    let supervisor = Supervisor::SystemdOfUser(own());
    assert_eq!(seen.target, Workload { supervisor, name: UNIT.into(), id: UNIT.into() });
    assert_eq!(seen.need.need_bytes, Some(7 << 30));
    assert_eq!(&*seen.found_by, format!("restarts: unit {UNIT} of user {}", own()));
    world.fake.set(|unit| {
        (unit.active, unit.result, unit.main) = ("failed", "exit-code", (1, 1));
        unit.ended = usec(31);
    });
    let seen = world.ended();
    assert_eq!(requested(&seen), OnRequest::No);
    let WorkloadState::Ended(end) = &seen.state else { panic!() };
    assert_eq!(end.exit_code, Some(1));
    let stale = world.start(&seen, "12");
    assert_eq!(stale, OutcomeResult::NotDone("it has run and ended again since".to_owned()));
    assert_eq!(world.start(&seen, &end.mark), OutcomeResult::Done);
    assert_eq!(world.fake.count("StartUnit"), 1);
    world.runs();
    world.watch.declare(Vec::new());
    world.until("none", |readings| readings.deferred.is_empty() && readings.error.is_none());
}

#[test]
fn a_unit_of_a_user_that_its_systemd_restarts_is_left_to_it() {
    let world = world(own());
    world.fake.set(|unit| unit.restart = "always");
    let readings = world.until("an obstacle", |readings| {
        readings.deferred.first().is_some_and(|seen| seen.obstacle.is_some())
    });
    let obstacle = readings.deferred[0].obstacle.clone().unwrap();
    assert!(obstacle.contains("as that user, `systemctl --user edit vllm.service`"), "{obstacle}");
}

/// Nothing is sent to a systemd in the folder of another user.
#[test]
fn the_systemd_of_another_user_is_neither_queried_nor_started() {
    let other = own() + 1;
    let world = world(other);
    let folder = |user: u32| world.folder.path().join("users").join(user.to_string());
    let missing = world.until("no systemd", |readings| readings.error.is_some()).error.unwrap();
    assert!(missing.contains(&format!("loginctl enable-linger {other}")), "{missing}");
    std::os::unix::fs::symlink(folder(own()), folder(other)).unwrap();
    world.until("a link", |readings| is_about(readings.error.as_deref(), "Not a directory"));
    std::fs::remove_file(folder(other)).unwrap();
    std::fs::rename(folder(own()), folder(other)).unwrap();
    let expected = format!("it is of user {} and not of user {other}", own());
    world.until("another user", |readings| is_about(readings.error.as_deref(), &expected));
    let target = Workload {
        supervisor: Supervisor::SystemdOfUser(other),
        name: UNIT.into(),
        id: UNIT.into(),
    };
    let seen = DeferredRestart {
        target,
        state: WorkloadState::Fresh,
        need: StartNeed::default(),
        limits: RestartLimits::default(),
        mode: None,
        found_by: "test".into(),
        obstacle: None,
    };
    let OutcomeResult::Failed(why) = world.start(&seen, "1") else { panic!("it was started") };
    assert!(why.contains(&expected), "{why}");
    assert_eq!(world.fake.calls.lock().unwrap().len(), 0);
}

/// All supervisors share the queue of reports.
#[test]
fn a_flood_of_signals_of_a_user_causes_few_reports() {
    let world = world(own());
    world.runs();
    let mut reports = 0;
    for _ in 0..200 {
        world.fake.takes_on("start");
        std::thread::sleep(Duration::from_millis(10));
        let mut seen = Vec::new();
        world.watch.take(&mut seen);
        reports += seen.iter().filter(|seen| is_of_user(seen)).count();
    }
    // A signal takes longer to send on a busy machine.
    assert!((2..50).contains(&reports), "{reports}");
}

fn is_of_user(seen: &Observation) -> bool {
    let Observation::Restarts(readings) = seen else { return false };
    readings.supervisor == Supervisor::SystemdOfUser(own())
}

fn is_about(error: Option<&str>, text: &str) -> bool {
    error.is_some_and(|error| error.contains(text))
}

/// A user may have replaced the program at the socket.
#[test]
fn texts_and_numbers_that_no_systemd_has_do_no_harm() {
    let world = world(own());
    world.runs();
    world.fake.set(|unit| {
        (unit.active, unit.result, unit.main) = ("failed", "\u{1b}[2J\nforged", (2, i32::MAX));
        (unit.restart, unit.ended) = ("no\nforged", usec(31));
    });
    let seen = world.ended();
    let WorkloadState::Ended(end) = &seen.state else { panic!() };
    assert_eq!((end.exit_code, end.error.as_deref()), (None, Some("systemd says invalid")));
    let obstacle = seen.obstacle.unwrap();
    assert!(obstacle.contains("(Restart=invalid)"), "{obstacle}");
    // The watch goes on.
    world.fake.set(|unit| (unit.active, unit.began) = ("active", usec(600)));
    world.runs();
}
