//! A rule file: what is wrong with it is shown at a place within it.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use umawarden::config::mistake::SourceText;
use umawarden::config::rules::parse_rules;

fuzz_target!(|text: &str| {
    let lines = text.lines().count().max(1) + 1;
    let Err(mistakes) = parse_rules(&[SourceText::new("f", text)], Duration::from_millis(100))
    else {
        return;
    };
    assert!((1..=100).contains(&mistakes.0.len()));
    for mistake in &mistakes.0 {
        assert!((1..=lines).contains(&mistake.line), "{mistake:?}");
        assert!(mistake.column >= 1 && mistake.width >= 1, "{mistake:?}");
        assert!(!mistake.message.is_empty(), "{mistake:?}");
    }
    assert!(mistakes.to_string().chars().all(|c| c == '\n' || !c.is_control()));
});
