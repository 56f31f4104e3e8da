//! The index of a model's shards: names of files in one folder, each once.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use umawarden::parse::weight_index::{MOST_FILES, files};

fuzz_target!(|text: &[u8]| {
    match files(text) {
        Ok(names) => {
            assert!(!names.is_empty() && names.len() <= MOST_FILES);
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
            assert!(names.iter().all(|name| !name.contains('/') && name != ".."));
        }
        Err(why) => assert!(!why.is_empty() && why.len() < 4096),
    }
});
