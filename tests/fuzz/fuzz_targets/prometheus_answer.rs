//! Responses of a Prometheus.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::parse::prometheus_answer::vector;

fuzz_target!(|text: &[u8]| {
    let Ok(samples) = vector(text) else { return };
    assert!(samples.len() <= text.len());
    for sample in samples {
        assert!(sample.labels.iter().all(|(name, _)| name != "__name__"));
    }
});
