//! A model's `config.json`: it is read or refused, and what is read is no more than any model has.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::parse::model_config::KvShape;

fuzz_target!(|text: &str| {
    match KvShape::read(text) {
        Ok(shape) => assert!(shape.parts > 0 && shape.element_bytes > 0),
        Err(why) => assert!(!why.is_empty()),
    }
});
