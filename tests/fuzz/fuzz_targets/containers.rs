//! Responses of Docker about containers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::parse::container::containers;

fuzz_target!(|text: &[u8]| {
    let Ok(all) = containers(text) else { return };
    for (id, container) in &all {
        assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert!(container.name.chars().all(|c| !c.is_control()));
        assert!(container.published.iter().all(|(inside, at)| *inside != 0 && at.port() != 0));
    }
});
