//! One real vLLM engine over two nodes, each with a network and processes of its own, and a daemon.
//! See [`super::testkit`] for what it needs; and root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::testkit::free_port;
use crate::daemon::binary;

const PATIENCE: Duration = Duration::from_secs(600);

/// Two network namespaces with an interface each.
pub(super) struct Network {
    pub(super) names: [String; 2],
    interfaces: [String; 2],
    pub(super) addresses: [String; 2],
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

impl Network {
    pub(super) fn new() -> Self {
        let id = std::process::id();
        let net = id % 250;
        let of = |what: &str| [1, 2].map(|number| format!("{what}{id}n{number}"));
        let addresses = [1, 2].map(|number| format!("10.78.{net}.{number}"));
        let network = Self { names: of("uma"), interfaces: of("uv"), addresses };
        network.names.iter().for_each(|name| ip(&format!("netns add {name}")));
        let [one, two] = &network.interfaces;
        ip(&format!("link add {one} type veth peer name {two}"));
        for number in 0..2 {
            let (name, interface) = (&network.names[number], &network.interfaces[number]);
            ip(&format!("link set {interface} netns {name}"));
            let address = &network.addresses[number];
            ip(&format!("-n {name} addr add {address}/24 dev {interface}"));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {name} link set {interface} up"));
        }
        network
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| ip(&format!("netns del {name}")));
    }
}

/// A daemon, and a rank of the engine beside it.
pub(super) struct RealNode {
    folder: PathBuf,
    child: Child,
}

impl RealNode {
    /// Starts them in a network and PID namespace of their own. `script` runs in the node's folder.
    pub(super) fn start(
        folder: &Path,
        network: &Network,
        number: usize,
        (config, script): (&str, &str),
    ) -> Self {
        let folder = folder.join(number.to_string());
        fs::create_dir_all(&folder).unwrap();
        let [one, two] = &network.addresses;
        let address = &network.addresses[number];
        let shown = folder.display();
        let config = format!(
            "starts: {{folder: {shown}/run}}\nweb: {{listen_address: ['{address}:9942']}}\n\
             cluster: {{name: pair, peers: ['{one}:9942', '{two}:9942']}}\n{config}"
        );
        fs::write(folder.join("c.yaml"), config).unwrap();
        let script = format!(
            "cd {shown}; {} run --config.file=c.yaml --storage.path=data 2> log & {script}\nwait",
            binary().display()
        );
        let child = Command::new("ip")
            .args(["netns", "exec", &network.names[number]])
            .args(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c"])
            .arg(script)
            .env("VLLM_HOST_IP", address)
            .env("GLOO_SOCKET_IFNAME", &network.interfaces[number])
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { folder, child }
    }

    pub(super) fn storage(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub(super) fn engine(&self) -> Value {
        let storage = format!("--storage.path={}", self.storage().display());
        let output = Command::new(binary()).args(["engines", "--json", &storage]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default()
    }

    /// Waits until that holds of its engine; how long it took.
    pub(super) fn wait_until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Duration {
        let began = Instant::now();
        while !holds(&self.engine()) {
            let log = || fs::read_to_string(self.folder.join("engine")).unwrap_or_default();
            assert!(began.elapsed() < PATIENCE, "not {what}: {}\n{}", self.engine(), log());
            std::thread::sleep(Duration::from_millis(200));
        }
        began.elapsed()
    }

    fn history(&self) -> String {
        let storage = format!("--storage.path={}", self.storage().display());
        let output = Command::new(binary()).args(["history", &storage]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for RealNode {
    fn drop(&mut self) {
        // With unshare everything below it ends.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The process that runs `vllm serve` as that rank.
fn server(rank: usize, master_port: u16) -> Pid {
    let wanted = [format!("--node-rank\0{rank}\0"), format!("--master-port\0{master_port}\0")];
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let found = entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let is_it = line.contains("vllm\0serve\0") && wanted.iter().all(|part| line.contains(part));
        is_it.then_some(pid)
    });
    found.min().and_then(Pid::from_raw).unwrap()
}

#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn real_servers_vllm_over_two_nodes_is_one_engine_that_loses_its_head() {
    if std::env::var_os("UMAWARDEN_ENGINES").is_none_or(|wanted| wanted != "1") {
        return eprintln!("UMAWARDEN_ENGINES is not 1: no server is started");
    }
    let folder = tempfile::tempdir().unwrap();
    let (network, master_port) = (Network::new(), free_port());
    let environment = std::env::var("ENGINE_TESTKIT").unwrap();
    let scripts = std::env::var("ENGINE_SCRIPTS").unwrap();
    let master = &network.addresses[0];
    let [head, rank] = [0, 1].map(|rank| {
        let headless = if rank == 0 { "" } else { "--headless" };
        let script = format!(
            "{scripts}/run-vllm.sh {environment} --tensor-parallel-size 2 --nnodes 2 --node-rank \
             {rank} --master-addr {master} --master-port {master_port} {headless} > engine 2>&1 &"
        );
        RealNode::start(folder.path(), &network, rank, ("", &script))
    });
    head.wait_until("ready", |engine| engine["phase"] == "ready");
    rank.wait_until("ready", |engine| engine["phase"] == "ready");
    let ready = rank.engine();
    assert_eq!(ready["reason"], "the rank that serves is up", "{ready}");
    assert_eq!((&ready["rank"]["rank"], &ready["stuck"]), (&1.into(), &false.into()), "{ready}");
    kill_process(server(0, master_port), Signal::KILL).unwrap();
    let took = rank.wait_until("lost", |engine| engine["lost_rank"].is_string());
    println!("the head's end was known on the other node after {took:?}");
    assert!(rank.engine()["lost_rank"].as_str().unwrap().starts_with("its rank 0 on "));
    for node in [&head, &rank] {
        node.wait_until("decided", |_| {
            let history = node.history();
            history.contains("engines/EngineRankLost: would stop_engine")
        });
    }
}
