use proptest::prelude::*;

use super::*;

fn tree(text: &str) -> Arc<YamlNode> {
    parse(&SourceText::new("f.yaml", text)).expect("valid YAML")
}

fn mistake(text: &str) -> Mistake {
    parse(&SourceText::new("f.yaml", text)).expect_err("a mistake")
}

fn value<'n>(node: &'n YamlNode, key: &str) -> &'n YamlNode {
    let Content::Map(pairs) = &node.content else { panic!("not a mapping") };
    &pairs.iter().find(|(name, _)| name.text() == Some(key)).expect(key).1
}

#[test]
fn an_empty_document_is_null() {
    for text in ["", "\n\n", "# only a comment\n", "---\n", "~", "null", "\u{feff}"] {
        assert!(matches!(tree(text).content, Content::Null), "{text:?}");
    }
}

#[test]
fn scalars_have_their_text_and_position() {
    let text = "a: 1e3\nb: 'it''s'\nc: \"x\\ty\"\nd: |\n  two\n  lines\n";
    let root = tree(text);
    assert_eq!(value(&root, "a").text(), Some("1e3"));
    assert_eq!(value(&root, "b").text(), Some("it's"));
    assert_eq!(value(&root, "c").text(), Some("x\ty"));
    assert_eq!(value(&root, "d").text(), Some("two\nlines\n"));
    assert_eq!(&text[value(&root, "b").span.clone()], "'it''s'");
}

#[test]
fn quoted_null_is_text() {
    assert_eq!(tree("'null'").text(), Some("null"));
    assert_eq!(tree("\"\"").text(), Some(""));
}

#[test]
fn aliases_stand_for_their_anchor() {
    let root = tree("a: &x [1, 2]\nb: *x\n");
    assert_eq!(value(&root, "a").span, value(&root, "b").span);
}

#[test]
fn alias_bombs_are_refused_before_they_grow() {
    let mut text = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n".to_owned();
    for level in 1..12 {
        let before = format!("*a{},", level - 1).repeat(10);
        text += &format!("a{level}: &a{level} [{}]\n", before.trim_end_matches(','));
    }
    let mistake = mistake(&text);
    assert!(mistake.message.contains("more than 100000 values, each alias"), "{mistake}");
    assert_eq!(mistake.line, 5);
}

#[test]
fn expanded_aliases_count_towards_the_size_limit() {
    let list = |times: usize| format!("- &a {}\n{}", "x".repeat(100_000), "- *a\n".repeat(times));
    tree(&list(40));
    let mistake = mistake(&list(42));
    assert!(mistake.message.contains("more than 4 MiB of text, each alias"), "{mistake}");
}

#[test]
fn an_anchor_cannot_hold_itself() {
    assert!(mistake("a: &a [*a]").message.contains("inside its own anchor"));
}

#[test]
fn deep_nesting_is_refused() {
    let flow = format!("{}{}", "[".repeat(200), "]".repeat(200));
    assert!(mistake(&flow).message.contains("levels deep"));
    assert!(mistake(&"- ".repeat(200)).message.contains("levels deep"));
    // Beyond the parser's own limit.
    let flow = format!("{}{}", "{a: ".repeat(50_000), "}".repeat(50_000));
    assert!(mistake(&flow).message.contains("levels deep"));
    assert!(mistake(&"- ".repeat(50_000)).message.contains("levels deep"));
}

#[test]
fn broken_yaml_is_shown_at_its_place_with_advice() {
    let tab = mistake("a:\n\tb: 1\n");
    assert_eq!((tab.line, tab.hint.as_deref()), (2, Some("indent with spaces")));
    let tab = mistake("- a: b\n\tc: d\n");
    assert_eq!((tab.line, tab.column, tab.hint.as_deref()), (2, 1, Some("indent with spaces")));
    assert_eq!(mistake("a: *nobody\n").line, 1);
    assert!(mistake("a: 1\n---\nb: 2\n").message.contains("second YAML document"));
    assert!(mistake("a: !!python/object x\n").message.contains("tags are not supported"));
    assert!(mistake("a: 'open\n").message.starts_with("not valid YAML"));
}

/// The position of `needle`, an expression's part, as a mistake there would be shown.
fn shown(text: &str, needle: &str) -> (usize, usize, String) {
    let source = SourceText::new("f.yaml", text);
    let root = parse(&source).expect("valid YAML");
    let node = value(&root, "expr");
    let at = node.text().and_then(|text| text.find(needle)).expect("the needle");
    let span = node.span_of(&source, at..at + needle.len());
    let mistake = source.mistake(span.clone(), "");
    (mistake.line, mistake.column, text[span].to_owned())
}

#[test]
fn positions_inside_scalars_are_found_in_every_style() {
    for (text, line, column) in [
        ("expr: uma_a < uma_b", 1, 15),
        ("expr: uma_a\n  <\n  uma_b", 3, 3),
        ("expr: 'uma_a{x=''y''} < uma_b'", 1, 25),
        ("expr: \"uma_a{x=\\\"y\\\"} < uma_b\"", 1, 25),
        ("expr: \"uma_a \\\n   < uma_b\"", 2, 6),
        ("expr: \"\\u0075ma_a\\n< uma_b\"", 1, 22),
        ("expr: |\n  uma_a\n    < uma_b\n", 3, 7),
        ("expr: |-\n  uma_a\n\n\n  < uma_b\n", 5, 5),
        ("expr: >\n  uma_a\n  < uma_b\n", 3, 5),
        ("expr: >2-\n   uma_a <\n\n   uma_b\n", 4, 4),
        ("expr: |  # the condition\r\n  uma_a <\r\n  uma_b\r\n", 3, 3),
        ("expr: &e uma_a < uma_b", 1, 18),
        ("expr: |\n  uma_a # ä€😀\n  < uma_b", 3, 5),
    ] {
        assert_eq!(shown(text, "uma_b"), (line, column, "uma_b".to_owned()), "{text}");
    }
}

#[test]
fn the_end_of_a_scalar_has_a_position() {
    let source = SourceText::new("f.yaml", "expr: 'uma_a <'\n");
    let root = parse(&source).expect("valid YAML");
    assert_eq!(value(&root, "expr").span_of(&source, 7..7), 14..14);
    assert_eq!(value(&root, "expr").span_of(&source, 99..200), 14..14);
}

#[derive(Clone, Copy, Debug)]
enum Written {
    Single,
    Double,
    Literal,
    Folded,
}

fn write_scalar(text: &str, how: Written) -> String {
    let block = text.split('\n').map(|line| format!("    {line}\n")).collect::<String>();
    match how {
        Written::Single => format!("expr: '{}'\n", text.replace('\'', "''").replace('\n', "\n\n ")),
        Written::Double => format!("expr: {text:?}\n"),
        Written::Literal => format!("expr: |-\n{block}"),
        Written::Folded => format!("expr: >-\n{block}"),
    }
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic_the_parser(text in "(?s).{0,80}") {
        let _ = parse(&SourceText::new("f", text));
    }

    #[test]
    fn almost_yaml_does_not_make_it_panic(
        text in "([a&*!|>'\"#:,\\-\\[\\]{} \n\t%?x<]|: |- |\n  ){0,40}",
    ) {
        let _ = parse(&SourceText::new("f", text));
    }

    #[test]
    fn every_character_of_a_scalar_has_its_position(
        text in "[a-z(]([a-z0-9 <(){}='\"\\\\ä\n]{0,30}[a-z)])?",
        how in prop::sample::select(vec![
            Written::Single, Written::Double, Written::Literal, Written::Folded,
        ]),
    ) {
        let source = SourceText::new("f", write_scalar(&text, how));
        let root = parse(&source).expect("valid YAML");
        let node = value(&root, "expr");
        let read = node.text().expect("a scalar");
        for (at, c) in read.char_indices().filter(|(_, c)| !c.is_whitespace()) {
            let range = node.span_of(&source, at..at + c.len_utf8());
            let written = &source.text[range];
            prop_assert!(written.ends_with(c), "{c:?} was shown at {written:?}");
            prop_assert!(written.chars().count() <= 2, "{c:?} was shown at {written:?}");
        }
    }

    #[test]
    fn arbitrary_ranges_within_scalars_have_a_position(
        text in "[a-z\\\\'\" \n]{0,20}", start in 0usize..30, length in 0usize..30,
    ) {
        let source = SourceText::new("f", format!("expr: {text:?}\n"));
        let root = parse(&source).expect("valid YAML");
        let range = value(&root, "expr").span_of(&source, start..start + length);
        prop_assert!(source.text.get(range).is_some());
    }
}
