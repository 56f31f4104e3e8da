use proptest::prelude::*;

use super::*;
use crate::parse;
use crate::store::stale_marker;
use crate::{Reading, SeriesKey};

/// What one series does in one step.
#[derive(Clone, Copy, Debug)]
enum Does {
    Nothing,
    Stays,
    Reports(Reading<f64>),
}

fn does() -> impl Strategy<Value = Does> {
    prop_oneof![
        4 => Just(Does::Stays),
        4 => (0..4_i32).prop_map(|value| Does::Reports(Reading::Value(f64::from(value)))),
        1 => Just(Does::Nothing),
        1 => prop::sample::select(vec![
            Does::Reports(Reading::Failed),
            Does::Reports(Reading::Unsupported),
            Does::Reports(Reading::Value(stale_marker())),
            Does::Reports(Reading::Value(f64::NAN)),
            Does::Reports(Reading::Value(f64::INFINITY)),
            Does::Reports(Reading::Value(-0.0)),
        ]),
    ]
}

fn steps() -> impl Strategy<Value = Vec<(i64, Vec<Does>)>> {
    let rarely_all = prop_oneof![
        3 => prop::collection::vec(does(), SERIES.len()),
        2 => Just(vec![Does::Stays; SERIES.len()]),
    ];
    prop::collection::vec((1..1500_i64, rarely_all), 1..40)
}

const SERIES: [(&str, &str); 6] =
    [("a", ""), ("b", ""), ("c_total", ""), ("m", "1"), ("m", "2"), ("m", "3")];

fn vector() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "a",
        "b",
        "a offset 1s",
        "m{k=\"1\"}",
        "m{k=~\"1|4\"}",
        "sum(m)",
        "max(m)",
        "count(m)",
        "quantile(0.5, m)",
        "sum(rate(m[3s]))",
        "avg(increase(m[3s]))",
        "count(delta(m[2s]))",
        "increase(c_total[3s])",
        "rate(c_total[3s] offset 1s)",
        "deriv(a[2s])",
        "predict_linear(a[2s], 2)",
        "avg_over_time(a[2s])",
        "last_over_time(b[1s])",
        "absent(b)",
        "sum by (k) (m)",
    ]);
    leaf.prop_map(str::to_owned).prop_recursive(2, 6, 2, |inner| {
        let two = (inner.clone(), inner.clone());
        prop_oneof![
            (two.clone(), operator()).prop_map(|((l, r), op)| format!("({l} {op} on() {r})")),
            two.prop_map(|(l, r)| format!("({l} >bool on() {r})")),
            inner.clone().prop_map(|operand| format!("-{operand}")),
            (inner, scalar()).prop_map(|(l, r)| format!("({l} * {r})")),
        ]
    })
}

fn operator() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["+", "-", "*", "/"])
}

fn scalar() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["0", "1", "2", "-1", "(1 + 2)", "time()"])
}

fn condition() -> impl Strategy<Value = String> {
    let compares = || prop::sample::select(vec![">", "<", "==", "!=", ">=", "<="]);
    let leaf = prop_oneof![
        4 => (vector(), compares(), vector()).prop_map(|(l, op, r)| format!("{l} {op} on() {r}")),
        4 => (vector(), compares(), scalar()).prop_map(|(l, op, r)| format!("{l} {op} {r}")),
        2 => (scalar(), compares()).prop_map(|(l, op)| format!("{l} {op} m")),
        2 => (compares(), scalar()).prop_map(|(op, r)| format!("rate(m[3s]) {op} {r}")),
        1 => vector(),
        1 => Just("m".to_owned()),
        1 => Just("m > on() a".to_owned()),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        let set = prop::sample::select(vec!["and on()", "or", "or on()", "unless on()", "and"]);
        let aggregate = prop::sample::select(vec![
            "sum",
            "count",
            "sum without (k)",
            "max by (k)",
            "topk without (k) (1,",
        ]);
        prop_oneof![
            3 => (inner.clone(), set, inner.clone())
                .prop_map(|(l, op, r)| format!("({l}) {op} ({r})")),
            1 => (aggregate, inner.clone()).prop_map(|(aggregate, of)| match aggregate {
                "topk without (k) (1," => format!("topk without (k) (1, {of})"),
                _ => format!("{aggregate} ({of})"),
            }),
            1 => (inner, scalar()).prop_map(|(of, scalar)| format!("({of}) + {scalar} > 1")),
        ]
    })
}

fn key(name: &str, k: &str) -> SeriesKey {
    SeriesKey::new(name, &[("k", k)])
}

proptest! {
    /// NaN, infinity, -0, missing readings, series that begin late and errors included.
    #[test]
    fn a_watch_gives_what_evaluating_gives(
        text in condition(),
        steps in steps(),
        late in 0..40_usize,
    ) {
        let Ok(expr) = parse(&text) else { return Ok(()) };
        let mut store = SeriesStore::default();
        expr.reads().into_iter().for_each(|(name, range_ms)| store.retain(&name, range_ms));
        let mut watch = Watch::default();
        let mut last = vec![Reading::Value(1.0); SERIES.len()];
        let mut now_ms = 0;
        for (number, (pause_ms, all)) in steps.into_iter().enumerate() {
            now_ms += pause_ms;
            for (((name, k), does), last) in SERIES.iter().zip(all).zip(&mut last) {
                let id = store.intern(&key(name, k));
                match does {
                    Does::Nothing => continue,
                    Does::Stays => {}
                    Does::Reports(reading) => *last = reading,
                }
                store.append(id, now_ms, *last);
            }
            if number == late {
                let id = store.intern(&key("m", "4"));
                store.append(id, now_ms, Reading::Value(2.0));
            }
            let at = EvalTime { timeline_ms: now_ms, utc_ms: 1_000_000 + now_ms };
            let watched = watch.evaluate(&expr, &store, at);
            prop_assert_eq!(format!("{watched:?}"), format!("{:?}", expr.evaluate(&store, at)));
        }
    }
}

fn proven(text: &str, store: &SeriesStore) -> bool {
    let expr = parse(text).unwrap();
    let proof = QuietPart::of(&expr.root, store).map(QuietPart::proof);
    proof.is_some_and(|proof| proof.is_empty(store, EvalTime { timeline_ms: 5000, utc_ms: 0 }))
}

#[test]
fn common_conditions_are_proven_without_evaluation() {
    let mut store = SeriesStore::default();
    for name in ["a", "c_total", "m"] {
        store.retain(name, 5000);
    }
    for at_ms in [3000, 4000, 5000] {
        for (name, k) in SERIES {
            let id = store.intern(&key(name, k));
            store.append(id, at_ms, Reading::Value(3.0));
        }
    }
    for quiet in [
        "a < b / 2",
        "m == 0",
        "a > 5 and on() deriv(a[2s]) < 0",
        "sum(rate(m[3s])) > 5 or sum(increase(c_total[3s])) > 0",
        "a > 1 and on() (b > 5 or sum(m) > 100)",
        "a > 5 unless on() b",
    ] {
        assert!(proven(quiet, &store), "{quiet}");
    }
    for other in [
        "a > 2",
        "a > 5 or b > 2",
        "1",
        "absent(x)",
        // These fail with some values, so that nothing can be left out.
        "a > 5 and on() m > on() m",
        "a > 5 and label_replace(m, \"k\", \"\", \"\", \"\")",
    ] {
        assert!(!proven(other, &store), "{other}");
    }
}

#[test]
fn a_missing_reading_is_reported_at_once() {
    let mut store = SeriesStore::default();
    let [a, b] = ["a", "b"].map(|name| store.intern(&key(name, "")));
    let expr = parse("a > 1 and on() b > 1").unwrap();
    let mut watch = Watch::default();
    let mut found = |readings: [Reading<f64>; 2], at_ms| {
        store.append(a, at_ms, readings[0]);
        store.append(b, at_ms, readings[1]);
        let at = EvalTime { timeline_ms: at_ms, utc_ms: at_ms };
        matches!(watch.evaluate(&expr, &store, at), Ok(Evaluated::Unknown(_)))
    };
    assert!(!found([Reading::Value(0.0), Reading::Value(0.0)], 1000));
    assert!(!found([Reading::Value(0.0), Reading::Value(1.0)], 2000));
    assert!(!found([Reading::Value(0.0), Reading::Failed], 3000), "the other side decides");
    assert!(found([Reading::Value(2.0), Reading::Failed], 4000));
    assert!(!found([Reading::Value(0.0), Reading::Failed], 5000));
    assert!(!found([Reading::Value(2.0), Reading::Value(1.0)], 6000));
    assert!(found([Reading::Failed, Reading::Value(2.0)], 7000));
    assert!(!found([Reading::Failed, Reading::Value(0.0)], 8000));
}

#[test]
fn conditions_proven_despite_a_failed_reading_need_no_evaluation() {
    let mut store = SeriesStore::default();
    for (name, reading) in [("a", Reading::Value(3.0)), ("x", Reading::Failed)] {
        let id = store.intern(&key(name, ""));
        store.append(id, 5000, reading);
    }
    for quiet in [
        "a > 5 and on() x > 1",
        "x and on() a > 5",
        "a > 5 and on() sum(rate(x[3s])) > 0",
        "a > 5 unless on() x",
        "a > 5 or on() (a > 6 and on() -x > 1)",
    ] {
        assert!(proven(quiet, &store), "{quiet}");
    }
    for open in ["x", "x > 5", "a > on() x", "sum(x) > 5", "a > 5 or on() x > 5", "a + on() x"] {
        assert!(!proven(open, &store), "{open}");
    }
}
