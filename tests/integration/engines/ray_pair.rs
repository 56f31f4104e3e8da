//! One real vLLM engine over two nodes with real Ray, of which one process after the other is
//! killed. Ray's executors need a GPU's name: a platform plugin of vLLM says that the CPU is one.
//! See [`super::testkit`] for what it needs; Ray in the same environment; and root.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::two_nodes::{Network, RealNode};
use crate::daemon::{history, of_kind};
use crate::dice::{Dice, rounds};

/// Both nodes are free of the engine so long after the death of one of its processes.
const FREE_WITHIN: Duration = Duration::from_secs(10);

/// A rank that has lost another one is known within this time: 5 s, and the 4 s that vLLM may take to
/// end the server of a rank whose worker was killed.
const LOST_WITHIN: Duration = Duration::from_secs(9);

/// Reports wait for the ends on the other node.
const REPORTED_WITHIN: Duration = Duration::from_secs(25);

/// Names of the processes whose end is the end of the engine. Without its GCS a cluster goes on for
/// a minute: that kill must only not be reported as one of the engine.
const FATAL: [&str; 4] = ["vllm", "VLLM::EngineCor", "ray::RayWorker", "raylet"];

/// A plugin of vLLM that lets Ray place workers on CPUs, as a Python path.
fn write_plugin(folder: &Path) {
    let metadata = folder.join("ray_on_cpu-1.dist-info");
    fs::create_dir_all(&metadata).unwrap();
    let write = |path: &Path, text: &str| fs::write(path, text).unwrap();
    write(&metadata.join("METADATA"), "Metadata-Version: 2.1\nName: ray-on-cpu\nVersion: 1\n");
    write(
        &metadata.join("entry_points.txt"),
        "[vllm.platform_plugins]\nray_on_cpu = ray_on_cpu:platform\n",
    );
    write(
        &folder.join("ray_on_cpu.py"),
        "def platform():\n    return \"ray_on_cpu_platform.RayOnCpu\"\n",
    );
    write(
        &folder.join("ray_on_cpu_platform.py"),
        "from vllm.platforms.cpu import CpuPlatform\n\n\n\
         class RayOnCpu(CpuPlatform):\n    ray_device_key = \"GPU\"\n",
    );
}

/// Starts Ray, and vLLM on the first node. Each node has a `/tmp/ray` of its own; what vLLM's
/// processes share, they share over both nodes.
fn script(folder: &Path, network: &Network, number: usize, executor: &str) -> String {
    let environment = std::env::var("ENGINE_TESTKIT").unwrap();
    let plugin = folder.join("plugin");
    let plugin = plugin.display();
    let [head, own] = [&network.addresses[0], &network.addresses[number]];
    let common = format!(
        "--node-ip-address={own} --num-cpus=1 --num-gpus=1 --object-store-memory=100000000 \
         --disable-usage-stats"
    );
    // A loaded machine is too slow for the 30 s that Ray gives its parts.
    let settings = format!(
        "mkdir -p ray /tmp/ray; mount --bind ray /tmp/ray; unset CUDA_VISIBLE_DEVICES\n\
         export PATH={environment}/bin:$PATH PYTHONPATH={plugin} HF_HUB_OFFLINE=1 \
         TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_CPU_KVCACHE_SPACE=1 \
         VLLM_USE_RAY_V2_EXECUTOR_BACKEND={executor} RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES=1 \
         RAY_agent_register_timeout_ms=120000 RAY_memory_monitor_refresh_ms=0\n\
         start() {{ until ray start \"$@\" {common}; do ray stop --force; sleep 1; done; }}\n"
    );
    let own_part = if number == 0 {
        format!(
            "start --head --port=6379 --include-dashboard=false > ray.log 2>&1; touch up\n\
             until [ -e ../1/up ]; do sleep 0.5; done\n\
             vllm serve {environment}/tiny --served-model-name tiny --host 127.0.0.1 --port 18000 \
             --dtype bfloat16 --max-model-len 16384 --enforce-eager --max-num-seqs 4 \
             --tensor-parallel-size 2 --distributed-executor-backend ray > engine 2>&1 &"
        )
    } else {
        format!(
            "until [ -e ../0/up ]; do sleep 0.5; done\n\
             start --address={head}:6379 > ray.log 2>&1; touch up"
        )
    };
    settings + &own_part
}

/// The number and name of each process in that network whose name begins like one of these.
fn processes(namespace: &str, names: &[&str]) -> Vec<(i32, String)> {
    let output = Command::new("ip").args(["netns", "pids", namespace]).output().unwrap();
    let pids = String::from_utf8(output.stdout).unwrap();
    let named = pids.lines().filter_map(|pid| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_owned();
        Some((pid.parse().ok()?, comm))
    });
    named.filter(|(_, comm)| names.iter().any(|name| comm.starts_with(name))).collect()
}

/// Two nodes with the engine up.
struct Pair {
    nodes: [RealNode; 2],
    /// Dropped after the nodes.
    network: Network,
    _folder: tempfile::TempDir,
}

impl Pair {
    fn start(executor: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_plugin(&folder.path().join("plugin"));
        let network = Network::new();
        let nodes = [0, 1].map(|number| {
            let script = script(folder.path(), &network, number, executor);
            RealNode::start(folder.path(), &network, number, ("mode: enforce\n", &script))
        });
        let pair = Self { nodes, network, _folder: folder };
        for node in &pair.nodes {
            let is_joined = |engine: &Value| {
                let others = engine["other_ranks"].as_array();
                engine["phase"] == "ready" && others.is_some_and(|others| others.len() == 1)
            };
            node.wait_until("ready and joined", is_joined);
        }
        let [head, rank] = pair.nodes.each_ref().map(RealNode::engine);
        assert_eq!(head["rank"]["gang"], rank["rank"]["gang"], "{head}\n{rank}");
        assert_eq!((&head["kind"], &rank["kind"]), (&"vllm".into(), &"vllm".into()));
        pair
    }

    /// The reports of each node on deaths of the engine.
    fn reports(&self) -> [Vec<Value>; 2] {
        self.nodes.each_ref().map(|node| {
            let all = history(&node.storage());
            of_kind(&all, "engine_died").map(|death| death["report"].clone()).collect()
        })
    }

    fn wait_for(&self, what: &str, since: Instant, within: Duration, is_so: impl Fn() -> bool) {
        while !is_so() {
            let engines = self.nodes.each_ref().map(RealNode::engine);
            let reports = self.reports();
            assert!(since.elapsed() < within, "not {what}: {engines:#?}\n{reports:#?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        println!("  {what} after {:?}", since.elapsed());
    }

    /// Kills one of all processes on that node.
    fn kill_one(&self, dice: &mut Dice) {
        let names = [&FATAL[..], &["gcs_server"]].concat();
        let mut all: Vec<(usize, i32, String)> = Vec::new();
        for (number, namespace) in self.network.names.iter().enumerate() {
            let its = processes(namespace, &names).into_iter();
            all.extend(its.map(|(pid, comm)| (number, pid, comm)));
        }
        let (number, pid, comm) = all[dice.roll(all.len())].clone();
        println!("{comm} of node {number} is killed");
        let since = Instant::now();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        if comm == "gcs_server" {
            std::thread::sleep(FREE_WITHIN);
            assert!(self.reports().iter().all(Vec::is_empty), "the engine still serves");
            return;
        }
        let is_known = |node: &RealNode| {
            let engine = node.engine();
            let is_ending = ["stopping", "gone"].iter().any(|phase| engine["phase"] == *phase);
            is_ending || engine["lost_rank"].is_string() || engine.is_null()
        };
        self.wait_for("known on both nodes", since, LOST_WITHIN, || {
            self.nodes.iter().all(is_known)
        });
        let is_free = || {
            let its = |namespace: &String| processes(namespace, &FATAL[..3]);
            self.network.names.iter().all(|namespace| its(namespace).is_empty())
        };
        self.wait_for("free", since, FREE_WITHIN, is_free);
        let are_reported = || self.reports().iter().all(|reports| !reports.is_empty());
        self.wait_for("reported", since, REPORTED_WITHIN, are_reported);
        self.check_reports(number);
    }

    /// One report on each node; that of the node with the killed process has the cause.
    fn check_reports(&self, number: usize) {
        let all = self.reports();
        let [own, other] = [&all[number], &all[1 - number]];
        assert_eq!((own.len(), other.len()), (1, 1), "{all:#?}");
        assert_eq!(own[0]["killer"]["by"], "signal", "{own:#?}");
        assert_eq!(own[0]["ranks"]["first"], "this", "{own:#?}");
        assert_eq!(other[0]["ranks"]["first"], "other", "{other:#?}");
    }
}

/// `UMAWARDEN_RAY_KILLS`: how many, each of which takes two minutes.
#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn real_servers_vllm_with_ray_over_two_nodes_loses_any_process() {
    if std::env::var_os("UMAWARDEN_ENGINES").is_none_or(|wanted| wanted != "1") {
        return eprintln!("UMAWARDEN_ENGINES is not 1: no server is started");
    }
    let kills = std::env::var("UMAWARDEN_RAY_KILLS").ok().map(|kills| kills.parse().unwrap());
    let kills: u32 = kills.unwrap_or_else(|| rounds(3, 20));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    println!("seed {now}");
    let mut dice = Dice::new(now);
    for kill in 0..kills {
        // The executor of vLLM 0.32, and the one before.
        let executor = if kill % 4 == 3 { "0" } else { "1" };
        Pair::start(executor).kill_one(&mut dice);
    }
}
