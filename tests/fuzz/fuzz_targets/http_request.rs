//! The address and headers of a request: the first line is the query, the rest the headers' value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::exports::read_request;

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
    let query = String::from_utf8_lossy(parts.next().unwrap_or_default());
    if let Ok(request) = read_request(&query, parts.next().unwrap_or_default()) {
        assert!((1..=1000).contains(&request.limit), "{request:?}");
        assert!(request.since.zip(request.until).is_none_or(|(since, until)| since <= until));
        assert!(request.rule.is_none_or(|rule| (1..=512).contains(&rule.len())));
    }
});
