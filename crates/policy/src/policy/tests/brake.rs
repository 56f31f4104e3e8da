use super::*;
use crate::model::{
    EngineKind, EnginePhase, EngineProcess, EngineSeen, EngineTarget, Evidence, HoldReason, Holder,
    HolderReadings, ProcessId, Target, UserUnit,
};
use crate::policy::brake::Scope;

const GIB: f64 = (1_u64 << 30) as f64;

const RULE: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Collapse
    expr: uma_memory_free_bytes < 2 * 1024^3
    keep_firing_for: 10s
    remedy:
      aim: uma_memory_free_bytes > 8 * 1024^3
      steps:
      - STEPS
      cooldown: 1s
";

/// A machine of 24 GiB on which one engine loads.
struct BrakeWorld {
    world: World,
    outside: f64,
    with_engine: bool,
}

const ID: ProcessId = ProcessId { pid: 4242, start_ticks: 4711 };

/// That engine when it has used so much processor time.
fn seen_after(cpu_ms: u64) -> EngineSeen {
    let mut seen = seen();
    seen.processes[0].cpu_ms = cpu_ms;
    seen
}

/// It alone has the driver open.
fn scan(at: Duration) -> HolderReadings {
    HolderReadings {
        read_at: at,
        holders: vec![Holder { id: ID, ..Holder::of_driver(ID.pid, 'R') }],
        processes: 100,
        unseen: 0,
        is_driver_loaded: Reading::Value(true),
        hidden: Vec::new(),
        memory: Vec::new(),
        socket_bytes: Reading::Value(0),
        tasks: Vec::new(),
        error: None,
    }
}

fn seen() -> EngineSeen {
    let id = ID;
    let unknown = Reading::Unsupported;
    let process = EngineProcess {
        hugetlb_bytes: Reading::Value(0),
        ..EngineProcess::holding(id, "VLLM::EngineCor", 0)
    };
    let (name, found_by) = (Arc::from("vllm-8000"), Arc::from("test"));
    EngineSeen {
        cgroup: Some(Arc::from("/")),
        log_bytes: unknown,
        ..EngineSeen::new(name, EngineKind::Vllm, id, vec![process], found_by)
    }
}

impl BrakeWorld {
    fn new(steps: &str, mode: Mode) -> Self {
        let mut world = World::new(&RULE.replace("STEPS", steps), mode);
        let names = [
            FREE,
            "uma_memory_total_bytes",
            "uma_memory_unaccounted_bytes",
            "uma_memory_shmem_bytes",
            "uma_memory_anonymous_bytes",
        ];
        let series = names.map(|name| SeriesKey::new(name, &[])).to_vec();
        world.schema = Arc::new(Schema { series });
        Self { world, outside: 4.0, with_engine: true }
    }

    fn guarded(mut self, guard: impl FnOnce(&mut RuleSet)) -> Self {
        let yaml = RULE.replace("STEPS", "stop_engine: {grace: 0s}");
        let mut set = rules(&yaml);
        guard(&mut set);
        let at = self.world.at;
        self.world.policy.replace_rules(at, Mode::Enforce, &set);
        self
    }

    /// Lets an interval pass in which the driver has taken so much.
    fn tick(&mut self, taken_gib: f64) -> Step {
        self.outside += taken_gib;
        let world = &mut self.world;
        world.at.uptime += INTERVAL;
        world.at.utc += INTERVAL;
        let free = (18.0 - self.outside).max(0.5);
        let values = [free, 24.0, self.outside, 0.0, 1.0].map(|gib| Reading::Value(gib * GIB));
        let mut all = std::mem::take(&mut world.seen);
        all.push(Observation::Readings(Readings {
            source: Source::Meminfo,
            schema: Arc::clone(&world.schema),
            values: values.to_vec(),
            took: Duration::ZERO,
            error: None,
        }));
        let now = world.at.uptime;
        let cpu_ms = u64::try_from(now.as_millis()).unwrap();
        let engines = self.with_engine.then(|| (seen_after(cpu_ms), EnginePhase::Loading));
        world.policy.brake.take_engines(now, engines.into_iter(), Scope::All);
        world.policy.brake.scan(&scan(now));
        world.policy.step(world.at, &all)
    }

    /// Has the driver take 4 GiB a second until a decision is made.
    fn collapse(&mut self) -> DecisionRecord {
        for _ in 0..60 {
            if let Some(decision) = self.tick(0.4).decisions.first() {
                return decision.clone();
            }
        }
        panic!("no decision is made");
    }
}

const STOP: &str = "stop_engine: {grace: 500ms}";

#[test]
fn the_decision_has_the_stopped_engine_and_the_growth() {
    let decision = BrakeWorld::new(STOP, Mode::Enforce).collapse();
    assert_eq!(decision.decision, Decision::Act);
    assert_eq!(decision.target, Target::Engine(Box::new(EngineTarget::from(&seen()))));
    let free = decision.because.iter().find(|evidence| evidence.series == FREE).unwrap();
    let free = free.value.value().unwrap();
    let Action::StopEngine { grace_ms: 500, unless_free_bytes: Some(limit), .. } = decision.action
    else {
        panic!("{decision:?}")
    };
    assert!((limit as f64 - (free + 24.0 * GIB / 32.0)).abs() < 2.0, "{limit}");
    let of_engine = |evidence: &&Evidence| evidence.series.starts_with("uma_engine_growth_bytes");
    let grown = decision.because.iter().find(of_engine).unwrap();
    assert_eq!(grown.series, "uma_engine_growth_bytes{engine=\"vllm-8000\"}");
    assert!(grown.value.value().unwrap() > 8.0 * GIB, "{grown:?}");
    let deed = "stop_engine with 500ms to end: engine vllm-8000 (pid 4242)";
    assert_eq!(decision.deed(), deed);
    let unit = Some("vllm.service".into());
    let target = Target::Engine(Box::new(EngineTarget { unit, ..EngineTarget::from(&seen()) }));
    let again = "; systemd starts vllm.service again if its Restart= says so";
    let of_system = DecisionRecord { target, ..decision };
    assert_eq!(of_system.deed(), format!("{deed}{again}"));
    let user_unit = Some(UserUnit { user: 1000, name: "vllm.service".into() });
    let engine = EngineTarget { user_unit, ..EngineTarget::from(&seen()) };
    let of_user = DecisionRecord { target: Target::Engine(Box::new(engine)), ..of_system };
    let again = "; the systemd of user 1000 is asked not to start vllm.service again";
    assert_eq!(of_user.deed(), format!("{deed}{again}"));
}

#[test]
fn observe_mode_names_the_engine_it_would_stop_despite_milder_steps() {
    let decision = BrakeWorld::new(STOP, Mode::Observe).collapse();
    assert_eq!((decision.decision, decision.mode), (Decision::Act, Mode::Observe));
    assert_eq!(decision.target.to_string(), "engine vllm-8000");
    let steps = "drop_caches: {}\n      - stop_engine: {}";
    let milder = BrakeWorld::new(steps, Mode::Observe).collapse();
    assert_eq!(milder.action.name(), "drop_caches");
    let names_it = |evidence: &Evidence| evidence.series.contains("vllm-8000");
    assert!(milder.because.iter().any(names_it), "{milder:?}");
}

#[test]
fn an_engine_is_stopped_only_after_milder_steps_missed_the_aim() {
    let mut node = BrakeWorld::new("drop_caches: {}\n      - stop_engine: {}", Mode::Enforce);
    let first = node.collapse();
    assert_eq!(first.action.name(), "drop_caches");
    assert!(node.tick(0.0).decisions.is_empty());
    node.world.report(&first, OutcomeResult::Done);
    let step = node.tick(0.0);
    assert_eq!(acts(&[step]).iter().map(|act| act.name()).collect::<Vec<_>>(), ["stop_engine"]);
}

#[test]
fn without_a_growing_engine_nothing_is_stopped() {
    let mut node = BrakeWorld::new(STOP, Mode::Enforce);
    node.with_engine = false;
    let decision = node.collapse();
    assert_eq!(decision.decision, Decision::Hold(HoldReason::NoTarget));
    assert_eq!((decision.target.to_string().as_str(), decision.deed().as_str()), {
        ("no engine", "stop_engine with 500ms to end")
    });

    let mut node = BrakeWorld::new(STOP, Mode::Enforce);
    node.outside = 17.5;
    let decision = node.tick(0.0).decisions[0].clone();
    assert_eq!(decision.decision, Decision::Hold(HoldReason::UnclearTarget), "{decision:?}");
}

#[test]
fn no_engine_is_stopped_for_a_past_condition() {
    let mut node = BrakeWorld::new(STOP, Mode::Enforce);
    let pause = crate::model::Pause { author: "a".to_owned(), comment: String::new(), since: None };
    node.world.seen.push(Observation::Pause(Some(pause)));
    while node.outside < 17.0 {
        node.tick(0.4);
    }
    // It keeps firing: some memory has come back, and not enough for the aim.
    node.outside = 14.0;
    node.tick(0.0);
    node.world.seen.push(Observation::Pause(None));
    let decision = node.tick(0.0).decisions[0].clone();
    assert_eq!(decision.decision, Decision::Hold(HoldReason::Unconfirmed));
}

#[test]
fn a_protected_engine_is_not_stopped_and_no_other_one_instead() {
    use crate::policy::guard::Glob;
    let glob = || Glob::try_from("VLLM::*".to_owned()).unwrap();
    let node = BrakeWorld::new(STOP, Mode::Enforce);
    let mut node = node.guarded(|set| set.guard_rails.protect.processes = vec![glob()]);
    let decision = node.collapse();
    assert_eq!(decision.decision, Decision::Hold(HoldReason::Protected));
    assert_eq!(decision.target.to_string(), "engine vllm-8000");
}

#[test]
fn the_brake_passes_an_action_that_hangs_and_nothing_passes_the_brake() {
    let second = "
  - alert: Full
    expr: uma_memory_free_bytes < 4 * 1024^3
    remedy:
      steps:
      - compact_memory: {}
      cooldown: 1s
";
    let yaml = RULE.replace("STEPS", STOP);
    let mut node = BrakeWorld::new(STOP, Mode::Enforce);
    let both = rules(&format!("{}{second}", yaml.trim_end()));
    let at = node.world.at;
    node.world.policy.replace_rules(at, Mode::Enforce, &both);
    let first = node.collapse();
    assert_eq!(first.action.name(), "compact_memory");
    // It never reports.
    let stops = node.collapse();
    assert_eq!((stops.action.name(), stops.decision), ("stop_engine", Decision::Act));
    node.world.report(&first, OutcomeResult::TimedOut);
    for _ in 0..50 {
        let step = node.tick(0.0);
        assert!(acts(&[step]).is_empty(), "one engine at a time, and nothing else");
    }
    node.world.report(&stops, OutcomeResult::Done);
    assert!((0..50).any(|_| !acts(&[node.tick(0.0)]).is_empty()));
}
