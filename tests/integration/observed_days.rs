//! A journal of days in observe mode, and its report.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use assert_cmd::Command;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use umawarden::journal::{Journal, JournalEntry, Retention};
use umawarden::model::{
    Action, AlertChange, AlertState, CacheKind, Decision, DecisionId, DecisionRecord, EngineKind,
    EnginePhase, EngineTarget, Event, HoldReason, Mode, Moment, ProcessId, ProgramEvent, Reading,
    RestartState, RuleId, Supervisor, Target,
};

/// A storage folder with a journal of the last six days, and a configuration.
pub struct Storage {
    folder: tempfile::TempDir,
    journal: Journal,
    begin: Timestamp,
    decisions: u64,
}

pub const CONFIG: &str = "\
# The node of the office.
enforce: [notice]   # since Monday
rules:
  kernel/OomKill:
    severity: warning # it is only a test machine
";

impl Storage {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let retention = Retention { max_age: Duration::from_secs(864_000), max_bytes: 64 << 20 };
        let journal = Journal::open(folder.path(), retention);
        let begin = Timestamp::now() - SignedDuration::from_hours(6 * 24);
        fs::write(folder.path().join("umawarden.yaml"), CONFIG).unwrap();
        let mut storage = Self { folder, journal, begin, decisions: 0 };
        storage.fill();
        storage
    }

    fn at(&self, seconds: i64) -> Moment {
        let utc = self.begin + SignedDuration::from_secs(seconds);
        Moment { uptime: Duration::from_secs(1_000 + seconds.unsigned_abs()), utc }
    }

    fn event(&self, seconds: i64, kind: ProgramEvent) {
        let event = Event { kind: kind.into(), utc: Some(self.at(seconds).utc), seq: None };
        self.journal.record(&JournalEntry::Event { boot_id: "b".into(), event });
    }

    fn alert(&self, seconds: i64, rule: &RuleId, to: AlertState) {
        self.journal.record(&JournalEntry::Alert(AlertChange {
            at: self.at(seconds),
            rule: rule.clone(),
            labels: Default::default(),
            from: AlertState::Inactive,
            to,
            value: Reading::Value(1.0),
            annotations: Default::default(),
        }));
    }

    fn decide(
        &mut self,
        seconds: i64,
        rule: &RuleId,
        (action, target): (Action, Target),
        (mode, decision): (Mode, Decision),
    ) {
        self.decisions += 1;
        self.journal.record(&JournalEntry::Decision(DecisionRecord {
            id: DecisionId(self.decisions),
            at: self.at(seconds),
            rule: rule.clone(),
            mode,
            decision,
            target,
            ..crate::actions::decision(action)
        }));
    }

    /// Caches would have been dropped for troubles that lasted, an engine would have been stopped
    /// that served on, and a container waits for memory.
    fn fill(&mut self) {
        let (reserve, collapse) =
            (rule("memory", "PageCacheEatsReserve"), rule("brake", "MemoryCollapse"));
        let drop =
            || (Action::DropCaches { what: CacheKind::PageCache, sync: false }, Target::Node);
        let unenforced = (Mode::Enforce, Decision::Hold(HoldReason::NotEnforced));
        let phase = |to| ProgramEvent::EnginePhase {
            engine: "vllm-8000".to_owned(),
            from: None,
            to,
            reason: "test".to_owned(),
            pid: 7,
            pod: None,
        };
        self.event(0, phase(EnginePhase::Serving));
        for day in 0..4 {
            let begin = 100 + day * 86_400;
            self.alert(begin, &reserve, AlertState::Firing);
            self.decide(begin, &reserve, drop(), unenforced);
            self.alert(begin + 600, &reserve, AlertState::Inactive);
        }
        let engine = EngineTarget {
            name: "vllm-8000".into(),
            kind: EngineKind::Vllm,
            processes: vec![ProcessId { pid: 7, start_ticks: 1 }],
            comms: ["VLLM::EngineCor".into()].into_iter().collect(),
            container_name: Some("llm".into()),
            ..EngineTarget::default()
        };
        let stop = Action::StopEngine {
            engine: None,
            grace_ms: 0,
            unless_free_bytes: None,
            for_reboot: None,
        };
        let target = Target::Engine(Box::new(engine));
        self.alert(9_000, &collapse, AlertState::Firing);
        self.decide(9_000, &collapse, (stop, target), (Mode::Observe, Decision::Act));
        self.alert(9_002, &collapse, AlertState::Inactive);
        let waits = ProgramEvent::EngineRestart {
            engine: "llm".to_owned(),
            to: RestartState::Waiting,
            reason: "it died (exit code 137), and waits".to_owned(),
            container: None,
            ranks: None,
        };
        self.event(20_000, waits);
        let start = Action::StartContainer { ended: "x".into() };
        let container = Target::held(Supervisor::Docker, "llm", "ab");
        let held = (Mode::Observe, Decision::Hold(HoldReason::Memory));
        self.decide(20_000, &rule("restarts", "llm"), (start, container), held);
        self.event(5 * 86_400, phase(EnginePhase::Ready));
        self.journal.next_decision_id(self.at(0).utc, Duration::from_secs(30));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn config(&self) -> String {
        fs::read_to_string(self.path("umawarden.yaml")).unwrap()
    }

    /// Exit code, and both outputs.
    pub fn run(&self, arguments: &[&str]) -> (i32, String) {
        run(self.folder.path(), &self.path("umawarden.yaml"), arguments)
    }

    pub fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        let (_, text) = self.run(&arguments);
        let lines = text.lines().filter(|line| line.starts_with('{'));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn rule(group: &str, alert: &str) -> RuleId {
    RuleId { group: group.into(), alert: alert.into() }
}

/// Exit code, and both outputs.
pub fn run(storage: &Path, config: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::cargo_bin("umawarden").unwrap();
    command.env_remove("STATE_DIRECTORY").args(arguments).arg("--config.file").arg(config);
    let output = command.arg("--storage.path").arg(storage).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[test]
fn the_report_names_targets_unenforced_steps_and_deferred_restarts() {
    let storage = Storage::new();
    let lines = storage.json(&["rules", "report"]);
    let of = |name: &str| lines.iter().find(|line| line["rule"] == name).unwrap();
    let reserve = of("memory/PageCacheEatsReserve");
    assert_eq!((&reserve["would_act"], &reserve["not_enforced"]["drop"]), (&4.into(), &4.into()));
    assert_eq!(
        (&reserve["held"]["not_enforced"], &reserve["ended_by_itself"]),
        (&Value::Null, &0.into())
    );
    let collapse = of("brake/MemoryCollapse");
    let target = &collapse["targets"][0];
    assert_eq!((&target["target"], &target["would_act"]), (&"engine vllm-8000".into(), &1.into()));
    assert_eq!(target["parts"][1], "container llm", "{target}");
    let restart = of("restarts/llm");
    assert_eq!(
        (&restart["restart"]["state"], &restart["held"]["memory"]),
        (&"waiting".into(), &1.into())
    );
    assert_eq!((&restart["fired"], &restart["mode"]), (&1.into(), &"observe".into()));
    let (code, text) = storage.run(&["rules", "report"]);
    assert_eq!(code, 0);
    for part in [
        "  on engine vllm-8000 (vllm; container llm; processes VLLM::EngineCor): would act 1\n",
        "  would have acted, if its grade were enforced: drop 4\n",
        "  deferred restart of container llm, waiting since ",
        "it died (exit code 137), and waits\n",
        "  held: memory 1\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("not among these rules"), "{text}");
}
