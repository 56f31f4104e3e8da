use std::collections::BTreeSet;

use super::*;

const GIB: u64 = 1 << 30;

fn node(model: &str, gib: u64) -> TuneNode {
    TuneNode { model: model.to_owned(), memory_bytes: gib * GIB }
}

#[test]
fn every_profile_has_valid_settings_with_reasons() {
    let profiles = profiles().unwrap();
    let mut names = BTreeSet::new();
    for profile in &profiles {
        assert!(names.insert(&profile.name), "{} is there twice", profile.name);
        let mut settings = BTreeSet::new();
        for advice in &profile.settings {
            let what = format!("{} {}", profile.name, advice.name);
            assert!(settings.insert(advice.name), "{what} is there twice");
            let [from, to] = advice.accept;
            assert!(from <= advice.value && advice.value <= to, "{what}");
            for value in [from, advice.value, to] {
                assert!(advice.name.range().contains(&value), "{what}: {value}");
            }
            assert!(advice.why.len() > 20 && advice.trades.len() > 20, "{what}");
        }
        let reserve = u64::from(profile.value(Sysctl::MinFreeKbytes).unwrap()) << 10;
        let least = profile.memory_gib[0].max(4) * GIB;
        assert!(reserve * 32 <= least, "{}: the reserve is a large part of it", profile.name);
    }
}

#[test]
fn a_node_gets_the_profile_of_its_kind_and_size() {
    let profiles = profiles().unwrap();
    for (model, gib, wanted) in [
        ("NVIDIA_DGX_Spark", 121, "dgx-spark"),
        ("ASUS Ascent GX10", 119, "dgx-spark"),
        ("NVIDIA GH200 480GB", 573, "gh200"),
        ("NVIDIA Jetson AGX Thor Developer Kit", 122, "jetson-128"),
        ("NVIDIA Jetson AGX Orin Developer Kit", 61, "jetson-64"),
        ("NVIDIA Jetson AGX Orin Developer Kit", 29, "jetson-32"),
        ("NVIDIA Jetson Orin NX", 15, "jetson-16"),
        ("NVIDIA Jetson Orin Nano Developer Kit", 7, "jetson-8"),
        ("", 7, "generic-small"),
        ("", 23, "generic-small"),
        ("KVM", 62, "generic-medium"),
        ("", 121, "generic-large"),
        ("NVIDIA_DGX_Spark", 30, "generic-medium"),
        ("", 1_500, "generic-huge"),
    ] {
        let chosen = choose(&profiles, &node(model, gib)).unwrap();
        assert_eq!(chosen.name, wanted, "{model:?} with {gib} GiB");
    }
}

#[test]
fn a_fitting_value_is_kept() {
    let profiles = profiles().unwrap();
    let spark = choose(&profiles, &node("NVIDIA_DGX_Spark", 121)).unwrap();
    let row = |now| SettingRow::new(&spark.settings[0], now, None);
    for (now, fits, wanted) in [
        (SettingState::Value(67_584), false, Some(1 << 20)),
        (SettingState::Value(2 << 20), true, Some(2 << 20)),
        (SettingState::Value(40 << 20), false, Some(1 << 20)),
        (SettingState::Missing, true, None),
        (SettingState::InBytes, true, None),
    ] {
        assert_eq!((row(now).fits(), row(now).wanted()), (fits, wanted), "{now:?}");
    }
}

#[test]
fn a_reserve_of_4_gib_more_costs_the_measured_memory() {
    let memory = CurrentMemory {
        total_bytes: 121 * GIB + GIB / 2,
        available_bytes: 115 * GIB,
        cache_bytes: GIB / 4,
    };
    let before = Reserve { min_free_kib: 45_000, scale_factor: 10 };
    let after = Reserve { min_free_kib: 45_000 + (4 << 20), scale_factor: 10 };
    let lost = memory.available_bytes - before.available_under(after, &memory);
    // About 6.2 GiB were measured on a DGX Spark.
    assert!((57..64).contains(&(lost * 10 / GIB)), "{lost}");
    assert_eq!(before.available_under(before, &memory), memory.available_bytes);
    assert_eq!(
        after.available_under(before, &CurrentMemory { available_bytes: 0, ..memory }),
        lost
    );
}

#[test]
fn a_share_of_all_memory_is_rounded_up() {
    let memory = CurrentMemory { total_bytes: 1_001, available_bytes: 0, cache_bytes: 0 };
    assert_eq!(memory.share_bytes(0.9), 901);
}

#[test]
fn a_reserve_below_what_huge_pages_want_is_never_set() {
    let profiles = profiles().unwrap();
    let spark = profiles.iter().find(|profile| profile.name == "dgx-spark").unwrap();
    let pages = |bytes| HugePages { bytes, zones: 2, total_bytes: 121 * GIB };
    let row =
        |now, pages| SettingRow::new(&spark.settings[0], SettingState::Value(now), Some(pages));
    let (small, large) = (pages(2 << 20), pages(512 << 20));
    // As Linux 6.18 on x86-64 has it with three zones.
    assert_eq!(HugePages { zones: 3, ..small }.min_free_kib(), 67_584);
    assert_eq!(large.min_free_kib(), 6_343_884, "a twentieth of memory");
    let usual = row(67_584, small);
    assert_eq!((usual.fits(), usual.wanted(), usual.raised_to()), (false, Some(1_048_576), None));
    let raised = row(5_900_000, large);
    assert_eq!((raised.fits(), raised.raised_to()), (true, None), "the kernel has set it");
    let lowered = row(1_048_576, large);
    assert_eq!((lowered.fits(), lowered.raised_to()), (true, Some(6_343_884)));
    let high = row(20_000_000, large);
    assert_eq!((high.fits(), high.wanted()), (false, Some(6_343_884)));
    let other = SettingRow::new(&spark.settings[1], SettingState::Value(10), Some(large));
    assert_eq!(other.wanted(), Some(200));
}

#[test]
fn huge_pages_for_programs_that_ask_count_as_on() {
    for (text, on) in [
        ("[always] madvise never\n", true),
        ("always [madvise] never\n", true),
        ("always madvise [never]\n", false),
        ("", false),
    ] {
        assert_eq!(is_on(text), on, "{text}");
    }
}
