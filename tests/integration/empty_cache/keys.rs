//! Keys: the right one to the right call, and never anywhere else.

use umawarden::model::{CachePermission, EngineKeys, EngineKind, SecretSource};

use super::fake::{Asked, FakeEngine, recorded};
use super::{Bench, decision, engine, with_keys};
use crate::daemon::write_secret;

const API: &str = "an-api-key";
const ADMIN: &str = "an-admin-key";

/// SGLang with both keys, as the real one answered to each.
fn guarded() -> FakeEngine {
    FakeEngine::start(|asked: &Asked| {
        let state = match asked.key.as_deref() {
            None => "no_key",
            Some("Bearer an-api-key") => "api_key",
            Some("Bearer an-admin-key") => "admin_key",
            Some(_) => "wrong_key",
        };
        recorded("sglang", state, asked.place())
    })
}

fn keys(bench: &Bench, api: Option<&str>, admin: Option<&str>) -> EngineKeys {
    let place = |name: &str, key: &str| {
        let path = bench.path(name);
        write_secret(&path, &format!("{key}\n"));
        SecretSource::File(path.to_str().unwrap().into())
    };
    EngineKeys {
        api: api.map(|key| place("api", key)),
        admin: admin.map(|key| place("admin", key)),
        user: None,
    }
}

#[test]
fn control_gets_the_admin_key_and_the_idle_probe_the_api_key() {
    let (bench, server) = (Bench::new(), guarded());
    let target = engine(EngineKind::Sglang, server.port);
    let target = with_keys(target, keys(&bench, Some(API), Some(ADMIN)));
    let told = bench.effect(&decision(target, &[]));
    assert!(told.ends_with("it has no request"), "{told}");
    let sent: Vec<(String, Option<String>)> =
        server.asked().into_iter().map(|asked| (asked.path, asked.key)).collect();
    let bearer = |key: &str| Some(format!("Bearer {key}"));
    assert_eq!(
        sent,
        [
            ("/v1/loads?include=core".to_owned(), bearer(API)),
            ("/ready".to_owned(), bearer(API)),
            ("/continue_generation".to_owned(), bearer(ADMIN)),
        ]
    );
    // Without the api key only the probe does not know.
    let target = engine(EngineKind::Sglang, server.port);
    let target = with_keys(target, keys(&bench, None, Some(ADMIN)));
    let told = bench.effect(&decision(target, &[]));
    assert!(told.ends_with("whether it has requests is not known"), "{told}");
    assert!(!told.contains(ADMIN));
}

#[test]
fn a_key_that_is_missing_or_wrong_is_told_and_not_shown() {
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
    assert_eq!(server.calls().len(), before, "nothing is asked without it");
}

#[test]
fn one_that_refuses_to_be_paused_for_want_of_a_key_is_not_taken_for_paused() {
    let bench = Bench::new();
    let server = FakeEngine::start(|asked: &Asked| match asked.place() {
        "/v1/loads" | "/ready" => recorded("sglang", "busy", asked.place()),
        _ => recorded("sglang", "wrong_key", "/flush_cache"),
    });
    let target = engine(EngineKind::Sglang, server.port);
    let target = with_keys(target, keys(&bench, Some(API), Some("another-key")));
    let why = bench.refusal(&decision(target, &[CachePermission::RetractRequests]));
    assert!(why.starts_with("it answers 401 at /pause_generation: the key that was sent"), "{why}");
    assert_eq!(server.told(), ["/pause_generation"]);
    assert!(bench.undo_log().contains(r#""result":"already_back""#), "{}", bench.undo_log());
}

#[test]
fn what_an_engine_tells_of_its_keys_is_never_asked() {
    let (bench, server) = (Bench::new(), guarded());
    let target = engine(EngineKind::Sglang, server.port);
    bench.refusal(&decision(target, &[]));
    assert!(server.calls().iter().all(|call| !call.contains("server_info")));
}
