use super::store::SeriesStore;
use super::*;
use crate::{Reading, SeriesKey};

struct Known;

impl KnownSeries for Known {
    fn labels(&self, name: &str) -> Option<Vec<&str>> {
        match name {
            "uma_memory_free_bytes" => Some(Vec::new()),
            "uma_memory_page_cache_bytes" => Some(vec!["state"]),
            _ => None,
        }
    }

    fn names(&self) -> Vec<&str> {
        vec!["uma_memory_free_bytes", "uma_memory_page_cache_bytes"]
    }
}

fn refused(text: &str) -> (String, String, Option<String>) {
    let error = match parse(text) {
        Err(error) => error,
        Ok(expr) => expr.check(&Known).expect_err(text),
    };
    (text[error.span.clone()].to_owned(), error.message, error.hint)
}

fn refused_with(text: &str, at: &str, message: &str, hint: Option<&str>) {
    assert_eq!(
        refused(text),
        (at.to_owned(), message.to_owned(), hint.map(str::to_owned)),
        "{text}"
    );
}

#[test]
fn an_unknown_series_gets_the_closest_name() {
    refused_with(
        "1 + uma_memory_fre_bytes",
        "uma_memory_fre_bytes",
        "unknown series \"uma_memory_fre_bytes\"",
        Some("did you mean \"uma_memory_free_bytes\"?"),
    );
    refused_with(
        "uma_memory_page_cache_bytes{stat=\"clean\"}",
        "stat",
        "series \"uma_memory_page_cache_bytes\" has no label \"stat\"",
        Some("did you mean \"state\"?"),
    );
}

#[test]
fn labels_to_group_and_match_by_must_exist() {
    for text in [
        "sum by (stat) (uma_memory_page_cache_bytes)",
        "uma_memory_page_cache_bytes + on(stat) uma_memory_page_cache_bytes",
    ] {
        let message = "no series here has the label \"stat\"";
        refused_with(text, text, message, Some("did you mean \"state\"?"));
    }
    for text in [
        "sum by (state, __name__) (uma_memory_page_cache_bytes)",
        "sum by (x) (label_replace(uma_memory_free_bytes, \"x\", \"1\", \"\", \"\"))",
        "uma_memory_free_bytes and on() uma_memory_page_cache_bytes",
        "uma_memory_free_bytes * ignoring(state) group_right uma_memory_page_cache_bytes",
    ] {
        assert_eq!(parse(text).expect(text).check(&Known), Ok(()), "{text}");
    }
}

#[test]
fn a_type_error_says_what_is_missing() {
    refused_with(
        "rate(uma_memory_free_bytes) > 1",
        "uma_memory_free_bytes",
        "expected type range vector in call to function \"rate\", got instant vector",
        Some("add a range such as [1m]"),
    );
    refused_with(
        "1 > 2",
        "1 > 2",
        "comparisons between scalars must use BOOL modifier",
        Some("write > bool"),
    );
    refused_with(
        "clamp(uma_memory_free_bytes, 1)",
        "clamp(uma_memory_free_bytes, 1)",
        "expected 3 argument(s) in call to \"clamp\", got 2",
        Some("write clamp(vector, number, number)"),
    );
}

#[test]
fn unsupported_features_are_refused_by_name() {
    for (text, what) in [
        ("max_over_time(uma_memory_free_bytes[5m:1m])", "subqueries"),
        ("max_over_time((uma_memory_free_bytes > 1)[5m:])", "subqueries"),
        ("uma_memory_free_bytes @ 1", "the @ modifier"),
        ("count_values(\"x\", uma_memory_free_bytes)", "count_values"),
        ("limitk(1, uma_memory_free_bytes)", "limitk"),
        ("histogram_sum(uma_memory_free_bytes)", "function histogram_sum"),
        ("sort_by_label(uma_memory_free_bytes, \"a\")", "function sort_by_label"),
        ("{__name__=~\"uma_.*\"}", "matching several metrics by name"),
    ] {
        let (_, message, hint) = refused(text);
        assert_eq!(
            message,
            format!(
                "{what} {} not supported here",
                match what {
                    "subqueries" => "are",
                    _ => "is",
                }
            )
        );
        assert!(hint.is_some(), "{text}");
    }
}

#[test]
fn hostile_lengths_and_depths_end_in_an_error() {
    for text in [
        "(".repeat(60_000),
        "(".repeat(4000),
        "-".repeat(4000),
        format!("1{}", "+1".repeat(20_000)),
        format!("1{}", "+1".repeat(2000)),
        format!("1{}", "^1".repeat(2000)),
        "abs(".repeat(1000),
        "sum(".repeat(1000),
        format!("uma{}", "{".repeat(4000)),
        "\"\\".repeat(2000),
    ] {
        assert!(parse(&text).is_err(), "{} bytes were accepted", text.len());
    }
}

const NOW: EvalTime = EvalTime { timeline_ms: 600_000, utc_ms: 1_700_000_600_000 };

type Labelled<'l> = (&'l str, &'l [(&'l str, &'l str)], Reading<f64>);

fn store(readings: &[Labelled<'_>]) -> SeriesStore {
    let mut store = SeriesStore::default();
    for (name, labels, reading) in readings {
        let id = store.intern(&SeriesKey::new(name, labels));
        store.append(id, NOW.timeline_ms, *reading);
    }
    store
}

fn evaluated(text: &str, store: &SeriesStore) -> Evaluated {
    parse(text).expect(text).evaluate(store, NOW).expect(text)
}

fn unknown(reasons: &[&str]) -> Evaluated {
    Evaluated::Unknown(reasons.iter().map(|reason| (*reason).to_owned()).collect())
}

#[test]
fn a_failed_reading_makes_dependent_expressions_unknown() {
    let store = store(&[
        ("uma_a", &[("zone", "dma")], Reading::Failed),
        ("uma_a", &[("zone", "normal")], Reading::Value(1.0)),
        ("uma_b", &[], Reading::Value(1.0)),
    ]);
    let reason = "uma_a{zone=\"dma\"}: reading failed";
    for text in
        ["uma_a", "uma_a > 5", "uma_b or uma_a", "rate(uma_a[1m]) > 1", "uma_b and on() uma_a > 1"]
    {
        assert_eq!(evaluated(text, &store), unknown(&[reason]), "{text}");
    }
    assert!(matches!(evaluated("uma_b and on() uma_a", &store), Evaluated::Known(_)));
    let others = evaluated("uma_a{zone=\"normal\"} + on() uma_b", &store);
    assert!(matches!(others, Evaluated::Known(Value::Vector(samples)) if samples[0].value == 2.0));
}

#[test]
fn an_unsupported_reading_is_unknown_unless_the_rule_can_do_without() {
    let store = store(&[
        ("uma_a", &[], Reading::Unsupported),
        ("uma_b", &[], Reading::Value(1.0)),
        ("uma_c", &[], Reading::Unsupported),
    ]);
    let missing = "uma_a: not available on this machine";
    for text in [
        "uma_a > 1",
        "sum(uma_a)",
        "rate(uma_a[1m])",
        "uma_b unless uma_a",
        "uma_a + absent(uma_a)",
    ] {
        assert_eq!(evaluated(text, &store), unknown(&[missing]), "{text}");
    }
    for text in
        ["absent(uma_a)", "absent_over_time(uma_a[1m])", "uma_a or uma_b", "uma_b > 5 or uma_a > 1"]
    {
        assert!(matches!(evaluated(text, &store), Evaluated::Known(_)), "{text}");
    }
    let both = unknown(&[missing, "uma_c: not available on this machine"]);
    assert_eq!(evaluated("uma_a or uma_c", &store), both);
}

#[test]
fn a_series_that_was_never_read_is_unknown() {
    let mut store = SeriesStore::default();
    store.intern(&SeriesKey::new("uma_a", &[]));
    assert_eq!(evaluated("uma_a", &store), unknown(&["uma_a: not read yet"]));
}

#[test]
fn time_is_the_wall_clock_and_windows_are_the_time_line() {
    let store = store(&[("uma_a", &[], Reading::Value(1.0))]);
    assert_eq!(evaluated("time()", &store), Evaluated::Known(Value::Scalar(1_700_000_600.0)));
    let age = evaluated("time() - timestamp(uma_a)", &store);
    assert!(matches!(age, Evaluated::Known(Value::Vector(samples)) if samples[0].value == 0.0));
}

#[test]
fn each_read_metric_is_listed_once_with_its_longest_range() {
    let expr = parse("rate(uma_b[5m] offset 1m) + rate(uma_b[1m]) > uma_a + uma_c offset 1m");
    let reads: Vec<(String, i64)> = expr
        .expect("it parses")
        .reads()
        .into_iter()
        .map(|(name, reach_ms)| (name.to_string(), reach_ms))
        .collect();
    let expected = [("uma_a", 0), ("uma_b", 360_000), ("uma_c", 360_000)];
    assert_eq!(reads, expected.map(|(name, reach_ms)| (name.to_owned(), reach_ms)));
}

#[test]
fn duplicate_label_sets_are_an_error_of_the_data() {
    let store = store(&[
        ("uma_a", &[], Reading::Value(1.0)),
        ("uma_b", &[], Reading::Value(2.0)),
        ("uma_c", &[("zone", "dma")], Reading::Value(2.0)),
        ("uma_c", &[("zone", "normal")], Reading::Value(2.0)),
    ]);
    let error = |text: &str| parse(text).expect(text).evaluate(&store, NOW).expect_err(text);
    assert_eq!(
        error("label_replace(uma_c, \"zone\", \"any\", \"\", \"\")"),
        "vector cannot contain metrics with the same labelset"
    );
    assert!(
        error("uma_a + on() uma_c").starts_with("found duplicate series for the match group {}")
    );
    assert!(error("uma_c + on() uma_a").starts_with("multiple matches for labels: many-to-one"));
}

#[test]
fn patterns_match_whole_values_in_gos_dialect() {
    for (pattern, value, expected) in [
        ("a", "ab", false),
        ("a|b", "b", true),
        (".*", "a\nb", true),
        (r"\d", "\u{663}", false),
        (r"\d+", "12", true),
        (r"[\w-]+", "a-1", true),
        ("[[:alpha:]]+", "ab", true),
        ("x{", "x{", true),
        ("x{2}", "xx", true),
        ("[a&&b]", "&", true),
        ("", "", true),
    ] {
        assert_eq!(
            matcher::compile(pattern).expect(pattern).is_match(value),
            expected,
            "{pattern}"
        );
    }
    for pattern in ["(", "a{1000}{1000}", "*"] {
        assert!(matcher::compile(pattern).is_err(), "{pattern}");
    }
}

#[test]
fn literals_follow_go() {
    for (text, expected) in [
        ("010", Some(8.0)),
        ("08", Some(8.0)),
        ("0x1F", Some(31.0)),
        ("1_000", Some(1000.0)),
        ("1e3", Some(1000.0)),
        (".5", Some(0.5)),
        ("1.", Some(1.0)),
        ("1__0", None),
        ("_1", None),
        ("1_", None),
        ("1e400", None),
        ("0x", None),
        ("1e", None),
        ("0b1", None),
    ] {
        assert_eq!(literal::number(text), expected, "{text}");
    }
    for (text, expected) in [
        ("1h30m", Some(5_400_000)),
        ("1m500ms", Some(60_500)),
        ("1y", Some(31_536_000_000)),
        ("30m1h", None),
        ("1h1h", None),
        ("1", None),
        ("1.5h", None),
        ("300y", None),
        ("", None),
    ] {
        assert_eq!(literal::duration_ms(text), expected, "{text}");
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in ".{0,80}") {
        if let Err(error) = parse(&text) {
            proptest::prop_assert!(text.get(error.span.clone()).is_some(), "{:?}", error);
        }
    }

    #[test]
    fn a_printed_expression_evaluates_like_the_original(
        inner in proptest::sample::select(vec![
            "uma_a", "uma_a{zone=\"dma\"}", "uma_a offset 1m", "vector(1)", "uma_b", "uma_c",
            "rate(uma_a[1m])", "absent(uma_c)", "max_over_time(uma_a[30s])",
        ]),
        wrappers in proptest::collection::vec(
            proptest::sample::select(vec![
                ("sum by (zone) (", ")"), ("-", ""), ("abs(", ")"), ("topk(1, ", ")"),
                ("(", " > 1)"), ("(2 ^ ", ")"), ("(", " / on(zone) group_left() uma_a)"),
                ("label_replace(", ", \"zone\", \"$1$1\", \"zone\", \"(.*)\")"),
                ("(", " or uma_b)"), ("(uma_a unless on() ", ")"), ("vector(scalar(", "))"),
                ("quantile(0.5, ", ")"), ("clamp(", ", 0, 1)"), ("count without (zone) (", ")"),
                ("(", " == bool uma_a)"), ("sort_desc(", ")"), ("round(", ", 0.1)"),
            ]),
            0..8,
        )
    ) {
        let store = store(&[
            ("uma_a", &[("zone", "dma")], Reading::Value(f64::NAN)),
            ("uma_a", &[("zone", "normal")], Reading::Value(1e300)),
            ("uma_b", &[], Reading::Value(-1.5)),
            ("uma_c", &[], Reading::Unsupported),
        ]);
        let text = wrappers.iter().fold(inner.to_owned(), |text, (before, after)| {
            format!("{before}{text}{after}")
        });
        let expr = parse(&text).expect(&text);
        let again = parse(&expr.to_string()).expect("its printed form");
        let evaluated = [&expr, &again].map(|expr| format!("{:?}", expr.evaluate(&store, NOW)));
        proptest::prop_assert_eq!(&evaluated[0], &evaluated[1]);
    }

    #[test]
    fn any_tokens_are_parsed_or_refused_and_print_as_read(
        words in proptest::collection::vec(
            proptest::sample::select(vec![
                "uma_a", "{", "}", "zone", "=~", "=", "\"d.*\"", "'\\\\'", ",", "(", ")", "[", "]", "5m", "1",
                "-", "+", "^", "*", "==", "bool", "on", "ignoring", "group_left", "by", "sum",
                "topk", "rate", "offset", "or", "and", "unless", "abs", "1e3", "Inf", "NaN", "#x\n", ":", "@",
            ]),
            0..24,
        )
    ) {
        let text = words.join(" ");
        match parse(&text) {
            Err(error) => proptest::prop_assert!(text.get(error.span.clone()).is_some()),
            Ok(expr) => {
                let printed = expr.to_string();
                let again = parse(&printed).map(|expr| expr.to_string());
                proptest::prop_assert_eq!(Ok(printed), again);
                let evaluated = expr.evaluate(&SeriesStore::default(), NOW);
                proptest::prop_assert!(evaluated.is_ok());
            }
        }
    }
}

/// The expression wrapped by itself so many times, as `before` + expression + `after`.
fn nested(times: usize, before: &str, innermost: &str, after: &str) -> String {
    format!("{}{innermost}{}", before.repeat(times), after.repeat(times))
}

#[test]
fn labels_cannot_be_made_to_grow_without_bound() {
    let store = store(&[("uma_a", &[("zone", "dma")], Reading::Value(1.0))]);
    for (before, after) in [
        ("label_replace(", ",\"zone\",\"$0$0\",\"zone\",\".*\")"),
        ("label_join(", ",\"zone\",\"\",\"zone\",\"zone\",\"zone\")"),
    ] {
        let few = nested(5, before, "uma_a", after);
        assert!(matches!(evaluated(&few, &store), Evaluated::Known(_)), "{few}");
        let error =
            parse(&nested(30, before, "uma_a", after)).expect("valid").evaluate(&store, NOW);
        let message = "the label \"zone\" would have more than 4096 bytes";
        assert_eq!(error, Err(message.to_owned()));
    }
}

#[test]
fn patterns_are_bounded_in_number_and_size() {
    let selector = |count, pattern: &str| {
        let matcher = format!("zone=~\"{pattern}\"");
        format!("uma_a{{{}}}", vec![matcher; count].join(","))
    };
    assert_eq!(parse(&selector(32, "(a*)*b|c?")).map(|expr| expr.patterns()), Ok(32));
    let too_many = parse(&selector(33, "a")).expect_err("too many");
    assert_eq!((too_many.span, &*too_many.message), (332..335, "more than 32 regular expressions"));
    for pattern in [".{1000}{1000}", "((a{99}){99}){99}", &"(".repeat(1000), "\\\\pL{100}"] {
        assert_eq!(refused(&selector(1, pattern)).0, format!("\"{pattern}\""));
    }
    let error = refused("label_replace(uma_a, \"a\", \"\", \"b\", \"(\")");
    assert_eq!(error.0, "\"(\"");
    assert!(error.1.starts_with("invalid regular expression in label_replace(): "), "{error:?}");
}

#[test]
fn the_error_for_an_overlong_chain_points_to_the_excess() {
    let error = parse(&format!("1{}", "+1".repeat(2000))).expect_err("too long");
    assert_eq!(error.span, 256..257);
}

#[test]
fn the_bounds_allow_real_rules() {
    let deep = format!("{}uma_a{}", "(".repeat(60), ")".repeat(60));
    let long = (0..100).map(|_| "uma_a").collect::<Vec<_>>().join(" + ");
    for text in [deep, long] {
        assert!(parse(&text).is_ok(), "{text}");
    }
}

#[test]
fn a_traced_expression_shows_its_missing_parts() {
    let store = store(&[
        ("uma_a_bytes", &[], Reading::Value(1.0)),
        ("uma_b", &[("zone", "dma")], Reading::Value(2.0)),
        ("uma_c", &[], Reading::Failed),
    ]);
    let culprits = |text: &str| {
        let traced = parse(text).expect(text).trace(text, &store, NOW, true);
        traced.culprits().iter().map(|part| part.text.clone()).collect::<Vec<_>>()
    };
    for (text, expected) in [
        ("uma_a_bytes > 0", &[][..]),
        ("uma_a_bytes > 5", &["uma_a_bytes > 5"]),
        ("uma_a_bytes > 0 and on() (uma_b > 5)", &["uma_b > 5"]),
        (
            "uma_a_bytes > 5 and on() (uma_b > 5 or uma_b > 6)",
            &["uma_a_bytes > 5", "uma_b > 5", "uma_b > 6"],
        ),
        ("uma_a_bytes and uma_b", &["uma_a_bytes and uma_b"]),
        ("sum(uma_b > 5) > 1", &["uma_b > 5"]),
        ("uma_a_bytes unless on() uma_b", &["uma_a_bytes unless on() uma_b"]),
        ("uma_a_bytes / on() (uma_b > 5)", &["uma_a_bytes / on() (uma_b > 5)"]),
        ("uma_c > 5", &[]),
    ] {
        assert_eq!(culprits(text), expected, "{text}");
    }
}

#[test]
fn an_unreadable_part_shows_whether_it_is_needed() {
    let store = store(&[
        ("uma_a", &[], Reading::Value(1.0)),
        ("uma_b", &[], Reading::Failed),
        ("uma_c", &[], Reading::Failed),
    ]);
    let needed = |text: &str, is_aim: bool| {
        let expr = parse(text).expect(text);
        let trace = if is_aim { Expr::trace_aim } else { Expr::trace };
        let traced = trace(&expr, text, &store, NOW, true);
        let mut parts = vec![&traced];
        let mut found = Vec::new();
        while let Some(part) = parts.pop() {
            if part.parts.is_empty() && matches!(part.value, TracedValue::Unknown(_)) {
                found.push((part.text.clone(), part.decided_by));
            }
            parts.extend(part.parts.iter().rev());
        }
        found
    };
    let b = |decided_by| vec![("uma_b".to_owned(), decided_by)];
    let [left, right] = ["left", "right"].map(|side| format!("the {side} side of `or` decides"));
    let other = Some("the other side of `and` decides");
    for (text, is_aim, expected) in [
        ("uma_a > 5 and uma_b > 1", false, other),
        ("uma_b > 1 and uma_a > 5", false, other),
        ("uma_a > 0 and uma_b > 1", false, None),
        ("uma_a or uma_b", false, Some(&*left)),
        ("uma_b or uma_a", false, None),
        ("uma_b or uma_a", true, Some(&*right)),
        ("uma_a and on() (uma_b or on() uma_a)", false, Some(&*right)),
        ("uma_a and on() (sum(uma_b) > 1 or on() uma_a)", false, Some(&*right)),
        ("uma_b unless uma_a", false, Some("the other side of `unless` decides")),
        ("absent(uma_a or uma_b)", false, Some(&*left)),
    ] {
        assert_eq!(needed(text, is_aim), b(expected), "{text}");
    }
    let both = needed("(uma_b and on() uma_a > 5) or on() uma_c", false);
    assert_eq!(both, [("uma_b".to_owned(), other), ("uma_c".to_owned(), None)]);
}

#[test]
fn parts_have_their_written_text_and_the_unit_bytes() {
    let store = store(&[("uma_a_bytes", &[], Reading::Value(1.0))]);
    let text = "2 * uma_a_bytes\n  > (-5)\n  and count(uma_a_bytes)\n  or rate(uma_a_bytes[1m])";
    let traced = parse(text).expect(text).trace(text, &store, NOW, false);
    let mut parts = vec![&traced];
    let mut found = Vec::new();
    while let Some(part) = parts.pop() {
        found.push((part.text.as_str(), part.is_bytes));
        parts.extend(part.parts.iter().rev());
    }
    assert_eq!(
        found,
        [
            ("2 * uma_a_bytes > (-5) and count(uma_a_bytes) or rate(uma_a_bytes[1m])", false),
            ("2 * uma_a_bytes > (-5) and count(uma_a_bytes)", true),
            ("2 * uma_a_bytes > (-5)", true),
            ("2 * uma_a_bytes", true),
            ("uma_a_bytes", true),
            ("count(uma_a_bytes)", false),
            ("uma_a_bytes", true),
            ("rate(uma_a_bytes[1m])", false),
            ("uma_a_bytes[1m]", true),
        ]
    );
    let text = "uma_a_bytes + 60 * deriv(uma_a_bytes[1m]) < 3";
    let traced_sum = parse(text).expect(text).trace(text, &store, NOW, false);
    let slope = &traced_sum.parts[0].parts[1];
    assert_eq!((slope.is_bytes, slope.parts[0].is_bytes), (true, false), "{slope:?}");
    let unknown = |part: &Traced| matches!(part.value, TracedValue::Unknown(_));
    assert!(unknown(&traced) && unknown(&traced.parts[1]) && !unknown(&traced.parts[0]));
}

#[test]
fn a_quantile_is_found_within_its_bucket() {
    let bucket = |le: &'static str| [("le", le), ("zone", "dma")];
    let quantile = |q: &str, counts: &[(&'static str, f64)]| {
        let labels: Vec<_> = counts.iter().map(|(le, _)| bucket(le)).collect();
        let readings: Vec<Labelled<'_>> = counts
            .iter()
            .zip(&labels)
            .map(|((_, count), labels)| ("uma_h_bucket", &labels[..], Reading::Value(*count)))
            .collect();
        let found = evaluated(&format!("histogram_quantile({q}, uma_h_bucket)"), &store(&readings));
        match found {
            Evaluated::Known(Value::Vector(samples)) if samples.is_empty() => None,
            Evaluated::Known(Value::Vector(samples)) => {
                assert_eq!((samples.len(), samples[0].labels.len()), (1, 1), "{samples:?}");
                Some(samples[0].value)
            }
            other => panic!("{other:?}"),
        }
    };
    let four: &[(&str, f64)] = &[("+Inf", 10.0), ("1", 4.0), ("2", 8.0), ("0.5", 0.0)];
    assert_eq!(quantile("0.5", four), Some(1.25));
    assert_eq!(quantile("0.9", four), Some(2.0), "the last bound that is a number");
    assert_eq!(quantile("-1", four), Some(f64::NEG_INFINITY));
    assert_eq!(quantile("2", four), Some(f64::INFINITY));
    assert_eq!(quantile("0.5", &[("-1", 4.0), ("+Inf", 4.0)]), Some(-1.0));
    assert_eq!(quantile("0.5", &[("1", 2.0), ("1.0", 2.0), ("+Inf", 4.0)]), Some(0.5));
    assert_eq!(quantile("0.5", &[("1", 3.0), ("2", 1.0), ("+Inf", 4.0)]), Some(2.0 / 3.0));
    assert_eq!(quantile("0.5", &[("NaN", 1.0), ("none", 1.0), ("1e999", 4.0)]), None);
    for counts in [&[("1", 1.0), ("2", 4.0)][..], &[("+Inf", 4.0)], &[("1", 0.0), ("+Inf", 0.0)]] {
        assert!(quantile("0.5", counts).is_some_and(f64::is_nan), "{counts:?}");
    }
    assert!(quantile("NaN", four).is_some_and(f64::is_nan));
}

#[test]
fn matching_on_the_name_treats_it_as_a_label() {
    let store = store(&[("uma_a", &[("zone", "dma")], Reading::Value(3.0))]);
    for (text, name, labels, value) in [
        ("1 + on() uma_a", None, 1, 4.0),
        ("sum by (__name__) (uma_a)", Some("uma_a"), 0, 3.0),
        ("uma_a + on(__name__) uma_a", None, 0, 6.0),
        ("uma_a == on(__name__) uma_a", Some("uma_a"), 0, 3.0),
        ("uma_a == ignoring(zone) uma_a", Some("uma_a"), 0, 3.0),
    ] {
        let Evaluated::Known(Value::Vector(samples)) = evaluated(text, &store) else {
            panic!("{text} is not a vector");
        };
        let found: Vec<_> = samples
            .iter()
            .map(|sample| (sample.name.as_deref(), sample.labels.len(), sample.value))
            .collect();
        assert_eq!(found, [(name, labels, value)], "{text}");
    }
}
