//! This node's alerts, sent to Alertmanagers that answer, hang, refuse or answer falsely.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::daemon::write_secret;
use crate::empty_cache::fake::{FakeServer, Reply, Request};
use crate::run::ALWAYS;
use crate::tls_front;

fn fine() -> FakeServer {
    FakeServer::start(|_| Reply::Answer(200, "{\"status\":\"success\"}".to_owned()))
}

/// A configuration with these Alertmanagers.
fn config(node: &Node, servers: &[String], more: &str) -> String {
    let send: String = servers.iter().map(|server| format!("  - {server}\n")).collect();
    let file = node.path("umawarden.yaml");
    fs::write(&file, format!("alertmanager:\n{more}  send:\n{send}")).unwrap();
    format!("--config.file={}", file.display())
}

fn url(port: u16) -> String {
    format!("{{url: 'http://127.0.0.1:{port}', timeout: 1s}}")
}

fn of(name: &str, port: u16) -> String {
    format!("uma_alertmanager_{name}{{alertmanager=\"127.0.0.1:{port}\"}}")
}

fn alerts(request: &Request) -> Vec<Value> {
    assert_eq!((&*request.method, &*request.path), ("POST", "/api/v2/alerts"));
    assert_eq!(request.content_type.as_deref(), Some("application/json"));
    serde_json::from_str(&request.body).unwrap()
}

/// The last alert of that name that the server received.
fn last(server: &FakeServer, name: &str) -> Option<Value> {
    let requests = server.requests();
    let mut requests = requests.iter().rev().flat_map(alerts);
    requests.find(|alert| alert["labels"]["alertname"] == name)
}

#[test]
fn a_firing_rule_is_posted_to_all_alertmanagers_until_its_end() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let (one, two) = (fine(), fine());
    let more = "  resend_every: 1s\n  labels: {cluster: lab}\n  decisions: acts\n";
    let config = config(&node, &[url(one.port), url(two.port)], more);
    let daemon = node.start(&[&config, "--web.external-url=http://spark-1:9942/"]);
    for server in [&one, &two] {
        daemon.wait_until("posted twice", |_| {
            server.requests().iter().filter(|request| request.body.contains("\"Always\"")).count()
                > 2
        });
        let alert = last(server, "Always").unwrap();
        assert_eq!(alert["labels"]["severity"], "warning");
        assert_eq!(alert["labels"]["cluster"], "lab");
        assert!(alert["labels"]["instance"].is_string());
        assert_eq!(alert["generatorURL"], "http://spark-1:9942/");
        let time = |name: &str| alert[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        assert!(time("endsAt") > time("startsAt"));
        let decision = last(server, "UmawardenDecision").unwrap();
        assert_eq!(decision["labels"]["decision"], "act");
        assert_eq!(decision["labels"]["rule"], "Always");
        daemon.wait_until("counted", |daemon| {
            daemon.metrics().get(&of("sent_alerts_total", server.port)) >= Some(&3.0)
        });
        assert_eq!(daemon.metric(&of("up", server.port)), 1.0);
        assert_eq!(daemon.metric(&of("posts_failed_total", server.port)), 0.0);
    }
    // A reload that removes the rule ends its alert.
    node.write_rules("groups: []\n");
    assert_eq!(daemon.post("/-/reload").0, 200);
    daemon.wait_until("posting the end", |_| {
        let alert = last(&one, "Always").unwrap();
        let ends = alert["endsAt"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        ends <= jiff::Timestamp::now()
    });
    daemon.wait_until("counted", |daemon| {
        daemon.metric("uma_alertmanager_alerts{state=\"resolved\"}") >= 1.0
    });
}

#[test]
fn a_failing_alertmanager_blocks_no_other_and_gets_its_alerts_when_it_is_back() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let good = fine();
    let bad = [
        FakeServer::start(|_| Reply::Hang),
        FakeServer::start(|_| Reply::Answer(500, "no".to_owned())),
        FakeServer::start(|_| Reply::Answer(400, "bad \u{1b}[31m".to_owned())),
        FakeServer::start(|_| {
            Reply::Raw("HTTP/1.1 302 x\r\nlocation: http://127.0.0.1:1/\r\n\r\n".to_owned())
        }),
        FakeServer::start(|_| Reply::Raw("\0\u{1}garbage".to_owned())),
        FakeServer::start(|_| Reply::Close),
    ];
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let recovering = FakeServer::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => Reply::Close,
        _ => Reply::Answer(200, String::new()),
    });
    let all = bad.iter().chain([&good, &recovering]);
    let servers: Vec<String> = all.map(|server| url(server.port)).collect();
    let config = config(&node, &servers, "  resend_every: 1s\n");
    let daemon = node.start(&[&config]);
    daemon.wait_until("reported", |_| last(&good, "Always").is_some());
    for server in &bad {
        let failed = of("posts_failed_total", server.port);
        daemon.wait_until("tried again", |daemon| daemon.metric(&failed) >= 2.0);
        assert_eq!(daemon.metric(&of("up", server.port)), 0.0);
        assert_eq!(daemon.metric(&of("sent_alerts_total", server.port)), 0.0);
        let succeeded = of("last_success_timestamp_seconds", server.port);
        assert!(!daemon.metrics().contains_key(&succeeded), "it never has");
    }
    let up = of("up", recovering.port);
    daemon.wait_until("back", |daemon| daemon.metrics().get(&up) == Some(&1.0));
    assert_eq!(daemon.metric(&of("posts_failed_total", recovering.port)), 2.0);
    assert_eq!(daemon.get("/-/healthy").0, 200);
    let (_, log) = daemon.terminate();
    assert!(log.contains("Alertmanager accepts alerts again") && !log.contains('\u{1b}'), "{log}");
    assert!(log.contains("it answers 302") && log.contains("name the address"), "{log}");
    // Each failure is logged once, and not at every attempt.
    let failures = log.lines().filter(|line| line.contains("cannot send alerts")).count();
    assert_eq!(failures, bad.len() + 1, "{log}");
}

#[test]
fn credentials_are_read_from_their_files_each_time_and_never_shown() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let keys: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
    let seen = Arc::clone(&keys);
    let server = FakeServer::start(move |request| {
        seen.lock().unwrap().push(request.key.clone());
        Reply::Answer(401, String::new())
    });
    let basic = fine();
    let (token, password) = (node.path("token"), node.path("password"));
    write_secret(&token, "first-secret\n");
    write_secret(&password, "opensesame\n");
    let servers = [
        format!(
            "{{url: 'http://127.0.0.1:{}/am', bearer_token_file: {}}}",
            server.port,
            token.display()
        ),
        format!(
            "{{url: 'http://127.0.0.1:{}', username: Aladdin, password_file: {}}}",
            basic.port,
            password.display()
        ),
    ];
    let config = config(&node, &servers, "  resend_every: 1s\n");
    let daemon = node.start(&[&config]);
    let has = |key: &str| keys.lock().unwrap().iter().any(|seen| seen.as_deref() == Some(key));
    daemon.wait_until("queried with the first key", |_| has("Bearer first-secret"));
    write_secret(&token, "second-secret");
    daemon.wait_until("queried with the new key", |_| has("Bearer second-secret"));
    fs::remove_file(&token).unwrap();
    let key_sent_to =
        |server: &FakeServer| server.requests().first().and_then(|request| request.key.clone());
    daemon.wait_until("reported", |_| key_sent_to(&basic).is_some());
    assert_eq!(key_sent_to(&basic).unwrap(), "Basic QWxhZGRpbjpvcGVuc2VzYW1l");
    let path = &server.requests()[0].path;
    assert_eq!(path, "/am/api/v2/alerts");
    let (_, log) = daemon.terminate();
    assert!(log.contains("401") && log.contains("credentials"), "{log}");
    assert!(!log.contains("secret") && !log.contains("opensesame"), "{log}");
}

#[test]
fn alerts_go_over_tls_only_to_trusted_servers() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    write_secret(node.path("token"), "s3cret\n");
    let (believed, stranger) = (fine(), fine());
    let server = |server: &FakeServer, authority: &str| {
        let (port, ca) = (tls_front::before(server.port), tls_front::fixture(authority));
        let token = node.path("token");
        let (ca, token) = (ca.display(), token.display());
        format!("{{url: 'https://localhost:{port}', ca_file: {ca}, bearer_token_file: {token}}}")
    };
    let servers = [server(&believed, "authority.pem"), server(&stranger, "other.pem")];
    let daemon = node.start(&[&config(&node, &servers, "  resend_every: 1s\n")]);
    daemon.wait_until("reported", |_| last(&believed, "Always").is_some());
    assert_eq!(believed.requests()[0].key.as_deref(), Some("Bearer s3cret"));
    daemon.wait_until("logged", |daemon| daemon.log().contains("invalid peer certificate"));
    assert!(stranger.requests().is_empty(), "neither alerts nor the token");
    let (_, log) = daemon.terminate();
    assert!(log.contains("as ca_file") && !log.contains("s3cret"), "{log}");
}

#[test]
fn refused_alerts_do_not_block_those_of_other_posts() {
    let node = Node::new("gb10-4k");
    let rule = |number: usize| {
        format!(
            "  - {{alert: A{number:03}, expr: uma_memory_free_bytes >= 0, labels: {{severity: info}}}}\n"
        )
    };
    let rules: String = (0..150).map(rule).collect();
    node.write_rules(&format!("groups:\n- name: g\n  rules:\n{rules}"));
    // It rejects every post with the first alert in it.
    let server = FakeServer::start(|request| match request.body.contains("\"A000\"") {
        true => Reply::Answer(400, "A000 is not to its taste".to_owned()),
        false => Reply::Answer(200, String::new()),
    });
    let config = config(&node, &[url(server.port)], "  resend_every: 1s\n");
    let daemon = node.start(&[&config]);
    daemon.wait_until("posting the others", |daemon| {
        last(&server, "A149").is_some()
            && daemon.metrics().get(&of("sent_alerts_total", server.port)) >= Some(&22.0)
    });
    let refused =
        server.requests().iter().filter(|request| request.body.contains("\"A000\"")).count();
    assert!(refused >= 1);
    daemon.wait_until("counted", |daemon| {
        daemon.metric(&of("posts_failed_total", server.port)) >= 1.0
    });
    // And it is posted again, as after any failure.
    daemon.wait_until("tried again", |_| {
        let requests = server.requests();
        requests.iter().filter(|request| request.body.contains("\"A000\"")).count() > refused
    });
    let (_, log) = daemon.terminate();
    assert!(log.contains("it answers 400") && log.contains("not to its taste"), "{log}");
}
