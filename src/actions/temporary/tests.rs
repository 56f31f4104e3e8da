use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;

use jiff::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::actions::tests::decision;
use crate::model::{Action, Grade, OutcomeResult, UndoReason};

fn now() -> Moment {
    Moment { uptime: Duration::from_secs(60), utc: Timestamp::UNIX_EPOCH }
}

/// As long as the new value: a file, unlike sysfs, keeps the rest of a longer one.
fn usual() -> String {
    "9".repeat((procfs::page_size() / 1024).to_string().len())
}

/// A machine made of files, and the reports of umawarden.
struct Bench {
    folder: TempDir,
    reports: Arc<Mutex<Vec<String>>>,
    tally: Arc<SettingsTally>,
}

impl Bench {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let bench = Self { folder, reports: Arc::default(), tally: Arc::default() };
        fs::create_dir_all(bench.path("proc/sys/vm")).unwrap();
        for (sysctl, value) in [
            ("swappiness", "60"),
            ("vfs_cache_pressure", "100"),
            ("dirty_ratio", "20"),
            ("dirty_bytes", "0"),
            ("min_free_kbytes", "45000"),
        ] {
            fs::write(bench.path(&format!("proc/sys/vm/{sysctl}")), format!("{value}\n")).unwrap();
        }
        fs::write(bench.path("proc/meminfo"), "MemTotal:       8000000 kB\n").unwrap();
        bench
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    fn vm(&self, name: &str) -> String {
        fs::read_to_string(self.path("proc/sys/vm").join(name)).unwrap().trim().to_owned()
    }

    fn write_vm(&self, name: &str, value: &str) {
        fs::write(self.path("proc/sys/vm").join(name), value).unwrap();
    }

    fn process(&self, boot_id: &str) -> TemporarySettings {
        let reports = Arc::clone(&self.reports);
        let mut process = TemporarySettings::new(TemporarySetup {
            procfs: self.path("proc"),
            sysfs: self.path("sys"),
            storage: self.path("storage"),
            boot_id: Some(boot_id.to_owned()),
            clock: now,
            report: Box::new(move |text| reports.lock().unwrap().push(text)),
            tally: Arc::clone(&self.tally),
        });
        process.begin();
        process
    }

    fn take_reports(&self) -> Vec<String> {
        std::mem::take(&mut *self.reports.lock().unwrap())
    }

    fn in_force(&self) -> Vec<&'static str> {
        let names = crate::model::SETTING_NAMES.into_iter().zip(self.tally.in_force());
        names.filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect()
    }

    /// Disks as sysfs shows them: a disk, its partition, a mapped device.
    fn with_disks(self) -> Self {
        for (folder, numbers) in [
            ("devices/pci/nvme0n1", "259:0"),
            ("devices/pci/nvme0n1/nvme0n1p2", "259:2"),
            ("devices/virtual/block/dm-0", "253:0"),
        ] {
            let folder = self.path("sys").join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("dev"), format!("{numbers}\n")).unwrap();
            let name = folder.file_name().unwrap();
            for links in ["class/block", "dev/block"] {
                fs::create_dir_all(self.path("sys").join(links)).unwrap();
            }
            let link = |path: &Path| std::os::unix::fs::symlink(&folder, path).unwrap();
            link(&self.path("sys/class/block").join(name));
            link(&self.path("sys/dev/block").join(numbers));
            if numbers == "259:2" {
                fs::write(folder.join("partition"), "2\n").unwrap();
            } else {
                fs::create_dir(folder.join("queue")).unwrap();
                fs::write(folder.join("queue/read_ahead_kb"), usual()).unwrap();
            }
        }
        self
    }

    fn read_ahead(&self, disk: &str) -> String {
        let path = self.path("sys").join(disk).join("queue/read_ahead_kb");
        fs::read_to_string(path).unwrap().trim().to_owned()
    }
}

fn set(id: u64, values: &[(Sysctl, u32)]) -> DecisionRecord {
    let values: BTreeMap<Sysctl, u32> = values.iter().copied().collect();
    decision(id, Action::SetSysctl { values, for_at_most: Duration::from_secs(60) })
}

fn undo(act: u64) -> DecisionRecord {
    let why = UndoReason::AlertEnded;
    decision(act + 100, Action::Undo { decision: DecisionId(act), why, grade: Grade::Drop })
}

fn throttle(id: u64, devices: &[&str], of: &[&str]) -> DecisionRecord {
    let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let (devices, of) = (own(devices), own(of));
    let for_at_most = Duration::from_secs(60);
    decision(id, Action::ThrottleReadahead { kib: 1, devices, of, for_at_most })
}

/// As the executor of the ordinary lane does it.
fn perform(process: &mut TemporarySettings, decision: &DecisionRecord) -> OutcomeResult {
    let done = match &decision.action {
        Action::SetSysctl { values, for_at_most } => {
            process.set_sysctls(decision, values, *for_at_most)
        }
        Action::ThrottleReadahead { kib, devices, of, for_at_most } => {
            process.throttle_readahead(decision, *kib, (devices, of), *for_at_most)
        }
        Action::Undo { decision, .. } => process.undo(*decision),
        other => panic!("{other:?}"),
    };
    done.map_or_else(OutcomeResult::Failed, |()| OutcomeResult::Done)
}

fn error(result: OutcomeResult) -> String {
    match result {
        OutcomeResult::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}

const BOTH: [(Sysctl, u32); 2] = [(Sysctl::Swappiness, 10), (Sysctl::VfsCachePressure, 200)];

#[test]
fn a_setting_is_in_force_until_its_undo() {
    let bench = Bench::new();
    let mut process = bench.process("boot");
    assert_eq!(perform(&mut process, &set(1, &BOTH)), OutcomeResult::Done);
    assert_eq!(
        (bench.vm("swappiness"), bench.vm("vfs_cache_pressure")),
        ("10".into(), "200".into())
    );
    assert_eq!(bench.in_force(), ["vm.vfs_cache_pressure", "vm.swappiness"]);
    assert_eq!(perform(&mut process, &undo(1)), OutcomeResult::Done);
    assert_eq!(
        (bench.vm("swappiness"), bench.vm("vfs_cache_pressure")),
        ("60".into(), "100".into())
    );
    assert!(bench.in_force().is_empty());
    assert!(bench.take_reports().is_empty(), "the decisions report it");
    assert_eq!(perform(&mut process, &undo(1)), OutcomeResult::Done, "there is nothing left");
    assert_eq!(bench.tally.undone().iter().sum::<u64>(), 2);
}

#[test]
fn the_end_of_the_process_restores_all_settings() {
    let bench = Bench::new();
    let mut process = bench.process("boot");
    perform(&mut process, &set(1, &BOTH[..1]));
    perform(&mut process, &set(2, &BOTH[1..]));
    process.end();
    assert_eq!(
        (bench.vm("swappiness"), bench.vm("vfs_cache_pressure")),
        ("60".into(), "100".into())
    );
    let reports = bench.take_reports();
    assert_eq!(reports.len(), 2);
    assert!(
        reports[0].starts_with("vm.vfs_cache_pressure is 100 again"),
        "the last first: {reports:?}"
    );
}

#[test]
fn the_next_start_restores_the_settings_of_a_killed_process() {
    let bench = Bench::new();
    let mut killed = bench.process("boot");
    perform(&mut killed, &set(1, &BOTH));
    drop(killed);
    assert_eq!(bench.vm("swappiness"), "10");
    let _next = bench.process("boot");
    assert_eq!(
        (bench.vm("swappiness"), bench.vm("vfs_cache_pressure")),
        ("60".into(), "100".into())
    );
    assert!(
        bench
            .take_reports()
            .iter()
            .all(|report| report.contains("after an end that was none in order"))
    );
    drop(_next);
    bench.write_vm("swappiness", "10");
    let _third = bench.process("boot");
    assert_eq!(bench.vm("swappiness"), "10", "what is undone is not undone again");
}

#[test]
fn after_a_reboot_nothing_is_undone() {
    let bench = Bench::new();
    let mut killed = bench.process("boot");
    perform(&mut killed, &set(1, &BOTH));
    drop(killed);
    drop(bench.process("another boot"));
    assert_eq!(bench.vm("swappiness"), "10", "as this boot has set it");
    drop(bench.process("boot"));
    assert_eq!(bench.vm("swappiness"), "10", "the record is closed");
}

#[test]
fn a_setting_changed_by_others_is_left_alone_and_reported() {
    let bench = Bench::new();
    let mut process = bench.process("boot");
    perform(&mut process, &set(1, &BOTH));
    bench.write_vm("swappiness", "33");
    assert_eq!(perform(&mut process, &undo(1)), OutcomeResult::Done);
    assert_eq!(
        (bench.vm("swappiness"), bench.vm("vfs_cache_pressure")),
        ("33".into(), "100".into())
    );
    let reports = bench.take_reports();
    assert!(
        reports.len() == 1 && reports[0].starts_with("vm.swappiness is left at 33"),
        "{reports:?}"
    );
    assert_eq!(bench.tally.undone(), [1, 0, 1, 0]);
}

#[test]
fn no_setting_changes_without_an_undo_log() {
    let bench = Bench::new();
    fs::write(bench.path("storage"), "a file where the folder should be").unwrap();
    let mut process = bench.process("boot");
    assert!(error(perform(&mut process, &set(1, &BOTH))).contains("undo log"));
    let mut nameless = bench.process("boot");
    nameless.boot_id = None;
    fs::remove_file(bench.path("storage")).unwrap();
    assert!(error(perform(&mut nameless, &set(1, &BOTH))).contains("boot"));
    assert_eq!(
        (bench.vm("swappiness"), bench.vm("vfs_cache_pressure")),
        ("60".into(), "100".into())
    );
}

#[test]
fn a_partly_failed_act_leaves_no_setting_behind() {
    let bench = Bench::new();
    let mut process = bench.process("boot");
    // Reads as before, whatever is written to it.
    fs::remove_file(bench.path("proc/sys/vm/swappiness")).unwrap();
    std::os::unix::fs::symlink("/dev/null", bench.path("proc/sys/vm/swappiness")).unwrap();
    let text = error(perform(&mut process, &set(1, &BOTH)));
    assert!(text.contains("vm.swappiness was set to 10 and says"), "{text}");
    assert_eq!(bench.vm("vfs_cache_pressure"), "100");
    assert!(bench.in_force().is_empty());
}

#[test]
fn a_setting_in_force_is_not_set_by_another_act() {
    let bench = Bench::new();
    let mut process = bench.process("boot");
    perform(&mut process, &set(1, &BOTH[..1]));
    let text = error(perform(&mut process, &set(2, &[(Sysctl::Swappiness, 5)])));
    assert!(text.contains("vm.swappiness is held by #1 of g/A"), "{text}");
    assert_eq!(bench.vm("swappiness"), "10");
}

#[test]
fn settings_dangerous_for_this_machine_are_refused() {
    let bench = Bench::new();
    let mut process = bench.process("boot");
    let text = error(perform(&mut process, &set(1, &[(Sysctl::MinFreeKbytes, 2_000_001)])));
    assert!(text.contains("more than a quarter"), "{text}");
    bench.write_vm("dirty_bytes", "268435456");
    let text = error(perform(&mut process, &set(2, &[(Sysctl::DirtyRatio, 5)])));
    assert!(text.contains("dirty_bytes is in force with 268435456"), "{text}");
    assert_eq!(
        (bench.vm("min_free_kbytes"), bench.vm("dirty_ratio")),
        ("45000".into(), "20".into())
    );
}

#[test]
fn a_process_without_changes_creates_no_file() {
    let bench = Bench::new();
    bench.process("boot").end();
    assert!(!bench.path("storage").exists());
}

#[test]
fn readahead_of_a_partition_is_that_of_its_disk_and_of_a_mapped_device_its_own() {
    let bench = Bench::new().with_disks();
    let mut process = bench.process("boot");
    let act = throttle(1, &["nvme0n1p2", "nvme0n1", "dm-0"], &[]);
    assert_eq!(perform(&mut process, &act), OutcomeResult::Done);
    let page_kib = (procfs::page_size() / 1024).to_string();
    for disk in ["devices/pci/nvme0n1", "devices/virtual/block/dm-0"] {
        assert_eq!(bench.read_ahead(disk), page_kib, "in whole pages");
    }
    assert_eq!(perform(&mut process, &undo(1)), OutcomeResult::Done);
    assert_eq!(bench.read_ahead("devices/pci/nvme0n1"), usual());
}

#[test]
fn a_disk_with_reused_device_numbers_is_left_alone() {
    let bench = Bench::new().with_disks();
    let mut process = bench.process("boot");
    perform(&mut process, &throttle(1, &["dm-0"], &[]));
    fs::remove_file(bench.path("sys/dev/block/253:0")).unwrap();
    let other = bench.path("sys/devices/pci/nvme0n1");
    std::os::unix::fs::symlink(other, bench.path("sys/dev/block/253:0")).unwrap();
    assert_eq!(perform(&mut process, &undo(1)), OutcomeResult::Done);
    assert_eq!(bench.read_ahead("devices/pci/nvme0n1"), usual());
    assert!(bench.take_reports()[0].starts_with("read_ahead_kb of dm-0 has gone"));
}

#[test]
fn the_error_for_a_path_on_no_disk_names_its_file_system() {
    let bench = Bench::new().with_disks();
    let mut process = bench.process("boot");
    let text = error(perform(&mut process, &throttle(1, &[], &["/proc"])));
    assert!(text.contains("/proc is on a file system of type 0x9fa0"), "{text}");
    let text = error(perform(&mut process, &throttle(2, &[], &["/nowhere/at/all"])));
    assert!(text.contains("reading /nowhere/at/all failed"), "{text}");
    let text = error(perform(&mut process, &throttle(3, &["sdz"], &[])));
    assert!(text.contains("there is no block device sdz"), "{text}");
}
