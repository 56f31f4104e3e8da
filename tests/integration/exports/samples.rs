//! Queries over HTTP, as Prometheus and Grafana send them.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::server::{PATIENCE, Server, order_request, parse, start, start_without_past};

/// The time of the made-up status.
fn data(server: &Server, target: &str) -> Value {
    let response = server.get(target);
    assert_eq!(response.status, 200, "{target}: {}", response.text());
    let body = response.json();
    assert_eq!(body["status"], "success", "{target}: {body}");
    body["data"].clone()
}

fn form(server: &Server, target: &str, form: &str) -> super::server::Response {
    let request = String::from_utf8(order_request("POST", target, form)).unwrap();
    let kind = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length:";
    parse(&server.raw(request.replacen("Content-Length:", kind, 1).as_bytes()))
}

#[test]
fn a_query_is_sent_in_the_address_or_as_a_form() {
    let server = start();
    let now = data(&server, "/api/v1/query?query=uma_memory_free_bytes");
    assert_eq!(now["resultType"], "vector");
    assert_eq!(now["result"][0]["metric"], json!({ "__name__": "uma_memory_free_bytes" }));
    assert_eq!(now["result"][0]["value"][1], "4096");
    let at = now["result"][0]["value"][0].as_i64().unwrap();
    let query = "query=uma_memory_free_bytes%20%2F%202";
    let posted = form(&server, "/api/v1/query", query).json();
    assert_eq!(posted["data"]["result"][0]["value"], json!([at, "2048"]));
    // As `curl -d` sends it.
    let raw = "query=uma_memory_free_bytes{a!=\"b\"} > 1 # a remark";
    assert_eq!(form(&server, "/api/v1/query", raw).json()["data"]["result"], now["result"]);
    // What the form has wins, as in Go.
    let both = form(&server, "/api/v1/query?query=1", "query=2").json();
    assert_eq!(both["data"], json!({ "resultType": "scalar", "result": [at, "2"] }));
    let text = data(&server, "/api/v1/query?query=%22a%22");
    assert_eq!(text, json!({ "resultType": "string", "result": [at, "a"] }));
    let samples = data(&server, "/api/v1/query?query=uma_memory_free_bytes%5B1m%5D");
    assert_eq!(samples["resultType"], "matrix");
    assert_eq!(samples["result"][0]["values"], json!([[at, "4096"]]));
    let range = format!("query=uma_memory_free_bytes+%2B+1&start={at}&end={}&step=1s", at + 2);
    let posted = form(&server, "/api/v1/query_range", &range).json();
    assert_eq!(posted["data"]["resultType"], "matrix");
    let values = json!([[at, "4097"], [at + 1, "4097"], [at + 2, "4097"]]);
    assert_eq!(posted["data"]["result"][0]["values"], values);
    server.end();
}

/// `CheckHealth` of Grafana's data source (pkg/promlib/healthcheck.go) and what its editor and
/// variables request (packages/grafana-prometheus/src/resource_clients.ts).
#[test]
fn grafana_gets_what_its_data_source_requests() {
    let server = start();
    let health = form(&server, "/api/v1/query", "query=1%2B1&time=4").json();
    assert_eq!(health["data"], json!({ "resultType": "scalar", "result": [4, "2"] }));
    let build = data(&server, "/api/v1/status/buildinfo");
    assert_eq!(build["version"], env!("CARGO_PKG_VERSION"));
    // With features it would be a Mimir (pkg/promlib/heuristics.go).
    assert_eq!(build["features"], Value::Null);
    // At its start: recording rules, and whether there are exemplars (datasource.ts).
    let rules = data(&server, "/api/v1/rules");
    for group in rules["groups"].as_array().unwrap() {
        let kinds = group["rules"].as_array().unwrap().iter().map(|rule| &rule["type"]);
        assert!(kinds.clone().count() > 0 && kinds.clone().all(|kind| kind == "alerting"));
    }
    let exemplars = "query=test&start=1794998200000&end=1795000000000";
    for response in [
        server.get(&format!("/api/v1/query_exemplars?{exemplars}")),
        form(&server, "/api/v1/query_exemplars", exemplars),
    ] {
        let body = response.json();
        assert_eq!((response.status, &body["status"]), (404, &json!("error")), "{body}");
    }
    let some = data(&server, "/api/v1/metadata?limit=2");
    assert_eq!(some.as_object().unwrap().len(), 2, "{some}");
    let names = data(&server, "/api/v1/label/__name__/values?start=0&limit=40000");
    assert!(names.as_array().unwrap().contains(&json!("uma_memory_free_bytes")), "{names}");
    let all = form(&server, "/api/v1/series", "match%5B%5D=%7B__name__%21%3D%22%22%7D&limit=40000");
    assert!(all.json()["data"].as_array().unwrap().len() > 1);
    let labels = form(&server, "/api/v1/labels", "").json();
    assert!(labels["data"].as_array().unwrap().contains(&json!("__name__")), "{labels}");
    let kind = &data(&server, "/api/v1/metadata?metric=uma_memory_free_bytes")["uma_memory_free_bytes"]
        [0]["type"];
    assert_eq!(kind, "gauge");
    let values = data(&server, "/api/v1/label/text/values?match[]=made_up");
    assert_eq!(values.as_array().unwrap().len(), 1, "{values}");
    server.end();
}

#[test]
fn errors_have_the_status_and_type_of_prometheus() {
    let server = start();
    for (target, status, kind, text) in [
        ("/api/v1/query", 400, "bad_data", "invalid parameter \"query\": 1:1: parse error: no "),
        ("/api/v1/query?query=a%5B5m:1m%5D", 400, "bad_data", "subqueries are not supported"),
        ("/api/v1/query?query=a&time=x", 400, "bad_data", "cannot parse \"x\""),
        ("/api/v1/query?query=%ff", 400, "bad_data", ""),
        ("/api/v1/query_range?query=a", 400, "bad_data", "invalid parameter \"start\""),
        (
            "/api/v1/query_range?query=a%5B1m%5D&start=0&end=1&step=1",
            400,
            "bad_data",
            "invalid expression type \"range vector\" for range query, must be Scalar or instant",
        ),
        ("/api/v1/series", 400, "bad_data", "no match[] parameter provided"),
        ("/api/v1/labels?match[]=%7B%7D", 400, "bad_data", "at least one non-empty matcher"),
    ] {
        let response = server.get(target);
        let body = response.json();
        assert_eq!(
            (response.status, &body["errorType"]),
            (status, &json!(kind)),
            "{target}: {body}"
        );
        assert!(body["error"].as_str().unwrap().contains(text), "{target}: {body}");
    }
    let doubled = "query=uma_memory_free_bytes%2Bon()(made_up%20or%20uma_memory_free_bytes)";
    let response = server.get(&format!("/api/v1/query?{doubled}"));
    assert_eq!((response.status, &response.json()["errorType"]), (422, &json!("execution")));
    let long = format!("query={}", "a".repeat(17 * 1024));
    assert_eq!(form(&server, "/api/v1/query", &long).status, 413);
    assert_eq!(server.order("DELETE", "/api/v1/query", "").status, 405);
    server.end();
}

/// Begins a query that waits five seconds for the past. Once it is dropped, nobody waits for it.
fn slow(server: &Server) -> TcpStream {
    let mut stream = server.connect();
    let target = "/api/v1/query?query=uma_memory_free_bytes%5B1m%5D";
    let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

#[test]
fn two_slow_queries_run_and_further_ones_get_503_while_metrics_are_served() {
    let server = start_without_past();
    let quick = || server.get("/api/v1/query?query=1&timeout=300ms");
    let until = |status: u16| {
        let began = Instant::now();
        loop {
            let response = quick();
            if response.status == status {
                return response;
            }
            assert!(began.elapsed() < PATIENCE, "{}", response.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let first = slow(&server);
    std::thread::sleep(Duration::from_millis(300));
    until(200);
    // Two of them run and the others wait, so that none is free for a while.
    let others: Vec<TcpStream> = (0..5).map(|_| slow(&server)).collect();
    let body = until(503).json();
    assert_eq!(body["errorType"], "timeout", "{body}");
    let error = body["error"].as_str().unwrap();
    let sentence =
        "it was not done within 0.3 s, with the wait for other queries; choose a shorter";
    assert!(error.contains(sentence), "{error}");
    let began = Instant::now();
    for target in ["/metrics", "/-/healthy", "/api/v1/picture"] {
        assert_eq!(server.get(target).status, 200, "{target}");
    }
    assert!(began.elapsed() < Duration::from_secs(3), "they need no turn: {:?}", began.elapsed());
    // Clients that leave make way.
    drop((first, others));
    assert_eq!(until(200).json()["data"]["result"][1], "1");
    server.end();
}
