//! The same queries to a daemon and to a real Prometheus that has scraped it: the same results.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::prometheus::{Prometheus, percent_encoded, post};
use super::prometheus_3;
use crate::daemon::Daemon;
use crate::real::enabled;
use crate::run::Node;

/// How long memory stays as it is: twice the time between two samples of the daemon.
const PHASE: Duration = Duration::from_secs(10);

/// Expressions whose results must be the same.
const SAME: [&str; 34] = [
    "uma_memory_free_bytes",
    "uma_memory_free_bytes{job=\"umawarden\"} / 3",
    "uma_memory_free_bytes / uma_memory_total_bytes",
    "uma_memory_free_bytes offset 10s",
    "uma_memory_free_bytes - uma_memory_free_bytes offset 10s",
    "uma_memory_available_bytes > 3e10 or uma_memory_free_bytes",
    "uma_memory_available_bytes > bool 3e10",
    "uma_memory_page_cache_bytes",
    "sum(uma_memory_page_cache_bytes)",
    "sum without (state) (uma_memory_page_cache_bytes)",
    "avg by (job) (uma_memory_page_cache_bytes)",
    "stddev(uma_memory_page_cache_bytes)",
    "count(uma_memory_page_cache_bytes > 0)",
    "sort(topk(2, uma_memory_page_cache_bytes))",
    "bottomk(1, uma_memory_page_cache_bytes)",
    "quantile(0.3, uma_memory_page_cache_bytes)",
    "uma_pool_free_bytes{pool=~\"h.*\"}",
    "uma_pool_available_bytes * on (pool) group_left uma_pool_total_bytes",
    "uma_pool_contiguous_bytes and on () (uma_memory_free_bytes > 3e9)",
    "uma_pool_watermark_bytes unless on (watermark) uma_pool_watermark_bytes{watermark=\"low\"}",
    "max_over_time(uma_memory_free_bytes[15s])",
    "min_over_time(uma_memory_free_bytes[15s])",
    "last_over_time(uma_memory_free_bytes[15s])",
    "present_over_time(uma_memory_free_bytes[15s])",
    "rate(uma_memory_major_page_faults_total[20s])",
    "absent(uma_memory_free_bytes)",
    "absent(uma_nothing{a=\"b\"})",
    "label_replace(uma_memory_free_bytes, \"kind\", \"$1\", \"__name__\", \"uma_(.*)_bytes\")",
    "label_join(uma_pool_free_bytes, \"both\", \"-\", \"job\", \"pool\")",
    "clamp(uma_memory_free_bytes, 4e9, 5e9)",
    "round(uma_memory_free_bytes / 7, 0.5)",
    "scalar(uma_memory_free_bytes) % 7",
    "time()",
    "vector(1) == 1",
];

/// Expressions that depend on the number and the times of samples, with the allowed difference.
const CLOSE: [(&str, f64); 3] = [
    ("avg_over_time(uma_memory_free_bytes[30s])", 0.3),
    ("quantile_over_time(0.5, uma_memory_free_bytes[30s])", 1.0),
    ("count_over_time(uma_memory_free_bytes[30s]) * 5 / 30", 5.0),
];

/// Ranges. Prometheus takes more samples, at other times: one after the other
/// the values must be the same.
const SAMPLES: [&str; 4] = [
    "uma_memory_free_bytes{job=\"umawarden\"}[15s]",
    "(uma_memory_free_bytes[9s])",
    "uma_memory_page_cache_bytes[15s]",
    "uma_nothing[1m]",
];

/// Strings.
const STRINGS: [&str; 2] = ["\"a\"", "'\u{fc} \"b\"'"];

/// Requests that both refuse.
const REFUSED: [(&str, &str); 14] = [
    ("query", "query=sum("),
    ("query", ""),
    ("query", "query=uma_memory_free_bytes&time=yesterday"),
    ("query", "query=uma_memory_free_bytes&timeout=soon"),
    ("query", "query=uma_memory_page_cache_bytes%2Bon(job)uma_memory_page_cache_bytes"),
    ("query_range", "query=1&start=10&end=5&step=1"),
    ("query_range", "query=1&start=0&end=5&step=0"),
    ("query_range", "query=1&start=0&end=20000&step=1"),
    ("query_range", "query=1&end=5&step=1"),
    ("query_range", "query=uma_memory_free_bytes%5B1m%5D&start=0&end=5&step=1"),
    ("query_range", "query=%22a%22&start=0&end=5&step=1"),
    ("series", ""),
    ("series", "match[]=%7B%7D"),
    ("labels", "match[]=a%2Bb"),
];

/// Seconds since 1970, and a value.
type Point = (f64, f64);

fn point(json: &Value) -> Point {
    let value = match json[1].as_str().unwrap() {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        text => text.parse().unwrap(),
    };
    (json[0].as_f64().unwrap(), value)
}

/// The points of each element of a result, by its labels but for `instance`.
fn elements(data: &Value) -> BTreeMap<String, Vec<Point>> {
    let result = &data["result"];
    if data["resultType"] == "scalar" {
        return BTreeMap::from([(String::new(), vec![point(result)])]);
    }
    let one = |element: &Value| {
        let labels: BTreeMap<_, _> = element["metric"].as_object().unwrap().iter().collect();
        let labels = labels.into_iter().filter(|(name, _)| *name != "instance");
        let labels: Vec<String> = labels.map(|(name, value)| format!("{name}={value}")).collect();
        let points = match element["values"].as_array() {
            Some(points) => points.iter().map(point).collect(),
            None => vec![point(&element["value"])],
        };
        (labels.join(","), points)
    };
    result.as_array().unwrap().iter().map(one).collect()
}

/// The values of each element, one after the other, without repetitions.
fn changes(data: &Value) -> BTreeMap<String, Vec<f64>> {
    let values = |points: Vec<Point>| {
        let mut values: Vec<f64> = points.into_iter().map(|(_, value)| value).collect();
        values.dedup();
        values
    };
    elements(data).into_iter().map(|(labels, points)| (labels, values(points))).collect()
}

fn seconds(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}

fn at_instant(expr: &str, at: Timestamp) -> String {
    format!("query={}&time={}", percent_encoded(expr), seconds(at))
}

/// Both responses to a query.
fn both(daemon: &Daemon, prometheus: &Prometheus, path: &str, form: &str) -> [Value; 2] {
    let own = post(&format!("http://{}/api/v1", daemon.address()), path, form);
    [own, prometheus.post(path, form)].map(|(status, body)| {
        assert_eq!(status, 200, "{path} {form}: {body}");
        body["data"].clone()
    })
}

fn texts(body: &Value) -> BTreeSet<String> {
    let all = body["data"].as_array().unwrap().iter();
    all.map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Changes memory from phase to phase. Returns an instant near the end of each phase: whatever the
/// times of their samples, both have some of the phase and of the end of the one before.
fn phases(node: &Node) -> [Timestamp; 4] {
    let memory = [
        (4_194_304, 33_554_432),
        (8_388_608, 37_748_736),
        (2_097_152, 25_165_824),
        (1_048_576, 9_437_184),
    ];
    memory.map(|(free, available)| {
        node.set_meminfo("MemFree", free);
        node.set_meminfo("MemAvailable", available);
        std::thread::sleep(PHASE - Duration::from_millis(500));
        let at = Timestamp::now();
        std::thread::sleep(Duration::from_millis(500));
        at
    })
}

#[test]
fn real_prometheus_has_the_same_results_at_the_same_instants() {
    if !enabled() {
        return;
    }
    let node = Node::new("gb10-4k");
    let arguments = node.arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let daemon = Daemon::start(&node.storage(), &arguments);
    let prometheus = Prometheus::start(&prometheus_3(), daemon.address(), "");
    let instants = phases(&node);
    assert_same_results(&daemon, &prometheus, &instants);
    assert_same_lists(&daemon, &prometheus);
    assert_same_refusals(&daemon, &prometheus);
    daemon.terminate();
    // Its samples of these instants are those of the flight recorder.
    let daemon = Daemon::start(&node.storage(), &arguments);
    let early = at_instant("uma_memory_free_bytes", instants[1]);
    daemon.wait_until("read from the flight recorder", |daemon| {
        let (_, body) = post(&format!("http://{}/api/v1", daemon.address()), "query", &early);
        body.get("warnings").is_none() && body["data"]["result"][0].is_object()
    });
    assert_same_results(&daemon, &prometheus, &instants);
}

fn assert_same_results(daemon: &Daemon, prometheus: &Prometheus, instants: &[Timestamp; 4]) {
    let same = |path: &str, form: &str, context: &str| {
        let [own, theirs] = both(daemon, prometheus, path, form);
        assert_eq!(own["resultType"], theirs["resultType"], "{context}");
        assert_eq!(elements(&own), elements(&theirs), "{context}");
        own
    };
    for at in &instants[1..] {
        for expr in SAME {
            same("query", &at_instant(expr, *at), &format!("{expr} at {at}"));
        }
        for expr in SAMPLES {
            let [own, theirs] = both(daemon, prometheus, "query", &at_instant(expr, *at));
            let types = [&own, &theirs].map(|data| data["resultType"].as_str());
            assert_eq!(types, [Some("matrix"); 2], "{expr}");
            assert_eq!(changes(&own), changes(&theirs), "{expr} at {at}");
        }
        for expr in STRINGS {
            let [own, theirs] = both(daemon, prometheus, "query", &at_instant(expr, *at));
            assert_eq!(own, theirs, "{expr} at {at}");
        }
    }
    // The steps are as far apart as the instants: each is near the end of its phase, too.
    let (start, end, step) = (seconds(instants[1]), seconds(instants[3]), PHASE.as_secs());
    for expr in SAME {
        let form = format!("query={}&start={start}&end={end}&step={step}", percent_encoded(expr));
        let own = same("query_range", &form, &format!("{expr} from {start} to {end}"));
        if expr == SAME[0] {
            let free = changes(&own).into_values().next();
            let expected = [8_388_608.0, 2_097_152.0, 1_048_576.0].map(|kib| kib * 1024.0);
            assert_eq!(free, Some(expected.to_vec()), "one value of each phase");
        }
    }
    for (expr, allowed) in CLOSE {
        let form = at_instant(expr, instants[3]);
        let [own, theirs] = both(daemon, prometheus, "query", &form).map(|one| elements(&one));
        assert_eq!((own.len(), theirs.len()), (1, 1), "{expr}");
        for (own, theirs) in own.values().zip(theirs.values()) {
            let (own, theirs) = (own[0].1, theirs[0].1);
            assert!((own / theirs - 1.0).abs() <= allowed, "{expr}: {own} and {theirs}");
        }
    }
}

fn assert_same_lists(daemon: &Daemon, prometheus: &Prometheus) {
    let own = |path: &str, form: &str| {
        let (status, body) = post(&format!("http://{}/api/v1", daemon.address()), path, form);
        assert_eq!(status, 200, "{path}: {body}");
        body
    };
    let selector = "match[]=uma_pool_free_bytes&match[]=uma_memory_page_cache_bytes";
    let (_, theirs) = prometheus.post("labels", selector);
    assert_eq!(texts(&own("labels", selector)), texts(&theirs));
    let (_, theirs) = prometheus.post("series", selector);
    let without_instance = |body: &Value| {
        let series = body["data"].as_array().unwrap().iter().map(|series| {
            let mut series = series.as_object().unwrap().clone();
            assert!(series.remove("instance").is_some());
            Value::Object(series.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect())
                .to_string()
        });
        series.collect::<BTreeSet<_>>()
    };
    assert_eq!(without_instance(&own("series", selector)), without_instance(&theirs));
    // These have no form.
    let values = |base: &str, name: &str| {
        let url = format!("{base}/api/v1/label/{name}/values");
        let response = crate::daemon::http_client().build().unwrap().get(url).send().unwrap();
        texts(&response.json().unwrap())
    };
    let address = format!("http://{}", daemon.address());
    for name in ["pool", "state", "watermark", "a-b"] {
        assert_eq!(values(&address, name), values(prometheus.base(), name), "{name}");
    }
    let scraped = values(prometheus.base(), "__name__");
    let scraped = scraped.into_iter().filter(|name| name.starts_with("uma_")).collect();
    let kept = values(&address, "__name__");
    let missing: Vec<_> = BTreeSet::difference(&scraped, &kept).collect();
    assert!(missing.is_empty() && scraped.len() > 100, "{missing:?}");
}

fn assert_same_refusals(daemon: &Daemon, prometheus: &Prometheus) {
    for (path, form) in REFUSED {
        let own = post(&format!("http://{}/api/v1", daemon.address()), path, form);
        let theirs = prometheus.post(path, form);
        let kinds = [&own, &theirs].map(|(status, body)| (*status, body["errorType"].clone()));
        assert_eq!(kinds[0], kinds[1], "{path} {form}: {} and {}", own.1, theirs.1);
    }
}
