//! One raw record of `/dev/kmsg`.
#![no_main]

use kernel_faults::kmsg;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = kmsg::parse_record(bytes) {
        // A parsed record is parsed again from its printed form.
        let text = &record.text;
        let priority = u64::from(record.facility) << 3 | u64::from(record.level);
        let written = format!("{priority},{},{},-;{text}\n", record.seq, record.usec);
        let again = kmsg::parse_record(written.as_bytes());
        assert!(again.is_ok_and(|again| again.text == record.text && again.seq == record.seq));
    }
});
