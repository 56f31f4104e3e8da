//! Posts of an Alertmanager: taken whole, or refused in a way that says whether to post again.

use serde_json::json;
use umawarden::model::ReceivedAlerts;

use super::server::{Server, order_request, parse, start};

const WEBHOOK: &str = "/api/v1/alerts/webhook";
const REAL: &str = include_str!("../../fixtures/alertmanager/webhook.json");

fn taken(server: &Server) -> Vec<ReceivedAlerts> {
    let mut posts = Vec::new();
    assert!(!server.received.take(usize::MAX, |post| posts.push(post)));
    posts
}

#[test]
fn a_post_waits_for_the_loop_and_is_answered_at_once() {
    let server = start();
    let answer = server.order("POST", WEBHOOK, REAL);
    assert_eq!(answer.status, 200);
    let expected = json!({"status": "success", "data": {"alerts": 2}, "warnings": []});
    assert_eq!(answer.json(), expected);
    let posts = taken(&server);
    assert_eq!((posts.len(), posts[0].alerts.len()), (1, 2));
    let odd = json!({"truncatedAlerts": 3, "alerts": [{"status": "firing", "labels": {"a.b": "c"},
        "startsAt": "2026-11-22T10:00:00Z"}]});
    let answer = server.order("POST", WEBHOOK, &odd.to_string()).json();
    let warnings = answer["warnings"].to_string();
    assert!(warnings.contains("1 label omitted") && warnings.contains("3 alerts omitted"));
    assert_eq!(taken(&server).len(), 1);
    assert_eq!(server.get("/api/v1/alerts/received").json()["data"], json!({"alerts": []}));
    server.end();
}

#[test]
fn what_is_wrong_with_a_post_is_told_and_nothing_of_it_is_taken() {
    let server = start();
    let half = REAL.replace("2026-11-22T09:00:15.123Z", "yesterday");
    for (body, status, told) in [
        ("", 400, "must be a JSON object"),
        ("{\"alerts\": [", 400, "not JSON: EOF"),
        (&*half, 400, "alerts[1].startsAt"),
        (&*format!("{{\"alerts\": []{}}}", " ".repeat(1 << 20)), 413, "1024 KiB"),
    ] {
        let answer = server.order("POST", WEBHOOK, body);
        assert_eq!(answer.status, status, "{told}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(told), "{error}");
        assert!(!answer.headers.contains_key("retry-after"), "to post it again does not help");
    }
    let many = json!({"alerts": vec![json!({"status": "firing", "labels": {},
        "startsAt": "2026-11-22T10:00:00Z"}); 2_001]});
    let answer = server.order("POST", WEBHOOK, &many.to_string());
    assert_eq!(answer.status, 413);
    assert!(answer.json()["error"].as_str().unwrap().contains("max_alerts"));
    // One that does not say how long it is.
    let chunk = "a".repeat(65_536);
    let mut request =
        format!("POST {WEBHOOK} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    (0..17).for_each(|_| request.push_str(&format!("10000\r\n{chunk}\r\n")));
    request.push_str("0\r\n\r\n");
    assert_eq!(parse(&server.raw_order(request.as_bytes())).status, 413);
    assert!(taken(&server).is_empty());
    assert_eq!(server.received.refused(), [3, 3, 0]);
    server.end();
}

#[test]
fn without_room_it_is_to_be_posted_again_and_at_the_end_elsewhere() {
    let server = start();
    let body = r#"{"alerts": []}"#;
    let mut status = 200;
    let mut posted = 0;
    while status == 200 {
        status = server.order("POST", WEBHOOK, body).status;
        posted += 1;
        assert!(posted < 10_000, "it takes whatever comes");
    }
    let answer = server.order("POST", WEBHOOK, body);
    assert_eq!((answer.status, &*answer.headers["retry-after"]), (503, "5"));
    assert_eq!(taken(&server).len(), posted - 1, "what was promised is there");
    assert_eq!(server.order("POST", WEBHOOK, body).status, 200);
    server.received.close();
    assert_eq!(server.order("POST", WEBHOOK, body).status, 503);
    let mut rest = 0;
    assert!(!server.received.take_rest(10, |_| rest += 1));
    assert_eq!(rest, 1, "what was promised is there");
    server.end();
}

#[test]
fn whoever_may_only_look_posts_nothing() {
    let server = start();
    for body in [REAL, "", "x"] {
        assert_eq!(parse(&server.raw(&order_request("POST", WEBHOOK, body))).status, 403);
    }
    assert_eq!(server.ask("GET", WEBHOOK, &[]).status, 405);
    assert!(taken(&server).is_empty());
    server.end();
}
