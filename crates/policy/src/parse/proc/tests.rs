use super::buddyinfo::Contiguous;
use super::derived::{headroom, page_cache, unaccounted};
use super::meminfo::{Meminfo, MeminfoField as Field};
use super::node::{NodeField, NodeMeminfo};
use super::pressure::Pressure;
use super::vmstat::{Vmstat, VmstatField};
use super::zoneinfo::Zoneinfo;
use super::{ProcFileError, single_number};
use crate::model::Reading::{self, Failed, Unsupported, Value};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

macro_rules! fixture {
    ($path:literal) => {
        include_bytes!(concat!("../../../../../tests/fixtures/proc/", $path)).as_slice()
    };
}

fn zoneinfo(text: &[u8]) -> Zoneinfo {
    let mut zoneinfo = Zoneinfo::default();
    zoneinfo.parse(text).unwrap();
    zoneinfo
}

fn meminfo(lines: &[(&str, u64)]) -> Meminfo {
    let text: String = lines.iter().map(|(key, kb)| format!("{key}: {kb} kB\n")).collect();
    Meminfo::parse(text.as_bytes()).unwrap()
}

#[test]
fn meminfo_gives_bytes_and_counts() {
    let meminfo = Meminfo::parse(fixture!("gb10-64k/proc/meminfo")).unwrap();
    assert_eq!(meminfo.get(Field::MemTotal), Value(126_900_000 * KIB));
    assert_eq!(meminfo.get(Field::ActiveAnon), Value(1_048_576 * KIB));
    assert_eq!(meminfo.get(Field::Hugepagesize), Value(512 * MIB));
    assert_eq!(meminfo.get(Field::HugePagesTotal), Value(0));
    assert_eq!(meminfo.get(Field::NvMapMemUsed), Unsupported);
}

#[test]
fn meminfo_of_a_jetson_has_nvmap_and_lacks_younger_fields() {
    let meminfo = Meminfo::parse(fixture!("jetson/proc/meminfo")).unwrap();
    assert_eq!(meminfo.get(Field::NvMapMemUsed), Value(18 << 30));
    assert_eq!(meminfo.get(Field::CmaTotal), Value(256 * MIB));
    assert_eq!(meminfo.get(Field::SecPageTables), Unsupported);
}

#[test]
fn a_number_that_makes_no_sense_is_a_failure_and_never_zero() {
    for line in [
        "MemFree: \n",
        "MemFree: kB\n",
        "MemFree: -5 kB\n",
        "MemFree: 5\n",
        "MemFree: 5 MB\n",
        "MemFree: 5 kB kB\n",
        "MemFree: 0x5 kB\n",
        "MemFree: 5.0 kB\n",
        "MemFree: 18446744073709551615 kB\n",
        "MemFree: 99999999999999999999999999 kB\n",
        "MemFree: 9007199254740993000 kB\n",
        "MemFree: 123",
        "MemFree: \u{b2} kB\n",
    ] {
        let meminfo = Meminfo::parse(line.as_bytes()).unwrap();
        assert_eq!(meminfo.get(Field::MemFree), Failed, "{line:?}");
        assert_eq!(meminfo.get(Field::MemTotal), Unsupported, "{line:?}");
    }
}

#[test]
fn blanks_unknown_keys_and_a_missing_last_newline_do_no_harm() {
    let text = b"Odd(key)_9: 7 kB\n:\n\n\tMemTotal :\t 8   kB \nMemFree:4 kB";
    let meminfo = Meminfo::parse(text).unwrap();
    assert_eq!(meminfo.get(Field::MemTotal), Value(8 * KIB));
    assert_eq!(meminfo.get(Field::MemFree), Value(4 * KIB));
}

#[test]
fn files_without_known_keys_are_errors() {
    assert_eq!(Meminfo::parse(b""), Err(ProcFileError::Empty));
    assert_eq!(Meminfo::parse(b"\0\xff\n\n"), Err(ProcFileError::Unrecognized));
    assert_eq!(Vmstat::parse(b""), Err(ProcFileError::Empty));
    assert_eq!(Vmstat::parse(b"MemFree: 5 kB\n"), Err(ProcFileError::Unrecognized));
    assert_eq!(Pressure::parse(b"none\n"), Err(ProcFileError::Unrecognized));
    assert_eq!(Contiguous::parse(b"Node 0\n", 4096), Err(ProcFileError::Unrecognized));
    assert_eq!(NodeMeminfo::parse(b"MemTotal: 5 kB\n"), Err(ProcFileError::Unrecognized));
    assert_eq!(Zoneinfo::default().parse(b"  pages free 3\n"), Err(ProcFileError::Unrecognized));
    assert_eq!(single_number(b" \n"), Err(ProcFileError::Empty));
    assert_eq!(single_number(b"1\t2\n"), Err(ProcFileError::Unrecognized));
    assert_eq!(single_number(b"67584\n"), Ok(67584));
}

#[test]
fn vmstat_gives_the_chosen_counters() {
    let vmstat = Vmstat::parse(fixture!("gb10-4k/proc/vmstat")).unwrap();
    assert_eq!(vmstat.get(VmstatField::ScanDirect), Value(1_234_567));
    assert_eq!(vmstat.get(VmstatField::StallNormal), Value(8600));
    assert_eq!(vmstat.get(VmstatField::StallDma32), Unsupported);
    assert_eq!(vmstat.get(VmstatField::CompactFail), Value(70));
    let cut = Vmstat::parse(b"pgfault 12\noom_kill 1").unwrap();
    assert_eq!(cut.get(VmstatField::Fault), Value(12));
    assert_eq!(cut.get(VmstatField::OomKill), Failed);
}

#[test]
fn zoneinfo_keeps_watermarks_apart_from_the_cpus_lists() {
    let zoneinfo = zoneinfo(fixture!("gb10-4k/proc/zoneinfo"));
    let names: Vec<_> = zoneinfo.zones().map(|zone| (zone.node, zone.name.as_str())).collect();
    assert_eq!(names, [(0, "DMA"), (0, "Normal")], "zones without memory are left out");
    let normal = zoneinfo.zones().nth(1).unwrap();
    assert_eq!((normal.min, normal.low, normal.high), (Value(16400), Value(20500), Value(24600)));
    assert_eq!(normal.boost, Value(4000));
    assert_eq!(normal.free, Value(848_576));
    assert_eq!(normal.per_cpu, Value(20 * 6000));
    assert_eq!(zoneinfo.sum(|zone| zone.low), Value(20_875));
    assert_eq!(zoneinfo.sum(|zone| zone.free_cma), Value(24_576));
}

#[test]
fn the_gpus_node_of_a_grace_hopper_is_seen() {
    let zoneinfo = zoneinfo(fixture!("gh200/proc/zoneinfo"));
    let gpu = zoneinfo.zones().find(|zone| zone.node == 1).unwrap();
    assert_eq!((gpu.name.as_str(), gpu.managed), ("Movable", Value(1_572_864)));
    let node = NodeMeminfo::parse(fixture!("gh200/sys/devices/system/node/node1/meminfo")).unwrap();
    assert_eq!(node.get(NodeField::MemTotal), Value(96 << 30));
    assert_eq!(node.get(NodeField::FilePages), Value(0));
}

#[test]
fn an_old_kernel_has_no_boost() {
    let zoneinfo = zoneinfo(fixture!("jetson/proc/zoneinfo"));
    assert_eq!(zoneinfo.sum(|zone| zone.boost), Unsupported);
    assert_eq!(zoneinfo.sum(|zone| zone.min), Value(16_884));
}

#[test]
fn a_sum_over_zones_of_which_some_are_missing_is_a_failure() {
    let whole = b"Node 0, zone DMA\n min 5\n low 6\nNode 0, zone Normal\n min 50\n low 60\n";
    assert_eq!(zoneinfo(whole).sum(|zone| zone.low), Value(66));
    for cut in 1..=4 {
        let zoneinfo = zoneinfo(&whole[..whole.len() - cut]);
        assert_eq!(zoneinfo.sum(|zone| zone.low), Failed, "cut by {cut}");
    }
    assert_eq!(zoneinfo(b"Node 0, zone DMA\n low 6\nNode 0, zone X\n").sum(|z| z.low), Failed);
    assert_eq!(zoneinfo(b"Node 0, zone DMA\n low -6\n").sum(|zone| zone.low), Failed);
}

#[test]
fn zones_with_hostile_names_are_skipped_and_their_number_is_bounded() {
    let text = "Node 0, zone \"x\"\n min 1\nNode x, zone A\nNode 0, zone ABCDEFGHIJKLMNOP\n";
    assert!(Zoneinfo::default().parse(text.as_bytes()).is_err());
    let many = "Node 0, zone A\n".repeat(5000);
    let mut zoneinfo = Zoneinfo::default();
    assert_eq!(zoneinfo.parse(many.as_bytes()), Err(ProcFileError::TooMany));
    assert_eq!(zoneinfo.zones().count(), 0);
}

#[test]
fn large_blocks_follow_the_page_size() {
    let text = fixture!("gb10-64k/proc/buddyinfo");
    let large = Contiguous::parse(text, 65536).unwrap();
    let at_32: u64 = [(3, 9), (1, 9), (61, 13)].iter().map(|(n, o)| n * (65536 << o)).sum();
    let at_2: u64 = [(22, 5), (11, 6), (6, 7), (3, 8)].iter().map(|(n, o)| n * (65536 << o)).sum();
    assert_eq!(large.thirty_two_mib, Value(at_32));
    assert_eq!(large.two_mib, Value(at_2 + at_32));
    let row = b"Node 0, zone Normal 1 1 1 1 1 1 1 1 1 1 1 1\n";
    let large = Contiguous::parse(row, 16384).unwrap();
    assert_eq!(large.two_mib, Value((2 + 4 + 8 + 16 + 32) * MIB));
    assert_eq!(large.thirty_two_mib, Value(32 * MIB));
}

#[test]
fn blocks_larger_than_the_allocator_keeps_are_unsupported_and_not_zero() {
    let large = Contiguous::parse(fixture!("x86-64-linux-6.18/proc/buddyinfo"), 4096).unwrap();
    assert!(large.two_mib.value().is_some_and(|bytes| bytes > 0));
    assert_eq!(large.thirty_two_mib, Unsupported);
    // arm64 with pages of 4 KiB and MAX_ORDER 10.
    let large = Contiguous::parse(b"Node 0, zone Normal 1 1 1 1 1 1 1 1 1 1 7\n", 4096).unwrap();
    assert_eq!((large.two_mib, large.thirty_two_mib), (Value(30 * MIB), Unsupported));
    let large = Contiguous::parse(fixture!("gb10-4k/proc/buddyinfo"), 4096).unwrap();
    assert_eq!(large.thirty_two_mib, Value(2 * 32 * MIB));
}

#[test]
fn a_buddyinfo_row_that_cannot_be_read_fails_only_what_it_feeds() {
    let row = |text: &str| Contiguous::parse(text.as_bytes(), 65536).unwrap();
    let small = row("Node 0, zone N x 1 1 1 1 1 1 1 1 1\n");
    assert_eq!(small.thirty_two_mib, Value(32 * MIB), "a bad count of small blocks");
    let large = row("Node 0, zone N 1 1 1 1 1 1 1 1 1 -1\n");
    assert_eq!((large.two_mib, large.thirty_two_mib), (Failed, Failed));
    assert_eq!(row("Node 0, zone N 1 1 1 1 1 1 1 1 1 1").two_mib, Failed, "cut off");
    let huge = "9223372036854775807 ".repeat(40);
    assert_eq!(row(&format!("Node 0, zone N {huge}\n")).two_mib, Failed);
}

#[test]
fn pressure_is_read_as_ratios_and_microseconds() {
    let pressure = Pressure::parse(fixture!("gb10-4k/proc/pressure/memory")).unwrap();
    assert_eq!(pressure.some.avg10, Value(0.0725));
    assert_eq!(pressure.full.total_us, Value(40_123_456));
    let old = Pressure::parse(b"some avg10=100.00 avg60=0.1 avg300=-1.00 total=5\n").unwrap();
    assert_eq!(old.some.avg10, Value(1.0));
    assert_eq!(old.full.total_us, Unsupported, "cpu before Linux 5.13");
    for odd in ["100.01", "nan", "0.1", "-1.00"] {
        let odd = Pressure::parse(format!("some avg10={odd} avg60=0.00 total=7").as_bytes());
        let odd = odd.unwrap().some;
        assert_eq!((odd.avg10, odd.total_us), (Failed, Failed));
    }
}

#[test]
fn the_parts_of_the_page_cache_add_up() {
    let split = |mapped| {
        page_cache(&meminfo(&[
            ("Cached", 1000),
            ("Buffers", 100),
            ("Shmem", 300),
            ("SwapCached", 77),
            ("Dirty", 40),
            ("Writeback", 10),
            ("Mapped", mapped),
        ]))
        .value()
        .map(|cache| (cache.clean / KIB, cache.dirty / KIB, cache.mapped / KIB))
    };
    assert_eq!(split(200), Some((550, 50, 200)));
    assert_eq!(split(900), Some((0, 50, 750)), "mapped shmem never makes it negative");
    assert_eq!(page_cache(&meminfo(&[("Cached", 5)])), Unsupported);
}

#[test]
fn unaccounted_counts_each_page_once() {
    let mut lines = vec![
        ("MemTotal", 10_000),
        ("MemFree", 1000),
        ("Buffers", 100),
        ("Cached", 2000),
        ("SwapCached", 10),
        ("AnonPages", 900),
        ("KReclaimable", 250),
        ("Slab", 400),
        ("SReclaimable", 200),
        ("KernelStack", 30),
        ("VmallocUsed", 80),
        ("PageTables", 20),
        ("SecPageTables", 5),
        ("Percpu", 15),
        ("Hugetlb", 1024),
        ("Zswap", 6),
        ("Shmem", 500),
        ("Mapped", 700),
        ("CmaTotal", 600),
    ];
    let named = 1000 + 100 + 2000 + 10 + 900 + 50 + 400 + 80 + 20 + 5 + 15 + 1024 + 6;
    let expected = |rest: i64| Value((10_000 - named - rest) * 1024);
    let none = Unsupported;
    assert_eq!(unaccounted(&meminfo(&lines), none), expected(0));
    assert_eq!(unaccounted(&meminfo(&lines), Value(64 * KIB)), expected(64));
    assert_eq!(unaccounted(&meminfo(&lines), Failed), Failed);
    lines.retain(|(key, _)| *key != "Percpu");
    assert_eq!(unaccounted(&meminfo(&lines), none), expected(-15), "an absent counter is nothing");
    lines.retain(|(key, _)| *key != "AnonPages");
    assert_eq!(unaccounted(&meminfo(&lines), none), Unsupported, "but these are needed");
}

#[test]
fn unaccounted_may_fall_below_zero() {
    let zeros = ["Buffers", "Cached", "AnonPages", "Slab"].map(|key| (key, 0));
    let lines = [[("MemTotal", 100), ("MemFree", 104)].as_slice(), &zeros].concat();
    assert_eq!(unaccounted(&meminfo(&lines), Unsupported), Value(-4096));
}

#[test]
fn huge_pages_of_an_old_kernel_are_counted_by_their_size() {
    let text = "MemTotal: 9000 kB\nMemFree: 0 kB\nBuffers: 0 kB\nCached: 0 kB\nAnonPages: 0 kB\n\
                Slab: 0 kB\nHugePages_Total: 2\nHugepagesize: 2048 kB\n";
    let meminfo = Meminfo::parse(text.as_bytes()).unwrap();
    assert_eq!(unaccounted(&meminfo, Unsupported), Value((9000 - 4096) * 1024));
}

#[test]
fn headroom_is_negative_below_the_low_watermark() {
    assert_eq!(headroom(Value(5), Value(7)), Value(-2));
    assert_eq!(headroom(Value(5), Failed), Failed);
    assert_eq!(headroom(Unsupported, Value(7)), Reading::<i64>::Unsupported);
}
