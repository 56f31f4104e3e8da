//! Each call carries the right key, and no other call does.

use umawarden::model::{CachePermission, EngineKeys, EngineKind, SecretSource};

use super::fake::{FakeServer, Request, recorded};
use super::{Bench, decision, engine, with_keys};
use crate::daemon::write_secret;

const API: &str = "an-api-key";
const ADMIN: &str = "an-admin-key";

/// SGLang with both keys; responses as recorded from a real one.
fn guarded() -> FakeServer {
    FakeServer::start(|request: &Request| {
        let state = match request.key.as_deref() {
            None => "no_key",
            Some("Bearer an-api-key") => "api_key",
            Some("Bearer an-admin-key") => "admin_key",
            Some(_) => "wrong_key",
        };
        recorded("sglang", state, request.endpoint())
    })
}

fn keys(bench: &Bench, api: Option<&str>, admin: Option<&str>) -> EngineKeys {
    let file = |name: &str, key: &str| {
        let path = bench.path(name);
        write_secret(&path, &format!("{key}\n"));
        SecretSource::File(path.to_str().unwrap().into())
    };
    EngineKeys {
        api: api.map(|key| file("api", key)),
        admin: admin.map(|key| file("admin", key)),
        user: None,
    }
}

#[test]
fn control_gets_the_admin_key_and_the_idle_probe_the_api_key() {
    let (bench, server) = (Bench::new(), guarded());
    let target = engine(EngineKind::Sglang, server.port);
    let target = with_keys(target, keys(&bench, Some(API), Some(ADMIN)));
    let effect = bench.effect(&decision(target, &[]));
    assert!(effect.ends_with("it has no request"), "{effect}");
    let sent: Vec<(String, Option<String>)> =
        server.requests().into_iter().map(|request| (request.path, request.key)).collect();
    let bearer = |key: &str| Some(format!("Bearer {key}"));
    assert_eq!(
        sent,
        [
            ("/v1/loads?include=core".to_owned(), bearer(API)),
            ("/ready".to_owned(), bearer(API)),
            ("/continue_generation".to_owned(), bearer(ADMIN)),
        ]
    );
    // Without the API key only the idle probe fails.
    let target = engine(EngineKind::Sglang, server.port);
    let target = with_keys(target, keys(&bench, None, Some(ADMIN)));
    let effect = bench.effect(&decision(target, &[]));
    assert!(effect.ends_with("whether it has requests is not known"), "{effect}");
    assert!(!effect.contains(ADMIN));
}

#[test]
fn a_missing_or_wrong_key_is_reported_without_its_text() {
    let (bench, server) = (Bench::new(), guarded());
    let target = engine(EngineKind::Sglang, server.port);
    let why = bench.refusal(&decision(target.clone(), &[]));
    assert!(why.contains("401 at /continue_generation: it requires a key: name it under"), "{why}");
    assert!(why.contains("admin_key_file"), "{why}");
    for (api, admin) in [(Some(API), None), (Some(API), Some("another-key")), (None, Some(API))] {
        let target = with_keys(target.clone(), keys(&bench, api, admin));
        let why = bench.refusal(&decision(target, &[]));
        assert!(why.contains("that was sent is wrong"), "{why}");
        assert!(!why.contains(API) && !why.contains("another-key"), "{why}");
    }
    let nowhere = EngineKeys {
        admin: Some(SecretSource::File("/nonexistent".into())),
        ..EngineKeys::default()
    };
    let before = server.calls().len();
    let why = bench.refusal(&decision(with_keys(target, nowhere), &[]));
    assert!(why.starts_with("the key in /nonexistent cannot be read: No such file"), "{why}");
    assert_eq!(server.calls().len(), before, "no request is sent without the key");
}

#[test]
fn an_engine_that_refuses_the_key_of_a_pause_does_not_count_as_paused() {
    let bench = Bench::new();
    let server = FakeServer::start(|request: &Request| match request.endpoint() {
        "/v1/loads" | "/ready" => recorded("sglang", "busy", request.endpoint()),
        _ => recorded("sglang", "wrong_key", "/flush_cache"),
    });
    let target = engine(EngineKind::Sglang, server.port);
    let target = with_keys(target, keys(&bench, Some(API), Some("another-key")));
    let why = bench.refusal(&decision(target, &[CachePermission::RetractRequests]));
    assert!(why.starts_with("it answers 401 at /pause_generation: the key that was sent"), "{why}");
    assert_eq!(server.posted(), ["/pause_generation"]);
    assert!(bench.undo_log().contains(r#""result":"already_back""#), "{}", bench.undo_log());
}

#[test]
fn the_endpoint_that_reveals_keys_is_never_queried() {
    let (bench, server) = (Bench::new(), guarded());
    let target = engine(EngineKind::Sglang, server.port);
    bench.refusal(&decision(target, &[]));
    assert!(server.calls().iter().all(|call| !call.contains("server_info")));
}
