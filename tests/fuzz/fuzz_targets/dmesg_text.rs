//! A log as text, in any of the forms that people have it in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::parse::dmesg::LogText;
use umawarden::parse::kernel::EventAssembler;

fuzz_target!(|bytes: &[u8]| {
    let mut log = LogText::new();
    let mut assembler = EventAssembler::new();
    let mut events = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Some(message) = log.feed(line) {
            assembler.feed(&message.kernel_line(), &mut events);
        }
    }
    if let Some(message) = log.finish() {
        assembler.feed(&message.kernel_line(), &mut events);
    }
    assembler.finish(&mut events);
    for event in events {
        assert!(serde_json::to_string(&event).is_ok());
    }
});
