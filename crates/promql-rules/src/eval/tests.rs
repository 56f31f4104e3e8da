//! Results with failed readings hold for all their possible values.

use self::Knowledge::{Exists, No, Nothing, Yes};
use super::super::{EvalTime, Evaluated, Value, ValueType, parse, parse_query};
use super::evaluate_root;
use crate::store::{SeriesStore, stale_marker};
use crate::{Reading, SeriesKey};

const NOW: EvalTime = EvalTime { timeline_ms: 10_000, utc_ms: 1_000_010_000 };

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.roll(texts.len())]
    }

    fn number(&mut self) -> f64 {
        [0.0, 1.0, 2.0, 3.0, -1.0, f64::NAN, f64::INFINITY][self.roll(7)]
    }

    fn leaf(&mut self) -> String {
        let leaves = [
            "a",
            "b",
            "m",
            "n",
            "m{k=\"1\"}",
            "m{k!=\"1\"}",
            "a offset 1s",
            "rate(m[3s])",
            "increase(a[3s])",
            "max_over_time(m[2s])",
            "last_over_time(n[3s])",
            "present_over_time(m[3s])",
            "quantile_over_time(scalar(a), m[3s])",
            "absent(a)",
            "absent(m{k=\"2\"})",
            "absent_over_time(m[1s])",
            "timestamp(m)",
            "absent_over_time(b[3s])",
            "vector(scalar(b))",
            "vector(1)",
            "g",
            "predict_linear(m[3s], 1)",
        ];
        self.of(&leaves).to_owned()
    }

    fn matching(&mut self) -> &'static str {
        self.of(&["", "on() ", "on() ", "on(k) ", "ignoring(k) ", "ignoring(j) "])
    }

    fn vector(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.leaf();
        }
        let left = self.vector(depth - 1);
        let scalar = self.of(&["1", "0", "2", "scalar(a)", "scalar(m)", "scalar(g)"]);
        let compares = self.of(&[">", "<", "==", "!=", ">=", "> bool ", "== bool "]);
        match self.roll(14) {
            0..4 => {
                let op = self.of(&["and", "or", "or", "unless"]);
                let matching = self.matching();
                let below = self.roll(depth);
                format!("({left} {op} {matching}{})", self.vector(below))
            }
            4..6 => format!("({left} {compares} {scalar})"),
            6 => format!("({scalar} {compares} {left})"),
            7 => {
                let matching = self.matching();
                let below = self.roll(depth);
                format!("({left} {compares} {matching}{})", self.vector(below))
            }
            8 => {
                let op = self.of(&["+", "*", "/"]);
                let matching = self.matching();
                let group = match matching {
                    "on(k) " => {
                        self.of(&["", "group_left() ", "group_left(j) ", "group_right(j) "])
                    }
                    _ => "",
                };
                let below = self.roll(depth);
                format!("({left} {op} {matching}{group}{})", self.vector(below))
            }
            9 => format!("({left} + {scalar})"),
            10 => {
                let op = self
                    .of(&["sum", "max", "count", "group", "avg", "topk", "bottomk", "quantile"]);
                let by = self.of(&["", "by (k) ", "without (k) ", "by (__name__) "]);
                let parameter = match op {
                    "topk" | "bottomk" | "quantile" => self.of(&["1, ", "2, ", "scalar(a), "]),
                    _ => "",
                };
                format!("{op} {by}({parameter}{left})")
            }
            11 => format!("absent({left})"),
            12 => format!("vector(scalar({left}))"),
            _ => {
                let [before, after] = [
                    ["-", ""],
                    ["abs(", ")"],
                    ["clamp(", ", scalar(a), 2)"],
                    ["clamp_min(", ", 1)"],
                    ["round(", ", scalar(b))"],
                    ["sort(", ")"],
                    ["timestamp(", ")"],
                    ["histogram_quantile(0.5, ", ")"],
                    ["label_replace(", ", \"k\", \"2\", \"k\", \"1\")"],
                    ["label_join(", ", \"j\", \"\", \"k\")"],
                ][self.roll(10)];
                format!("{before}{left}{after}")
            }
        }
    }
}

const SERIES: [(&str, &str); 8] =
    [("a", ""), ("b", ""), ("m", "1"), ("m", "2"), ("m", "3"), ("n", "1"), ("n", "2"), ("n", "4")];

/// What is read of one series.
#[derive(Clone, Debug)]
struct Past {
    /// Its values a second apart, up to a second before now.
    before: Vec<f64>,
    /// The value of now; `None` where reading failed.
    now: Option<f64>,
    is_there: bool,
}

fn key((name, k): (&str, &str)) -> SeriesKey {
    SeriesKey::new(name, &[("k", k)])
}

fn stored(pasts: &[Past], has_gap: bool, others: &[(&str, &str, f64)]) -> SeriesStore {
    let mut store = SeriesStore::default();
    for name in ["a", "b", "m", "n", "g"] {
        store.retain(name, 10_000);
    }
    for (series, past) in SERIES.iter().zip(pasts).filter(|(_, past)| past.is_there) {
        let id = store.intern(&key(*series));
        let mut at_ms = NOW.timeline_ms - 1000 * past.before.len() as i64;
        for value in &past.before {
            store.append(id, at_ms, Reading::Value(*value));
            at_ms += 1000;
        }
        store.append(id, NOW.timeline_ms, past.now.map_or(Reading::Failed, Reading::Value));
    }
    for (name, k, value) in others {
        let id = store.intern(&key((name, k)));
        store.append(id, NOW.timeline_ms, Reading::Value(*value));
    }
    store.set_gap("g", has_gap.then_some("not read"));
    store
}

fn comparable(value: &Value) -> Vec<String> {
    match value {
        Value::Scalar(number) => vec![format!("{number:?}")],
        Value::Vector(samples) => {
            let mut all: Vec<String> = samples.iter().map(|s| format!("{s:?}")).collect();
            all.sort();
            all
        }
    }
}

#[test]
fn decided_results_hold_for_any_value_of_the_failed_readings() {
    let mut dice = Dice(3);
    let (mut decided, mut exist, mut unknown) = (0, 0, 0);
    for _ in 0..30_000 {
        let depth = dice.roll(4);
        let text = dice.vector(depth);
        let Ok(expr) = parse(&text) else { continue };
        let pasts: Vec<Past> = SERIES
            .iter()
            .map(|_| Past {
                before: (0..dice.roll(4)).map(|_| dice.number()).collect(),
                now: (dice.roll(4) > 0).then(|| dice.number()),
                is_there: dice.roll(5) > 0,
            })
            .collect();
        let has_gap = dice.roll(3) == 0;
        let partly = stored(&pasts, has_gap, &[]);
        let Ok(evaluation) = evaluate_root(&expr.root, &partly, NOW) else { continue };
        if !evaluation.has_failed {
            continue;
        }
        match (&evaluation.evaluated, evaluation.yields) {
            (Evaluated::Known(_), _) => decided += 1,
            (Evaluated::Unknown(reasons), yields) => {
                assert!(!reasons.is_empty(), "{text}");
                assert_ne!(yields, Some(false), "{text}");
                exist += usize::from(yields.is_some());
                unknown += 1;
            }
        }
        for _ in 0..12 {
            let mut whole = pasts.clone();
            for past in whole.iter_mut().filter(|past| past.is_there && past.now.is_none()) {
                past.now = Some(dice.number());
                // One that ended leaves its past; the store has no other way to say so.
                past.is_there = !past.before.is_empty() || dice.roll(3) > 0;
            }
            let others: Vec<(&str, &str, f64)> = ["1", "2", "9"]
                .iter()
                .filter(|_| has_gap && dice.roll(2) == 0)
                .map(|k| ("g", *k, 1.0))
                .collect();
            let whole = stored(&whole, false, &others);
            // An error is no answer.
            let Ok(truth) = evaluate_root(&expr.root, &whole, NOW) else { continue };
            let Evaluated::Known(value) = &truth.evaluated else { panic!("{text}") };
            if let Evaluated::Known(found) = &evaluation.evaluated {
                assert_eq!(comparable(found), comparable(value), "{text} of {pasts:?} {others:?}");
            }
            if evaluation.yields.is_some() {
                assert_eq!(evaluation.yields, truth.yields, "{text} of {pasts:?} {others:?}");
            }
        }
    }
    // So that the above means something.
    assert!(decided > 1000 && exist > 300 && unknown > 3000, "{decided} {exist} {unknown}");
}

/// Values of three metrics: one that is there, one that is there and no one that it is compared
/// with, and one that could not be read.
fn three() -> SeriesStore {
    let mut store = SeriesStore::default();
    let readings = [
        ("t", "", Reading::Value(1.0)),
        ("f", "", Reading::Value(0.0)),
        ("u", "", Reading::Failed),
        ("v", "", Reading::Failed),
        ("m", "1", Reading::Value(1.0)),
        ("m", "2", Reading::Failed),
        ("n", "1", Reading::Value(1.0)),
        ("n", "2", Reading::Value(1.0)),
    ];
    for (name, k, reading) in readings {
        let id = store.intern(&key((name, k)));
        store.append(id, NOW.timeline_ms, reading);
    }
    store
}

/// What is known of a result: all, only its existence, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    Yes,
    No,
    Exists,
    Nothing,
}

fn found(text: &str) -> Knowledge {
    let evaluation = evaluate_root(&parse(text).unwrap().root, &three(), NOW).unwrap();
    match (&evaluation.evaluated, evaluation.yields) {
        (Evaluated::Known(_), Some(true)) => Yes,
        (Evaluated::Known(_), _) => No,
        (Evaluated::Unknown(_), Some(_)) => Exists,
        (Evaluated::Unknown(_), None) => Nothing,
    }
}

#[test]
fn conditions_have_three_values() {
    for (text, expected) in [
        ("t > 0 or u > 0", Yes),
        ("t > 0 or on() u > 0", Yes),
        ("u > 0 or on() t > 0", Exists),
        ("f > 0 or u > 0", Nothing),
        ("u > 0 or f > 0", Nothing),
        ("f > 0 and u > 0", No),
        ("u > 0 and f > 0", No),
        ("t > 0 and u > 0", Nothing),
        ("u > 0 and t > 0", Nothing),
        ("f > 0 unless u > 0", No),
        ("t > 0 unless u > 0", Nothing),
        ("u > 0 unless t > 0", No),
        ("u > 0 unless f > 0", Nothing),
        ("t > 0 and on() (u > 0 or on() v > 0 or on() t > 0)", Yes),
        ("t > 0 and on() (u > 0 or on() (v > 0 or on() t > 0))", Yes),
        ("t > 0 and on() (u > 0 or on() v > 0 or on() f > 0)", Nothing),
        ("t > 0 and on() (u > 0 and on() f > 0 or on() t > 0)", Yes),
        ("t > 0 unless on() (u > 0 or on() t > 0)", No),
        ("t > 0 and on() sum(u) > 0", Nothing),
        ("t > 0 or on() sum(u) > 0", Yes),
        // Each element by itself.
        ("m{k=\"1\"} > 0", Yes),
        ("m > 0", Exists),
        ("n and on(k) m", Exists),
        ("n{k=\"1\"} and on(k) m", Yes),
        ("n{k=\"2\"} and on(k) m", Nothing),
        ("t and on() m", Yes),
        ("m{k=\"2\"} or on(k) n", Exists),
        ("n or m", Yes),
        ("n and on(k) (m{k=\"2\"} or on(k) n{k=\"2\"})", Yes),
        ("n{k=\"1\"} / on(k) m", Yes),
    ] {
        assert_eq!(found(text), expected, "{text}");
    }
}

#[test]
fn unknown_numbers_decide_nothing() {
    for (text, expected) in [
        ("u", Nothing),
        ("u + 1", Nothing),
        ("t + scalar(u)", Exists),
        ("t + scalar(u) > 0", Nothing),
        ("t > scalar(u)", Nothing),
        ("f > 0 and on() t > scalar(u)", No),
        ("vector(scalar(u))", Exists),
        ("scalar(u)", Nothing),
        ("absent(u)", Nothing),
        ("absent(t or u)", No),
        ("absent(m)", No),
        ("t and on() absent(u)", Nothing),
        ("sum(m)", Exists),
        ("sum(m) > 0", Nothing),
        ("count(m) > 0", Nothing),
        ("max(m) > 0", Nothing),
        ("group(m)", Yes),
        ("group(u)", Nothing),
        ("sum by (k) (m)", Exists),
        ("sum by (k) (m) and on(k) n{k=\"1\"}", Yes),
        ("topk(1, m)", Nothing),
        ("t * on() u", Nothing),
        ("t > bool on() u", Nothing),
        ("max_over_time(u[1m])", Nothing),
        ("rate(u[1m]) > 0", Nothing),
        ("absent_over_time(u[1m])", Nothing),
        ("absent_over_time(m[1m])", No),
        ("quantile(scalar(u), n)", Exists),
        ("clamp(t, scalar(u), 1)", Nothing),
        ("histogram_quantile(0.5, u)", Nothing),
        ("label_replace(m, \"k\", \"3\", \"k\", \"2\") and on(k) n{k=\"1\"}", Yes),
    ] {
        assert_eq!(found(text), expected, "{text}");
    }
}

#[test]
fn only_deciding_readings_are_reported_as_missing() {
    let store = three();
    for (text, expected) in [
        ("u > 0 and on() (v > 0 or on() t > 0)", &["u"][..]),
        ("t > 0 and on() (v > 0 or on() u > 0)", &["v", "u"]),
        ("(u and on() f > 0) or on() v", &["v"]),
        ("v + on() u", &["v", "u"]),
    ] {
        let evaluation = evaluate_root(&parse(text).unwrap().root, &store, NOW).unwrap();
        let reasons = expected.iter().map(|name| format!("{name}: reading failed"));
        assert_eq!(evaluation.evaluated, Evaluated::Unknown(reasons.collect()), "{text}");
    }
}

#[test]
fn a_query_may_be_a_range_or_a_string_and_a_rule_may_not() {
    let mut store = SeriesStore::default();
    store.retain("m", i64::MAX);
    for (k, first) in [("1", 1.0), ("2", 5.0)] {
        let id = store.intern(&SeriesKey::new("m", &[("k", k)]));
        for step in 0..4_i32 {
            let at_ms = 7_000 + i64::from(step) * 1_000;
            store.append(id, at_ms, Reading::Value(first + f64::from(step)));
        }
    }
    for (text, expected) in [
        ("m{k=\"1\"}[2s]", vec![vec![(9_000, 3.0), (10_000, 4.0)]]),
        ("(m{k=\"1\"}[1s] offset 2s)", vec![vec![(8_000, 2.0)]]),
        ("m[1s]", vec![vec![(10_000, 4.0)], vec![(10_000, 8.0)]]),
        ("n[1s]", vec![]),
    ] {
        let query = parse_query(text).unwrap();
        assert_eq!((query.value_type(), query.string()), (ValueType::Range, None), "{text}");
        let found: Vec<Vec<_>> = query
            .samples(&store, NOW)
            .unwrap()
            .into_iter()
            .map(|(_, window)| window.points().map(|point| (point.at_ms, point.value)).collect())
            .collect();
        assert_eq!(found, expected, "{text}");
        assert!(query.evaluate(&store, NOW).is_err(), "{text}");
        assert!(parse(text).unwrap_err().message.contains("\"range vector\""), "{text}");
    }
    let query = parse_query("(\"a\")").unwrap();
    assert_eq!(query.string().map(|text| &**text), Some("a"));
    assert!(query.samples(&store, NOW).is_err() && query.evaluate(&store, NOW).is_err());
    assert!(parse("\"a\"").unwrap_err().message.contains("\"string\""));
    assert!(parse_query("m[1s] + 1").is_err() && parse_query("-m[1s]").is_err());
}

#[test]
fn an_ended_series_is_absent_and_no_value_for_others() {
    let mut store = SeriesStore::default();
    let ended = Reading::Value(stale_marker());
    for (name, k, reading) in [
        ("a", "", ended),
        ("b", "", Reading::Value(1.0)),
        ("m", "1", ended),
        ("m", "2", Reading::Unsupported),
    ] {
        let id = store.intern(&SeriesKey::new(name, &[("k", k)]));
        store.append(id, NOW.timeline_ms, reading);
    }
    let evaluated = |text: &str| parse(text).unwrap().evaluate(&store, NOW).unwrap();
    for (text, count) in [
        ("a > 1", 0),
        ("sum(a)", 0),
        ("rate(a[1m])", 0),
        ("sum(a) + absent(a)", 0),
        ("absent(a)", 1),
        ("b unless a", 1),
    ] {
        let Evaluated::Known(Value::Vector(samples)) = evaluated(text) else { panic!("{text}") };
        assert_eq!(samples.len(), count, "{text}");
    }
    let missing = "m{k=\"2\"}: not available on this machine".to_owned();
    assert_eq!(evaluated("m > 1"), Evaluated::Unknown(vec![missing]));
}
