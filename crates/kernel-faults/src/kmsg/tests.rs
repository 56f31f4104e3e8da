use proptest::prelude::*;

use super::*;

#[test]
fn a_record_is_parsed_with_its_dictionary() {
    let record =
        parse_record(b"6,339,5140900,-,caller=T12;NET: \\x09ok\n SUBSYSTEM=acpi\n DEVICE=+x\n")
            .unwrap();
    assert_eq!((record.facility, record.level), (0, 6));
    assert_eq!((record.seq, record.usec), (339, 5_140_900));
    assert_eq!(record.caller, Some("T12"));
    assert_eq!(record.text, "NET: \\x09ok");
    assert_eq!(record.dictionary, "SUBSYSTEM=acpi\nDEVICE=+x");
}

#[test]
fn facilities_above_the_kernels_are_kept_apart() {
    let record = parse_record(b"14,1,2,-;hello").unwrap();
    assert_eq!((record.facility, record.level), (1, 6));
    assert_eq!(parse_record(b"191,1,2,-;x").unwrap().facility, 23);
}

#[test]
fn further_header_fields_and_semicolons_in_the_text_are_no_trouble() {
    let record = parse_record(b"4,1,2,c,new=1,caller=C3,more;a;b\r\n").unwrap();
    assert_eq!((record.caller, &*record.text, &*record.flags), (Some("C3"), "a;b", "c"));
}

#[test]
fn non_text_bytes_are_kept_as_escapes() {
    assert_eq!(parse_record(b"4,1,2,-;a\xff\0b").unwrap().text, "a\\xff\\x00b");
}

#[test]
fn malformed_records_are_errors_with_a_reason() {
    assert_eq!(parse_record(b""), Err(RecordError::NoText));
    assert_eq!(parse_record(b"6,1,2,-\n;x"), Err(RecordError::NoText));
    assert_eq!(parse_record(b"6,1;x"), Err(RecordError::Missing("time")));
    assert_eq!(parse_record(b"6,1,2;x"), Err(RecordError::Missing("flags")));
    assert_eq!(parse_record(b"+6,1,2,-;x"), Err(RecordError::NotANumber("priority")));
    assert_eq!(parse_record(b"999999999,1,2,-;x"), Err(RecordError::NotANumber("priority")));
    assert_eq!(parse_record(b"6,,2,-;x"), Err(RecordError::NotANumber("sequence number")));
    assert_eq!(
        parse_record(b"6,99999999999999999999,2,-;x"),
        Err(RecordError::NotANumber("sequence number"))
    );
    assert_eq!(parse_record(b"6\xff,1,2,-;x"), Err(RecordError::HeaderNotAscii));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_record(&bytes);
    }

    #[test]
    fn records_of_the_kernel_are_read_back(
        facility in 0u16..1000, level in 0u8..8, seq: u64, usec: u64, text in "[ -~]{0,80}",
    ) {
        let written = format!("{},{seq},{usec},-;{text}\n", facility << 3 | u16::from(level));
        let record = parse_record(written.as_bytes()).unwrap();
        prop_assert_eq!((record.facility, record.level), (facility, level));
        prop_assert_eq!((record.seq, record.usec), (seq, usec));
        prop_assert_eq!(&*record.text, &text);
    }
}
