//! Engines that are up and do nothing for their requests.

use std::sync::Arc;

use super::{EngineWorld, loading, moment};
use crate::model::{EngineHealth, EngineLoad, EngineSeen, HealthResponse, Observation, Reading};

fn with_load(seen: &EngineSeen, seconds: u64, load: EngineLoad) -> Observation {
    Observation::EngineHealth(Box::new(EngineHealth {
        key_withheld: None,
        engine: Arc::clone(&seen.name),
        server: seen.server,
        asked_at: moment(seconds).uptime,
        answer: HealthResponse::Ready,
        requests: load.requests(),
        load,
    }))
}

#[test]
fn an_engine_that_answers_while_its_requests_get_no_token_is_stuck() {
    let of = |running: u64, usage: f64, work: Reading<u64>| EngineLoad {
        running: Reading::Value(running),
        waiting: Reading::Value(0),
        kv_cache_usage: Reading::Value(usage),
        work,
        ..EngineLoad::NONE
    };
    let seen = loading();
    let mut world = EngineWorld::new();
    world.observe(0, std::slice::from_ref(&seen));
    // A long prompt fills the KV cache without a token; a failed scrape proves nothing.
    for second in (0..900).step_by(5) {
        let usage = f64::from(u32::try_from(second).unwrap()) / 1000.0;
        world.step(second, with_load(&seen, second, of(1, usage, Reading::Value(7))));
    }
    world.take_events();
    for second in (900..1200).step_by(5) {
        let load = of(2, 0.9, Reading::Value(8));
        let load = if second == 1000 { EngineLoad::UNREAD } else { load };
        world.step(second, with_load(&seen, second, load));
    }
    assert_eq!(world.take_events(), [""; 0]);
    world.step(1200, with_load(&seen, 1200, of(2, 0.9, Reading::Value(8))));
    let expected = "stuck true: 2 requests running or waiting for 5m without a token, while \
                    its health check succeeds (unless its owner has paused it)";
    assert_eq!(world.take_events(), [expected]);
    world.observe(1201, std::slice::from_ref(&seen));
    world.step(1205, with_load(&seen, 1205, of(2, 0.9, Reading::Value(9))));
    let expected = "stuck false: its requests make progress again, or none runs";
    assert_eq!(world.take_events(), [expected]);
    for (second, running, work) in [(1205, 0, Reading::Value(9)), (2000, 1, Reading::Unsupported)] {
        for second in (second..second + 600).step_by(5) {
            world.step(second, with_load(&seen, second, of(running, 0.9, work)));
        }
    }
    let is_stuck = |event: &String| event.starts_with("stuck");
    assert!(!world.take_events().iter().any(is_stuck), "no request, or no count: no claim");
}

/// vllm-project/vllm#39863: nothing runs, and requests come and go.
#[test]
fn an_engine_whose_requests_only_wait_is_stuck() {
    let of = |running: u64, waiting: u64, is_sleeping: bool| EngineLoad {
        running: Reading::Value(running),
        waiting: Reading::Value(waiting),
        kv_cache_usage: Reading::Value(0.0),
        is_sleeping: Reading::Value(is_sleeping),
        work: Reading::Value(7),
        ..EngineLoad::NONE
    };
    let stuck = "stuck true: 4 requests running or waiting for 5m without a token, while its \
                 health check succeeds (unless its owner has paused it)";
    // Whether it sleeps, and how many requests run and wait after so many probes.
    type Case = (bool, fn(u64) -> (u64, u64), Option<&'static str>);
    let cases: [Case; 5] = [
        (false, |_| (0, 4), Some(stuck)),
        (false, |probes| (0, 3 + (probes + 1) % 2), Some(stuck)),
        (false, |probes| (3 * (probes % 2), 1 + 3 * ((probes + 1) % 2)), Some(stuck)),
        (false, |probes| (0, probes % 50), None),
        (true, |_| (0, 4), None),
    ];
    for (place, (is_sleeping, requests, expected)) in cases.into_iter().enumerate() {
        let seen = loading();
        let mut world = EngineWorld::new();
        world.observe(0, std::slice::from_ref(&seen));
        for probes in 0..=60 {
            let (running, waiting) = requests(probes);
            let load = of(running, waiting, is_sleeping);
            world.step(5 * probes, with_load(&seen, 5 * probes, load));
        }
        let events = world.take_events();
        let is_stuck = |event: &&String| event.starts_with("stuck");
        let found = events.iter().find(is_stuck).map(String::as_str);
        assert_eq!(found, expected, "{place}");
    }
}

/// SGLang's HTTP server answers, and its scheduler does not.
#[test]
fn an_engine_whose_core_no_longer_answers_is_stuck_unless_it_reads_or_grows() {
    let stuck = "stuck true: its core has not answered for 5m, and has read and taken nothing, \
                 while its health check succeeds";
    let answers = EngineLoad {
        running: Reading::Value(1),
        core_answers: Reading::Value(true),
        ..EngineLoad::NONE
    };
    let silent = EngineLoad { core_answers: Reading::Failed, ..EngineLoad::UNREAD };
    // Its first load, then whether it reads new weights, and what else was read instead.
    let cases = [
        (answers, false, silent, Some(stuck)),
        (answers, true, silent, None),
        // Other paths, such as its metrics, do not come from the core.
        (answers, false, EngineLoad::UNREAD, None),
        (silent, false, silent, None),
    ];
    for (place, (first, reads, then, expected)) in cases.into_iter().enumerate() {
        let mut seen = loading();
        let mut world = EngineWorld::new();
        world.observe(0, std::slice::from_ref(&seen));
        world.step(0, with_load(&seen, 0, first));
        for second in (5..=305).step_by(5) {
            if reads {
                seen.processes[1].read_bytes = Reading::Value(second << 22);
            }
            world.observe(second, std::slice::from_ref(&seen));
            world.step(second, with_load(&seen, second, then));
        }
        let events = world.take_events();
        let is_stuck = |event: &&String| event.starts_with("stuck");
        let found = events.iter().find(is_stuck).map(String::as_str);
        assert_eq!(found, expected, "{place}: {events:?}");
        if expected.is_some() {
            world.step(310, with_load(&seen, 310, answers));
            let end = "stuck false: its requests make progress again, or none runs";
            assert_eq!(world.take_events(), [end]);
        }
    }
}
