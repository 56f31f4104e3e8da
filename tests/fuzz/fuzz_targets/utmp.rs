//! Logged-in users, from utmp(5).
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::parse::utmp::{UtmpLayout, logins};

fuzz_target!(|text: &[u8]| {
    for layout in [UtmpLayout::Narrow, UtmpLayout::Wide] {
        // Most lengths are refused: the complete records are parsed, too.
        let whole = text.len() - text.len() % layout.record_bytes();
        for text in [text, &text[..whole]] {
            let Ok(all) = logins(text, layout) else { continue };
            assert!(all.len() <= text.len() / layout.record_bytes());
            for login in &all {
                assert!(login.pid > 0 && !login.user.is_empty());
                for shown in [&login.user, &login.terminal, &login.host] {
                    assert!(shown.chars().all(|c| !c.is_control()));
                }
            }
        }
    }
});
