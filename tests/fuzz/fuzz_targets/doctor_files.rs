//! Files of advice, as the doctor reads them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::config::mistake::SourceText;
use umawarden::doctor::Advice;
use umawarden::doctor::advice::Entry;

fuzz_target!(|text: &str| {
    if let Ok(advice) = Advice::parse(&SourceText::new("f", text), &["dgx-spark"]) {
        let is_whole = |entry: &Entry| !entry.id.is_empty() && !entry.cause.is_empty();
        assert!(advice.entries.iter().all(is_whole));
    }
});
