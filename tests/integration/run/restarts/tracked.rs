//! Containers with engines that this program does not restart: how they ended.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use umawarden::model::{EndedWorkload, Moment, Observation, OnRequest, WorkloadLog};
use umawarden::sources::deferred::{DeferredSetup, DeferredWatch};
use umawarden::supervisors::systemd::Bus;

use super::docker::{FakeDocker, Fault, Query, id};

fn clock() -> Moment {
    Moment { uptime: crate::engines::live::uptime(), utc: Timestamp::now() }
}

struct World {
    docker: FakeDocker,
    watch: DeferredWatch,
    _folder: tempfile::TempDir,
}

impl World {
    /// A running container that we do not restart.
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
            user_folders: folder.path().join("users"),
            adopted: folder.path().join("adopted.json"),
            declared: Vec::new(),
            clock,
        });
        let world = Self { docker, watch: watch.unwrap(), _folder: folder };
        world.until("queried", |world, _| world.docker.queries(Query::List) > 0);
        world.watch.track(BTreeSet::from([Arc::from(id("llm"))]));
        world.until("inspected", |world, _| world.docker.queries(Query::Inspect) > 0);
        world
    }

    fn until(
        &self,
        what: &str,
        is_so: impl Fn(&Self, &[EndedWorkload]) -> bool,
    ) -> Vec<EndedWorkload> {
        let began = Instant::now();
        let mut reports = Vec::new();
        while !is_so(self, &reports) {
            assert!(began.elapsed() < Duration::from_secs(15), "{what}: {reports:#?}");
            std::thread::sleep(Duration::from_millis(5));
            let mut seen = Vec::new();
            self.watch.take(&mut seen);
            for observation in seen {
                let Observation::Restarts(readings) = observation else { continue };
                assert!(readings.deferred.is_empty(), "nothing is started again");
                if !readings.ended.is_empty() {
                    reports = readings.ended;
                }
            }
        }
        reports
    }

    fn ended(&self) -> EndedWorkload {
        let mut reports = self.until("reported", |_, reports| !reports.is_empty());
        assert_eq!(reports.len(), 1, "the other one is not tracked: {reports:#?}");
        let reports = reports.remove(0);
        assert_eq!(*reports.target.id, *id("llm"));
        assert_eq!((reports.end.exit_code, reports.end.requested), (Some(1), OnRequest::No));
        assert!(reports.end.lived.is_some() && reports.end.utc.is_some());
        reports
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
    // The next life ends with another exit code, so its end is another one.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1_500) {
        std::thread::sleep(Duration::from_millis(50));
    }
    world.docker.dies("llm");
    world.docker.starts("llm");
    let is_other = |_: &World, reports: &[EndedWorkload]| {
        reports.first().is_some_and(|reports| reports.end.mark != first.end.mark)
    };
    let second = world.until("reported", is_other).remove(0);
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
    let inspected = world.docker.queries(Query::Inspect);
    world.docker.starts("other");
    let began = Instant::now();
    let (mut ended, mut obstacle) = (None, None);
    while ended.is_none() {
        assert!(began.elapsed() < Duration::from_secs(15), "{obstacle:?}");
        std::thread::sleep(Duration::from_millis(5));
        let mut seen = Vec::new();
        world.watch.take(&mut seen);
        for observation in seen {
            let Observation::Restarts(readings) = observation else { continue };
            ended = ended.or(readings.ended.into_iter().next());
            let Some(deferred) = readings.deferred.into_iter().next() else { continue };
            // It was inspected while it ran.
            if obstacle.is_none() && world.docker.queries(Query::Inspect) > inspected {
                world.docker.dies("llm");
                world.docker.starts("llm");
            }
            obstacle = deferred.obstacle;
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
    let report = world.ended();
    let Some(WorkloadLog::Unknown(why)) = report.end.log.as_deref() else { panic!("{report:#?}") };
    assert!(why.contains("its container is gone"), "{why}");
}

#[test]
fn false_inspections_of_a_container_report_no_exit() {
    let world = World::new();
    let garbage = Fault::Answers(200, "application/json", "[[[".repeat(100));
    world.docker.set_inspection("llm", Some(garbage));
    let queried = world.docker.queries(Query::Inspect);
    world.docker.starts("other");
    world.until("queried again", |world, _| world.docker.queries(Query::Inspect) > queried);
    world.docker.set_inspection("llm", None);
    world.docker.dies("llm");
    world.ended();
}
