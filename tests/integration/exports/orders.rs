//! Orders: accepted over the control socket, refused everywhere else.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use umawarden::exports::{
    ClientLimits, OrderDone, OrderKind, OrderPeriod, OrderRefused, OrderRequest, RuleChoice,
};
use umawarden::model::{
    DecisionId, Killer, LaunchedEngine, OrderedBy, Pause, ProcessId, RuleId, RuleSelector,
};
use umawarden::policy::status::{GuardStatus, Status};

use super::server::{
    PATIENCE, Response, Server, made_up_status, no_queries, order_request, parse, start, start_with,
};

const DEATH: &str = r#"{"who": {"name": "chat"}, "exit": {"ended_by": "code", "code": 0},
    "ended": "2026-11-22T10:00:00Z", "lived_seconds": 5.5, "phase": "loading",
    "killer": {"by": "signal", "signal": 9}, "is_failure": true, "advice": []}"#;

/// Valid calls of all acting routes.
const ORDERS: [(&str, &str, &str); 10] = [
    ("POST", "/api/v1/silences", r#"{"rule": "Low", "duration": "1h"}"#),
    ("DELETE", "/api/v1/silences/1", ""),
    ("POST", "/api/v1/approvals/1", ""),
    ("DELETE", "/api/v1/approvals/1", ""),
    ("POST", "/api/v1/breakers/memory%2FLow/reset", ""),
    ("POST", "/api/v1/pause", ""),
    ("DELETE", "/api/v1/pause", ""),
    ("POST", "/api/v1/notes", r#"{"comment": "dropped caches by hand"}"#),
    ("PUT", "/api/v1/launches", r#"{"name": "chat", "pid": 4711, "start_ticks": 99}"#),
    ("POST", "/api/v1/deaths", DEATH),
];

const DENIAL: (&str, &str, &str) = ("DELETE", "/api/v1/approvals/7", r#"{"duration": "90m"}"#);

/// Sends an order that the daemon completes with `result`; returns its request and the response.
fn ordered(
    server: &mut Server,
    (method, target, body): (&str, &str, &str),
    result: Result<OrderDone, OrderRefused>,
) -> (OrderRequest, Response) {
    let mut stream = server.operator();
    stream.write_all(&order_request(method, target, body)).unwrap();
    let mut request = server.orders.blocking_recv().unwrap();
    let (closed, _) = tokio::sync::oneshot::channel();
    std::mem::replace(&mut request.answer, closed).send(result).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    (request, parse(&bytes))
}

#[test]
fn without_access_control_the_network_may_read_but_not_order() {
    let mut server = start();
    for (method, target, body) in ORDERS {
        for body in [body, "", "not JSON", &"x".repeat(10_000)] {
            let response = parse(&server.raw(&order_request(method, target, body)));
            assert_eq!(response.status, 403, "{method} {target}");
            let refusal = response.json();
            assert_eq!(refusal["errorType"], "forbidden");
            let text = refusal["error"].as_str().unwrap();
            let socket = server.control_socket.display().to_string();
            assert!(text.contains("umawarden command") && text.contains(&socket), "{text}");
        }
    }
    for path in ["silences", "approvals", "breakers", "pause"] {
        assert_eq!(server.get(&format!("/api/v1/{path}")).status, 200, "{path}");
    }
    assert!(server.orders.try_recv().is_err(), "no order was passed on");
    server.end();
}

#[test]
fn orders_over_the_control_socket_carry_the_user_given_by_the_kernel() {
    let mut server = start();
    let uid = rustix::process::getuid().as_raw();
    let lasts = OrderPeriod::For(Duration::from_secs(5400));
    let until = "2027-01-01T00:00:00Z".parse().unwrap();
    let low = RuleId { group: "memory".into(), alert: "Low".into() };
    let named = |name: &str| RuleChoice::Named(name.to_owned());
    let rule = RuleChoice::Selected(RuleSelector::Rule(low));
    for ((method, target, body), kind) in [
        (
            ("POST", "/api/v1/silences", r#"{"rule": "Low", "duration": "1h30m"}"#),
            OrderKind::Silence { rules: named("Low"), lasts },
        ),
        (
            ("POST", "/api/v1/silences", r#"{"rules": "all", "until": "2027-01-01T00:00:00Z"}"#),
            OrderKind::Silence {
                rules: RuleChoice::Selected(RuleSelector::All),
                lasts: OrderPeriod::Until(until),
            },
        ),
        (
            (
                "POST",
                "/api/v1/silences",
                r#" {"rules": {"rule": {"group": "memory", "alert": "Low"}}, "duration": "90m"}"#,
            ),
            OrderKind::Silence { rules: rule, lasts },
        ),
        (
            ("DELETE", "/api/v1/silences/18446744073709551615", ""),
            OrderKind::EndSilence { id: u64::MAX },
        ),
        (
            ("POST", "/api/v1/approvals/7", ""),
            OrderKind::Approve { decision: DecisionId(7), lasts: None },
        ),
        (
            ("POST", "/api/v1/approvals/7", r#"{"duration": "90m"}"#),
            OrderKind::Approve { decision: DecisionId(7), lasts: Some(lasts) },
        ),
        (DENIAL, OrderKind::Deny { decision: DecisionId(7), lasts: Some(lasts) }),
        (
            ("POST", "/api/v1/breakers/memory%2FLow/reset", "{}"),
            OrderKind::ResetBreaker { rules: named("memory/Low") },
        ),
        (("POST", "/api/v1/pause", "{}"), OrderKind::Pause),
        (("DELETE", "/api/v1/pause", ""), OrderKind::Resume),
    ] {
        let done = OrderDone { data: json!({"id": 5}), remarks: vec!["mind this".to_owned()] };
        let (request, response) = ordered(&mut server, (method, target, body), Ok(done));
        let by = OrderedBy::Local { uid };
        assert_eq!((request.kind, request.by), (kind, by), "{method} {target} {body}");
        assert_eq!((request.name, &*request.comment), (None, ""));
        assert_eq!(response.status, 200);
        let expected = json!({"status": "success", "data": {"id": 5}, "warnings": ["mind this"]});
        assert_eq!(response.json(), expected);
    }
    let words = r#"{"author": " Alice ", "comment": "a \"load\" – ü"}"#;
    let (request, _) =
        ordered(&mut server, ("POST", "/api/v1/pause", words), Ok(OrderDone::default()));
    assert_eq!(request.name.as_deref(), Some("Alice"));
    assert_eq!(request.comment, "a \"load\" – ü");
    let (request, _) = ordered(&mut server, ORDERS[7], Ok(OrderDone::default()));
    assert_eq!((request.kind, &*request.comment), (OrderKind::Note, "dropped caches by hand"));
    let mut stream = server.operator();
    stream.write_all(&order_request("POST", "/api/v1/notes", "{}")).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert_eq!(parse(&bytes).status, 422, "an empty note is refused");
    server.end();
}

#[test]
fn the_status_code_reports_the_result_of_an_order() {
    let mut server = start();
    for (refused, status, kind) in [
        (OrderRefused::NotFound("no such".to_owned()), 404, "not_found"),
        (OrderRefused::Conflict("already".to_owned()), 409, "conflict"),
        (OrderRefused::Unusable("until: is over".to_owned()), 422, "bad_data"),
        (OrderRefused::Failed("disk full".to_owned()), 503, "unavailable"),
    ] {
        let text = refused.to_string();
        let (_, response) = ordered(&mut server, ORDERS[5], Err(refused));
        assert_eq!(response.status, status);
        let response = response.json();
        assert_eq!((&response["errorType"], &response["error"]), (&json!(kind), &json!(text)));
    }
    server.end();
}

#[test]
fn invalid_launch_and_death_reports_are_refused_as_a_whole() {
    let mut server = start();
    let (request, response) = ordered(&mut server, ORDERS[8], Ok(OrderDone::default()));
    assert_eq!(response.status, 200);
    let head = ProcessId { pid: 4711, start_ticks: 99 };
    assert_eq!(request.kind, OrderKind::Launched(LaunchedEngine { name: "chat".into(), head }));
    let (request, _) = ordered(&mut server, ORDERS[9], Ok(OrderDone::default()));
    let OrderKind::Died(report) = request.kind else { panic!("{request:?}") };
    assert_eq!(report.killer, Killer::Signal { signal: 9, sender: None });
    for (method, target, body, wrong) in [
        ("PUT", "/api/v1/launches", r#"{"name": "", "pid": 1, "start_ticks": 1}"#, "name"),
        ("PUT", "/api/v1/launches", r#"{"name": "a\u0007", "pid": 1, "start_ticks": 1}"#, "name"),
        ("PUT", "/api/v1/launches", r#"{"name": "a", "pid": 0, "start_ticks": 1}"#, "pid"),
        ("PUT", "/api/v1/launches", r#"{"name": "a", "pid": 1}"#, "start_ticks"),
        ("PUT", "/api/v1/launches", r#"{"name": "a", "pid": 1, "start_ticks": 1, "x": 1}"#, "x"),
        ("POST", "/api/v1/deaths", "{}", "who"),
        ("POST", "/api/v1/deaths", &DEATH.replace("chat", ""), "who.name"),
    ] {
        let mut stream = server.operator();
        stream.write_all(&order_request(method, target, body)).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let response = parse(&bytes);
        assert_eq!(response.status, 422, "{body}");
        assert!(response.json()["error"].as_str().unwrap().contains(wrong), "{body}");
    }
    assert!(server.orders.try_recv().is_err(), "no order was passed on");
    server.end();
}

#[test]
fn an_invalid_body_is_refused_with_its_wrong_field() {
    let mut server = start();
    let long = format!(r#"{{"rule": "Low", "duration": "1h", "comment": "{}"}}"#, "x".repeat(1025));
    let silences = [
        ("", 422, "rule"),
        ("[]", 400, "object"),
        ("\"all\"", 400, "object"),
        ("{", 400, "JSON"),
        (r#"{"rule": "Low", "duration": "1h"} x"#, 400, "JSON"),
        (r#"{"rule": "Low", "duration": "1h", "x": 1}"#, 422, "unknown field `x`"),
        (r#"{"rule": "Low", "rule": "High", "duration": "1h"}"#, 422, "duplicate field `rule`"),
        (r#"{"rule": "Low"}"#, 422, "duration"),
        (r#"{"duration": "1h"}"#, 422, "rule"),
        (r#"{"rule": "Low", "rules": "all", "duration": "1h"}"#, 422, "rule"),
        (r#"{"rules": "any", "duration": "1h"}"#, 422, "rules"),
        (r#"{"rules": {"alert": ""}, "duration": "1h"}"#, 422, "rules.alert"),
        (r#"{"rules": {"alert": "a", "rule": 1}, "duration": "1h"}"#, 422, "rules"),
        (r#"{"rules": {"rule": {"group": "g"}}, "duration": "1h"}"#, 422, "alert"),
        (
            r#"{"rules": {"rule": {"group": "g", "alert": "a", "b": 1}}, "duration": "1h"}"#,
            422,
            "rules.rule.b",
        ),
        (r#"{"rule": 5, "duration": "1h"}"#, 422, "rule: invalid type"),
        (r#"{"rule": "a\u0007", "duration": "1h"}"#, 422, "rule"),
        (r#"{"rule": "Low", "duration": "soon"}"#, 422, "duration"),
        (r#"{"rule": "Low", "duration": 3600}"#, 422, "duration"),
        (r#"{"rule": "Low", "duration": "0s"}"#, 422, "duration"),
        (r#"{"rule": "Low", "duration": "-1h"}"#, 422, "duration"),
        (r#"{"rule": "Low", "duration": "99999999999y"}"#, 422, "duration"),
        (r#"{"rule": "Low", "duration": "367d"}"#, 422, "duration"),
        (r#"{"rule": "Low", "until": "tomorrow"}"#, 422, "until"),
        (r#"{"rule": "Low", "until": "2027-01-01T00:00:00Z", "duration": "1h"}"#, 422, "duration"),
        (r#"{"rule": "Low", "duration": "1h", "author": "a\nb"}"#, 422, "author"),
        (r#"{"rule": "Low", "duration": "1h", "comment": "a\u001b[2J"}"#, 422, "comment"),
        (&long, 422, "comment"),
        ("{\"rule\": \"\u{fffd}", 400, "JSON"),
    ];
    for (body, status, named) in silences {
        let response = server.order("POST", "/api/v1/silences", body);
        assert_eq!(response.status, status, "{body}: {}", response.text());
        let refusal = response.json();
        assert_eq!(refusal["errorType"], "bad_data");
        assert!(refusal["error"].as_str().unwrap().contains(named), "{body}: {refusal}");
    }
    let not_utf8 = [order_request("POST", "/api/v1/pause", "{\"comment\": \"xx\"}")].concat();
    let not_utf8 = String::from_utf8(not_utf8).unwrap().replace("xx", "\u{80}").into_bytes();
    let not_utf8: Vec<u8> = not_utf8.into_iter().filter(|byte| *byte != 0xc2).collect();
    let mut padded = not_utf8;
    padded.extend(b" ");
    assert_eq!(parse(&server.raw_order(&padded)).status, 400);
    for (method, target, status) in [
        ("DELETE", "/api/v1/silences/x", 404),
        ("DELETE", "/api/v1/silences/-1", 404),
        ("DELETE", "/api/v1/silences/18446744073709551616", 404),
        ("POST", "/api/v1/approvals/%00", 404),
        ("POST", "/api/v1/breakers/a%0Ab/reset", 422),
        ("POST", "/api/v1/breakers/%ff/reset", 400),
        ("PUT", "/api/v1/pause", 405),
        ("GET", "/api/v1/silences/1", 405),
        ("POST", "/api/v1/silences/1", 405),
        ("POST", "/api/v1/nope", 404),
    ] {
        assert_eq!(server.order(method, target, "").status, status, "{method} {target}");
    }
    assert!(server.orders.try_recv().is_err(), "no order was passed on");
    server.end();
}

#[test]
fn an_oversized_or_slow_body_is_given_up() {
    let limits =
        ClientLimits { request_header: Duration::from_millis(300), ..ClientLimits::default() };
    let mut server = start_with(limits, no_queries());
    let long = format!("{{\"comment\": \"{}\"}}", "x".repeat(20 << 10));
    assert_eq!(server.order("POST", "/api/v1/pause", &long).status, 413);
    let head = "POST /api/v1/pause HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000)).repeat(8);
    assert_eq!(parse(&server.raw_order(format!("{head}{chunk}").as_bytes())).status, 413);
    let nested = "[".repeat(15 << 10);
    let nested = format!("{{\"comment\": {nested}");
    assert!([400, 422].contains(&server.order("POST", "/api/v1/pause", &nested).status));
    assert_eq!(parse(&server.raw_order(format!("{head}5\r\n{{").as_bytes())).status, 408);
    assert!(server.orders.try_recv().is_err(), "no order was passed on");
    server.end();
}

#[test]
fn an_unresponsive_daemon_is_reported_and_too_many_orders_are_refused() {
    let limits = ClientLimits { order: Duration::from_millis(200), ..ClientLimits::default() };
    let server = start_with(limits, no_queries());
    let hanging: Vec<UnixStream> = (0..4)
        .map(|_| {
            let mut stream = server.operator();
            stream.write_all(&order_request("POST", "/api/v1/pause", "")).unwrap();
            stream
        })
        .collect();
    for mut stream in hanging {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let response = parse(&bytes);
        assert_eq!(response.status, 504);
        assert!(response.json()["error"].as_str().unwrap().contains("umawarden pause"));
    }
    // The four orders still occupy the queue.
    let response = server.order("POST", "/api/v1/pause", "");
    assert_eq!(response.status, 503);
    assert!(response.json()["error"].as_str().unwrap().contains("too many orders"));
    let Server { orders, .. } = server;
    drop(orders);
}

#[test]
fn a_flood_from_the_network_keeps_no_operator_out() {
    let limits = ClientLimits { connections: 4, ..ClientLimits::default() };
    let mut server = start_with(limits, no_queries());
    let mut hoard: Vec<TcpStream> = (0..100).map(|_| server.connect()).collect();
    for stream in &mut hoard {
        // The server may have closed the connection.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
    }
    let (_, response) = ordered(&mut server, ORDERS[5], Ok(OrderDone::default()));
    assert_eq!(response.status, 200);
    drop(hoard);
    server.end();
}

#[test]
fn the_control_socket_is_private_recreated_if_removed_and_deleted_at_the_end() {
    let server = start();
    drop(server.operator());
    let path = server.control_socket.clone();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    fs::remove_file(&path).unwrap();
    drop(server.operator());
    assert_eq!(
        server.order("GET", "/metrics", "").status,
        200,
        "the control socket serves all routes"
    );
    let Server { stop, thread, folder, .. } = server;
    stop.send(true).unwrap();
    thread.join().unwrap().unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_server_works_without_its_control_socket() {
    let server = start();
    drop(server.operator());
    fs::remove_file(&server.control_socket).unwrap();
    fs::create_dir(&server.control_socket).unwrap();
    assert_eq!(server.get("/metrics").status, 200);
    fs::remove_dir(&server.control_socket).unwrap();
    drop(server.operator());
    server.end();
}

#[test]
fn shutdown_completes_a_running_order_and_does_not_wait_for_an_idle_operator() {
    let mut server = start();
    let idle = server.operator();
    let mut open = server.operator();
    open.write_all(&order_request("POST", "/api/v1/pause", "")).unwrap();
    let request = server.orders.blocking_recv().unwrap();
    let began = Instant::now();
    server.stop.send(true).unwrap();
    request.answer.send(Ok(OrderDone::default())).unwrap();
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert_eq!(parse(&bytes).status, 200);
    server.thread.join().unwrap().unwrap();
    assert!(began.elapsed() < PATIENCE);
    drop(idle);
}

#[test]
fn a_pause_is_shown_to_every_reader() {
    let server = start();
    let pause = Pause {
        author: "<b>alice</b> (uid 0)".to_owned(),
        comment: "hands <off>".to_owned(),
        since: Some("2026-11-21T00:00:00Z".parse().unwrap()),
    };
    let pause_data = json!({"paused": false, "pause": null});
    assert_eq!(server.get("/api/v1/pause").json()["data"], pause_data);
    let guard = Arc::new(GuardStatus { pause: Some(pause.clone()), ..GuardStatus::default() });
    server.status.store(Arc::new(Status { guard, ..made_up_status() }));
    let pause_data = json!({"paused": true, "pause": pause});
    assert_eq!(server.get("/api/v1/pause").json()["data"], pause_data);
    assert_eq!(server.get("/api/v1/status").json()["data"]["guard"]["pause"], pause_data["pause"]);
    let page = server.get("/");
    assert!(page.text().contains("hands &lt;off&gt;"), "{}", page.text());
    assert!(page.text().contains("&lt;b&gt;alice"), "{}", page.text());
    server.end();
}
