//! Other nodes that must be able to take an engine, too.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Memory, Node, stderr, stdout, wait};
use crate::daemon::{Daemon, binary, write_secret};
use crate::empty_cache::fake::{Asked, FakeEngine, Reply};

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
    let told = json!({"status": "error", "errorType": "closed", "error": "x", "data": data});
    Reply::Answer(503, told.to_string())
}

/// Another node, which answers what it is told to.
struct Other {
    server: FakeEngine,
    says: Arc<Mutex<Reply>>,
}

impl Other {
    fn new(says: Reply) -> Self {
        let says = Arc::new(Mutex::new(says));
        let told = Arc::clone(&says);
        let server = FakeEngine::start(move |_: &Asked| told.lock().unwrap().clone());
        Self { server, says }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.server.port)
    }

    fn says(&self, reply: Reply) {
        *self.says.lock().unwrap() = reply;
    }
}

const NEED: u64 = 90 << 30;

#[test]
fn it_opens_when_all_nodes_can_take_it_at_the_same_time() {
    let node = Node::new(Memory::free(110));
    let (one, other) = (Other::new(open(NEED)), Other::new(closed(NEED, &["12 GiB had"], 40.0)));
    let peers = format!("--peers={},{}", one.address(), other.address());
    let mut gate = node.gate(&["--need=90GiB", "--contiguous=1GiB", "--timeout=25s", &peers]);
    let child = gate.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(2_500));
    // Now that one can the first cannot any more.
    one.says(closed(NEED, &["somebody takes memory"], 7.0));
    std::thread::sleep(Duration::from_millis(1_200));
    other.says(open(NEED));
    std::thread::sleep(Duration::from_millis(1_500));
    one.says(open(NEED));
    let could = Instant::now();
    let (output, ended) = wait(child);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(ended.saturating_duration_since(could) < Duration::from_millis(1_500));
    assert!(ended > could, "while one was closed it was open: {}", stdout(&output));
    let told = stderr(&output);
    assert!(told.contains(&format!("about 40.0s to go: {}: 12 GiB had", other.address())));
    assert!(told.contains(&format!("{}: somebody takes memory", one.address())), "{told}");
    let names = format!("; open, too: {}, {}", one.address(), other.address());
    assert!(stdout(&output).contains(&names), "{}", stdout(&output));
    let asked = one.server.calls();
    let path = format!("GET /api/v1/gate?need={NEED}&contiguous={}", 1_u64 << 30);
    assert!(asked.iter().all(|call| *call == path), "{asked:?}");
}

#[test]
fn one_that_does_not_answer_as_umawarden_does_keeps_it_closed() {
    let node = Node::new(Memory::free(110));
    let lies = [
        (Reply::Hang, "was not answered within"),
        (Reply::Close, "could not be asked"),
        (Reply::Endless, "it answers 200, and not as umawarden does"),
        (Reply::Answer(200, "<html>".to_owned()), "it answers 200, and not as umawarden does"),
        (Reply::Answer(404, String::new()), "it answers 404, and not as umawarden does"),
        // It was asked something else.
        (open(NEED - 1), "it answers 200, and not as umawarden does"),
        (Reply::Raw("SSH-2.0-OpenSSH\r\n".to_owned()), "could not be asked"),
        (
            Reply::Answer(503, json!({"error": "not \u{1b}[2Jmeasured"}).to_string()),
            "it answers 503: not  [2Jmeasured",
        ),
        (Reply::Raw("HTTP/1.1 307 x\r\nlocation: /-/ready\r\n\r\n".to_owned()), "it answers 307"),
    ];
    let others: Vec<_> = lies.map(|(lie, why)| (Other::new(lie), why)).into();
    let mut addresses: Vec<_> = others.iter().map(|(other, _)| other.address()).collect();
    // Nobody listens there.
    addresses.push("127.0.0.1:1".to_owned());
    let began = Instant::now();
    let peers = format!("--peers={}", addresses.join(","));
    let mut gate = node.gate(&["--need=90GiB", "--contiguous=1GiB", "--timeout=0", &peers]);
    let output = gate.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    let told = stderr(&output);
    let (_, told) = told.split_once("not open after").unwrap();
    for (address, why) in addresses.iter().zip(others.iter().map(|(_, why)| *why)) {
        let line = told.lines().find(|line| line.contains(&format!("{address} is unknown: ")));
        assert!(line.is_some_and(|line| line.contains(why)), "{why}: {told}");
    }
    assert!(told.contains("127.0.0.1:1 is unknown: ") && told.contains("umawarden runs there"));
}

#[test]
fn what_each_says_is_told_to_scripts_and_a_node_that_never_can_ends_it() {
    let node = Node::new(Memory::free(110));
    let other = Other::new(closed(NEED, &[], 7.0));
    let peers = format!("--peers={}", other.address());
    let arguments = ["--need=90GiB", "--contiguous=1GiB", "--timeout=0", "--json", &peers];
    let output = node.gate(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["open"], &told["estimated_seconds"]), (&json!(false), &json!(7.0)));
    assert_eq!(told["reasons"][0]["kind"], "peer", "{told:#}");
    assert_eq!(told["reasons"][0]["why"], "it is closed, and does not say why");
    let expected = json!([{
        "node": other.address(), "says": "closed", "reasons": [], "estimated_seconds": 7.0,
        "hopeless": false,
    }]);
    assert_eq!(told["peers"], expected);
    let small = AtomicU64::new(0);
    let server = FakeEngine::start(move |_: &Asked| {
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
    for nonsense in ["--peers=", "--peers=http://a", "--peers=a,,b", "--peers=a:0"] {
        let output = node.gate(&["--need=1GiB", nonsense]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{nonsense}: {}", stderr(&output));
    }
}

#[test]
fn without_names_those_of_the_configuration_are_asked() {
    let node = Node::new(Memory::free(110));
    let gate = |text: &str| {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        std::fs::write(file.path(), text).unwrap();
        let config = format!("--config.file={}", file.path().display());
        let arguments = ["--need=90GiB", "--timeout=0", "--peers", "--json", &config];
        let output = node.gate(&arguments).output().unwrap();
        (output.status.code(), stdout(&output), stderr(&output))
    };
    let other = Other::new(closed(NEED, &["12 GiB had"], 40.0));
    let (code, told, said) = gate(&format!("cluster: {{peers: ['{}']}}", other.address()));
    assert_eq!(code, Some(1), "{said}");
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["peers"][0]["node"], other.address(), "{told}");
    for none in ["", "cluster: {peers: []}"] {
        let (code, _, said) = gate(none);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("write --peers spark-2,spark-3, or there cluster:"), "{said}");
    }
    let (code, _, said) = gate("cluster: {peers: [a, a]}");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("a is named twice"), "{said}");
}

#[test]
fn peers_of_files_are_asked_with_credentials_and_a_file_that_is_not_there_keeps_it_closed() {
    let node = Node::new(Memory::free(110));
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let other = Other::new(open_plainly(NEED));
    write_secret(folder.path().join("token"), "secret\n");
    write("umawarden.yaml", "cluster: {file_sd: [peers.json], bearer_token_file: token}\n");
    let config = format!("--config.file={}", folder.path().join("umawarden.yaml").display());
    let gate = || {
        let arguments = ["--need=90GiB", "--timeout=0", "--peers", "--json", &config];
        let output = node.gate(&arguments).output().unwrap();
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let (code, told) = gate();
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("there is no such file"), "{told}");
    // Half written, or with nobody in it: who names no node opens nothing.
    for (text, why) in
        [("", "EOF"), ("[]", "names no node"), ("[{\"targets\": []}]", "names no node")]
    {
        write("peers.json", text);
        let (code, told) = gate();
        assert_eq!(code, Some(1), "{text}: {told}");
        assert!(told.contains(why), "{text}: {told}");
    }
    let targets =
        format!("[{{\"targets\": [\"{}\"], \"labels\": {{\"node\": \"two\"}}}}]", other.address());
    write("peers.json", &targets);
    let (code, told) = gate();
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("\"node\":\"two\""), "{told}");
    let asked = other.server.asked();
    assert!(asked.iter().any(|asked| asked.key.as_deref() == Some("Bearer secret")));
    other.says(closed(NEED, &["12 GiB had"], 40.0));
    let (code, told) = gate();
    assert_eq!(code, Some(1), "{told}");
}

#[test]
fn the_launcher_runs_nothing_while_another_node_is_closed() {
    let node = Node::new(Memory::free(110));
    let other = Other::new(Reply::Answer(404, String::new()));
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
fn a_real_daemon_answers_for_its_node() {
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
    let told = stderr(&output);
    assert!(told.contains(&format!("{}: 28.0 GiB of 90.0 GiB can be had", daemon.address())));
    daemon.terminate();
}
