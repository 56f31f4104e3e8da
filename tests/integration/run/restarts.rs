//! Deferred restarts with a Docker that hangs, dies and answers falsely, through the daemon.

mod docker;
mod gangs;
mod tracked;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Node;
use crate::daemon::{Daemon, history, of_kind};
use docker::{FakeDocker, Fault, Query, id, inspection};

/// Docker, a node, and the daemon's arguments.
struct World {
    docker: FakeDocker,
    node: Node,
}

impl World {
    fn new(names: &[&str]) -> (Self, Daemon) {
        let node = Node::new("gb10-4k");
        let docker = FakeDocker::start(&node.path("docker.sock"));
        names.iter().for_each(|name| docker.run(name));
        let config = "restarts:\n- {label: umawarden.restart, back_off: {first: 200ms, most: 1s}, \
                      give_up_after: 20, at_most: {times: 50, per: 1h}}\n";
        std::fs::write(node.path("umawarden.yaml"), config).unwrap();
        let world = Self { docker, node };
        let daemon = world.daemon();
        for name in names {
            wait_for("it runs", 20, &daemon, || state_of(&daemon, name) == "running");
        }
        (world, daemon)
    }

    fn daemon(&self) -> Daemon {
        let config = format!("--config.file={}", self.node.path("umawarden.yaml").display());
        let socket = format!("--path.docker-socket={}", self.docker.socket.display());
        self.node.start(&["--mode=enforce", &config, &socket])
    }

    /// Journal entries of that kind and of that name.
    fn journalled(&self, kind: &str, name: &str) -> Vec<Value> {
        let history = history(&self.node.storage());
        let is_of = |entry: &&Value| {
            entry["rule"]["alert"] == name
                || entry["engine"] == name
                || entry["report"]["who"]["container_name"] == name
        };
        of_kind(&history, kind).filter(is_of).cloned().collect()
    }

    fn acts(&self, name: &str) -> Vec<Value> {
        let mut acts = self.journalled("decision", name);
        acts.retain(|decision| decision["decision"] == "act");
        acts
    }

    fn outcomes(&self) -> Vec<Value> {
        of_kind(&history(&self.node.storage()), "outcome").cloned().collect()
    }
}

fn deferred(daemon: &Daemon, name: &str) -> Value {
    let response: Value = serde_json::from_str(&daemon.get("/api/v1/engines").1).unwrap();
    let all = response["data"]["deferred_restarts"].as_array().unwrap();
    all.iter().find(|one| one["name"] == name).cloned().unwrap_or_default()
}

fn state_of(daemon: &Daemon, name: &str) -> String {
    deferred(daemon, name)["state"].as_str().unwrap_or_default().to_owned()
}

fn reason(daemon: &Daemon, name: &str) -> String {
    deferred(daemon, name)["reason"].as_str().unwrap_or_default().to_owned()
}

fn wait_for(what: &str, seconds: u64, daemon: &Daemon, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !is_so() {
        let engines = daemon.get("/api/v1/engines").1;
        assert!(Instant::now() < deadline, "{what}\n{engines}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn in_state(daemon: &Daemon, name: &str, state: &str) -> f64 {
    daemon.metric(&format!("uma_restart_state{{engine=\"{name}\",state=\"{state}\"}}"))
}

fn came(daemon: &Daemon, name: &str) -> [f64; 3] {
    ["ready", "died", "failed"].map(|outcome| {
        daemon.metric(&format!("uma_restarts_total{{engine=\"{name}\",outcome=\"{outcome}\"}}"))
    })
}

/// Memory is sampled whatever Docker does.
fn goes_on(world: &World, daemon: &Daemon) {
    for kib in [5_000_000, 6_000_000] {
        world.node.set_meminfo("MemFree", kib);
        let began = Instant::now();
        let bytes = (kib * 1024) as f64;
        wait_for("sampled", 20, daemon, || daemon.metric("uma_memory_free_bytes") == bytes);
        // Docker has five seconds to answer; the loop does not wait for it.
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }
}

#[test]
fn a_container_is_restarted_once_by_a_docker_that_hangs_dies_or_answers_falsely() {
    let (world, daemon) = World::new(&["llm"]);
    world.docker.set(Query::List, Some(Fault::Hangs));
    world.docker.dies("llm");
    wait_for("unknown", 20, &daemon, || reason(&daemon, "llm").contains("has not answered within"));
    wait_for("exported", 5, &daemon, || in_state(&daemon, "llm", "unknown") == 1.0);
    goes_on(&world, &daemon);
    for (fault, why) in [
        (Fault::HangsUp, "connection closed"),
        (Fault::Cut, "end of file before message length"),
        (Fault::NeverEnds, "more than 16.0 MiB"),
        (Fault::Answers(200, "text/html", "<html>proxy</html>".to_owned()), "no JSON was answered"),
        (Fault::Answers(200, "application/json", "{\"a\":1}".to_owned()), "no list of containers"),
        (Fault::Answers(503, "text/plain", String::new()), "Docker answered 503"),
        (
            Fault::Answers(
                500,
                "application/json",
                "{\"message\":\"disk\\u001b[2J full\"}".to_owned(),
            ),
            "Docker answered 500: disk[2J full",
        ),
    ] {
        world.docker.set(Query::List, Some(fault));
        wait_for(why, 20, &daemon, || reason(&daemon, "llm").contains(why));
        assert_eq!(state_of(&daemon, "llm"), "unknown");
    }
    assert_eq!(world.docker.of("llm").starts, 0, "in doubt nothing is started");
    assert_eq!(world.acts("llm").len(), 0);
    world.docker.set(Query::List, None);
    wait_for("it is started", 10, &daemon, || world.docker.of("llm").starts == 1);
    wait_for("it runs", 10, &daemon, || state_of(&daemon, "llm") == "running");
    wait_for("counted", 5, &daemon, || came(&daemon, "llm") == [1.0, 0.0, 0.0]);
    assert_eq!(world.acts("llm").len(), 1);
    wait_for("reported", 5, &daemon, || !world.journalled("engine_died", "llm").is_empty());
    daemon.terminate();
    assert_eq!(world.journalled("engine_died", "llm").len(), 1, "its death is journalled once");
}

#[test]
fn a_container_with_false_inspections_is_left_alone_and_all_others_are_restarted() {
    let (world, daemon) = World::new(&["odd", "good"]);
    let of = |change: &dyn Fn(&mut Value)| {
        let mut answer = inspection(&id("odd"), &world.docker.of("odd"));
        change(&mut answer);
        Some(Fault::Answers(200, "application/json", answer.to_string()))
    };
    let ended = |answer: &mut Value, finished: &str| {
        answer["State"]["Status"] = json!("exited");
        answer["State"]["Running"] = json!(false);
        answer["State"]["FinishedAt"] = json!(finished);
    };
    let huge = format!("{{\"Id\":\"{}\"}}", "x".repeat(2 << 20));
    let false_answers = [
        (
            of(&|answer| answer["Id"] = json!(id("good"))),
            "another container than the requested one",
        ),
        (Some(Fault::Answers(200, "text/plain", huge)), "more than 1.0 MiB"),
        (
            Some(Fault::Answers(200, "application/json", "[[[[".repeat(4096))),
            "no JSON was answered",
        ),
        (Some(Fault::Answers(500, "text/plain", "oops".to_owned())), "Docker answered 500"),
        (Some(Fault::Cut), "end of file"),
        (of(&|answer| ended(answer, "31st of February")), "Docker says: exited"),
        (of(&|answer| ended(answer, "0001-01-01T00:00:00Z")), "Docker says: exited"),
        (of(&|answer| answer["State"]["Status"] = json!("r\u{1b}[2Junning")), "r\\x1b[2Junning"),
    ];
    for (number, (answer, why)) in false_answers.into_iter().enumerate() {
        world.docker.set_inspection("odd", answer);
        world.docker.dies("good");
        wait_for(why, 10, &daemon, || reason(&daemon, "odd").contains(why));
        assert_eq!(state_of(&daemon, "odd"), "unknown");
        wait_for("others are started", 10, &daemon, || {
            world.docker.of("good").starts == number + 1 && state_of(&daemon, "good") == "running"
        });
    }
    world.docker.set_inspection("odd", None);
    wait_for("trusted again", 10, &daemon, || state_of(&daemon, "odd") == "running");
    assert_eq!(world.docker.of("odd").starts, 0);
    assert_eq!(world.journalled("engine_died", "odd").len(), 0, "no death");
    // Rules are named by these names: a duplicate name is an error.
    let mut namesake = world.docker.of("good");
    namesake.finished = namesake.started.clone();
    world.docker.state().containers.insert("ab".repeat(32), namesake);
    wait_for("unknown", 10, &daemon, || reason(&daemon, "good").contains("two containers called"));
    daemon.terminate();
}

#[test]
fn an_exit_of_the_far_future_or_of_an_earlier_life_restarts_nothing_twice() {
    let (world, daemon) = World::new(&["llm"]);
    world.docker.dies("llm");
    let first = world.docker.of("llm");
    wait_for("it is started", 10, &daemon, || {
        world.docker.of("llm").starts == 1 && state_of(&daemon, "llm") == "running"
    });
    // A state that goes back: the exit of the life before.
    let back = inspection(&id("llm"), &first).to_string();
    let back = Fault::Answers(200, "application/json", back);
    world.docker.set_inspection("llm", Some(back));
    let why = "reports an end that came before the life";
    wait_for(why, 10, &daemon, || reason(&daemon, "llm").contains(why));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!((world.docker.of("llm").starts, state_of(&daemon, "llm").as_str()), (1, "unknown"));
    world.docker.set_inspection("llm", None);
    wait_for("it runs", 10, &daemon, || state_of(&daemon, "llm") == "running");
    assert_eq!(world.journalled("engine_died", "llm").len(), 1);
    // The clock of Docker's machine differs: the exit counts all the same, and once.
    world.docker.dies("llm");
    world.docker.state().containers.get_mut(&id("llm")).unwrap().finished =
        "2199-12-31T23:59:59.999999999Z".to_owned();
    wait_for("it is started", 10, &daemon, || world.docker.of("llm").starts == 2);
    wait_for("it runs", 10, &daemon, || state_of(&daemon, "llm") == "running");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(world.docker.of("llm").starts, 2);
    daemon.terminate();
}

#[test]
fn a_start_with_a_bad_response_is_counted_by_its_effect() {
    let (world, daemon) = World::new(&["llm", "gone", "other"]);
    // It starts the container, and dies before it answers.
    world.docker.set(Query::Start, Some(Fault::ExecutesAndCloses));
    world.docker.dies("llm");
    wait_for("it is started", 10, &daemon, || world.docker.of("llm").starts == 1);
    wait_for("it runs", 10, &daemon, || came(&daemon, "llm") == [1.0, 0.0, 0.0]);
    let outcome = world.outcomes().remove(0);
    assert_eq!(outcome["result"], "failed", "{outcome:#}");
    let detail = outcome["detail"].as_str().unwrap();
    assert!(detail.contains("may be started all the same"), "{outcome:#}");
    // It vanishes between the inspection and the start.
    world.docker.set(Query::Start, Some(Fault::IsGone));
    world.docker.dies("gone");
    wait_for("it is gone", 10, &daemon, || deferred(&daemon, "gone").is_null());
    let outcome = world.outcomes().pop().unwrap();
    assert_eq!(outcome["result"], "not_done", "{outcome:#}");
    assert_eq!(outcome["detail"], "it is no longer there");
    // Another client was faster.
    world.docker.set(Query::Start, Some(Fault::IsStarted));
    world.docker.dies("other");
    wait_for("it runs", 10, &daemon, || {
        world.docker.of("other").starts == 1 && state_of(&daemon, "other") == "running"
    });
    let outcome = world.outcomes().pop().unwrap();
    assert_eq!((&outcome["result"], came(&daemon, "other")), (&json!("not_done"), [0.0; 3]));
    // It fails for a while.
    let busy = "{\"message\":\"driver failed programming external connectivity\"}".to_owned();
    world.docker.set(Query::Start, Some(Fault::Answers(500, "application/json", busy)));
    world.docker.dies("llm");
    wait_for("reported", 10, &daemon, || {
        reason(&daemon, "llm").contains("driver failed programming")
    });
    wait_for("counted", 20, &daemon, || came(&daemon, "llm") == [1.0, 0.0, 1.0]);
    world.docker.set(Query::Start, None);
    wait_for("it is started", 30, &daemon, || world.docker.of("llm").starts == 2);
    wait_for("counted", 10, &daemon, || came(&daemon, "llm")[0] == 2.0);
    daemon.terminate();
}

#[test]
fn a_hanging_start_delays_neither_the_loop_nor_the_shutdown_and_is_not_repeated() {
    let (world, daemon) = World::new(&["llm"]);
    world.docker.set(Query::Start, Some(Fault::Hangs));
    world.docker.dies("llm");
    wait_for("requested", 10, &daemon, || world.docker.queries(Query::Start) == 1);
    goes_on(&world, &daemon);
    assert_eq!(state_of(&daemon, "llm"), "starting");
    let (took, log) = daemon.terminate();
    assert!(took < Duration::from_secs(10), "{took:?}\n{log}");
    // The effect is unknown: whether it runs is queried before anything is started.
    let daemon = world.daemon();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(world.docker.of("llm").starts, 0);
    assert!(world.docker.queries(Query::Start) <= 2);
    world.docker.set(Query::Start, None);
    daemon.kill();
    let daemon = world.daemon();
    wait_for("it is started", 60, &daemon, || world.docker.of("llm").starts == 1);
    wait_for("it runs", 10, &daemon, || state_of(&daemon, "llm") == "running");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(world.docker.of("llm").starts, 1);
    daemon.terminate();
}

#[test]
fn a_hanging_start_delays_no_action_that_frees_memory() {
    let (world, daemon) = World::new(&["llm"]);
    world.node.write_rules(&super::ALWAYS.replace(">= 0", "< 1e9"));
    assert_eq!(daemon.post("/-/reload").0, 200);
    world.docker.set(Query::Start, Some(Fault::Hangs));
    world.docker.dies("llm");
    wait_for("requested", 10, &daemon, || world.docker.queries(Query::Start) == 1);
    // Docker has 20 s to answer.
    let began = Instant::now();
    world.node.set_meminfo("MemFree", 900_000);
    wait_for("dropped", 5, &daemon, || {
        std::fs::read_to_string(world.node.drop_caches()).unwrap() == "1"
    });
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(world.outcomes().iter().all(|outcome| outcome["action"] != "start_container"));
    assert_eq!(state_of(&daemon, "llm"), "starting");
    daemon.terminate();
}

#[test]
fn a_docker_that_restarts_is_queried_sparingly_and_no_life_begins_anew() {
    let (world, daemon) = World::new(&["runs", "dies"]);
    let events = world.journalled("engine_restart", "runs").len();
    for _ in 0..2 {
        world.docker.down();
        wait_for("unknown", 20, &daemon, || state_of(&daemon, "runs") == "unknown");
        world.docker.up();
        wait_for("it runs", 20, &daemon, || state_of(&daemon, "runs") == "running");
    }
    // Unknown and running, twice; never starting. The journal is written after the loop.
    let recorded = || world.journalled("engine_restart", "runs");
    wait_for("reported", 10, &daemon, || recorded().len() >= events + 4);
    let recorded = recorded();
    assert_eq!(recorded.len(), events + 4, "{recorded:#?}");
    assert!(recorded[events..].iter().all(|event| event["to"] != "starting"), "{recorded:#?}");
    // Containers that ended with Docker were not stopped by a person.
    world.docker.down();
    world.docker.dies("dies");
    world.docker.state().containers.get_mut(&id("dies")).unwrap().exit_code = 137;
    world.docker.state().queries.clear();
    world.docker.up();
    wait_for("it is started", 20, &daemon, || world.docker.of("dies").starts == 1);
    assert_eq!(world.docker.of("runs").starts, 0);
    // A stream of events that ends at once is not reopened at once.
    let empty = Fault::Answers(200, "application/json", String::new());
    world.docker.set(Query::Follow, Some(empty));
    world.docker.down();
    world.docker.up();
    world.docker.dies("dies");
    wait_for("it is started", 20, &daemon, || world.docker.of("dies").starts == 2);
    world.docker.state().queries.clear();
    std::thread::sleep(Duration::from_secs(4));
    let queried = world.docker.queries(Query::List);
    assert!((4..=20).contains(&queried), "{queried} times in 4 s");
    daemon.terminate();
}

#[test]
fn the_death_report_has_the_last_lines_of_the_containers_log() {
    let (world, daemon) = World::new(&["llm"]);
    let frame = |output: u8, text: &str| {
        let length = u32::try_from(text.len()).unwrap().to_be_bytes();
        [&[output, 0, 0, 0][..], &length, text.as_bytes()].concat()
    };
    let now = jiff::Timestamp::now();
    let before = now - Duration::from_secs(3600);
    let started: jiff::Timestamp = world.docker.of("llm").started.parse().unwrap();
    let at_once = started - Duration::from_millis(300);
    let log = [
        frame(2, &format!("{before} NCCL: Watchdog caught collective operation timeout\n")),
        frame(1, &format!("{at_once} Docker was slower\n")),
        frame(1, &format!("{now} server_args(api_key='sk-hidden')\n")),
        frame(
            2,
            &format!("{now} \u{1b}[31mtorch.OutOfMemoryError: CUDA out of memory.\u{1b}[0m\n"),
        ),
    ];
    world.docker.state().containers.get_mut(&id("llm")).unwrap().log = log.concat();
    let report = |number: usize| {
        wait_for("reported", 20, &daemon, || {
            world.journalled("engine_died", "llm").len() == number
        });
        let history = world.journalled("engine_died", "llm");
        // The newest is the first or the last; they are distinguished by their times.
        let newest = history.iter().max_by_key(|death| death["report"]["ended"].to_string());
        newest.unwrap()["report"].clone()
    };
    world.docker.dies("llm");
    let death = report(1);
    let lines = death["last_lines"].as_array().unwrap();
    assert_eq!(lines.len(), 3, "what another life wrote is none of it: {death:#}");
    assert_eq!(lines[0], "Docker was slower");
    assert_eq!(lines[2], "torch.OutOfMemoryError: CUDA out of memory.");
    assert!(!death.to_string().contains("sk-hidden"), "{death:#}");
    assert_eq!(death["killer"]["by"], "itself", "{death:#}");
    assert_eq!(death["killer"]["reason"], lines[2]);
    // An unreadable or hanging log delays nothing for long.
    let why = "{\"message\":\"configured logging driver does not support reading\"}".to_owned();
    for (number, (fault, why)) in [
        (Fault::Answers(501, "application/json", why), "does not support reading"),
        (Fault::Hangs, "has not answered within 2 s"),
        (Fault::NeverEnds, "more than 1.0 MiB"),
    ]
    .into_iter()
    .enumerate()
    {
        wait_for("it runs", 20, &daemon, || state_of(&daemon, "llm") == "running");
        world.docker.set(Query::Log, Some(fault));
        let died = Instant::now();
        world.docker.dies("llm");
        wait_for("it is started", 10, &daemon, || world.docker.of("llm").starts == number + 2);
        assert!(died.elapsed() < Duration::from_secs(5), "{:?}", died.elapsed());
        let death = report(number + 2);
        assert!(death["not_known"].to_string().contains(why), "{death:#}");
    }
    assert!(!daemon.get("/api/v1/engines").1.contains("CUDA out of memory"));
    // Lines of the first life do not belong to the last.
    wait_for("it runs", 20, &daemon, || state_of(&daemon, "llm") == "running");
    world.docker.set(Query::Log, None);
    // Nor do lines that were logged right after a life ended.
    let ended: jiff::Timestamp = world.docker.of("llm").finished.parse().unwrap();
    let late = ended + Duration::from_millis(20);
    let line = frame(2, &format!("{late} its last words\n"));
    world.docker.state().containers.get_mut(&id("llm")).unwrap().log.extend(line);
    world.docker.dies("llm");
    let death = report(5);
    assert!(death["last_lines"].is_null() && death["not_known"].is_null(), "{death:#}");
    daemon.terminate();
}
