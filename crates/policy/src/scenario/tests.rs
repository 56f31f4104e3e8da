use promql_rules::store::is_stale;
use proptest::prelude::*;

use super::notation::{Cursor, Sequence, parse_metric};
use super::parse_tests;
use crate::config::mistake::SourceText;
use crate::model::Reading;

fn values(text: &str) -> Vec<Option<Reading<f64>>> {
    let sequence = Sequence::parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    let mut cursor = Cursor::default();
    (0..sequence.count()).map(|_| sequence.next(&mut cursor)).collect()
}

fn numbers(text: &str) -> Vec<f64> {
    values(text).into_iter().map(|value| value.and_then(Reading::value).unwrap()).collect()
}

#[test]
fn repetitions_give_one_value_more_and_gaps_do_not() {
    assert_eq!(numbers("1x3"), [1.0; 4]);
    assert_eq!(numbers("5-2x2 7"), [5.0, 3.0, 1.0, 7.0]);
    assert_eq!(values("_x3"), [None; 3]);
    assert_eq!(values(" _  _x0 failedx2"), [None, Some(Reading::Failed), Some(Reading::Failed)]);
    assert!(values("").is_empty());
}

#[test]
fn steps_add_up_with_their_error() {
    assert_eq!(numbers("0+0.1x3"), [0.0, 0.1, 0.2, 0.300_000_000_000_000_04]);
    assert!(numbers("-0x2").iter().all(|value| value.is_sign_negative()));
}

#[test]
fn numbers_are_those_of_series_and_not_of_expressions() {
    assert_eq!(numbers("010 1_0 .5 -2e-1 +4"), [8.0, 10.0, 0.5, -0.2, 4.0]);
    assert_eq!(numbers("0x10"), [0.0; 11], "no hexadecimal");
    assert_eq!(numbers("-Inf inf"), [f64::NEG_INFINITY, f64::INFINITY]);
    let stale = values("stale")[0].and_then(Reading::value);
    assert!(stale.is_some_and(is_stale));
    assert!(numbers("NaN").iter().all(|value| value.is_nan() && !is_stale(*value)));
}

#[test]
fn values_refused_by_promtool_are_refused() {
    let wrong = [
        "Infx3",
        "1+1",
        "1 x5",
        "stalex2",
        "Stale",
        "1e",
        "5m",
        "1+-1x2",
        "1x5.0",
        "1x-1",
        "1x5x5",
        "- 1",
        "1_x3",
        "_1",
        "1,2",
        "1x1_0",
        "1x",
        "{{count:1}}",
        "failed2",
        "x5",
        "1+2_x3",
    ];
    for text in wrong {
        assert!(Sequence::parse(text).is_err(), "{text}");
    }
}

#[test]
fn metrics_are_read_in_all_their_forms() {
    let key = |text: &str| {
        let labels = parse_metric(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
        labels
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(key("a"), "__name__=a");
    assert_eq!(key(""), "");
    assert_eq!(key("a:b{c=\"d e\", f='g', h=`\\i`,}"), "__name__=a:b c=d e f=g h=\\i");
    assert_eq!(key("{\"x y\", \"l m\"=\"\\\"\"}"), "__name__=x y l m=\"");
    assert_eq!(key("{__name__=\"a\", b=\"\"}"), "__name__=a");
    for wrong in [
        "0a",
        "a b",
        "a{b}",
        "a{,}",
        "a{b=1}",
        "a{b=\"}",
        "a{b=\"1\" c=\"2\"}",
        "a{1x=\"d\"}",
        "a{}}",
    ] {
        assert!(parse_metric(wrong).is_err(), "{wrong}");
    }
    assert!(parse_metric("a{b=\"1\",b=\"2\"}").is_err(), "a label twice");
}

proptest! {
    #[test]
    fn arbitrary_notations_do_not_panic(text in "[-+0-9x_ .eE{}=\"'`\\\\,a-z\\PC]{0,60}") {
        let _ = Sequence::parse(&text);
        let _ = parse_metric(&text);
    }

    #[test]
    fn any_test_file_does_no_harm(text in "(tests:\n)?(- (interval|input_series|remedy_test|outcomes): ?\\PC{0,9}\n){0,5}") {
        let _ = parse_tests(&SourceText::new("test.yaml", text));
    }
}
