//! Whatever the bytes, a parser ends without a panic and makes nothing up.

use proptest::prelude::*;

use super::buddyinfo::Contiguous;
use super::derived::{page_cache, unaccounted};
use super::maps::mappings;
use super::meminfo::{Meminfo, MeminfoField};
use super::node::NodeMeminfo;
use super::pressure::Pressure;
use super::vmstat::{Vmstat, VmstatField};
use super::zoneinfo::Zoneinfo;
use super::{colon_number, single_number};
use crate::model::Reading;

const FIXTURES: [&[u8]; 7] = [
    include_bytes!("../../../../../tests/fixtures/proc/gb10-4k/proc/meminfo"),
    include_bytes!("../../../../../tests/fixtures/proc/gb10-4k/proc/vmstat"),
    include_bytes!("../../../../../tests/fixtures/proc/gb10-4k/proc/zoneinfo"),
    include_bytes!("../../../../../tests/fixtures/proc/gb10-4k/proc/buddyinfo"),
    include_bytes!("../../../../../tests/fixtures/proc/gb10-4k/proc/pressure/cpu"),
    include_bytes!(
        "../../../../../tests/fixtures/proc/gh200/sys/devices/system/node/node1/meminfo"
    ),
    include_bytes!("../../../../../tests/fixtures/proc/gb10-4k/proc/sys/vm/min_free_kbytes"),
];

fn parse_with_all(text: &[u8]) {
    if let Ok(meminfo) = Meminfo::parse(text) {
        let _ = unaccounted(&meminfo, Reading::Value(u64::MAX));
        if let Reading::Value(cache) = page_cache(&meminfo) {
            let get = |field| meminfo.get(field).value().unwrap_or(0);
            let all = get(MeminfoField::Cached).saturating_add(get(MeminfoField::Buffers));
            let all = all.saturating_sub(get(MeminfoField::Shmem));
            assert_eq!(cache.clean + cache.dirty + cache.mapped, all);
        }
    }
    let _ = Vmstat::parse(text);
    let _ = NodeMeminfo::parse(text);
    let _ = single_number(text);
    let _ = colon_number(text, b"pos");
    for mapping in mappings(text) {
        assert!(mapping.addresses.start < mapping.addresses.end && mapping.path[0] == b'/');
        assert!(mapping.bytes().end > mapping.offset);
    }
    if let Ok(pressure) = Pressure::parse(text) {
        for stall in [pressure.some, pressure.full] {
            assert!(stall.avg10.value().is_none_or(|ratio| (0.0..=1.0).contains(&ratio)));
        }
    }
    for page_size in [4096, 16384, 65536, 0, u64::MAX] {
        let _ = Contiguous::parse(text, page_size);
    }
    let mut zoneinfo = Zoneinfo::default();
    let _ = zoneinfo.parse(text);
    let _ = zoneinfo.sum(|zone| zone.low);
    assert!(zoneinfo.zones().all(|zone| !zone.name.as_str().is_empty()));
}

/// A file of the kernel with a few bytes overwritten, and its end cut off.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12);
    (prop::sample::select(FIXTURES.to_vec()), edits, any::<prop::sample::Index>(), any::<bool>())
        .prop_map(|(fixture, edits, end, cut)| {
            let mut text = fixture.to_vec();
            for (at, byte) in edits {
                let at = at.index(text.len());
                text[at] = byte;
            }
            if cut {
                text.truncate(end.index(text.len()));
            }
            text
        })
}

/// Lines of the right shape with numbers of every size and sign.
fn shaped() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        any::<u64>().prop_map(|value| value.to_string()),
        any::<i64>().prop_map(|value| value.to_string()),
        "[0-9]{0,40}",
        "[ -~]{0,8}",
    ];
    let line = prop_oneof![
        Just("MemTotal: # kB\n"),
        Just("Cached: # kB\n"),
        Just("Shmem: # kB"),
        Just("Node #, zone Normal\n"),
        Just("Node 0, zone Normal # # # # # # # # # # # #\n"),
        Just("Node # MemFree: # kB\n"),
        Just("  pages free #\n"),
        Just("  low #\n"),
        Just("  count: #\n"),
        Just("#-# r--p # #:# # /x (deleted)\n"),
        Just("7f00-ff00 r--p # fe:00 # /x\n"),
        Just("pos:\t#\n"),
        Just("some avg10=# avg60=# total=#\n"),
        Just("oom_kill #\n"),
    ];
    prop::collection::vec((line, number), 0..20).prop_map(|lines| {
        lines
            .into_iter()
            .flat_map(|(line, number)| line.replace('#', &number).into_bytes())
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn arbitrary_bytes_do_not_panic(text in prop::collection::vec(any::<u8>(), 0..2000)) {
        parse_with_all(&text);
    }

    #[test]
    fn damaged_files_do_not_panic(text in damaged()) {
        parse_with_all(&text);
    }

    #[test]
    fn odd_numbers_do_not_panic(text in shaped()) {
        parse_with_all(&text);
    }

    #[test]
    fn a_cut_file_never_gives_another_value(end in any::<prop::sample::Index>()) {
        let whole = Meminfo::parse(FIXTURES[0]).unwrap();
        if let Ok(cut) = Meminfo::parse(&FIXTURES[0][..end.index(FIXTURES[0].len())]) {
            for &field in MeminfoField::ALL {
                let value = cut.get(field);
                prop_assert!(value.value().is_none() || value == whole.get(field), "{field:?}");
            }
        }
        let whole = Vmstat::parse(FIXTURES[1]).unwrap();
        if let Ok(cut) = Vmstat::parse(&FIXTURES[1][..end.index(FIXTURES[1].len())]) {
            for &field in VmstatField::ALL {
                let value = cut.get(field);
                prop_assert!(value.value().is_none() || value == whole.get(field), "{field:?}");
            }
        }
    }

    #[test]
    fn meminfo_gives_back_what_was_written(values in prop::collection::vec(0_u64..1 << 52, 45)) {
        let is_amount = |field: &MeminfoField| !field.key().starts_with(b"HugePages_");
        let lines = MeminfoField::ALL.iter().zip(&values).filter(|(field, _)| is_amount(field));
        let text: String = lines
            .clone()
            .map(|(field, kb)| format!("{}: {kb} kB\n", String::from_utf8_lossy(field.key())))
            .collect();
        let meminfo = Meminfo::parse(text.as_bytes()).unwrap();
        for (field, kb) in lines {
            prop_assert_eq!(meminfo.get(*field), Reading::Value(kb * 1024));
        }
    }
}
