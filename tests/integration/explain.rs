//! `umawarden explain` from outside.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use assert_cmd::Command;
use jiff::Timestamp;
use serde_json::Value;
use umawarden::config::mistake::SourceText;
use umawarden::config::rules::parse_rules;
use umawarden::journal::{Journal, JournalEntry, Note, Retention};
use umawarden::model::{
    AssessmentLimits, DecisionId, Event, FORGET_RECEIVED_AFTER, Mode, Moment, Observation, Outcome,
    OutcomeResult, ProgramEvent, Reading, Readings, Release, ReleaseEnd, ReleaseMemory,
    ReleasePoint, Schema, SeriesKey, Source, WhyUnknown,
};
use umawarden::policy::Policy;
use umawarden::recording::{
    RecordedRules, RecordedStep, RecordingEntry, RecordingRing, RuleText, SegmentBegin, StepResult,
    segment_files,
};

const INTERVAL: Duration = Duration::from_millis(100);

const RULES: &str = "
groups:
- name: memory
  rules:
  - alert: Low
    expr: |
      uma_memory_free_bytes < 2 * uma_memory_reserve_bytes
      and on() max_over_time(uma_memory_free_bytes[1s]) > 0
    for: 300ms
    remedy:
      aim: uma_memory_free_bytes > 8 * uma_memory_reserve_bytes
      steps:
      - drop_caches: {what: pagecache}
      - compact_memory: {}
      cooldown: 5s
      at_most: {times: 2, per: 1h}
  - alert: Present
    expr: uma_memory_free_bytes < 2 * uma_memory_reserve_bytes
    remedy: {steps: [{notify: {message: low}}], cooldown: 1h}
  - alert: Same
    expr: uma_memory_free_bytes < 0
- name: other
  rules:
  - alert: Same
    expr: uma_memory_free_bytes < 0
";

pub fn moment(step: u64) -> Moment {
    let since = INTERVAL * u32::try_from(step).unwrap();
    let utc = Timestamp::from_second(1_795_000_000).unwrap();
    Moment { uptime: Duration::from_secs(1000) + since, utc: utc + since }
}

fn begin(mode: Mode) -> SegmentBegin {
    let rules = RecordedRules {
        mode,
        evaluation_interval: INTERVAL,
        guard_rails: Value::Null,
        overrides: Value::Null,
        assessment: AssessmentLimits::default(),
        forget_received_after: FORGET_RECEIVED_AFTER,
        cluster: None,
        files: vec![RuleText { name: "rules.yaml".to_owned(), text: RULES.to_owned() }],
    };
    SegmentBegin::of_process("boot", moment(0), DecisionId(1), rules)
}

/// The storage of a daemon, with its recording and journal.
pub struct Node {
    pub storage: tempfile::TempDir,
    policy: Policy,
    ring: RecordingRing,
    journal: Journal,
    schema: Arc<Schema>,
    step: u64,
    /// Outcomes of the decisions of the previous step.
    outcomes: Vec<Outcome>,
}

impl Node {
    pub fn new(mode: Mode, ring_bytes: u64) -> Self {
        let storage = tempfile::tempdir().unwrap();
        let rules = parse_rules(&[SourceText::new("rules.yaml", RULES)], INTERVAL);
        let rules = rules.unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let series = ["uma_memory_free_bytes", "uma_memory_reserve_bytes"];
        let series = series.iter().map(|name| SeriesKey::new(name, &[])).collect();
        let retention = Retention { max_age: Duration::from_secs(86_400), max_bytes: 64 << 20 };
        Self {
            policy: Policy::new(moment(0), mode, &rules, DecisionId(1)),
            ring: RecordingRing::new(&storage.path().join("recording"), ring_bytes, begin(mode)),
            journal: Journal::open(storage.path(), retention),
            storage,
            schema: Arc::new(Schema { series }),
            step: 0,
            outcomes: Vec::new(),
        }
    }

    /// Runs steps with `free` GiB of free memory and a reserve of 1 GiB.
    pub fn live(&mut self, steps: u64, free: Reading<f64>) -> &mut Self {
        for _ in 0..steps {
            let gib = f64::from(1 << 30);
            let readings = Readings {
                source: Source::Meminfo,
                schema: Arc::clone(&self.schema),
                values: vec![free.map(|free| free * gib), Reading::Value(gib)],
                took: Duration::ZERO,
                error: None,
            };
            let mut seen = vec![Observation::Readings(readings)];
            seen.extend(self.outcomes.drain(..).map(Observation::Outcome));
            self.take(seen);
        }
        self
    }

    fn take(&mut self, seen: Vec<Observation>) {
        let at = moment(self.step);
        self.step += 1;
        let step = self.policy.step(at, &seen);
        for change in &step.alerts {
            self.journal.record(&JournalEntry::Alert(change.clone()));
        }
        for aim_check in &step.aim_checks {
            self.journal.record(&JournalEntry::AimCheck(aim_check.clone()));
        }
        for decision in &step.decisions {
            self.journal.record(&JournalEntry::Decision(decision.clone()));
            if !decision.is_act() {
                continue;
            }
            let done = decision.mode == Mode::Enforce;
            let outcome = Outcome {
                decision: decision.id,
                action: decision.action.name().to_owned(),
                result: if done { OutcomeResult::Done } else { OutcomeResult::Skipped },
                ended: at,
                took: Duration::ZERO,
                effect: None,
            };
            self.journal.record(&JournalEntry::Outcome(outcome.clone()));
            self.outcomes.push(outcome);
        }
        let said = StepResult {
            events: step.events,
            alerts: step.alerts,
            decisions: step.decisions,
            aim_checks: step.aim_checks,
        };
        self.ring.take(&RecordingEntry::Step(RecordedStep { at, seen, said })).unwrap();
        self.ring.flush().unwrap();
    }

    /// Waits until everything is written to the journal.
    pub fn settle(&self) -> &Self {
        self.journal.next_decision_id(moment(0).utc, Duration::from_secs(30));
        self
    }

    fn explain(&self, arguments: &[&str]) -> (i32, String) {
        self.settle();
        explain(self.storage.path(), arguments)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        let (code, text) = self.explain(&arguments);
        assert_eq!(code, 0, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    fn sentence(&self, arguments: &[&str]) -> String {
        self.json(arguments)["sentence"].as_str().unwrap().to_owned()
    }
}

/// Exit code, and the text of both outputs.
fn explain(storage: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::cargo_bin("umawarden").unwrap();
    command.env_remove("STATE_DIRECTORY").arg("explain").args(arguments);
    let output = command.arg("--storage.path").arg(storage).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

pub fn gib(free: f64) -> Reading<f64> {
    Reading::Value(free)
}

/// The time of a step in the form of `--at`.
fn at(step: u64) -> String {
    moment(step).utc.to_string()
}

pub const RING: u64 = 16 << 20;

#[test]
fn each_state_has_its_own_reason() {
    let mut node = Node::new(Mode::Observe, RING);
    node.live(20, gib(9.0));
    assert_eq!(
        node.sentence(&["Low"]),
        "It did not act because its condition does not hold: `uma_memory_free_bytes < 2 * \
         uma_memory_reserve_bytes` is false, 9.0 GiB against 2.0 GiB."
    );
    node.live(3, gib(1.5));
    assert_eq!(
        node.sentence(&["memory/Low"]),
        "It did not act because its condition has held for 200ms only, and must for 300ms."
    );
    node.live(1, gib(1.5));
    let acted = "It would have acted (drop_caches pagecache, at 2026-11-18T11:06:42.300Z) but mode \
                 is observe.";
    assert_eq!(node.sentence(&["Low"]), acted);
    node.live(2, gib(1.5));
    assert_eq!(
        node.sentence(&["Low"]),
        "It did not act because it rests for 4s800ms more, of 5s (cooldown)."
    );
    node.live(5, Reading::Failed);
    assert_eq!(
        node.sentence(&["Low"]),
        "It did not act because its condition is unknown: uma_memory_free_bytes: reading failed."
    );
    node.live(100, gib(1.5));
    let budget = node.sentence(&["Low"]);
    assert!(
        budget.starts_with(
            "It did not act because its budget is used up: 2 of 2 used in the last 1h, the next in \
             59m"
        ),
        "{budget}"
    );
    // A query about an earlier time gives the state of that time.
    assert_eq!(node.sentence(&["Low", "--at", &at(23)]), acted);
    let seconds = (moment(21).utc.as_millisecond() as f64 / 1000.0).to_string();
    assert!(node.sentence(&["Low", "--at", &seconds]).contains("held for 100ms only"));
}

#[test]
fn an_act_is_explained_with_its_effect() {
    let mut node = Node::new(Mode::Enforce, RING);
    node.live(20, gib(9.0)).live(4, gib(1.5));
    assert_eq!(
        node.sentence(&["Low"]),
        "It acted (drop_caches pagecache, at 2026-11-18T11:06:42.300Z), and its effect is not \
         measured yet."
    );
    node.live(5, gib(8.5));
    assert_eq!(
        node.sentence(&["Low"]),
        "It acted (drop_caches pagecache, at 2026-11-18T11:06:42.300Z), and the aim was met. Its \
         condition does not hold any more."
    );
    let json = node.json(&["Low"]);
    let rail = |reason: &str| {
        let rails = json["remedy"]["guard_rails"].as_array().unwrap();
        rails.iter().find(|rail| rail["reason"] == reason).unwrap().clone()
    };
    assert_eq!(
        (rail("cooldown")["holds"].as_bool(), rail("busy")["holds"].as_bool()),
        (Some(true), Some(false))
    );
    let budget = rail("budget");
    assert_eq!((budget["used"].as_u64(), budget["at_most"].as_u64()), (Some(1), Some(2)));
    let left = rail("cooldown")["left_seconds"].as_f64().unwrap();
    assert!(left > 4.0 && left < 5.0, "{left}");
    assert_eq!(json["decisions"][0]["aim_check"]["aim_met"], true);
}

#[test]
fn the_table_shows_each_subexpression_with_its_value() {
    let mut node = Node::new(Mode::Observe, RING);
    node.live(20, gib(9.0)).live(4, gib(1.5));
    let (code, text) = node.explain(&["Low"]);
    assert_eq!(code, 0);
    let rows = [
        "  and                                                    1.5 GiB",
        "    uma_memory_free_bytes < 2 * uma_memory_reserve_bytes  1.5 GiB",
        "      2 * uma_memory_reserve_bytes                        2.0 GiB",
        "        uma_memory_free_bytes[1s]                         10 samples from 9.0 GiB to 1.5 \
         GiB, least 1.5 GiB, greatest 9.0 GiB",
        "state       firing since 2026-11-18T11:06:42.300Z, mode observe",
        "aim         missed",
        "  1 drop_caches pagecache  ← under way, #3",
        "  holds  busy                the action of #3 is under way for 0s",
        "  holds  mode                observe: actions are only reported",
    ];
    for row in rows {
        let row = row.trim_start_matches("  and");
        assert!(text.contains(row), "{row:?} is not in\n{text}");
    }
    assert!(text.contains("from the recording"), "{text}");
    assert!(text.contains("# the recording ends at 2026-11-18T11:06:42.300Z"), "{text}");
}

#[test]
fn a_recording_that_begins_later_is_completed_from_the_journal() {
    let mut node = Node::new(Mode::Observe, 256 << 10);
    node.live(4, gib(1.5)).live(10, gib(9.0));
    let whole = node.json(&["Low"]);
    assert_eq!(whole["from_process_start"], true);
    // The first of many segments are removed.
    node.live(3000, gib(9.0)).live(1, gib(9.5));
    let recording = node.storage.path().join("recording");
    for path in segment_files(&recording).iter().take(2) {
        std::fs::remove_file(path).unwrap();
    }
    let later = node.json(&["Low"]);
    assert_eq!(later["from_process_start"], false);
    let remarks = later["remarks"].to_string();
    assert!(remarks.contains("not from where the process started"), "{remarks}");
    let rails = later["remedy"]["guard_rails"].as_array().unwrap();
    let budget = rails.iter().find(|rail| rail["reason"] == "budget").unwrap();
    assert_eq!(budget["used"], 1, "the earlier act counts");
    assert_eq!(
        (&later["state"], later["since_is_exact"].as_bool()),
        (&"inactive".into(), Some(true))
    );
    assert_eq!(later["since"], at(4), "from the journal");
}

#[test]
fn a_time_without_a_daemon_is_explained_by_the_last_recorded_state() {
    let mut node = Node::new(Mode::Observe, RING);
    node.live(20, gib(9.0)).live(4, gib(1.5));
    let (then, ended) = (at(24 + 4_000), at(23));
    let json = node.json(&["Low", "--at", &then]);
    assert_eq!((&json["source"], &json["state"]), (&"recording".into(), &"firing".into()));
    let time: Timestamp = json["time"].as_str().unwrap().parse().unwrap();
    assert_eq!(time.to_string(), ended);
    let remarks = json["remarks"].to_string();
    assert!(remarks.contains("did not run, or did not record"), "{remarks}");
    // A journal entry in between shows that the daemon ran.
    let note = Note { at: moment(1_000), text: "reload".to_owned() };
    node.journal.record(&JournalEntry::Note(note));
    assert_eq!(node.json(&["Low", "--at", &then])["source"], "journal");
}

#[test]
fn without_a_recording_the_journal_supplies_the_values_of_its_decisions() {
    let mut node = Node::new(Mode::Observe, RING);
    node.live(20, gib(9.0)).live(10, gib(1.5));
    std::fs::remove_dir_all(node.storage.path().join("recording")).unwrap();
    let (code, text) = node.explain(&["Low"]);
    assert_eq!(code, 2);
    assert!(text.contains("no rule \"Low\" among those that are inside the binary"), "{text}");
    let (code, text) = node.explain(&["restarts/vllm"]);
    assert_eq!(code, 2);
    assert!(text.contains("`umawarden engines` shows the state of vllm"), "{text}");
    let rules = node.storage.path().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    let rules = rules.to_str().unwrap();
    let json = node.json(&["Low", "--rules", rules]);
    assert_eq!((&json["source"], &json["state"]), (&"journal".into(), &"firing".into()));
    assert_eq!(
        json["sentence"],
        "It did not act because it rests for 4s900ms more, of 5s (cooldown)."
    );
    let parts = json["condition"]["parts"].as_array().unwrap();
    assert_eq!(parts[0]["vector"][0]["value"], 1.5 * f64::from(1 << 30));
    assert!(parts[1]["unknown"].to_string().contains("only present values are kept"));
    assert!(json["condition"]["unknown"].is_array());
    let (code, text) = node.explain(&["Low", "--rules", rules, "--at", &at(10)]);
    assert_eq!(code, 2);
    let expected = "the journal holds no decision of it up to then; without --at it explains the";
    assert!(text.contains(expected), "{text}");
    let (code, text) = explain(Path::new("/nowhere"), &["Low"]);
    assert_eq!(code, 2);
    assert!(text.contains("nothing is known: there is no recording, and there is no"), "{text}");
}

#[test]
fn wrong_names_and_times_get_helpful_errors() {
    let mut node = Node::new(Mode::Observe, RING);
    node.live(20, gib(9.0));
    for (arguments, expected) in [
        (&["Lwo"][..], "(did you mean \"Low\"?)"),
        (&["memory/Lw"], "(did you mean \"memory/Low\"?)"),
        (&["Same"], "Same is ambiguous: give memory/Same or other/Same"),
        (&["Low", "--at", "soon"], "expected 2h or -2h"),
        (&["Low", "--at", "2020-01-01"], "nothing is recorded of that time, the recording begins"),
        (&["Low", "--recording", "/nowhere"], "cannot read /nowhere"),
        (&["Low", "--recording", "/etc/passwd"], "is not a recording that this build can read"),
    ] {
        let (code, text) = node.explain(arguments);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains(expected), "{expected:?} is not in {text}");
    }
    assert_eq!(node.explain(&["other/Same"]).0, 0);
}

#[test]
fn an_incident_file_of_another_machine_suffices() {
    let mut node = Node::new(Mode::Observe, RING);
    node.live(20, gib(9.0)).live(4, gib(1.5));
    let recording = node.storage.path().join("recording");
    let file = segment_files(&recording).remove(0);
    let arguments = ["Low", "--json", "--recording", file.to_str().unwrap()];
    let (code, text) = explain(Path::new("/nowhere"), &arguments);
    assert_eq!(code, 0, "{text}");
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["decisions"].as_array().unwrap().len(), 1, "decisions are in the file, too");
    assert!(json["sentence"].as_str().unwrap().starts_with("It would have acted"));
}

fn release(engine: &str, step: u64, end: ReleaseEnd) -> Event {
    let memory = |unaccounted| ReleaseMemory {
        unaccounted,
        shmem: Some(2 << 30),
        page_cache: Some(7 << 30),
        orphans: 0,
    };
    let is_unknown = end == ReleaseEnd::Unknown;
    let owned = memory((!is_unknown).then_some(80 << 30));
    let outstanding = memory((!is_unknown).then_some(20 << 30));
    let release = Release {
        end,
        seconds: 3.25,
        owned,
        outstanding,
        orphans: Vec::new(),
        curve: vec![ReleasePoint { seconds: 1.5, outstanding, free: Some(5 << 30) }],
        why_unknown: is_unknown.then_some(WhyUnknown::OtherEngines),
    };
    let kind = ProgramEvent::EngineRelease {
        engine: engine.to_owned(),
        pid: 4711,
        release: Box::new(release),
    };
    Event { kind: kind.into(), utc: Some(moment(step).utc), seq: None }
}

#[test]
fn the_release_of_memory_is_explained_from_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let retention = Retention { max_age: Duration::from_secs(40_000 * 86_400), max_bytes: 1 << 30 };
    let journal = Journal::open(dir.path(), retention);
    let events = vec![
        release("chat", 1, ReleaseEnd::Returned),
        release("other", 2, ReleaseEnd::Overtaken),
        release("chat", 3, ReleaseEnd::Unknown),
    ];
    journal.record(&JournalEntry::KernelLog { boot_id: Arc::from("b"), events, resume_seq: 1 });
    journal.close(Duration::from_secs(10)).unwrap();
    let explain = |arguments: &[&str]| {
        let mut command = Command::cargo_bin("umawarden").unwrap();
        command.args(["explain", "--release"]).args(arguments);
        let output = command.arg("--storage.path").arg(dir.path()).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = explain(&["chat"]);
    assert_eq!(code, 0);
    for expected in [
        "chat (pid 4711), reported at 2026",
        "all of it came back within 3.2s",
        "in no counter (driver)   80.0 GiB     20.0 GiB",
        "page cache                7.0 GiB      7.0 GiB",
        "1.5s       22.0 GiB    5.0 GiB",
        "what it owned is unknown, since another engine came or went in that time",
        "  unknown: in no counter (driver)\n",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    assert_eq!(text.matches("outstanding       free").count(), 1, "no curve of what is unknown");
    assert!(!text.contains("other (pid"), "{text}");
    let (_, all) = explain(&["--json"]);
    let all: Vec<Value> = all.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ends: Vec<&Value> = all.iter().map(|one| &one["release"]["end"]).collect();
    assert_eq!(ends, ["returned", "overtaken", "unknown"]);
    assert_eq!(all[2]["release"]["why_unknown"], "other_engines");
    let until = moment(2).utc.to_string();
    let (_, before) = explain(&["chat", "--at", &until]);
    assert!(!before.contains("is unknown") && before.contains("came back"), "{before}");
    assert_eq!(explain(&["nobody"]).0, 2);
    let mut both = Command::cargo_bin("umawarden").unwrap();
    let both = both.args(["explain", "Low", "--release", "chat"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2), "a rule or an engine");
}
