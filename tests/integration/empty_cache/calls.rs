//! The calls that each kind of engine gets in each state, and the reported outcome.

use serde_json::json;
use umawarden::model::CachePermission::{DropPrefixCache, RetractRequests, UnloadModels, Unpause};
use umawarden::model::{EngineKind, EngineTarget, OutcomeResult};

use super::fake::{FakeServer, Reply, Request, recorded};
use super::{Bench, GIB, decision, engine, set_free};

/// SGLang in one of its recorded states.
pub fn sglang(state: &'static str) -> FakeServer {
    FakeServer::start(move |request: &Request| recorded("sglang", state, request.endpoint()))
}

#[test]
fn an_idle_sglang_is_emptied_by_one_call() {
    let (bench, server) = (Bench::new(), sglang("idle"));
    let outcome = bench.effect(&decision(engine(EngineKind::Sglang, server.port), &[]));
    assert_eq!(
        server.calls(),
        ["GET /v1/loads?include=core", "GET /ready", "POST /continue_generation"]
    );
    let call = server.requests().pop().unwrap();
    assert_eq!(call.body, r#"{"torch_empty_cache":true}"#);
    assert_eq!(call.content_type.as_deref(), Some("application/json"));
    assert!(
        outcome.starts_with("no memory came back: free 10.0 GiB -> 10.0 GiB (0 B)"),
        "{outcome}"
    );
    assert!(outcome.ends_with("/continue_generation answered 200, it has no request"), "{outcome}");
    assert_eq!(bench.tally.bytes(), 0);
}

#[test]
fn the_outcome_reports_the_memory_that_came_back() {
    let bench = Bench::new();
    let procfs = bench.path("proc");
    let server = FakeServer::start(move |request: &Request| {
        if request.endpoint() == "/continue_generation" {
            set_free(&procfs, 13 * GIB);
        }
        recorded("sglang", "busy", request.endpoint())
    });
    let outcome = bench.effect(&decision(engine(EngineKind::Sglang, server.port), &[]));
    let change = "memory came back: free 10.0 GiB -> 13.0 GiB (+3.0 GiB), unaccounted 111.0 GiB -> \
                  108.0 GiB (-3.0 GiB), its own ";
    assert!(outcome.starts_with(change), "{outcome}");
    assert!(outcome.ends_with("with 1 request"), "{outcome}");
    assert_eq!(bench.tally.bytes(), 3 * GIB);
}

#[test]
fn a_prefix_cache_is_dropped_only_if_allowed_and_idle() {
    let bench = Bench::new();
    let (idle, busy) = (sglang("idle"), sglang("busy"));
    let of = |server: &FakeServer| engine(EngineKind::Sglang, server.port);
    let outcome = bench.effect(&decision(of(&idle), &[DropPrefixCache]));
    assert!(
        outcome.ends_with("/flush_cache answered 200: its prefix cache is dropped"),
        "{outcome}"
    );
    assert_eq!(idle.posted(), ["/flush_cache"]);
    let outcome = bench.effect(&decision(of(&busy), &[DropPrefixCache]));
    assert!(outcome.ends_with("/continue_generation answered 200, with 1 request"), "{outcome}");
    assert_eq!(busy.posted(), ["/continue_generation"]);
}

#[test]
fn a_flush_refused_for_a_new_request_is_followed_by_continue_generation() {
    let bench = Bench::new();
    let server = FakeServer::start(|request: &Request| match request.endpoint() {
        "/flush_cache" => recorded("sglang", "busy", "/flush_cache"),
        endpoint => recorded("sglang", "idle", endpoint),
    });
    let target = engine(EngineKind::Sglang, server.port);
    bench.effect(&decision(target, &[DropPrefixCache]));
    assert_eq!(server.posted(), ["/flush_cache", "/continue_generation"]);
}

#[test]
fn an_older_sglang_gets_no_call_that_it_ignores_or_that_ends_requests() {
    let bench = Bench::new();
    let of_version = |version: &'static str, has_ready: bool, requests: u64| {
        FakeServer::start(move |request: &Request| match request.endpoint() {
            "/v1/loads" => {
                let loads = json!({"version": version, "loads": [{"num_running_reqs": requests}]});
                Reply::Answer(200, loads.to_string())
            }
            "/ready" if !has_ready => Reply::Answer(404, String::new()),
            _ => Reply::Answer(200, String::new()),
        })
    };
    let of = |server: &FakeServer| engine(EngineKind::Sglang, server.port);
    let server = of_version("0.5.11", false, 0);
    let outcome = bench.refusal(&decision(of(&server), &[Unpause]));
    assert!(outcome.contains("only by /flush_cache: allow: [drop_prefix_cache]"), "{outcome}");
    let outcome = bench.refusal(&decision(of(&server), &[DropPrefixCache]));
    assert!(outcome.contains("does not report whether it was paused"), "{outcome}");
    assert!(outcome.ends_with("a rule must say so with allow: [unpause]"), "{outcome}");
    assert_eq!(server.posted(), Vec::<String>::new());
    bench.effect(&decision(of(&server), &[DropPrefixCache, Unpause]));
    assert_eq!(server.posted(), ["/flush_cache"]);
    let server = of_version("0.5.5", true, 2);
    let outcome = bench.refusal(&decision(of(&server), &[RetractRequests]));
    assert!(outcome.contains("ends all requests when it is paused"), "{outcome}");
    assert_eq!(server.posted(), Vec::<String>::new());
}

#[test]
fn vllm_gets_no_call_because_it_gives_no_memory_back() {
    let bench = Bench::new();
    let server =
        FakeServer::start(|request: &Request| recorded("vllm", "idle", request.endpoint()));
    let all = [DropPrefixCache, RetractRequests, UnloadModels, Unpause];
    for allow in [[].as_slice(), &all] {
        let outcome = bench.refusal(&decision(engine(EngineKind::Vllm, server.port), allow));
        assert!(outcome.starts_with("vLLM gives no memory back while it serves"), "{outcome}");
        assert!(outcome.contains("--gpu-memory-utilization"), "{outcome}");
    }
    assert_eq!(server.calls(), Vec::<String>::new());
}

#[test]
fn lmdeploy_gets_no_call_because_it_gives_no_memory_back() {
    let bench = Bench::new();
    let server = FakeServer::start(|_: &Request| Reply::Answer(200, String::new()));
    let all = [DropPrefixCache, RetractRequests, UnloadModels, Unpause];
    let outcome = bench.refusal(&decision(engine(EngineKind::Lmdeploy, server.port), &all));
    assert!(outcome.starts_with("LMDeploy gives no memory back while it serves"), "{outcome}");
    assert!(outcome.contains("--cache-max-entry-count"), "{outcome}");
    assert_eq!(server.calls(), Vec::<String>::new());
}

/// Responses written from Ollama's documentation.
#[test]
fn ollama_unloads_its_models_and_is_polled_until_they_are_gone() {
    let bench = Bench::new();
    let loaded = std::sync::Mutex::new(vec!["a:7b", "b \"x\":1b"]);
    let server = FakeServer::start(move |request: &Request| match request.endpoint() {
        "/api/ps" => {
            let models = loaded.lock().unwrap().clone();
            let models: Vec<_> = models.iter().map(|name| json!({"model": name})).collect();
            Reply::Answer(200, json!({ "models": models }).to_string())
        }
        _ => {
            let sent: serde_json::Value = serde_json::from_str(&request.body).unwrap();
            loaded.lock().unwrap().retain(|name| sent["model"] != *name);
            Reply::Answer(200, r#"{"done":true,"done_reason":"unload"}"#.to_owned())
        }
    });
    let target = engine(EngineKind::Ollama, server.port);
    let outcome = bench.effect(&decision(target.clone(), &[]));
    assert!(outcome.ends_with("it has unloaded 2 models"), "{outcome}");
    assert_eq!(server.posted(), ["/api/generate", "/api/generate"]);
    let body = &server.requests()[1].body;
    assert_eq!(body, r#"{"model":"a:7b","keep_alive":0,"stream":false}"#);
    assert_eq!(bench.refusal(&decision(target, &[])), "it has no model loaded");
}

/// Responses written from ComfyUI's source.
#[test]
fn comfyui_frees_everything_after_the_running_prompt() {
    let bench = Bench::new();
    let server = FakeServer::start(|request: &Request| match request.endpoint() {
        "/queue" => {
            let queue = r#"{"queue_running":[[0]],"queue_pending":[[1],[2]]}"#;
            Reply::Answer(200, queue.to_owned())
        }
        _ => Reply::Answer(200, String::new()),
    });
    let outcome = bench.effect(&decision(engine(EngineKind::ComfyUi, server.port), &[]));
    assert!(outcome.ends_with("/free answered 200; 3 prompts first"), "{outcome}");
    assert_eq!(server.requests()[1].body, r#"{"unload_models":true,"free_memory":true}"#);
}

/// llama-server in one of its recorded states.
fn llama_server(state: &'static str) -> FakeServer {
    FakeServer::start(move |request: &Request| recorded("llama-server", state, request.endpoint()))
}

#[test]
fn a_llama_server_router_unloads_models_only_if_allowed_and_idle() {
    let bench = Bench::new();
    let of = |server: &FakeServer| engine(EngineKind::LlamaServer, server.port);
    let idle = llama_server("idle");
    let outcome = bench.refusal(&decision(of(&idle), &[]));
    assert!(outcome.ends_with("a rule must say so with allow: [unload_models]"), "{outcome}");
    assert_eq!(idle.posted(), Vec::<String>::new());
    let outcome = bench.effect(&decision(of(&idle), &[UnloadModels]));
    assert!(outcome.ends_with("it has unloaded 1 model"), "{outcome}");
    assert_eq!(idle.posted(), ["/models/unload"]);
    assert_eq!(idle.requests().last().unwrap().body, r#"{"model":"tiny"}"#);
    // Without `autoload=false` the query would load the model.
    let request = idle.calls();
    assert!(request.contains(&"GET /metrics?model=tiny&autoload=false".to_owned()), "{request:?}");
    // A real llama-server ends running requests when their model is unloaded.
    let busy = llama_server("busy");
    let outcome = bench.refusal(&decision(of(&busy), &[UnloadModels]));
    assert!(outcome.starts_with("it has 1 request"), "{outcome}");
    for (state, why) in [
        ("unloaded", "it has no model loaded"),
        ("single", "only as a router"),
        ("no_key", "it requires a key"),
    ] {
        let server = llama_server(state);
        let outcome = bench.refusal(&decision(of(&server), &[UnloadModels]));
        assert!(outcome.contains(why), "{state}: {outcome}");
        assert_eq!(server.posted(), Vec::<String>::new());
    }
    assert_eq!(busy.posted(), Vec::<String>::new());
}

/// Responses written from llama-server's documentation.
#[test]
fn a_llama_server_router_unloads_only_the_idle_ones_of_several_models() {
    let bench = Bench::new();
    let server =
        FakeServer::start(|request: &Request| match (request.endpoint(), &*request.path) {
            ("/models", _) => {
                let model = |id: &str, status: &str| json!({"id": id, "status": {"value": status}});
                let models =
                    [model("busy", "loaded"), model("a/b:Q4", "loaded"), model("c", "unloaded")];
                Reply::Answer(200, json!({ "data": models }).to_string())
            }
            ("/metrics", path) if path.contains("model=busy&autoload=false") => {
                Reply::Answer(200, "llamacpp:requests_processing 1\n".to_owned())
            }
            ("/metrics", _) => Reply::Answer(501, String::new()),
            _ => Reply::Answer(200, r#"{"success":true}"#.to_owned()),
        });
    let target = engine(EngineKind::LlamaServer, server.port);
    let outcome = bench.effect(&decision(target, &[UnloadModels]));
    assert!(outcome.ends_with("it has unloaded 1 model"), "{outcome}");
    assert_eq!(server.posted(), ["/models/unload"]);
    assert_eq!(server.requests().last().unwrap().body, r#"{"model":"a/b:Q4"}"#);
}

#[test]
fn triton_unloads_models_only_if_allowed() {
    let bench = Bench::new();
    let triton = |state: &'static str| {
        FakeServer::start(move |request: &Request| recorded("triton", state, request.endpoint()))
    };
    let of = |server: &FakeServer| engine(EngineKind::Triton, server.port);
    let idle = triton("idle");
    let outcome = bench.refusal(&decision(of(&idle), &[]));
    assert!(outcome.contains("not served until it is loaded again"), "{outcome}");
    assert_eq!(idle.calls(), Vec::<String>::new());
    // A real Triton responds at once and unloads when its requests have finished.
    let busy = triton("busy");
    let outcome = bench.effect(&decision(of(&busy), &[UnloadModels]));
    assert!(outcome.ends_with("it unloads 1 model"), "{outcome}");
    assert_eq!(busy.posted(), ["/v2/repository/index", "/v2/repository/models/tiny/unload"]);
    let outcome = bench.refusal(&decision(of(&triton("unloaded")), &[UnloadModels]));
    assert_eq!(outcome, "it has no model loaded");
    let outcome = bench.refusal(&decision(of(&triton("no_control")), &[UnloadModels]));
    assert!(
        outcome.contains("503") && outcome.contains("load / unload is not allowed"),
        "{outcome}"
    );
}

/// Responses written from Triton's documentation.
#[test]
fn a_triton_model_of_several_versions_is_unloaded_once_with_its_name_escaped() {
    let bench = Bench::new();
    let server = FakeServer::start(|request: &Request| match request.endpoint() {
        "/v2/repository/index" => {
            let model = |name: &str, state: &str| json!({"name": name, "state": state});
            let models = [model("a b", "READY"), model("a b", "READY"), model("c", "UNAVAILABLE")];
            Reply::Answer(200, json!(models).to_string())
        }
        _ => Reply::Answer(200, String::new()),
    });
    let target = engine(EngineKind::Triton, server.port);
    let outcome = bench.effect(&decision(target, &[UnloadModels]));
    assert!(outcome.ends_with("it unloads 1 model"), "{outcome}");
    assert_eq!(server.posted(), ["/v2/repository/index", "/v2/repository/models/a%20b/unload"]);
}

#[test]
fn a_replaced_or_ended_engine_gets_no_call() {
    let (bench, server) = (Bench::new(), sglang("idle"));
    let target = engine(EngineKind::Sglang, server.port);
    let stale = |target: EngineTarget| match bench.act(&decision(target, &[])) {
        (OutcomeResult::NotDone(why), None) => why,
        other => panic!("{other:?}"),
    };
    let mut later = target.clone();
    later.processes[0].start_ticks += 1;
    assert!(stale(later).starts_with("llm is another one by now, or gone: pid"));
    let without_processes = EngineTarget { processes: Vec::new(), ..target.clone() };
    assert!(stale(without_processes).starts_with("no process of llm is known"));
    let without_port = EngineTarget { health_url: None, ..target.clone() };
    assert!(stale(without_port).starts_with("the address of llm is not known"));
    // Another process listens on its port.
    let parent = std::os::unix::process::parent_id();
    let text = std::fs::read(format!("/proc/{parent}/stat")).unwrap();
    let ticks = umawarden::parse::process::stat(&text).unwrap().start_ticks;
    std::os::unix::fs::symlink(
        format!("/proc/{parent}"),
        bench.path("proc").join(parent.to_string()),
    )
    .unwrap();
    let mut other = target.clone();
    other.processes[0] = umawarden::model::ProcessId { pid: parent, start_ticks: ticks };
    assert!(stale(other).contains("is no process of llm: nothing is sent to it, and no key"));
    assert_eq!(server.calls(), Vec::<String>::new());
}
