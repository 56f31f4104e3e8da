use proptest::prelude::*;

use super::*;
use crate::config::settings::parse_settings;

fn changes(modes: &[(&str, Mode)], grades: &[Grade]) -> Changes {
    let modes = modes.iter().map(|(rule, mode)| ((*rule).to_owned(), *mode)).collect();
    Changes { modes, grades: grades.to_vec() }
}

fn applied(text: &str, modes: &[(&str, Mode)], grades: &[Grade]) -> Result<String, String> {
    let source = SourceText::new("umawarden.yaml", text);
    changes(modes, grades).apply(&source).map_err(|error| error.to_string())
}

fn enforced(text: &str) -> String {
    applied(text, &[("g/A", Mode::Enforce)], &[]).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_file_without_rules_gets_them_at_its_end() {
    let new = "rules:\n  g/A: {mode: enforce}\n";
    for empty in ["", "\n", "  \n"] {
        assert_eq!(enforced(empty), new, "{empty:?}");
    }
    assert_eq!(enforced("# text\n#rules:\n"), format!("# text\n#rules:\n\n{new}"));
    assert_eq!(enforced("mode: observe  # why"), format!("mode: observe  # why\n\n{new}"));
    let indented = "  log: {level: info}\n";
    let expected = "  log: {level: info}\n\n  rules:\n    g/A: {mode: enforce}\n";
    assert_eq!(enforced(indented), expected);
    assert_eq!(
        enforced("log: {level: info}\r\n"),
        "log: {level: info}\r\n\r\nrules:\r\n  g/A: {mode: enforce}\r\n"
    );
}

#[test]
fn other_entries_and_comments_stay_where_they_are() {
    let text = "\
# mine
rules:
    # the brake
    brake/MemoryCollapse: {mode: observe}   # for now
    kernel/OomKill:
      severity: warning # not that bad
# the log
log: {level: info}
";
    let expected = text.replace("# not that bad\n", "# not that bad\n    g/A: {mode: enforce}\n");
    assert_eq!(enforced(text), expected);
    assert_eq!(enforced("rules: {}\n"), "rules: {g/A: {mode: enforce}}\n");
    assert_eq!(
        enforced("rules: {a/B: {for: 1s}, }  # x\n"),
        "rules: {a/B: {for: 1s}, g/A: {mode: enforce} }  # x\n"
    );
    assert_eq!(
        enforced("rules:   # none\nlog: {level: info}\n"),
        "rules:   # none\n  g/A: {mode: enforce}\nlog: {level: info}\n"
    );
}

#[test]
fn the_entry_of_a_rule_gets_the_mode() {
    for (text, expected) in [
        ("rules:\n  g/A: {mode: observe}  # no\n", "rules:\n  g/A: {mode: enforce}  # no\n"),
        ("rules:\n  g/A: {mode: 'observe'}\n", "rules:\n  g/A: {mode: enforce}\n"),
        ("rules:\n  g/A: {for: 1s}\n", "rules:\n  g/A: {for: 1s, mode: enforce}\n"),
        ("rules:\n  g/A:\n    for: 1s\n", "rules:\n  g/A:\n    for: 1s\n    mode: enforce\n"),
        ("rules: {\"g/A\": {for: 1s}}\n", "rules: {\"g/A\": {for: 1s, mode: enforce}}\n"),
    ] {
        assert_eq!(enforced(text), expected);
    }
}

#[test]
fn grades_are_added_to_a_list_in_its_own_layout() {
    for (text, expected) in [
        ("enforce: [notice]  # a\n", "enforce: [notice, drop]  # a\n"),
        ("enforce: [ notice, ]\n", "enforce: [ notice, drop ]\n"),
        ("enforce: []\n", "enforce: [drop]\n"),
        ("enforce:\n- notice # a\nlog: {}\n", "enforce:\n- notice # a\n- drop\nlog: {}\n"),
        ("enforce:\n  -   notice", "enforce:\n  -   notice\n  -   drop\n"),
    ] {
        assert_eq!(applied(text, &[], &[Grade::Drop]).unwrap(), expected);
    }
    let both = applied("enforce: [notice]\n", &[("g/A", Mode::Observe)], &[Grade::Drop]).unwrap();
    assert_eq!(both, "enforce: [notice, drop]\n\nrules:\n  g/A: {mode: observe}\n");
}

#[test]
fn what_cannot_be_changed_safely_is_refused() {
    let mode = [("g/A", Mode::Enforce)];
    for (text, why) in [
        ("{log: {level: info}}\n", "one {…}"),
        ("- a\n", "no mapping"),
        ("rules: [a]\n", "rules is no mapping"),
        ("rules: ~\n", "unusual layout"),
        ("rules: [\n", "not valid"),
        ("rules:\n  g/A: enforce\n", "no mapping"),
        // The mode of another rule would change as well.
        ("rules:\n  a/B: &x {mode: observe}\n  g/A: *x\n", "an alias"),
        ("log: {level: info}\n...\n", "not valid"),
    ] {
        let refused = applied(text, &mode, &[]).unwrap_err();
        assert!(refused.contains(why), "{text:?}: {refused}");
    }
    for text in ["log: {}\n", "enforce: notice\n", "enforce: ~\n", "enforce: [notice\n"] {
        assert!(applied(text, &[], &[Grade::Drop]).is_err(), "{text:?}");
    }
}

#[test]
fn odd_names_are_quoted_and_read_back() {
    for name in ["g/A", "a b/C: d", "1/A", "g/\"x\"", "# g/A", "g/ü\u{7}", "{g}/A"] {
        let text = applied("log: {level: info}\n", &[(name, Mode::Enforce)], &[]).unwrap();
        let read = PlainValue::read(&SourceText::new("f", text)).unwrap();
        let PlainValue::Map(top) = read else { panic!() };
        let PlainValue::Map(rules) = &top[1].1 else { panic!() };
        assert_eq!(rules[0].0, name);
    }
}

#[test]
fn the_snippet_is_what_a_person_would_add() {
    let snippet = changes(&[("g/A", Mode::Enforce)], &[Grade::Drop]).snippet();
    assert_eq!(snippet, "# Add to enforce: drop\nrules:\n  g/A: {mode: enforce}\n");
}

/// Lines of configuration files, some of them odd.
fn line() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "mode: enforce",
        "enforce: [notice]",
        "enforce:",
        "- notice",
        "rules:",
        "rules: {",
        "}",
        "  g/A: {mode: observe}",
        "  g/A:",
        "    for: 1s",
        "    mode: observe",
        "  b/C: {mode: observe, for: 1s}",
        "# text",
        "log: {level: info} # x",
        "",
        "---",
        "...",
        "  - a",
        "a: &x {mode: observe}",
        "  d/E: *x",
        "? g/A",
        ": {for: 1s}",
        "  g/A: |",
        "\trules:",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #[test]
    fn a_changed_file_says_the_same_and_the_change(
        lines in prop::collection::vec(line(), 0..12),
        windows in any::<bool>(),
    ) {
        let text = lines.join(if windows { "\r\n" } else { "\n" });
        let source = SourceText::new("f", text.as_str());
        let changes = changes(&[("g/A", Mode::Enforce)], &[]);
        let Ok(new) = changes.apply(&source) else { return Ok(()) };
        let mut expected = PlainValue::read(&source).unwrap();
        expected.set_mode("g/A", Mode::Enforce).unwrap();
        let changed = SourceText::new("f", new.as_str());
        prop_assert_eq!(PlainValue::read(&changed).unwrap().sorted(), expected.sorted());
        // Each comment stays.
        prop_assert_eq!(new.matches("# ").count(), text.matches("# ").count());
        // It is read again without a new mistake.
        if parse_settings(&source).is_ok() {
            prop_assert!(parse_settings(&changed).is_ok(), "{}", new);
        }
        // Once more changes nothing.
        prop_assert_eq!(changes.apply(&changed).unwrap(), new);
    }
}
