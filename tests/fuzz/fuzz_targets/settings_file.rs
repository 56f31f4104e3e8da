//! A configuration file: every mistake has a line and column within the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::config::mistake::SourceText;
use umawarden::config::settings::parse_settings;

fuzz_target!(|text: &str| {
    let lines = text.lines().count().max(1) + 1;
    let Err(mistakes) = parse_settings(&SourceText::new("f", text)) else { return };
    assert!((1..=100).contains(&mistakes.0.len()));
    for mistake in &mistakes.0 {
        assert!((1..=lines).contains(&mistake.line), "{mistake:?}");
        assert!(mistake.column >= 1 && mistake.width >= 1, "{mistake:?}");
    }
    assert!(mistakes.to_string().chars().all(|c| c == '\n' || !c.is_control()));
});
