//! Which calls each engine gets, in which state, and what is told of what came of it.

use serde_json::json;
use umawarden::model::CachePermission::{DropPrefixCache, RetractRequests, UnloadModels, Unpause};
use umawarden::model::{EngineKind, EngineTarget, OutcomeResult};

use super::fake::{Asked, FakeEngine, Reply, recorded};
use super::{Bench, GIB, decision, engine, set_free};

/// SGLang in one of its recorded states.
pub fn sglang(state: &'static str) -> FakeEngine {
    FakeEngine::start(move |asked: &Asked| recorded("sglang", state, asked.place()))
}

#[test]
fn an_idle_sglang_is_emptied_by_one_call_and_nothing_is_dropped() {
    let (bench, server) = (Bench::new(), sglang("idle"));
    let told = bench.effect(&decision(engine(EngineKind::Sglang, server.port), &[]));
    assert_eq!(
        server.calls(),
        ["GET /v1/loads?include=core", "GET /ready", "POST /continue_generation"]
    );
    let call = server.asked().pop().unwrap();
    assert_eq!(call.body, r#"{"torch_empty_cache":true}"#);
    assert_eq!(call.content_type.as_deref(), Some("application/json"));
    assert!(told.starts_with("no memory came back: free 10.0 GiB -> 10.0 GiB (0 B)"), "{told}");
    assert!(told.ends_with("/continue_generation answered 200, it has no request"), "{told}");
    assert_eq!(bench.tally.bytes(), 0);
}

#[test]
fn the_outcome_is_the_memory_that_came_back() {
    let bench = Bench::new();
    let procfs = bench.path("proc");
    let server = FakeEngine::start(move |asked: &Asked| {
        if asked.place() == "/continue_generation" {
            set_free(&procfs, 13 * GIB);
        }
        recorded("sglang", "busy", asked.place())
    });
    let told = bench.effect(&decision(engine(EngineKind::Sglang, server.port), &[]));
    let change = "memory came back: free 10.0 GiB -> 13.0 GiB (+3.0 GiB), unaccounted 111.0 GiB -> \
                  108.0 GiB (-3.0 GiB), its own ";
    assert!(told.starts_with(change), "{told}");
    assert!(told.ends_with("with 1 request"), "{told}");
    assert_eq!(bench.tally.bytes(), 3 * GIB);
}

#[test]
fn a_prefix_cache_is_dropped_only_where_that_is_allowed_and_nothing_runs() {
    let bench = Bench::new();
    let (idle, busy) = (sglang("idle"), sglang("busy"));
    let of = |server: &FakeEngine| engine(EngineKind::Sglang, server.port);
    let told = bench.effect(&decision(of(&idle), &[DropPrefixCache]));
    assert!(told.ends_with("/flush_cache answered 200: its prefix cache is dropped"), "{told}");
    assert_eq!(idle.told(), ["/flush_cache"]);
    let told = bench.effect(&decision(of(&busy), &[DropPrefixCache]));
    assert!(told.ends_with("/continue_generation answered 200, with 1 request"), "{told}");
    assert_eq!(busy.told(), ["/continue_generation"]);
}

#[test]
fn a_request_that_comes_before_the_flush_is_left_alone() {
    let bench = Bench::new();
    let server = FakeEngine::start(|asked: &Asked| match asked.place() {
        "/flush_cache" => recorded("sglang", "busy", "/flush_cache"),
        place => recorded("sglang", "idle", place),
    });
    let target = engine(EngineKind::Sglang, server.port);
    bench.effect(&decision(target, &[DropPrefixCache]));
    assert_eq!(server.told(), ["/flush_cache", "/continue_generation"]);
}

#[test]
fn an_older_sglang_is_told_nothing_that_it_would_ignore_or_take_for_an_end_of_requests() {
    let bench = Bench::new();
    let of_version = |version: &'static str, has_ready: bool, requests: u64| {
        FakeEngine::start(move |asked: &Asked| match asked.place() {
            "/v1/loads" => {
                let loads = json!({"version": version, "loads": [{"num_running_reqs": requests}]});
                Reply::Answer(200, loads.to_string())
            }
            "/ready" if !has_ready => Reply::Answer(404, String::new()),
            _ => Reply::Answer(200, String::new()),
        })
    };
    let of = |server: &FakeEngine| engine(EngineKind::Sglang, server.port);
    let server = of_version("0.5.11", false, 0);
    let told = bench.refusal(&decision(of(&server), &[Unpause]));
    assert!(told.contains("only by /flush_cache: allow: [drop_prefix_cache]"), "{told}");
    let told = bench.refusal(&decision(of(&server), &[DropPrefixCache]));
    assert!(told.contains("does not report whether somebody has paused it"), "{told}");
    assert!(told.ends_with("a rule must say so with allow: [unpause]"), "{told}");
    assert_eq!(server.told(), Vec::<String>::new());
    bench.effect(&decision(of(&server), &[DropPrefixCache, Unpause]));
    assert_eq!(server.told(), ["/flush_cache"]);
    let server = of_version("0.5.5", true, 2);
    let told = bench.refusal(&decision(of(&server), &[RetractRequests]));
    assert!(told.contains("ends all requests when it is paused"), "{told}");
    assert_eq!(server.told(), Vec::<String>::new());
}

#[test]
fn nothing_is_asked_of_vllm_which_has_nothing_to_give() {
    let bench = Bench::new();
    let server = FakeEngine::start(|asked: &Asked| recorded("vllm", "idle", asked.place()));
    let all = [DropPrefixCache, RetractRequests, UnloadModels, Unpause];
    for allow in [[].as_slice(), &all] {
        let told = bench.refusal(&decision(engine(EngineKind::Vllm, server.port), allow));
        assert!(told.starts_with("vLLM gives no memory back while it serves"), "{told}");
        assert!(told.contains("--gpu-memory-utilization"), "{told}");
    }
    assert_eq!(server.calls(), Vec::<String>::new());
}

#[test]
fn nothing_is_asked_of_lmdeploy_which_would_end_its_requests_and_take_it_all_again() {
    let bench = Bench::new();
    let server = FakeEngine::start(|_: &Asked| Reply::Answer(200, String::new()));
    let all = [DropPrefixCache, RetractRequests, UnloadModels, Unpause];
    let told = bench.refusal(&decision(engine(EngineKind::Lmdeploy, server.port), &all));
    assert!(told.starts_with("LMDeploy gives no memory back while it serves"), "{told}");
    assert!(told.contains("--cache-max-entry-count"), "{told}");
    assert_eq!(server.calls(), Vec::<String>::new());
}

/// As its documentation shows it.
#[test]
fn ollama_unloads_what_is_loaded_and_is_watched_until_it_is_gone() {
    let bench = Bench::new();
    let loaded = std::sync::Mutex::new(vec!["a:7b", "b \"x\":1b"]);
    let server = FakeEngine::start(move |asked: &Asked| match asked.place() {
        "/api/ps" => {
            let models = loaded.lock().unwrap().clone();
            let models: Vec<_> = models.iter().map(|name| json!({"model": name})).collect();
            Reply::Answer(200, json!({ "models": models }).to_string())
        }
        _ => {
            let sent: serde_json::Value = serde_json::from_str(&asked.body).unwrap();
            loaded.lock().unwrap().retain(|name| sent["model"] != *name);
            Reply::Answer(200, r#"{"done":true,"done_reason":"unload"}"#.to_owned())
        }
    });
    let target = engine(EngineKind::Ollama, server.port);
    let told = bench.effect(&decision(target.clone(), &[]));
    assert!(told.ends_with("it has unloaded 2 models"), "{told}");
    assert_eq!(server.told(), ["/api/generate", "/api/generate"]);
    let body = &server.asked()[1].body;
    assert_eq!(body, r#"{"model":"a:7b","keep_alive":0,"stream":false}"#);
    assert_eq!(bench.refusal(&decision(target, &[])), "it has no model loaded");
}

/// As its source answers.
#[test]
fn comfyui_frees_everything_after_the_prompt_that_runs() {
    let bench = Bench::new();
    let server = FakeEngine::start(|asked: &Asked| match asked.place() {
        "/queue" => {
            let queue = r#"{"queue_running":[[0]],"queue_pending":[[1],[2]]}"#;
            Reply::Answer(200, queue.to_owned())
        }
        _ => Reply::Answer(200, String::new()),
    });
    let told = bench.effect(&decision(engine(EngineKind::ComfyUi, server.port), &[]));
    assert!(told.ends_with("/free answered 200; 3 prompts first"), "{told}");
    assert_eq!(server.asked()[1].body, r#"{"unload_models":true,"free_memory":true}"#);
}

/// llama-server in one of its recorded states.
fn llama_server(state: &'static str) -> FakeEngine {
    FakeEngine::start(move |asked: &Asked| recorded("llama-server", state, asked.place()))
}

#[test]
fn a_router_of_llama_servers_unloads_idle_models_where_that_is_allowed() {
    let bench = Bench::new();
    let of = |server: &FakeEngine| engine(EngineKind::LlamaServer, server.port);
    let idle = llama_server("idle");
    let told = bench.refusal(&decision(of(&idle), &[]));
    assert!(told.ends_with("a rule must say so with allow: [unload_models]"), "{told}");
    assert_eq!(idle.told(), Vec::<String>::new());
    let told = bench.effect(&decision(of(&idle), &[UnloadModels]));
    assert!(told.ends_with("it has unloaded 1 model"), "{told}");
    assert_eq!(idle.told(), ["/models/unload"]);
    assert_eq!(idle.asked().last().unwrap().body, r#"{"model":"tiny"}"#);
    // Else it would be loaded for the question.
    let asked = idle.calls();
    assert!(asked.contains(&"GET /metrics?model=tiny&autoload=false".to_owned()), "{asked:?}");
    // The real one ends a request when its model is unloaded.
    let busy = llama_server("busy");
    let told = bench.refusal(&decision(of(&busy), &[UnloadModels]));
    assert!(told.starts_with("it has 1 request"), "{told}");
    for (state, why) in [
        ("unloaded", "it has no model loaded"),
        ("single", "only as a router"),
        ("no_key", "it requires a key"),
    ] {
        let server = llama_server(state);
        let told = bench.refusal(&decision(of(&server), &[UnloadModels]));
        assert!(told.contains(why), "{state}: {told}");
        assert_eq!(server.told(), Vec::<String>::new());
    }
    assert_eq!(busy.told(), Vec::<String>::new());
}

/// As its documentation shows it.
#[test]
fn of_several_models_of_a_router_only_the_idle_ones_are_unloaded() {
    let bench = Bench::new();
    let server = FakeEngine::start(|asked: &Asked| match (asked.place(), &*asked.path) {
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
    let told = bench.effect(&decision(target, &[UnloadModels]));
    assert!(told.ends_with("it has unloaded 1 model"), "{told}");
    assert_eq!(server.told(), ["/models/unload"]);
    assert_eq!(server.asked().last().unwrap().body, r#"{"model":"a/b:Q4"}"#);
}

#[test]
fn triton_unloads_only_where_that_is_allowed() {
    let bench = Bench::new();
    let triton = |state: &'static str| {
        FakeEngine::start(move |asked: &Asked| recorded("triton", state, asked.place()))
    };
    let of = |server: &FakeEngine| engine(EngineKind::Triton, server.port);
    let idle = triton("idle");
    let told = bench.refusal(&decision(of(&idle), &[]));
    assert!(told.contains("not served until somebody loads it again"), "{told}");
    assert_eq!(idle.calls(), Vec::<String>::new());
    // The real one unloads when its request has finished, and answers at once.
    let busy = triton("busy");
    let told = bench.effect(&decision(of(&busy), &[UnloadModels]));
    assert!(told.ends_with("it unloads 1 model"), "{told}");
    assert_eq!(busy.told(), ["/v2/repository/index", "/v2/repository/models/tiny/unload"]);
    let told = bench.refusal(&decision(of(&triton("unloaded")), &[UnloadModels]));
    assert_eq!(told, "it has no model loaded");
    let told = bench.refusal(&decision(of(&triton("no_control")), &[UnloadModels]));
    assert!(told.contains("503") && told.contains("load / unload is not allowed"), "{told}");
}

/// As its documentation shows it.
#[test]
fn a_model_of_triton_is_unloaded_once_whatever_it_is_called_and_however_many_versions_it_has() {
    let bench = Bench::new();
    let server = FakeEngine::start(|asked: &Asked| match asked.place() {
        "/v2/repository/index" => {
            let model = |name: &str, state: &str| json!({"name": name, "state": state});
            let models = [model("a b", "READY"), model("a b", "READY"), model("c", "UNAVAILABLE")];
            Reply::Answer(200, json!(models).to_string())
        }
        _ => Reply::Answer(200, String::new()),
    });
    let target = engine(EngineKind::Triton, server.port);
    let told = bench.effect(&decision(target, &[UnloadModels]));
    assert!(told.ends_with("it unloads 1 model"), "{told}");
    assert_eq!(server.told(), ["/v2/repository/index", "/v2/repository/models/a%20b/unload"]);
}

#[test]
fn what_is_no_longer_the_engine_that_was_meant_is_not_asked() {
    let (bench, server) = (Bench::new(), sglang("idle"));
    let target = engine(EngineKind::Sglang, server.port);
    let stale = |target: EngineTarget| match bench.act(&decision(target, &[])) {
        (OutcomeResult::NotDone(why), None) => why,
        other => panic!("{other:?}"),
    };
    let mut later = target.clone();
    later.processes[0].start_ticks += 1;
    assert!(stale(later).starts_with("llm is another one by now, or gone: pid"));
    let nobody = EngineTarget { processes: Vec::new(), ..target.clone() };
    assert!(stale(nobody).starts_with("no process of llm is known"));
    let nowhere = EngineTarget { health_url: None, ..target.clone() };
    assert!(stale(nowhere).starts_with("the address of llm is not known"));
    // Another process has taken its port.
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
