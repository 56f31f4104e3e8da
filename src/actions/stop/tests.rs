use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Instant;

use super::handle::known;
use super::*;

const PROC: &str = "/proc";

/// A shell that runs a script, killed when dropped.
struct Shell(Child);

impl Shell {
    /// Returns once the script has printed a line.
    fn run(script: &str) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Self(child)
    }

    fn id(&self) -> ProcessId {
        id(self.0.id())
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn id(pid: u32) -> ProcessId {
    known(Path::new(PROC), pid).unwrap().unwrap().id
}

fn engine(processes: &[ProcessId]) -> EngineTarget {
    EngineTarget {
        name: Arc::from("test"),
        processes: processes.to_vec(),
        ..EngineTarget::default()
    }
}

fn stop(engine: &EngineTarget, grace: Duration) -> Result<Option<String>, StopError> {
    perform(&stopping(engine, grace))
}

fn stopping(engine: &EngineTarget, grace: Duration) -> Stop<'_> {
    let (procfs, sysfs, docker) = (Path::new(PROC), Path::new("/sys"), Path::new("/nowhere"));
    let (user_folders, has_signalled) = (Path::new("/nowhere"), Cell::new(false));
    let unless_free_bytes = None;
    Stop { procfs, sysfs, docker, user_folders, engine, grace, unless_free_bytes, has_signalled }
}

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);
const DEAF: &str = "trap '' TERM; echo; while :; do sleep 0.01; done";
const POLITE: &str = "trap 'exit 7' TERM; echo; while :; do sleep 0.01; done";

#[test]
fn a_process_that_ends_on_sigterm_is_not_killed() {
    let mut polite = Shell::run(POLITE);
    stop(&engine(&[polite.id()]), LONG).unwrap();
    assert_eq!(polite.0.wait().unwrap().code(), Some(7));
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_after_the_grace_and_not_before() {
    let mut deaf = Shell::run(DEAF);
    let begun = Instant::now();
    stop(&engine(&[deaf.id()]), SHORT).unwrap();
    assert!(begun.elapsed() >= SHORT);
    assert_eq!(deaf.0.wait().unwrap().signal(), Some(9));
}

#[test]
fn no_grace_sends_no_sigterm() {
    let mut polite = Shell::run(POLITE);
    stop(&engine(&[polite.id()]), Duration::ZERO).unwrap();
    assert_eq!(polite.0.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_reused_pid_is_left_alone() {
    let mut other = Shell::run(DEAF);
    let was = ProcessId { start_ticks: other.id().start_ticks - 1, ..other.id() };
    stop(&engine(&[was]), Duration::ZERO).unwrap();
    sleep(SHORT);
    assert!(other.is_alive());
}

#[test]
fn a_missing_process_and_a_zombie_count_as_stopped() {
    let mut ended = Shell::run("echo");
    // Not reaped: a zombie.
    let zombie = ended.id();
    while known(Path::new(PROC), zombie.pid).unwrap().unwrap().state != 'Z' {
        sleep(Duration::from_millis(1));
    }
    stop(&engine(&[zombie]), LONG).unwrap();
    ended.0.wait().unwrap();
    stop(&engine(&[zombie]), LONG).unwrap();
}

#[test]
fn a_stopped_process_gets_sigterm_and_then_sigkill() {
    for (script, grace, code, signal) in [
        (POLITE, LONG, Some(7), None),
        (DEAF, SHORT, None, Some(9)),
        (POLITE, Duration::ZERO, None, Some(9)),
    ] {
        let mut still = Shell::run(script);
        let pid = rustix::process::Pid::from_child(&still.0);
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        while known(Path::new(PROC), still.0.id()).unwrap().unwrap().state != 'T' {
            sleep(Duration::from_millis(1));
        }
        stop(&engine(&[still.id()]), grace).unwrap();
        let status = still.0.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (code, signal), "{script}");
    }
}

#[test]
fn children_of_the_server_are_stopped_with_it() {
    // A child, and a child of that, whose parents know nothing of signals.
    let mut server = Shell::run("sh -c 'sleep 1000 & echo; sleep 1001' & wait");
    let all = Processes::read(Path::new(PROC)).unwrap();
    let children = all.descendants(&[server.id()]);
    assert!(children.len() >= 2, "{children:?}");
    stop(&engine(&[server.id()]), Duration::ZERO).unwrap();
    server.0.wait().unwrap();
    for child in children {
        let left = known(Path::new(PROC), child.pid).unwrap();
        let left = left.filter(|known| known.id == child && known.state != 'Z');
        assert_eq!(left, None);
    }
}

#[test]
fn this_program_its_parents_and_kernel_threads_are_never_stopped() {
    let mut engines = Shell::run(DEAF);
    let own = std::process::id();
    let parent = known(Path::new(PROC), own).unwrap().unwrap().parent;
    let kernels = (2..200).find(|pid| {
        let known = known(Path::new(PROC), *pid).ok().flatten();
        known.is_some_and(|known| known.is_kernel_thread)
    });
    for pid in [Some(1), Some(own), Some(parent), kernels].into_iter().flatten() {
        // The others of such a target are not stopped either: it is none.
        let error = stop(&engine(&[engines.id(), id(pid)]), Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains(&format!("process {pid} is ")), "{error}");
        assert!(error.to_string().ends_with("it is never stopped"), "{error}");
    }
    sleep(SHORT);
    assert!(engines.is_alive());
}

#[test]
fn a_stop_knows_whether_it_has_signalled() {
    let mut deaf = Shell::run(DEAF);
    let untouchable = engine(&[deaf.id(), id(std::process::id())]);
    let failed = stopping(&untouchable, Duration::ZERO);
    perform(&failed).unwrap_err();
    assert!(!failed.has_signalled.get());
    let its = engine(&[deaf.id()]);
    let done = stopping(&its, Duration::ZERO);
    perform(&done).unwrap();
    assert!(done.has_signalled.get());
    deaf.0.wait().unwrap();
    let gone = stopping(&its, Duration::ZERO);
    perform(&gone).unwrap();
    assert!(!gone.has_signalled.get(), "its processes were gone");
}

#[test]
fn free_memory_above_the_limit_prevents_the_stop() {
    let mut engines = Shell::run(DEAF);
    let engine = engine(&[engines.id()]);
    let enough = Stop { unless_free_bytes: Some(1), ..stopping(&engine, Duration::ZERO) };
    let error = perform(&enough).unwrap_err().to_string();
    assert!(error.contains("are free again"), "{error}");
    assert!(engines.is_alive());
    let little = Stop { unless_free_bytes: Some(u64::MAX), ..enough };
    perform(&little).unwrap();
    assert!(!engines.is_alive());
}

#[test]
fn pids_of_another_namespace_are_not_ours() {
    let mut engines = Shell::run(DEAF);
    let pid = engines.0.id();
    let elsewhere = tempfile::tempdir().unwrap();
    let folder = elsewhere.path().join(pid.to_string());
    fs::create_dir(&folder).unwrap();
    fs::copy(format!("/proc/{pid}/stat"), folder.join("stat")).unwrap();
    symlink("4711", elsewhere.path().join("self")).unwrap();
    let engine = engine(&[engines.id()]);
    let there = Stop { procfs: elsewhere.path(), ..stopping(&engine, Duration::ZERO) };
    let error = perform(&there).unwrap_err().to_string();
    assert!(error.contains("hostPID: true"), "{error}");
    assert!(engines.is_alive());
}

#[test]
fn a_process_in_state_d_is_reported_with_the_advice_to_reboot() {
    let stuck = left_over(4242, "VLLM::EngineCor", Some('D'));
    assert!(stuck.starts_with("process 4242 (VLLM::EngineCor) [D]: in state D"), "{stuck}");
    assert!(stuck.contains("cannot die") && stuck.contains("reboot"), "{stuck}");
    assert!(!left_over(4242, "x", Some('R')).contains("reboot"));
    assert!(!left_over(4242, "x", None).contains("state D"));
}

/// Docker, as far as it is asked: answers one request so, and returns what was asked.
fn docker(listener: &UnixListener, status: &str) -> String {
    let (mut stream, _) = listener.accept().unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        head.push(byte[0]);
    }
    write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").unwrap();
    String::from_utf8(head).unwrap().lines().next().unwrap().to_owned()
}

#[test]
fn a_container_is_signalled_by_its_id_and_a_refusal_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let answers = std::thread::spawn(move || {
        let done = docker(&listener, "204 No Content");
        (done, docker(&listener, "404 Not Found"))
    });
    let id = "0123456789abcdef";
    container::end(Docker::new(&socket), id, ContainerEndRequest::Signal("SIGTERM"), LONG).unwrap();
    let refused =
        container::end(Docker::new(&socket), id, ContainerEndRequest::Signal("SIGKILL"), LONG)
            .unwrap_err()
            .to_string();
    assert!(refused.contains("docker.sock") && refused.contains("404"), "{refused}");
    let (done, refused) = answers.join().unwrap();
    assert_eq!(done, format!("POST /containers/{id}/kill?signal=SIGTERM HTTP/1.1"));
    assert_eq!(refused, format!("POST /containers/{id}/kill?signal=SIGKILL HTTP/1.1"));
}

#[test]
fn podman_is_asked_to_stop_a_container_and_answers_once_it_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("podman.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let id = "a".repeat(64);
    let (stop, grace) = (|| Docker::new(&socket), Duration::from_millis(2500));
    container::end(stop(), &id, ContainerEndRequest::Stop(grace), SHORT).unwrap();
    let waits = listener.accept().unwrap();
    let serving = std::thread::spawn(move || docker(&listener, "204 No Content"));
    container::end(stop(), &id, ContainerEndRequest::Stop(grace), LONG).unwrap();
    let asked = serving.join().unwrap();
    assert_eq!(asked, format!("POST /containers/{id}/stop?t=3 HTTP/1.1"));
    drop(waits);
}

#[test]
fn a_silent_docker_times_out_and_hostile_ids_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let error =
        container::end(Docker::new(&socket), "abc", ContainerEndRequest::Signal("SIGKILL"), LONG)
            .unwrap_err()
            .to_string();
    assert!(error.contains("docker.sock"), "{error}");
    // It listens, and never accepts.
    let _listener = UnixListener::bind(&socket).unwrap();
    let error =
        container::end(Docker::new(&socket), "abc", ContainerEndRequest::Signal("SIGKILL"), SHORT)
            .unwrap_err()
            .to_string();
    assert!(error.ends_with("has not answered within 50 ms"), "{error}");
    for hostile in ["", "../x", "a/b", "a?b", "a b", "-a", "a\n"] {
        let error = container::end(
            Docker::new(&socket),
            hostile,
            ContainerEndRequest::Signal("SIGKILL"),
            LONG,
        )
        .unwrap_err()
        .to_string();
        assert!(error.ends_with("is no container's id"), "{error}");
    }
}

#[test]
fn what_starts_an_engine_again_is_reported() {
    let again = |engine: &EngineTarget| stopping(engine, Duration::ZERO).starts_again();
    let pod = EngineTarget { proof: Proof::PodContainer, ..EngineTarget::default() };
    assert!(again(&pod).unwrap().starts_with("the kubelet starts its container again"));
    let user_unit = Some(UserUnit { user: 1000, name: "vllm.service".into() });
    let unit = EngineTarget { user_unit, ..EngineTarget::default() };
    let why = again(&unit).unwrap();
    assert!(why.contains("user 1000") && why.ends_with("`systemctl --user stop vllm.service`"));
    let system = EngineTarget { unit: Some("vllm.service".into()), ..EngineTarget::default() };
    assert!(again(&system).unwrap().ends_with("to keep it stopped, `systemctl stop vllm.service`"));
    let scope = EngineTarget { unit: Some("docker-ab.scope".into()), ..EngineTarget::default() };
    let held = EngineTarget { container: Some("ab".into()), ..system };
    let run = EngineTarget { client_unit: Some("run.service".into()), ..held.clone() };
    assert!(again(&run).unwrap().ends_with("to keep it stopped, `systemctl stop run.service`"));
    for other in [EngineTarget::default(), scope, held] {
        assert_eq!(again(&other), None);
    }
}
