//! Containers in which engines run and that nobody here starts again: how they ended.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use umawarden::model::{EndedWorkload, Moment, Observation, Requested, WorkloadLog};
use umawarden::sources::deferred::{DeferredSetup, DeferredWatch};
use umawarden::supervisors::systemd::Bus;

use super::docker::{FakeDocker, Fault, Question, id};

fn clock() -> Moment {
    Moment { uptime: crate::engines::live::uptime(), utc: Timestamp::now() }
}

struct World {
    docker: FakeDocker,
    watch: DeferredWatch,
    _folder: tempfile::TempDir,
}

impl World {
    /// A container that runs, and is not started again by us.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let docker = FakeDocker::start(&folder.path().join("docker.sock"));
        for name in ["llm", "other"] {
            docker.run(name);
            docker.state().containers.get_mut(&id(name)).unwrap().is_held = false;
        }
        let watch = DeferredWatch::start(DeferredSetup {
            docker: docker.socket.clone(),
            systemd: Bus::Peer(folder.path().join("none")),
            adopted: folder.path().join("adopted.json"),
            declared: Vec::new(),
            clock,
        });
        let world = Self { docker, watch: watch.unwrap(), _folder: folder };
        world.until("asked", |world, _| world.docker.asked(Question::List) > 0);
        world.watch.track(BTreeSet::from([Arc::from(id("llm"))]));
        world.until("looked at", |world, _| world.docker.asked(Question::Inspect) > 0);
        world
    }

    fn until(
        &self,
        what: &str,
        is_so: impl Fn(&Self, &[EndedWorkload]) -> bool,
    ) -> Vec<EndedWorkload> {
        let began = Instant::now();
        let mut told = Vec::new();
        while !is_so(self, &told) {
            assert!(began.elapsed() < Duration::from_secs(15), "{what}: {told:#?}");
            std::thread::sleep(Duration::from_millis(5));
            let mut seen = Vec::new();
            self.watch.take(&mut seen);
            for observation in seen {
                let Observation::Restarts(held) = observation else { continue };
                assert!(held.held.is_empty(), "nothing is started again");
                if !held.ended.is_empty() {
                    told = held.ended;
                }
            }
        }
        told
    }

    fn ended(&self) -> EndedWorkload {
        let mut told = self.until("told", |_, told| !told.is_empty());
        assert_eq!(told.len(), 1, "of the other one nobody asked: {told:#?}");
        let told = told.remove(0);
        assert_eq!(*told.target.id, *id("llm"));
        assert_eq!((told.end.exit_code, told.end.requested), (Some(1), Requested::No));
        assert!(told.end.lived.is_some() && told.end.utc.is_some());
        told
    }

    fn write(&self, text: &str) {
        let line = format!("{} {text}\n", Timestamp::now());
        let length = u32::try_from(line.len()).unwrap().to_be_bytes();
        let frame = [&[2, 0, 0, 0][..], &length, line.as_bytes()].concat();
        self.docker.state().containers.get_mut(&id("llm")).unwrap().log.extend(frame);
    }
}

fn lines(ended: &EndedWorkload) -> Vec<String> {
    match ended.end.log.as_deref() {
        Some(WorkloadLog::Lines(lines)) => lines.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_container_that_exits_is_reported_with_its_last_lines() {
    let world = World::new();
    world.write("CUDA out of memory");
    world.docker.dies("other");
    world.docker.dies("llm");
    assert_eq!(lines(&world.ended()), ["CUDA out of memory"]);
}

#[test]
fn a_container_that_docker_restarts_at_once_has_ended() {
    let world = World::new();
    world.docker.dies("llm");
    world.docker.starts("llm");
    let first = world.ended();
    // The next life ends otherwise than the last one, and is another.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1_500) {
        std::thread::sleep(Duration::from_millis(50));
    }
    world.docker.dies("llm");
    world.docker.starts("llm");
    let is_other = |_: &World, told: &[EndedWorkload]| {
        told.first().is_some_and(|told| told.end.mark != first.end.mark)
    };
    let second = world.until("told", is_other).remove(0);
    assert!(second.end.utc > first.end.utc, "{second:#?}");
}

#[test]
fn a_labelled_container_that_docker_restarts_is_reported_as_any_other() {
    let world = World::new();
    {
        let mut state = world.docker.state();
        let container = state.containers.get_mut(&id("llm")).unwrap();
        (container.is_held, container.policy) = (true, "always");
    }
    let inspected = world.docker.asked(Question::Inspect);
    world.docker.starts("other");
    let began = Instant::now();
    let (mut ended, mut obstacle) = (None, None);
    while ended.is_none() {
        assert!(began.elapsed() < Duration::from_secs(15), "{obstacle:?}");
        std::thread::sleep(Duration::from_millis(5));
        let mut seen = Vec::new();
        world.watch.take(&mut seen);
        for observation in seen {
            let Observation::Restarts(told) = observation else { continue };
            ended = ended.or(told.ended.into_iter().next());
            let Some(held) = told.held.into_iter().next() else { continue };
            // It has been looked at while it ran.
            if obstacle.is_none() && world.docker.asked(Question::Inspect) > inspected {
                world.docker.dies("llm");
                world.docker.starts("llm");
            }
            obstacle = held.obstacle;
        }
    }
    let ended: EndedWorkload = ended.unwrap();
    assert_eq!((&*ended.target.id, ended.end.exit_code), (&*id("llm"), Some(1)));
    assert!(obstacle.unwrap().contains("restart policy always"));
}

#[test]
fn a_container_removed_at_its_exit_is_reported_without_its_log() {
    let world = World::new();
    world.docker.dies("llm");
    world.docker.state().containers.remove(&id("llm"));
    let told = world.ended();
    let Some(WorkloadLog::Unknown(why)) = told.end.log.as_deref() else { panic!("{told:#?}") };
    assert!(why.contains("its container is gone"), "{why}");
}

#[test]
fn false_inspections_of_a_container_report_no_exit() {
    let world = World::new();
    let lie = Fault::Says(200, "application/json", "[[[".repeat(100));
    world.docker.set_inspection("llm", Some(lie));
    let asked = world.docker.asked(Question::Inspect);
    world.docker.starts("other");
    world.until("asked again", |world, _| world.docker.asked(Question::Inspect) > asked);
    world.docker.set_inspection("llm", None);
    world.docker.dies("llm");
    world.ended();
}
