//! Units of a fake systemd, over D-Bus without a bus.

mod of_users;
mod services;
mod stops;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use umawarden::actions::{Executor as _, StartExecutor};
use umawarden::model::{
    Action, DecisionRecord, DeclaredRestart, DeferredRestart, Moment, Observation, OnRequest,
    OutcomeResult, RestartLimits, RestartMatch, RestartReadings, StartNeed, Supervisor, Target,
    WorkloadHealth, WorkloadState,
};
use umawarden::sources::deferred::{DeferredSetup, DeferredWatch};
use umawarden::supervisors::systemd::Bus;
use zbus::export::futures_core::Stream;
use zbus::message::Type;
use zbus::{Connection, MessageStream, ObjectPath, Variant};

use crate::bus_peers;

const UNIT: &str = "vllm.service";

/// The unit, as systemd reports it.
#[derive(Clone, Debug)]
struct Unit {
    active: &'static str,
    kind: &'static str,
    restart: &'static str,
    result: &'static str,
    main: (i32, i32),
    cgroup: &'static str,
    began: u64,
    ended: u64,
    job: &'static str,
}

#[derive(Clone)]
struct Fake {
    unit: Arc<Mutex<Unit>>,
    calls: Arc<Mutex<Vec<String>>>,
    connections: Arc<Mutex<Vec<Connection>>>,
    hangs: Arc<Mutex<bool>>,
}

fn usec(seconds: u64) -> u64 {
    let now = u64::try_from(Timestamp::now().as_microsecond()).unwrap();
    now - 1_000_000_000 + seconds * 1_000_000
}

impl Fake {
    fn start(socket: &Path) -> Self {
        let unit = Unit {
            active: "active",
            kind: "simple",
            restart: "no",
            result: "success",
            main: (0, 0),
            cgroup: "/system.slice/vllm.service",
            began: usec(1),
            ended: 0,
            job: "stop",
        };
        let fake = Self {
            unit: Arc::new(Mutex::new(unit)),
            calls: Arc::default(),
            connections: Arc::default(),
            hangs: Arc::default(),
        };
        let serving = fake.clone();
        bus_peers::serve_each(socket, move |connection| {
            let fake = serving.clone();
            async move { fake.serve(connection).await }
        });
        fake
    }

    async fn serve(&self, connection: Connection) {
        let mut stream = MessageStream::from(&connection);
        self.connections.lock().unwrap().push(connection.clone());
        loop {
            let next = std::future::poll_fn(|cx| std::pin::Pin::new(&mut stream).poll_next(cx));
            let Some(Ok(message)) = next.await else { return };
            let header = message.header();
            if header.message_type() != Type::MethodCall || *self.hangs.lock().unwrap() {
                continue;
            }
            let member = header.member().unwrap().to_string();
            self.calls.lock().unwrap().push(member.clone());
            let unit = self.unit.lock().unwrap().clone();
            let answered = match member.as_str() {
                "LoadUnit" | "StartUnit" => {
                    if member == "StartUnit" {
                        let mut unit = self.unit.lock().unwrap();
                        (unit.active, unit.began) = ("active", usec(900));
                    }
                    let path = ObjectPath::try_from("/org/freedesktop/systemd1/unit/vllm").unwrap();
                    connection.reply(&header, &path).await
                }
                "GetAll" => connection.reply(&header, &properties(&unit)).await,
                "Get" => connection.reply(&header, &Variant::from(unit.job)).await,
                _ => connection.reply(&header, &()).await,
            };
            answered.unwrap();
        }
    }

    fn set(&self, change: impl FnOnce(&mut Unit)) {
        change(&mut self.unit.lock().unwrap());
    }

    /// Announces to all clients that a job for the unit begins.
    fn takes_on(&self, job: &'static str) {
        self.set(|unit| unit.job = job);
        let path = ObjectPath::try_from("/org/freedesktop/systemd1/job/7").unwrap();
        let manager = "org.freedesktop.systemd1.Manager";
        self.signal("/org/freedesktop/systemd1", (manager, "JobNew"), &(7_u32, path, UNIT));
    }

    fn signal<B>(&self, path: &str, (interface, member): (&str, &str), body: &B)
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        let connections = self.connections.lock().unwrap().clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for connection in connections {
                // Some clients have disconnected.
                let _ = connection.emit_signal(None::<&str>, path, interface, member, body).await;
            }
        });
    }

    fn count(&self, member: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| *call == member).count()
    }
}

fn properties(unit: &Unit) -> BTreeMap<&'static str, Variant<'static>> {
    BTreeMap::from([
        ("ActiveState", Variant::from(unit.active)),
        ("SubState", Variant::from("running")),
        ("LoadState", Variant::from("loaded")),
        ("Type", Variant::from(unit.kind)),
        ("Restart", Variant::from(unit.restart)),
        ("Result", Variant::from(unit.result)),
        ("ExecMainCode", Variant::from(unit.main.0)),
        ("ExecMainStatus", Variant::from(unit.main.1)),
        ("ControlGroup", Variant::from(unit.cgroup)),
        ("ExecMainStartTimestamp", Variant::from(unit.began)),
        ("ExecMainExitTimestamp", Variant::from(unit.ended)),
        ("InactiveExitTimestamp", Variant::from(unit.began)),
        ("InactiveEnterTimestamp", Variant::from(unit.ended)),
    ])
}

fn clock() -> Moment {
    Moment { uptime: super::engines::live::uptime(), utc: Timestamp::now() }
}

struct World {
    fake: Fake,
    watch: DeferredWatch,
    folder: tempfile::TempDir,
    supervisor: Supervisor,
}

fn declared(matches: RestartMatch) -> DeclaredRestart {
    DeclaredRestart {
        matches,
        need: StartNeed { need_bytes: Some(7 << 30), ..StartNeed::default() },
        limits: RestartLimits::default(),
        mode: None,
    }
}

impl World {
    fn new() -> Self {
        let unit = declared(RestartMatch::Unit(UNIT.into()));
        Self::of(Supervisor::Systemd, Path::new("bus"), vec![unit])
    }

    /// A systemd with its socket at that path below a folder.
    fn of(supervisor: Supervisor, socket: &Path, declared: Vec<DeclaredRestart>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join(socket);
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let fake = Fake::start(&socket);
        let watch = DeferredWatch::start(DeferredSetup {
            docker: "/nonexistent/docker.sock".into(),
            systemd: Bus::Peer(folder.path().join("bus")),
            user_folders: folder.path().join("users"),
            adopted: folder.path().join("adopted.json"),
            declared,
            clock,
        });
        Self { fake, watch: watch.unwrap(), folder, supervisor }
    }

    /// Waits until the readings of systemd satisfy `is_so`.
    fn until(&self, what: &str, is_so: impl Fn(&RestartReadings) -> bool) -> RestartReadings {
        let began = Instant::now();
        let mut last = None;
        loop {
            let mut seen = Vec::new();
            self.watch.take(&mut seen);
            for observation in seen {
                let Observation::Restarts(readings) = observation else { continue };
                if readings.supervisor == self.supervisor {
                    if is_so(&readings) {
                        return *readings;
                    }
                    last = Some(readings);
                }
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{what}: {last:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn ended(&self) -> DeferredRestart {
        let is_so = |readings: &RestartReadings| {
            readings
                .deferred
                .first()
                .is_some_and(|seen| matches!(seen.state, WorkloadState::Ended(_)))
        };
        self.until("ended", is_so).deferred.remove(0)
    }

    fn runs(&self) -> DeferredRestart {
        let is_so = |readings: &RestartReadings| {
            readings
                .deferred
                .first()
                .is_some_and(|seen| matches!(seen.state, WorkloadState::Running { .. }))
        };
        self.until("running", is_so).deferred.remove(0)
    }

    fn start(&self, seen: &DeferredRestart, ended: &str) -> OutcomeResult {
        let action = Action::StartUnit { ended: ended.into() };
        let target = Target::Workload(Box::new(seen.target.clone()));
        let decision = DecisionRecord { target, ..crate::actions::decision(action) };
        let docker = "/nonexistent/docker.sock".into();
        let systemd = Bus::Peer(self.folder.path().join("bus"));
        let user_folders = self.folder.path().join("users");
        let mut executor = StartExecutor { docker, systemd, user_folders };
        executor.execute(&crate::actions::act(decision)).result
    }
}

fn requested(seen: &DeferredRestart) -> OnRequest {
    let WorkloadState::Ended(end) = &seen.state else { panic!("{seen:?}") };
    end.requested
}

#[test]
fn a_failed_unit_is_reported_with_its_exit_and_restarted_once() {
    let world = World::new();
    let seen = world.runs();
    assert_eq!(world.fake.count("Ref"), 1, "so that systemd does not forget how it ends");
    assert_eq!((&*seen.target.name, seen.need.need_bytes), (UNIT, Some(7 << 30)));
    assert_eq!(seen.obstacle, None);
    world.fake.set(|unit| {
        (unit.active, unit.result, unit.main) = ("failed", "oom-kill", (2, 9));
        unit.ended = usec(31);
    });
    let seen = world.ended();
    let WorkloadState::Ended(end) = &seen.state else { panic!() };
    assert_eq!((end.exit_code, end.is_oom_killed), (Some(137), true));
    let lived = end.lived.unwrap().as_secs();
    assert!((29..=30).contains(&lived), "{lived}");
    assert_eq!(end.requested, OnRequest::No);
    // First a different exit than the reported one, then the right one.
    let stale = world.start(&seen, "12");
    assert_eq!(stale, OutcomeResult::NotDone("it has run and ended again since".to_owned()));
    assert_eq!(world.fake.count("StartUnit"), 0);
    assert_eq!(world.start(&seen, &end.mark), OutcomeResult::Done);
    assert_eq!((world.fake.count("StartUnit"), world.fake.count("ResetFailedUnit")), (1, 1));
    let again = world.start(&seen, &end.mark);
    assert_eq!(again, OutcomeResult::NotDone("systemd says that it is active".to_owned()));
    world.runs();
}

#[test]
fn a_stopped_unit_is_distinguished_from_one_that_exits_with_0() {
    let world = World::new();
    world.runs();
    // It exits with 0, as vLLM does when its worker is killed.
    let ends = |unit: &mut Unit| {
        (unit.active, unit.main) = ("inactive", (1, 0));
        unit.ended = usec(500);
    };
    world.fake.set(ends);
    assert_eq!(requested(&world.ended()), OnRequest::No);
    world.fake.set(|unit| (unit.active, unit.began) = ("active", usec(600)));
    world.runs();
    // A reload is no stop.
    world.fake.takes_on("reload");
    std::thread::sleep(Duration::from_millis(300));
    world.fake.set(|unit| {
        ends(unit);
        unit.ended = usec(650);
    });
    assert_eq!(requested(&world.ended()), OnRequest::No);
    world.fake.set(|unit| (unit.active, unit.began) = ("active", usec(700)));
    world.runs();
    world.fake.set(|unit| unit.active = "deactivating");
    world.fake.takes_on("stop");
    std::thread::sleep(Duration::from_millis(300));
    world.fake.set(|unit| {
        ends(unit);
        unit.ended = usec(750);
    });
    assert_eq!(requested(&world.ended()), OnRequest::Yes);
}

#[test]
fn a_systemd_that_hangs_or_restarts_units_itself_is_reported() {
    let world = World::new();
    world.fake.set(|unit| (unit.restart, unit.kind) = ("on-failure", "notify"));
    let has_obstacle = |readings: &RestartReadings| {
        readings.deferred.first().is_some_and(|seen| seen.obstacle.is_some())
    };
    let seen = world.until("reported", has_obstacle).deferred.remove(0);
    assert!(seen.obstacle.unwrap().contains("Restart=on-failure"));
    assert!(
        matches!(seen.state, WorkloadState::Running { health: Some(WorkloadHealth::Healthy), .. }),
        "a notifying unit is active only once ready"
    );
    *world.fake.hangs.lock().unwrap() = true;
    let readings = world.until("unknown", |readings| readings.error.is_some());
    assert!(readings.error.unwrap().contains("has not answered"), "within its deadline");
    *world.fake.hangs.lock().unwrap() = false;
    // An exit while systemd was unreachable has no known cause.
    world.fake.set(|unit| {
        (unit.active, unit.main, unit.ended) = ("inactive", (1, 0), usec(800));
    });
    assert_eq!(requested(&world.ended()), OnRequest::Unknown);
}

#[test]
fn a_unit_that_is_no_longer_configured_is_no_longer_reported() {
    let world = World::new();
    world.runs();
    world.watch.declare(Vec::new());
    let readings = world.until("none", |readings| readings.deferred.is_empty());
    assert_eq!(readings.error, None);
}
