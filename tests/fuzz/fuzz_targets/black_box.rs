//! The file of a black box, complete or torn: it is read or refused, and a record is unchanged by
//! writing and reading it again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::journal::black_box::{
    BlackBoxRecord, PAGE_BYTES, RECORD_BYTES, RecoveredRecords, Slot,
};

/// Corrects the checksums, which a fuzzer cannot guess.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let Some((header, rest)) = bytes.split_at_mut_checked(PAGE_BYTES) else { return bytes };
    let crc = crc32fast::hash(&header[12..]);
    header[8..12].copy_from_slice(&crc.to_le_bytes());
    for record in rest.chunks_exact_mut(RECORD_BYTES) {
        if record.iter().any(|byte| *byte != 0) {
            let crc = crc32fast::hash(&record[4..]);
            record[..4].copy_from_slice(&crc.to_le_bytes());
        }
    }
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    for bytes in [bytes.to_vec(), with_checksums(bytes)] {
        let Ok(found) = RecoveredRecords::of_bytes(&bytes) else { continue };
        assert!(found.records.is_sorted_by(|left, right| left.sequence < right.sequence));
        for record in &found.records {
            let mut again = [0; RECORD_BYTES];
            record.encode(&mut again);
            let Slot::Whole(back) = BlackBoxRecord::decode(&again) else { panic!("{record:?}") };
            let mut twice = [0; RECORD_BYTES];
            back.encode(&mut twice);
            assert_eq!(again, twice);
        }
    }
});
