//! Behaviour of the black box' format, and of its files.

mod files;

use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use super::header::RECORDS_A_PAGE;
use super::scan::PageSource;
use super::*;
use crate::model::{Moment, Reading};

pub(super) fn moment(ms: i64) -> Moment {
    Moment {
        uptime: Duration::from_millis(ms.unsigned_abs()),
        utc: Timestamp::from_millisecond(1_795_219_200_000 + ms).unwrap(),
    }
}

pub(super) fn boot(name: &str) -> BootId {
    BootId::new(name)
}

fn header(records: u32) -> Header {
    Header {
        boot_id: boot("8b1a9953-c461-4129-9f2c-0d1b6f1b6c35"),
        records,
        created: moment(0),
        unclean_boots: 3,
        previous: Some(PreviousBoot {
            boot_id: boot("the one before"),
            end: EndOfBoot::Unclean,
            gap_ms: Some(-5),
        }),
    }
}

fn full_record() -> BlackBoxRecord {
    let mut record = BlackBoxRecord::new(header(8).boot_id, moment(123_456));
    record.sequence = 77;
    record.reported = true;
    record.loop_age = Some(Duration::from_millis(250));
    record.write_took = Some(Duration::from_millis(3));
    record.missed = 2;
    record.rules = RuleCounts { firing: 2, pending: 1, unknown: 9 };
    record.firing = ShortText::new("PageCacheEatsReserve HungTask");
    record.set(Signal::Free, Reading::Value(1.5e9));
    record.set(Signal::Unaccounted, Reading::Value(-4096.0));
    record.set(Signal::Available, Reading::Failed);
    record.last_event = Some(LastEvent {
        utc: Some(moment(120_000).utc),
        seq: Some(4711),
        kind: ShortText::new("oom_kill"),
        detail: ShortText::new("pid 4242 (VLLM::EngineCor)"),
    });
    record
}

fn encoded(record: &BlackBoxRecord) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    record.encode(&mut bytes);
    bytes
}

/// A file in memory.
#[derive(Default)]
struct Memory(Vec<u8>);

impl Disk for Memory {
    fn put(&mut self, offset: u64, page: &AlignedPage) -> std::io::Result<()> {
        let begin = usize::try_from(offset).unwrap();
        self.0.resize(self.0.len().max(begin + PAGE_BYTES), 0);
        self.0[begin..begin + PAGE_BYTES].copy_from_slice(&page.0);
        Ok(())
    }
}

/// A file of so many records into which `written` have been written.
fn file(header: &Header, written: u64) -> Vec<u8> {
    let mut disk = Memory::default();
    let mut page = AlignedPage([0; PAGE_BYTES]);
    header.encode(&mut page.0);
    disk.put(0, &page).unwrap();
    page.0.fill(0);
    for number in 1..=header.records / RECORDS_A_PAGE {
        disk.put(u64::from(number) * PAGE_BYTES as u64, &page).unwrap();
    }
    let mut ring = BlackBoxRing::on(disk, header.records, 0, Box::new(page));
    for second in 0..written {
        let at = moment(i64::try_from(second).unwrap() * 1000);
        ring.write(&mut BlackBoxRecord::new(header.boot_id, at)).unwrap();
    }
    ring.disk().0.clone()
}

fn recovered(bytes: &[u8]) -> RecoveredRecords {
    RecoveredRecords::of_bytes(bytes).unwrap()
}

fn sequences(recovered: &RecoveredRecords) -> Vec<u64> {
    recovered.records.iter().map(|record| record.sequence).collect()
}

#[test]
fn a_record_and_a_header_come_back_as_they_were() {
    let record = full_record();
    assert_eq!(BlackBoxRecord::decode(&encoded(&record)), Slot::Whole(record));
    let bare = BlackBoxRecord::new(BootId::default(), moment(0));
    assert_eq!(BlackBoxRecord::decode(&encoded(&bare)), Slot::Whole(bare));
    let mut page = [0; PAGE_BYTES];
    header(80).encode(&mut page);
    assert_eq!(Header::decode(&page), Ok(header(80)));
    let first = Header { previous: None, ..header(8) };
    first.encode(&mut page);
    assert_eq!(Header::decode(&page), Ok(first));
}

#[test]
fn the_bytes_on_disk_are_those_of_version_1() {
    // Whoever changes one of these changes the version.
    let bytes = encoded(&full_record());
    assert_eq!(crc32fast::hash(&bytes), 0xfc24_77d7);
    let mut page = [0; PAGE_BYTES];
    header(80).encode(&mut page);
    assert_eq!(crc32fast::hash(&page), 0x0187_ceac);
    assert_eq!(page[..8], *b"umabox\x01\x00");
}

#[test]
fn the_ring_keeps_the_newest_and_drops_at_most_a_page_of_the_oldest() {
    let header = header(24);
    for written in 0..100 {
        let kept = sequences(&recovered(&file(&header, written)));
        let fewest = written.min(24 - 7);
        assert!(kept.len() as u64 >= fewest && kept.len() <= 24, "{written}: {kept:?}");
        let newest: Vec<u64> = (written - kept.len() as u64..written).collect();
        assert_eq!(kept, newest, "{written}");
    }
}

#[test]
fn torn_flipped_and_misplaced_records_alone_are_left_out() {
    let header = header(16);
    let whole = file(&header, 16);
    let offset = |sequence: usize| PAGE_BYTES + sequence * RECORD_BYTES;

    let mut torn = whole.clone();
    torn[offset(15) + 200..offset(15) + RECORD_BYTES].fill(0);
    torn[offset(3) + 17] ^= 0x40;
    let (from, to) = (offset(7), offset(9));
    torn.copy_within(from..from + RECORD_BYTES, to);
    let found = recovered(&torn);
    assert_eq!(sequences(&found), [0, 1, 2, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14]);
    assert_eq!(found.damaged, 3);

    let mut foreign = BlackBoxRecord::new(boot("another boot"), moment(0));
    foreign.sequence = 5;
    let mut mixed = whole.clone();
    mixed[offset(5)..offset(6)].copy_from_slice(&encoded(&foreign));
    assert_eq!(recovered(&mixed).damaged, 1);

    let cut = recovered(&whole[..PAGE_BYTES + PAGE_BYTES + 100]);
    assert_eq!(sequences(&cut), [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// A disk on which these pages cannot be read.
struct Failing<'a>(&'a [u8], std::ops::Range<u32>);

impl PageSource for Failing<'_> {
    fn page(&self, number: u32, into: &mut [u8; PAGE_BYTES]) -> std::io::Result<()> {
        if self.1.contains(&number) {
            return Err(std::io::Error::from_raw_os_error(5));
        }
        self.0.page(number, into)
    }
}

#[test]
fn an_unreadable_page_costs_only_its_records_and_a_dead_disk_ends_the_scan() {
    let whole = file(&header(160), 160);
    let one = RecoveredRecords::read(&Failing(&whole, 2..3)).unwrap().unwrap();
    assert_eq!((one.records.len(), one.damaged), (152, 8));
    let dead = RecoveredRecords::read(&Failing(&whole, 1..99)).unwrap().unwrap();
    assert_eq!((dead.records.len(), dead.damaged), (0, 64), "after eight pages it is given up");
    assert!(RecoveredRecords::read(&Failing(&whole, 0..1)).is_err());
}

#[test]
fn a_foreign_file_is_distinguished_from_a_newer_black_box() {
    let mut bytes = file(&header(8), 1);
    bytes[6] = 2;
    let read = RecoveredRecords::of_bytes;
    assert_eq!(read(&bytes), Err(UnusableFile::Version(2)));
    bytes[6] = 1;
    bytes[100] ^= 1;
    assert_eq!(read(&bytes), Err(UnusableFile::Foreign));
    assert_eq!(read(b""), Err(UnusableFile::Foreign));
    assert_eq!(read(&[0; 10_000]), Err(UnusableFile::Foreign));
    assert_eq!(read(&vec![b'x'; 10_000]), Err(UnusableFile::Foreign));
}

#[test]
fn a_boot_ends_cleanly_only_if_that_is_known() {
    let minute = 60_000;
    for (closed, gap_ms, end) in [
        (true, Some(30_000), EndOfBoot::Clean),
        (true, Some(15 * minute), EndOfBoot::Clean),
        (true, Some(-minute), EndOfBoot::Clean),
        (true, Some(15 * minute + 1), EndOfBoot::Unknown),
        (true, Some(-minute - 1), EndOfBoot::Unknown),
        (true, None, EndOfBoot::Unknown),
        (false, Some(30_000), EndOfBoot::Unclean),
        (false, Some(600 * minute), EndOfBoot::Unclean),
        (false, None, EndOfBoot::Unclean),
    ] {
        assert_eq!(EndOfBoot::of(closed, gap_ms), end, "{closed} {gap_ms:?}");
    }
}

#[test]
fn text_is_cut_between_characters() {
    let mut text = ShortText::<6>::default();
    assert!(text.push("über"));
    assert!(!text.push("ßx"), "five bytes are taken, two more do not fit");
    assert_eq!(text.as_str(), "über");
    assert!(text.push("!"));
    assert!(!text.push("!"));
    assert_eq!(text.as_str(), "über!");
}

fn readings() -> impl Strategy<Value = Reading<f64>> {
    prop_oneof![
        any::<f64>()
            .prop_filter("NaN is equal to nothing", |v| !v.is_nan())
            .prop_map(Reading::Value),
        Just(Reading::Unsupported),
        Just(Reading::Failed),
    ]
}

proptest! {
    #[test]
    fn any_record_comes_back(
        sequence: u64,
        ms in 0_i64..1 << 40,
        closed: bool,
        counts: (u16, u16, u16),
        values in prop::collection::vec(readings(), Signal::COUNT),
        texts: (String, String, String),
        event: bool,
    ) {
        let mut record = BlackBoxRecord::new(BootId::new(&texts.0), moment(ms));
        record.sequence = sequence;
        record.closed = closed;
        record.rules = RuleCounts { firing: counts.0, pending: counts.1, unknown: counts.2 };
        record.firing.push(&texts.1);
        record.signals.copy_from_slice(&values);
        let kind = ShortText::new("xid");
        let detail = ShortText::new(&texts.2);
        record.last_event = event.then_some(LastEvent { utc: None, seq: None, kind, detail });
        prop_assert_eq!(BlackBoxRecord::decode(&encoded(&record)), Slot::Whole(record));
    }

    #[test]
    fn a_damaged_record_is_never_taken_for_another(
        index in 0..RECORD_BYTES,
        flips in 1..=u8::MAX,
    ) {
        let mut bytes = encoded(&full_record());
        bytes[index] ^= flips;
        prop_assert_eq!(BlackBoxRecord::decode(&bytes), Slot::Damaged);
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        end: prop::sample::Index,
        valid_crc: bool,
    ) {
        let mut bytes = file(&header(16), 20);
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(end.index(bytes.len()) + 1);
        if valid_crc && bytes.len() >= PAGE_BYTES {
            let crc = crc32fast::hash(&bytes[12..PAGE_BYTES]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        if let Ok(found) = RecoveredRecords::of_bytes(&bytes) {
            prop_assert!(found.records.is_sorted_by(|a, b| a.sequence < b.sequence));
        }
    }
}
