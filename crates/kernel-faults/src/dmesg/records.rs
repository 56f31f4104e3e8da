//! Logs on one line. Splits a JSON document into its records, as `dmesg --json | jq -c` and
//! `jq -sc` write it: such a line is as long as the log.

use super::header;
use crate::kmsg;

/// The size limit of a record, in bytes; a longer one is returned in parts, none of which is a
/// record.
const LONGEST_RECORD: usize = 64 * 1024;

/// Whether a text begins with an array of records, perhaps as the member `dmesg` of an object, with
/// its first record on the same line.
pub fn begins_with_records(head: &[u8]) -> bool {
    let rest = after(head, b"{")
        .and_then(|rest| after(rest, b"\"dmesg\""))
        .and_then(|rest| after(rest, b":"))
        .unwrap_or(head);
    after(rest, b"[")
        .and_then(|rest| after(rest, b"{"))
        .is_some_and(|rest| after(rest, b"\"").is_some())
}

/// The byte that ends the lines of a log, by its first bytes: mostly a newline. Old terminals write
/// carriage returns alone, and some tools NUL. Only two stamps on one line, which is all there is,
/// show that: what another program logged may hold such bytes.
pub fn line_separator(head: &[u8]) -> u8 {
    let is_begun = |part: &[u8]| {
        let part = header::without_sequences(part);
        header::is_stamped(&kmsg::printable(&part))
    };
    let line = head.strip_suffix(b"\n").unwrap_or(head);
    let separates = |separator: &u8| {
        let parts = line.split(|byte| byte == separator).filter(|part| !part.is_empty());
        parts.take(2).filter(|part| is_begun(part)).count() == 2
    };
    let is_one = !line.contains(&b'\n');
    [b'\r', b'\0'].into_iter().filter(|_| is_one).find(separates).unwrap_or(b'\n')
}

/// The text after a token on the same line.
fn after<'a>(text: &'a [u8], token: &[u8]) -> Option<&'a [u8]> {
    let blank = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    text.get(blank..)?.strip_prefix(token)
}

/// Finds the records of such a line, byte by byte, in bounded memory.
#[derive(Debug, Default)]
pub struct JsonRecords {
    record: Vec<u8>,
    /// Braces and brackets that are open within the record; 0 between records.
    depth: usize,
    in_string: bool,
    escaped: bool,
    in_array: bool,
}

impl JsonRecords {
    /// Before the first byte.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next byte. Returns the record that it ends.
    pub fn push(&mut self, byte: u8) -> Option<Vec<u8>> {
        if self.depth == 0 {
            self.in_array |= byte == b'[';
            if !(self.in_array && byte == b'{') {
                return None;
            }
        }
        self.record.push(byte);
        if self.in_string {
            if self.escaped {
                self.escaped = false;
            } else {
                self.escaped = byte == b'\\';
                self.in_string = byte != b'"';
            }
        } else {
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth -= 1,
                _ => {}
            }
        }
        let is_over = self.depth == 0 || self.record.len() >= LONGEST_RECORD;
        is_over.then(|| std::mem::take(&mut self.record))
    }

    /// The incomplete record at the end of the line.
    pub fn finish(self) -> Option<Vec<u8>> {
        (!self.record.is_empty()).then_some(self.record)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_separates_lines_is_seen_from_their_stamps() {
        for (head, separator) in [
            ("[   12.345678] a\r[   12.345679] b\r", b'\r'),
            ("[   12.345678] a\0[   12.345679] b\0\n", b'\0'),
            ("6,1,12,-;a\r6,2,13,-;b", b'\r'),
            ("[   12.345678] a\r\n[   12.345679] b\r\n", b'\n'),
            ("x\r[   12.345679] b\r", b'\n'),
            ("Nov 21 02:31:07 h app[7]: a\rNov 21 02:31:07 h kernel: b\nc", b'\n'),
            ("[   12.345678] a", b'\n'),
            ("", b'\n'),
        ] {
            assert_eq!(line_separator(head.as_bytes()), separator, "{head:?}");
        }
    }

    fn records(text: &[u8]) -> Vec<String> {
        let mut records = JsonRecords::new();
        let mut found: Vec<Vec<u8>> = text.iter().filter_map(|byte| records.push(*byte)).collect();
        found.extend(records.finish());
        found.into_iter().map(|record| String::from_utf8(record).unwrap()).collect()
    }

    #[test]
    fn nested_json_is_part_of_its_record() {
        let first = r#"{"msg":"a } ] \" { b \\"}"#;
        let second = r#"{"msg":"c","list":[{"x":1},[2]]}"#;
        for text in [
            format!(r#"{{"dmesg":[{first},{second}]}}"#),
            format!("[{first}, {second}]"),
            format!(r#" {{ "dmesg" : [ {first} , {second} ] }}"#),
        ] {
            assert!(begins_with_records(text.as_bytes()), "{text}");
            assert_eq!(records(text.as_bytes()), [first, second], "{text}");
        }
    }

    #[test]
    fn a_truncated_record_is_returned_as_it_is() {
        assert_eq!(records(br#"[{"a":1},{"b":"#), [r#"{"a":1}"#, r#"{"b":"#]);
    }

    #[test]
    fn other_lines_begin_no_json_records() {
        for text in [
            "[   12.345678] {",
            "[Sat Nov",
            "{",
            "[",
            "{\"dmesg\": [",
            "{\"pri\":6}",
            "[{",
            "[]",
            "[\n{\"a\":1}",
            "",
        ] {
            assert!(!begins_with_records(text.as_bytes()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_need_bounded_memory(
            bytes in prop::collection::vec(any::<u8>(), 0..500),
        ) {
            let mut records = JsonRecords::new();
            for byte in bytes.iter().cycle().take(200_000) {
                if let Some(record) = records.push(*byte) {
                    prop_assert!(record.len() <= LONGEST_RECORD);
                }
            }
        }
    }
}
