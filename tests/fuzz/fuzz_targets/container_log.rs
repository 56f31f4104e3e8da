//! Output of containers, as delivered by the Docker client.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::engines::last_words;
use umawarden::parse::container::log_end;

fuzz_target!(|log: &[u8]| {
    let is_last_word = |line: &str| last_words(line).is_some();
    let since = "2026-11-22T10:00:00Z".parse().ok();
    let piece = |bytes: &[u8]| (usize::from(bytes[0] % 3), bytes[1..].to_vec());
    let pieces: Vec<_> = log.chunks(64).map(piece).collect();
    for log in [pieces, vec![(0, log.to_vec())]] {
        let end = log_end(&log, None, is_last_word);
        assert!(end.len() <= 40);
        for line in &end {
            assert!(!line.is_empty() && line.chars().count() <= 401);
            assert!(!line.chars().any(char::is_control));
        }
        // Older lines are left out.
        let later = log_end(&log, since, is_last_word);
        assert!(later.len() <= 40);
    }
});
