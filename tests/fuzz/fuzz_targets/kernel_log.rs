//! Lines of the kernel log, each a record of its own.
#![no_main]

use std::collections::HashSet;
use std::time::Duration;

use kernel_faults::{EventAssembler, KernelLine};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut assembler = EventAssembler::new();
    let mut events = Vec::new();
    for (number, text) in text.lines().enumerate() {
        let seq = number as u64;
        let line = KernelLine {
            seq: Some(seq),
            uptime: Some(Duration::from_millis(seq)),
            from_kernel: true,
            text,
            ..KernelLine::default()
        };
        assembler.feed(&line, &mut events);
        if text.is_empty() {
            assembler.tick(Duration::from_millis(seq + 500), &mut events);
        }
    }
    assembler.finish(&mut events);
    assert_eq!((assembler.pending_since_seq(), assembler.next_deadline()), (None, None));
    let anchors: HashSet<_> = events.iter().map(|event| event.seq).collect();
    assert_eq!(anchors.len(), events.len(), "two events of one record: {events:?}");
});
