//! What containers write, as Docker tells it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::engines::last_words;
use umawarden::parse::container::log_end;

fuzz_target!(|log: &[u8]| {
    let tells_why = |line: &str| last_words(line).is_some();
    let since = "2026-11-22T10:00:00Z".parse().ok();
    for is_terminal in [false, true] {
        let told = log_end(log, is_terminal, None, tells_why);
        assert!(told.len() <= 40);
        for line in &told {
            assert!(!line.is_empty() && line.chars().count() <= 401);
            assert!(!line.chars().any(char::is_control));
        }
        // What is older is left out, and nothing is made up instead.
        let later = log_end(log, is_terminal, since, tells_why);
        assert!(later.len() <= 40);
    }
});
