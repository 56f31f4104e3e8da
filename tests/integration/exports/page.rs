//! The page, its assets, the picture and the explanation, with a fake snapshot.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use umawarden::exports::{ClientLimits, Queries};
use umawarden::model::{
    EngineKind, EnginePhase, EngineProcess, EngineSeen, MemoryAssessment, MemoryHistory,
    NodeHealthLevel, Picture, ProcessId, Reading, RecentEvent, RecentEventKind, RecentEventLevel,
    SeriesKey,
};
use umawarden::policy::status::{EngineStatus, Status};

use super::server::{Server, made_up_status, moment, no_queries, start, start_with};

const GIB: u64 = 1 << 30;

/// Names that people choose, as an attacker writes them.
const HOSTILE: &str = "<img src=x onerror=alert(1)>\"'\u{202e}&amp;<script>";

fn happened(seconds: u64, text: &str) -> RecentEvent {
    RecentEvent {
        at: moment(seconds).utc,
        kind: RecentEventKind::Event,
        level: RecentEventLevel::Warning,
        text: text.to_owned(),
        id: None,
        rule: None,
        engine: None,
        times: 1,
    }
}

/// An engine that loads for the second time.
pub fn engine(name: &str, anonymous: u64) -> EngineStatus {
    let id = ProcessId { pid: 7, start_ticks: 5_000 };
    let process = EngineProcess::holding(id, "vllm", anonymous);
    let mut seen = EngineSeen::new(name.into(), EngineKind::Vllm, id, vec![process], "test".into());
    seen.model = Some(HOSTILE.into());
    EngineStatus {
        engine: seen,
        phase: EnginePhase::Loading,
        since: moment(60),
        reason: "it reads".into(),
        is_stuck: false,
        lost_rank: None,
        other_ranks: Vec::new(),
        without_progress: None,
        began: Duration::from_secs(50),
        last_load_took: Some(Duration::from_secs(100)),
        load_read_bytes: None,
        memory_bytes: anonymous,
        health: None,
        scanned_at: Duration::from_secs(99),
        serving: Default::default(),
    }
}

/// A node with memory, an engine, and something that happened.
pub fn full_status() -> Status {
    let values = [
        ("uma_memory_total_bytes", 100 * GIB),
        ("uma_memory_free_bytes", 10 * GIB),
        ("uma_memory_unaccounted_bytes", 60 * GIB),
        ("uma_memory_anonymous_bytes", 20 * GIB),
        ("uma_memory_shmem_bytes", 0),
        ("uma_memory_reserve_bytes", GIB),
        ("uma_memory_available_bytes", 15 * GIB),
    ];
    let number = |bytes: u64| Reading::Value(bytes as f64);
    let mut series: Vec<(SeriesKey, Reading<f64>)> =
        values.iter().map(|(name, bytes)| (SeriesKey::new(name, &[]), number(*bytes))).collect();
    for (state, bytes) in [("clean", 5 * GIB), ("dirty", GIB), ("mapped", 2 * GIB)] {
        let key = SeriesKey::new("uma_memory_page_cache_bytes", &[("state", state)]);
        series.push((key, number(bytes)));
    }
    let held = [("engine", HOSTILE), ("gpu", "0")];
    series.push((SeriesKey::new("uma_gpu_engine_memory_bytes", &held), number(40 * GIB)));
    let named = [("gpu", "0"), ("name", "NVIDIA GB10")];
    series.push((SeriesKey::new("uma_gpu_info", &named), Reading::Value(1.0)));
    let (series, values): (Vec<_>, Vec<_>) = series.into_iter().unzip();
    let entry = RecentEvent { id: Some(17), ..happened(98, HOSTILE) };
    Status {
        series: series.into(),
        values,
        engines: Arc::new([engine(HOSTILE, 8 * GIB)]),
        happened: Arc::new([entry]),
        ..made_up_status()
    }
}

fn picture(server: &Server) -> Picture {
    let response = server.get("/api/v1/picture").json();
    assert_eq!(response["status"], "success");
    serde_json::from_value(response["data"].clone()).unwrap()
}

#[test]
fn a_picture_has_parts_that_add_up_and_engines_with_their_progress() {
    let server = start();
    let small = picture(&server);
    assert_eq!((small.memory.total_bytes, small.memory.parts.len()), (None, 0));
    assert!(small.memory.remarks[0].contains("memory is unknown"), "{:?}", small.memory);
    assert_eq!(small.well.level, NodeHealthLevel::Warning, "a rule fires");
    assert!(small.well.reasons.contains(&"unknown: 1 rule (Blind): gone: failed".to_owned()));

    server.status.store(Arc::new(full_status()));
    let full = picture(&server);
    assert_eq!((full.node.as_str(), full.uptime_seconds), ("spark-<1>", 90.0));
    assert_eq!(full.machine.model.as_deref(), Some("NVIDIA_DGX_Spark"));
    assert_eq!(full.machine.gpu.as_deref(), Some("NVIDIA GB10"));
    let parts = &full.memory.parts;
    assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), 100 * GIB, "{parts:#?}");
    let of = |name: &str| parts.iter().find(|part| part.name.contains(name)).unwrap().bytes / GIB;
    assert_eq!(of(HOSTILE), 48, "of its process, and of the driver");
    assert_eq!((of("driver"), of("other processes"), of("kernel")), (20, 12, 2));
    assert_eq!((of("clean"), of("dirty"), of("mapped"), of("free")), (5, 1, 2, 10));
    let engine = &full.engines[0];
    assert_eq!((engine.progress, engine.seconds_left), (Some(0.49), Some(51.0)));
    assert_eq!(engine.memory_bytes, Some(48 * GIB));

    let stale = Status { at: moment(60), ..full_status() };
    server.status.store(Arc::new(stale));
    assert!(picture(&server).well.reasons.contains(&"no sample was taken for 40s".to_owned()));
    server.end();
}

/// Engines of a machine without a driver hold nothing of one.
#[test]
fn the_drivers_share_is_remarked_only_where_there_may_be_a_driver() {
    let server = start();
    let remarks = |status: &Status| {
        server.status.store(Arc::new(status.clone()));
        picture(&server).memory.remarks.concat()
    };
    let mut status = full_status();
    for (key, value) in status.series.iter().zip(&mut status.values) {
        if *key.name == *"uma_gpu_engine_memory_bytes" {
            *value = Reading::Unsupported;
        }
    }
    assert!(remarks(&status).contains("the driver does not report"), "{}", remarks(&status));
    let unknown = MemoryAssessment::unknown(moment(10).utc);
    status.assessment = Arc::new(MemoryAssessment { is_driver_absent: true, ..unknown });
    assert!(!remarks(&status).contains("driver"), "{}", remarks(&status));
    server.end();
}

#[test]
fn what_happened_before_this_run_comes_from_the_journal() {
    // The memory of the last hour has what happened until now.
    let earlier = |until, most: usize| match most {
        20 => {
            assert_eq!(until, moment(10).utc);
            Ok(vec![happened(5, "before")])
        }
        _ => Ok(vec![happened(50, "in between"), happened(5, "before")]),
    };
    let queries = Queries { happened: Box::new(earlier), ..no_queries() };
    let server = start_with(ClientLimits::default(), queries);
    server.status.store(Arc::new(full_status()));
    let texts: Vec<String> = picture(&server).happened.into_iter().map(|one| one.text).collect();
    assert_eq!(texts, [HOSTILE, "before"]);
    let past = server.get("/api/v1/memory?since=1h").json();
    let past: MemoryHistory = serde_json::from_value(past["data"].clone()).unwrap();
    let texts: Vec<&str> = past.happened.iter().map(|one| one.text.as_str()).collect();
    assert_eq!(texts, [HOSTILE, "in between", "before"]);
    server.end();
}

#[test]
fn the_page_escapes_foreign_text_and_loads_only_its_own_files() {
    let server = start();
    server.status.store(Arc::new(full_status()));
    let page = server.get("/");
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    let policy = &page.headers["content-security-policy"];
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    let text = page.text();
    for gone in ["<img", "<i>", "<remark>", "http:", "https:", "onerror=alert(1)>", "style="] {
        assert!(!text.contains(gone), "{gone}: {text}");
    }
    assert_eq!(text.matches("<script").count(), 1, "its own");
    for shown in [
        "&lt;img src=x onerror=alert(1)&gt;&quot;&#39;\\u{202e}&amp;amp;",
        "firing, active since 2026-",
        "48.0 GiB",
        "loading 49 %, 51 s left",
        "href=\"api/v1/explain?decision=17\"",
        "href=\"metrics\"",
    ] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    let assets: Vec<&str> =
        text.split(['"', '>']).filter(|part| part.starts_with("assets/")).collect();
    assert_eq!(assets.len(), 3, "{assets:?}");
    for asset in assets {
        let response = server.get(&format!("/{asset}"));
        assert_eq!(response.status, 200, "{asset}");
        assert!(response.headers["cache-control"].contains("immutable"), "{asset}");
        assert!(!response.body.is_empty());
    }
    let gone = server.get("/assets/page-0000000000000000.js");
    assert_eq!((gone.status, gone.headers["cache-control"].as_str()), (404, "no-store"));
    server.end();
}

#[test]
fn the_loop_explains_rules_and_the_journal_decisions() {
    let explained = |decision: umawarden::model::DecisionId| {
        Ok((decision.0 == 17).then(|| json!({"rule": "memory/Low"})))
    };
    let queries = Queries { explain: Box::new(explained), ..no_queries() };
    let mut server = start_with(ClientLimits::default(), queries);
    let tree = server.get("/api/v1/explain?decision=17").json();
    assert_eq!(tree["data"]["rule"], "memory/Low");
    assert_eq!(server.get("/api/v1/explain?decision=18").status, 404);
    for wrong in ["", "?decision=x", "?rule=a&rule=b", "?other=1"] {
        assert_eq!(server.get(&format!("/api/v1/explain{wrong}")).status, 400, "{wrong}");
    }
    let unknown = server.get("/api/v1/explain?rule=Lov");
    assert_eq!(unknown.status, 404);
    assert!(unknown.json()["error"].to_string().contains("did you mean"), "{}", unknown.text());

    let address = server.address;
    let client = std::thread::spawn(move || {
        let url = format!("http://{address}/api/v1/explain?rule=memory%2FLow");
        crate::daemon::http_client().build().unwrap().get(url).send().unwrap().text().unwrap()
    });
    let request = server.explains.blocking_recv().unwrap();
    assert_eq!(request.rule.to_string(), "memory/Low");
    request.answer.send(Some(json!({"state": "firing"}))).unwrap();
    assert!(client.join().unwrap().contains("\"state\":\"firing\""));
    server.end();
}

#[test]
fn the_past_of_memory_is_bounded_by_a_parameter() {
    let server = start();
    let empty = server.get("/api/v1/memory?since=1h").json();
    assert_eq!((&empty["data"]["step_seconds"], &empty["data"]["at"]), (&json!(5), &json!([])));
    assert_eq!(server.get("/api/v1/memory?since=x").status, 400);
    server.end();
}

#[test]
fn clients_learn_their_role() {
    let server = start();
    let anonymous = server.get("/api/v1/access").json();
    assert_eq!(anonymous["data"], json!({"role": "read", "name": null}));
    let local = server.order("GET", "/api/v1/access", "").json();
    assert_eq!(local["data"]["role"], "remedy");
    server.end();
}
