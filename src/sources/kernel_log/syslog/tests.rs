use proptest::prelude::*;

use super::*;

fn seqs(lines: &[SyslogLine]) -> Vec<u64> {
    lines.iter().map(|line| line.seq - SYSLOG_SEQ_BASE).collect()
}

fn texts(lines: &[SyslogLine]) -> Vec<&str> {
    lines.iter().map(|line| line.content.as_ref().map_or("?", |content| &content.text)).collect()
}

#[test]
fn a_line_is_split_with_and_without_its_caller() {
    let parts = |priority, usec, text| Some(Parts { priority, usec, text });
    assert_eq!(split_line(b"<6>[    5.000123] hello"), parts(6, 5_000_123, b"hello"));
    assert_eq!(
        split_line(b"<30>[12345.678901][   T42] [drm] x"),
        parts(30, 12_345_678_901, b"[drm] x")
    );
    assert_eq!(split_line(b"<6>[    5.000123] "), parts(6, 5_000_123, b""));
    assert_eq!(split_line(b"<191>[    5.000123]  two"), parts(191, 5_000_123, b" two"));
    for bad in ["", "<6>", "<6>no time", "<x>[ 1.000000] a", "<6>[ 1.5] a", "[ 1.000000] a"] {
        assert_eq!(split_line(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn facility_and_level_are_parsed_and_bytes_escaped_as_in_kmsg() {
    let mut view = SyslogPosition::new(None);
    let lines = view.lines(b"<99>[    1.000000] a\\b\x07\xff\n").unwrap();
    let content = lines[0].content.as_ref().unwrap();
    assert_eq!((content.facility, content.level), (12, 3));
    assert_eq!(content.text, "a\\x5cb\\x07\\xff");
}

#[test]
fn a_second_poll_returns_only_new_lines() {
    let mut view = SyslogPosition::new(None);
    let first = b"<6>[    1.000000] a\n<6>[    1.000000] a\n<6>[    2.000000] b\n";
    assert_eq!(seqs(&view.lines(first).unwrap()), [1_000_000_000, 1_000_000_001, 2_000_000_000]);
    assert_eq!(view.lines(first).unwrap(), []);
    // The oldest line is gone; one with the stamp of the last has come, then an older one.
    let second =
        b"<6>[    1.000000] a\n<6>[    2.000000] b\n<6>[    2.000000] b\n<6>[    1.999999] c\n";
    let lines = view.lines(second).unwrap();
    assert_eq!(texts(&lines), ["b", "c"]);
    assert_eq!(seqs(&lines), [2_000_000_001, 2_000_000_002]);
}

#[test]
fn a_restart_goes_on_after_the_last_number() {
    let ring = b"<6>[    1.000000] a\n<6>[    2.000000] b\n<6>[    3.000000] c\n";
    let wanted = SyslogPosition::new(None).lines(ring).unwrap()[1].seq + 1;
    assert_eq!(texts(&SyslogPosition::new(Some(wanted)).lines(ring).unwrap()), ["c"]);
}

#[test]
fn a_cursor_of_another_reader_skips_the_backlog_only() {
    let mut view = SyslogPosition::new(Some(4711));
    assert_eq!(view.lines(b"<6>[    1.000000] a\n").unwrap(), []);
    let lines = view.lines(b"<6>[    1.000000] a\n<6>[    2.000000] b\n").unwrap();
    assert_eq!(texts(&lines), ["b"]);
}

#[test]
fn a_malformed_line_is_reported_once() {
    let mut view = SyslogPosition::new(None);
    let ring = b"<6>[    1.000000] a\njunk\n<6>[    2.000000] b\n";
    assert_eq!(texts(&view.lines(ring).unwrap()), ["a", "?", "b"]);
    assert_eq!(view.lines(ring).unwrap(), []);
}

#[test]
fn a_ring_without_times_is_refused_with_the_remedy() {
    let error = SyslogPosition::new(None).lines(b"<6>a\n<6>b\n").unwrap_err();
    assert!(error.contains("/sys/module/printk/parameters/time"), "{error}");
    assert_eq!(SyslogPosition::new(None).lines(b"").unwrap(), []);
}

proptest! {
    #[test]
    fn any_text_gives_ascending_numbers_and_each_line_once(ring in "(<[0-9]{1,4}>\\[ ?[0-9]{1,22}\\.[0-9]{5,6}\\] .?\n|.{0,20}\n){0,20}") {
        let mut view = SyslogPosition::new(None);
        if let Ok(lines) = view.lines(ring.as_bytes()) {
            prop_assert!(lines.windows(2).all(|pair| pair[0].seq <= pair[1].seq));
            prop_assert_eq!(lines.len(), ring.split('\n').filter(|line| !line.is_empty()).count());
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(ring in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = SyslogPosition::new(None).lines(&ring);
    }
}
