//! Actions on the real kernel. Without root they are skipped with a message.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use umawarden::actions::{
    Act, CacheEmptier, Evictor, Executor as _, MemoryExecutor, MemorySetup, TemporarySettings,
    TemporarySetup,
};
use umawarden::model::{
    Action, CacheKind, Decision, DecisionId, DecisionRecord, Mode, Moment, OutcomeResult, RuleId,
    Target,
};

const RUN_BY_TEST: &str = "UMAWARDEN_TEST_PROCFS";

pub fn decision(action: Action) -> DecisionRecord {
    DecisionRecord {
        id: DecisionId(1),
        at: Moment { uptime: Duration::ZERO, utc: Timestamp::UNIX_EPOCH },
        rule: RuleId { group: Arc::from("memory"), alert: Arc::from("Test") },
        mode: Mode::Enforce,
        decision: Decision::Act,
        step: 0,
        action,
        target: Target::Node,
        approved: None,
        goes_ahead: None,
        because: Vec::new(),
    }
}

fn drop_page_cache(sync: bool) -> DecisionRecord {
    decision(Action::DropCaches { what: CacheKind::PageCache, sync })
}

pub fn act(decision: DecisionRecord) -> Act {
    Act::of(decision).unwrap()
}

/// The executor of the ordinary lane, without a folder for an undo log.
pub fn memory_executor(procfs: &str, evictor: Evictor) -> MemoryExecutor {
    MemoryExecutor::new(MemorySetup {
        procfs: procfs.into(),
        sysfs: "/sys".into(),
        evictor,
        temporary: TemporarySettings::new(TemporarySetup {
            procfs: procfs.into(),
            sysfs: "/sys".into(),
            storage: "/nonexistent".into(),
            boot_id: None,
            clock: || Moment { uptime: Duration::ZERO, utc: Timestamp::UNIX_EPOCH },
            report: Box::new(|text| panic!("{text}")),
            tally: Arc::default(),
        }),
        emptier: CacheEmptier {
            procfs: procfs.into(),
            uptime: || Duration::ZERO,
            sleep: std::thread::sleep,
            tally: Arc::default(),
        },
    })
}

fn perform(procfs: &str, decision: DecisionRecord) -> OutcomeResult {
    let evictor = Evictor::new(|| Duration::ZERO);
    memory_executor(procfs, evictor).execute(&act(decision)).result
}

fn may_act() -> bool {
    let writable = File::options().write(true).open("/proc/sys/vm/drop_caches");
    if let Err(error) = &writable {
        eprintln!("skipped: needs root and a writable /proc/sys: {error}");
    }
    writable.is_ok()
}

fn number(file: &str, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.split([' ', ':']).next() == Some(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn dropping_the_page_cache_frees_the_pages_of_a_file() {
    const FILE_KIB: u64 = 256 * 1024;
    if !may_act() {
        return;
    }
    // Not below /tmp, which may be a tmpfs, whose pages are never dropped.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("checkpoint");
    let mut file = File::create(&path).unwrap();
    let block = vec![0xa5; 1 << 20];
    (0..FILE_KIB / 1024).for_each(|_| file.write_all(&block).unwrap());
    drop(file);
    let mut file = File::open(&path).unwrap();
    let mut into = vec![0; 1 << 20];
    while file.read(&mut into).unwrap() > 0 {}
    let drops = number("/proc/vmstat", "drop_pagecache");
    let before = number("/proc/meminfo", "Cached");
    // Pages just written are dirty; only sync makes them reclaimable.
    assert_eq!(perform("/proc", drop_page_cache(true)), OutcomeResult::Done);
    let after = number("/proc/meminfo", "Cached");
    assert!(before > after + FILE_KIB / 2, "Cached: {before} kB before, {after} kB after");
    assert!(number("/proc/vmstat", "drop_pagecache") > drops);
}

#[test]
fn the_kernel_compacts_memory() {
    if !may_act() {
        return;
    }
    assert_eq!(perform("/proc", decision(Action::CompactMemory)), OutcomeResult::Done);
}

/// A control group of its own, on cgroup v1 or v2; removed when dropped.
struct Group(std::path::PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        // A busy group stays until its processes have ended.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn reclaim_frees_the_page_cache_of_a_control_group() {
    const FILE_BYTES: u64 = 128 << 20;
    let v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let root = if v2 { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/memory" };
    let name = format!("umawarden-test-{}", std::process::id());
    let group = Group(std::path::Path::new(root).join(&name));
    if let Err(error) = fs::create_dir(&group.0) {
        eprintln!("skipped: needs root and a writable {root}: {error}");
        return;
    }
    let in_use = group.0.join(if v2 { "memory.current" } else { "memory.usage_in_bytes" });
    if !in_use.exists() {
        eprintln!("skipped: {root} has no memory controller for its children");
        return;
    }
    // A shell joins the group and writes a file; the cache is charged to the group.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script = format!(
        "echo $$ > {}/cgroup.procs && head -c {FILE_BYTES} /dev/zero > {}/file && sync",
        group.0.display(),
        folder.path().display()
    );
    let used = || -> u64 { fs::read_to_string(&in_use).unwrap().trim().parse().unwrap() };
    // Repeated, since the kernel or another test may reclaim the cache first.
    let is_cached = (0..5).any(|_| {
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        used() > FILE_BYTES / 2
    });
    let before = used();
    assert!(is_cached, "the cache is not the group's: {before}");
    let reclaim = |cgroup: String| {
        let action = Action::Reclaim { cgroup, engine: None, bytes: FILE_BYTES / 2 };
        perform("/proc", DecisionRecord { target: action.target(), ..decision(action) })
    };
    assert_eq!(reclaim(format!("/{name}")), OutcomeResult::Done);
    let after = used();
    assert!(after < before - FILE_BYTES / 4, "{before} before, {after} after");
    let missing = reclaim(format!("/{name}/none"));
    assert!(
        matches!(&missing, OutcomeResult::Failed(text) if text.contains("has gone")),
        "{missing:?}"
    );
}

/// Not a test by itself: the tests below run it as another user.
#[test]
fn action_run_by_another_test() {
    let Ok(procfs) = std::env::var(RUN_BY_TEST) else { return };
    println!("{:?}", perform(&procfs, drop_page_cache(false)));
}

fn as_nobody(procfs: &str) -> String {
    // The build folder may be out of that user's reach.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let test = folder.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &test).unwrap();
    let output = Command::new(&test)
        .args(["actions::action_run_by_another_test", "--exact", "--nocapture"])
        .env(RUN_BY_TEST, procfs)
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_failure_without_root_names_the_file_and_the_fix() {
    if !may_act() {
        return;
    }
    let printed = as_nobody("/proc");
    let expected = "writing 1 to /proc/sys/vm/drop_caches failed: Permission denied (os error 13): \
                    run as uid 0 of the host";
    assert!(printed.contains(expected), "{printed}");
}

#[test]
fn a_read_only_proc_is_reported_as_read_only() {
    if !may_act() {
        return;
    }
    // A mount namespace of its own: nothing outside sees the read-only /proc/sys.
    let script = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && \
                  exec \"$0\" actions::action_run_by_another_test --exact --nocapture";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(RUN_BY_TEST, "/proc")
        .output();
    let output = match output {
        Ok(output) if output.status.success() => output,
        other => return eprintln!("skipped: needs unshare and mount: {other:?}"),
    };
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        printed.contains("(os error 30)")
            && printed
                .contains("mounted read-only: with the packaged unit `umawarden print drop-in"),
        "{printed}"
    );
}
