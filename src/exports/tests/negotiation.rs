use hyper::HeaderMap;
use hyper::header::{ACCEPT, ACCEPT_ENCODING};
use proptest::prelude::*;

use super::super::negotiation::Format::{OpenMetrics, Text};
use super::super::negotiation::{Format, accepts_gzip, format};

fn format_for(accept: &str) -> Format {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, accept.parse().unwrap());
    format(&headers)
}

fn gzip_for(accept: &str) -> bool {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT_ENCODING, accept.parse().unwrap());
    accepts_gzip(&headers)
}

#[test]
fn the_format_is_the_one_preferred_by_the_client() {
    let cases = [
        // Prometheus 2.30 and before, 2.42, 3.x with and without protobuf, VictoriaMetrics.
        (
            "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Text,
        ),
        (
            "application/openmetrics-text;version=1.0.0,\
             application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,\
             */*;q=0.1",
            OpenMetrics,
        ),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,\
             text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,\
             */*;q=0.2",
            OpenMetrics,
        ),
        (
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
             encoding=delimited;q=0.6,\
             application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.5,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            OpenMetrics,
        ),
        ("text/plain;version=0.0.4;q=1,*/*;q=0.1", Text),
        (
            "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5,\
             */*;q=0.1",
            Text,
        ),
        // curl, browsers, nothing.
        ("*/*", Text),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8", Text),
        ("", Text),
        // One format alone, or refused.
        ("application/openmetrics-text", OpenMetrics),
        ("APPLICATION/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8", OpenMetrics),
        ("application/*", OpenMetrics),
        ("text/*", Text),
        ("application/openmetrics-text;q=0", Text),
        ("text/plain;q=0, */*", OpenMetrics),
        ("application/openmetrics-text;q=0.000,*/*;q=0.1", Text),
        ("application/openmetrics-text;version=2.0.0", Text),
        // Weights decide; the more specific range decides whose weight; a tie goes to the range
        // that says more, and then to text.
        ("application/openmetrics-text;q=0.4,text/plain;q=0.5", Text),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.4", OpenMetrics),
        ("application/openmetrics-text,text/plain", Text),
        ("application/openmetrics-text;version=1.0.0,text/plain", OpenMetrics),
        ("application/openmetrics-text;q=0.1,application/*;q=0.9,text/plain;q=0.5", Text),
        // Nonsense is passed over.
        ("application/openmetrics-text;q=NaN", Text),
        ("application/openmetrics-text;q=7", Text),
        ("application/json", Text),
        ("a/b;c=\"x,application/openmetrics-text\"", Text),
        ("a/b;c=\"\\\"\",application/openmetrics-text", OpenMetrics),
        (";;;,,,===", Text),
    ];
    for (accept, expected) in cases {
        assert_eq!(format_for(accept), expected, "{accept:?}");
    }
    assert_eq!(format(&HeaderMap::new()), Text, "absent");
}

#[test]
fn several_accept_lines_count_as_one() {
    let mut headers = HeaderMap::new();
    headers.append(ACCEPT, "text/plain;q=0.5".parse().unwrap());
    headers.append(ACCEPT, "application/openmetrics-text".parse().unwrap());
    assert_eq!(format(&headers), OpenMetrics);
}

#[test]
fn gzip_is_used_only_if_the_client_accepts_it() {
    let cases = [
        ("gzip", true),
        ("GZIP;Q=1", true),
        ("x-gzip", true),
        ("deflate, gzip, br, zstd", true),
        ("gzip;q=0.001", true),
        ("*", true),
        ("identity;q=0.5, *;q=0.7", true),
        ("gzip;q=0", false),
        ("gzip;q=0.000, *;q=1", false),
        ("gzip;q=0.5, identity;q=0.6", false),
        ("gzip;q=2", false),
        ("*;q=0", false),
        ("identity", false),
        ("br", false),
        ("", false),
    ];
    for (accept, expected) in cases {
        assert_eq!(gzip_for(accept), expected, "{accept:?}");
    }
    assert!(!accepts_gzip(&HeaderMap::new()), "absent");
}

proptest! {
    #[test]
    fn two_weighted_encodings_are_decided_by_their_weights_alone(
        open in 1_u16..=1000,
        text in 1_u16..=1000,
        other in "[a-z]{1,5}/[a-z*;=\", ]{0,9}",
    ) {
        let (open_weight, text_weight) = (f32::from(open) / 1e3, f32::from(text) / 1e3);
        let pair = format!(
            "application/openmetrics-text;q={open_weight},text/plain;q={text_weight}"
        );
        let expected = if open > text { OpenMetrics } else { Text };
        prop_assert_eq!(format_for(&format!("{pair},{other}")), expected);
    }

    #[test]
    fn negotiation_accepts_any_header(accept in "[ -~]{0,80}") {
        format_for(&accept);
        gzip_for(&accept);
    }
}
