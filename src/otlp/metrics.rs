//! The metrics of a snapshot as OTLP: the names, labels and values of `/metrics`.
//!
//! They are made from the snapshot. Instruments of an SDK would be a second set to keep equal, and
//! cannot express a missing value.

use std::collections::BTreeMap;

use jiff::Timestamp;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;

use crate::model::{METRICS, MetricKind, SeriesKey, Source};
use crate::policy::status::Status;
use crate::traces::scope;

/// Counters that an earlier run or the driver began. Their start is unknown.
pub(super) const OLDER: [&str; 3] =
    ["uma_unclean_boots_total", "uma_reboots_total", "uma_gpu_uncorrected_errors_total"];

struct Point<'s> {
    position: usize,
    key: &'s SeriesKey,
    value: f64,
}

/// Makes requests, and tracks the start of each counter.
pub(super) struct Exporter {
    resource: ResourceAttributesWithSchema,
    scope: InstrumentationScope,
    /// Positions in the table of all metrics, by name.
    positions: BTreeMap<&'static str, usize>,
    runs: BTreeMap<SeriesKey, CounterRun>,
}

/// A counter since it last fell.
#[derive(Clone, Copy)]
struct CounterRun {
    began: u64,
    last: f64,
}

/// A request, and the number of its points.
pub(super) type Batch = (ExportMetricsServiceRequest, u64);

impl Exporter {
    pub(super) fn new(resource: ResourceAttributesWithSchema) -> Self {
        let positions =
            METRICS.iter().enumerate().map(|(position, metric)| (metric.name, position));
        Self {
            resource,
            scope: (&scope(), None).into(),
            positions: positions.collect(),
            runs: BTreeMap::new(),
        }
    }

    /// All current values. Missing values and NaN are omitted.
    pub(super) fn batch(&mut self, status: &Status) -> Batch {
        let now = nanos(status.at.utc);
        let series = status.series.iter().zip(&status.values);
        let mut points: Vec<Point<'_>> = series
            .filter_map(|(key, reading)| {
                let value = reading.value().filter(|value| !value.is_nan())?;
                let position = self.positions.get(&*key.name).copied().unwrap_or(usize::MAX);
                Some(Point { position, key, value })
            })
            .collect();
        points.sort_by(|a, b| (a.position, a.key).cmp(&(b.position, b.key)));
        let mut count = 0;
        let mut metrics = Vec::new();
        let mut runs = std::mem::take(&mut self.runs);
        for family in points.chunk_by(|a, b| name(a) == name(b)) {
            let Some(first) = family.first() else { continue };
            let known = METRICS.get(first.position);
            let made = match known.map(|metric| metric.kind) {
                Some(MetricKind::Counter) => {
                    let began = |point: &Point<'_>| self.began(status, point, &mut runs);
                    sum(family.iter().map(began).zip(family), now)
                }
                Some(MetricKind::Histogram) => match histogram(family, now, status) {
                    Some(made) => made,
                    None => continue,
                },
                _ => gauge(family, now),
            };
            count += points_of(&made);
            metrics.push(Metric {
                name: name(first).to_owned(),
                description: known.map_or("", |metric| metric.help).to_owned(),
                unit: unit(name(first)).to_owned(),
                metadata: Vec::new(),
                data: Some(made),
            });
        }
        (self.request(metrics), count)
    }

    /// The start of a counter. A counter that falls begins anew at the time of its last value.
    /// Counters that disappear are forgotten.
    fn began(
        &mut self,
        status: &Status,
        point: &Point<'_>,
        before: &mut BTreeMap<SeriesKey, CounterRun>,
    ) -> u64 {
        let now = nanos(status.at.utc);
        let (key, run) = before
            .remove_entry(point.key)
            .map_or_else(|| (point.key.clone(), None), |(key, run)| (key, Some(run)));
        let began = match run {
            Some(run) if run.last <= point.value => run.began,
            Some(_) => now,
            None => nanos(first_began(status, point).unwrap_or(status.at.utc)),
        };
        self.runs.insert(key, CounterRun { began, last: point.value });
        began
    }

    fn request(&self, metrics: Vec<Metric>) -> ExportMetricsServiceRequest {
        let resource = Resource {
            attributes: self.resource.attributes.0.clone(),
            dropped_attributes_count: 0,
            entity_refs: Vec::new(),
        };
        let of_scope =
            ScopeMetrics { scope: Some(self.scope.clone()), metrics, schema_url: String::new() };
        let of_resource = ResourceMetrics {
            resource: Some(resource),
            scope_metrics: vec![of_scope],
            schema_url: self.resource.schema_url.clone().unwrap_or_default(),
        };
        ExportMetricsServiceRequest { resource_metrics: vec![of_resource] }
    }
}

/// Counters of the kernel begin with the boot, those of this program with its start. The start of
/// others is unknown.
fn first_began(status: &Status, point: &Point<'_>) -> Option<Timestamp> {
    let metric = METRICS.get(point.position)?;
    match metric.source {
        _ if OLDER.contains(&metric.name) => None,
        Source::Vmstat | Source::Pressure => {
            let up = jiff::SignedDuration::try_from(status.started.uptime).ok()?;
            status.started.utc.checked_sub(up).ok()
        }
        _ => Some(status.started.utc),
    }
}

fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or(0)
}

/// The metric that a series belongs to: a histogram is several series.
fn name<'s>(point: &Point<'s>) -> &'s str {
    let full: &str = &point.key.name;
    match METRICS.get(point.position).map(|metric| metric.kind) {
        Some(MetricKind::Histogram) => full.rsplit_once('_').map_or(full, |(name, _)| name),
        _ => full,
    }
}

/// The UCUM unit, by the suffix of the name. Without a suffix it is empty: Prometheus would call a
/// metric with unit "1" a ratio.
fn unit(name: &str) -> &'static str {
    let base = name.strip_suffix("_total").unwrap_or(name);
    match base.rsplit_once('_').map(|(_, last)| last) {
        Some("bytes") => "By",
        Some("seconds") => "s",
        Some("celsius") => "Cel",
        Some("watts") => "W",
        _ => "",
    }
}

fn labels(key: &SeriesKey) -> Vec<KeyValue> {
    let one = |(name, value): &(std::sync::Arc<str>, std::sync::Arc<str>)| KeyValue {
        key: name.to_string(),
        value: Some(AnyValue { value: Some(any_value::Value::StringValue(value.to_string())) }),
        ..KeyValue::default()
    };
    key.labels.iter().map(one).collect()
}

fn number(point: &Point<'_>, began: u64, now: u64) -> NumberDataPoint {
    NumberDataPoint {
        attributes: labels(point.key),
        start_time_unix_nano: began,
        time_unix_nano: now,
        value: Some(number_data_point::Value::AsDouble(point.value)),
        ..NumberDataPoint::default()
    }
}

fn gauge(family: &[Point<'_>], now: u64) -> metric::Data {
    let data_points = family.iter().map(|point| number(point, 0, now)).collect();
    metric::Data::Gauge(Gauge { data_points })
}

fn sum<'f>(points: impl Iterator<Item = (u64, &'f Point<'f>)>, now: u64) -> metric::Data {
    metric::Data::Sum(Sum {
        data_points: points.map(|(began, point)| number(point, began, now)).collect(),
        aggregation_temporality: AggregationTemporality::Cumulative.into(),
        is_monotonic: true,
    })
}

/// `None` if a part is missing.
fn histogram(family: &[Point<'_>], now: u64, status: &Status) -> Option<metric::Data> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count; any other value saturates"
    )]
    let whole = |value: f64| value as u64;
    let part = |suffix: &str| {
        family.iter().find(|point| point.key.name.ends_with(suffix)).map(|point| point.value)
    };
    let (sum, count) = (part("_sum")?, whole(part("_count")?));
    let buckets = family.iter().filter(|point| point.key.name.ends_with("_bucket"));
    let bound = |point: &Point<'_>| {
        let (_, bound) = point.key.labels.first()?;
        Some((bound.parse::<f64>().ok()?, whole(point.value)))
    };
    let mut buckets = buckets.map(bound).collect::<Option<Vec<_>>>()?;
    buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut below = 0;
    let (mut explicit_bounds, mut bucket_counts) = (Vec::new(), Vec::new());
    for (bound, within) in buckets {
        if bound.is_finite() {
            explicit_bounds.push(bound);
            bucket_counts.push(within.saturating_sub(below));
            below = within.max(below);
        }
    }
    bucket_counts.push(count.saturating_sub(below));
    let point = HistogramDataPoint {
        start_time_unix_nano: nanos(status.started.utc),
        time_unix_nano: now,
        count,
        sum: Some(sum),
        bucket_counts,
        explicit_bounds,
        ..HistogramDataPoint::default()
    };
    Some(metric::Data::Histogram(Histogram {
        data_points: vec![point],
        aggregation_temporality: AggregationTemporality::Cumulative.into(),
    }))
}

fn points_of(data: &metric::Data) -> u64 {
    let count = match data {
        metric::Data::Gauge(gauge) => gauge.data_points.len(),
        metric::Data::Sum(sum) => sum.data_points.len(),
        metric::Data::Histogram(histogram) => histogram.data_points.len(),
        metric::Data::ExponentialHistogram(_) | metric::Data::Summary(_) => 0,
    };
    count as u64
}
