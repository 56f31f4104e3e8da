use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use jiff::Timestamp;
use promql_rules::store::SeriesStore;
use proptest::prelude::*;

use super::*;
use crate::model::{DecisionId, METRICS, Mode, Moment, Reading, SeriesKey};
use crate::policy::Policy;
use crate::policy::rule::RuleSet;
use crate::policy::status::Status;
use crate::samples::history::StoreFiller;

static RUNS: AtomicBool = AtomicBool::new(false);
const SOON: Duration = Duration::from_millis(300);

/// A time of the daemon's life, which began at 1 000 s.
const BEGIN_MS: i64 = 1_000_000;

fn series(names: &[(&str, &[(&str, &str)])]) -> Arc<[SeriesKey]> {
    names.iter().map(|(name, labels)| SeriesKey::new(name, labels)).collect()
}

fn history() -> History {
    History::new(INTERVAL, KEPT, KEPT_BYTES)
}

/// The values of one metric between two instants.
fn filled(history: &History, name: &str, from_ms: i64, to_ms: i64) -> SeriesStore {
    let (wanted, target) = ([(Arc::from(name), from_ms)], TargetLabels::default());
    let mut filler = StoreFiller::new(&wanted, to_ms, &target);
    history.fill(&mut filler).unwrap();
    filler.into_store()
}

fn points(store: &SeriesStore, index: usize) -> Vec<(i64, f64)> {
    let id = promql_rules::store::SeriesId(u32::try_from(index).unwrap());
    store.window(id, i64::MIN, i64::MAX).points().map(|point| (point.at_ms, point.value)).collect()
}

fn at(ms: i64) -> Moment {
    let uptime = Duration::from_millis(u64::try_from(ms).unwrap());
    Moment { uptime, utc: Timestamp::from_millisecond(ms).unwrap() }
}

/// A status with these readings.
fn status(ms: i64, series: &Arc<[SeriesKey]>, values: &[Reading<f64>]) -> Status {
    let rules = RuleSet::default();
    let mut policy = Policy::new(at(BEGIN_MS), Mode::Observe, &rules, DecisionId(1));
    Status { series: Arc::clone(series), values: values.to_vec(), ..policy.status(at(ms)) }
}

fn parameters(pairs: &[(&str, &str)]) -> Parameters {
    let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Parameters::new(pairs.collect())
}

fn instant(expr: &str, at_ms: i64) -> SampleQuery {
    SampleQuery::at_instant(&parameters(&[("query", expr), ("target_labels", "false")]), at_ms)
        .unwrap()
}

fn node() -> TargetLabels {
    TargetLabels::new(&[("instance", "spark-1:9942"), ("job", "umawarden")])
}

fn envelope(live: &LiveSamples, query: &SampleQuery, now: &Status) -> serde_json::Value {
    let result = live.query(query, now, SOON, &RUNS).unwrap();
    serde_json::from_str(&result.data().envelope(&result.warnings)).unwrap()
}

proptest! {
    #[test]
    fn samples_are_those_that_were_taken(
        frames in prop::collection::vec(
            (prop::collection::vec(prop::option::of(-1e12..1e12), 3), 1..5_000_i64), 1..300),
        window in (0..300_usize, 0..300_usize),
    ) {
        let keys = series(&[("uma_a", &[("x", "1")]), ("uma_b", &[]), ("uma_a", &[("x", "2")])]);
        let mut kept = history();
        let mut taken = Vec::new();
        let mut at_ms = BEGIN_MS;
        for (values, later) in &frames {
            at_ms += later;
            let readings: Vec<_> =
                values.iter().map(|value| value.map_or(Reading::Failed, Reading::Value)).collect();
            kept.push(at_ms, &keys, &readings);
            taken.push((at_ms, values));
        }
        let time = |index: usize| taken[index.min(taken.len() - 1)].0;
        let (from, to) = (time(window.0.min(window.1)), time(window.0.max(window.1)));
        let store = filled(&kept, "uma_a", from, to);
        for position in [0, 2] {
            let expected: Vec<_> = taken.iter()
                .filter(|(at, _)| *at >= from && *at <= to)
                .filter_map(|(at, values)| Some((*at, values[position]?)))
                .collect();
            let index = store.keys().iter().position(|key| *key == keys[position]);
            let found = index.map_or_else(Vec::new, |index| points(&store, index));
            prop_assert_eq!(found, expected);
        }
        prop_assert!(store.keys().iter().all(|key| &*key.name == "uma_a"));
    }

    #[test]
    fn any_parameters_are_read_or_refused(
        pairs in prop::collection::vec((
            prop_oneof![Just("query"), Just("time"), Just("start"), Just("end"), Just("step"),
                Just("limit"), Just("timeout"), Just("match[]"), Just("target_labels")],
            prop_oneof![
                ".{0,20}", "-?[0-9]{1,20}(\\.[0-9]{0,12})?", "[0-9]{1,9}(ms|s|m|h|d|w|y)",
                "[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{1,9})?Z",
                Just("1e300".to_owned()), Just("nan".to_owned()), Just("-inf".to_owned()),
                Just("uma_a".to_owned()), Just("{__name__!=\"\"}".to_owned()),
            ],
        ), 0..8),
    ) {
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let parameters = parameters(&pairs);
        check(&parameters);
    }
}

/// What holds for each readable request.
fn check(parameters: &Parameters) {
    let _ = SampleQuery::at_instant(parameters, BEGIN_MS);
    if let Ok(SampleQuery { when: QueryTime::Range { start_ms, end_ms, step_ms }, .. }) =
        SampleQuery::over_range(parameters)
    {
        assert!(start_ms <= end_ms && step_ms > 0);
        assert!((end_ms - start_ms) / step_ms <= MAX_STEPS);
    }
    for listing in [
        CatalogueListing::Series,
        CatalogueListing::Labels,
        CatalogueListing::Values("pool".to_owned()),
    ] {
        let _ = listing.read(parameters);
    }
    let _ = metadata(parameters);
}

#[test]
fn a_series_ends_where_frames_are_missing_and_where_it_is_gone() {
    let both = series(&[("uma_a", &[]), ("uma_a", &[("x", "1")])]);
    let one = series(&[("uma_a", &[])]);
    let mut kept = history();
    let value = Reading::Value(1.0);
    kept.push(1_000, &both, &[value, value]);
    kept.push(6_000, &one, &[value]);
    kept.push(60_000, &one, &[value]);
    let store = filled(&kept, "uma_a", 0, 100_000);
    let [first, second] = [0, 1].map(promql_rules::store::SeriesId);
    let is_there = |id, at_ms| store.at(id, at_ms).is_some();
    assert!(is_there(second, 5_999) && !is_there(second, 6_000), "gone with the next frame");
    assert!(is_there(first, 10_999) && !is_there(first, 11_000), "ended one interval later");
    assert!(is_there(first, 60_000));
}

#[test]
fn a_clock_that_is_set_back_far_begins_anew() {
    let keys = series(&[("uma_a", &[])]);
    let mut kept = history();
    kept.push(1_000_000, &keys, &[Reading::Value(1.0)]);
    kept.push(999_000, &keys, &[Reading::Value(2.0)]);
    assert_eq!(kept.newest_ms(), Some(1_000_000), "a second back is only late");
    kept.push(100_000, &keys, &[Reading::Value(3.0)]);
    assert_eq!((kept.oldest_ms(), kept.newest_ms()), (Some(100_000), Some(100_000)));
}

#[test]
fn memory_is_bounded_by_time_and_bytes() {
    let names: Vec<String> = (0..1_000).map(|number| format!("uma_{number}")).collect();
    let keys: Arc<[SeriesKey]> = names.iter().map(|name| SeriesKey::new(name, &[])).collect();
    let mut kept = History::new(INTERVAL, Duration::from_secs(3_600), 512 << 10);
    for frame in 0..2_000_i64 {
        let value = |number: usize| Reading::Value((frame * 31 * (number as i64 + 7)) as f64);
        let readings: Vec<_> = (0..1_000).map(value).collect();
        kept.push(frame * 5_000, &keys, &readings);
        assert!(kept.size() <= 512 << 10, "{frame}: {}", kept.size());
    }
    let mut by_time = History::new(INTERVAL, Duration::from_secs(3_600), usize::MAX);
    let one = series(&[("uma_a", &[])]);
    for frame in 0..2_000_i64 {
        by_time.push(frame * 5_000, &one, &[Reading::Value(1.0)]);
    }
    let reach = by_time.newest_ms().unwrap() - by_time.oldest_ms().unwrap();
    assert!((3_600_000..3_600_000 + 600_000).contains(&reach), "{reach}");
}

/// An idle node has about 450 series, of which a fifth changes from sample to sample.
#[test]
fn six_hours_of_an_idle_node_take_less_than_two_mebibytes() {
    let names: Vec<String> = (0..450).map(|number| format!("uma_{number}")).collect();
    let keys: Arc<[SeriesKey]> = names.iter().map(|name| SeriesKey::new(name, &[])).collect();
    let mut kept = history();
    for frame in 0..4_320_i64 {
        let value = |number: usize| match number % 5 {
            0 => Reading::Value((1_i64 << 36 | (frame * 4_096 * (number as i64 % 97))) as f64),
            _ => Reading::Value(number as f64),
        };
        kept.push(frame * 5_000, &keys, &(0..450).map(value).collect::<Vec<_>>());
    }
    let (size, reach) = (kept.size(), kept.newest_ms().unwrap() - kept.oldest_ms().unwrap());
    assert_eq!(reach, 4_319 * 5_000, "nothing was dropped");
    assert!(size < 2 << 20, "{size}");
}

#[test]
fn older_frames_come_before_the_own() {
    let keys = series(&[("uma_a", &[])]);
    let [mut older, mut newer] = [(); 2].map(|()| history());
    for frame in 0..300 {
        older.push(frame * 5_000, &keys, &[Reading::Value(1.0)]);
    }
    newer.push(1_500_000, &keys, &[Reading::Value(2.0)]);
    newer.put_before(older);
    let found = points(&filled(&newer, "uma_a", 0, i64::MAX), 0);
    assert_eq!((found.len(), found[0], found[300]), (301, (0, 1.0), (1_500_000, 2.0)));
}

#[test]
fn results_are_written_as_prometheus_writes_them() {
    let labels: promql_rules::Labels = [(Arc::from("a"), Arc::from("\"\\\n"))].into();
    let sample =
        |value| promql_rules::Sample { name: Some("uma_a".into()), labels: labels.clone(), value };
    let series = ResultSeries {
        name: None,
        labels: [].into(),
        points: vec![(0, f64::NAN), (1_500, -0.0), (-1_002, 1e21), (2_007, 1e-7)],
    };
    for (found, expected) in [
        (
            EvaluationResult::Scalar(1_435_781_451_781, 1.0),
            r#""scalar","result":[1435781451.781,"1"]"#,
        ),
        (
            EvaluationResult::Vector(5_000, vec![sample(f64::INFINITY), sample(f64::NEG_INFINITY)]),
            r#""vector","result":[{"metric":{"__name__":"uma_a","a":"\"\\\n"},"value":[5,"+Inf"]},{"metric":{"__name__":"uma_a","a":"\"\\\n"},"value":[5,"-Inf"]}]"#,
        ),
        (
            EvaluationResult::Matrix(vec![series]),
            r#""matrix","result":[{"metric":{},"values":[[0,"NaN"],[1.500,"-0"],[-1.002,"1000000000000000000000"],[2.007,"0.0000001"]]}]"#,
        ),
        (EvaluationResult::Matrix(Vec::new()), r#""matrix","result":[]"#),
        (EvaluationResult::Text(1_500, "a\"\n".into()), r#""string","result":[1.500,"a\"\n"]"#),
    ] {
        let result = QueryResult { found, warnings: Vec::new() };
        let data = result.data();
        assert_eq!(data.0, format!("{{\"resultType\":{expected}}}"));
        assert!(serde_json::from_str::<serde_json::Value>(&data.0).is_ok());
        let warned = data.envelope(&["a \"b\"".to_owned()]);
        assert!(warned.ends_with(r#","warnings":["a \"b\""]}"#), "{warned}");
    }
}

/// Kept samples of five minutes, 0 to 59, the newest value, 99, and its time.
fn five_minutes() -> (LiveSamples, Status, i64) {
    let keys = series(&[("uma_memory_free_bytes", &[])]);
    let live = LiveSamples::new(node(), PastState::Read);
    for step in 0..60 {
        let value = Reading::Value(f64::from(step));
        live.take(&status(BEGIN_MS + i64::from(step) * 5_000, &keys, &[value]));
    }
    let now_ms = BEGIN_MS + 298_000;
    (live, status(now_ms, &keys, &[Reading::Value(99.0)]), now_ms)
}

#[test]
fn a_query_reads_the_kept_samples_and_the_newest_ones() {
    let (live, now, now_ms) = five_minutes();
    for (expr, value) in [
        ("uma_memory_free_bytes", "99"),
        ("uma_memory_free_bytes offset 3s", "59"),
        ("uma_memory_free_bytes offset 1m", "47"),
        ("count_over_time(uma_memory_free_bytes[1m])", "13"),
        ("scalar(uma_memory_free_bytes) - 1", "98"),
        ("1 + 1", "2"),
    ] {
        let envelope = envelope(&live, &instant(expr, now_ms), &now);
        let result = &envelope["data"]["result"];
        let found = if result[0].is_object() { &result[0]["value"][1] } else { &result[1] };
        assert_eq!(found, value, "{expr}: {envelope}");
        assert_eq!(envelope.get("warnings"), None, "{expr}");
    }
    let range = parameters(&[
        ("query", "uma_memory_free_bytes"),
        ("start", "1000"),
        ("end", "1020"),
        ("step", "10s"),
    ]);
    let envelope = envelope(&live, &SampleQuery::over_range(&range).unwrap(), &now);
    let expected = serde_json::json!([{
        "metric": {
            "__name__": "uma_memory_free_bytes",
            "instance": "spark-1:9942",
            "job": "umawarden"
        },
        "values": [[1000, "0"], [1010, "2"], [1020, "4"]],
    }]);
    assert_eq!(envelope["data"]["result"], expected);
}

#[test]
fn a_range_alone_is_its_samples_and_a_string_is_itself() {
    let (live, now, now_ms) = five_minutes();
    let data = |expr: &str| envelope(&live, &instant(expr, now_ms), &now)["data"].clone();
    let matrix = |values: &[(u32, &str)]| {
        let metric = serde_json::json!({ "__name__": "uma_memory_free_bytes" });
        let series = serde_json::json!([{ "metric": metric, "values": values }]);
        serde_json::json!({ "resultType": "matrix", "result": series })
    };
    // The sample at the begin of the range is not within it.
    let expected = matrix(&[(1_290, "58"), (1_295, "59"), (1_298, "99")]);
    assert_eq!(data("uma_memory_free_bytes[13s]"), expected);
    let expected = matrix(&[(1_235, "47")]);
    assert_eq!(data("(uma_memory_free_bytes[5s] offset 1m)"), expected);
    let nothing = serde_json::json!({ "resultType": "matrix", "result": [] });
    assert_eq!(data("uma_memory_free_bytes[1s] offset 1h"), nothing);
    let text = serde_json::json!({ "resultType": "string", "result": [1_298, "a"] });
    assert_eq!(data("\"a\""), text);
}

#[test]
fn unknown_readings_are_absent_with_a_remark() {
    let keys = series(&[("uma_memory_free_bytes", &[]), ("uma_memory_total_bytes", &[])]);
    let live = LiveSamples::new(node(), PastState::Read);
    let now = status(BEGIN_MS, &keys, &[Reading::Failed, Reading::Unsupported]);
    live.take(&now);
    for (expr, warning) in [
        ("uma_memory_free_bytes", "uma_memory_free_bytes is unknown now: its reading failed"),
        ("uma_memory_total_bytes > 0", "uma_memory_total_bytes is not available on this machine"),
        (
            "uma_memory_fre_bytes",
            "umawarden has no metric \"uma_memory_fre_bytes\": did you mean \
             \"uma_memory_free_bytes\"?",
        ),
    ] {
        let envelope = envelope(&live, &instant(expr, BEGIN_MS), &now);
        assert_eq!(envelope["data"]["result"], serde_json::json!([]), "{expr}");
        assert_eq!(envelope["warnings"], serde_json::json!([warning]), "{expr}");
    }
    let absent = envelope(&live, &instant("absent(uma_memory_free_bytes)", BEGIN_MS), &now);
    assert_eq!(absent["data"]["result"][0]["value"][1], "1");
}

#[test]
fn bounds_are_errors_that_name_them() {
    let names: Vec<String> = (0..300).map(|number| number.to_string()).collect();
    let keys: Arc<[SeriesKey]> =
        names.iter().map(|name| SeriesKey::new("uma_memory_free_bytes", &[("n", name)])).collect();
    let live = LiveSamples::new(TargetLabels::default(), PastState::Read);
    let values = vec![Reading::Value(1.0); 300];
    for frame in 0..4_000 {
        live.take(&status(BEGIN_MS + frame * 5_000, &keys, &values));
    }
    let now = status(BEGIN_MS + 20_000_000, &keys, &values);
    let over = |start: &str, end: &str, step: &str| {
        let pairs = [("query", "uma_memory_free_bytes"), ("start", start), ("end", end)];
        let query = SampleQuery::over_range(&parameters(&[&pairs[..], &[("step", step)]].concat()));
        live.query(&query.unwrap(), &now, SOON, &RUNS).unwrap_err()
    };
    let QueryFailure::Execution(text) = over("1000", "20000", "5m") else { panic!("no bound") };
    assert!(text.contains("more than 1048576 samples") && text.contains("shorter range"), "{text}");
    let QueryFailure::Execution(text) = over("19000", "20000", "1s") else { panic!("no bound") };
    assert!(text.contains("more than 131072 points") && text.contains("longer step"), "{text}");
    let samples = instant("uma_memory_free_bytes[1h]", BEGIN_MS + 19_000_000);
    let QueryFailure::Execution(text) = live.query(&samples, &now, SOON, &RUNS).unwrap_err() else {
        panic!("no bound")
    };
    assert!(text.contains("more than 131072 points") && text.contains("fewer series"), "{text}");
    let canceled = AtomicBool::new(true);
    let range = [("query", "1"), ("start", "0"), ("end", "10"), ("step", "1")];
    let query = SampleQuery::over_range(&parameters(&range)).unwrap();
    let failure = live.query(&query, &now, SOON, &canceled).unwrap_err();
    assert_eq!(failure.kind(), "timeout", "{failure}");
}

#[test]
fn mistakes_in_parameters_are_named() {
    let range = |changed: &[(&str, &str)]| {
        let usual = [("query", "uma_a"), ("start", "0"), ("end", "10"), ("step", "1")];
        SampleQuery::over_range(&parameters(&[changed, &usual[..]].concat())).map(|_| ())
    };
    assert_eq!(range(&[]), Ok(()));
    for (name, value, problem) in [
        ("query", "uma_a[5m:1m]", "1:6: parse error: subqueries are not supported here (use "),
        ("query", "uma_a @ 5", "1:7: parse error: the @ modifier is not supported here (offset "),
        (
            "query",
            "{__name__=~\"uma_.*\"}",
            "matching several metrics by name is not supported here",
        ),
        ("query", "{pool=\"host\"}", "a selector without a metric's name is not supported here"),
        ("query", "hour()", "1:1: parse error: function hour is not supported here"),
        ("query", "uma_a offset -1m", "1:14: parse error: a negative offset is not supported here"),
        (
            "query",
            "uma_a[5m]",
            "invalid parameter \"query\": invalid expression type \"range vector\" for range \
             query, must be Scalar or instant Vector",
        ),
        ("query", "\"a\"", "invalid expression type \"string\" for range query"),
        ("query", "sum(\n  uma_a", "2:8: parse error: unclosed left parenthesis"),
        ("query", "quantil(0.5, uma_a)", "1:1: parse error: unknown function"),
        ("start", "yesterday", "cannot parse \"yesterday\" to a valid timestamp"),
        ("start", "nan", "to a valid timestamp"),
        ("end", "-1", "end timestamp must not be before start time"),
        ("end", "11001", "exceeded maximum resolution of 11,000 points"),
        ("step", "0", "zero or negative query resolution step widths"),
        ("step", "-5", "zero or negative query resolution step widths"),
        ("step", "1 s", "cannot parse \"1 s\" to a valid duration"),
        ("timeout", "soon", "cannot parse \"soon\" to a valid duration"),
        ("limit", "-1", "is no number from 0 on"),
        ("target_labels", "no", "is neither true nor false"),
    ] {
        let failure = range(&[(name, value)]).unwrap_err();
        assert!(failure.to_string().contains(problem), "{name}={value}: {failure}");
        assert_eq!(failure.kind(), "bad_data");
    }
    for (time, ms) in [
        ("1435781430.781", 1_435_781_430_781),
        ("2015-07-01T20:10:30.781Z", 1_435_781_430_781),
        ("2015-07-01T22:10:30.781+02:00", 1_435_781_430_781),
        ("-1.5", -1_500),
        ("1e3", 1_000_000),
    ] {
        let query =
            SampleQuery::at_instant(&parameters(&[("query", "1"), ("time", time)]), 0).unwrap();
        assert_eq!(query.when, QueryTime::At(ms), "{time}");
    }
}

#[test]
fn series_labels_and_values_are_listed() {
    let keys = series(&[
        ("uma_a", &[("pool", "host")]),
        ("uma_a", &[("pool", "gpu0")]),
        ("uma_b", &[("job", "own")]),
        ("uma_c", &[]),
    ]);
    let live = LiveSamples::new(node(), PastState::Read);
    let value = Reading::Value(1.0);
    live.take(&status(BEGIN_MS, &keys, &[value, value, value, Reading::Unsupported]));
    let now = status(BEGIN_MS + 5_000, &keys, &[value, Reading::Failed, value, Reading::Failed]);
    let list = |listing: CatalogueListing, pairs: &[(&str, &str)]| {
        let listed = listing.read(&parameters(pairs)).unwrap();
        let (all, _) = live.series(&listed, &now, SOON, &RUNS).unwrap();
        listing.of(&all, &listed)
    };
    let texts = |listing, pairs: &[(&str, &str)]| {
        let (data, _) = list(listing, pairs);
        data.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let names: Vec<String> = texts(CatalogueListing::Values("__name__".to_owned()), &[]);
    assert_eq!(names, ["uma_a", "uma_b"], "without a value there is no series");
    let names: Vec<String> = texts(CatalogueListing::Labels, &[]);
    assert_eq!(names, ["__name__", "exported_job", "instance", "job", "pool"]);
    let pools: Vec<String> =
        texts(CatalogueListing::Values("pool".to_owned()), &[("match[]", "uma_a")]);
    assert_eq!(pools, ["gpu0", "host"]);
    let pools: Vec<String> =
        texts(CatalogueListing::Values("pool".to_owned()), &[("start", "1004")]);
    assert_eq!(pools, ["host"], "the other one has failed since");
    let (data, warnings) =
        list(CatalogueListing::Series, &[("match[]", "{job=\"umawarden\"}"), ("limit", "1")]);
    assert_eq!(data.as_array().unwrap().len(), 1);
    assert_eq!(warnings, ["results truncated due to limit"]);
    let selections =
        [("match[]", "uma_b"), ("match[]", "{pool=~\"g.*\"}"), ("target_labels", "false")];
    let (data, _) = list(CatalogueListing::Series, &selections);
    let expected = serde_json::json!([
        { "__name__": "uma_a", "pool": "gpu0" },
        { "__name__": "uma_b", "job": "own" },
    ]);
    assert_eq!(data, expected);
    for (listing, pairs) in [
        (CatalogueListing::Series, &[][..]),
        (CatalogueListing::Series, &[("match[]", "a + b")]),
        (CatalogueListing::Labels, &[("start", "x")]),
        (CatalogueListing::Values("pool".to_owned()), &[("match[]", "{}")]),
    ] {
        assert!(listing.read(&parameters(pairs)).is_err(), "{listing:?} {pairs:?}");
    }
}

#[test]
fn metadata_has_the_types_of_a_scrape() {
    let data = metadata(&parameters(&[])).unwrap();
    let kind = |name: &str| data[name][0]["type"].as_str().unwrap_or("none").to_owned();
    assert_eq!(kind("uma_memory_free_bytes"), "gauge");
    assert_eq!(kind("uma_kernel_events_total"), "counter");
    assert_eq!(kind("uma_build_info"), "gauge");
    assert_eq!(kind("uma_loop_reaction_seconds"), "histogram");
    assert!(data.as_object().unwrap().len() < METRICS.len());
    let one = metadata(&parameters(&[("metric", "uma_build_info")])).unwrap();
    assert_eq!(one.as_object().unwrap().len(), 1);
    assert_eq!(metadata(&parameters(&[("limit", "3")])).unwrap().as_object().unwrap().len(), 3);
    assert!(metadata(&parameters(&[("limit", "x")])).is_err());
}

#[test]
fn the_past_is_read_when_a_query_needs_it_and_its_absence_is_reported() {
    let keys = series(&[("uma_memory_free_bytes", &[])]);
    let live = Arc::new(LiveSamples::new(TargetLabels::default(), PastState::Unread));
    let now = status(BEGIN_MS + 100_000, &keys, &[Reading::Value(2.0)]);
    live.take(&now);
    let recent = instant("uma_memory_free_bytes", BEGIN_MS + 100_000);
    assert_eq!(live.query(&recent, &now, SOON, &RUNS).unwrap().warnings, Vec::<String>::new());
    assert!(!live.wait(Duration::ZERO), "the newest values need no past");
    let earlier = instant("uma_memory_free_bytes", BEGIN_MS - 60_000);
    let result = live.query(&earlier, &now, SOON, &RUNS).unwrap();
    assert!(result.warnings[0].contains("still being read"), "{result:?}");
    assert!(live.wait(Duration::ZERO) && !live.wait(Duration::ZERO), "it is read once");
    let mut older = history();
    older.push(BEGIN_MS - 61_000, &keys, &[Reading::Value(1.0)]);
    let reader = Arc::clone(&live);
    let reading = std::thread::spawn(move || {
        std::thread::sleep(SOON / 3);
        reader.put_past(older, None);
    });
    let result = live.query(&earlier, &now, 10 * SOON, &RUNS).unwrap();
    reading.join().unwrap();
    assert_eq!((result.found.count(), result.warnings.len()), (1, 0), "{result:?}");
    let off =
        LiveSamples::new(TargetLabels::default(), PastState::Unavailable("it is off".to_owned()));
    off.take(&now);
    let result = off.query(&earlier, &now, SOON, &RUNS).unwrap();
    assert!(result.warnings[0].ends_with("are missing: it is off"), "{result:?}");
}

#[test]
fn a_list_with_a_begin_reads_the_past() {
    let keys = series(&[("uma_a", &[("engine", "gone")])]);
    let live = LiveSamples::new(TargetLabels::default(), PastState::Unread);
    let now = status(BEGIN_MS + 100_000, &Arc::from([]), &[]);
    let listing = CatalogueListing::Values("engine".to_owned());
    let list = |pairs: &[(&str, &str)]| {
        let listed = listing.read(&parameters(pairs)).unwrap();
        let (all, remark) = live.series(&listed, &now, SOON, &RUNS).unwrap();
        (listing.of(&all, &listed).0, remark)
    };
    let (begin, none) = ([("start", "940")], serde_json::json!([]));
    assert_eq!(list(&[]), (none.clone(), None));
    assert!(!live.wait(Duration::ZERO), "without a begin no past is needed");
    let (found, remark) = list(&begin);
    assert!(found == none && remark.unwrap().contains("still being read"), "{found}");
    assert!(live.wait(Duration::ZERO), "it is wanted");
    let mut older = history();
    older.push(BEGIN_MS - 50_000, &keys, &[Reading::Value(1.0)]);
    live.put_past(older, None);
    assert_eq!(list(&begin), (serde_json::json!(["gone"]), None));
    let canceled = AtomicBool::new(true);
    let listed = listing.read(&parameters(&begin)).unwrap();
    let failure = live.series(&listed, &now, SOON, &canceled).unwrap_err();
    assert_eq!(failure.kind(), "timeout", "{failure}");
}
