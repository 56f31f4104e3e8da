//! Hostile servers: each costs a bounded time and nothing else.

use std::time::{Duration, Instant};

use umawarden::model::EngineKind;

use super::fake::{FakeServer, Reply, Request, recorded};
use super::{Bench, decision, engine};

/// SGLang with one endpoint that the test controls.
fn spoiled(endpoint: &'static str, reply: Reply) -> FakeServer {
    FakeServer::start(move |request: &Request| {
        if request.endpoint() == endpoint {
            reply.clone()
        } else {
            recorded("sglang", "idle", request.endpoint())
        }
    })
}

fn refused(endpoint: &'static str, reply: Reply) -> (String, FakeServer) {
    let (bench, server) = (Bench::new(), spoiled(endpoint, reply));
    let began = Instant::now();
    let why = bench.refusal(&decision(engine(EngineKind::Sglang, server.port), &[]));
    assert!(began.elapsed() < Duration::from_secs(14), "{:?}", began.elapsed());
    (why, server)
}

#[test]
fn a_hanging_engine_is_given_up() {
    let (why, server) = refused("/v1/loads", Reply::Hang);
    assert_eq!(why, "/v1/loads?include=core was not answered within 2 s");
    assert_eq!(server.posted(), Vec::<String>::new());
    let (why, _) = refused("/continue_generation", Reply::Hang);
    assert_eq!(why, "/continue_generation was not answered within 10 s");
}

#[test]
fn an_engine_slow_in_each_of_many_calls_is_given_up() {
    let bench = Bench::new();
    let server = FakeServer::start(|request: &Request| match request.endpoint() {
        "/api/ps" => {
            let models = (0..16).map(|number| format!("{{\"model\":\"m{number}\"}}"));
            let models: Vec<String> = models.collect();
            Reply::Answer(200, format!("{{\"models\":[{}]}}", models.join(",")))
        }
        _ => {
            std::thread::sleep(Duration::from_millis(2_500));
            Reply::Answer(200, "{}".to_owned())
        }
    });
    let began = Instant::now();
    let why = bench.refusal(&decision(engine(EngineKind::Ollama, server.port), &[]));
    assert!(why.starts_with("/api/generate was not answered within"), "{why}");
    assert!(began.elapsed() < Duration::from_secs(23), "{:?}", began.elapsed());
}

#[test]
fn a_redirect_is_not_followed() {
    let elsewhere = FakeServer::start(|_: &Request| Reply::Answer(200, String::new()));
    let to = format!("http://127.0.0.1:{}/", elsewhere.port);
    let reply = Reply::Raw(format!(
        "HTTP/1.1 307 x\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    ));
    let (why, _) = refused("/continue_generation", reply);
    assert_eq!(why, "it answers 307 at /continue_generation: nothing");
    assert_eq!(elsewhere.calls(), Vec::<String>::new());
}

#[test]
fn an_endless_or_malformed_response_is_a_failure() {
    let (why, _) = refused("/v1/loads", Reply::Endless);
    assert!(why.contains("is not that of such an engine"), "{why}");
    for body in ["{", "[]", "{\"loads\":7}", "{\"loads\":[]}", "\u{0}"] {
        let (why, server) = refused("/v1/loads", Reply::Answer(200, body.to_owned()));
        assert!(why.contains("is not that of such an engine"), "{body}: {why}");
        assert_eq!(server.posted(), Vec::<String>::new());
    }
    let (why, _) = refused("/ready", Reply::Close);
    assert!(why.starts_with("the request to /ready failed"), "{why}");
    let (why, _) = refused("/ready", Reply::Raw("SSH-2.0-OpenSSH_9.9\r\n".to_owned()));
    assert!(why.starts_with("the request to /ready failed"), "{why}");
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nab".to_owned();
    let (why, _) = refused("/continue_generation", Reply::Raw(cut));
    assert!(why.starts_with("the request to /continue_generation failed"), "{why}");
    let (why, _) = refused("/continue_generation", Reply::Answer(500, "a\u{7}\nb".to_owned()));
    assert_eq!(why, "it answers 500 at /continue_generation: \"a  b\"");
    let headers = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(5_000));
    let (why, _) = refused("/ready", Reply::Raw(headers));
    assert!(why.starts_with("the request to /ready failed"), "{why}");
}

#[test]
fn proxies_of_the_environment_are_ignored() {
    // reqwest reads the variable when a client is built; other tests query only 127.0.0.1, too.
    let proxy = FakeServer::start(|_: &Request| Reply::Answer(200, String::new()));
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "empty_cache::calls::an_idle_sglang_is_emptied_by_one_call"])
        .env("http_proxy", format!("http://127.0.0.1:{}", proxy.port))
        .env("HTTP_PROXY", format!("http://127.0.0.1:{}", proxy.port))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    assert_eq!(proxy.calls(), Vec::<String>::new());
}
