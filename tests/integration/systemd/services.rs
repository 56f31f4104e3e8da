//! Services with engines that this program does not restart: how they ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umawarden::model::{EndedWorkload, Observation, OnRequest, Supervisor};
use umawarden::sources::deferred::{DeferredSetup, DeferredWatch};
use umawarden::supervisors::systemd::Bus;
use zbus::Variant;

use super::{Fake, UNIT, clock, usec};

struct World {
    fake: Fake,
    watch: DeferredWatch,
    _folder: tempfile::TempDir,
}

fn watch(bus: Bus, folder: &tempfile::TempDir) -> DeferredWatch {
    let setup = DeferredSetup {
        docker: "/nonexistent/docker.sock".into(),
        systemd: bus,
        user_folders: folder.path().join("users"),
        adopted: folder.path().join("adopted.json"),
        declared: Vec::new(),
        clock,
    };
    DeferredWatch::start(setup).unwrap()
}

impl World {
    /// An engine in that control group, and the service that systemd reports for it.
    fn new(cgroup: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("bus");
        let fake = Fake::start(&socket);
        let world = Self { fake, watch: watch(Bus::Peer(socket), &folder), _folder: folder };
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(world.fake.count("Subscribe"), 0, "no engine is in a service");
        world.watch.track_services(BTreeMap::from([(Arc::from(UNIT), Arc::from(cgroup))]));
        let is_polled = |fake: &Fake| fake.count("GetAll") >= 2;
        world.until("polled", |world, _| is_polled(&world.fake));
        std::thread::sleep(Duration::from_millis(100));
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
            reports.extend(self.new_reports());
        }
        reports
    }

    fn new_reports(&self) -> Vec<EndedWorkload> {
        let mut seen = Vec::new();
        self.watch.take(&mut seen);
        let readings = seen.into_iter().filter_map(|observation| match observation {
            Observation::Restarts(one) if one.supervisor == Supervisor::Systemd => Some(one),
            _ => None,
        });
        readings
            .flat_map(|one| {
                assert!(one.deferred.is_empty() && one.error.is_none(), "{one:#?}");
                one.ended
            })
            .collect()
    }

    fn ended(&self) -> EndedWorkload {
        let report = self.until("reported", |_, reports| !reports.is_empty()).pop().unwrap();
        assert_eq!((&*report.target.name, report.target.supervisor), (UNIT, Supervisor::Systemd));
        report
    }

    fn changes(&self, changed: &[(&str, Variant<'_>)]) {
        let changed: BTreeMap<&str, &Variant<'_>> =
            changed.iter().map(|(name, value)| (*name, value)).collect();
        let body = ("org.freedesktop.systemd1.Service", changed, Vec::<String>::new());
        let signal = ("org.freedesktop.DBus.Properties", "PropertiesChanged");
        self.fake.signal("/org/freedesktop/systemd1/unit/vllm", signal, &body);
    }

    fn ends(&self, (code, status): (i32, i32), result: &str, at: u64) {
        self.changes(&[
            ("ExecMainCode", Variant::from(code)),
            ("ExecMainStatus", Variant::from(status)),
            ("ExecMainExitTimestamp", Variant::from(at)),
            ("Result", Variant::from(result)),
        ]);
    }

    fn begins(&self, at: u64) {
        self.changes(&[
            ("ExecMainCode", Variant::from(0)),
            ("ExecMainStatus", Variant::from(0)),
            ("ExecMainStartTimestamp", Variant::from(at)),
            ("ExecMainExitTimestamp", Variant::from(0_u64)),
            ("Result", Variant::from("success")),
        ]);
    }
}

#[test]
fn a_service_that_systemd_restarts_at_once_has_ended() {
    let world = World::new("/system.slice/vllm.service");
    world.ends((2, 9), "signal", usec(31));
    world.begins(usec(32));
    let report = world.ended();
    assert_eq!((report.end.exit_code, report.end.requested), (Some(137), OnRequest::No));
    let lived = report.end.lived.unwrap().as_secs();
    assert!((29..=30).contains(&lived) && report.end.utc.is_some(), "{report:#?}");
    // The next life ends with another exit code, so its end is another one.
    world.ends((1, 3), "exit-code", usec(40));
    let is_next = |_: &World, all: &[EndedWorkload]| {
        all.iter().any(|next| next.end.mark != report.end.mark && next.end.exit_code == Some(3))
    };
    world.until("the next", is_next);
}

#[test]
fn a_later_report_of_the_same_exit_is_no_second_exit() {
    let world = World::new("/system.slice/vllm.service/workers");
    world.ends((2, 9), "success", usec(31));
    let first = world.ended();
    assert!(!first.end.is_oom_killed);
    world.changes(&[("Result", Variant::from("oom-kill"))]);
    let is_whole = |_: &World, all: &[EndedWorkload]| {
        all.iter().any(|report| report.end.mark == first.end.mark && report.end.is_oom_killed)
    };
    world.until("killed for memory", is_whole);
}

#[test]
fn a_stopped_service_is_distinguished_from_one_that_exits() {
    let world = World::new("/system.slice/vllm.service");
    world.fake.takes_on("reload");
    // The purpose of a job is read from the last job of the service.
    std::thread::sleep(Duration::from_millis(500));
    // As vLLM does when its worker is killed.
    world.ends((1, 0), "success", usec(31));
    let report = world.ended();
    assert_eq!((report.end.exit_code, report.end.requested), (Some(0), OnRequest::No));
    world.begins(usec(40));
    world.fake.takes_on("stop");
    world.ends((1, 0), "success", usec(50));
    let is_stopped = |_: &World, all: &[EndedWorkload]| {
        all.iter().any(|report| report.end.requested == OnRequest::Yes)
    };
    world.until("stopped", is_stopped);
}

#[test]
fn a_service_of_the_same_name_in_another_control_group_is_ignored() {
    let world = World::new("/other.slice/vllm.service");
    world.ends((2, 9), "signal", usec(31));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(world.new_reports(), []);
}

#[test]
fn a_missing_systemd_reports_no_change() {
    let folder = tempfile::tempdir().unwrap();
    let world = World {
        fake: Fake::start(&folder.path().join("unused")),
        watch: watch(Bus::Peer(folder.path().join("bus")), &folder),
        _folder: folder,
    };
    world.watch.track_services(BTreeMap::from([(Arc::from(UNIT), Arc::from("/a"))]));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(world.new_reports(), []);
}
