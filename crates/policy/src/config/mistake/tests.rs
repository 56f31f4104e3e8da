use proptest::prelude::*;

use super::*;

#[test]
fn carets_are_below_the_mistake() {
    let source = SourceText::new("rules.yaml", "a: 1\nexpr: uma_fre > 1\n");
    let mistake = source.mistake(11..18, "unknown series").hint("did you mean uma_free?");
    assert_eq!((mistake.line, mistake.column), (2, 7));
    assert_eq!(
        mistake.to_string(),
        "rules.yaml:2:7: unknown series\n  |\n2 | expr: uma_fre > 1\n  |       ^^^^^^^\n  = did you mean uma_free?\n"
    );
}

#[test]
fn a_span_over_several_lines_is_shown_on_its_first() {
    let source = SourceText::new("f", "ab\r\ncd\n");
    let mistake = source.mistake(1..7, "m");
    assert_eq!((mistake.source_line.as_str(), mistake.width), ("ab", 1));
}

#[test]
fn a_place_at_the_end_of_the_file_is_shown() {
    let mistake = SourceText::new("f", "a:").mistake(2..2, "m");
    assert_eq!((mistake.line, mistake.column, mistake.width), (1, 3, 1));
    assert!(mistake.to_string().contains("a:\n  |   ^"));
}

#[test]
fn control_characters_never_reach_a_terminal() {
    let mistake = SourceText::new("f\x1b", "k: \x1b]0;gotcha\x07\u{202e}").mistake(0..1, "\x1b[2J");
    assert!(mistake.to_string().chars().all(|c| c == '\n' || !c.is_control()));
    assert!(!mistake.to_string().contains('\u{202e}'));
}

#[test]
fn long_lines_are_cut_around_the_caret() {
    let text = format!("{}HERE{}", "x".repeat(500), "y".repeat(500));
    let rendered = SourceText::new("f", text).mistake(500..504, "m").to_string();
    let lines: Vec<&str> = rendered.lines().collect();
    let caret = lines[3].chars().position(|c| c == '^').expect("a caret");
    let shown: String = lines[2].chars().skip(caret).take(4).collect();
    assert_eq!(shown, "HERE");
    assert!(lines[2].chars().count() < 120);
}

#[test]
fn only_the_part_around_a_mistake_is_kept_of_a_long_line() {
    let text = format!("{}HERE{}", "ä".repeat(500_000), "y".repeat(500_000));
    let mistake = SourceText::new("f", text).mistake(1_000_000..1_000_004, "é".repeat(1000));
    assert_eq!((mistake.column, mistake.width), (500_001, 4));
    assert!(mistake.source_line.len() < 2000 && mistake.message.chars().count() < 500);
    let rendered = mistake.to_string();
    let lines: Vec<&str> = rendered.lines().collect();
    let caret = lines[3].chars().position(|c| c == '^').expect("a caret");
    assert_eq!(lines[2].chars().skip(caret).take(4).collect::<String>(), "HERE");
    assert!(lines[2].contains(" …ä") && lines[2].ends_with("y…"), "{}", lines[2]);
}

proptest! {
    #[test]
    fn arbitrary_spans_of_arbitrary_text_are_shown(
        text in "(?s).{0,60}", start in 0usize..80, length in 0usize..80,
    ) {
        let mistake = SourceText::new("f", text).mistake(start..start + length, "m");
        prop_assert!(mistake.line >= 1 && mistake.column >= 1 && mistake.width >= 1);
        prop_assert_eq!(mistake.to_string().lines().count(), 4);
    }
}

#[test]
fn the_value_of_a_key_that_names_a_secret_is_not_shown() {
    let line = |text: &str| {
        let at = text.find("bad").unwrap();
        SourceText::new("f", text).mistake(at..at + 3, "m").source_line
    };
    assert_eq!(line("api_key: bad-1"), "api_key: *****");
    assert_eq!(line("{name: bad, admin_key_file: \"a b\"}"), "{name: bad, admin_key_file: ** ***");
    assert_eq!(line("'password': bad"), "'password': ***");
    assert_eq!(line("bad: api_key"), "bad: api_key");
    assert_eq!(line("expr: bad_tokens > 1"), "expr: bad_tokens > 1");
    let long = format!("token: {} bad {}", "x".repeat(900), "y".repeat(900));
    let shown = line(&long);
    assert!(!shown.contains(['x', 'y', 'b']), "{shown}");
}
