//! Starts that reserve memory on several nodes: two daemons, each with a ledger of its own.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use umawarden::access::{NewToken, create_token};
use umawarden::model::Role;

use crate::daemon::{Daemon, binary, of_kind, write_secret};

/// A node: its daemon, its ledger, and a token of its peers.
struct Node {
    folder: tempfile::TempDir,
    daemon: Daemon,
    token: NewToken,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let token = create_token("peers", Role::Operate, None).unwrap();
        let path = |below: &str| folder.path().join(below).display().to_string();
        write_secret(path("tokens.yml"), &token.entry());
        let config = format!(
            "starts: {{folder: {}}}\nweb: {{tokens_file: {}}}\n",
            path("run"),
            path("tokens.yml")
        );
        fs::write(path("daemon.yaml"), config).unwrap();
        let config = format!("--config.file={}", path("daemon.yaml"));
        let daemon = Daemon::start(&folder.path().join("data"), &[&config]);
        Self { folder, daemon, token }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    /// A command on this node, for it and these peers; `token` is what it shows them.
    fn command(&self, command: &str, peers: &[&str], token: Option<&str>) -> Command {
        let mut config = format!(
            "starts: {{folder: {}}}\nstorage: {{path: {}}}\ncluster:\n  peers: [{}]\n",
            self.path("run").display(),
            self.path("data").display(),
            peers.iter().map(|peer| format!("'{peer}'")).collect::<Vec<_>>().join(", ")
        );
        if let Some(token) = token {
            write_secret(self.path("peers.token"), token);
            config.push_str("  bearer_token_file: peers.token\n");
        }
        fs::write(self.path("start.yaml"), config).unwrap();
        let mut own = Command::new(binary());
        own.arg(command).arg(format!("--config.file={}", self.path("start.yaml").display()));
        own.arg("--peers").env_remove("INVOCATION_ID");
        own.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        own
    }

    fn post(&self, path: &str) -> (u16, Value) {
        let client = crate::daemon::http_client().build().unwrap();
        let url = format!("http://{}{path}", self.daemon.address());
        let response = client.post(url).bearer_auth(&self.token.token).send().unwrap();
        (response.status().as_u16(), response.json().unwrap())
    }

    /// The states of leases by name.
    fn leases(&self) -> Vec<(String, String)> {
        let text = fs::read(self.path("run/leases.json")).unwrap_or_default();
        let book: Value = serde_json::from_slice(&text).unwrap_or_default();
        let text = |lease: &Value, name: &str| lease[name].as_str().unwrap_or_default().to_owned();
        let leases = book["leases"].as_array().cloned().unwrap_or_default();
        leases.iter().map(|lease| (text(lease, "who"), text(lease, "state"))).collect()
    }

    fn wait_until(&self, what: &str, leases: &[(&str, &str)]) {
        let began = Instant::now();
        let is_so = |seen: &[(String, String)]| {
            seen.len() == leases.len()
                && leases.iter().zip(seen).all(|(own, seen)| own.0 == seen.0 && own.1 == seen.1)
        };
        while !is_so(&self.leases()) {
            let since = began.elapsed();
            assert!(since < Duration::from_secs(30), "never {what}: {:?}", self.leases());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_start_over_two_nodes_reserves_on_both_and_gives_both_back() {
    let (one, two) = (Node::new(), Node::new());
    let mut start = one.command("launch", &[two.daemon.address()], Some(&two.token.token));
    start.args(["--need=4GiB", "--name=pair", "--timeout=30s", "--", "sleep", "60"]);
    let mut start = start.spawn().unwrap();
    one.wait_until("reserved", &[("pair", "granted")]);
    two.wait_until("reserved there", &[("pair", "granted")]);
    // What others of that node want waits.
    let (status, body) = two.post("/api/v1/gate?need=4GiB&id=other");
    assert_eq!(status, 503, "{body}");
    assert!(body["error"].as_str().unwrap().contains("pair is starting"), "{body}");
    kill_process(Pid::from_child(&start), Signal::TERM).unwrap();
    start.wait().unwrap();
    assert!(!two.leases().iter().any(|(who, _)| who == "pair"), "{:?}", two.leases());
    one.wait_until("given back", &[]);
}

#[test]
fn a_gate_over_two_nodes_leaves_both_reserved_and_a_lost_peer_none() {
    let (one, two) = (Node::new(), Node::new());
    // Nobody listens there.
    let lost = "127.0.0.1:1";
    let peers = [two.daemon.address(), lost];
    let mut gate = one.command("gate", &peers, Some(&two.token.token));
    let output = gate.args(["--need=4GiB", "--timeout=4s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(printed(&output).contains("127.0.0.1:1 is unknown"), "{}", printed(&output));
    assert_eq!((one.leases(), two.leases()), (Vec::new(), Vec::new()), "nothing is left");
    let mut gate = one.command("gate", &peers[..1], Some(&two.token.token));
    let output = gate.args(["--need=4GiB", "--timeout=30s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    for node in [&one, &two] {
        assert_eq!(node.leases(), [("gate".to_owned(), "granted".to_owned())]);
        let text = fs::read(node.path("run/leases.json")).unwrap();
        let book: Value = serde_json::from_slice(&text).unwrap();
        assert!(book["leases"][0]["renew_by"].is_null(), "it lasts without its requester: {book}");
    }
}

#[test]
fn a_peer_that_may_not_be_called_is_looked_at_and_that_is_said() {
    let (one, two) = (Node::new(), Node::new());
    for (token, expected) in [
        (None, "it answers 401"),
        (Some(create_token("unknown", Role::Operate, None).unwrap().token), "it answers 401"),
    ] {
        let mut gate = one.command("gate", &[two.daemon.address()], token.as_deref());
        let output = gate.args(["--need=4GiB", "--timeout=20s"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
        let notice = format!("nothing is reserved on {}: {expected}", two.daemon.address());
        assert_eq!(printed(&output).matches(&notice).count(), 1, "{}", printed(&output));
        assert_eq!(two.leases(), []);
        fs::remove_file(one.path("run/leases.json")).unwrap();
    }
}

#[test]
fn two_starts_over_the_same_nodes_from_both_sides_come_one_after_the_other() {
    let (one, two) = (Node::new(), Node::new());
    let notes = one.path("notes");
    let script = format!("echo begin >> {0}; sleep 0.5; echo end >> {0}", notes.display());
    let start = |own: &Node, other: &Node, name: &str| {
        let mut start = own.command("launch", &[other.daemon.address()], Some(&other.token.token));
        start.args(["--need=4GiB", name, "--timeout=60s", "--", "sh", "-c", &script]);
        start.spawn().unwrap()
    };
    for _ in 0..3 {
        let starts = [start(&one, &two, "--name=left"), start(&two, &one, "--name=right")];
        for output in starts.map(|start: Child| start.wait_with_output().unwrap()) {
            assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
        }
    }
    let notes = fs::read_to_string(notes).unwrap();
    assert_eq!(notes, "begin\nend\n".repeat(6), "never both at once");
    for node in [one, two] {
        node.wait_until("given back", &[]);
    }
}

#[test]
fn a_pod_reserves_memory_by_the_api_until_it_gives_it_back() {
    let node = Node::new();
    // Like an init container: until it is open.
    let first = "/api/v1/gate?need=4GiB&id=pod-1&name=chat&priority=1&lease=5m";
    node.daemon.wait_until("open", |_| node.post(first).0 == 200);
    let (status, body) = node.post(first);
    assert_eq!((status, &body["data"]["lease"]["stage"]), (200, &"granted".into()), "{body}");
    let (status, body) = node.post("/api/v1/gate?need=4GiB&id=pod-2");
    assert_eq!((status, &body["data"]["lease"]["stage"]), (503, &"waiting".into()), "{body}");
    assert_eq!(body["error"], "it waits its turn: chat is starting");
    assert_eq!(node.post("/api/v1/gate?need=4GiB&id=pod-1").0, 200, "it has it already");
    let client = crate::daemon::http_client().build().unwrap();
    let end = |id: &str, token: &str| {
        let url = format!("http://{}/api/v1/leases/{id}", node.daemon.address());
        client.delete(url).bearer_auth(token).send().unwrap().status().as_u16()
    };
    assert_eq!(end("pod-1", "wrong"), 401);
    assert_eq!(end("pod-1", &node.token.token), 200);
    assert_eq!(end("pod-1", &node.token.token), 404);
    assert_eq!(node.post("/api/v1/gate?need=4GiB&id=pod-2").0, 200);
    node.daemon.wait_until("journalled with the caller", |_| {
        let history = crate::daemon::history(&node.path("data"));
        let leases: Vec<_> = of_kind(&history, "lease").map(ToString::to_string).collect();
        let of = |change: &str| leases.iter().find(|lease| lease.contains(change));
        let is_by = |lease: &String| lease.contains("token peers (127.0.0.1)");
        of("granted").is_some_and(is_by) && of("withdrawn").is_some_and(is_by)
    });
    for wrong in [
        "need=4GiB",
        "id=pod-3",
        "need=4GiB&id=",
        "need=4GiB&id=a&id=b",
        "need=4GiB&id=a&priority=high",
        "need=4GiB&id=a&lease=2d",
        "need=4GiB&id=a&call=steal",
        "need=4GiB&id=a&turn=-1",
    ] {
        let (status, body) = node.post(&format!("/api/v1/gate?{wrong}"));
        assert_eq!(status, 400, "{wrong}: {body}");
        let text = body["error"].as_str().unwrap();
        assert!(text.contains("write it like") || text.contains("1s to 1d"), "{wrong}: {text}");
    }
}

/// The snippet of the book: an init container waits until memory is reserved, and says why it waits.
#[test]
fn the_init_container_of_the_book_reserves_memory() {
    const PAGE: &str = include_str!("../../../docs/src/tasks/leases.md");
    let arguments = PAGE.lines().find_map(|line| line.trim().strip_prefix("args: [")).unwrap();
    let node = Node::new();
    assert_eq!(node.post("/api/v1/gate?need=1GiB&id=first&name=first").0 / 100, 5, "not yet known");
    node.daemon.wait_until("reserved", |_| node.post("/api/v1/gate?need=1GiB&id=first").0 == 200);
    let token = node.path("token");
    write_secret(&token, &node.token.token);
    let arguments = arguments.trim_end_matches(']').split(", ").map(|argument| {
        let argument = argument.replace("$(NODE)", node.daemon.address()).replace("90GiB", "2GiB");
        argument.replace("/token/token", &token.display().to_string())
    });
    let mut container = Command::new(binary());
    container.args(arguments).env("POD_NAMESPACE", "models").env("POD_NAME", "llm-0");
    container.env("POD_UID", "pod-uid").stderr(Stdio::piped()).stdout(Stdio::piped());
    let container = container.spawn().unwrap();
    node.wait_until("waiting", &[("first", "granted"), ("vllm", "waiting")]);
    // The snapshot comes after the ledger.
    node.daemon.wait_until("named", |daemon| {
        let leases = daemon.get("/api/v1/leases").1;
        let parts = ["\"id\":\"pod-uid\"", "\"namespace\":\"models\"", "\"name\":\"llm-0\""];
        parts.iter().all(|part| leases.contains(part))
    });
    let client = crate::daemon::http_client().build().unwrap();
    let url = format!("http://{}/api/v1/leases/first", node.daemon.address());
    assert!(
        client.delete(url).bearer_auth(&node.token.token).send().unwrap().status().is_success()
    );
    let output = container.wait_with_output().unwrap();
    let [printed, said] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success() && printed.starts_with("open: "), "{printed}{said}");
    assert!(said.contains("umawarden: vllm waits: "), "{said}");
    node.wait_until("reserved", &[("vllm", "granted")]);
}

#[test]
fn a_gate_on_another_node_says_why_it_is_refused_and_gives_its_request_back() {
    let node = Node::new();
    let gate = |token: Option<&str>, more: &[&str]| {
        let mut gate = Command::new(binary());
        gate.args(["gate", "--need", "1GiB", "--node", node.daemon.address()]).args(more);
        if let Some(token) = token {
            let file = node.path("given");
            write_secret(&file, token);
            gate.arg("--bearer-token-file").arg(file);
        }
        let output = gate.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    node.daemon.wait_until("measured", |_| node.post("/api/v1/gate?need=1GiB&id=a").0 == 200);
    let (code, text) = gate(None, &["--timeout", "0s"]);
    assert!(code == Some(1) && text.contains("401"), "{code:?}: {text}");
    let (code, text) = gate(Some(&node.token.token), &["--timeout", "0s", "--json", "--name", "b"]);
    let reply: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((code, &reply["open"]), (Some(1), &false.into()), "{text}");
    let leases = node.daemon.get("/api/v1/leases").1;
    assert!(!leases.contains("\"who\":\"b\""), "it was given back: {leases}");
}
