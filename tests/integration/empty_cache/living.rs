//! Real SGLang and vLLM servers on the CPU, where they are installed, asked to give memory back:
//! idle, at work, paused by somebody, with keys right and wrong. On a CPU there is nothing that
//! torch could give back, and the outcome says so. See CONTRIBUTING.md.

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
use crate::engines::living::{uptime, watch};
use crate::engines::testkit::{Server, free_port, start};

const PATIENCE: Duration = Duration::from_secs(150);
const TOKENS: u64 = 3000;

/// A server that answers, on a bench whose memory is this machine's.
struct Living {
    bench: Bench,
    server: Server,
    port: u16,
    kind: EngineKind,
}

impl Living {
    fn start(kind: EngineKind, script: &str, flags: &[&str]) -> Option<Self> {
        let (bench, port) = (Bench::new(), free_port());
        let log = fs::File::create(bench.path("log")).unwrap();
        let server = start(script, port, flags, Some(log))?;
        let living = Self { bench, server, port, kind };
        let proc = living.bench.path("proc");
        fs::remove_file(proc.join("meminfo")).unwrap();
        symlink("/proc/meminfo", proc.join("meminfo")).unwrap();
        let pid = living.server.pid().to_string();
        symlink(format!("/proc/{pid}"), proc.join(pid)).unwrap();
        let began = Instant::now();
        while living.ask("/health").ok() != Some(200) {
            assert!(began.elapsed() < PATIENCE, "{script} does not answer");
            std::thread::sleep(Duration::from_millis(500));
        }
        Some(living)
    }

    fn client(&self) -> reqwest::blocking::Client {
        crate::daemon::http_client().timeout(Duration::from_secs(60)).build().unwrap()
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn ask(&self, path: &str) -> reqwest::Result<u16> {
        Ok(self.client().get(self.url(path)).send()?.status().as_u16())
    }

    fn tell(&self, path: &str, body: &Value) {
        let answer = self.client().post(self.url(path)).json(body).send().unwrap();
        assert!(answer.status().is_success(), "{path}: {answer:?}");
    }

    fn target(&self) -> EngineTarget {
        let pid = self.server.pid();
        let text = fs::read(format!("/proc/{pid}/stat")).unwrap();
        let id = ProcessId { pid, start_ticks: stat(&text).unwrap().start_ticks };
        EngineTarget { processes: vec![id], ..engine(self.kind, self.port) }
    }

    /// A request that takes seconds; what it ends with.
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

/// The request got all that it had asked for.
fn finished(work: JoinHandle<Value>) {
    let told = work.join().unwrap();
    assert_eq!(told["meta_info"]["finish_reason"]["type"], "length", "{told}");
    assert_eq!(told["meta_info"]["completion_tokens"], TOKENS, "{told}");
}

#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn living_servers_empty_cache_sglang() {
    let Some(living) = Living::start(EngineKind::Sglang, "run-sglang.sh", &[]) else { return };
    let bench = &living.bench;
    let act = |allow| {
        let told = bench.effect(&decision(living.target(), allow));
        println!("{allow:?}: {told}");
        told
    };
    let told = act(&[]);
    assert!(told.contains("memory came back: free "), "{told}");
    assert!(told.ends_with("it has no request, its log says freed 0.0 MB"), "{told}");
    let told = act(&[DropPrefixCache]);
    assert!(told.ends_with("its prefix cache is dropped"), "{told}");
    for allow in [[].as_slice(), &[DropPrefixCache]] {
        let work = living.work();
        let told = act(allow);
        let end = "/continue_generation answered 200, with 1 request, its log says freed 0.0 MB";
        assert!(told.ends_with(end), "{told}");
        finished(work);
    }
    let work = living.work();
    let told = act(&[RetractRequests]);
    assert!(told.contains("1 request retracted, prefix cache dropped, and it goes on"), "{told}");
    finished(work);
    assert_eq!(living.ask("/ready").unwrap(), 200);
    assert!(bench.undo_log().contains(r#""result":"restored""#), "{}", bench.undo_log());
    // A trainer pauses it on purpose.
    living.tell("/pause_generation", &json!({"mode": "in_place"}));
    let why = bench.refusal(&decision(living.target(), &[DropPrefixCache, RetractRequests]));
    assert!(why.starts_with("somebody has paused it"), "{why}");
    assert_eq!(living.ask("/ready").unwrap(), 503, "it still is");
    living.tell("/continue_generation", &json!({}));
    assert_eq!(living.ask("/ready").unwrap(), 200);
}

#[test]
#[ignore = "needs real servers: UMAWARDEN_ENGINES=1"]
fn living_servers_empty_cache_sglang_with_keys() {
    let flags = ["--api-key", "an-api-key", "--admin-api-key", "an-admin-key"];
    let Some(living) = Living::start(EngineKind::Sglang, "run-sglang.sh", &flags) else { return };
    let bench = &living.bench;
    let place = |name: &str, key: &str| {
        let path = bench.path(name);
        write_secret(&path, &format!("{key}\n"));
        Some(SecretSource::File(path.to_str().unwrap().into()))
    };
    let with = |api, admin| {
        decision(with_keys(living.target(), EngineKeys { api, admin, user: None }), &[])
    };
    let told = bench.effect(&with(place("api", "an-api-key"), place("admin", "an-admin-key")));
    println!("{told}");
    assert!(told.contains("it has no request"), "{told}");
    let told = bench.effect(&with(None, place("admin", "an-admin-key")));
    assert!(told.contains("whether it has requests is not known"), "{told}");
    for (api, admin, wanted) in [
        (None, None, "it requires a key"),
        (place("api", "an-api-key"), None, "that was sent is wrong"),
        (None, place("wrong", "no-key"), "that was sent is wrong"),
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
fn living_servers_empty_cache_vllm() {
    let Some(living) = Living::start(EngineKind::Vllm, "run-vllm.sh", &[]) else { return };
    let why = living.bench.refusal(&decision(living.target(), &[DropPrefixCache, RetractRequests]));
    println!("{why}");
    assert!(why.starts_with("vLLM gives no memory back while it serves"), "{why}");
    // What it tells of its work is read while it works.
    let (client, url) = (living.client(), living.url("/v1/completions"));
    let body = json!({"model": "tiny", "prompt": "a", "max_tokens": 3000, "ignore_eos": true});
    std::thread::spawn(move || {
        // The server ends before it does.
        let _killed = client.post(url).json(&body).send();
    });
    let mut watch = watch("/proc", "/nonexistent-docker");
    let began = Instant::now();
    loop {
        let mut seen = Vec::new();
        watch.take(uptime(), &mut seen);
        let load = seen.into_iter().find_map(|seen| match seen {
            Observation::EngineHealth(health) if health.server.pid == living.server.pid() => {
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
        assert!(began.elapsed() < PATIENCE, "it never tells that it works");
        std::thread::sleep(Duration::from_millis(20));
    }
}
