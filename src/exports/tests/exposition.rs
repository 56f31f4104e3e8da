use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use flate2::read::GzDecoder;
use proptest::prelude::*;

use super::super::exposition::{Catalogue, gzip, text, text_by};
use super::super::negotiation::Format;
use super::super::selection::NameSelection;
use super::openmetrics::{Family, Sample, read};
use super::status;
use crate::model::{METRICS, Metric, MetricKind, Reading, SeriesKey, Source};

const fn metric(name: &'static str, kind: MetricKind, help: &'static str) -> Metric {
    Metric::new(kind, Source::Daemon, name, &[], help)
}

static KINDS: &[Metric] = &[
    metric("z_bytes", MetricKind::Gauge, "First in the table."),
    metric("events_total", MetricKind::Counter, "A \"quoted\" \\ help\nof two lines."),
    metric("build_info", MetricKind::Info, "The build."),
    metric("wait_seconds_bucket", MetricKind::Histogram, "Waits."),
    metric("wait_seconds_sum", MetricKind::Histogram, "All of them."),
    metric("wait_seconds_count", MetricKind::Histogram, "How many."),
];

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::new(KINDS));

fn written(series: &[(SeriesKey, Reading<f64>)], format: Format) -> String {
    text_by(&CATALOGUE, status(series.to_vec()), format, NameSelection::default()).unwrap()
}

fn one(value: f64) -> String {
    let series = [(SeriesKey::new("z_bytes", &[]), Reading::Value(value))];
    let text = written(&series, Format::Text);
    text.trim_end().rsplit(' ').next().unwrap().to_owned()
}

/// Interleaved, out of the catalogue's order, with one that it does not know.
fn mixed() -> Vec<(SeriesKey, Reading<f64>)> {
    vec![
        (SeriesKey::new("stranger", &[]), Reading::Value(f64::INFINITY)),
        (SeriesKey::new("build_info", &[("version", "1")]), Reading::Value(1.0)),
        (SeriesKey::new("events_total", &[("event", "b")]), Reading::Value(7.0)),
        (SeriesKey::new("z_bytes", &[]), Reading::Value(0.5)),
        (SeriesKey::new("events_total", &[("event", "a")]), Reading::Value(0.0)),
    ]
}

#[test]
fn text_groups_families_in_the_order_of_the_catalogue() {
    let expected = "\
# HELP z_bytes First in the table
# TYPE z_bytes gauge
z_bytes 0.5
# HELP events_total A \"quoted\" \\\\ help\\nof two lines
# TYPE events_total counter
events_total{event=\"b\"} 7
events_total{event=\"a\"} 0
# HELP build_info The build
# TYPE build_info gauge
build_info{version=\"1\"} 1
# HELP stranger Not in this build's catalogue
# TYPE stranger untyped
stranger +Inf
";
    assert_eq!(written(&mixed(), Format::Text), expected);
}

#[test]
fn only_selected_series_are_written_and_histograms_complete() {
    let mut series = mixed();
    series.extend([
        (SeriesKey::new("wait_seconds_bucket", &[("le", "+Inf")]), Reading::Value(5.0)),
        (SeriesKey::new("wait_seconds_sum", &[]), Reading::Value(7.25)),
        (SeriesKey::new("wait_seconds_count", &[]), Reading::Value(5.0)),
    ]);
    let selected = |names: &str, format| {
        let selection = NameSelection::of(&format!("/metrics?{names}").parse().unwrap());
        text_by(&CATALOGUE, status(series.clone()), format, selection).unwrap()
    };
    let two = selected("name[]=z_bytes&name[]=stranger&name[]=nowhere", Format::Text);
    let expected = "\
# HELP z_bytes First in the table
# TYPE z_bytes gauge
z_bytes 0.5
# HELP stranger Not in this build's catalogue
# TYPE stranger untyped
stranger +Inf
";
    assert_eq!(two, expected);
    assert_eq!(selected("name[]=nowhere", Format::Text), "");
    assert_eq!(selected("name[]=nowhere", Format::OpenMetrics), "# EOF\n");
    for part in ["wait_seconds", "wait_seconds_count", "wait_seconds_bucket"] {
        let text = selected(&format!("name[]={part}"), Format::Text);
        assert!(text.contains("wait_seconds_sum 7.25\nwait_seconds_count 5\n"), "{part}: {text}");
        assert!(text.contains("le=\"+Inf\"} 5") && !text.contains("z_bytes"), "{part}: {text}");
    }
}

#[test]
fn a_zero_that_nothing_asks_for_is_left_out_unless_it_is_selected() {
    let hidden = ["uma_remedy_breaker_open", "uma_engine_release_seconds_count"];
    let series = |value: f64| {
        let plain = |name: &str| (SeriesKey::new(name, &[]), Reading::Value(value));
        let within = |le: &str, value| {
            let key = SeriesKey::new("uma_engine_release_seconds_bucket", &[("le", le)]);
            (key, Reading::Value(value))
        };
        let histogram = ["sum", "count"].map(|part| format!("uma_engine_release_seconds_{part}"));
        let parts = histogram.iter().map(|name| plain(name));
        let buckets = [within("2.0", 0.0), within("+Inf", value)];
        let others = [plain("uma_remedy_breaker_open"), plain("uma_paused")];
        buckets.into_iter().chain(parts).chain(others).collect::<Vec<_>>()
    };
    for format in [Format::Text, Format::OpenMetrics] {
        let of = |value, uri: &str| {
            text(status(series(value)), format, NameSelection::of(&uri.parse().unwrap())).unwrap()
        };
        let zero = of(0.0, "/metrics");
        assert!(zero.contains("uma_paused 0\n"), "{zero}");
        assert!(!hidden.iter().any(|name| zero.contains(name)), "{zero}");
        let one = of(1.0, "/metrics");
        assert!(hidden.iter().all(|name| one.contains(name)), "{one}");
        assert!(one.contains("uma_engine_release_seconds_bucket{le=\"2.0\"} 0\n"), "{one}");
        for name in hidden {
            let selected = of(0.0, &format!("/metrics?name[]={name}"));
            assert!(selected.contains(&format!("{name} 0\n")), "{selected}");
        }
    }
}

#[test]
fn openmetrics_names_families_without_suffix_and_ends_with_eof() {
    let expected = "\
# HELP z_bytes First in the table
# TYPE z_bytes gauge
z_bytes 0.5
# HELP events A \\\"quoted\\\" \\\\ help\\nof two lines
# TYPE events counter
events_total{event=\"b\"} 7
events_total{event=\"a\"} 0
# HELP build The build
# TYPE build info
build_info{version=\"1\"} 1
# HELP stranger Not in this build's catalogue
# TYPE stranger unknown
stranger +Inf
# EOF
";
    assert_eq!(written(&mixed(), Format::OpenMetrics), expected);
}

#[test]
fn a_histogram_is_one_family_with_its_buckets_as_they_were() {
    let series = [
        (SeriesKey::new("wait_seconds_bucket", &[("le", "0.5")]), Reading::Value(2.0)),
        (SeriesKey::new("wait_seconds_bucket", &[("le", "1.0")]), Reading::Value(2.0)),
        (SeriesKey::new("wait_seconds_bucket", &[("le", "+Inf")]), Reading::Value(5.0)),
        (SeriesKey::new("wait_seconds_sum", &[]), Reading::Value(7.25)),
        (SeriesKey::new("wait_seconds_count", &[]), Reading::Value(5.0)),
    ];
    let expected = "\
# HELP wait_seconds Waits
# TYPE wait_seconds histogram
wait_seconds_sum 7.25
wait_seconds_count 5
wait_seconds_bucket{le=\"0.5\"} 2
wait_seconds_bucket{le=\"1.0\"} 2
wait_seconds_bucket{le=\"+Inf\"} 5
";
    assert_eq!(written(&series, Format::Text), expected);
    assert_eq!(written(&series, Format::OpenMetrics), format!("{expected}# EOF\n"));
    let families = read(&written(&series, Format::Text), Format::Text);
    assert!(same_samples(&series, &families), "rules and scrapers see the same labels");
}

#[test]
fn only_values_are_exported_and_an_empty_family_leaves_no_trace() {
    let series = [
        (SeriesKey::new("z_bytes", &[]), Reading::Unsupported),
        (SeriesKey::new("events_total", &[("event", "a")]), Reading::Failed),
        (SeriesKey::new("events_total", &[("event", "b")]), Reading::Value(3.0)),
    ];
    let text = written(&series, Format::Text);
    assert!(!text.contains("z_bytes") && !text.contains("event=\"a\""), "{text}");
    assert!(text.contains("events_total{event=\"b\"} 3\n"), "{text}");
    assert_eq!(written(&[], Format::OpenMetrics), "# EOF\n");
    assert_eq!(written(&[], Format::Text), "");
}

#[test]
fn values_are_short_and_whole_numbers_are_written_out() {
    let cases = [
        (0.0, "0"),
        (1.0, "1"),
        (-3.0, "-3"),
        (0.1, "0.1"),
        (128_849_018_880.0, "128849018880"),
        (9_007_199_254_740_993.0, "9007199254740992"),
        (1e18, "1000000000000000000"),
        (f64::NAN, "NaN"),
        (f64::INFINITY, "+Inf"),
        (f64::NEG_INFINITY, "-Inf"),
    ];
    for (value, expected) in cases {
        assert_eq!(one(value), expected);
    }
}

#[test]
fn a_negative_counter_is_written_as_it_is() {
    let series = [(SeriesKey::new("events_total", &[("a", ".0")]), Reading::Value(-7.0))];
    for format in [Format::Text, Format::OpenMetrics] {
        assert!(written(&series, format).contains("events_total{a=\".0\"} -7\n"));
    }
}

#[test]
fn an_unwritable_series_does_not_spoil_the_others() {
    let unwritable = [
        SeriesKey::new("", &[]),
        SeriesKey::new("has blank", &[]),
        SeriesKey::new("line\nbreak 1", &[]),
        SeriesKey::new("1digit", &[]),
        SeriesKey::new("stranger", &[("a-b", "x")]),
        SeriesKey::new("stranger", &[("a", "x"), ("a", "y")]),
    ];
    let mut series: Vec<_> = unwritable.into_iter().map(|key| (key, Reading::Value(1.0))).collect();
    series.push((SeriesKey::new("z_bytes", &[]), Reading::Value(2.0)));
    for format in [Format::Text, Format::OpenMetrics] {
        let families = read(&written(&series, format), format);
        assert_eq!(families.len(), 1, "{families:?}");
    }
}

#[test]
fn a_label_value_that_imitates_the_format_stays_a_value() {
    let hostile = "a\"} inf\n# TYPE x unknown\n# EOF\n\\ü\u{0}\r\u{2028} inf";
    let series = [
        (SeriesKey::new("events_total", &[("event", hostile)]), Reading::Value(2.0)),
        (SeriesKey::new("stranger", &[("x", "unknown"), ("y", " inf")]), Reading::Value(1.0)),
    ];
    for format in [Format::Text, Format::OpenMetrics] {
        let families = read(&written(&series, format), format);
        assert_eq!(families[0].samples[0].labels[0].1, hostile);
        assert_eq!(families[1].samples[0].labels[1].1, " inf");
    }
}

#[test]
fn every_metric_of_the_catalogue_can_be_written_in_both_formats() {
    for format in [Format::Text, Format::OpenMetrics] {
        let families = read(
            &text(status(catalogue_series()), format, NameSelection::default()).unwrap(),
            format,
        );
        let of_parts = |metric: &&Metric| {
            metric.kind == MetricKind::Histogram && !metric.name.ends_with("_bucket")
        };
        let metrics: Vec<_> =
            METRICS.iter().filter(|metric| !of_parts(metric) && !metric.is_of_others).collect();
        assert_eq!(families.len(), metrics.len());
        for (family, metric) in families.iter().zip(metrics) {
            let names = || family.samples.iter().map(|sample| sample.name.as_str());
            assert!(names().any(|name| name == metric.name), "the catalogue's order");
            assert_eq!(family.help, metric.summary());
            assert_ne!(family.kind, "unknown", "{} lacks its suffix", metric.name);
        }
    }
}

fn catalogue_series() -> Vec<(SeriesKey, Reading<f64>)> {
    let series = METRICS.iter().map(|metric| {
        let any = |label: &&'static str| match *label {
            "le" => ("le", "+Inf"),
            label => (label, "x \"y\"\n\\"),
        };
        let labels: Vec<_> = metric.labels.iter().map(any).collect();
        (SeriesKey::new(metric.name, &labels), Reading::Value(1.0))
    });
    series.collect()
}

#[test]
fn promtool_has_no_complaints_about_the_catalogue() {
    let Some(promtool) = promtool() else {
        eprintln!("not checked: no promtool here (Debian package prometheus)");
        return;
    };
    let mut check = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let exposition =
        text(status(catalogue_series()), Format::Text, NameSelection::default()).unwrap();
    check.stdin.take().unwrap().write_all(exposition.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

fn promtool() -> Option<String> {
    let candidates = std::env::var("UMAWARDEN_PROMTOOL").ok().into_iter();
    candidates
        .chain(["/usr/bin/promtool", "/usr/local/bin/promtool"].map(str::to_owned))
        .find(|path| Path::new(path).exists())
}

#[test]
fn gzip_reads_back_the_same_and_is_worth_it() {
    let text = written(&mixed(), Format::Text).repeat(20);
    let compressed = gzip(&text).unwrap();
    let mut back = String::new();
    GzDecoder::new(compressed.as_slice()).read_to_string(&mut back).unwrap();
    assert_eq!(back, text);
    assert!(compressed.len() * 4 < text.len());
}

fn any_value() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        any::<i64>().prop_map(|whole| whole as f64),
        any::<i32>().prop_map(f64::from),
        (0_u32..1000).prop_map(f64::from),
        Just(f64::NAN),
        Just(-0.0),
    ]
}

fn any_series() -> impl Strategy<Value = Vec<(SeriesKey, Reading<f64>)>> {
    let name = prop_oneof![Just("events_total"), Just("z_bytes"), Just("stranger")];
    let series = (name, ".{0,12}", "[\\\\\"\n{}, =a]{1,6}", any_value());
    proptest::collection::vec(series, 0..12).prop_map(|drafts| {
        let numbered = drafts.into_iter().enumerate().map(|(number, (name, a, b, value))| {
            let labels = [("a", a.as_str()), ("b", &b), ("n", &number.to_string())];
            (SeriesKey::new(name, &labels), Reading::Value(value))
        });
        numbered.collect()
    })
}

fn same_samples(series: &[(SeriesKey, Reading<f64>)], families: &[Family]) -> bool {
    let mut left: Vec<&Sample> = families.iter().flat_map(|family| &family.samples).collect();
    for (key, reading) in series {
        let value = reading.value().unwrap();
        let found = left.iter().position(|sample| {
            let same_labels =
                sample.labels.len() == key.labels.len()
                    && sample.labels.iter().zip(key.labels.iter()).all(
                        |(written, (name, value))| *written.0 == **name && *written.1 == **value,
                    );
            let same_value = sample.value == value || (sample.value.is_nan() && value.is_nan());
            *sample.name == *key.name && same_labels && same_value
        });
        let Some(found) = found else { return false };
        left.remove(found);
    }
    left.is_empty()
}

proptest! {
    #[test]
    fn written_series_read_back_the_same(series in any_series()) {
        for format in [Format::Text, Format::OpenMetrics] {
            let text = written(&series, format);
            prop_assert!(same_samples(&series, &read(&text, format)), "{}", text);
        }
    }
}
