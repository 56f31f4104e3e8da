use proptest::prelude::*;

use super::*;

fn text(pieces: &[Option<Vec<u8>>]) -> Vec<&str> {
    pieces
        .iter()
        .map(|piece| piece.as_ref().map_or("overlong", |raw| std::str::from_utf8(raw).unwrap()))
        .collect()
}

#[test]
fn continuation_lines_belong_to_the_record_before() {
    let bytes = b"a\n K=v\n L=w\nb\nc\n K=x\n";
    for chunk in [1, 3, 100] {
        let got = pieces(bytes, chunk, false);
        assert_eq!(text(&got), ["a\n K=v\n L=w\n", "b\n", "c\n K=x\n"]);
    }
}

#[test]
fn continuation_lines_that_come_too_late_are_dropped() {
    assert_eq!(text(&pieces(b" K=v\na\n\n K=v\nb\n", 100, false)), ["a\n", "b\n"]);
    assert_eq!(text(&pieces(b"a\n K=v\nb\n", 2, true)), ["a\n", "b\n"]);
}

#[test]
fn an_unfinished_line_waits() {
    assert_eq!(text(&pieces(b"a\nb", 100, false)), ["a\n"]);
}

#[test]
fn an_overlong_line_is_reported_once_and_costs_no_neighbour() {
    for length in [RECORD_BYTES, RECORD_BYTES + 1, 3 * RECORD_BYTES, 20 * RECORD_BYTES] {
        let mut bytes = b"a\n K=v\n".to_vec();
        bytes.extend(std::iter::repeat_n(b'x', length));
        bytes.extend(b"\nb\n");
        for chunk in [1000, 8192, 16_384] {
            let got = pieces(&bytes, chunk, false);
            let middle = if length > RECORD_BYTES { None } else { Some(length + 1) };
            assert_eq!(got.len(), 3, "{length} {chunk}");
            assert_eq!(got[0].as_deref(), Some(&b"a\n K=v\n"[..]));
            assert_eq!(got[1].as_ref().map(Vec::len), middle);
            assert_eq!(got[2].as_deref(), Some(&b"b\n"[..]));
        }
    }
}

#[test]
fn continuation_lines_without_end_are_cut() {
    let mut bytes = b"a\n".to_vec();
    (0..10_000).for_each(|_| bytes.extend(b" K=v\n"));
    bytes.extend(b"b\n");
    let got = pieces(&bytes, 4096, false);
    assert_eq!(got.len(), 2);
    assert!(got[0].as_ref().is_some_and(|raw| raw.len() <= RECORD_BYTES && raw.len() > 8000));
    assert_eq!(got[1].as_deref(), Some(&b"b\n"[..]));
}

proptest! {
    #[test]
    fn chunks_do_not_matter(
        bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b' '), any::<u8>()], 0..400),
        chunk in 1_usize..50,
    ) {
        prop_assert_eq!(pieces(&bytes, chunk, false), pieces(&bytes, 400, false));
    }

    #[test]
    fn every_possible_record_is_returned(
        bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b' '), any::<u8>()], 0..400),
        chunk in 1_usize..50,
        close_between: bool,
    ) {
        let ended = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let expected: Vec<&[u8]> = bytes[..ended]
            .split(|&byte| byte == b'\n')
            .filter(|line| line.first().is_some_and(|&first| first != b' '))
            .collect();
        let got = pieces(&bytes, chunk, close_between);
        let first_lines: Vec<&[u8]> = got
            .iter()
            .flatten()
            .map(|raw| raw.split(|&byte| byte == b'\n').next().unwrap_or_default())
            .collect();
        prop_assert_eq!(first_lines, expected);
    }
}
