use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use opentelemetry_proto::tonic::metrics::v1::{metric, number_data_point};
use opentelemetry_sdk::trace::SpanData;

use super::metrics::{Batch, Exporter};
use super::queue::{MOST_BYTES, TraceQueue};
use super::resource::resource;
use crate::model::{
    Action, Decision, DecisionId, DecisionRecord, METRICS, Mode, Moment, Reading, RuleId,
    SeriesKey, Target,
};
use crate::policy::Policy;
use crate::policy::rule::RuleSet;
use crate::policy::status::Status;
use crate::traces::{Trace, TraceInput, Tracer};

const NANOS: u64 = 1_000_000_000;

fn at(seconds: i64) -> Moment {
    let utc = Timestamp::from_second(1_000_000 + seconds).unwrap();
    Moment { uptime: Duration::from_secs(500).saturating_add(utc_since(seconds)), utc }
}

fn utc_since(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap())
}

/// Name, labels and value.
type Series<'a> = (&'a str, &'a [(&'a str, &'a str)], Reading<f64>);

fn status(seconds: i64, series: &[Series<'_>]) -> Status {
    let mut policy = Policy::new(at(0), Mode::Observe, &RuleSet::default(), DecisionId(1));
    let keys = series.iter().map(|(name, labels, _)| SeriesKey::new(name, labels));
    Status {
        at: at(seconds),
        series: keys.collect(),
        values: series.iter().map(|(_, _, reading)| *reading).collect(),
        ..policy.status(at(0))
    }
}

fn exporter() -> Exporter {
    Exporter::new(resource("spark-1", &[("rack".to_owned(), "7".to_owned())]))
}

/// Of each metric its unit and the data.
fn metrics(batch: &Batch) -> BTreeMap<String, (String, metric::Data)> {
    let metrics = &batch.0.resource_metrics[0].scope_metrics[0].metrics;
    let one = |metric: &opentelemetry_proto::tonic::metrics::v1::Metric| {
        assert!(!metric.description.is_empty() || !metric.name.starts_with("uma_"));
        (metric.name.clone(), (metric.unit.clone(), metric.data.clone().unwrap()))
    };
    metrics.iter().map(one).collect()
}

fn counter(batch: &Batch, name: &str) -> (u64, f64) {
    let metric::Data::Sum(sum) = &metrics(batch)[name].1 else { panic!("{name} is no sum") };
    assert!(sum.is_monotonic && sum.aggregation_temporality == 2, "cumulative");
    let point = &sum.data_points[0];
    let Some(number_data_point::Value::AsDouble(value)) = point.value else { panic!("no number") };
    (point.start_time_unix_nano / NANOS, value)
}

#[test]
fn missing_values_and_nan_are_not_sent() {
    let status = status(
        10,
        &[
            ("uma_memory_free_bytes", &[], Reading::Value(7.0)),
            ("uma_memory_cached_bytes", &[], Reading::Unsupported),
            ("uma_memory_buffers_bytes", &[], Reading::Failed),
            ("uma_memory_available_bytes", &[], Reading::Value(f64::NAN)),
            ("uma_scrape_collector_success", &[("collector", "meminfo")], Reading::Value(0.0)),
        ],
    );
    let batch = exporter().batch(&status);
    assert_eq!(batch.1, 2);
    let sent = metrics(&batch);
    let names: Vec<_> = sent.keys().collect();
    assert_eq!(names, ["uma_memory_free_bytes", "uma_scrape_collector_success"]);
    let (unit, metric::Data::Gauge(gauge)) = &sent["uma_memory_free_bytes"] else { panic!() };
    assert_eq!(unit, "By");
    assert_eq!(gauge.data_points[0].time_unix_nano, 1_000_010 * NANOS);
    assert_eq!(gauge.data_points[0].value, Some(number_data_point::Value::AsDouble(7.0)));
    let (unit, metric::Data::Gauge(gauge)) = &sent["uma_scrape_collector_success"] else {
        panic!()
    };
    assert_eq!((&**unit, &*gauge.data_points[0].attributes[0].key), ("", "collector"));
    let resource = batch.0.resource_metrics[0].resource.clone().unwrap();
    let names: std::collections::BTreeSet<_> =
        resource.attributes.iter().map(|pair| &*pair.key).collect();
    for name in ["service.name", "service.version", "service.instance.id", "host.name", "rack"] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
}

#[test]
fn counters_have_a_start_time_that_is_renewed_when_they_fall() {
    let (own, kernel, older) =
        ("uma_samples_missed_total", "uma_memory_page_faults_total", "uma_reboots_total");
    let seen = |seconds, values: [f64; 3]| {
        let result: &[(&str, &str)] = &[("result", "done")];
        status(
            seconds,
            &[
                (own, &[], Reading::Value(values[0])),
                (kernel, &[], Reading::Value(values[1])),
                (older, result, Reading::Value(values[2])),
            ],
        )
    };
    let mut exporter = exporter();
    let first = exporter.batch(&seen(10, [1.0, 100.0, 3.0]));
    assert_eq!(counter(&first, own), (1_000_000, 1.0), "with this process");
    assert_eq!(counter(&first, kernel), (999_500, 100.0), "with the boot");
    assert_eq!(counter(&first, older), (1_000_010, 3.0), "unknown");
    let second = exporter.batch(&seen(20, [5.0, 50.0, 3.0]));
    assert_eq!(counter(&second, own), (1_000_000, 5.0));
    assert_eq!(counter(&second, kernel), (1_000_020, 50.0), "it fell");
    assert_eq!(counter(&second, older), (1_000_010, 3.0));
    let third = exporter.batch(&seen(30, [5.0, 60.0, 3.0]));
    assert_eq!(counter(&third, kernel), (1_000_020, 60.0));
}

#[test]
fn a_histogram_is_one_metric_and_is_sent_only_if_complete() {
    let le: [&[(&str, &str)]; 3] = [&[("le", "+Inf")], &[("le", "0.001")], &[("le", "0.01")]];
    let name = "uma_loop_reaction_seconds";
    let part = |suffix: &str| format!("{name}_{suffix}");
    let (bucket, sum, count) = (part("bucket"), part("sum"), part("count"));
    let mut series: Vec<Series<'_>> = vec![
        (&bucket, le[0], Reading::Value(9.0)),
        (&bucket, le[2], Reading::Value(7.0)),
        (&bucket, le[1], Reading::Value(4.0)),
        (&sum, &[], Reading::Value(1.5)),
        (&count, &[], Reading::Value(9.0)),
    ];
    let batch = exporter().batch(&status(1, &series));
    let sent = metrics(&batch);
    let (unit, metric::Data::Histogram(histogram)) = &sent[name] else { panic!("{sent:?}") };
    let point = &histogram.data_points[0];
    assert_eq!((&**unit, point.count, point.sum), ("s", 9, Some(1.5)));
    assert_eq!(
        (&*point.explicit_bounds, &*point.bucket_counts),
        (&[0.001, 0.01][..], &[4, 3, 2][..])
    );
    series[3].2 = Reading::Failed;
    assert!(metrics(&exporter().batch(&status(1, &series))).is_empty());
}

#[test]
fn counters_of_unknown_age_are_in_the_table() {
    for name in super::metrics::OLDER {
        assert!(METRICS.iter().any(|metric| metric.name == name), "{name}");
    }
}

fn trace(id: u64, message: &str) -> Trace {
    let mut tracer = Tracer::new("boot".into());
    tracer.take(TraceInput::Decision(DecisionRecord {
        id: DecisionId(id),
        at: at(0),
        rule: RuleId { group: "g".into(), alert: "A".into() },
        mode: Mode::Observe,
        decision: Decision::Act,
        step: 0,
        action: Action::Notify { message: message.to_owned() },
        target: Target::Node,
        approved: None,
        goes_ahead: None,
        because: Vec::new(),
    }));
    tracer.end().remove(0)
}

#[test]
fn the_oldest_traces_are_dropped_and_counted() {
    let mut queue = TraceQueue::default();
    let spans = trace(0, "").len();
    let mut dropped = 0;
    for id in 0..5000 {
        dropped += queue.push(trace(id, &"x".repeat(900)));
    }
    assert!(dropped > 0 && dropped.is_multiple_of(spans), "whole traces go: {dropped}");
    assert_eq!(queue.spans() + dropped, 5000 * spans, "nothing is lost uncounted");
    assert!(queue.spans() * size_of::<SpanData>() <= MOST_BYTES);
    let mut sent = Vec::new();
    loop {
        let batch = queue.batch();
        if batch.is_empty() {
            break;
        }
        assert!(batch.len() < 1000, "no request is endless");
        sent.extend(batch);
    }
    let last = trace(4999, &"x".repeat(900));
    assert_eq!(sent.last(), last.last(), "the newest has stayed");
    assert_eq!(sent.len() + dropped, 5000 * spans);
    assert_eq!(queue.spans(), 0);
}
