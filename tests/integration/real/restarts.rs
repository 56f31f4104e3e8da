//! Containers that die are started again when there is memory: on a dockerd of our own.

mod memory;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;

use super::docker::Dockerd;
use super::enabled;
use crate::daemon::{Daemon, binary, history, of_kind};

const LABEL: &str = "umawarden.restart=when-ready";

/// Dies in its first life, and lives in all others.
fn dies_once(how: &str) -> String {
    format!(
        "if [ -e /lived ]; then exec /bin/busybox sleep 1000; fi; /bin/busybox touch /lived; {how}"
    )
}

/// Docker, the daemon's files, and the daemon's arguments.
struct Node {
    dockerd: Dockerd,
    folder: tempfile::TempDir,
}

impl Node {
    fn new(config: &str) -> Self {
        assert!(Path::new("/bin/busybox").exists(), "tests/run installs busybox-static");
        let dockerd = Dockerd::start();
        dockerd.import_busybox();
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "mode: enforce\npath: {{docker_socket: {}}}\n{config}\n",
            dockerd.socket_path()
        );
        std::fs::write(folder.path().join("umawarden.yaml"), text).unwrap();
        Self { dockerd, folder }
    }

    fn storage(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn config(&self) -> String {
        self.folder.path().join("umawarden.yaml").display().to_string()
    }

    fn daemon(&self) -> Daemon {
        Daemon::start(&self.storage(), &[&format!("--config.file={}", self.config())])
    }

    /// Runs a shell script in a container that is started again.
    fn run(&self, name: &str, script: &str, more: &[&str]) -> String {
        let mut arguments = vec!["run", "-d", "--name", name, "--network", "none"];
        arguments.extend(more);
        arguments.extend(["busybox", "/bin/busybox", "sh", "-c", script]);
        self.docker(&arguments)
    }

    fn docker(&self, arguments: &[&str]) -> String {
        let done = self.dockerd.docker(arguments);
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    fn inspect(&self, name: &str, what: &str) -> String {
        self.docker(&["inspect", "-f", what, name])
    }

    fn is_running(&self, name: &str) -> bool {
        self.inspect(name, "{{.State.Running}}") == "true"
    }

    fn started(&self, name: &str) -> Timestamp {
        self.inspect(name, "{{.State.StartedAt}}").parse().unwrap()
    }

    fn ended(&self, name: &str) -> Timestamp {
        self.inspect(name, "{{.State.FinishedAt}}").parse().unwrap()
    }

    fn history(&self) -> Vec<Value> {
        history(&self.storage())
    }

    fn umawarden(&self, arguments: &[&str]) -> (i32, String) {
        let output = Command::new(binary())
            .args(arguments)
            .args(["--config.file", &self.config(), "--storage.path"])
            .arg(self.storage())
            .output()
            .unwrap();
        let printed = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(printed).unwrap())
    }
}

/// The daemon's report of a container that it restarts.
fn deferred(daemon: &Daemon, name: &str) -> Option<Value> {
    let response: Value = serde_json::from_str(&daemon.get("/api/v1/engines").1).unwrap();
    let all = response["data"]["deferred_restarts"].as_array().unwrap();
    all.iter().find(|one| one["name"] == name).cloned()
}

fn state_of(daemon: &Daemon, name: &str) -> String {
    let deferred = deferred(daemon, name).unwrap_or_default();
    deferred["state"].as_str().unwrap_or_default().to_owned()
}

fn reason(daemon: &Daemon, name: &str) -> String {
    let deferred = deferred(daemon, name).unwrap_or_default();
    deferred["reason"].as_str().unwrap_or_default().to_owned()
}

fn wait_for(what: &str, seconds: u64, daemon: &Daemon, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Its death reports; other engines may die on this machine.
fn deaths<'a>(history: &'a [Value], name: &str) -> Vec<&'a Value> {
    let is_its = |death: &&Value| death["report"]["who"]["container_name"] == name;
    of_kind(history, "engine_died").filter(is_its).collect()
}

/// Times of the decision to start it, and of the outcome.
fn starts(history: &[Value], name: &str) -> Vec<Timestamp> {
    let acts = of_kind(history, "decision")
        .filter(|decision| decision["rule"]["alert"] == name && decision["decision"] == "act");
    acts.map(|decision| decision["at"]["utc"].as_str().unwrap().parse().unwrap()).collect()
}

#[test]
fn real_restarts_of_three_containers_come_one_after_the_other() {
    if !enabled() {
        return;
    }
    let node = Node::new("rule_files: []");
    let daemon = node.daemon();
    let script = "if [ -e /lived ]; then /bin/busybox sleep 2; /bin/busybox touch /ready; \
                  exec /bin/busybox sleep 1000; fi; /bin/busybox touch /lived; \
                  while ! [ -e /shared/die ]; do /bin/busybox sleep 0.1; done; exit 1";
    let shared = tempfile::tempdir().unwrap();
    let volume = format!("{}:/shared", shared.path().display());
    let health = "/bin/busybox test -e /ready";
    let names = ["llm-a", "llm-b", "llm-c"];
    for name in names {
        let health = ["--health-interval", "500ms", "--health-cmd", health];
        let health = [&health[..], &["--label", LABEL, "-v", &volume]].concat();
        node.run(name, script, &health);
    }
    // `--health-cmd` is given to /bin/sh.
    for name in names {
        node.docker(&["exec", name, "/bin/busybox", "ln", "-s", "/bin/busybox", "/bin/sh"]);
        wait_for("known", 20, &daemon, || deferred(&daemon, name).is_some());
    }
    std::fs::write(shared.path().join("die"), "").unwrap();
    let is_up = |name: &str| {
        node.inspect(name, "{{.State.Health.Status}} {{.State.Running}}") == "healthy true"
            && node.ended(name) > Timestamp::UNIX_EPOCH
    };
    wait_for("all are up again", 60, &daemon, || names.iter().all(|name| is_up(name)));
    let mut began: Vec<Timestamp> = names.iter().map(|name| node.started(name)).collect();
    began.sort();
    for pair in began.windows(2) {
        let apart = pair[1].duration_since(pair[0]).as_secs_f64();
        println!("{apart:.3} s apart");
        // Each is ready after two seconds, and Docker probes twice a second.
        assert!(apart >= 2.0, "{apart}");
    }
    let history = node.history();
    assert!(names.iter().all(|name| starts(&history, name).len() == 1));
    daemon.terminate();
}

#[test]
fn real_container_that_dies_ten_times_is_abandoned_with_an_alert() {
    if !enabled() {
        return;
    }
    let node = Node::new(
        "restarts: [{container: llm, back_off: {first: 200ms, most: 800ms}, give_up_after: 10, \
         at_most: {times: 50, per: 1h}}]",
    );
    let daemon = node.daemon();
    node.run("llm", "echo CUDA out of memory >&2; exit 3", &[]);
    wait_for("given up", 60, &daemon, || state_of(&daemon, "llm") == "given_up");
    let firing = || {
        let response: Value = serde_json::from_str(&daemon.get("/api/v1/alerts").1).unwrap();
        let alerts = response["data"]["alerts"].as_array().unwrap().clone();
        alerts.iter().any(|alert| {
            alert["labels"]["alertname"] == "EngineRestartGivenUp"
                && alert["labels"]["engine"] == "llm"
                && alert["state"] == "firing"
        })
    };
    wait_for("reported", 10, &daemon, firing);
    let last = node.started("llm");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(node.started("llm"), last, "it stays down");
    let history = node.history();
    let acts = starts(&history, "llm");
    assert_eq!(acts.len(), 10);
    let waits: Vec<f64> =
        acts.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs_f64()).collect();
    println!("between two starts: {waits:.2?}");
    for (wait, least) in waits.iter().zip([0.2, 0.4, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]) {
        assert!(*wait >= least, "{waits:?}");
    }
    let deaths = deaths(&history, "llm");
    assert_eq!(deaths.len(), 11);
    for death in deaths {
        // Its own lines, and none of earlier lives.
        let last_lines = &death["report"]["last_lines"];
        assert_eq!(*last_lines, serde_json::json!(["CUDA out of memory"]), "{death:#}");
    }
    let (code, printed) = node.umawarden(&["engines"]);
    assert_eq!(code, 1, "{printed}");
    assert!(
        printed.contains("GIVEN UP") && printed.contains("breaker reset restarts/llm"),
        "{printed}"
    );
    let (code, printed) = node.umawarden(&["breaker", "reset", "restarts/llm"]);
    assert_eq!(code, 0, "{printed}");
    wait_for("started again", 5, &daemon, || node.started("llm") > last);
    daemon.terminate();
}

#[test]
fn real_stopped_container_stays_down_over_a_restart_of_docker() {
    if !enabled() {
        return;
    }
    let mut node = Node::new("rule_files: []");
    let daemon = node.daemon();
    let lives = "trap 'exit 0' TERM; while true; do /bin/busybox sleep 0.1; done";
    for name in ["stopped", "killed", "runs"] {
        node.run(name, lives, &["--label", LABEL]);
    }
    for name in ["stopped", "killed", "runs"] {
        wait_for("known", 20, &daemon, || deferred(&daemon, name).is_some());
    }
    node.docker(&["stop", "stopped"]);
    node.docker(&["kill", "killed"]);
    wait_for("reported", 10, &daemon, || {
        state_of(&daemon, "stopped") == "stopped" && state_of(&daemon, "killed") == "stopped"
    });
    let first = node.started("runs");
    // Docker stops its containers when it ends; no person asked for the end of this one.
    node.dockerd.restart(Duration::from_secs(2));
    wait_for("it is started", 30, &daemon, || node.is_running("runs"));
    assert!(node.started("runs") > first);
    std::thread::sleep(Duration::from_secs(6));
    assert!(!node.is_running("stopped") && !node.is_running("killed"));
    let again = node.started("runs");
    let count = |name: &str| starts(&node.history(), name).len();
    assert_eq!([count("runs"), count("stopped"), count("killed")], [1, 0, 0]);
    // A crash of this program neither starts nor forgets anything.
    daemon.kill();
    let daemon = node.daemon();
    wait_for("known", 20, &daemon, || state_of(&daemon, "stopped") == "stopped");
    std::thread::sleep(Duration::from_secs(3));
    assert!(!node.is_running("stopped") && !node.is_running("killed"));
    assert_eq!(node.started("runs"), again);
    node.docker(&["start", "stopped"]);
    wait_for("reported", 10, &daemon, || state_of(&daemon, "stopped") == "starting");
    assert!(starts(&node.history(), "stopped").is_empty());
    daemon.terminate();
}

#[test]
fn real_restart_is_not_repeated_after_a_kill_of_the_daemon() {
    if !enabled() {
        return;
    }
    // The readiness of these is unknown: the next one waits no longer than that.
    let node =
        Node::new("rule_files: []\nrestarts: [{label: umawarden.restart, ready_within: 1s}]");
    for round in 0..3 {
        let daemon = node.daemon();
        let name = format!("llm{round}");
        let script = dies_once("/bin/busybox sleep 1; exit 1");
        node.run(&name, &script, &["--label", LABEL]);
        wait_for("it is started", 100, &daemon, || !starts(&node.history(), &name).is_empty());
        daemon.kill();
    }
    let daemon = node.daemon();
    for round in 0..3 {
        let name = format!("llm{round}");
        wait_for("it runs", 20, &daemon, || node.is_running(&name));
        let began = node.started(&name);
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(node.started(&name), began);
        assert!(starts(&node.history(), &name).len() <= 2);
    }
    daemon.terminate();
}

#[test]
fn real_restart_is_blocked_by_an_orphan_which_is_named() {
    if !enabled() {
        return;
    }
    let node = Node::new("rule_files: []\nengines: [{name: left, match: {comm: orphan-worker}}]");
    let daemon = node.daemon();
    // It shares the PID namespace of its host, and its worker moves to a control group of the host.
    let script = "if [ -e /lived ]; then exec /bin/busybox sleep 1000; fi
        /bin/busybox touch /lived
        /bin/busybox ln -s /bin/busybox /bin/sh
        /bin/busybox mkdir -p /srv
        printf '#!/bin/sh\\n/bin/busybox sleep 4\\n\
        for f in /host/cgroup/cgroup.procs /host/cgroup/*/cgroup.procs; do\\n\
        echo $$ >$f\\ndone\\nwhile true; do /bin/busybox sleep 1; done\\n' >/srv/orphan-worker
        /bin/busybox chmod 755 /srv/orphan-worker
        /bin/busybox setsid /srv/orphan-worker 2>/dev/null &
        /bin/busybox sleep 6
        exit 1";
    let more = ["--pid=host", "-v", "/sys/fs/cgroup:/host/cgroup", "--label", LABEL];
    node.run("llm", script, &more);
    let orphans = || -> Vec<i32> {
        let processes = procfs::process::all_processes().unwrap().flatten();
        let is_it = |process: &procfs::process::Process| {
            process.stat().is_ok_and(|stat| stat.comm == "orphan-worker")
        };
        processes.filter(is_it).map(|process| process.pid).collect()
    };
    wait_for("it has died", 30, &daemon, || !node.is_running("llm"));
    let left = orphans();
    let [pid] = left[..] else { panic!("{left:?}") };
    let named = format!("orphan-worker (pid {pid}), left behind by left");
    wait_for("it is named", 10, &daemon, || reason(&daemon, "llm").contains(&named));
    std::thread::sleep(Duration::from_secs(3));
    assert!(!node.is_running("llm"));
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_for("it is started", 10, &daemon, || node.is_running("llm"));
    daemon.terminate();
}

#[test]
fn real_container_is_adopted_from_dockers_restart_policy_and_released() {
    if !enabled() {
        return;
    }
    let node = Node::new("rule_files: []");
    let daemon = node.daemon();
    let script = "trap 'exit 3' USR1; while true; do /bin/busybox sleep 0.1; done";
    node.run("llm", script, &["--restart", "on-failure:7"]);
    let policy = || {
        node.inspect(
            "llm",
            "{{.HostConfig.RestartPolicy.Name}}:\
                             {{.HostConfig.RestartPolicy.MaximumRetryCount}}",
        )
    };
    let adopt = |more: &[&str]| node.umawarden(&[&["adopt", "llm"], more].concat());
    let (code, printed) = adopt(&["--need", "64MiB"]);
    assert_eq!(code, 0, "{printed}");
    assert!(
        printed.contains("restart policy \"on-failure\"") && printed.contains("add --yes"),
        "{printed}"
    );
    assert_eq!(policy(), "on-failure:7");
    assert!(deferred(&daemon, "llm").is_none());
    let (code, printed) = adopt(&["--need", "64MiB", "--yes", "--json"]);
    assert_eq!(code, 0, "{printed}");
    let response: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        (&response["done"], &response["restart_policy_before"]),
        (&true.into(), &"on-failure".into())
    );
    assert_eq!(response["remarks"], serde_json::json!([]));
    assert_eq!(policy(), "no:0");
    wait_for("it is deferred", 15, &daemon, || deferred(&daemon, "llm").is_some());
    assert_eq!(deferred(&daemon, "llm").unwrap()["need_bytes"], 64 << 20);
    let first = node.started("llm");
    // Not through Docker's API: that would count as a requested stop.
    let pid: i32 = node.inspect("llm", "{{.State.Pid}}").parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
    wait_for("it is started", 10, &daemon, || {
        node.is_running("llm") && node.started("llm") > first
    });
    assert_eq!(starts(&node.history(), "llm").len(), 1);
    // A second adoption changes nothing, and the earlier policy is still known.
    assert_eq!(adopt(&["--yes"]).0, 0);
    let (code, printed) = adopt(&["--undo", "--yes"]);
    assert_eq!(code, 0, "{printed}");
    assert_eq!(policy(), "on-failure:7");
    wait_for("it is released", 15, &daemon, || deferred(&daemon, "llm").is_none());
    assert_eq!(adopt(&["--undo", "--yes"]).0, 1);
    let (code, printed) = node.umawarden(&["adopt", "nobody", "--yes"]);
    assert!(code == 2 && printed.contains("there is no container nobody"), "{printed}");
    daemon.terminate();
}
