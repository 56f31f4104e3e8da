//! Bytes from a file or FIFO: the records do not depend on the sizes of the reads.
#![no_main]

use kernel_faults::kmsg::parse_record;
use libfuzzer_sys::fuzz_target;
use umawarden::sources::kernel_log::pieces;

/// The maximum length of a record.
const RECORD_BYTES: usize = 8192;

fuzz_target!(|bytes: &[u8]| {
    let Some((&chunk, bytes)) = bytes.split_first() else { return };
    let whole = pieces(bytes, RECORD_BYTES, false);
    // Long lines, of which a fuzzer makes few, come from repeating its input.
    let repeated = bytes.repeat(1 + usize::from(chunk) * 64 / bytes.len().max(1));
    assert_eq!(pieces(bytes, 1 + usize::from(chunk), false), whole);
    for piece in pieces(&repeated, 1 + usize::from(chunk) * 32, true).iter().flatten() {
        assert!(piece.len() <= RECORD_BYTES + 1 && piece.ends_with(b"\n"));
        let _ = parse_record(piece);
    }
});
