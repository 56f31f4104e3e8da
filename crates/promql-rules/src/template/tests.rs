use super::*;

fn rendered(template: &str, value: f64) -> String {
    let labels = [(Arc::from("state"), Arc::from("clean")), (Arc::from("zone"), Arc::from("DMA"))];
    Template::parse(template).expect(template).render(&labels, value)
}

#[test]
fn values_and_labels_are_inserted() {
    assert_eq!(rendered("{{ $value | humanize1024 }}B free", 3.0 * 1024.0 * 1024.0), "3MiB free");
    assert_eq!(
        rendered("{{$labels.state}}/{{ .Labels.zone }}/{{ $labels.none }}.", 1.0),
        "clean/DMA/."
    );
    assert_eq!(rendered("a {{- $value -}} b", 2.5), "a2.5b");
    assert_eq!(rendered("{{ /* note */ }}{{ \"}}\" }}", 0.0), "}}");
    assert_eq!(
        rendered("{{ printf \"%s is %.1f\" $labels.state .Value | toUpper }}", 2.25),
        "CLEAN IS 2.2"
    );
    assert_eq!(rendered("{{ (printf \"%.0f\" $value) | title }}", 2.0), "2");
}

#[test]
fn numbers_print_as_go_prints_them() {
    for (value, expected) in [
        (1e6, "1e+06"),
        (123_456.0, "123456"),
        (21_000_000.0, "2.1e+07"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (f64::INFINITY, "+Inf"),
        (f64::NAN, "NaN"),
        (-0.0, "-0"),
        (0.1, "0.1"),
    ] {
        assert_eq!(rendered("{{ $value }}", value), expected);
    }
    assert_eq!(
        rendered("{{ printf \"%08.3f|%-6s|%q|%%|%e|%g\" $value \"a\" \"b\" $value $value }}", -1.5),
        "-001.500|a     |\"b\"|%|-1.500000e+00|-1.5"
    );
    assert_eq!(rendered("{{ printf \"%d\" $value }}", 1.5), "%!d(float64=1.5)");
}

#[test]
fn humanizing_follows_prometheus() {
    for (function, value, expected) in [
        ("humanize", 1_234_567.0, "1.235M"),
        ("humanize", 0.0, "0"),
        ("humanize", 0.012, "12m"),
        ("humanize1024", 1023.0, "1023"),
        ("humanize1024", -2048.0, "-2ki"),
        ("humanizeDuration", 0.0, "0s"),
        ("humanizeDuration", 1.5, "1.5s"),
        ("humanizeDuration", 3661.0, "1h 1m 1s"),
        ("humanizeDuration", -90_061.0, "-1d 1h 1m 1s"),
        ("humanizeDuration", 0.005, "5ms"),
        ("humanizePercentage", 0.12345, "12.35%"),
        ("humanizeTimestamp", 1_435_065_584.128, "2015-06-23 13:19:44.128 +0000 UTC"),
    ] {
        assert_eq!(
            rendered(&format!("{{{{ $value | {function} }}}}"), value),
            expected,
            "{function}"
        );
    }
}

#[test]
fn unsupported_template_parts_are_errors_at_their_position() {
    for (template, at, part) in [
        ("{{ if $value }}x{{ end }}", "if", "if is not supported in rules here"),
        ("{{ query \"up\" }}", "query", "query is not supported in rules here"),
        ("{{ $value | humanise }}", "humanise", "did you mean \"humanize\"?"),
        ("{{ $labels.a-b }}", "$labels.a-b", "not a label name"),
        ("{{ $foo }}", "$foo", "unknown variable"),
        ("{{ $value", "{{ $value", "unclosed action"),
        ("{{ }}", " ", "missing value"),
        ("{{ humanize }}", "humanize", "wrong number of arguments"),
    ] {
        let error = Template::parse(template).expect_err(template);
        assert_eq!(&template[error.span.clone()], at, "{template}");
        assert!(error.message.contains(part), "{}", error.message);
    }
}

#[test]
fn texts_cannot_be_made_to_grow_without_bound() {
    let doubled = |times| {
        let pipe = "| reReplaceAll \"^.*$\" \"$0$0\" ".repeat(times);
        rendered(&format!("{{{{ \"xy\" {pipe}}}}}"), 0.0)
    };
    assert_eq!(doubled(3), "xy".repeat(8));
    let refusal = "<error expanding template: reReplaceAll takes a text of at most 2048 bytes>";
    assert_eq!(doubled(60), refusal);
    let multiplied = format!("reReplaceAll \"x\" \"{}\" \"xxxxxxxxxx\"", "$0".repeat(900));
    let refusal = "<error expanding template: a text becomes longer than 16384 bytes>";
    assert_eq!(rendered(&format!("{{{{ {multiplied} }}}}"), 0.0).len(), 9_000);
    assert_eq!(rendered(&format!("{{{{ print ({multiplied}) ({multiplied}) }}}}"), 0.0), refusal);
    let filled = "%256s".repeat(700);
    assert_eq!(rendered(&format!("{{{{ printf \"{filled}\" }}}}"), 0.0).len(), 12 * 700);
    assert!(rendered(&"{{ printf \"%256s\" \"\" }}".repeat(150), 0.0).len() <= MAX_RENDERED);
}

#[test]
fn replacing_follows_go() {
    for (call, expected) in [
        ("\"a b  c\" | reReplaceAll \" +\" \"-\"", "a-b-c"),
        ("\"abc\" | reReplaceAll \"(b)(x)?\" \"<$1$2>\"", "a<b>c"),
        ("\"abc\" | reReplaceAll \"\" \"-\"", "-a-b-c-"),
        ("\"abc\" | reReplaceAll \"x\" \"-\"", "abc"),
        ("\"\" | reReplaceAll \".\" \"-\"", ""),
    ] {
        assert_eq!(rendered(&format!("{{{{ {call} }}}}"), 0.0), expected, "{call}");
    }
}

proptest::proptest! {
    #[test]
    fn printed_numbers_read_back_the_same(value: f64) {
        let read = functions::parse_float(&go_float(value)).expect("a number");
        proptest::prop_assert_eq!(go_float(read), go_float(value));
        let parsed = rendered(&format!("{{{{ printf \"%v\" {} }}}}", go_float(value).trim_start_matches('+')), 0.0);
        proptest::prop_assert_eq!(parsed, go_float(value));
    }

    #[test]
    fn any_printf_format_has_bounded_output(
        format in "(%[-+ 0#]{0,3}[0-9]{0,5}(\\.[0-9]{0,5})?[a-zA-Z%]|[ -~]){0,6}",
        value: f64,
    ) {
        let quoted = format.replace('\\', "\\\\").replace('"', "\\\"");
        let text = rendered(&format!("{{{{ printf \"{quoted}\" $value $labels.zone }}}}"), value);
        proptest::prop_assert!(text.len() <= 6 * 700, "{}", text.len());
    }

    #[test]
    fn any_pipeline_has_bounded_output(
        functions in proptest::collection::vec(
            proptest::sample::select(vec![
                "humanize", "humanize1024", "humanizeDuration", "humanizePercentage", "title",
                "humanizeTimestamp", "print", "toUpper", "reReplaceAll \".\" \"$0$0\"",
                "printf \"%9s|%q\" $labels.zone",
            ]),
            0..40,
        ),
        value: f64,
    ) {
        let pipe: String = functions.iter().map(|function| format!(" | {function}")).collect();
        let text = rendered(&format!("{{{{ $value{pipe} }}}}"), value);
        proptest::prop_assert!(text.len() <= MAX_RENDERED);
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "[{} $a-z|\"`().%0-9\\\\-]{0,60}", value: f64) {
        if let Ok(template) = Template::parse(&text) {
            template.render(&[], value);
        }
    }
}

#[test]
fn every_mistake_is_reported_with_a_suggestion() {
    let found = |text: &str| {
        let errors = Template::parse_all(text).expect_err(text);
        errors
            .into_iter()
            .map(|error| format!("{}: {}", &text[error.span], error.message))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        found("{{ $valu | humanze }} of {{ $labls.node }} in {{ .Label.zone }}"),
        [
            "$valu: unknown variable \"$valu\": did you mean \"$value\"?",
            "humanze: function \"humanze\" not defined: did you mean \"humanize\"?",
            "$labls.node: unknown variable \"$labls.node\": did you mean \"$labels\"?",
            ".Label.zone: unknown variable \".Label.zone\": did you mean \".Labels\"?",
        ]
    );
    assert_eq!(found("{{ if gt $value 5 }}much{{ end }}").len(), 2);
    assert_eq!(found("{{ $x }} {{ $value | ").len(), 2);
    assert!(found("{{ $somethingelse }}")[0].contains("there are $value and $labels.name"));
}
