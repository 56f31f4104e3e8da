//! Stopping an engine works without a free file descriptor, and evicting keeps to its share of
//! them. Each test runs in a process of its own, because the limit is per process.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umawarden::actions::{Evictor, Executor as _, StopExecutor};
use umawarden::model::{
    Action, DecisionRecord, EngineTarget, OutcomeResult, Prefetch, ProcessId, Target,
};
use umawarden::sources::engines::Scanner;
use umawarden::sys::descriptors;

use crate::actions::{act, memory_executor};

const LIMIT: u64 = 1024;
const FILES: usize = 3_000;
const SELF: &str = "UMAWARDEN_TEST_DESCRIPTORS";

fn limit(current: u64, maximum: u64) {
    let limit = Rlimit { current: Some(current), maximum: Some(maximum) };
    setrlimit(Resource::Nofile, limit).unwrap();
}

fn target(child: &Child, model_files: Vec<Arc<str>>) -> Target {
    let pid = i32::try_from(child.id()).unwrap();
    let stat = procfs::process::Process::new(pid).unwrap().stat().unwrap();
    let id = ProcessId { pid: child.id(), start_ticks: stat.starttime };
    let name = Arc::from("hog");
    Target::Engine(Box::new(EngineTarget {
        name,
        processes: vec![id],
        model_files,
        ..EngineTarget::default()
    }))
}

/// Runs a test of this module in a process of its own.
fn run_in_own_process(name: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([&format!("descriptors::{name}"), "--exact", "--nocapture"])
        .env(SELF, name)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
}

fn is_selected(name: &str) -> bool {
    std::env::var(SELF).is_ok_and(|selected| selected == name)
}

#[test]
fn an_engine_is_stopped_without_a_free_descriptor() {
    run_in_own_process("stop_run_by_another_test");
}

#[test]
fn stop_run_by_another_test() {
    if !is_selected("stop_run_by_another_test") {
        return;
    }
    limit(LIMIT, LIMIT);
    let raised = descriptors::raise_limit().unwrap();
    assert_eq!((raised.before, raised.now), (Some(LIMIT), Some(LIMIT)));
    descriptors::keep_reserve().unwrap();
    let mut hog = Command::new("sh").args(["-c", "sleep 100 & sleep 100; wait"]).spawn().unwrap();
    let target = target(&hog, Vec::new());
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    assert!(files.len() > 900, "{}", files.len());
    let mut scan = Scanner::new(PathBuf::from("/proc"), Vec::new());
    scan.scan(Duration::ZERO, false).unwrap();
    let action =
        Action::StopEngine { engine: None, grace_ms: 0, unless_free_bytes: None, for_reboot: None };
    let decision = crate::actions::decision(action);
    let decision = DecisionRecord { target, ..decision };
    let mut executor = StopExecutor {
        procfs: "/proc".into(),
        sysfs: "/sys".into(),
        docker: "/nonexistent".into(),
        user_folders: "/nonexistent".into(),
    };
    assert_eq!(executor.execute(&act(decision)).result, OutcomeResult::Done);
    assert!(!hog.wait().unwrap().success());
    // Without the reserve the scan fails; it does not report that engines have ended.
    let _lent = descriptors::lend(usize::MAX);
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    let error = scan.scan(Duration::ZERO, false).unwrap_err();
    assert!(error.contains("oo many open files"), "{error}");
}

#[test]
fn thousands_of_model_files_use_only_a_share_of_the_descriptors() {
    run_in_own_process("evict_run_by_another_test");
}

#[test]
fn evict_run_by_another_test() {
    if !is_selected("evict_run_by_another_test") {
        return;
    }
    limit(LIMIT, LIMIT);
    // Not below /tmp, which may be a tmpfs, whose files are left alone.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for number in 0..FILES {
        fs::write(folder.path().join(format!("lora-{number:04}.safetensors")), "weights").unwrap();
    }
    let pattern = format!("{}/*.safetensors", folder.path().display());
    let opened = File::open(folder.path().join("lora-1234.safetensors")).unwrap();
    let mut engine = Command::new("sleep").arg("100").stdin(opened).spawn().unwrap();
    let action = Action::EvictCheckpoint {
        engine: "*".to_owned(),
        behind_bytes: 64 << 20,
        floor_bytes: 0,
        prefetch: Prefetch::Off,
        for_at_most: Duration::from_secs(60),
    };
    let target = target(&engine, vec![Arc::from(pattern)]);
    let decision = DecisionRecord { target, ..crate::actions::decision(action) };
    let evictor = Evictor::new(|| Duration::ZERO);
    let mut executor = memory_executor("/proc", evictor.clone());
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    assert_eq!(executor.execute(&act(decision.clone())).result, OutcomeResult::Done);
    std::thread::sleep(Duration::from_millis(500));
    let (effect, after) = (evictor.effect(decision.id).unwrap(), open());
    let (tracked, notes) = (evictor.begun(), evictor.take_notes());
    engine.kill().unwrap();
    engine.wait().unwrap();
    assert_eq!((tracked, notes.len()), (1, 0), "{notes:?}");
    assert!(effect.starts_with("0 B evicted; goes on") && !effect.contains("os error"), "{effect}");
    assert!(after - before <= 256 + 16, "{before} and then {after}");
    assert!(after - before > 200, "too few are open: {before} and then {after}");
}

#[test]
fn a_started_program_gets_the_original_descriptor_limit() {
    run_in_own_process("raise_run_by_another_test");
}

#[test]
fn raise_run_by_another_test() {
    if !is_selected("raise_run_by_another_test") {
        return;
    }
    let hard = getrlimit(Resource::Nofile).maximum.unwrap();
    limit(LIMIT, hard);
    let wanted = hard.min(65_536);
    let raised = descriptors::raise_limit().unwrap();
    assert_eq!(raised.to_string(), format!("{wanted} (was 1024)"));
    assert_eq!(getrlimit(Resource::Nofile).current, Some(wanted));
    let mut child = Command::new("sleep").arg("100").spawn().unwrap();
    descriptors::restore_limit_of(child.id());
    let limits = fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>()[3..5],
        [LIMIT.to_string(), hard.to_string()]
    );
}
