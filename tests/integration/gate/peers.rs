//! `umawarden gate --peers`: the gate opens once all nodes are open.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Memory, Node, stderr, stdout, wait};
use crate::daemon::{Daemon, binary, write_secret};
use crate::empty_cache::fake::{FakeServer, Reply, Request};

fn open(need: u64) -> Reply {
    let data = json!({"open": true, "need_bytes": need, "contiguous_bytes": 1_u64 << 30});
    Reply::Answer(200, json!({"status": "success", "data": data}).to_string())
}

fn open_plainly(need: u64) -> Reply {
    let data = json!({"open": true, "need_bytes": need, "contiguous_bytes": null});
    Reply::Answer(200, json!({"status": "success", "data": data}).to_string())
}

fn closed(need: u64, reasons: &[&str], wait: f64) -> Reply {
    let reasons: Vec<_> = reasons.iter().map(|text| json!({ "text": text })).collect();
    let data = json!({
        "open": false, "need_bytes": need, "contiguous_bytes": 1_u64 << 30, "reasons": reasons,
        "estimated_seconds": wait, "hopeless": need > 200 << 30,
    });
    let body = json!({"status": "error", "errorType": "closed", "error": "x", "data": data});
    Reply::Answer(503, body.to_string())
}

/// Another node with a response that the test sets.
struct Peer {
    server: FakeServer,
    reply: Arc<Mutex<Reply>>,
}

impl Peer {
    fn new(reply: Reply) -> Self {
        let reply = Arc::new(Mutex::new(reply));
        let current = Arc::clone(&reply);
        let server = FakeServer::start(move |_: &Request| current.lock().unwrap().clone());
        Self { server, reply }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.server.port)
    }

    /// Sets the response from now on.
    fn set(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }
}

const NEED: u64 = 90 << 30;

#[test]
fn the_gate_opens_once_all_nodes_are_open_at_the_same_time() {
    let node = Node::new(Memory::free(110));
    let (one, other) = (Peer::new(open(NEED)), Peer::new(closed(NEED, &["12 GiB had"], 40.0)));
    let peers = format!("--peers={},{}", one.address(), other.address());
    let mut gate = node.gate(&["--need=90GiB", "--contiguous=1GiB", "--timeout=25s", &peers]);
    let child = gate.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(2_500));
    // The first peer closes before the other one opens.
    one.set(closed(NEED, &["free memory falls by"], 7.0));
    std::thread::sleep(Duration::from_millis(1_200));
    other.set(open(NEED));
    std::thread::sleep(Duration::from_millis(1_500));
    one.set(open(NEED));
    let opened = Instant::now();
    let (output, ended) = wait(child);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(ended.saturating_duration_since(opened) < Duration::from_millis(1_500));
    assert!(ended > opened, "the gate opened while a peer was closed: {}", stdout(&output));
    let printed = stderr(&output);
    assert!(printed.contains(&format!("about 40.0s to go: {}: 12 GiB had", other.address())));
    assert!(printed.contains(&format!("{}: free memory falls by", one.address())), "{printed}");
    let names = format!("; open, too: {}, {}", one.address(), other.address());
    assert!(stdout(&output).contains(&names), "{}", stdout(&output));
    let calls = one.server.calls();
    let path = format!("GET /api/v1/gate?need={NEED}&contiguous={}", 1_u64 << 30);
    assert!(calls.iter().all(|call| *call == path), "{calls:?}");
}

#[test]
fn a_peer_with_an_invalid_response_keeps_the_gate_closed() {
    let node = Node::new(Memory::free(110));
    let replies = [
        (Reply::Hang, "was not answered within"),
        (Reply::Close, "the connection failed"),
        (Reply::Endless, "the answer is longer than 1 MiB"),
        (Reply::Answer(200, "<html>".to_owned()), "it answers 200, and not as umawarden does"),
        (Reply::Answer(404, String::new()), "it answers 404"),
        // The response is for another need.
        (open(NEED - 1), "it answers 200, and not as umawarden does"),
        (Reply::Raw("SSH-2.0-OpenSSH\r\n".to_owned()), "the connection failed"),
        (
            Reply::Answer(503, json!({"error": "not \u{1b}[2Jmeasured"}).to_string()),
            "it answers 503: not  [2Jmeasured",
        ),
        (Reply::Raw("HTTP/1.1 307 x\r\nlocation: /-/ready\r\n\r\n".to_owned()), "it answers 307"),
    ];
    let others: Vec<_> = replies.map(|(reply, why)| (Peer::new(reply), why)).into();
    let mut addresses: Vec<_> = others.iter().map(|(other, _)| other.address()).collect();
    // No process listens there.
    addresses.push("127.0.0.1:1".to_owned());
    let began = Instant::now();
    let peers = format!("--peers={}", addresses.join(","));
    let mut gate = node.gate(&["--need=90GiB", "--contiguous=1GiB", "--timeout=0", &peers]);
    let output = gate.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    let printed = stderr(&output);
    let (_, printed) = printed.split_once("not open after").unwrap();
    for (address, why) in addresses.iter().zip(others.iter().map(|(_, why)| *why)) {
        let line = printed.lines().find(|line| line.contains(&format!("{address} is unknown: ")));
        assert!(line.is_some_and(|line| line.contains(why)), "{why}: {printed}");
    }
    assert!(
        printed.contains("127.0.0.1:1 is unknown: ") && printed.contains("umawarden runs there")
    );
}

#[test]
fn json_lists_each_peers_response_and_a_hopeless_peer_ends_the_wait() {
    let node = Node::new(Memory::free(110));
    let other = Peer::new(closed(NEED, &[], 7.0));
    let peers = format!("--peers={}", other.address());
    let arguments = ["--need=90GiB", "--contiguous=1GiB", "--timeout=0", "--json", &peers];
    let output = node.gate(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["open"], &report["estimated_seconds"]), (&json!(false), &json!(7.0)));
    assert_eq!(report["reasons"][0]["kind"], "peer", "{report:#}");
    assert_eq!(report["reasons"][0]["why"], "it is closed, and does not say why");
    let expected = json!([{
        "node": other.address(), "says": "closed", "reasons": [], "estimated_seconds": 7.0,
        "hopeless": false,
    }]);
    assert_eq!(report["peers"], expected);
    let small = AtomicU64::new(0);
    let server = FakeServer::start(move |_: &Request| {
        small.fetch_add(1, Ordering::Relaxed);
        let data = json!({
            "open": false, "need_bytes": NEED, "reasons": [{"text": "this node never has it"}],
            "hopeless": true,
        });
        Reply::Answer(503, json!({ "data": data }).to_string())
    });
    let began = Instant::now();
    let peers = format!("--peers=127.0.0.1:{}", server.port);
    let output = node.gate(&["--need=90GiB", "--timeout=1h", &peers]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(stderr(&output).contains(": this node never has it"), "{}", stderr(&output));
    for invalid in ["--peers=", "--peers=http://a", "--peers=a,,b", "--peers=a:0"] {
        let output = node.gate(&["--need=1GiB", invalid]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{invalid}: {}", stderr(&output));
    }
}

#[test]
fn peers_of_the_configuration_are_queried_without_names_on_the_command_line() {
    let node = Node::new(Memory::free(110));
    let gate = |text: &str| {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        std::fs::write(file.path(), text).unwrap();
        let config = format!("--config.file={}", file.path().display());
        let arguments = ["--need=90GiB", "--timeout=0", "--peers", "--json", &config];
        let output = node.gate(&arguments).output().unwrap();
        (output.status.code(), stdout(&output), stderr(&output))
    };
    let other = Peer::new(closed(NEED, &["12 GiB had"], 40.0));
    let (code, json, stderr) = gate(&format!("cluster: {{peers: ['{}']}}", other.address()));
    assert_eq!(code, Some(1), "{stderr}");
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["peers"][0]["node"], other.address(), "{report}");
    for none in ["", "cluster: {peers: []}"] {
        let (code, _, stderr) = gate(none);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("write --peers spark-2,spark-3, or there cluster:"), "{stderr}");
    }
    let (code, _, stderr) = gate("cluster: {peers: [a, a]}");
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("a is named twice"), "{stderr}");
}

#[test]
fn peers_of_files_are_queried_with_credentials_and_a_missing_file_keeps_the_gate_closed() {
    let node = Node::new(Memory::free(110));
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let other = Peer::new(open_plainly(NEED));
    write_secret(folder.path().join("token"), "secret\n");
    write("umawarden.yaml", "cluster: {file_sd: [peers.json], bearer_token_file: token}\n");
    let config = format!("--config.file={}", folder.path().join("umawarden.yaml").display());
    let gate = || {
        let arguments = ["--need=90GiB", "--timeout=0", "--peers", "--json", &config];
        let output = node.gate(&arguments).output().unwrap();
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let (code, printed) = gate();
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("there is no such file"), "{printed}");
    // A half-written or empty file names no node and opens nothing.
    for (text, why) in
        [("", "EOF"), ("[]", "names no node"), ("[{\"targets\": []}]", "names no node")]
    {
        write("peers.json", text);
        let (code, printed) = gate();
        assert_eq!(code, Some(1), "{text}: {printed}");
        assert!(printed.contains(why), "{text}: {printed}");
    }
    let targets =
        format!("[{{\"targets\": [\"{}\"], \"labels\": {{\"node\": \"two\"}}}}]", other.address());
    write("peers.json", &targets);
    let (code, printed) = gate();
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("\"node\":\"two\""), "{printed}");
    let requests = other.server.requests();
    assert!(requests.iter().any(|request| request.key.as_deref() == Some("Bearer secret")));
    other.set(closed(NEED, &["12 GiB had"], 40.0));
    let (code, printed) = gate();
    assert_eq!(code, Some(1), "{printed}");
}

#[test]
fn the_launcher_starts_nothing_while_a_peer_is_closed() {
    let node = Node::new(Memory::free(110));
    let other = Peer::new(Reply::Answer(404, String::new()));
    let ran = node.path("ran");
    let output = Command::new(binary())
        .args(["launch", "--need=90GiB", "--timeout=0"])
        .arg(format!("--peers={}", other.address()))
        .arg(format!("--path.procfs={}", node.path("proc").display()))
        .arg(format!("--path.sysfs={}", node.path("sys").display()))
        .args(["--", "/bin/touch"])
        .arg(&ran)
        .current_dir(node.path(""))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(124), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("{} is unknown", other.address())));
    assert!(!ran.exists());
}

#[test]
fn a_real_daemon_opens_the_gate_of_a_peer() {
    let (here, there) = (Node::new(Memory::free(110)), Node::new(Memory::free(30)));
    let procfs = format!("--path.procfs={}", there.path("proc").display());
    let sysfs = format!("--path.sysfs={}", there.path("sys").display());
    let daemon = Daemon::start(&there.path("storage"), &[&procfs, &sysfs]);
    let peers = format!("--peers={}", daemon.address());
    let child = here.gate(&["--need=90GiB", "--timeout=25s", &peers]).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    there.set(Memory::free(110));
    let (output, _) = wait(child);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let printed = stderr(&output);
    assert!(
        printed.contains(&format!("{}: 28.0 GiB available, 90.0 GiB needed", daemon.address()))
    );
    daemon.terminate();
}

#[test]
fn an_engine_on_two_nodes_needs_what_the_smaller_one_has() {
    let (here, there) = (Node::new(Memory::free(109)), Node::new(Memory::free(102)));
    let procfs = format!("--path.procfs={}", there.path("proc").display());
    let sysfs = format!("--path.sysfs={}", there.path("sys").display());
    let daemon = Daemon::start(&there.path("storage"), &[&procfs, &sysfs]);
    let peers = format!("--peers={}", daemon.address());
    let gate = |need: &str| here.gate(&[need, "--timeout=3s", &peers]).output().unwrap();
    let output = gate("--need=105GiB");
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let why = format!("{}: 100.0 GiB available, 105.0 GiB needed", daemon.address());
    assert!(stderr(&output).contains(&why), "{}", stderr(&output));
    let output = gate("--need=99GiB");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    daemon.terminate();
}
