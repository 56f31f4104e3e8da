//! What is proven, and what is left alone.

use super::super::{EvalTime, Evaluated, Expr, KnownSeries, Value, parse};
use super::Effort;
use crate::store::SeriesStore;
use crate::{Reading, SeriesKey};

#[derive(Debug)]
struct Known;

const STATES: &[&str] = &["clean", "dirty"];

impl KnownSeries for Known {
    fn labels(&self, name: &str) -> Option<Vec<&str>> {
        Some(match name {
            "free" | "total" | "reserve" | "signed" | "runs_total" | "up" => vec![],
            "cache" => vec!["state"],
            "zone_free" | "zone_total" => vec!["node", "zone"],
            "numa" => vec!["kind", "node"],
            "about" => vec!["model", "node"],
            _ => return None,
        })
    }

    fn names(&self) -> Vec<&str> {
        vec!["free", "total", "cache"]
    }

    fn values(&self, name: &str, label: &str) -> Option<&[&str]> {
        ((name, label) == ("cache", "state")).then_some(STATES)
    }

    fn may_lack(&self, name: &str, label: &str) -> bool {
        (name, label) == ("about", "model")
    }

    fn bounds(&self, name: &str) -> Option<(f64, f64)> {
        match name {
            "signed" => Some((f64::NEG_INFINITY, f64::INFINITY)),
            "up" => Some((0.0, 1.0)),
            _ => Some((0.0, f64::INFINITY)),
        }
    }
}

fn expr(text: &str) -> Expr {
    let expr = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    expr.check(&Known).unwrap_or_else(|error| panic!("{text}: {error}"));
    expr
}

/// The reason why the whole expression can never have a result.
fn never(text: &str) -> Option<String> {
    let found = expr(text).never(&Known);
    found.into_iter().rfind(|never| never.whole).map(|never| never.why.to_string())
}

fn implies(one: &str, other: &str) -> bool {
    expr(one).facts(&Known).implies(&expr(other).facts(&Known), &mut Effort::default())
}

fn excludes(one: &str, other: &str) -> bool {
    expr(one).facts(&Known).excludes(&expr(other).facts(&Known), &mut Effort::default())
}

#[test]
fn impossible_conditions_are_reported_with_a_reason() {
    for (text, reason) in [
        ("free > 5 and free < 3", "`free > 5` and `free < 3` can never both hold"),
        ("free > 5 < 3", "can never both hold"),
        ("(free) > 5 and on() free <= 5", "can never both hold"),
        ("free == 5 and free != 5", "can never both hold"),
        ("signed / total > 5 and signed / total != signed / total", "can never both hold"),
        ("runs_total < 0", "`runs_total < 0` can never hold (runs_total is never below 0)"),
        ("0 > runs_total", "never below 0"),
        ("up == 2", "up is from 0 to 1"),
        ("rate(runs_total[5m]) < 0", "never below 0"),
        ("free > 1e30 * 1e300 * 1e300", "the number there is inf, and no value is beyond it"),
        ("free < -1e300 * 1e300", "the number there is -inf"),
        ("free unless free", "both sides are the same"),
        ("zone_free < 5 unless on(node) (zone_free < 5)", "both sides are the same"),
        ("cache{state=\"clean\"} unless on() vector(1)", "the right side is always there"),
        ("(free < 1 unless on() (total or vector(1))) > 0", "the right side is always there"),
        ("sum(zone_free) < 0", "never below 0"),
        ("count(zone_free) < 1", "never below 1"),
        ("count(free > 5 and free < 3) >= 0", "can never both hold"),
        ("abs(signed) < 0", "never below 0"),
        ("zone_free < 1 and zone_free > 2", "can never both hold"),
        ("zone_free < 1 and cache{state=\"clean\"} > 1", "the label node is only on the left"),
        ("free < 1 and cache{state=\"clean\"} > 1", "the label state is only on the right"),
        ("free < 1 and cache{state=\"clean\"} > 1", "and on() matches"),
        ("zone_free > total / 8", "the label node is only on the left (> on() group_left"),
        (
            "cache{state=\"clean\"} > cache{state=\"dirty\"}",
            "state is \"clean\" on the left and \"dirty\" on the right",
        ),
        ("sum by (node) (zone_free) > on(node) sum(zone_total)", "node is only on the left"),
        ("zone_free{zone=\"a\"} > on(zone) zone_total{zone=\"b\"}", "the label zone is \"a\""),
        ("zone_free{zone=\"a\",zone=\"b\"} > 0", "asked of the label zone"),
        ("zone_free{zone=\"\"} > 0", "asked of the label zone"),
        ("about{node=\"\"} > 0", "asked of the label node"),
        ("about{model=\"\"} > on(model) about{model=\"a\"}", "the label model"),
        ("free > total and total > free", "can never both hold"),
        ("free > total and total > reserve and reserve >= free", "can never hold together"),
        ("free < reserve + total / 32 and free > reserve + total / 16", "never both hold"),
        ("free > total + reserve and free < total", "never both hold"),
        ("free * 2 > total and total > free * 3", "never both hold"),
        ("(free < 1 or free > 9) and free > 2 and free < 8", "never both hold"),
    ] {
        let read = never(text).unwrap_or_else(|| panic!("{text}: nothing is reported"));
        assert!(read.contains(reason), "{text}: {read}");
    }
}

#[test]
fn possible_conditions_are_not_reported() {
    for text in [
        "free > 3 and free < 5",
        "free > 5 or free < 3",
        "free > 5 unless free < 3",
        "free > 5 unless free",
        "free unless free offset 1m",
        "zone_free unless vector(1)",
        "zone_free unless on(node) vector(1)",
        "zone_free unless on() (vector(1) > free)",
        "cache{state=\"clean\"} unless cache{state=\"dirty\"}",
        "free or (free unless total)",
        "free",
        "free >= 0",
        "signed < 0",
        "signed * signed < 0",
        "-free < 0",
        "deriv(free[5m]) < 0",
        "free - total < 0",
        "rate(signed[5m]) < 0",
        // The past and the present differ, and so do two series.
        "free > 5 and free offset 1m < 3",
        "max_over_time(free[1m]) > 5 and free < 3",
        "zone_free > 5 and on(node) zone_free < 3",
        "zone_free > 5 and on() zone_free < 3",
        "zone_free{zone=\"a\"} > 5 and on() zone_free{zone=\"b\"} < 3",
        "sum(zone_free) > 5 and max(zone_free) < 3",
        "zone_free > on(node) group_left numa{kind=\"free\"}",
        "sum by (node) (zone_free) > on(node) numa{kind=\"free\"}",
        "cache{state=~\"clean|dirty\"} > cache{state=\"dirty\"}",
        "free < 1 and on() cache{state=\"clean\"} > 1",
        "absent(cache{state=\"clean\"}) and free",
        "free != free + 0 * signed",
        "signed + 0 != signed",
        "free != 5 and free >= 5",
        // Nothing divided by nothing is not equal to itself.
        "signed / total != signed / total",
        "free < total and reserve < free",
        "free < reserve + total / 16 and free > reserve + total / 32",
        "free < signed + total / 32 and free > total / 16",
        "free * signed > total * signed and total > free",
        "free / reserve > total and free < total",
        "free > bool 5 and free < 3",
        "vector(1) > 0",
        "label_replace(free, \"zone\", \"a\", \"\", \"\") and on(zone) zone_free",
        "vector(time()) > 5",
        "scalar(free) - 5 > total",
        "sum(zone_free < 1) > 5 and sum(zone_free) < 3",
        "topk(1, zone_free) > 5 and zone_free > 3",
        "quantile(0.5, zone_free) > 5 and max(zone_free) < 3",
    ] {
        let found = expr(text).never(&Known);
        assert!(found.is_empty(), "{text}: {found:?}");
    }
}

#[test]
fn a_dead_branch_is_reported_although_the_whole_may_hold() {
    let found = expr("free > 3 or free < 0").never(&Known);
    assert_eq!(found.len(), 1);
    assert!(!found[0].whole);
    assert_eq!(found[0].why.span, 12..20);
}

#[test]
fn one_condition_follows_from_another() {
    for (one, other) in [
        ("free < 3", "free < 5"),
        ("free < 3", "free <= 3"),
        ("free > 5", "free > 3"),
        ("free > 5", "3 < free"),
        ("free == 4", "free > 3 and free < 5"),
        ("free < 3 and total > 5", "free < 5"),
        ("free < 3 and total > 5", "total > 5 and free < 3"),
        ("free < 3 and on() cache{state=\"clean\"} > 9", "cache{state=\"clean\"} > 5"),
        ("free < reserve + total / 32", "free < reserve + total / 16"),
        ("free < reserve + total / 32", "total / 16 + reserve > free"),
        ("free < total and total < reserve", "free < reserve"),
        ("zone_free < 3", "zone_free < 5"),
        ("zone_free < 3", "count(zone_free < 5)"),
        ("zone_free > 3 and zone_free < 5", "zone_free > 2 and zone_free < 6"),
        ("sum(rate(runs_total[1m])) > 5", "sum(rate(runs_total[1m])) > 1"),
        ("free > 5", "free >= 0"),
        ("free > 5", "free > 2 or total > 2"),
        ("free > 5 or free < 1", "free != 3"),
    ] {
        assert!(implies(one, other), "{one} does not imply {other}");
    }
}

#[test]
fn unproven_implications_are_not_reported() {
    for (one, other) in [
        ("free < 5", "free < 3"),
        ("free < 3", "free > 5"),
        ("free < 3", "total >= 0"),
        ("free < 3", "free offset 1m < 5"),
        ("free < 3", "free < 5 unless total > 1"),
        ("free > 5 or total > 5", "free > 5"),
        ("zone_free > 3 and on() zone_free < 5", "zone_free > 3 and zone_free < 5"),
        ("zone_free{node=\"0\"} > 5", "zone_free{node=\"1\"} > 5"),
        ("zone_free > 5", "zone_free{zone=\"a\"} > 5"),
        ("free < reserve + signed / 32", "free < reserve + signed / 16"),
        ("free < reserve + total / 16", "free < reserve + total / 32"),
        ("free < 3", "free / total < 3"),
        ("free < 3", "topk(1, free) < 5"),
        ("rate(runs_total[1m]) > 5", "rate(runs_total[2m]) > 5"),
        ("free < 3", "absent(free)"),
        ("free < 3", "scalar(free) > bool 5"),
        ("signed < 3", "signed - signed / reserve < 3"),
        ("zone_free < 3", "zone_free < on(node) group_left() numa{kind=\"free\"} * 0 + 9"),
    ] {
        assert!(!implies(one, other), "{one} is said to imply {other}");
    }
}

#[test]
fn conditions_that_exclude_each_other_are_found() {
    assert!(excludes("free < 3", "free > 5"));
    assert!(excludes("free < 3 and total > 1", "free > 5"));
    assert!(excludes("free < 3 or free > 9", "free == 5"));
    assert!(excludes("free < reserve", "free > reserve + total"));
    assert!(!excludes("free < 5", "free > 3"));
    assert!(!excludes("zone_free < 3", "zone_free > 5"));
    assert!(!excludes("free < 3", "total > 5"));
}

#[test]
fn label_values_of_no_series_are_reported() {
    let idle = |text: &str| {
        let found = expr(text).idle_values(&Known);
        found.into_iter().map(|error| error.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        idle("cache{state!=\"clena\"} > 1"),
        ["no series \"cache\" has state=\"clena\": it makes no difference \
          (did you mean \"clean\"?)"]
    );
    assert_eq!(idle("cache{state=~\"clean|drity\"} > 1").len(), 1);
    assert_eq!(idle("cache{state!~\"mapped\"} > 1").len(), 1);
    assert!(idle("cache{state=~\"clean|dirty\"} > cache{state=~\"d.*\"}").is_empty());
    assert!(idle("zone_free{zone!=\"Nowhere\"} > 1").is_empty());
}

#[test]
fn a_label_value_of_no_series_is_refused_where_it_matters() {
    let refused = |text: &str| {
        let error = parse(text).unwrap().check(&Known).expect_err(text);
        format!("{}: {error}", &text[error.span.clone()])
    };
    assert_eq!(
        refused("cache{state=\"clena\"} > 1"),
        "\"clena\": no series \"cache\" has state=\"clena\" (did you mean \"clean\"?)"
    );
    assert!(refused("cache{state=~\"x.*\"}").contains("values of state: clean, dirty"));
    assert!(refused("cache{state=\"\"}").contains("no series"));
    assert!(refused("cache{state=~\"clean\",state=~\"dirty\"}").contains("the matchers before"));
    assert!(parse("cache{state!=\"clena\"}").unwrap().check(&Known).is_ok());
}

#[test]
fn long_expressions_end_soon() {
    let sum = |count: usize| vec!["free"; count].join(" + ");
    let balanced = |leaf: &str| {
        let mut text = leaf.to_owned();
        while text.len() < 800 {
            text = format!("({text} + {text})");
        }
        text
    };
    for text in [
        format!("{} > {}", sum(100), sum(100)),
        format!("{} < {}", balanced("free"), balanced("total")),
        (0..120).map(|n| format!("free > {n}")).collect::<Vec<_>>().join(" and "),
        (0..60).map(|n| format!("(free < {n} or total > {n})")).collect::<Vec<_>>().join(" and "),
        (0..120).map(|n| format!("free != {n}")).collect::<Vec<_>>().join(" or "),
    ] {
        let expr = expr(&text);
        // Only its end matters.
        let _ = expr.never(&Known);
        let facts = expr.facts(&Known);
        let mut effort = Effort::default();
        // Only its end matters.
        let _ = facts.excludes(&facts, &mut effort);
        let _ = facts.implies(&facts, &mut effort);
    }
}

/// A small generator of numbers that is the same everywhere (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % sides as u64).unwrap_or(0)
    }

    fn pick<'c>(&mut self, choices: &[&'c str]) -> &'c str {
        choices[self.roll(choices.len())]
    }

    fn value(&mut self) -> String {
        match self.roll(16) {
            0..=7 => self
                .pick(&[
                    "free",
                    "free",
                    "total",
                    "signed",
                    "runs_total",
                    "zone_free",
                    "zone_total",
                    "zone_free{zone=\"a\"}",
                    "cache{state=\"clean\"}",
                    "cache",
                    "sum(zone_free)",
                    "max by (node) (zone_free)",
                    "max_over_time(free[2m])",
                    "abs(signed)",
                    "vector(3)",
                ])
                .to_owned(),
            8..=10 => format!("{} {} {}", self.value(), self.pick(&["+", "-"]), self.value()),
            11..=13 => {
                format!("{} {} {}", self.value(), self.pick(&["*", "/"]), self.roll(4))
            }
            14 => format!("(-{})", self.value()),
            _ => format!("({} or {})", self.value(), self.value()),
        }
    }

    fn comparison(&mut self) -> String {
        let op = self.pick(&["<", "<=", ">", ">=", "==", "!="]);
        let matching = self.pick(&["", "", "on() ", "on(node) ", "ignoring(zone) "]);
        match self.roll(6) {
            0..=3 => format!("{} {op} {}", self.value(), self.roll(6)),
            4 => format!("{} {op} {matching}({})", self.value(), self.value()),
            _ => format!("{} {op} {}", self.roll(6), self.value()),
        }
    }

    fn condition(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.comparison();
        }
        let op = self.pick(&["and", "and", "and on()", "and on(node)", "or", "unless"]);
        format!("({}) {op} ({})", self.condition(depth - 1), self.condition(depth - 1))
    }

    fn store(&mut self) -> SeriesStore {
        let series: [(&str, &[(&str, &str)]); 14] = [
            ("free", &[]),
            ("total", &[]),
            ("reserve", &[]),
            ("signed", &[]),
            ("runs_total", &[]),
            ("up", &[]),
            ("cache", &[("state", "clean")]),
            ("cache", &[("state", "dirty")]),
            ("zone_free", &[("node", "0"), ("zone", "a")]),
            ("zone_free", &[("node", "0"), ("zone", "b")]),
            ("zone_free", &[("node", "1"), ("zone", "a")]),
            ("zone_total", &[("node", "0"), ("zone", "a")]),
            ("zone_total", &[("node", "1"), ("zone", "b")]),
            ("numa", &[("kind", "free"), ("node", "0")]),
        ];
        let mut store = SeriesStore::default();
        for name in ["free", "runs_total"] {
            store.retain(name, 300_000);
        }
        for (name, labels) in series {
            let id = store.intern(&SeriesKey::new(name, labels));
            for minute in 0..3 {
                let number = f64::from(u32::try_from(self.roll(7)).unwrap_or(0));
                let value = match name {
                    "signed" => number - 3.0,
                    "up" => number % 2.0,
                    _ => number,
                };
                store.append(id, minute * 60_000, Reading::Value(value));
            }
        }
        store
    }
}

/// Whether it yields something; `None` where it is an error.
fn yields(expr: &Expr, store: &SeriesStore) -> Option<bool> {
    match expr.evaluate(store, EvalTime { timeline_ms: 120_000, utc_ms: 120_000 }) {
        Ok(Evaluated::Known(Value::Vector(samples))) => Some(!samples.is_empty()),
        Ok(Evaluated::Known(Value::Scalar(_))) => Some(true),
        Ok(Evaluated::Unknown(reasons)) => panic!("{expr}: {reasons:?}"),
        Err(_) => None,
    }
}

#[test]
fn proofs_about_generated_expressions_hold_over_generated_series() {
    let mut dice = Dice(7);
    let stores: Vec<SeriesStore> = (0..40).map(|_| dice.store()).collect();
    let mut proven = [0_usize; 3];
    for _ in 0..1500 {
        let depth = dice.roll(3);
        let text = dice.condition(depth);
        let like = match dice.roll(3) {
            0 => dice.condition(depth),
            1 => {
                let (old, new) = (dice.roll(6).to_string(), dice.roll(6).to_string());
                text.replace(&old, &new)
            }
            _ => text.replace(" < ", " <= ").replace(" > ", " != ").replace(" and ", " or "),
        };
        let (Ok(one), Ok(other)) = (parse(&text), parse(&like)) else { continue };
        let [facts, others] = [&one, &other].map(|expr| expr.facts(&Known));
        let never = !facts.is_possible();
        assert_eq!(never, one.never(&Known).iter().any(|never| never.whole), "{one}");
        let mut effort = Effort::default();
        let implies = facts.implies(&others, &mut effort);
        let excludes = facts.excludes(&others, &mut effort);
        for (kind, found) in [never, implies && !never, excludes && !never].iter().enumerate() {
            proven[kind] += usize::from(*found);
        }
        for store in &stores {
            let (left, right) = (yields(&one, store), yields(&other, store));
            assert!(!never || left != Some(true), "{one} does yield something");
            assert!(!implies || left != Some(true) || right != Some(false), "{one} -> {other}");
            assert!(!excludes || [left, right] != [Some(true); 2], "{one} with {other}");
        }
    }
    // So that the above means something.
    assert!(proven.iter().all(|count| *count > 50), "{proven:?}");
}

/// Whether one value of the same expression passes both, as both are written.
fn overlaps(one: &str, other: &str) -> bool {
    let threshold = |text: &str| expr(text).threshold();
    let (Some(one), Some(other)) = (threshold(one), threshold(other)) else { return false };
    assert_eq!(one.overlaps(&other), other.overlaps(&one));
    one.overlaps(&other)
}

#[test]
fn thresholds_of_one_expression_are_compared() {
    for (expr, aim) in [
        ("free < 10", "free > 5"),
        ("free < 10", "5 < free"),
        ("free < 2 * 1024^3", "(free) >= 1024^3"),
        ("free > 10", "free < 12"),
        ("free <= 10", "free >= 10"),
        ("free < 10", "free < 5"),
        ("free / total < 0.1", "free / total > 0.05"),
        ("cache{state=\"clean\"} > 7", "cache{state=\"clean\"} <= 8"),
    ] {
        assert!(overlaps(expr, aim), "{expr}: {aim}");
    }
    for (expr, aim) in [
        ("free < 10", "free > 10"),
        ("free < 10", "free >= 10"),
        ("free <= 10", "free > 10"),
        ("free < 10", "free > 12"),
        ("free < 10", "total > 5"),
        ("free < 10", "free + 1 > 5"),
        ("free < 10", "free == 5"),
        ("free < 10", "free > total / 4"),
        ("free < bool 10", "free > 5"),
        ("free < 10", "free > 5 and total > 1"),
        ("free < 0 / 0", "free > 5"),
        ("cache{state=\"clean\"} > 7", "cache{state=\"dirty\"} < 8"),
    ] {
        assert!(!overlaps(expr, aim), "{expr}: {aim}");
    }
}

#[test]
fn a_threshold_has_its_operator_and_place() {
    for (text, symbol, opposite, number) in [
        ("free < 2 * 1024^3", "<", ">=", "2 * 1024^3"),
        ("5 < free", ">", "<=", "5"),
        ("(free >= (7))", ">=", "<", "(7)"),
    ] {
        let found = expr(text).threshold().unwrap();
        assert_eq!((found.symbol(), found.opposite()), (symbol, opposite), "{text}");
        assert_eq!(text.get(found.span), Some(number));
    }
}
