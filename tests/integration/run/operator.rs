//! Orders of people, from their command to the effect on the node, over crashes of the daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::{ALWAYS, Node, outcomes};
use crate::daemon::{Daemon, binary, history, of_kind};

/// Exit code and outputs of a command.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) code: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

fn umawarden_as(mut command: Command, storage: &Path, arguments: &[&str]) -> Ended {
    let output = command
        .args(arguments)
        .arg("--storage.path")
        .arg(storage)
        .env_remove("STATE_DIRECTORY")
        .env_remove("SUDO_USER")
        .output()
        .unwrap();
    Ended {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Node {
    pub(super) fn order(&self, arguments: &[&str]) -> Ended {
        umawarden_as(Command::new(binary()), &self.storage(), arguments)
    }

    /// An order that must succeed; its JSON.
    pub(super) fn ordered(&self, arguments: &[&str]) -> Value {
        let ended = self.order(&[arguments, &["--json"]].concat());
        assert_eq!(ended.code, 0, "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap_or(Value::Null)
    }

    fn compacted(&self) -> bool {
        fs::read_to_string(self.path("proc/sys/vm/compact_memory")).unwrap() == "1"
    }

    fn guard(&self, daemon: &Daemon) -> Value {
        let (status, body) = daemon.get("/api/v1/status");
        assert_eq!(status, 200, "{body}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        answer["data"]["guard"].clone()
    }
}

/// Fires once there is little memory free, and then compacts.
const LOW: &str = "
groups:
- name: g
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 5e9
    labels: {severity: warning}
    remedy:
      aim: uma_memory_free_bytes > 1e12
      steps:
      - compact_memory: {}
      cooldown: 1h
";

/// A node with much memory free.
fn calm_node(rules: &str) -> Node {
    let node = Node::new("gb10-4k");
    node.write_rules(rules);
    node.set_meminfo("MemFree", 8 << 20);
    node
}

fn holds(daemon: &Daemon, reason: &str) -> bool {
    let reason = format!("reason=\"{reason}\"");
    let mut metrics = daemon.metrics().into_iter();
    metrics.any(|(series, value)| {
        value > 0.0 && series.starts_with("uma_holds_total") && series.contains(&reason)
    })
}

/// A user who may not read the daemon's files; only root can become that user.
struct Stranger(tempfile::TempDir);

impl Stranger {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let copied = Command::new("cp").arg(binary()).arg(folder.path().join("umawarden")).status();
        assert!(copied.unwrap().success());
        let open = Command::new("chmod").args(["-R", "a+rx"]).arg(folder.path()).status();
        assert!(open.unwrap().success());
        Self(folder)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.0.path().join("umawarden"));
        command.uid(65534).gid(65534).current_dir("/");
        command
    }
}

fn orders_in_history(node: &Node) -> Vec<Value> {
    let history = history(&node.storage());
    of_kind(&history, "operator").map(|entry| entry["order"].clone()).collect()
}

#[test]
fn a_refused_order_is_recorded_with_the_reason() {
    let node = calm_node(LOW);
    let _daemon = node.start(&[]);
    let refused = node.order(&["reboot", "--why", "new driver"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    let shown = node.order(&["history", "--kind", "operator"]).stdout;
    let expected = "new driver; refused: the mode is observe";
    assert!(shown.contains(expected) && shown.matches("reboot ordered").count() == 1, "{shown}");
    let orders = history(&node.storage());
    let order = of_kind(&orders, "operator").next().unwrap();
    assert!(order["refused"].as_str().unwrap().starts_with("the mode is observe"), "{order}");
}

#[test]
fn a_silence_survives_a_kill_and_ends_on_request() {
    let node = calm_node(LOW);
    let daemon = node.start(&["--mode=enforce"]);
    let words = ["--comment", "loading <by> hand", "--author", "Alice"];
    let made = node.ordered(&[&["silence", "Low", "--for", "2h"], &words[..]].concat());
    assert_eq!(made["id"], 1);
    assert_eq!(made["comment"], "loading <by> hand");
    let author = made["author"].as_str().unwrap();
    let uid = rustix::process::getuid().as_raw();
    assert!(author.starts_with("Alice (") && author.contains(&format!("uid {uid}")), "{author}");
    daemon.kill();

    let daemon = node.start(&["--mode=enforce"]);
    let guard = node.guard(&daemon);
    assert_eq!(guard["silences"][0]["comment"], "loading <by> hand", "{guard:#}");
    node.set_meminfo("MemFree", 4 << 20);
    daemon.wait_until("held", |daemon| holds(daemon, "silenced"));
    assert!(!node.compacted());
    assert!(daemon.get("/").1.contains("loading &lt;by&gt; hand"));
    let listed = node.order(&["silence", "list"]);
    assert!(listed.stdout.contains("Low") && listed.stdout.contains("Alice"), "{listed:?}");

    node.ordered(&["silence", "end", "1"]);
    daemon.wait_until("done", |_| node.compacted());
    let again = node.order(&["silence", "end", "1"]);
    assert!(again.code == 1 && again.stderr.contains("not in force"), "{again:?}");
    let unknown = node.order(&["silence", "end", "99"]);
    assert!(unknown.code == 1 && unknown.stderr.contains("no silence 99"), "{unknown:?}");
    assert_eq!(node.order(&["silence", "list"]).stdout, "");
    daemon.terminate();
    assert_eq!(orders_in_history(&node), ["silence", "end_silence"]);
    let daemon = node.start(&[]);
    assert_eq!(node.guard(&daemon)["silences"], serde_json::json!([]), "what ended stays ended");
    assert_eq!(node.ordered(&["silence", "--all", "--for", "1h"])["id"], 2);
}

#[test]
fn a_pending_act_is_done_once_after_its_approval() {
    let node = Node::new("gb10-4k");
    let asking = "remedy:\n      require_approval: {expires: 1h}";
    let rules = ALWAYS.replace("remedy:", asking);
    node.write_rules(&rules.replace("      - compact_memory: {}\n", ""));
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("asking for approval", |daemon| holds(daemon, "approval"));
    let waiting = node.ordered(&["approve", "list"]);
    assert_eq!(waiting["rule"]["alert"], "Always", "{waiting:#}");
    let question = waiting["decision"].to_string();
    assert!(daemon.get("/").1.contains(&format!("umawarden approve {question}")));
    let other = node.order(&["approve", "987654"]);
    assert!(other.code == 1 && other.stderr.contains(&question), "{other:?}");
    assert_eq!(fs::read_to_string(node.drop_caches()).unwrap(), "");
    daemon.kill();

    // The request survives the daemon.
    let daemon = node.start(&["--mode=enforce"]);
    assert_eq!(node.ordered(&["approve", "list"])["decision"].to_string(), question);
    let approved = node.ordered(&["approve", &question, "--comment", "go"]);
    assert_eq!(approved["order"], "approve");
    let done = outcomes("drop_caches", "done");
    daemon.wait_until("done", |daemon| daemon.count(&done) == 1.0);
    assert_eq!(fs::read_to_string(node.drop_caches()).unwrap(), "1");
    let again = node.order(&["approve", &question]);
    assert_eq!(again.code, 1, "it is used up: {again:?}");
    daemon.kill();
    fs::write(node.drop_caches(), "").unwrap();

    // And so is its use.
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("held", |daemon| holds(daemon, "cooldown"));
    assert_eq!(fs::read_to_string(node.drop_caches()).unwrap(), "");
    daemon.terminate();
    let history = history(&node.storage());
    let acts: Vec<_> = of_kind(&history, "decision").filter(|d| d["decision"] == "act").collect();
    assert_eq!(acts.len(), 1, "{history:#?}");
    assert_eq!(acts[0]["approved"].to_string(), question);
    assert_eq!(orders_in_history(&node), ["approve"]);
}

#[test]
fn a_pause_made_without_the_daemon_applies_from_its_first_step() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let missing = node.order(&["pause"]);
    assert!(missing.code == 2 && missing.stderr.contains("--storage.path"), "{missing:?}");
    fs::create_dir(node.storage()).unwrap();
    let paused = node.order(&["pause", "--comment", "firmware"]);
    assert!(paused.code == 0 && paused.stdout.contains("paused by"), "{paused:?}");
    assert!(paused.stderr.contains("no daemon"), "{paused:?}");
    assert_eq!(node.order(&["pause"]).code, 0, "it is paused all the same");
    assert_eq!(node.order(&["pause", "status"]).code, 0);
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("held", |daemon| holds(daemon, "paused"));
    assert_eq!(node.guard(&daemon)["pause"]["comment"], "firmware");
    assert_eq!(fs::read_to_string(node.drop_caches()).unwrap(), "");
    assert!(daemon.get("/").1.contains("nothing is done until `umawarden resume`"));
    daemon.kill();
    let daemon = node.start(&["--mode=enforce"]);
    assert_eq!(node.guard(&daemon)["pause"]["comment"], "firmware", "it outlives a restart");
    let resumed = node.order(&["resume"]);
    assert!(resumed.code == 0 && resumed.stdout == "no longer paused\n", "{resumed:?}");
    let done = outcomes("drop_caches", "done");
    daemon.wait_until("done", |daemon| daemon.count(&done) == 1.0);
    let idle = node.order(&["resume"]);
    assert!(idle.code == 1 && idle.stderr.contains("not paused"), "{idle:?}");
    assert_eq!(node.order(&["pause", "status"]).code, 1);
    daemon.terminate();
    let history = history(&node.storage());
    let notes: Vec<_> = of_kind(&history, "note").map(|note| note["text"].to_string()).collect();
    assert!(notes.iter().any(|note| note.contains("firmware")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("no longer paused, by")), "{notes:?}");
}

#[test]
fn any_file_of_that_name_pauses_a_running_daemon_until_its_removal() {
    let node = calm_node(LOW);
    let daemon = node.start(&["--mode=enforce"]);
    let file = node.storage().join("paused");
    fs::write(&file, "").unwrap();
    daemon.wait_until("paused", |daemon| node.guard(daemon)["pause"].is_object());
    node.set_meminfo("MemFree", 4 << 20);
    daemon.wait_until("held", |daemon| holds(daemon, "paused"));
    assert!(!node.compacted());
    fs::remove_file(&file).unwrap();
    daemon.wait_until("done", |_| node.compacted());
}

#[test]
fn a_hanging_daemon_is_paused_by_the_file() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&[]);
    daemon.signal(Signal::STOP);
    let paused = node.order(&["pause"]);
    daemon.signal(Signal::CONT);
    assert!(paused.code == 0 && paused.stderr.contains("has not answered"), "{paused:?}");
    assert!(node.storage().join("paused").exists());
    daemon.wait_until("paused", |daemon| node.guard(daemon)["pause"].is_object());
}

#[test]
fn an_unwritable_pause_is_sent_to_the_daemon() {
    let node = calm_node(LOW);
    let elsewhere = node.path("missing/paused").display().to_string();
    let pause_file = format!("--pause-file={elsewhere}");
    let daemon = node.start(&["--mode=enforce", &pause_file]);
    let paused = node.order(&["pause", &pause_file]);
    assert!(paused.code == 0 && paused.stderr.contains("ends when the daemon does"), "{paused:?}");
    node.set_meminfo("MemFree", 4 << 20);
    daemon.wait_until("held", |daemon| holds(daemon, "paused"));
    // A client that does not know of the other file can still pause and resume the daemon.
    assert_eq!(node.order(&["resume"]).code, 0);
    daemon.wait_until("done", |_| node.compacted());
    let paused = node.order(&["pause"]);
    assert_eq!(paused.code, 0, "{paused:?}");
    assert!(node.guard(&daemon)["pause"].is_object());
}

#[test]
fn a_stopped_remedy_can_be_reset() {
    let node = Node::new("gb10-4k");
    let rules = ALWAYS.replace("cooldown: 1h", "cooldown: 10ms\n      breaker: {misses: 2}");
    node.write_rules(&rules.replace("      - compact_memory: {}\n", ""));
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("stopped", |daemon| holds(daemon, "breaker_open"));
    let stopped = node.ordered(&["breaker", "list"]);
    assert_eq!((&stopped["rule"]["alert"], &stopped["is_open"]), (&"Always".into(), &true.into()));
    assert!(daemon.get("/").1.contains("`umawarden breaker reset g/Always`"));
    let done = daemon.count(&outcomes("drop_caches", "done"));
    let unknown = node.order(&["breaker", "reset", "g/Alway"]);
    assert!(unknown.code == 1 && unknown.stderr.contains("g/Always"), "{unknown:?}");
    assert_eq!(node.ordered(&["breaker", "reset", "g/Always"])["order"], "reset_breaker");
    daemon.wait_until("done again", |daemon| daemon.count(&outcomes("drop_caches", "done")) > done);
}

#[test]
fn a_silence_works_without_the_journal_and_an_approval_does_not() {
    let node = Node::new("gb10-4k");
    let asking = "remedy:\n      require_approval: true";
    node.write_rules(&ALWAYS.replace("remedy:", asking));
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("asking for approval", |daemon| holds(daemon, "approval"));
    let question = node.ordered(&["approve", "list"])["decision"].to_string();
    let journal = rusqlite::Connection::open(node.storage().join("journal.sqlite3")).unwrap();
    journal.execute_batch("BEGIN IMMEDIATE").unwrap();

    let silenced = node.order(&["silence", "Always", "--for", "1h"]);
    assert!(silenced.code == 0, "{silenced:?}");
    assert!(silenced.stderr.contains("may not survive a restart"), "{silenced:?}");
    assert_eq!(node.guard(&daemon)["silences"][0]["rules"]["alert"], "Always");
    let refused = node.order(&["approve", &question]);
    assert!(refused.code == 2 && refused.stderr.contains("nothing is approved"), "{refused:?}");
    assert_eq!(node.guard(&daemon)["approvals"][0]["given_by"], Value::Null);

    journal.execute_batch("ROLLBACK").unwrap();
    daemon.wait_until("up", |daemon| daemon.metrics().get("uma_journal_up") == Some(&1.0));
    daemon.terminate();
    assert_eq!(orders_in_history(&node), ["silence"]);
}

#[test]
fn an_act_that_cannot_be_journalled_is_not_done_and_opens_no_breaker() {
    let node = Node::new("gb10-4k");
    let rules = ALWAYS.replace("cooldown: 1h", "cooldown: 10ms\n      breaker: {misses: 1}");
    node.write_rules(&rules);
    fs::create_dir(node.storage()).unwrap();
    assert_eq!(node.order(&["pause"]).code, 0);
    let daemon = node.start(&["--mode=enforce"]);
    daemon.wait_until("held", |daemon| holds(daemon, "paused"));
    let journal = rusqlite::Connection::open(node.storage().join("journal.sqlite3")).unwrap();
    journal.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(node.order(&["resume"]).code, 0);
    let not_done = outcomes("drop_caches", "not_done");
    daemon.wait_until("not done", |daemon| daemon.count(&not_done) > 0.0);
    assert_eq!(fs::read_to_string(node.drop_caches()).unwrap(), "");
    assert!(!holds(&daemon, "breaker_open"));
    assert_eq!(daemon.count(&outcomes("drop_caches", "failed")), 0.0);
    journal.execute_batch("ROLLBACK").unwrap();
    let done = outcomes("drop_caches", "done");
    daemon.wait_until("done", |daemon| daemon.count(&done) > 0.0);
    daemon.terminate();
    let history = history(&node.storage());
    let is_recorded = of_kind(&history, "outcome").any(|outcome| outcome["result"] == "not_done");
    assert!(is_recorded, "{history:?}");
}

#[test]
fn a_replay_knows_the_orders() {
    let node = calm_node(LOW);
    let daemon = node.start(&["--mode=enforce"]);
    node.ordered(&["silence", "Low", "--for", "1h"]);
    node.set_meminfo("MemFree", 4 << 20);
    daemon.wait_until("held", |daemon| holds(daemon, "silenced"));
    node.ordered(&["pause"]);
    node.ordered(&["silence", "end", "1"]);
    daemon.wait_until("held", |daemon| holds(daemon, "paused"));
    node.ordered(&["resume"]);
    daemon.wait_until("done", |_| node.compacted());
    daemon.terminate();
    let replayed = Command::new(binary())
        .args(["replay", "--diff"])
        .arg(node.storage().join("recording"))
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&replayed.stdout);
    assert_eq!(replayed.status.code(), Some(0), "{stdout}");
}

#[test]
fn commands_without_a_daemon_or_permission_give_advice() {
    let node = Node::new("gb10-4k");
    for arguments in [
        ["silence", "Low", "--for=1h"].as_slice(),
        &["silence", "list"],
        &["approve", "1"],
        &["breaker", "reset", "Low"],
    ] {
        let ended = node.order(arguments);
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.stderr.contains("umawarden run"), "{ended:?}");
    }
    for arguments in [
        ["silence"].as_slice(),
        &["silence", "Low"],
        &["silence", "Low", "--all", "--for=1h"],
        &["silence", "Low", "--for=soon"],
        &["silence", "Low", "--for=1h", "--until=2030-01-01T00:00"],
        &["approve", "first"],
        &["breaker"],
    ] {
        assert_eq!(node.order(arguments).code, 2, "{arguments:?}");
    }
    let daemon = node.start(&[]);
    let unknown = node.order(&["silence", "Low", "--for=1h"]);
    assert!(unknown.code == 1 && unknown.stderr.contains("no rule \"Low\""), "{unknown:?}");
    let unknown = node.order(&["approve", "7"]);
    assert!(unknown.code == 1 && unknown.stderr.contains("that do: none"), "{unknown:?}");
    for arguments in [
        ["silence", "--all", "--until=2020-01-01T00:00"].as_slice(),
        &["silence", "--all", "--for=0s"],
        &["silence", "--all", "--for=900d"],
        &["silence", "--all", "--for=1M"],
        &["silence", "--all", "--for=1.5h"],
        &["silence", "--all", "--for=2hours"],
        &["approve", "7", "--for=0s"],
        &["approve", "7", "--for=900d"],
    ] {
        let ended = node.order(arguments);
        assert_eq!(ended.code, 2, "{arguments:?}: {ended:?}");
    }
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can become somebody else");
    }
    let stranger = Stranger::new();
    let ended =
        umawarden_as(stranger.command(), &node.storage(), &["silence", "--all", "--for=1h"]);
    assert!(ended.code == 2 && ended.stderr.contains("sudo"), "{ended:?}");
    assert_eq!(node.guard(&daemon)["silences"], serde_json::json!([]));
    let help = node.order(&["silence", "--help"]).stdout;
    assert!(help.contains("<--for <DURATION>|--until <TIME>>"), "{help}");
}

#[test]
fn every_command_reports_an_unreadable_folder() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can become somebody else");
    }
    let node = Node::new("gb10-4k");
    node.start(&[]).terminate();
    fs::set_permissions(node.storage(), fs::Permissions::from_mode(0o750)).unwrap();
    let stranger = Stranger::new();
    for arguments in [
        ["history"].as_slice(),
        &["history", "--last-boot"],
        &["explain", "PageCacheEatsReserve"],
        &["rules", "report"],
    ] {
        let ended = umawarden_as(stranger.command(), &node.storage(), arguments);
        assert!(ended.code == 2 && ended.stderr.contains("sudo"), "{arguments:?}: {ended:?}");
    }
    let output = stranger.command().arg("replay").arg(node.storage()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.contains("sudo"), "{stderr}");
}

#[test]
fn every_command_finds_the_daemons_folder_by_the_configuration_file() {
    let node = calm_node(LOW);
    let daemon = node.start(&[]);
    let file = node.path("umawarden.yaml");
    let path = serde_json::to_string(&node.storage()).unwrap();
    fs::write(&file, format!("storage: {{path: {path}}}\n")).unwrap();
    daemon.wait_until("sampled", |daemon| daemon.metric("uma_paused") == 0.0);
    let elsewhere = tempfile::tempdir().unwrap();
    let takes = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(arguments).arg("--config.file").arg(&file).current_dir(elsewhere.path());
        let output = command.env("STATE_DIRECTORY", "/nowhere").output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    };
    takes(&["silence", "list"]);
    takes(&["breaker", "list"]);
    daemon.terminate();
    takes(&["history"]);
    takes(&["explain", "Low"]);
    takes(&["rules", "report"]);
}

#[test]
fn an_unreadable_pause_file_is_not_reported_as_a_pause() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can become somebody else");
    }
    let node = Node::new("gb10-4k");
    let daemon = node.start(&[]);
    fs::set_permissions(node.storage(), fs::Permissions::from_mode(0o750)).unwrap();
    let stranger = Stranger::new();
    for arguments in
        [["pause"].as_slice(), &["pause", "status"], &["pause", "status", "--json"], &["resume"]]
    {
        let ended = umawarden_as(stranger.command(), &node.storage(), arguments);
        assert!(ended.code == 2 && ended.stdout.is_empty(), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains("sudo"), "{arguments:?}: {ended:?}");
        let claims = ["paused already", "still paused"];
        assert!(!claims.iter().any(|claim| ended.stderr.contains(claim)), "{ended:?}");
    }
    assert_eq!(node.guard(&daemon)["pause"], Value::Null);
}
