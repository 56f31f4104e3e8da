use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::QueryTimes;
use super::plot::{bounds, columns, line, lines};
use super::show::{Canvas, QueryView};

const UTF8: Canvas = Canvas { columns: 60, is_utf8: true };
const ASCII: Canvas = Canvas { columns: 60, is_utf8: false };

fn times(since: Option<i64>, until: i64, step: u64) -> QueryTimes {
    let at = |seconds| Timestamp::from_second(seconds).unwrap();
    QueryTimes {
        since: since.map(at),
        until: at(until),
        is_now: false,
        step: Duration::from_secs(step),
    }
}

fn matrix(name: &str, values: &[&str]) -> Value {
    let values: Vec<Value> =
        values.iter().enumerate().map(|(at, text)| json!([1_000 + 10 * at, text])).collect();
    json!({ "metric": { "__name__": name, "pool": "host" }, "values": values })
}

#[test]
fn one_value_is_a_table_with_units() {
    let data = json!({ "resultType": "vector", "result": [
        { "metric": { "__name__": "uma_a_bytes", "pool": "host" }, "value": [1, "1610612736"] },
        { "metric": { "__name__": "uma_b" }, "value": [1, "-Inf"] },
        { "metric": {}, "value": [1, "0.1"] },
    ]});
    let text = QueryView::of(&data).unwrap().text(UTF8, times(None, 1, 5));
    assert_eq!(text, "1.5 GiB  uma_a_bytes{pool=\"host\"}\n   -Inf  uma_b\n    0.1  {}");
    let data = json!({ "resultType": "scalar", "result": [1, "2"] });
    assert_eq!(QueryView::of(&data).unwrap().text(UTF8, times(None, 1, 5)), "2");
    let nothing = json!({ "resultType": "vector", "result": [] });
    let nothing = QueryView::of(&nothing).unwrap();
    assert!(nothing.is_empty() && nothing.text(ASCII, times(None, 1, 5)).starts_with("nothing"));
}

#[test]
fn samples_are_printed_with_their_times_and_a_string_as_it_is() {
    let values = json!([[1_000, "1610612736"], [1_005.25, "0"]]);
    let metric = json!({ "__name__": "uma_a_bytes" });
    let result = json!([{ "metric": metric, "values": values }, matrix("uma_b", &["1"])]);
    let data = json!({ "resultType": "matrix", "result": result });
    let shown = QueryView::of(&data).unwrap();
    assert_eq!(
        shown.text(UTF8, times(None, 1_010, 5)),
        "uma_a_bytes\n  1.5 GiB  1970-01-01T00:16:40.000Z\n      0 B  1970-01-01T00:16:45.250Z\n\
         uma_b{pool=\"host\"}\n  1  1970-01-01T00:16:40.000Z"
    );
    let many = vec!["1"; 130];
    let data = json!({ "resultType": "matrix", "result": [matrix("uma_a", &many)] });
    let text = QueryView::of(&data).unwrap().text(UTF8, times(None, 9_000, 5));
    assert_eq!(text.lines().nth(1), Some("  30 earlier samples (--json has all)"), "{text}");
    assert_eq!(text.lines().count(), 102);
    let shown = QueryView::of(&json!({ "resultType": "string", "result": [1, "a\n"] })).unwrap();
    assert_eq!(shown.text(UTF8, times(None, 1, 5)), "a\\n");
    assert!(!shown.is_empty());
    assert_eq!(shown.json_lines().collect::<Vec<_>>(), [&json!({ "value": [1, "a\n"] })]);
}

#[test]
fn values_over_time_are_lines() {
    let values = ["0", "1", "2", "3", "4", "5", "6", "7"];
    let result = [matrix("uma_a", &values), matrix("uma_b", &values[..3])];
    let data = json!({ "resultType": "matrix", "result": result });
    let shown = QueryView::of(&data).unwrap();
    let range = times(Some(1_000), 1_070, 10);
    assert_eq!(
        shown.text(UTF8, range),
        "uma_a{pool=\"host\"}\n  ▁▂▃▄▅▆▇█  0 to 7, last 7\n\
         uma_b{pool=\"host\"}\n  ▁▅█       0 to 2, last 2"
    );
    assert!(shown.text(ASCII, range).is_ascii());
    assert_eq!(shown.json_lines().count(), 2);

    // On a narrow terminal, too, a column is the same time in all lines.
    let long = ["123456789", "0.25", "1", "2", "3", "4", "5", "1000000"];
    let result = [matrix("uma_a", &long), matrix("uma_b", &values)];
    let data = json!({ "resultType": "matrix", "result": result });
    let narrow = Canvas { columns: 48, is_utf8: false };
    let text = QueryView::of(&data).unwrap().text(narrow, times(Some(1_000), 1_400, 10));
    let lines: Vec<&str> = text.lines().collect();
    let ends = [lines[1].find("  0.25 to "), lines[3].find("  0 to ")];
    assert!(ends[0].is_some() && ends[0] == ends[1], "{text}");
}

#[test]
fn one_series_over_time_is_plotted_with_its_bounds_and_times() {
    let values = ["0", "10", "20", "30", "40", "30", "20", "10"];
    let data = json!({ "resultType": "matrix", "result": [matrix("uma_a", &values)] });
    let shown = QueryView::of(&data).unwrap();
    for canvas in [UTF8, ASCII] {
        let text = shown.text(canvas, times(Some(1_000), 1_070, 10));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "uma_a{pool=\"host\"}, last 10");
        assert!(lines[1].starts_with("40 ") && lines[8].starts_with(" 0 "), "{text}");
        assert!(lines[9].contains("1970-01-01T00:16:40Z") && lines[9].ends_with("00:17:50Z"));
        assert_eq!(lines.len(), 10);
        assert!(lines.iter().all(|line| line.chars().count() <= canvas.columns), "{text}");
        assert_eq!(text.is_ascii(), !canvas.is_utf8);
    }
}

#[test]
fn a_plot_begins_with_the_first_value_and_its_bounds_differ() {
    let values = ["19005415424", "19006415424", "19007415424"];
    let result = [matrix("uma_a_bytes", &values)];
    let data = json!({ "resultType": "matrix", "result": result });
    let shown = QueryView::of(&data).unwrap();
    let text = shown.text(ASCII, times(Some(-2_500), 1_020, 10));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].starts_with("18126.9 MiB |"), "{text}");
    assert!(lines[8].starts_with("18125.0 MiB |"), "{text}");
    assert!(lines[9].trim_start().starts_with("1970-01-01T00:16:40Z"), "{text}");
    assert_eq!(lines[10], "the values begin at 1970-01-01T00:16:40Z");
    let result = [matrix("uma_a_bytes", &values), matrix("uma_b", &["1"])];
    let data = json!({ "resultType": "matrix", "result": result });
    let text = QueryView::of(&data).unwrap().text(ASCII, times(Some(-2_500), 1_020, 10));
    assert!(text.contains("  18125.0 MiB to 18126.9 MiB, last 18126.9 MiB\n"), "{text}");
    assert!(text.ends_with("\nthe values begin at 1970-01-01T00:16:40Z"), "{text}");
}

#[test]
fn lines_have_a_place_for_each_value_and_none_for_holes() {
    let values = [Some(0.0), None, Some(7.0), Some(3.5)];
    assert_eq!(line(&values, (0.0, 7.0), true), "▁ █▅");
    assert_eq!(line(&values, (0.0, 7.0), false), "_ #=");
    assert_eq!(line(&[Some(5.0)], (5.0, 5.0), false), "=", "neither low nor high");
    let rows = lines(&values, (0.0, 7.0), false);
    assert_eq!(rows.first().map(String::as_str), Some("  * "));
    assert_eq!(rows.last().map(String::as_str), Some("*   "));
    // A steep line is whole.
    assert!(rows[1..4].iter().all(|row| row.ends_with('*')), "{rows:?}");
    let rows = lines(&[Some(0.0), Some(1.0)], (0.0, 1.0), true);
    assert!(rows.iter().all(|row| row.chars().count() == 1), "two values a character: {rows:?}");
    assert_eq!(bounds([f64::NAN, 3.0, f64::INFINITY, -1.0].into_iter()), Some((-1.0, 3.0)));
    assert_eq!(bounds([f64::NAN].into_iter()), None);
    let extremes = [Some(f64::MIN), Some(f64::MAX)];
    assert_eq!(line(&extremes, (f64::MIN, f64::MAX), false), "_#");
}

#[test]
fn columns_have_means_hold_a_value_for_a_step_and_have_holes() {
    let points = [(0.0, 1.0), (5.0, 3.0), (10.0, f64::NAN), (40.0, 8.0)];
    let found = columns(&points, (0.0, 40.0), 10.0, 5);
    assert_eq!(found, [Some(2.0), Some(3.0), None, None, Some(8.0)]);
    assert_eq!(columns(&[], (0.0, 1.0), 1.0, 3), [None; 3]);
    let fine = columns(&[(0.0, 1.0), (10.0, 2.0)], (0.0, 10.0), 10.0, 4);
    assert_eq!(fine, [Some(1.0), Some(1.0), Some(2.0), Some(2.0)]);
}

#[test]
fn other_responses_are_errors() {
    for data in [
        json!(null),
        json!({}),
        json!({ "resultType": "vector" }),
        json!({ "resultType": "vector", "result": [{}] }),
        json!({ "resultType": "vector", "result": [{ "metric": {}, "value": [1, "x"] }] }),
        json!({ "resultType": "scalar", "result": [1] }),
        json!({ "resultType": "string", "result": [1, 2] }),
    ] {
        assert!(QueryView::of(&data).is_err(), "{data}");
    }
}
