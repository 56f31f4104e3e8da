use std::fs;
use std::io::Write as _;

use jiff::Timestamp;
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::*;
use crate::model::{KernelRecord, SYSLOG_SEQ_BASE};

/// The kernel's clock reads 100 s, and the time is 1970-01-01 00:16:40.
fn clock() -> ReadClock {
    let utc = Timestamp::from_second(1000).unwrap();
    let at = Moment { uptime: Duration::from_secs(150), utc };
    ReadClock { at, monotonic: Duration::from_secs(100) }
}

fn read_all(source: &mut KernelLogSource) -> Vec<Observation> {
    let mut out = Vec::new();
    while source.read(clock(), &mut out, 3) == ReadEnd::More {}
    out
}

/// Observations in short: `7:text`, `lost 3`, `malformed`.
fn short(seen: &[Observation]) -> Vec<String> {
    seen.iter()
        .map(|observation| match observation {
            Observation::KernelRecord(record) => format!("{}:{}", record.seq, record.text),
            Observation::KernelRecordsLost(lost) => format!("lost {lost}"),
            Observation::KernelRecordMalformed => "malformed".into(),
            other => panic!("{other:?}"),
        })
        .collect()
}

fn records(seen: Vec<Observation>) -> Vec<KernelRecord> {
    seen.into_iter()
        .filter_map(|observation| match observation {
            Observation::KernelRecord(record) => Some(record),
            _ => None,
        })
        .collect()
}

fn scratch() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kmsg");
    (folder, path)
}

fn fifo() -> (TempDir, PathBuf) {
    let (folder, path) = scratch();
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    (folder, path)
}

fn append(path: &Path, text: &str) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_file_is_read_from_the_start_and_tracked() {
    let (_folder, path) = scratch();
    fs::write(&path, "6,1,5,-;one\n SUBSYSTEM=pci\n DEVICE=x\n30,2,6,-;two\n6,3,7,-;thr").unwrap();
    let mut source = KernelLogSource::open(&path, None);
    assert_eq!(source.reader(), KernelLogReader::File);
    assert!(source.poll_fd().is_none());
    let seen = records(read_all(&mut source));
    assert_eq!(seen[0].dictionary, "SUBSYSTEM=pci\nDEVICE=x");
    assert_eq!((seen[1].facility, seen[1].level, seen[1].usec), (3, 6, 6));
    assert_eq!(seen.len(), 2);
    append(&path, "ee\n");
    assert_eq!(short(&read_all(&mut source)), ["3:three"]);
    assert_eq!(read_all(&mut source).len(), 0);
}

#[test]
fn a_truncated_or_replaced_file_is_read_anew() {
    let (_folder, path) = scratch();
    fs::write(&path, "6,8,5,-;old one\n6,9,5,-;old two\n6,10,").unwrap();
    let mut source = KernelLogSource::open(&path, Some(ResumeFrom { seq: 9 }));
    assert_eq!(short(&read_all(&mut source)), ["9:old two"]);
    fs::write(&path, "6,1,5,-;new\n").unwrap();
    assert_eq!(short(&read_all(&mut source)), ["malformed", "1:new"]);
    let moved = path.with_extension("1");
    fs::rename(&path, &moved).unwrap();
    append(&moved, "6,2,5,-;late\n");
    assert_eq!(short(&read_all(&mut source)), ["2:late"]);
    fs::write(&path, "6,1,5,-;after\n").unwrap();
    assert_eq!(short(&read_all(&mut source)), ["1:after"]);
}

#[test]
fn a_fifo_outlives_its_writers_and_partial_lines_wait() {
    let (_folder, path) = fifo();
    let mut source = KernelLogSource::open(&path, None);
    assert_eq!(source.reader(), KernelLogReader::File);
    assert!(source.poll_fd().is_some());
    assert_eq!(read_all(&mut source).len(), 0);
    append(&path, "6,1,5,-;one\n6,2,5,-;tw");
    assert_eq!(short(&read_all(&mut source)), ["1:one"]);
    append(&path, "o\njunk\n6,3,5,-;three\n");
    assert_eq!(short(&read_all(&mut source)), ["2:two", "malformed", "3:three"]);
}

#[test]
fn gaps_are_counted_and_earlier_numbers_are_accepted() {
    let (_folder, path) = scratch();
    fs::write(&path, "6,5,0,-;a\n6,9,0,-;b\n6,9,0,-;b\n6,2,0,-;c\n6,4,0,-;d\n").unwrap();
    let mut source = KernelLogSource::open(&path, None);
    let seen = short(&read_all(&mut source));
    assert_eq!(seen, ["5:a", "lost 3", "9:b", "9:b", "2:c", "lost 1", "4:d"]);
}

#[test]
fn resuming_drops_handled_records_and_counts_lost_ones() {
    let (_folder, path) = scratch();
    fs::write(&path, "6,5,0,-;a\n6,6,0,-;b\n6,9,0,-;c\n").unwrap();
    for (seq, expected) in [
        (0, vec!["lost 5", "5:a", "6:b", "lost 2", "9:c"]),
        (6, vec!["6:b", "lost 2", "9:c"]),
        (8, vec!["lost 1", "9:c"]),
        (10, vec![]),
    ] {
        let mut source = KernelLogSource::open(&path, Some(ResumeFrom { seq }));
        assert_eq!(short(&read_all(&mut source)), expected, "{seq}");
    }
}

fn read_at(source: &mut KernelLogSource, seconds: u64) -> Vec<String> {
    let mut later = clock();
    later.at.uptime += Duration::from_secs(seconds);
    let mut out = Vec::new();
    while source.read(later, &mut out, 3) == ReadEnd::More {}
    short(&out)
}

#[test]
fn a_file_shorter_than_the_resume_position_is_read_from_its_start() {
    let (_folder, path) = scratch();
    fs::write(&path, "6,1,0,-;a\n6,2,0,-;b\n").unwrap();
    for (seq, expected) in [(3, &[][..]), (4, &["1:a", "2:b"]), (1000, &["1:a", "2:b"])] {
        let mut source = KernelLogSource::open(&path, Some(ResumeFrom { seq }));
        assert_eq!(short(&read_all(&mut source)), expected, "{seq}");
        append(&path, "6,1,0,-;new\n");
        assert_eq!(short(&read_all(&mut source)), ["1:new"], "what is added is new");
        fs::write(&path, "6,1,0,-;a\n6,2,0,-;b\n").unwrap();
    }
}

#[test]
fn a_ring_resent_through_a_fifo_is_not_counted_again() {
    let (_folder, path) = fifo();
    let mut source = KernelLogSource::open(&path, Some(ResumeFrom { seq: 7 }));
    assert!(read_at(&mut source, 100).is_empty());
    for (seconds, records, expected) in [
        (200, "6,3,0,-;c\n6,4,0,-;d\n", &[][..]),
        (201, "6,5,0,-;e\n", &[]),
        (202, "6,6,0,-;f\n6,7,0,-;g\n6,9,0,-;i\n", &["7:g", "lost 1", "9:i"]),
    ] {
        append(&path, records);
        assert_eq!(read_at(&mut source, seconds), expected, "{seconds}");
    }
}

#[test]
fn restarted_numbers_in_a_fifo_are_accepted_once_they_cannot_be_a_repetition() {
    for step in [1, 6] {
        let (_folder, path) = fifo();
        let mut source = KernelLogSource::open(&path, Some(ResumeFrom { seq: 1_000_000 }));
        let mut seen = Vec::new();
        for seq in 0..100 {
            append(&path, &format!("6,{seq},0,-;x\n"));
            seen.extend(read_at(&mut source, seq * step));
        }
        let dropped: usize = if step == 1 { 60 } else { 1 };
        assert_eq!(seen[..2], [format!("lost {dropped}"), format!("{dropped}:x")]);
        assert_eq!(seen.len(), 1 + 100 - dropped, "and nothing is lost after that");
    }
}

#[test]
fn an_implausibly_high_number_does_not_blind_the_next_run() {
    let (_folder, path) = fifo();
    let hostile = SYSLOG_SEQ_BASE - 2;
    let mut source = KernelLogSource::open(&path, Some(ResumeFrom { seq: hostile + 1 }));
    append(&path, "6,5,0,-;a\n");
    assert!(read_at(&mut source, 0).is_empty());
    append(&path, "6,6,0,-;b\n");
    assert_eq!(read_at(&mut source, 30), ["lost 1", "6:b"]);
}

#[test]
fn a_cursor_of_the_syslog_ring_resumes_by_time() {
    let (_folder, path) = scratch();
    fs::write(&path, "6,5,1000,-;a\n6,6,2000,-;b\n6,7,3000,-;c\n6,8,2500,-;d\n").unwrap();
    let seq = SYSLOG_SEQ_BASE + 2000 * 1000 + 1;
    let mut source = KernelLogSource::open(&path, Some(ResumeFrom { seq }));
    assert_eq!(short(&read_all(&mut source)), ["7:c", "8:d"]);
}

#[test]
fn an_impossible_number_is_malformed() {
    let (_folder, path) = scratch();
    fs::write(&path, format!("6,{},0,-;a\n6,1,0,-;b\n", SYSLOG_SEQ_BASE - 1)).unwrap();
    let mut source = KernelLogSource::open(&path, None);
    assert_eq!(short(&read_all(&mut source)), ["malformed", "1:b"]);
}

#[test]
fn old_records_get_their_time_from_the_offset_and_live_ones_from_arrival() {
    let (_folder, path) = scratch();
    let now = clock().at.utc;
    fs::write(&path, "6,1,40000000,-;old\n6,2,100000001,-;ahead\n").unwrap();
    let mut source = KernelLogSource::open(&path, None);
    assert!(!source.drained_once());
    let mut out = Vec::new();
    assert_eq!(source.read(clock(), &mut out, 1), ReadEnd::More);
    assert!(!source.drained_once());
    out.extend(read_all(&mut source));
    assert!(source.drained_once());
    append(&path, "6,3,40000000,-;live\n");
    out.extend(read_all(&mut source));
    let times: Vec<Timestamp> = records(out).iter().map(|record| record.utc).collect();
    assert_eq!(times, [Timestamp::from_second(940).unwrap(), now, now]);
}

#[test]
fn an_unsuitable_path_is_reported_and_not_replaced() {
    let folder = TempDir::new().unwrap();
    for (path, expected) in [
        (folder.path(), "is a directory"),
        (Path::new("/dev/null"), "character device 1:3"),
        (Path::new("/proc/self/status"), "is of procfs"),
    ] {
        let mut source = KernelLogSource::open(path, None);
        assert_eq!(source.reader(), KernelLogReader::None);
        assert!(source.reason().is_some_and(|reason| reason.contains(expected)));
        assert_eq!(read_all(&mut source).len(), 0);
        assert!(source.drained_once());
    }
}

#[test]
fn a_configured_kernel_log_has_no_substitute() {
    let (_folder, path) = scratch();
    let source = KernelLogSource::open(&path, None);
    assert_eq!(source.reader(), KernelLogReader::None);
    assert!(source.reason().is_some_and(|reason| reason.contains("cannot open")));
}

#[test]
fn an_unavailable_source_retries() {
    let (_folder, path) = scratch();
    fs::create_dir(&path).unwrap();
    let mut source = KernelLogSource::open(&path, None);
    assert_eq!(read_all(&mut source).len(), 0);
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "6,1,0,-;a\n").unwrap();
    assert_eq!(read_all(&mut source).len(), 0);
    let mut later = clock();
    later.at.uptime += RETRY_AFTER;
    let mut out = Vec::new();
    source.read(later, &mut out, 10);
    assert_eq!(short(&out), ["1:a"]);
    assert_eq!((source.reader(), source.reason()), (KernelLogReader::File, None));
}

#[test]
fn a_file_replaced_by_a_directory_ends_the_reader_and_keeps_the_resume_position() {
    let (_folder, path) = scratch();
    fs::write(&path, "6,1,0,-;a\n6,2,0,-;b\n").unwrap();
    let mut source = KernelLogSource::open(&path, None);
    assert_eq!(short(&read_all(&mut source)), ["1:a", "2:b"]);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(read_all(&mut source).len(), 0);
    assert_eq!(source.reader(), KernelLogReader::None);
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "6,2,0,-;b\n6,3,0,-;c\n").unwrap();
    let mut later = clock();
    later.at.uptime += RETRY_AFTER;
    let mut out = Vec::new();
    source.read(later, &mut out, 10);
    assert_eq!(short(&out), ["3:c"]);
}

proptest! {
    #[test]
    fn malformed_data_in_a_fifo_hides_no_later_record(
        junk in prop::collection::vec(any::<u8>(), 0..3000),
        cut in 0_usize..3000,
    ) {
        let (_folder, path) = fifo();
        let mut source = KernelLogSource::open(&path, None);
        let mut writer = OpenOptions::new().append(true).open(&path).unwrap();
        let (first, second) = junk.split_at(cut.min(junk.len()));
        let mut seen = Vec::new();
        for part in [first, second, b"\n6,4000000000,7,-;after the junk\n"] {
            writer.write_all(part).unwrap();
            seen.extend(read_all(&mut source));
        }
        let last = short(&seen).pop();
        prop_assert_eq!(last.as_deref(), Some("4000000000:after the junk"));
    }
}
