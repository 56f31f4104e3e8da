//! Arguments, configuration, addresses, users, signals, logs.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{ALWAYS, Node};
use crate::daemon::{Daemon, binary, control_client};

/// Runs it with arguments that prevent a start; returns its error.
fn refused(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(binary())
        .current_dir(folder.path())
        .arg("run")
        .args(arguments)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    stderr
}

#[test]
fn the_daemon_runs_without_a_configuration() {
    let node = Node::new("gb10-4k");
    let kmsg = format!("--path.kmsg={}", node.path("kmsg").display());
    let daemon = Daemon::from_command(
        Command::new(binary()).current_dir(node.path("")).env_remove("STATE_DIRECTORY").args([
            "run",
            "--web.listen-address=127.0.0.1:0",
            &kmsg,
        ]),
    );
    daemon.wait_until("ready", |daemon| daemon.get("/-/ready").0 == 200);
    assert_eq!(daemon.metric("uma_mode{mode=\"observe\"}"), 1.0);
    assert_eq!(daemon.get("/-/healthy").0, 200);
    daemon.wait_until("journalling", |_| node.path("data").is_dir());
}

#[test]
fn flags_override_the_file_and_its_paths_are_relative_to_its_folder() {
    let node = Node::new("gb10-4k");
    let config = node.path("umawarden.yaml");
    let text = "mode: enforce\nrule_files: [rules.yaml]\n\
                web: {telemetry_path: /file}\npath: {procfs: proc, sysfs: sys, kmsg: kmsg}\n\
                storage: {path: kept}\n";
    fs::write(&config, text).unwrap();
    node.write_rules(&ALWAYS.replace("drop_caches: {what: pagecache}", "notify: {message: hello}"));
    let config = config.display().to_string();
    let daemon = Daemon::from_command(Command::new(binary()).current_dir("/").args([
        "run",
        "--web.listen-address=127.0.0.1:0",
        "--config.file",
        &config,
        "--web.telemetry-path=/flag",
    ]));
    daemon.wait_until("ready", |daemon| daemon.get("/-/ready").0 == 200);
    assert_eq!((daemon.get("/flag").0, daemon.get("/file").0), (200, 404));
    assert!(daemon.get("/flag").1.contains("uma_mode{mode=\"enforce\"} 1"));
    assert!(daemon.get("/flag").1.contains("uma_memory_total_bytes 129945600000"));
    assert!(daemon.get("/api/v1/rules").1.contains("\"Always\""));
    daemon.wait_until("journalling", |_| node.path("kept").is_dir());
}

#[test]
fn a_start_without_the_shipped_rules_says_which_are_off() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let config = node.path("umawarden.yaml");
    let start = |rule_files: &str| {
        let paths = "path: {procfs: proc, sysfs: sys, kmsg: kmsg}\n";
        fs::write(&config, format!("rule_files: {rule_files}\n{paths}")).unwrap();
        let file = config.display().to_string();
        let storage = node.storage();
        let daemon = Daemon::start(&storage, &["--config.file", &file]);
        daemon.wait_until("summary", |daemon| daemon.log().contains(" does: "));
        daemon
    };
    let daemon = start("[rules.yaml]");
    let log = daemon.log();
    let warning = log.lines().find(|line| line.contains("shipped_rules_off")).expect("a warning");
    for text in [
        "WARN",
        "brake_off=true",
        "load_guard_off=true",
        "brake (1)",
        "write rule_files: [shipped, …] to load them too",
    ] {
        assert!(warning.contains(text), "{text}: {warning}");
    }
    let does = log.lines().find(|line| line.contains(" does: ")).unwrap();
    assert!(does.contains("1 rule in 1 group"), "{does}");
    assert!(does.contains("among them the brake (brake/MemoryCollapse)"), "{does}");
    daemon.terminate();
    let log = start("[shipped, rules.yaml]").log();
    assert!(!log.contains("shipped_rules_off") && !log.contains("rules are off"), "{log}");
}

#[test]
fn unusable_settings_exit_2_and_are_named_with_their_position() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let unknown_key = file("key.yaml", "mode: observe\nweb:\n  listen_adress: ':1'\n");
    let wrong_path = file("path.yaml", "path: {procfs: nowhere/proc}\n");
    let bad_rule = file("rule.yaml", &ALWAYS.replace("free_bytes >= 0", "fre_bytes >= 0"));
    for (arguments, named) in [
        (&["--config.file", &*unknown_key][..], &["key.yaml:3", "listen_address"][..]),
        (&["--config.file", "missing.yaml"], &["missing.yaml", "no such file"]),
        (&["--rules", &bad_rule], &["rule.yaml:6:11", "did you mean \"uma_memory_free_bytes\""]),
        (&["--rules", "missing.yaml"], &["missing.yaml"]),
        (&["--mode", "act"], &["--mode", "observe, enforce"]),
        (&["--no-such-flag"], &["--no-such-flag"]),
        (&["--web.listen-address", "here:1:2"], &["--web.listen-address"]),
        (&["--web.telemetry-path", "metrics"], &["--web.telemetry-path"]),
        (&["--sampling-interval", "1h"], &["10ms to 1s"]),
        (&["--storage.retention.size", "little"], &["--storage.retention.size"]),
        (&["--path.procfs", "nowhere"], &["cannot read nowhere", "no such file", "--path.procfs"]),
        (&["--path.sysfs", "/etc/passwd"], &["/etc/passwd", "no folder", "--path.sysfs"]),
        (&["--path.kmsg", "/nowhere/kmsg"], &["/nowhere/kmsg", "no such file", "--path.kmsg"]),
        (&["--path.kmsg", "/tmp"], &["/tmp", "it is a folder", "--path.kmsg"]),
        (&["--config.file", &*wrong_path], &["nowhere/proc", "path: {procfs: …}"]),
        (&["argument"], &["argument"]),
    ] {
        let error = refused(arguments);
        for name in named {
            assert!(error.contains(name), "{arguments:?}: {name:?} is not in {error}");
        }
    }
}

#[test]
fn an_address_in_use_is_named_with_its_owner() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let error = refused(&["--web.listen-address", &address]);
    let pid = std::process::id().to_string();
    assert!(error.contains(&address) && error.contains("listens there already"), "{error}");
    assert!(error.contains(&pid), "{error}");
}

pub(super) fn free_port() -> u16 {
    TcpListener::bind("[::]:0")
        .or_else(|_| TcpListener::bind("0.0.0.0:0"))
        .and_then(|listener| listener.local_addr())
        .unwrap()
        .port()
}

fn ready(address: &str) -> bool {
    let url = format!("http://{address}/-/ready");
    crate::daemon::http_client()
        .build()
        .unwrap()
        .get(url)
        .send()
        .is_ok_and(|answer| answer.status() == 200)
}

#[test]
fn the_daemon_listens_on_every_given_address_and_a_bare_port_means_both_protocols() {
    let node = Node::new("gb10-4k");
    let (all, one) = (free_port(), free_port());
    let (everywhere, local) = (format!(":{all}"), format!("127.0.0.1:{one}"));
    let daemon = node.start(&["--web.listen-address", &everywhere, "--web.listen-address", &local]);
    assert!(ready(daemon.address()));
    assert!(ready(&local));
    assert!(ready(&format!("127.0.0.1:{all}")));
    if TcpListener::bind("[::1]:0").is_ok() {
        assert!(ready(&format!("[::1]:{all}")));
    }
}

#[test]
fn a_daemon_without_root_reports_missing_sources_and_continues() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can become somebody else");
    }
    // The build folder may be inaccessible to that user.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("umawarden");
    // Not by this process: another test may fork while the copy is open, and then it is "busy".
    let copied = Command::new("cp").arg(binary()).arg(&program).status().unwrap();
    assert!(copied.success());
    let run = |mode: &str| {
        let daemon = Daemon::from_command(
            Command::new(&program)
                .current_dir(folder.path())
                .args(["run", "--web.listen-address=127.0.0.1:0", "--mode", mode])
                .uid(65534)
                .gid(65534),
        );
        daemon.wait_until("ready", |daemon| daemon.get("/-/ready").0 == 200);
        assert!(daemon.metric("uma_memory_total_bytes") > 0.0);
        daemon.wait_until("reporting that the journal is down", |daemon| {
            daemon.metrics().get("uma_journal_up") == Some(&0.0)
        });
        daemon.terminate().1
    };
    let log = run("enforce");
    for expected in [
        "not available what=\"actions drop_caches, compact_memory: /proc/sys/vm/drop_caches",
        "run as uid 0 of the host",
        "the journal is down",
        "priority not raised: Permission denied (os error 13) (CAP_SYS_NICE",
        "oom_score_adj not lowered: ",
        "CAP_SYS_RESOURCE",
    ] {
        assert!(log.contains(expected), "{expected:?} is not in {log}");
    }
    let restricted = fs::read_to_string("/proc/sys/kernel/dmesg_restrict").unwrap();
    if restricted.trim() == "1" {
        assert!(log.contains("cannot open /dev/kmsg"), "{log}");
        assert!(log.contains("CAP_SYSLOG"), "{log}");
    }
    let log = run("observe");
    let lack = "would not be available in enforce mode what=\"actions drop_caches";
    assert!(log.contains(lack), "{log}");
}

#[test]
fn every_line_of_a_json_log_is_an_object() {
    let node = Node::new("jetson");
    node.write_rules(
        &ALWAYS.replace("expr: ", "annotations: {summary: \"a\\\"\\nb\"}\n    expr: "),
    );
    fs::write(node.path("kmsg"), super::record(1, &format!("{}\\x0a\"", super::XID))).unwrap();
    let daemon = node.start(&["--log.format=json", "--log.level=trace", "--mode=enforce"]);
    fs::write(node.path("rules.yaml"), "groups: [\n").unwrap();
    assert_eq!(daemon.post("/-/reload").0, 500);
    let (_, log) = daemon.terminate();
    for line in log.lines() {
        let object: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(object["message"].is_string() && object["level"].is_string(), "{line}");
    }
    assert!(log.contains("reload failed") && log.contains("kernel event"), "{log}");
}

#[test]
fn systemd_is_notified_of_the_start_the_shutdown_and_each_sign_of_life() {
    let node = Node::new("gb10-4k");
    let socket = UnixDatagram::bind(node.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let notification = || {
        let mut buffer = [0; 1024];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
    };
    let alive = "WATCHDOG=1";
    let state = || std::iter::repeat_with(notification).find(|text| text != alive).unwrap();
    let storage = node.storage().display().to_string();
    let daemon = Daemon::from_command(
        Command::new(binary())
            .args(["run", "--web.listen-address=127.0.0.1:0", "--storage.path", &storage])
            .args(node.arguments())
            .env("NOTIFY_SOCKET", node.path("notify"))
            .env("WATCHDOG_USEC", "1000000"),
    );
    assert_eq!(state(), "READY=1");
    assert_eq!(daemon.get("/-/ready").0, 200, "it is ready when it reports so");
    assert_eq!(notification(), alive);
    daemon.terminate();
    assert_eq!(state(), "STOPPING=1");
}

/// Killed when dropped.
pub(super) struct Killed(pub(super) std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon with that standard error, on an address of its own.
fn with_stderr(node: &Node, stderr: Stdio) -> (Killed, String) {
    let address = format!("127.0.0.1:{}", free_port());
    let child = Command::new(binary())
        .args(["run", "--web.listen-address", &address, "--storage.path"])
        .arg(node.storage())
        .args(node.arguments())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .map(Killed)
        .unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !ready(&address) {
        assert!(std::time::Instant::now() < deadline, "it does not answer");
        std::thread::sleep(Duration::from_millis(10));
    }
    (child, address)
}

#[test]
fn an_unwritable_log_does_not_end_the_daemon() {
    let node = Node::new("gb10-4k");
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let (_child, address) = with_stderr(&node, full.into());
    let answer = crate::daemon::http_client()
        .build()
        .unwrap()
        .get(format!("http://{address}/metrics"))
        .send()
        .unwrap();
    assert!(answer.text().unwrap().contains("uma_memory_total_bytes"));
}

#[test]
fn an_unread_log_does_not_stop_the_sampling() {
    let node = Node::new("gb10-4k");
    let (_child, address) = with_stderr(&node, Stdio::piped());
    // Much more than fits in the pipe and in the queue for it.
    node.write_rules(&format!("groups:\n# {}\n- name: [\n", "long ".repeat(400)));
    let client = control_client(node.storage().join("control.sock"));
    for _ in 0..1000 {
        let answer = client.post("http://node/-/reload").send().unwrap();
        assert_eq!(answer.status(), 500);
    }
    assert!(ready(&address));
}
