//! What containers write, as the client of Docker hands it on.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::engines::last_words;
use umawarden::parse::container::log_end;

fuzz_target!(|log: &[u8]| {
    let tells_why = |line: &str| last_words(line).is_some();
    let since = "2026-11-22T10:00:00Z".parse().ok();
    let piece = |bytes: &[u8]| (usize::from(bytes[0] % 3), bytes[1..].to_vec());
    let pieces: Vec<_> = log.chunks(64).map(piece).collect();
    for log in [pieces, vec![(0, log.to_vec())]] {
        let told = log_end(&log, None, tells_why);
        assert!(told.len() <= 40);
        for line in &told {
            assert!(!line.is_empty() && line.chars().count() <= 401);
            assert!(!line.chars().any(char::is_control));
        }
        // What is older is left out, and nothing is made up instead.
        let later = log_end(&log, since, tells_why);
        assert!(later.len() <= 40);
    }
});
