//! Posts of an Alertmanager: accepted as a whole, or refused with a status that allows or forbids a
//! retry.

use serde_json::json;
use umawarden::model::ReceivedAlerts;

use super::server::{Server, order_request, parse, start};

const WEBHOOK: &str = "/api/v1/alerts/webhook";
const REAL: &str = include_str!("../../fixtures/alertmanager/webhook.json");

fn take_posts(server: &Server) -> Vec<ReceivedAlerts> {
    let mut posts = Vec::new();
    assert!(!server.received.take(usize::MAX, |post| posts.push(post)));
    posts
}

#[test]
fn a_post_is_queued_for_the_loop_and_acknowledged_at_once() {
    let server = start();
    let response = server.order("POST", WEBHOOK, REAL);
    assert_eq!(response.status, 200);
    let expected = json!({"status": "success", "data": {"alerts": 2}, "warnings": []});
    assert_eq!(response.json(), expected);
    let posts = take_posts(&server);
    assert_eq!((posts.len(), posts[0].alerts.len()), (1, 2));
    let odd = json!({"truncatedAlerts": 3, "alerts": [{"status": "firing", "labels": {"a.b": "c"},
        "startsAt": "2026-11-22T10:00:00Z"}]});
    let response = server.order("POST", WEBHOOK, &odd.to_string()).json();
    let warnings = response["warnings"].to_string();
    assert!(warnings.contains("1 label omitted") && warnings.contains("3 alerts omitted"));
    assert_eq!(take_posts(&server).len(), 1);
    assert_eq!(server.get("/api/v1/alerts/received").json()["data"], json!({"alerts": []}));
    server.end();
}

#[test]
fn an_invalid_post_is_refused_as_a_whole_with_its_mistake() {
    let server = start();
    let half = REAL.replace("2026-11-22T09:00:15.123Z", "yesterday");
    for (body, status, expected) in [
        ("", 400, "must be a JSON object"),
        ("{\"alerts\": [", 400, "not JSON: EOF"),
        (&*half, 400, "alerts[1].startsAt"),
        (&*format!("{{\"alerts\": []{}}}", " ".repeat(1 << 20)), 413, "1024 KiB"),
    ] {
        let response = server.order("POST", WEBHOOK, body);
        assert_eq!(response.status, status, "{expected}");
        let error = response.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(expected), "{error}");
        assert!(!response.headers.contains_key("retry-after"), "a retry does not help");
    }
    let many = json!({"alerts": vec![json!({"status": "firing", "labels": {},
        "startsAt": "2026-11-22T10:00:00Z"}); 2_001]});
    let response = server.order("POST", WEBHOOK, &many.to_string());
    assert_eq!(response.status, 413);
    assert!(response.json()["error"].as_str().unwrap().contains("max_alerts"));
    // A body without a declared length.
    let chunk = "a".repeat(65_536);
    let mut request =
        format!("POST {WEBHOOK} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    (0..17).for_each(|_| request.push_str(&format!("10000\r\n{chunk}\r\n")));
    request.push_str("0\r\n\r\n");
    assert_eq!(parse(&server.raw_order(request.as_bytes())).status, 413);
    assert!(take_posts(&server).is_empty());
    assert_eq!(server.received.refused(), [3, 3, 0]);
    server.end();
}

#[test]
fn a_full_queue_requests_a_retry_and_a_closed_one_refuses() {
    let server = start();
    let body = r#"{"alerts": []}"#;
    let mut status = 200;
    let mut posted = 0;
    while status == 200 {
        status = server.order("POST", WEBHOOK, body).status;
        posted += 1;
        assert!(posted < 10_000, "the queue has no bound");
    }
    let response = server.order("POST", WEBHOOK, body);
    assert_eq!((response.status, &*response.headers["retry-after"]), (503, "5"));
    assert_eq!(take_posts(&server).len(), posted - 1, "acknowledged posts are kept");
    assert_eq!(server.order("POST", WEBHOOK, body).status, 200);
    server.received.close();
    assert_eq!(server.order("POST", WEBHOOK, body).status, 503);
    let mut rest = 0;
    assert!(!server.received.take_rest(10, |_| rest += 1));
    assert_eq!(rest, 1, "acknowledged posts are kept");
    server.end();
}

#[test]
fn a_reader_may_not_post_alerts() {
    let server = start();
    for body in [REAL, "", "x"] {
        assert_eq!(parse(&server.raw(&order_request("POST", WEBHOOK, body))).status, 403);
    }
    assert_eq!(server.request("GET", WEBHOOK, &[]).status, 405);
    assert!(take_posts(&server).is_empty());
    server.end();
}
