//! Every parser of `/proc` and `/sys` files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::model::Reading;
use umawarden::parse::proc::buddyinfo::Contiguous;
use umawarden::parse::proc::derived::{headroom, page_cache, unaccounted};
use umawarden::parse::proc::maps::mappings;
use umawarden::parse::proc::meminfo::{Meminfo, MeminfoField};
use umawarden::parse::proc::node::NodeMeminfo;
use umawarden::parse::proc::pagemap::present_of_file;
use umawarden::parse::proc::pressure::Pressure;
use umawarden::parse::proc::sockstat::memory_pages;
use umawarden::parse::proc::vmstat::Vmstat;
use umawarden::parse::proc::zoneinfo::Zoneinfo;
use umawarden::parse::proc::{colon_number, single_number};

fuzz_target!(|text: &[u8]| {
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
    let _ = memory_pages(text);
    let _ = single_number(text);
    let _ = colon_number(text, b"pos");
    for mapping in mappings(text) {
        assert!(mapping.addresses.start < mapping.addresses.end && mapping.path[0] == b'/');
        assert!(mapping.bytes().end > mapping.offset);
    }
    for from in [0, 0x7f00_0000_0000, u64::MAX - 8192] {
        let mut end = 0;
        for run in present_of_file(text, from, 4096) {
            assert!(run.start >= end && run.start < run.end);
            end = run.end;
        }
    }
    if let Ok(pressure) = Pressure::parse(text) {
        for stall in [pressure.some, pressure.full] {
            assert!(stall.avg10.value().is_none_or(|ratio| (0.0..=1.0).contains(&ratio)));
        }
    }
    for page_size in [4096, 65536] {
        let _ = Contiguous::parse(text, page_size);
    }
    let mut zoneinfo = Zoneinfo::default();
    let _ = zoneinfo.parse(text);
    let _ = headroom(zoneinfo.sum(|zone| zone.free), zoneinfo.sum(|zone| zone.low));
    assert!(zoneinfo.zones().all(|zone| !zone.name.as_str().is_empty()));
});
