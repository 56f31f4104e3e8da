//! The HTTP server with a fake snapshot.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod gate;
pub mod hoards;
mod live;
mod orders;
pub mod page;
mod probes;
mod received;
mod samples;
pub mod server;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use serde_json::json;
use umawarden::exports::{
    ClientLimits, Page, PageRequest, PageStart, Queries, ReloadFailure, bind, check_telemetry_path,
};
use umawarden::model::OrderedBy;

use crate::daemon::control_client;
use server::{
    PATIENCE, Server, blocked_journal, made_up_status, moment, no_queries, parse, start, start_with,
};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[test]
fn metrics_are_served_in_the_requested_format() {
    let server = start();
    let plain = server.get("/metrics");
    assert_eq!((plain.status, plain.headers["content-type"].as_str()), (200, TEXT));
    assert_eq!(plain.headers["vary"], "Accept, Accept-Encoding");
    assert_eq!(plain.headers["x-content-type-options"], "nosniff");
    assert!(!plain.headers.contains_key("content-encoding"));
    assert!(
        plain.text().contains("# TYPE uma_memory_free_bytes gauge\numa_memory_free_bytes 4096\n")
    );
    assert!(plain.text().contains("made_up{text=\"<b>\\\"\\\\\\n\"} +Inf\n"), "{}", plain.text());

    let open =
        server.request("GET", "/metrics", &["Accept: application/openmetrics-text;version=1.0.0"]);
    assert_eq!(open.headers["content-type"], OPENMETRICS);
    assert!(open.text().ends_with("# EOF\n"));

    let packed = server.request("GET", "/metrics", &["Accept-Encoding: gzip"]);
    assert_eq!(packed.headers["content-encoding"], "gzip");
    assert_eq!(packed.headers["content-type"], TEXT);
    let mut unpacked = String::new();
    GzDecoder::new(packed.body.as_slice()).read_to_string(&mut unpacked).unwrap();
    assert_eq!(unpacked, plain.text());

    for query in ["name[]=uma_memory_free_bytes", "x=y&name%5B%5D=uma_memory_free_bytes&name[]=z"] {
        let alone = server.get(&format!("/metrics?{query}"));
        let alone = alone.text();
        assert_eq!(alone.lines().count(), 3, "{alone}");
        assert!(alone.ends_with("\numa_memory_free_bytes 4096\n"), "{alone}");
    }
    assert!(server.get("/metrics?name[]=nowhere").body.is_empty());

    let head = server.request("HEAD", "/metrics", &[]);
    assert_eq!(head.headers["content-length"], plain.body.len().to_string());
    assert!(head.status == 200 && head.body.is_empty());
    server.end();
}

#[test]
fn a_client_scrapes_several_times_over_one_connection() {
    let server = start();
    let client = crate::daemon::http_client().build().unwrap();
    for _ in 0..3 {
        let url = format!("http://{}/metrics", server.address);
        let response = client.get(url).send().unwrap();
        assert_eq!(response.headers()["content-type"], TEXT);
        assert!(response.text().unwrap().contains("uma_memory_free_bytes 4096"));
    }
    server.end();
}

#[test]
fn a_reload_reports_its_result() {
    let mut server = start();
    drop(server.operator());
    let socket = server.control_socket.clone();
    let reload = move |headers: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let request = "POST /-/reload HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
        stream.write_all(format!("{request}{headers}\r\n").as_bytes()).unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        parse(&response)
    };
    for (result, status, text) in [
        (Ok("3 rules in 1 group".to_owned()), 200, "3 rules in 1 group\n"),
        (Err("memory.yaml:3:5: no\n".to_owned()), 500, "failed to reload: memory.yaml:3:5: no\n"),
    ] {
        let send = reload.clone();
        let client = std::thread::spawn(move || send(""));
        let request = server.reloads.blocking_recv().unwrap();
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(request.by, OrderedBy::Local { uid });
        request.answer.send(result).unwrap();
        let response = client.join().unwrap();
        assert_eq!((response.status, response.text()), (status, text));
    }
    let get = server.get("/-/reload");
    assert_eq!((get.status, get.headers["allow"].as_str()), (405, "POST"));
    let refused = server.request("POST", "/-/reload", &[]);
    assert_eq!((refused.status, refused.headers.get("www-authenticate")), (403, None));
    assert_eq!(reload("Content-Length: 999999\r\n").status, 413);
    assert!(server.reloads.try_recv().is_err(), "refused requests reload nothing");
    server.end();
}

#[test]
fn reloads_are_served_one_at_a_time() {
    let mut server = start();
    drop(server.operator());
    let both: Vec<_> = (0..2)
        .map(|_| {
            let client = control_client(&server.control_socket);
            std::thread::spawn(move || client.post("http://node/-/reload").send().unwrap().status())
        })
        .collect();
    let first = server.reloads.blocking_recv().unwrap();
    assert!(server.reloads.try_recv().is_err(), "the second waits for the first");
    first.answer.send(Ok("first".to_owned())).unwrap();
    server.reloads.blocking_recv().unwrap().answer.send(Ok("second".to_owned())).unwrap();
    both.into_iter().for_each(|client| assert_eq!(client.join().unwrap(), 200));
    server.end();
}

#[test]
fn other_methods_and_paths_are_refused_helpfully() {
    let server = start();
    for path in ["/metrics", "/", "/api/v1/status", "/-/healthy"] {
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"] {
            let response = server.request(method, path, &[]);
            assert_eq!(response.status, 405, "{method} {path}");
            assert!(response.headers["allow"].contains("GET"), "{method} {path}");
        }
    }
    let hostile =
        ["/nope", "/metrics/", "/%2e%2e/etc/passwd", "/../../etc/passwd", "//", "/%3Cb%3E"];
    for path in hostile {
        let response = server.get(path);
        assert_eq!(response.status, 404, "{path}");
        assert_eq!(response.headers["content-type"], "text/plain; charset=utf-8");
        assert_eq!(response.headers["x-content-type-options"], "nosniff");
        assert!(response.text().contains("/metrics") && response.text().contains("/-/healthy"));
    }
    server.end();
}

#[test]
fn errors_of_the_api_are_json() {
    let server = start();
    let long = format!("/api/v1/events?kind={}", "a".repeat(5000));
    for (method, path, headers, status, kind) in [
        ("GET", "/api/v1/nope", &[][..], 404, "not_found"),
        ("GET", "/api/v1/status/", &[], 404, "not_found"),
        ("PUT", "/api/v1/status", &[], 405, "method_not_allowed"),
        ("POST", "/api/v1/silences", &["Content-Length: 999999"], 413, "bad_data"),
        ("GET", long.as_str(), &[], 414, "bad_data"),
    ] {
        let response = server.request(method, path, headers);
        assert_eq!(response.status, status, "{method} {path}");
        assert_eq!(response.headers["content-type"], "application/json", "{method} {path}");
        let problem = response.json();
        assert_eq!((&problem["status"], &problem["errorType"]), (&json!("error"), &json!(kind)));
        assert!(!problem["error"].as_str().unwrap().is_empty());
    }
    server.end();
}

#[test]
fn a_failed_reload_is_shown_until_one_succeeds() {
    let server = start();
    assert_eq!(server.get("/api/v1/status").json()["data"]["reload_failure"], json!(null));
    assert!(!server.get("/").text().contains("the last reload failed"));
    let why = "my.yaml:3:5: <unknown> key".to_owned();
    let failure = ReloadFailure { at: moment(5).utc, why: why.clone() };
    server.reload_failure.store(Some(Arc::new(failure)));
    let failure = &server.get("/api/v1/status").json()["data"]["reload_failure"];
    assert_eq!(*failure, json!({"time": "2026-11-18T11:06:40.000Z", "error": why}));
    let page = server.get("/");
    let page = page.text();
    assert!(page.contains("the last reload failed"), "{page}");
    assert!(page.contains("my.yaml:3:5: &lt;unknown&gt; key"), "{page}");
    server.end();
}

#[test]
fn a_trailing_slash_gets_a_hint() {
    let server = start();
    let response = server.get("/metrics/");
    assert!(response.text().contains("Without the trailing slash it is: /metrics\n"));
    let response = server.get("/nope");
    assert!(response.text().starts_with("404 page not found. The metrics are at /metrics."));
    server.end();
}

#[test]
fn an_unknown_rule_is_an_error_and_not_an_empty_list() {
    let decisions = |request: PageRequest| {
        let is_old = request.rule.as_deref() == Some("memory/Gone") && request.since.is_none();
        let items = if is_old { vec![json!({"id": 1})] } else { Vec::new() };
        Ok(Page { items, more: false })
    };
    let queries = Queries { decisions: Box::new(decisions), ..no_queries() };
    let server = start_with(ClientLimits::default(), queries);
    let rules = server.get("/api/v1/rules").json();
    let known = rules["data"]["groups"][0]["rules"][0]["name"].as_str().unwrap().to_owned();
    for quiet in [known.clone(), format!("memory/{known}"), "memory/Gone&since=5".to_owned()] {
        let response = server.get(&format!("/api/v1/decisions?rule={quiet}"));
        assert_eq!(response.status, 200, "{quiet}");
        assert_eq!(response.json()["data"]["decisions"], json!([]));
    }
    let slip = format!("{known}x");
    let response = server.get(&format!("/api/v1/decisions?rule={slip}"));
    assert_eq!(response.status, 400);
    let problem = response.json()["error"].as_str().unwrap().to_owned();
    assert!(problem.contains(&format!("did you mean \"{known}\"?")), "{problem}");
    assert_eq!(server.get("/api/v1/decisions?rule=quite+another").status, 400);
    server.end();
}

#[test]
fn every_listed_path_is_served() {
    let server = start();
    let listed = server.get("/nope");
    let paths: Vec<&str> =
        listed.text().lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert!(paths.len() >= 10, "{paths:?}");
    // The stream of pictures has no end; `live` tests it.
    for path in paths.into_iter().filter(|path| *path != "/api/v1/live") {
        assert_ne!(server.get(path).status, 404, "{path}");
    }
    server.end();
}

#[test]
fn oversized_and_malformed_requests_are_refused() {
    let server = start();
    let long = "a".repeat(5000);
    assert_eq!(server.get(&format!("/{long}")).status, 414);
    assert_eq!(server.get(&format!("/api/v1/events?kind={long}")).status, 414);
    let huge = format!("X-Huge: {}", "a".repeat(200_000));
    assert_eq!(server.request("GET", "/metrics", &[&huge]).status, 431);
    let many: Vec<String> = (0..500).map(|number| format!("X-{number}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(server.request("GET", "/metrics", &many).status, 431);
    assert_eq!(parse(&server.raw(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")).status, 400);
    assert_eq!(parse(&server.raw(b"GET /metrics\0 HTTP/1.1\r\n\r\n")).status, 400);
    assert_eq!(server.get("/metrics").status, 200, "the others are served on");
    server.end();
}

#[test]
fn status_lists_sources_rules_and_failed_series() {
    let server = start();
    let response = server.get("/api/v1/status").json();
    assert_eq!(response["status"], "success");
    let data = &response["data"];
    assert_eq!(data["version"], umawarden::exports::VERSION);
    assert_eq!((&data["mode"], &data["uptime_seconds"]), (&json!("observe"), &json!(90.0)));
    assert_eq!((&data["failed"], &data["unsupported"]), (&json!(["gone"]), &json!(["never"])));
    assert_eq!(data["sources"][0]["source"], "meminfo");
    assert_eq!(data["rules"][0]["alerts"][0]["value"], "+Inf");
    assert_eq!(data["rules"][1]["unknown"], json!(["gone: failed"]));
    server.end();
}

#[test]
fn rules_and_alerts_have_the_shape_of_prometheus() {
    let server = start();
    let rules = server.get("/api/v1/rules").json();
    let group = &rules["data"]["groups"][0];
    assert_eq!((&group["name"], &group["file"]), (&json!("memory"), &json!("shipped:memory.yaml")));
    assert_eq!(group["interval"], 0.1);
    let [low, blind] = &group["rules"].as_array().unwrap()[..] else { panic!("{group}") };
    assert_eq!(
        (&low["type"], &low["state"], &low["health"]),
        (&json!("alerting"), &json!("firing"), &json!("ok"))
    );
    assert_eq!(
        (&blind["health"], &blind["lastError"]),
        (&json!("unknown"), &json!("gone: failed"))
    );
    assert_eq!((&low["duration"], &low["keepFiringFor"]), (&json!(0.3), &json!(2.0)));
    assert_eq!(low["labels"], json!({"severity": "{{ \"warning\" }}"}));
    assert_eq!(low["annotations"], json!({"summary": "{{ $value }} left"}));
    let alerts = server.get("/api/v1/alerts").json();
    assert_eq!(alerts["data"]["alerts"], low["alerts"]);
    assert_eq!(alerts["data"]["alerts"][0]["labels"], json!({"alertname": "Low"}));
    server.end();
}

#[test]
fn the_journal_is_paged_as_requested() {
    let echo = |request: PageRequest| {
        let start = match request.start {
            PageStart::Newest => json!("newest"),
            PageStart::Before(id) => json!({ "before": id }),
            PageStart::After(id) => json!({ "after": id }),
        };
        let item = json!({"id": 7, "limit": request.limit, "start": start, "rule": request.rule});
        Ok(Page { items: vec![item], more: true })
    };
    let queries = Queries { events: Box::new(echo), decisions: Box::new(echo), ..no_queries() };
    let server = start_with(ClientLimits::default(), queries);
    let page = server.get("/api/v1/events?limit=5&before=8").json();
    assert_eq!(page["data"]["more"], true);
    assert_eq!(page["data"]["events"][0]["limit"], 5);
    assert_eq!(page["data"]["events"][0]["start"], json!({"before": 8}));
    let page = server.get("/api/v1/decisions?rule=memory%2FLow").json();
    assert_eq!(page["data"]["decisions"][0]["rule"], "memory/Low");
    for (target, named) in [
        ("/api/v1/events?limit=0", "limit"),
        ("/api/v1/events?rule=x", "rule"),
        ("/api/v1/decisions?since=%00", "since"),
        ("/api/v1/decisions?&&=&%ff=1", "unknown"),
    ] {
        let response = server.get(target);
        assert_eq!(response.status, 400, "{target}");
        let problem = response.json();
        assert_eq!(
            (&problem["status"], &problem["errorType"]),
            (&json!("error"), &json!("bad_data"))
        );
        assert!(problem["error"].as_str().unwrap().contains(named), "{problem}");
    }
    server.end();
}

#[test]
fn a_slow_or_failing_journal_affects_no_other_route() {
    let (journal, queries) = blocked_journal();
    let limits = ClientLimits { query: Duration::from_millis(50), ..ClientLimits::default() };
    let server = start_with(limits, queries);
    let late = server.get("/api/v1/events");
    assert_eq!((late.status, &late.json()["errorType"]), (503, &json!("unavailable")));
    assert_eq!(server.get("/metrics").status, 200);
    drop(journal.release);
    server.end();

    let broken = Box::new(|_| panic!("a bug in the journal"));
    let queries = Queries { decisions: broken, ..no_queries() };
    let server = start_with(ClientLimits::default(), queries);
    assert_eq!(server.get("/api/v1/decisions").status, 500);
    assert!(server.get("/").text().contains("the journal cannot be read"));
    let down = server.get("/api/v1/events");
    assert_eq!(down.status, 503);
    assert!(down.json()["error"].as_str().unwrap().contains("disk full"));
    server.end();
}

#[test]
fn a_client_with_a_slow_request_is_cut_off() {
    let limits =
        ClientLimits { request_header: Duration::from_millis(100), ..ClientLimits::default() };
    let server = start_with(limits, no_queries());
    let mut slow = server.connect();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nX-Slow: ").unwrap();
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
    server.end();
}

#[test]
fn a_client_that_does_not_read_its_response_is_cut_off() {
    let large = |_: PageRequest| Ok(Page { items: vec![json!("x".repeat(64 << 20))], more: false });
    let queries = Queries { events: Box::new(large), decisions: Box::new(large), ..no_queries() };
    let limits = ClientLimits {
        response: Duration::from_millis(100),
        query: PATIENCE,
        ..ClientLimits::default()
    };
    let server = start_with(limits, queries);
    let mut greedy = server.connect();
    greedy.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut first = [0; 1];
    greedy.read_exact(&mut first).unwrap();
    // The client reads nothing more until the server has given up.
    let began = Instant::now();
    while !is_closed(&greedy) {
        assert!(began.elapsed() < PATIENCE, "the server still waits");
        std::thread::yield_now();
    }
    let mut rest = Vec::new();
    let _ = greedy.read_to_end(&mut rest);
    assert!(rest.len() < 64 << 20, "the whole response was received");
    server.end();
}

/// Whether the server has closed its side of the connection, according to /proc/net/tcp.
fn is_closed(stream: &TcpStream) -> bool {
    let port = |address: SocketAddr| format!(":{:04X}", address.port());
    let client = port(stream.local_addr().unwrap());
    let server = port(stream.peer_addr().unwrap());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let mut rows = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    !rows.any(|row| row[1].ends_with(&server) && row[2].ends_with(&client) && row[3] == "01")
}

#[test]
fn a_client_that_hoards_connections_keeps_out_only_itself() {
    let limits = ClientLimits { connections: 20, ..ClientLimits::default() };
    let server = start_with(limits, no_queries());
    let mut hoard: Vec<TcpStream> = (0..200).map(|_| server.connect()).collect();
    for stream in &mut hoard {
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
    }
    assert_eq!(server.get("/metrics").status, 200);
    server.end();
}

#[test]
fn hundreds_of_concurrent_connections_are_all_served() {
    let server = start();
    let from = |number: u8| hoards::connect_from(1 + number / 50, server.address);
    let mut streams: Vec<TcpStream> = (0..250).map(from).collect();
    for stream in &mut streams {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    }
    for mut stream in streams {
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        assert_eq!(parse(&response).status, 200);
    }
    server.end();
}

#[test]
fn shutdown_completes_open_requests_and_closes_idle_connections() {
    let (journal, queries) = blocked_journal();
    let server = start_with(ClientLimits::default(), queries);
    let mut idle = server.connect();
    idle.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let mut open = server.connect();
    open.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    journal.entered.recv().unwrap();

    server.stop.send(true).unwrap();
    assert_eq!(idle.read(&mut [0; 1]).unwrap_or(0), 0);
    assert!(TcpStream::connect(server.address).is_err(), "the port is closed first");
    journal.release.send(()).unwrap();
    let mut response = Vec::new();
    open.read_to_end(&mut response).unwrap();
    assert_eq!(parse(&response).status, 200);
    server.thread.join().unwrap().unwrap();
}

#[test]
fn a_request_in_progress_is_not_cut_off_for_a_new_connection() {
    let (journal, queries) = blocked_journal();
    let limits = ClientLimits { connections: 2, query: PATIENCE, ..ClientLimits::default() };
    let server = start_with(limits, queries);
    let mut oldest = server.connect();
    let request = b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    oldest.write_all(request).unwrap();
    journal.entered.recv().unwrap();
    let hoard: Vec<TcpStream> = (0..50).map(|_| server.connect()).collect();
    assert_eq!(server.get("/metrics").status, 200);
    journal.release.send(()).unwrap();
    let mut response = Vec::new();
    oldest.read_to_end(&mut response).unwrap();
    assert_eq!(parse(&response).status, 200);
    drop(hoard);
    server.end();
}

#[test]
fn shutdown_does_not_wait_for_an_endless_request() {
    let server = start();
    let mut stuck = server.operator();
    // This reload gets no response.
    stuck.write_all(b"POST /-/reload HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let Server { stop, thread, mut reloads, .. } = server;
    let _pending = reloads.blocking_recv().unwrap();
    let began = Instant::now();
    stop.send(true).unwrap();
    thread.join().unwrap().unwrap();
    assert!(
        began.elapsed() < ClientLimits::default().reload,
        "the shutdown waited for the reload's deadline"
    );
}

#[test]
fn an_address_in_use_is_reported_with_its_process() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = taken.local_addr().unwrap();
    let error = bind(&[address]).unwrap_err().to_string();
    let own = format!("pid {}", std::process::id());
    for part in [&address.to_string(), &own, "--web.listen-address"] {
        assert!(error.contains(part), "{error}");
    }
    let error = bind(&["192.0.2.1:9942".parse().unwrap()]).unwrap_err().to_string();
    assert!(error.contains("192.0.2.1:9942") && error.contains("ip addr"), "{error}");
}

#[test]
fn the_unspecified_address_serves_ipv4_as_well() {
    let listeners = bind(&["[::]:0".parse().unwrap()]).unwrap();
    let port = listeners[0].local_addr().unwrap().port();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
}

#[test]
fn an_invalid_telemetry_path_is_refused() {
    for path in ["/metrics", "/", "/a/b.c-d_e~1"] {
        assert_eq!(check_telemetry_path(path), Ok(()), "{path}");
    }
    for path in ["", "metrics", "/{x}", "/*rest", "/:id", "/a b", "/a?b", "/-/healthy", "/ü"] {
        assert!(check_telemetry_path(path).is_err(), "{path}");
    }
}
