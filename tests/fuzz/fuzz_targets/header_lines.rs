//! A file of HTTP headers: accepted headers can be sent, refused ones are not shown.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::parse::header_lines::{header_lines, header_pairs};

fuzz_target!(|text: &str| {
    for read in [header_lines(text), header_pairs(text)] {
        match read {
            Ok(headers) => {
                assert!(headers.len() <= 32);
                for (name, value) in headers {
                    assert!(!name.is_empty() && !value.is_empty());
                    assert!(name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'));
                    assert!(value.bytes().all(|byte| matches!(byte, b' '..=b'~')));
                }
            }
            Err(why) => assert!(why.len() < 64, "{why}"),
        }
    }
});
