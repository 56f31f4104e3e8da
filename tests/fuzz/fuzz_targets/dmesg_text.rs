//! A kernel log as text, in any of its formats.
#![no_main]

use kernel_faults::EventAssembler;
use kernel_faults::dmesg::{JsonRecords, LogText};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut log = LogText::new();
    let mut assembler = EventAssembler::new();
    let mut events = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Some(message) = log.feed(line) {
            assembler.feed(&message.kernel_line(), &mut events);
        }
    }
    for message in log.finish() {
        assembler.feed(&message.kernel_line(), &mut events);
    }
    assembler.finish(&mut events);
    let mut records = JsonRecords::new();
    let parts: Vec<Vec<u8>> = bytes.iter().filter_map(|byte| records.push(*byte)).collect();
    let rest = records.finish().map_or(0, |rest| rest.len());
    assert!(parts.iter().map(Vec::len).sum::<usize>() + rest <= bytes.len());
    for event in events {
        assert!(serde_json::to_string(&event).is_ok());
    }
});
