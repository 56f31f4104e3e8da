//! The cost of a cluster: an agent that polls its peers, and one that queries a Prometheus which
//! scrapes a thousand nodes.
//!
//! `cargo bench --bench cluster -- --agents 1000 --seconds 60` takes about ten minutes. The polled
//! agents are simulated: one process serves the metrics of a real agent for all of them, each under
//! an address of its own; its cost is left out. Without a `prometheus` in the path its rows are
//! left out.
#![expect(clippy::unwrap_used, reason = "a measurement ends where anything fails")]

mod simulated;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use simulated::Simulated;

const AGENT: &str = "127.0.0.1:19943";
const SERVER: &str = "127.0.0.1:19090";
const SIMULATED_PORT: u16 = 19_944;

/// Longer than any start.
const PATIENCE: Duration = Duration::from_secs(180);

/// Number of scrapes of which the mean cost is reported.
const SCRAPES: u32 = 200;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test --benches` passes no --bench: there is nothing to test here.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    let number = |name: &str, usual: usize| {
        let index = arguments.iter().position(|argument| argument == name);
        index.and_then(|index| arguments.get(index + 1)?.parse().ok()).unwrap_or(usual)
    };
    let agents = number("--agents", 1_000);
    let watched = Duration::from_secs(number("--seconds", 60) as u64);
    let folder = tempfile::tempdir().unwrap();
    let body = alone(folder.path(), watched);
    let simulated = Simulated::start(SIMULATED_PORT, &body);
    for count in [4, 16, 64] {
        let peers: Vec<String> = (0..count).map(|number| simulated.address(number)).collect();
        let cluster = format!("cluster: {{node: me, peers: [{}]}}\n", peers.join(", "));
        by_peers(folder.path(), &format!("{count} peers, each second"), &cluster, count, watched);
    }
    let each = simulated.bytes() as f64 / simulated.responses().max(1) as f64;
    println!("{:<52} {:>8.1} KiB", "one response of a peer, on average", each / 1024.0);
    let selecting =
        simulated.selecting().expect("agents request the metrics that their rules read");
    polled(folder.path(), &selecting);
    for count in [agents / 10, agents] {
        by_prometheus(folder.path(), &simulated, count.max(1), watched);
    }
}

/// Measures an agent without peers; returns its metrics.
fn alone(folder: &Path, watched: Duration) -> String {
    let agent = agent(&folder.join("alone"), "log: {level: warn}\n");
    std::thread::sleep(Duration::from_secs(5));
    let (cpu, _) = watch(&agent, watched);
    row("agent, alone", cpu, agent.resident_mib());
    let body = get(AGENT, "/metrics");
    scrape(&agent, "agent, one scrape (the same in any cluster)", "/metrics");
    println!("{:<52} {:>8.0} KiB", "its metrics", body.len() as f64 / 1024.0);
    body
}

/// Measures an agent that peers poll for the metrics that their rules read.
fn polled(folder: &Path, path: &str) {
    let agent = agent(&folder.join("polled"), "log: {level: warn}\n");
    std::thread::sleep(Duration::from_secs(5));
    let each = scrape(&agent, "agent, polled for what rules read", path);
    let kib = get(AGENT, path).len() as f64 / 1024.0;
    println!("{:<52} {kib:>8.1} KiB", "  its response");
    println!("{:<52} {:>8.3} % of a core", "  by 15 others, each second", each * 15.0 * 100.0);
}

/// Mean processor time of one response, in seconds.
fn scrape(agent: &Program, what: &str, path: &str) -> f64 {
    let before = agent.cpu_seconds();
    (0..SCRAPES).for_each(|_| drop(get(AGENT, path)));
    let each = (agent.cpu_seconds() - before) / f64::from(SCRAPES);
    println!("{what:<52} {:>8.2} ms", each * 1e3);
    each
}

fn by_peers(folder: &Path, what: &str, cluster: &str, count: usize, watched: Duration) {
    let agent = agent(&folder.join(format!("polls-{count}")), cluster);
    wait_for("all nodes are known", || known() >= count);
    let (cpu, _) = watch(&agent, watched);
    row(&format!("agent, polls {what}"), cpu, agent.resident_mib());
}

fn by_prometheus(folder: &Path, simulated: &Simulated, count: usize, watched: Duration) {
    let targets: Vec<String> =
        (0..count).map(|number| format!("'{}'", simulated.address(number))).collect();
    let config = format!(
        "global: {{scrape_interval: 15s}}\nscrape_configs:\n- job_name: umawarden\n  \
         static_configs:\n  - targets: [{}]\n    labels: {{cluster: fleet}}\n",
        targets.join(", ")
    );
    let folder = folder.join(format!("prometheus-{count}"));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("prometheus.yml");
    fs::write(&file, config).unwrap();
    let arguments = [
        format!("--config.file={}", file.display()),
        format!("--storage.tsdb.path={}", folder.join("data").display()),
        format!("--web.listen-address={SERVER}"),
    ];
    let Some(server) = Program::start("prometheus", &arguments, SERVER) else {
        println!("no prometheus in the path: its rows are left out");
        return;
    };
    let is_up = || {
        let response = get(SERVER, "/api/v1/query?query=sum(up)");
        response.contains(&format!("\"{count}\"]"))
    };
    wait_for("the server has scraped all", is_up);
    let (cpu, _) = watch(&server, watched);
    let scraped = simulated.responses();
    row(&format!("Prometheus, {count} agents each 15 s"), cpu, server.resident_mib());
    let cluster =
        format!("cluster: {{name: fleet, node: me, prometheus: {{url: \"http://{SERVER}\"}}}}\n");
    let agent = agent(&folder.join("agent"), &cluster);
    wait_for("all nodes are known", || known() >= count);
    let before = server.cpu_seconds();
    let (cpu, took) = watch(&agent, watched);
    row(&format!("agent, queries a Prometheus of {count} each 15 s"), cpu, agent.resident_mib());
    let share = (server.cpu_seconds() - before) / took.as_secs_f64();
    println!("{:<52} {:>8.3} % of a core", "  the Prometheus meanwhile", share * 100.0);
    println!("{:<52} {:>8.1} ms", "  all its queries together", queries_ms());
    assert!(simulated.responses() > scraped, "the server scrapes no more");
}

/// Number of other nodes whose memory the agent knows.
fn known() -> usize {
    let cluster: serde_json::Value =
        serde_json::from_str(&get(AGENT, "/api/v1/cluster")).unwrap_or_default();
    let nodes = cluster["data"]["nodes"].as_array().cloned().unwrap_or_default();
    let is_known = |node: &&serde_json::Value| {
        node["self"] == false && node["unknown"].is_null() && node["available_bytes"].is_number()
    };
    nodes.iter().filter(is_known).count()
}

fn queries_ms() -> f64 {
    let cluster: serde_json::Value =
        serde_json::from_str(&get(AGENT, "/api/v1/cluster")).unwrap_or_default();
    cluster["data"]["nodes"][1]["took_seconds"].as_f64().unwrap_or_default() * 1e3
}

fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Share of a core.
fn watch(program: &Program, time: Duration) -> (f64, Duration) {
    let (cpu, began) = (program.cpu_seconds(), Instant::now());
    std::thread::sleep(time);
    let took = began.elapsed();
    ((program.cpu_seconds() - cpu) / took.as_secs_f64(), took)
}

fn row(what: &str, cpu: f64, resident_mib: f64) {
    println!("{what:<52} {:>8.3} % of a core  {resident_mib:>7.1} MiB", cpu * 100.0);
}

/// A program under measurement; killed when dropped.
struct Program(Child);

impl Program {
    fn start(program: &str, arguments: &[String], address: &str) -> Option<Self> {
        assert!(TcpStream::connect(address).is_err(), "another program listens on {address}");
        let null = || Stdio::null();
        let child = Command::new(program)
            .args(arguments)
            .stdin(null())
            .stdout(null())
            .stderr(null())
            .spawn()
            .ok()?;
        let program = Self(child);
        wait_for("it listens", || TcpStream::connect(address).is_ok());
        Some(program)
    }

    /// Processor time of all threads so far.
    fn cpu_seconds(&self) -> f64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        let nanoseconds = tasks.flatten().filter_map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<f64>().ok()
        });
        nanoseconds.sum::<f64>() / 1e9
    }

    fn resident_mib(&self) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn agent(storage: &Path, config: &str) -> Program {
    fs::create_dir_all(storage).unwrap();
    let file = storage.join("umawarden.yaml");
    fs::write(&file, config).unwrap();
    let arguments = [
        "run".to_owned(),
        format!("--web.listen-address={AGENT}"),
        format!("--storage.path={}", storage.join("data").display()),
        format!("--config.file={}", file.display()),
    ];
    Program::start(env!("CARGO_BIN_EXE_umawarden"), &arguments, AGENT).unwrap()
}

/// The body of the response.
fn get(address: &str, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    let request = format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n");
    let mut response = String::new();
    let sent = stream.write_all(request.as_bytes());
    if sent.and_then(|()| stream.read_to_string(&mut response)).is_err() {
        return String::new();
    }
    response.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned())
}
