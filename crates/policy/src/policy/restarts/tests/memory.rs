//! The memory that a restart waits for.

use std::time::Duration;

use super::world::{GIB, RestartWorld, engine_in};
use crate::model::{HoldReason, Mode};

#[test]
fn orphans_delay_the_restart_and_are_named() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.engines = vec![engine_in("vllm", 4242, 6 * GIB)];
    world.run(2);
    world.dies("vllm");
    world.run(30);
    assert_eq!(world.holds(), [HoldReason::Memory]);
    let (_, reason) = world.state("vllm");
    let left = "VLLM::EngineCor (pid 4242), left behind by engine-vllm, holds 6";
    assert!(reason.contains(left), "{reason}");
    world.engines.clear();
    let (_, took) = world.until_start(5).unwrap();
    assert!(took <= Duration::from_secs(1));
}

#[test]
fn without_a_declared_need_the_peak_must_be_available() {
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.of("vllm").need.need_bytes = None;
    world.engines = vec![engine_in("vllm", 4242, 6 * GIB)];
    world.run(2);
    world.engines.clear();
    world.free = 4 * GIB;
    world.dies("vllm");
    assert_eq!(world.until_start(30), None);
    assert!(world.state("vllm").1.contains(", 6.0 GiB needed"), "{}", world.state("vllm").1);
    world.free = 7 * GIB;
    assert!(world.until_start(5).is_some());
}

#[test]
fn a_restart_that_waits_says_how_long_where_that_shows() {
    let wait = |world: &mut RestartWorld| {
        let status = world.policy.status(world.at);
        status.restarts[0].wait.map(|wait| wait.as_secs())
    };
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    assert_eq!(wait(&mut world), None, "it runs");
    world.dies("vllm");
    world.until_start(5).unwrap();
    world.tick();
    world.dies("vllm");
    world.run(1);
    assert!(matches!(wait(&mut world), Some(2 | 3)), "the back-off: {:?}", wait(&mut world));
    let (_, reason) = world.state("vllm");
    assert!(reason.ends_with("), and waits 4s before a start"), "not what is left: {reason}");

    // Memory that does not move says nothing; memory that is given back does.
    let mut world = RestartWorld::with(Mode::Enforce, &["vllm"]);
    world.free = 2 * GIB;
    world.dies("vllm");
    world.run(30);
    assert_eq!(wait(&mut world), None);
    for _ in 0..10 {
        world.free += GIB / 4;
        world.run(1);
    }
    let left = wait(&mut world).unwrap();
    assert!((5..30).contains(&left), "{left} s for 3.5 GiB, at 0.25 GiB a second");
    assert!(world.until_start(1).is_none());
}
