//! Requests to a collector of telemetry, and one that is absent, hangs or answers falsely.

mod collector;

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use collector::{Behaviour, Collector, attribute, text};
use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

use super::{ALWAYS, Node, XID, outcomes, record};
use crate::daemon::{Daemon, binary, write_secret};
use crate::tls_front;

/// Starts the daemon with that text under `otlp`.
fn start(node: &Node, otlp: &str, more: &[&str]) -> Daemon {
    let file = node.path("umawarden.yaml");
    fs::write(&file, format!("otlp: {otlp}\n")).unwrap();
    let file = format!("--config.file={}", file.display());
    let more: Vec<&str> = [&*file].into_iter().chain(more.iter().copied()).collect();
    node.start(&more)
}

fn exports(daemon: &Daemon, signal: &str, result: &str) -> f64 {
    daemon.metric(&format!("uma_otlp_exports_total{{result=\"{result}\",signal=\"{signal}\"}}"))
}

fn dropped(daemon: &Daemon, signal: &str) -> f64 {
    daemon.metric(&format!("uma_otlp_dropped_total{{signal=\"{signal}\"}}"))
}

fn threads(daemon: &Daemon) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let names =
        tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

fn named<'s>(spans: &'s [Span], name: &str) -> Vec<&'s Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

fn is_below(span: &Span, parent: &Span) -> bool {
    span.trace_id == parent.trace_id && span.parent_span_id == parent.span_id
}

#[test]
fn the_collector_receives_the_series_of_metrics() {
    let node = Node::new("gb10-4k");
    let collector = Collector::start(Behaviour::Takes);
    write_secret(node.path("headers"), "# for the collector\nAuthorization: Bearer s3cret\n");
    let otlp = format!(
        "{{endpoint: '{}', interval: 1s, headers_file: headers, resource: {{rack: '7'}}}}",
        collector.endpoint()
    );
    let daemon = start(&node, &otlp, &[]);
    // By then all sources have been read.
    let before =
        collector.wait_for("metrics", |received| Some(received.metrics().len()).filter(|n| *n > 2));
    let shown = daemon.metrics();
    let sent = collector
        .wait_for("metrics again", |received| received.metrics().into_iter().nth(before + 1));
    for (series, value) in &shown {
        // Counters and very recent values may differ.
        let found = sent.iter().find(|(name, _)| name == series);
        let changes = series.contains("_total") || series.contains("seconds");
        let changes = changes || series.starts_with("process_") || series.contains("_otlp_");
        let changes = changes || series.starts_with("uma_journal_size");
        match found {
            Some((_, found)) if !changes => assert_eq!(found, value, "{series}"),
            Some(_) => {}
            None => panic!("{series} was not sent"),
        }
    }
    let unknown = sent.iter().find(|(name, value)| !shown.contains_key(name) && *value != 0.0);
    let unknown = unknown.filter(|(name, _)| !name.starts_with("uma_otlp_"));
    assert_eq!(unknown, None, "nothing else is sent but what is 0");
    let request = collector.requests("/v1/metrics").remove(0);
    assert_eq!(request.header("authorization"), Some("Bearer s3cret"));
    assert_eq!(request.header("content-type"), Some("application/x-protobuf"));
    daemon.wait_until("counted", |daemon| exports(daemon, "metrics", "success") >= 1.0);
    let last = daemon.metric("uma_otlp_last_success_timestamp_seconds{signal=\"metrics\"}");
    assert!(last > 1.7e9, "{last}");
    let (_, log) = daemon.terminate();
    assert!(!log.contains("s3cret"), "{log}");
}

#[test]
fn the_environment_applies_and_the_configuration_overrides_it() {
    let node = Node::new("gb10-4k");
    let collector = Collector::start(Behaviour::Takes);
    let file = node.path("umawarden.yaml");
    let otlp = "interval: 1s, headers_file: headers, resource: {rack: '7'}";
    fs::write(&file, format!("otlp: {{endpoint: '{}', {otlp}}}\n", collector.endpoint())).unwrap();
    write_secret(node.path("headers"), "x-tenant: of-file\n");
    let mut command = Command::new(binary());
    command.args(["run", "--web.listen-address", "127.0.0.1:0", "--storage.path"]);
    command.arg(node.storage()).arg("--config.file").arg(file).args(node.arguments());
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=of-environment,x-other=a%20b");
    command.env("OTEL_RESOURCE_ATTRIBUTES", "rack=1,room=cellar,service.name=x");
    command.env("OTEL_SERVICE_NAME", "warden");
    let _daemon = Daemon::from_command(&mut command);
    let resource = collector.wait_for("metrics", Collector::resource);
    let of = |key: &str| resource.get(key).map(String::as_str);
    assert_eq!(of("service.name"), Some("warden"), "{resource:?}");
    assert_eq!((of("rack"), of("room")), (Some("7"), Some("cellar")), "{resource:?}");
    let request = collector.requests("/v1/metrics").remove(0);
    assert_eq!(request.header("x-tenant"), Some("of-file"));
    assert_eq!(request.header("x-other"), Some("a b"));
}

#[test]
fn only_a_trusted_collector_receives_anything_over_tls() {
    for (authority, is_believed) in [("authority.pem", true), ("other.pem", false)] {
        let node = Node::new("gb10-4k");
        let collector = Collector::start(Behaviour::Takes);
        let port = tls_front::before(collector.port());
        let otlp = format!(
            "{{endpoint: 'https://localhost:{port}', interval: 1s, ca_file: {}}}",
            tls_front::fixture(authority).display()
        );
        let daemon = start(&node, &otlp, &[]);
        if is_believed {
            collector.wait_for("metrics", |collector| collector.metrics().pop());
            continue;
        }
        daemon.wait_until("logged", |daemon| daemon.log().contains("invalid peer certificate"));
        assert!(collector.requests("/v1/metrics").is_empty());
        assert!(daemon.log().contains("as ca_file"), "{}", daemon.log());
    }
}

#[test]
fn no_exporter_runs_without_a_collector() {
    let node = Node::new("gb10-4k");
    let daemon = node.start(&[]);
    assert!(!threads(&daemon).contains(&"otlp".to_owned()));
    assert!(!daemon.metrics().keys().any(|series| series.starts_with("uma_otlp_")));
}

#[test]
fn a_remedy_that_acts_is_one_trace_with_every_step() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let collector = Collector::start(Behaviour::Takes);
    let daemon =
        start(&node, &format!("{{endpoint: '{}'}}", collector.endpoint()), &["--mode=enforce"]);
    daemon.wait_until("done", |daemon| daemon.count(&outcomes("compact_memory", "done")) == 1.0);
    let spans = collector.wait_for("the trace", |received| {
        let spans = received.spans();
        (!named(&spans, "step compact_memory").is_empty()).then_some(spans)
    });
    let root = named(&spans, "remedy Always").remove(0);
    assert!(root.parent_span_id.is_empty());
    assert_eq!(text(root, "umawarden.result"), "missed");
    assert_eq!(root.status.as_ref().unwrap().code, StatusCode::Error as i32);
    assert_eq!(
        (&*text(root, "umawarden.rule.group"), &*text(root, "umawarden.mode")),
        ("g", "enforce")
    );
    let alert = named(&spans, "alert Always").remove(0);
    assert!(is_below(alert, root));
    assert_eq!(text(alert, "label.severity"), "warning");
    let acts = named(&spans, "decision act");
    assert_eq!(acts.len(), 2);
    for (act, action) in acts.iter().zip(["drop_caches", "compact_memory"]) {
        assert!(is_below(act, root));
        assert_eq!(text(act, "because.uma_memory_free_bytes"), "4294967296");
        let step = named(&spans, &format!("step {action}")).remove(0);
        assert!(is_below(step, act));
        assert_eq!(text(step, "umawarden.outcome"), "done");
        assert!(text(step, "umawarden.action.parameters").contains(action));
        assert_eq!(step.status.as_ref().unwrap().code, StatusCode::Ok as i32);
        assert!(act.start_time_unix_nano <= step.start_time_unix_nano);
        let aims = named(&spans, "aim");
        let aim = aims.iter().find(|aim| is_below(aim, act)).unwrap();
        assert_eq!(text(aim, "umawarden.aim"), "missed");
        for when in ["before", "after"] {
            let value = attribute(aim, &format!("{when}.uma_memory_free_bytes"));
            assert_eq!(value, Some(any_value::Value::DoubleValue(4_294_967_296.0)));
        }
    }
    let holds = named(&spans, "decision hold");
    assert!(holds.iter().any(|span| text(span, "umawarden.reason") == "steps_exhausted"));
}

#[test]
fn an_observed_decision_is_one_trace_with_its_event() {
    let node = Node::new("gb10-4k");
    let rule = ALWAYS
        .replace("uma_memory_free_bytes >= 0", "uma_kernel_events_total{event=\"xid\"} > 0")
        .replace("uma_memory_free_bytes < 0", "uma_memory_free_bytes >= 1e15");
    node.write_rules(&rule);
    let collector = Collector::start(Behaviour::Takes);
    let daemon = start(&node, &format!("{{endpoint: '{}'}}", collector.endpoint()), &[]);
    let mut log = fs::OpenOptions::new().append(true).open(node.path("kmsg")).unwrap();
    log.write_all(record(7, XID).as_bytes()).unwrap();
    daemon.wait_until("decided", |daemon| daemon.count(&outcomes("drop_caches", "skipped")) == 1.0);
    let (_, _) = daemon.terminate();
    // Open spans are sent at the end.
    let spans = collector.wait_for("the trace", |received| {
        let spans = received.spans();
        (!named(&spans, "event xid").is_empty()).then_some(spans)
    });
    let root = named(&spans, "remedy Always").remove(0);
    let event = named(&spans, "event xid").remove(0);
    assert!(is_below(event, root));
    assert_eq!(text(event, "umawarden.event.seq"), "7");
    assert!(text(event, "umawarden.event.detail").contains("\"xid\":31"));
    let step = named(&spans, "step drop_caches").remove(0);
    assert_eq!(text(step, "umawarden.outcome"), "skipped");
    assert_eq!(text(root, "umawarden.result"), "skipped");
}

#[test]
fn an_absent_collector_delays_no_remedy_and_is_found_again() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", port.local_addr().unwrap());
    drop(port);
    let otlp = format!("{{endpoint: '{endpoint}', interval: 1s}}");
    let daemon = start(&node, &otlp, &["--mode=enforce"]);
    daemon.wait_until("done", |daemon| daemon.count(&outcomes("compact_memory", "done")) == 1.0);
    daemon.wait_until("missed", |daemon| {
        exports(daemon, "metrics", "unreachable") >= 2.0
            && exports(daemon, "traces", "unreachable") >= 1.0
    });
    assert!(dropped(&daemon, "metrics") > 0.0, "dropped metrics are counted");
    let address = endpoint.trim_start_matches("http://");
    let collector = Collector::on(TcpListener::bind(address).unwrap(), Behaviour::Takes);
    let spans = collector.wait_for("the trace that waited", |received| {
        let spans = received.spans();
        (!named(&spans, "step compact_memory").is_empty()).then_some(spans)
    });
    assert!(!named(&spans, "remedy Always").is_empty());
    daemon.wait_until("taken again", |daemon| exports(daemon, "traces", "success") >= 1.0);
    let (_, log) = daemon.terminate();
    let complaints = log.matches("otlp delivery failed").count();
    assert!((1..=2).contains(&complaints), "once for each kind: {log}");
    assert!(log.contains("otlp delivery works again"), "{log}");
}

#[test]
fn a_hanging_collector_delays_neither_remedies_nor_the_shutdown() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let collector = Collector::start(Behaviour::Hangs);
    let otlp = format!("{{endpoint: '{}', interval: 1s, timeout: 1m}}", collector.endpoint());
    let daemon = start(&node, &otlp, &["--mode=enforce"]);
    collector.wait_for("a request", |received| received.requests("/v1/metrics").into_iter().next());
    daemon.wait_until("done", |daemon| daemon.count(&outcomes("compact_memory", "done")) == 1.0);
    let (took, log) = daemon.terminate();
    assert!(took < Duration::from_secs(20), "{took:?}: a minute would be the collector's\n{log}");
    assert!(log.contains("ended"), "{log}");
}

#[test]
fn errors_of_a_collector_are_logged_once_and_counted() {
    let long = "x".repeat(1 << 20);
    let long = format!("HTTP/1.1 500 No\r\ncontent-length: {}\r\n\r\n{long}", long.len());
    let busy = "HTTP/1.1 503 Busy\r\nretry-after: 99999999\r\ncontent-length: 0\r\n\r\n";
    let elsewhere = "HTTP/1.1 307 Go\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
    let page = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>";
    let answers = [
        (busy, "busy", "503"),
        ("HTTP/1.1 400 Bad\r\ncontent-length: 3\r\n\r\nno!", "refused", "no!"),
        (elsewhere, "refused", "redirects are not followed"),
        (page, "refused", "an HTML page"),
        ("SSH-2.0-OpenSSH_9.6\r\n", "unreachable", "the connection failed"),
        (&*long, "refused", "\"xxx"),
    ];
    for (answer, result, logged) in answers {
        let node = Node::new("gb10-4k");
        let collector = Collector::start(Behaviour::Answers(answer.to_owned()));
        let daemon =
            start(&node, &format!("{{endpoint: '{}', interval: 1s}}", collector.endpoint()), &[]);
        daemon.wait_until(result, |daemon| exports(daemon, "metrics", result) >= 1.0);
        assert_eq!(exports(&daemon, "metrics", "success"), 0.0);
        let (_, log) = daemon.terminate();
        let lines: Vec<_> =
            log.lines().filter(|line| line.contains("otlp delivery failed")).collect();
        assert!(lines.len() == 1 && lines[0].contains(logged), "{logged}: {lines:?}");
    }
}

#[test]
fn invalid_headers_are_reported_without_their_content() {
    let node = Node::new("gb10-4k");
    let collector = Collector::start(Behaviour::Takes);
    write_secret(node.path("headers"), "s3cret\n");
    let otlp = format!("{{endpoint: '{}', headers_file: headers}}", collector.endpoint());
    let daemon = start(&node, &otlp, &[]);
    daemon.wait_until("reported", |daemon| daemon.log().contains("line 1 is no header"));
    assert!(collector.requests("/v1/metrics").is_empty(), "nothing is sent without them");
    write_secret(node.path("headers"), "x-token: s3cret\n");
    collector.wait_for("it with the header", |received| {
        let requests = received.requests("/v1/metrics");
        requests.iter().any(|request| request.header("x-token") == Some("s3cret")).then_some(())
    });
    let (_, log) = daemon.terminate();
    assert!(!log.contains("s3cret"), "{log}");
}

#[test]
fn an_invalid_address_is_reported_before_the_start() {
    let node = Node::new("gb10-4k");
    let output = Command::new(binary())
        .args(["run", "--otlp.endpoint=localhost:4318", "--storage.path"])
        .arg(node.storage())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && stderr.contains("write it as in http://localhost:4318"),
        "{stderr}"
    );
}

#[test]
fn refused_exports_are_dropped_and_counted() {
    let node = Node::new("gb10-4k");
    node.write_rules(ALWAYS);
    let refuses = "HTTP/1.1 400 Bad\r\ncontent-length: 0\r\n\r\n";
    let collector = Collector::start(Behaviour::Answers(refuses.to_owned()));
    let daemon =
        start(&node, &format!("{{endpoint: '{}', interval: 1s}}", collector.endpoint()), &[]);
    daemon.wait_until("given up", |daemon| dropped(daemon, "traces") >= 3.0);
    assert_eq!(daemon.metric("uma_otlp_waiting_spans"), 0.0, "nothing is kept for it");
    collector.set(Behaviour::Takes);
    daemon.wait_until("taken", |daemon| exports(daemon, "metrics", "success") >= 1.0);
    assert_eq!(exports(&daemon, "traces", "success"), 0.0, "it was not sent again");
}
