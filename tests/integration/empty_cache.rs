//! The action `empty_cache`, against fake servers that replay real responses and against hostile
//! ones.

mod calls;
pub mod fake;
mod hostile;
mod keys;
mod network;
mod paused;
pub mod process;
mod testkit;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use umawarden::actions::{
    CacheEmptier, EmptyingTally, Evictor, Executor, MemoryExecutor, MemorySetup, Performed,
    SettingsTally, TemporarySettings, TemporarySetup,
};
use umawarden::model::{
    Action, CachePermission, DecisionRecord, EngineKeys, EngineKind, EngineTarget, Moment,
    OutcomeResult, ProcessId, Target,
};
use umawarden::parse::process::stat;

use crate::engines::live::uptime;

const GIB: u64 = 1 << 30;

fn now() -> Moment {
    Moment { uptime: Duration::from_secs(60), utc: Timestamp::UNIX_EPOCH }
}

/// A fake node (`proc` and the undo log are files) whose engine is this test process.
struct Bench {
    folder: tempfile::TempDir,
    tally: Arc<EmptyingTally>,
    reports: Arc<Mutex<Vec<String>>>,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bench = Self { folder, tally: Arc::default(), reports: Arc::default() };
        let pid = std::process::id().to_string();
        fs::create_dir(bench.path("proc")).unwrap();
        std::os::unix::fs::symlink(format!("/proc/{pid}"), bench.path("proc").join(pid)).unwrap();
        set_free(&bench.path("proc"), 10 * GIB);
        bench
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    fn undo_log(&self) -> String {
        fs::read_to_string(self.path("storage/undo.log")).unwrap_or_default()
    }

    /// Reports since the last call.
    fn take_reports(&self) -> Vec<String> {
        std::mem::take(&mut *self.reports.lock().unwrap())
    }

    /// The temporary settings of a process in that boot.
    fn temporary(&self, boot_id: &str) -> TemporarySettings {
        let reports = Arc::clone(&self.reports);
        TemporarySettings::new(TemporarySetup {
            procfs: self.path("proc"),
            sysfs: self.path("sys"),
            storage: self.path("storage"),
            boot_id: Some(boot_id.to_owned()),
            clock: now,
            report: Box::new(move |text| reports.lock().unwrap().push(text)),
            tally: Arc::new(SettingsTally::default()),
        })
    }

    /// An executor in a new process of that boot, after it has undone an earlier process's changes.
    fn process(&self, boot_id: &str) -> MemoryExecutor {
        self.process_over(self.temporary(boot_id))
    }

    fn process_over(&self, temporary: TemporarySettings) -> MemoryExecutor {
        let sleep = |_| std::thread::sleep(Duration::from_millis(1));
        let (procfs, tally) = (self.path("proc"), Arc::clone(&self.tally));
        let emptier = CacheEmptier { procfs, uptime, sleep, tally };
        let mut acting = MemoryExecutor::new(MemorySetup {
            procfs: self.path("proc"),
            sysfs: self.path("sys"),
            evictor: Evictor::new(|| Duration::ZERO),
            temporary,
            emptier,
        });
        acting.begin();
        acting
    }

    /// Executes the decision; returns its result and effect.
    fn act(&self, decision: &DecisionRecord) -> (OutcomeResult, Option<String>) {
        let mut acting = self.process("boot");
        let Performed { result, effect } = acting.execute(&crate::actions::act(decision.clone()));
        acting.end();
        (result, effect)
    }

    /// The reason why the action failed; panics if it succeeded.
    fn refusal(&self, decision: &DecisionRecord) -> String {
        match self.act(decision) {
            (OutcomeResult::Failed(why), None) => why,
            other => panic!("{other:?}"),
        }
    }

    /// The effect of the action; panics if it failed.
    fn effect(&self, decision: &DecisionRecord) -> String {
        match self.act(decision) {
            (OutcomeResult::Done, Some(effect)) => effect,
            other => panic!("{other:?}"),
        }
    }
}

/// Writes a meminfo with `bytes` free; no counter shows the rest.
fn set_free(procfs: &Path, bytes: u64) {
    let line = |name: &str, bytes: u64| format!("{name}: {} kB\n", bytes / 1024);
    let zeros = ["Buffers", "Cached", "AnonPages", "Slab"].map(|name| line(name, 0)).concat();
    let text = line("MemTotal", 121 * GIB) + &line("MemFree", bytes) + &zeros;
    fs::write(procfs.join("meminfo"), text).unwrap();
}

fn own_id() -> ProcessId {
    let text = fs::read("/proc/self/stat").unwrap();
    ProcessId { pid: std::process::id(), start_ticks: stat(&text).unwrap().start_ticks }
}

fn engine(kind: EngineKind, port: u16) -> EngineTarget {
    EngineTarget {
        name: "llm".into(),
        processes: vec![own_id()],
        kind,
        health_url: Some(format!("http://127.0.0.1:{port}/health").into()),
        ..EngineTarget::default()
    }
}

fn decision(target: EngineTarget, allow: &[CachePermission]) -> DecisionRecord {
    let allow = allow.iter().copied().collect();
    let action = Action::EmptyCache { engine: target.name.to_string(), allow };
    let target = Target::Engine(Box::new(target));
    DecisionRecord { at: now(), target, ..crate::actions::decision(action) }
}

fn with_keys(target: EngineTarget, keys: EngineKeys) -> EngineTarget {
    EngineTarget { keys, ..target }
}
