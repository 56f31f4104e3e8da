//! Inputs of access control: its two files, an Authorization header, a client's certificate. The
//! first byte selects one of them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::access::{CertificateNames, reads_authorization, written_wrongly};
use umawarden::config::mistake::SourceText;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    match first % 4 {
        2 => drop(reads_authorization(rest)),
        3 => drop(CertificateNames::of(rest)),
        which => {
            let Ok(text) = std::str::from_utf8(rest) else { return };
            let lines = text.lines().count().max(1) + 1;
            let source = SourceText::new("f", text);
            let Some(mistakes) = written_wrongly(which == 1, &source) else { return };
            assert!((1..=100).contains(&mistakes.0.len()));
            for mistake in &mistakes.0 {
                assert!((1..=lines).contains(&mistake.line), "{mistake:?}");
                assert!(mistake.column >= 1 && mistake.width >= 1, "{mistake:?}");
            }
            assert!(mistakes.to_string().chars().all(|c| c == '\n' || !c.is_control()));
        }
    }
});
