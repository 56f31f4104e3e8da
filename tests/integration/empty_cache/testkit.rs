//! `empty_cache` with real SGLang and vLLM servers on the CPU, where they are installed: idle,
//! busy, paused by somebody, with right and wrong keys. On a CPU torch has no memory to give back,
//! and the outcome says so. See CONTRIBUTING.md.

use std::fs;
use std::os::unix::fs::symlink;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use umawarden::model::CachePermission::{DropPrefixCache, RetractRequests};
use umawarden::model::{
    EngineKeys, EngineKind, EngineTarget, Observation, ProcessId, SecretSource,
};
use umawarden::parse::process::stat;

use super::{Bench, decision, engine, with_keys};
use crate::daemon::write_secret;
use crate::engines::live::{uptime, watch};
use crate::engines::testkit::{Server, free_port, start};

const PATIENCE: Duration = Duration::from_secs(150);
const TOKENS: u64 = 3000;

/// A server that is ready, on a bench with this machine's memory.
struct LiveServer {
    bench: Bench,
    server: Server,
    port: u16,
    kind: EngineKind,
}

impl LiveServer {
    fn start(kind: EngineKind, script: &str, flags: &[&str]) -> Option<Self> {
        let (bench, port) = (Bench::new(), free_port());
        let log = fs::File::create(bench.path("log")).unwrap();
        let server = start(script, port, flags, Some(log))?;
        let live = Self { bench, server, port, kind };
        let proc = live.bench.path("proc");
        fs::remove_file(proc.join("meminfo")).unwrap();
        symlink("/proc/meminfo", proc.join("meminfo")).unwrap();
        let pid = live.server.pid().to_string();
        symlink(format!("/proc/{pid}"), proc.join(pid)).unwrap();
        let began = Instant::now();
        while live.status_of("/health").ok() != Some(200) {
            assert!(began.elapsed() < PATIENCE, "{script} does not respond");
            std::thread::sleep(Duration::from_millis(500));
        }
        Some(live)
    }

    fn client(&self) -> reqwest::blocking::Client {
        crate::daemon::http_client().timeout(Duration::from_secs(60)).build().unwrap()
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn status_of(&self, path: &str) -> reqwest::Result<u16> {
        Ok(self.client().get(self.url(path)).send()?.status().as_u16())
    }

    fn post(&self, path: &str, body: &Value) {
        let response = self.client().post(self.url(path)).json(body).send().unwrap();
        assert!(response.status().is_success(), "{path}: {response:?}");
    }

    fn target(&self) -> EngineTarget {
        let pid = self.server.pid();
        let text = fs::read(format!("/proc/{pid}/stat")).unwrap();
        let id = ProcessId { pid, start_ticks: stat(&text).unwrap().start_ticks };
        EngineTarget { processes: vec![id], ..engine(self.kind, self.port) }
    }

    /// Starts a request that takes seconds; the result is its response.
    fn work(&self) -> JoinHandle<Value> {
        let (client, url) = (self.client(), self.url("/generate"));
        let sampling = json!({"max_new_tokens": TOKENS, "ignore_eos": true, "temperature": 0});
        let body = json!({"text": "hello world", "sampling_params": sampling});
        let work = std::thread::spawn(move || {
            client.post(url).json(&body).send().unwrap().json::<Value>().unwrap()
        });
        let began = Instant::now();
        loop {
            let loads = self.client().get(self.url("/v1/loads?include=core")).send().unwrap();
            let loads: Value = loads.json().unwrap();
            if loads["loads"][0]["num_running_reqs"] == 1 {
                return work;
            }
            assert!(began.elapsed() < PATIENCE && !work.is_finished(), "{loads}");
        }
    }
}

/// Asserts that the request got all its tokens.
fn finished(work: JoinHandle<Value>) {
    let response = work.join().unwrap();
    assert_eq!(response["meta_info"]["finish_reason"]["type"], "length", "{response}");
    assert_eq!(response["meta_info"]["completion_tokens"], TOKENS, "{response}");
}

#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn real_servers_empty_cache_sglang() {
    let Some(live) = LiveServer::start(EngineKind::Sglang, "run-sglang.sh", &[]) else { return };
    let bench = &live.bench;
    let act = |allow| {
        let effect = bench.effect(&decision(live.target(), allow));
        println!("{allow:?}: {effect}");
        effect
    };
    let effect = act(&[]);
    assert!(effect.contains("memory came back: free "), "{effect}");
    assert!(effect.ends_with("it has no request, its log says freed 0.0 MB"), "{effect}");
    let effect = act(&[DropPrefixCache]);
    assert!(effect.ends_with("its prefix cache is dropped"), "{effect}");
    for allow in [[].as_slice(), &[DropPrefixCache]] {
        let work = live.work();
        let effect = act(allow);
        let end = "/continue_generation answered 200, with 1 request, its log says freed 0.0 MB";
        assert!(effect.ends_with(end), "{effect}");
        finished(work);
    }
    let work = live.work();
    let effect = act(&[RetractRequests]);
    assert!(
        effect.contains("1 request retracted, prefix cache dropped, and it goes on"),
        "{effect}"
    );
    finished(work);
    assert_eq!(live.status_of("/ready").unwrap(), 200);
    assert!(bench.undo_log().contains(r#""result":"restored""#), "{}", bench.undo_log());
    // A trainer pauses the engine on purpose.
    live.post("/pause_generation", &json!({"mode": "in_place"}));
    let why = bench.refusal(&decision(live.target(), &[DropPrefixCache, RetractRequests]));
    assert!(why.starts_with("another client has paused it"), "{why}");
    assert_eq!(live.status_of("/ready").unwrap(), 503, "it is still paused");
    live.post("/continue_generation", &json!({}));
    assert_eq!(live.status_of("/ready").unwrap(), 200);
}

#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn real_servers_empty_cache_sglang_with_keys() {
    let flags = ["--api-key", "an-api-key", "--admin-api-key", "an-admin-key"];
    let Some(live) = LiveServer::start(EngineKind::Sglang, "run-sglang.sh", &flags) else { return };
    let bench = &live.bench;
    let key_file = |name: &str, key: &str| {
        let path = bench.path(name);
        write_secret(&path, &format!("{key}\n"));
        Some(SecretSource::File(path.to_str().unwrap().into()))
    };
    let with =
        |api, admin| decision(with_keys(live.target(), EngineKeys { api, admin, user: None }), &[]);
    let effect =
        bench.effect(&with(key_file("api", "an-api-key"), key_file("admin", "an-admin-key")));
    println!("{effect}");
    assert!(effect.contains("it has no request"), "{effect}");
    let effect = bench.effect(&with(None, key_file("admin", "an-admin-key")));
    assert!(effect.contains("whether it has requests is not known"), "{effect}");
    for (api, admin, wanted) in [
        (None, None, "it requires a key"),
        (key_file("api", "an-api-key"), None, "that was sent is wrong"),
        (None, key_file("wrong", "no-key"), "that was sent is wrong"),
    ] {
        let why = bench.refusal(&with(api, admin));
        println!("{why}");
        assert!(
            why.contains("it answers 401 at /continue_generation") && why.contains(wanted),
            "{why}"
        );
    }
}

#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn real_servers_empty_cache_vllm() {
    let Some(live) = LiveServer::start(EngineKind::Vllm, "run-vllm.sh", &[]) else { return };
    let why = live.bench.refusal(&decision(live.target(), &[DropPrefixCache, RetractRequests]));
    println!("{why}");
    assert!(why.starts_with("vLLM gives no memory back while it serves"), "{why}");
    // Its load metrics are read while it is busy.
    let (client, url) = (live.client(), live.url("/v1/completions"));
    let body = json!({"model": "tiny", "prompt": "a", "max_tokens": 3000, "ignore_eos": true});
    std::thread::spawn(move || {
        // The server is killed first.
        let _ = client.post(url).json(&body).send();
    });
    let mut watch = watch("/proc", "/nonexistent-docker");
    let began = Instant::now();
    loop {
        let mut seen = Vec::new();
        watch.take(uptime(), &mut seen);
        let load = seen.into_iter().find_map(|seen| match seen {
            Observation::EngineHealth(health) if health.server.pid == live.server.pid() => {
                Some(health.load)
            }
            _ => None,
        });
        if let Some(load) = load.filter(|load| load.running.value() == Some(1)) {
            println!("{load:?}");
            assert!(load.kv_cache_usage.value().is_some_and(|usage| usage > 0.0 && usage < 1.0));
            assert_eq!(load.is_sleeping.value(), Some(false));
            return;
        }
        assert!(began.elapsed() < PATIENCE, "it never reports a running request");
        std::thread::sleep(Duration::from_millis(20));
    }
}
