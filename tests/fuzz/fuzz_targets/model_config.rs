//! A model's `config.json`: it is read or refused, and its numbers are within those of any model.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::parse::model_config::KvShape;

fuzz_target!(|text: &str| {
    match KvShape::read(text) {
        Ok(shape) => assert!(shape.parts > 0 && shape.element_bytes > 0),
        Err(why) => assert!(!why.is_empty()),
    }
});
