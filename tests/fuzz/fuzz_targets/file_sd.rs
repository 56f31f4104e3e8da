//! Files of targets, as Prometheus reads them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::parse::file_sd::{MOST_TARGETS, targets};

fuzz_target!(|text: &str| {
    for is_json in [true, false] {
        let Ok(found) = targets(text, is_json) else { continue };
        assert!(found.len() <= MOST_TARGETS);
        for peer in &found {
            assert!(peer.port() > 0 && !peer.host().is_empty());
            assert!(peer.origin().starts_with("http://"));
        }
    }
});
