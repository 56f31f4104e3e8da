//! Actions on the real kernel. As root only: others are told that it was skipped.

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
    Action, CacheKind, Decision, DecisionId, Mode, Moment, OutcomeResult, RuleId, Target, Verdict,
};

const ASKED_BY: &str = "UMAWARDEN_TEST_PROCFS";

pub fn decision(action: Action) -> Decision {
    Decision {
        id: DecisionId(1),
        at: Moment { uptime: Duration::ZERO, utc: Timestamp::UNIX_EPOCH },
        rule: RuleId { group: Arc::from("memory"), alert: Arc::from("Test") },
        mode: Mode::Enforce,
        verdict: Verdict::Act,
        step: 0,
        action,
        target: Target::Node,
        approved: None,
        because: Vec::new(),
    }
}

fn drop_page_cache(sync: bool) -> Decision {
    decision(Action::DropCaches { what: CacheKind::PageCache, sync })
}

pub fn act(decision: Decision) -> Act {
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

fn perform(procfs: &str, decision: Decision) -> OutcomeResult {
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
fn dropping_the_page_cache_frees_what_a_file_held() {
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
    // What was just written is dirty: only with sync can it go.
    assert_eq!(perform("/proc", drop_page_cache(true)), OutcomeResult::Done);
    let after = number("/proc/meminfo", "Cached");
    assert!(before > after + FILE_KIB / 2, "Cached: {before} kB before, {after} kB after");
    assert!(number("/proc/vmstat", "drop_pagecache") > drops);
}

#[test]
fn compaction_is_done_by_the_kernel() {
    if !may_act() {
        return;
    }
    assert_eq!(perform("/proc", decision(Action::CompactMemory)), OutcomeResult::Done);
}

/// A control group of its own, on cgroup v1 or v2; removed when dropped.
struct Group(std::path::PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _left_behind = fs::remove_dir(&self.0);
    }
}

#[test]
fn reclaiming_takes_back_what_a_group_has_cached() {
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
    // A shell that joins the group and writes a file, whose cache is then the group's.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script = format!(
        "echo $$ > {}/cgroup.procs && head -c {FILE_BYTES} /dev/zero > {}/file && sync",
        group.0.display(),
        folder.path().display()
    );
    let used = || -> u64 { fs::read_to_string(&in_use).unwrap().trim().parse().unwrap() };
    // Again where the kernel's own reclaim, or another test, was faster.
    let is_cached = (0..5).any(|_| {
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        used() > FILE_BYTES / 2
    });
    let before = used();
    assert!(is_cached, "the cache is not the group's: {before}");
    let reclaim = |cgroup: String| {
        let action = Action::Reclaim { cgroup, engine: None, bytes: FILE_BYTES / 2 };
        perform("/proc", Decision { target: action.target(), ..decision(action) })
    };
    assert_eq!(reclaim(format!("/{name}")), OutcomeResult::Done);
    let after = used();
    assert!(after < before - FILE_BYTES / 4, "{before} before, {after} after");
    let gone = reclaim(format!("/{name}/none"));
    assert!(matches!(&gone, OutcomeResult::Failed(text) if text.contains("has gone")), "{gone:?}");
}

/// Not a test of its own: the one below runs it as another user.
#[test]
fn as_asked_by_another_test() {
    let Ok(procfs) = std::env::var(ASKED_BY) else { return };
    println!("{:?}", perform(&procfs, drop_page_cache(false)));
}

fn as_nobody(procfs: &str) -> String {
    // The build folder may be out of that user's reach.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let test = folder.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &test).unwrap();
    let output = Command::new(&test)
        .args(["actions::as_asked_by_another_test", "--exact", "--nocapture"])
        .env(ASKED_BY, procfs)
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn without_root_the_refusal_names_the_file_and_the_remedy() {
    if !may_act() {
        return;
    }
    let said = as_nobody("/proc");
    let expected = "writing 1 to /proc/sys/vm/drop_caches failed: Permission denied (os error 13): \
                    run as uid 0 of the host";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn a_read_only_proc_is_told_as_such() {
    if !may_act() {
        return;
    }
    // A mount namespace of its own: nothing outside sees the read-only /proc/sys.
    let script = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && \
                  exec \"$0\" actions::as_asked_by_another_test --exact --nocapture";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(ASKED_BY, "/proc")
        .output();
    let output = match output {
        Ok(output) if output.status.success() => output,
        other => return eprintln!("skipped: needs unshare and mount: {other:?}"),
    };
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("(os error 30)") && said.contains("mounted read-only"), "{said}");
}
