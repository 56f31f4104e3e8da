//! The restart of the first rank of an engine over two nodes, each with a daemon.

use std::fs;
use std::path::Path;

use serde_json::Value;
use umawarden::access::create_token;
use umawarden::model::Role;

use super::super::replace;
use super::docker::{FakeDocker, id};
use super::{Node, reason, wait_for};
use crate::daemon::{Daemon, write_secret};
use crate::engines::process;

const COMMAND: &str = "/env/bin/python /env/bin/vllm serve /models/a --port 8000 --nnodes 2 \
                       --master-addr 10.0.0.1 --node-rank";

/// The configuration of a node; what the peers show it is in `tokens.yml`.
fn configure(node: &Node, name: &str, peers: &Path) {
    let path = |below: &str| node.path(below).display().to_string();
    let text = format!(
        "starts: {{folder: {}}}\nweb: {{tokens_file: {}}}\ncluster: {{name: pair, node: {name}, \
         file_sd: [{}], interval: 500ms, bearer_token_file: {}}}\nrestarts:\n- {{container: llm, \
         back_off: {{first: 200ms, most: 1s}}}}\n",
        path("run"),
        path("tokens.yml"),
        peers.display(),
        path("peers.token"),
    );
    fs::write(node.path("umawarden.yaml"), text).unwrap();
}

fn start(node: &Node, mode: &str, docker: Option<&FakeDocker>) -> Daemon {
    let config = format!("--config.file={}", node.path("umawarden.yaml").display());
    let socket = docker.map_or_else(
        || "--path.docker-socket=/none".to_owned(),
        |docker| format!("--path.docker-socket={}", docker.socket.display()),
    );
    node.start(&[mode, &config, &socket])
}

/// The state of the lease of the first rank on that node.
fn lease(node: &Node) -> Option<String> {
    let book = fs::read(node.path("run/leases.json")).unwrap_or_default();
    let book: Value = serde_json::from_slice(&book).unwrap_or_default();
    let mut leases = book["leases"].as_array().into_iter().flatten();
    let own = leases.find(|lease| lease["id"].as_str().unwrap().starts_with("gang-llm@"))?;
    assert_eq!((&own["who"], own["need"]["need_bytes"].as_u64()), (&"vllm".into(), Some(1 << 30)));
    Some(own["state"].as_str()?.to_owned())
}

#[test]
fn the_first_rank_is_started_once_the_other_node_has_reserved_its_memory() {
    let (one, two) = (Node::new("gb10-4k"), Node::new("gb10-4k"));
    let docker = FakeDocker::start(&one.path("docker.sock"));
    docker.run("llm");
    let token = create_token("peers", Role::Operate, None).unwrap();
    let peers = one.path("peers.json");
    fs::write(&peers, "[]").unwrap();
    for (node, name) in [(&one, "one"), (&two, "two")] {
        write_secret(node.path("tokens.yml"), &token.entry());
        write_secret(node.path("peers.token"), &token.token);
        configure(node, name, &peers);
    }
    let llm = id("llm");
    process(50, 1, "vllm", &format!("{COMMAND} 0")).in_container(&llm).write(&one.path("proc"));
    process(60, 1, "vllm", &format!("{COMMAND} 1 --headless")).write(&two.path("proc"));
    let head = start(&one, "--mode=enforce", Some(&docker));
    let other = start(&two, "--mode=observe", None);
    let target = |(name, daemon): (&str, &Daemon)| {
        let address = daemon.address();
        format!("{{\"targets\": [\"{address}\"], \"labels\": {{\"node\": \"{name}\"}}}}")
    };
    let targets = [("one", &head), ("two", &other)].map(target).join(", ");
    fs::write(one.path("new"), format!("[{targets}]")).unwrap();
    fs::rename(one.path("new"), &peers).unwrap();
    wait_for("both ranks are known", 20, &head, || {
        head.get("/metrics")
            .1
            .lines()
            .any(|line| line.starts_with("uma_engine_ranks{") && line.ends_with("} 2"))
    });
    // Its processes are noted once a second.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let meminfo = fs::read_to_string(two.path("proc/meminfo")).unwrap();
    for field in ["MemFree", "MemAvailable", "Cached", "Active(file)", "Inactive(file)"] {
        two.set_meminfo(field, 300_000);
    }
    fs::remove_dir_all(one.path("proc/50")).unwrap();
    docker.dies("llm");
    wait_for("it waits for the other rank", 20, &head, || {
        reason(&head, "llm").contains("it waits until its rank on two (vllm) has ended")
    });
    fs::remove_dir_all(two.path("proc/60")).unwrap();
    wait_for("it waits for memory", 30, &head, || {
        reason(&head, "llm").contains("it waits for memory on all its nodes: two: ")
            && lease(&two).is_some_and(|state| state == "waiting")
    });
    assert!(!reason(&head, "llm").contains("nothing is reserved"), "{}", reason(&head, "llm"));
    assert_eq!(docker.of("llm").starts, 0);
    replace(&two.path("proc/meminfo"), &meminfo);
    wait_for("it is reserved", 20, &head, || lease(&two).is_some_and(|state| state == "granted"));
    wait_for("it is started", 20, &head, || docker.of("llm").starts == 1);
    // Docker says that it is ready.
    wait_for("it is given back", 20, &head, || lease(&two).is_none());
}
