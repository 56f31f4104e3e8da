//! A template of a label or annotation: parsed and rendered.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use promql_rules::template::Template;

/// The maximum length of a rendered text.
const MAX_RENDERED: usize = 16 * 1024;

fuzz_target!(|text: &str| {
    let labels = [("event", "oom_kill"), ("node", "0"), ("state", "clean")]
        .map(|(name, value)| (Arc::from(name), Arc::from(value)));
    match Template::parse(text) {
        Ok(template) => {
            template.labels();
            for value in [0.0, -1.5e-9, 123_456_789.0, 1e300, f64::NAN, f64::NEG_INFINITY] {
                assert!(template.render(&labels, value).len() <= MAX_RENDERED);
            }
        }
        Err(error) => assert!(text.get(error.span.clone()).is_some(), "{error:?}"),
    }
});
