//! Settings of a simulated machine, as files, and the program's own executor with its undo log.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tempfile::TempDir;
use umawarden::actions::{
    CacheEmptier, EmptyingTally, Evictor, Executor as _, MemoryExecutor, MemorySetup,
    SettingsTally, TemporarySettings, TemporarySetup,
};
use umawarden::model::{DecisionRecord, Moment, OutcomeResult};

use super::chance::Chance;
use super::checker::Violation;

/// Each with its value after a boot. All values of one are equally long: unlike the kernel's, these
/// files keep the rest of a longer value.
const BOOTED: [(&str, &str); 4] = [
    ("proc/sys/vm/swappiness", "60"),
    ("proc/sys/vm/vfs_cache_pressure", "100"),
    ("proc/sys/vm/compaction_proactiveness", "20"),
    ("sys/dev/block/8:0/queue/read_ahead_kb", "256"),
];

/// Values that another program may write, and no rule does.
const OF_OTHERS: [[&str; 2]; 4] = [["61", "62"], ["101", "102"], ["21", "22"], ["257", "258"]];

/// Values that rules set.
pub const STEPS: [&str; 5] = [
    "set_sysctl: {vm.swappiness: 10, for: TIME}",
    "set_sysctl: {vm.swappiness: 11, vm.vfs_cache_pressure: 500, for: TIME}",
    "set_sysctl: {vm.compaction_proactiveness: 99, for: TIME}",
    "throttle_readahead: {kib: 128, devices: [sda], for: TIME}",
    "throttle_readahead: {kib: 100, devices: [sda], for: TIME}",
];

pub struct Settings {
    folder: TempDir,
    /// The value of each without this program.
    own: BTreeMap<&'static str, String>,
    acting: Option<MemoryExecutor>,
}

fn clock() -> Moment {
    Moment { uptime: Duration::from_secs(60), utc: Timestamp::UNIX_EPOCH }
}

impl Settings {
    pub fn new() -> Self {
        // Every change is written through to disk: that must take no time here.
        let memory = Path::new("/dev/shm");
        let folder = TempDir::new_in(memory).or_else(|_| TempDir::new()).unwrap();
        for below in ["proc/sys/vm", "sys/dev/block/8:0/queue", "sys/class/block"] {
            fs::create_dir_all(folder.path().join(below)).unwrap();
        }
        let disk = folder.path().join("sys/dev/block/8:0");
        fs::rename(&disk, folder.path().join("sys/sda")).unwrap();
        symlink("../../sda", &disk).unwrap();
        symlink("../../sda", folder.path().join("sys/class/block/sda")).unwrap();
        fs::write(folder.path().join("sys/sda/dev"), "8:0\n").unwrap();
        let mut settings = Self { folder, own: BTreeMap::new(), acting: None };
        settings.boot();
        settings
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    pub fn boot(&mut self) {
        for (name, value) in BOOTED {
            fs::write(self.path(name), format!("{value}\n")).unwrap();
            self.own.insert(name, value.to_owned());
        }
    }

    /// A process starts, and restores the settings that an earlier one has left.
    pub fn begin(&mut self, boot_id: &str) -> Result<(), Violation> {
        let temporary = TemporarySettings::new(TemporarySetup {
            procfs: self.path("proc"),
            sysfs: self.path("sys"),
            storage: self.path("storage"),
            boot_id: Some(boot_id.to_owned()),
            clock,
            report: Box::new(|_| {}),
            tally: Arc::new(SettingsTally::default()),
        });
        let emptier = CacheEmptier {
            procfs: self.path("proc"),
            uptime: || Duration::ZERO,
            sleep: |_| {},
            tally: Arc::new(EmptyingTally::default()),
        };
        let mut acting = MemoryExecutor::new(MemorySetup {
            procfs: self.path("proc"),
            sysfs: self.path("sys"),
            evictor: Evictor::new(|| Duration::ZERO),
            temporary,
            emptier,
        });
        acting.begin();
        self.acting = Some(acting);
        self.are_back("after a start")
    }

    /// Executes the decision.
    pub fn execute(&mut self, decision: &DecisionRecord) -> OutcomeResult {
        match &mut self.acting {
            Some(acting) => acting.execute(&crate::actions::act(decision.clone())).result,
            None => OutcomeResult::NotDone("no action".to_owned()),
        }
    }

    /// The process ends cleanly.
    pub fn end(&mut self) -> Result<(), Violation> {
        let Some(mut acting) = self.acting.take() else { return Ok(()) };
        acting.end();
        drop(acting);
        self.are_back("after a shutdown")
    }

    /// The process is gone.
    pub fn crash(&mut self) {
        self.acting = None;
    }

    /// Another program changes one.
    pub fn intervene(&mut self, chance: &mut Chance) {
        let number = chance.whole(0..=BOOTED.len() as u64 - 1) as usize;
        let (name, _) = BOOTED[number];
        let value = *chance.one_of(&OF_OTHERS[number]);
        fs::write(self.path(name), format!("{value}\n")).unwrap();
        self.own.insert(name, value.to_owned());
    }

    /// Whether all have the values that they have without this program.
    pub fn are_back(&self, when: &str) -> Result<(), Violation> {
        for (name, own) in &self.own {
            let now = fs::read_to_string(self.path(name)).unwrap();
            if now.trim() != own {
                let what = format!("{name} is {} and not {own} {when}", now.trim());
                return Err(Violation { invariant: "a temporary setting is restored", what });
            }
        }
        Ok(())
    }
}
