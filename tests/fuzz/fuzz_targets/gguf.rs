//! The head of a GGUF file: it is read or refused, and no more layers keep something than there are.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::parse::gguf::shape;

fuzz_target!(|head: &[u8]| {
    match shape(head) {
        Ok(shape) => assert!(shape.kv_layers() + shape.state_layers <= shape.layers),
        Err(why) => assert!(!why.is_empty()),
    }
});
