//! The body of an order: the first byte chooses which.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::exports::{LONGEST, Lasts, Wish, read_order};

fuzz_target!(|bytes: &[u8]| {
    let Some((first, body)) = bytes.split_first() else { return };
    let Some((wish, name, comment)) = read_order(first % 2 == 0, body) else { return };
    let words = [name.unwrap_or_default(), comment];
    assert!(!words.iter().any(|text| text.contains(char::is_control)), "{words:?}");
    let lasts = match wish {
        Wish::Silence { lasts, .. } => Some(lasts),
        Wish::Approve { lasts, .. } => lasts,
        other => panic!("{other:?}"),
    };
    if let Some(Lasts::For(duration)) = lasts {
        assert!(!duration.is_zero() && duration <= LONGEST, "{duration:?}");
    }
});
