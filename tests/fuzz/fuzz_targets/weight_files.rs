//! Names of files, and an index: no more is loaded than the folder has.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::parse::weight_files::{Choice, FoundFile, select};

fuzz_target!(|input: (Vec<(String, u32)>, String)| {
    let (files, index) = input;
    let found: Vec<FoundFile> = files
        .into_iter()
        .zip(0..)
        .map(|((name, bytes), at)| FoundFile { name, bytes: bytes.into(), identity: (0, at) })
        .collect();
    let all: u64 = found.iter().map(|file| file.bytes).sum();
    for choice in [Choice::Usual, Choice::Consolidated, Choice::File(&index)] {
        match select(&found, choice, |_| Some(Ok(index.clone()))) {
            Ok(weights) => assert!(weights.bytes <= all && weights.files <= found.len()),
            Err(why) => assert!(!why.is_empty()),
        }
    }
});
