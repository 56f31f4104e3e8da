//! What stops an engine goes on when no descriptor is left
//! Each in a process of its own, since the limit is a process's.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use umawarden::actions::{Evictor, Executor as _, Live};
use umawarden::model::{Action, Decision, EngineTarget, OutcomeResult, ProcessId, Target};
use umawarden::sources::engines::Scanner;
use umawarden::sys::descriptors;

const LIMIT: u64 = 1024;
const SELF: &str = "UMAWARDEN_TEST_DESCRIPTORS";

fn limit(current: u64, maximum: u64) {
    let limit = Rlimit { current: Some(current), maximum: Some(maximum) };
    setrlimit(Resource::Nofile, limit).unwrap();
}

fn live() -> Live {
    Live {
        procfs: "/proc".into(),
        sysfs: "/sys".into(),
        evictor: Evictor::new(|| Duration::ZERO),
        docker: "/nowhere".into(),
        systemd: umawarden::supervisors::systemd::Bus::system(),
    }
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

/// Runs one of those below in a process of its own.
fn in_a_process_of_its_own(name: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([&format!("descriptors::{name}"), "--exact", "--nocapture"])
        .env(SELF, name)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

fn is_asked(name: &str) -> bool {
    std::env::var(SELF).is_ok_and(|asked| asked == name)
}

#[test]
fn an_engine_is_stopped_when_no_descriptor_is_left() {
    in_a_process_of_its_own("stopping_of_another_test");
}

#[test]
fn stopping_of_another_test() {
    if !is_asked("stopping_of_another_test") {
        return;
    }
    limit(LIMIT, LIMIT);
    let raised = descriptors::raise_limit().unwrap();
    assert_eq!((raised.before, raised.now), (Some(LIMIT), Some(LIMIT)));
    descriptors::keep_reserve().unwrap();
    let mut hog = Command::new("sh").args(["-c", "sleep 100 & sleep 100; wait"]).spawn().unwrap();
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    assert!(taken.len() > 900, "{}", taken.len());
    let mut scan = Scanner::new(PathBuf::from("/proc"), Vec::new());
    scan.look(Duration::ZERO, false).unwrap();
    let action = Action::StopEngine { grace_ms: 0, unless_free_bytes: None, for_reboot: None };
    let decision = crate::actions::decision(action);
    let decision = Decision { target: target(&hog, Vec::new()), ..decision };
    assert_eq!(live().execute(&decision), OutcomeResult::Done);
    assert!(!hog.wait().unwrap().success());
    // Only where nothing is left of the reserve either, it is said: nobody has ended.
    descriptors::lend(usize::MAX);
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    let error = scan.look(Duration::ZERO, false).unwrap_err();
    assert!(error.contains("oo many open files"), "{error}");
}

#[test]
fn what_is_started_gets_the_limit_that_this_program_had() {
    in_a_process_of_its_own("raising_of_another_test");
}

#[test]
fn raising_of_another_test() {
    if !is_asked("raising_of_another_test") {
        return;
    }
    limit(LIMIT, 100_000);
    assert_eq!(descriptors::raise_limit().unwrap().to_string(), "65536 (was 1024)");
    assert_eq!(getrlimit(Resource::Nofile).current, Some(65_536));
    let mut child = Command::new("sleep").arg("100").spawn().unwrap();
    descriptors::restore_limit_of(child.id());
    let limits = fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>()[3..5], ["1024", "100000"]);
}
