//! What opens the gate, what keeps it closed, and that nothing does for ever.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{GateWatch, SETTLES, check_gate, with_peers};
use crate::model::{
    Baseline, GateMemory, GateNote, GateReason, GateRequest, GateResponse, LingeringMemory,
    MemoryPools, MemoryTrends, Orphan, PeerGate, PeerGateResponse, ProcessId, Reading, Trend,
};
use crate::policy::pools::memory::{allowance, memory};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A node of 120 GiB on which nothing moves, with so much free.
fn node(free: u64) -> GateMemory {
    let still = Some(Trend::default());
    GateMemory {
        total: Reading::Value(120 * GIB),
        free: Reading::Value(free),
        free_cma: Reading::Value(0),
        clean_cache: Reading::Value(0),
        dirty_cache: Reading::Value(0),
        mapped_cache: Reading::Value(0),
        reclaimable_slab: Reading::Value(0),
        reserve: Reading::Value(2 * GIB),
        contiguous_2mib: Reading::Value(free / 2),
        contiguous_32mib: Reading::Unsupported,
        unaccounted: Reading::Value(GIB),
        baseline: Baseline { bytes: GIB, is_learned: true },
        shmem: Reading::Value(0),
        orphans: Reading::Value(Arc::new([])),
        motion: MemoryTrends {
            available: still,
            contiguous: still,
            unaccounted: still,
            shmem: still,
        },
    }
}

fn check(request: &GateRequest, memory: &GateMemory) -> GateResponse {
    check_gate(request, &MemoryPools::single(memory.clone()))
}

fn asked(gib: u64, memory: &GateMemory) -> GateResponse {
    check(&GateRequest::of(gib * GIB), memory)
}

fn reasons(response: &GateResponse) -> Vec<String> {
    response.reasons.iter().map(ToString::to_string).collect()
}

fn orphan() -> Orphan {
    Orphan {
        id: ProcessId { pid: 4242, start_ticks: 7 },
        comm: Arc::from("VLLM::EngineCor"),
        engine: Arc::from("vllm-8000"),
        bytes: 3 * GIB,
        open_devices: 2,
    }
}

#[test]
fn free_memory_above_the_reserve_opens_the_gate() {
    assert!(asked(90, &node(92 * GIB)).is_open);
    let response = asked(90, &node(92 * GIB - 1));
    assert!(!response.is_open);
    assert_eq!(
        reasons(&response),
        [
            "90.0 GiB available, 90.0 GiB needed: 90.0 GiB free above the reserve, 0 B in caches that can \
          be dropped; 1 B are missing"
        ]
    );
    assert_eq!(response.wait, None, "nothing shows that it will ever be there");
}

#[test]
fn reclaimable_caches_count_and_a_note_names_them() {
    let caches = GateMemory {
        clean_cache: Reading::Value(20 * GIB),
        dirty_cache: Reading::Value(20 * GIB),
        mapped_cache: Reading::Value(20 * GIB),
        reclaimable_slab: Reading::Value(2 * GIB),
        ..node(52 * GIB)
    };
    let response = asked(71, &caches);
    assert!(response.is_open, "{response:?}");
    assert_eq!(response.notes, [GateNote::Reclaim { bytes: 21 * GIB }]);
    let response = asked(72, &caches);
    assert!(!response.is_open);
    let dirty = GateNote::Dirty { bytes: 20 * GIB };
    assert_eq!(response.notes, [dirty, GateNote::Mapped { bytes: 20 * GIB }]);
}

#[test]
fn a_missing_reserve_and_cma_memory_are_not_available() {
    let lacking = GateMemory { clean_cache: Reading::Value(20 * GIB), ..node(GIB) };
    assert!(asked(19, &lacking).is_open);
    assert!(!asked(20, &lacking).is_open);
    let cma = GateMemory { free_cma: Reading::Value(4 * GIB), ..node(92 * GIB) };
    assert!(asked(86, &cma).is_open);
    assert!(!asked(87, &cma).is_open);
}

#[test]
fn a_need_above_the_size_of_the_node_is_hopeless() {
    let response = asked(119, &node(120 * GIB));
    assert!(response.is_hopeless && !response.is_open);
    assert_eq!(
        reasons(&response),
        ["there is never 119.0 GiB: without the reserve there are 118.0 GiB in all"]
    );
    assert!(!asked(118, &node(100 * GIB)).is_hopeless);
    let unsettled = GateMemory { motion: MemoryTrends::default(), ..node(120 * GIB) };
    assert_eq!(reasons(&asked(119, &unsettled)), reasons(&response), "and nothing else");
}

#[test]
fn lingering_memory_closes_the_gate_despite_enough_free_memory() {
    let releasing = |held: u64, sank_bytes| GateMemory {
        unaccounted: Reading::Value(GIB + held),
        motion: MemoryTrends {
            unaccounted: Some(Trend { bytes_per_second: -(4.0 * GIB as f64), sank_bytes }),
            ..node(0).motion
        },
        ..node(100 * GIB)
    };
    let response = asked(90, &releasing(12 * GIB, 2 * GIB));
    assert!(!response.is_open);
    assert_eq!(response.wait, Some(Duration::from_secs(3)));
    assert_eq!(
        reasons(&response),
        ["memory is still being given back: 12.0 GiB more than usual are in no counter of the \
          kernel (a driver holds it), and 4.0 GiB/s go"]
    );
    // What is left no longer falls: it is a note, and closes nothing.
    let response = asked(90, &releasing(12 * GIB, 0));
    assert!(response.is_open);
    let baseline = Baseline { bytes: GIB, is_learned: true };
    assert_eq!(response.notes, [GateNote::Unaccounted { above_bytes: 12 * GIB, baseline }]);
    assert!(asked(90, &releasing(200 * MIB, 2 * GIB)).is_open, "all but nothing is left");
}

#[test]
fn falling_shared_memory_closes_the_gate_too() {
    let trend = Trend { bytes_per_second: -(GIB as f64), sank_bytes: GIB };
    let motion = MemoryTrends { shmem: Some(trend), ..node(0).motion };
    let going = GateMemory { shmem: Reading::Value(30 * GIB), motion, ..node(100 * GIB) };
    let response = asked(50, &going);
    let is_shmem = |reason: &GateReason| {
        matches!(reason, GateReason::Releasing { what: LingeringMemory::Shmem, .. })
    };
    assert!(response.reasons.iter().all(is_shmem) && !response.is_open);
    let stays = GateMemory { shmem: Reading::Value(30 * GIB), ..node(100 * GIB) };
    let response = asked(50, &stays);
    assert_eq!(
        (response.is_open, response.notes),
        (true, vec![GateNote::Shmem { bytes: 30 * GIB }])
    );
}

#[test]
fn falling_free_memory_closes_the_gate() {
    let taking = |bytes_per_second| GateMemory {
        motion: MemoryTrends {
            available: Some(Trend { bytes_per_second, sank_bytes: GIB }),
            ..node(0).motion
        },
        ..node(100 * GIB)
    };
    let response = asked(90, &taking(-(2.0 * GIB as f64)));
    assert_eq!(reasons(&response), ["free memory falls by 2.0 GiB/s: in 4s there is too little"]);
    assert!(asked(40, &taking(-(2.0 * GIB as f64))).is_open, "enough would be left");
    assert!(asked(90, &taking(-1e6)).is_open, "that slow is no engine");
}

#[test]
fn the_wait_is_estimated_only_if_all_reasons_have_a_pace() {
    let motion = MemoryTrends {
        available: Some(Trend { bytes_per_second: 5.0 * GIB as f64, sank_bytes: 0 }),
        ..node(0).motion
    };
    let coming = GateMemory { motion, ..node(42 * GIB) };
    assert_eq!(asked(90, &coming).wait, Some(Duration::from_secs(10)));
    let orphaned = GateMemory { orphans: Reading::Value(Arc::new([orphan()])), ..coming };
    let response = asked(90, &orphaned);
    assert_eq!((response.wait, response.reasons.len()), (None, 2));
}

#[test]
fn orphans_of_the_last_engine_close_the_gate_and_are_named() {
    let orphaned = GateMemory { orphans: Reading::Value(Arc::new([orphan()])), ..node(110 * GIB) };
    let response = asked(10, &orphaned);
    assert!(!response.is_open);
    assert_eq!(
        reasons(&response),
        [
            "VLLM::EngineCor (pid 4242), left behind by vllm-8000, holds 3.0 GiB and has the GPU open"
        ]
    );
}

#[test]
fn contiguous_memory_is_checked_only_on_request() {
    let mut request = GateRequest { contiguous_bytes: Some(6 * GIB), ..GateRequest::of(GIB) };
    let pieces = GateMemory { contiguous_2mib: Reading::Value(2 * GIB), ..node(100 * GIB) };
    let response = check(&request, &pieces);
    assert_eq!(reasons(&response), ["2.0 GiB of 6.0 GiB are in free blocks of 2 MiB and more"]);
    let blind = GateMemory { contiguous_2mib: Reading::Failed, ..pieces.clone() };
    assert!(!check(&request, &blind).is_open);
    request.contiguous_bytes = Some(2 * GIB);
    assert!(check(&request, &pieces).is_open);
    request.contiguous_bytes = None;
    assert!(check(&request, &blind).is_open, "it was not requested");
}

#[test]
fn unknown_readings_close_the_gate() {
    let plenty = || node(110 * GIB);
    let failed = || Reading::Failed;
    let doubtful: [(&str, GateMemory); 8] = [
        ("MemTotal", GateMemory { total: failed(), ..plenty() }),
        ("MemFree", GateMemory { free: failed(), ..plenty() }),
        (
            "the page cache (Cached, Dirty, Mapped)",
            GateMemory { clean_cache: failed(), ..plenty() },
        ),
        ("SReclaimable", GateMemory { reclaimable_slab: failed(), ..plenty() }),
        (
            "the reserve (watermarks of /proc/zoneinfo)",
            GateMemory { reserve: failed(), ..plenty() },
        ),
        ("memory that no counter names", GateMemory { unaccounted: failed(), ..plenty() }),
        ("Shmem", GateMemory { shmem: failed(), ..plenty() }),
        (
            "what engines have left behind (/proc/PID)",
            GateMemory { orphans: Reading::Failed, ..plenty() },
        ),
    ];
    for (what, memory) in doubtful {
        let response = asked(1, &memory);
        assert_eq!(reasons(&response), [format!("{what} cannot be read")]);
        assert!(!response.is_open);
    }
    let fresh = GateMemory { motion: MemoryTrends::default(), ..plenty() };
    let response = asked(1, &fresh);
    assert_eq!(response.reasons, [GateReason::TooShort]);
    assert_eq!(response.wait, Some(SETTLES));
    let unwatched = GateMemory { orphans: Reading::Unsupported, ..plenty() };
    assert!(asked(1, &unwatched).is_open, "without a scan for engines, none is missing");
}

#[test]
fn the_memory_follows_from_the_series() {
    let series = [
        ("uma_memory_total_bytes", "", 120.0),
        ("uma_memory_free_bytes", "", 50.0),
        ("uma_memory_page_cache_bytes", "clean", 30.0),
        ("uma_memory_page_cache_bytes", "dirty", 3.0),
        ("uma_memory_page_cache_bytes", "mapped", 2.0),
        ("uma_memory_lru_bytes", "active_file", 5.0),
        ("uma_memory_lru_bytes", "inactive_file", 10.0),
        ("uma_memory_watermark_bytes", "low", 4.0),
        ("uma_memory_reserve_bytes", "", 1.0),
        ("uma_memory_contiguous_bytes", "2MiB", 40.0),
        ("uma_memory_unaccounted_bytes", "", -1.0),
        ("uma_memory_shmem_bytes", "", 0.0),
    ];
    let latest = |name: &str, labels: &[(&str, &str)]| {
        let label = labels.first().map_or("", |(_, value)| value);
        let found = series.iter().find(|(known, of, _)| *known == name && *of == label);
        found.map(|(_, _, gib)| gib * GIB as f64).into()
    };
    let memory = memory(latest);
    assert_eq!(memory.clean_cache, Reading::Value(15 * GIB), "of ramfs nothing goes");
    assert_eq!(memory.reserve, Reading::Value(4 * GIB));
    assert_eq!(memory.unaccounted, Reading::Value(0), "a little below 0 is 0");
    assert_eq!(memory.contiguous_32mib, Reading::Unsupported);
    assert_eq!(memory.baseline, allowance(Reading::Value(120 * GIB)));
    assert_eq!(memory.baseline.bytes, GIB + 120 * GIB / 64);
}

/// What the gate said after each sample, where that much is free and unaccounted.
fn play(samples: &[(u64, u64, u64)], need_gib: u64) -> Vec<GateResponse> {
    let mut watch = GateWatch::default();
    let gates = samples.iter().map(|(at_ms, free_mib, unaccounted_mib)| {
        let mut memory = GateMemory {
            unaccounted: Reading::Value(unaccounted_mib * MIB),
            motion: MemoryTrends::default(),
            ..node(free_mib * MIB)
        };
        watch.take(Duration::from_millis(*at_ms), &mut memory);
        asked(need_gib, &memory)
    });
    gates.collect()
}

#[test]
fn the_gate_opens_right_after_a_stepwise_release() {
    // 90 GiB that a driver gives back within 3 s, in pieces of 6 GiB, after 20 s.
    let samples: Vec<(u64, u64, u64)> = (0..300)
        .map(|sample| {
            let at_ms: u64 = sample * 100;
            let released = (at_ms.saturating_sub(20_000) / 200).min(15) * 6 * 1024;
            (at_ms, 20 * 1024 + released, 91 * 1024 - released)
        })
        .collect();
    let answers = play(&samples, 60);
    let first_open = answers.iter().position(|response| response.is_open).unwrap();
    assert_eq!(samples[first_open].0, 23_000, "with the last piece, at its baseline");
    assert!(answers[first_open..].iter().all(|response| response.is_open));
    // 60 GiB are there from 21.5 s on; then only the release keeps it closed.
    let releases = |reason: &GateReason| matches!(reason, GateReason::Releasing { .. });
    assert!(answers[225].reasons.iter().all(releases) && !answers[225].is_open);
    assert!(answers[199].wait.is_none(), "nothing moves yet");
    let estimated = answers[215].wait.unwrap().as_secs_f64();
    assert!((0.5..=4.0).contains(&estimated), "{estimated}");
}

#[test]
fn memory_that_is_never_returned_closes_the_gate_only_while_it_falls() {
    // Half of it is leaked: it falls to 40 GiB above what is usual, and stays there.
    let samples: Vec<(u64, u64, u64)> = (0..100)
        .map(|sample| {
            let released = (sample * 1024).min(40 * 1024);
            (sample * 100, 20 * 1024 + released, 81 * 1024 - released)
        })
        .collect();
    let answers = play(&samples, 30);
    let first_open = answers.iter().position(|response| response.is_open).unwrap();
    assert_eq!(samples[first_open].0, 4_500, "as soon as it has settled");
    assert!(matches!(answers[first_open].notes[..], [GateNote::Unaccounted { .. }]));
}

prop_compose! {
    fn reading()(kind in 0..12_u8, gib in 0..130_u64, more in 0..GIB) -> Reading<u64> {
        match kind {
            0 => Reading::Failed,
            1 => Reading::Unsupported,
            2 => Reading::Value(u64::MAX - more),
            _ => Reading::Value(gib * GIB + more),
        }
    }
}

prop_compose! {
    fn trend()(
        is_known in any::<bool>(),
        bytes_per_second in -1e11..1e11_f64,
        sank_bytes in prop_oneof![Just(0), any::<u64>()],
    ) -> Option<Trend> {
        is_known.then_some(Trend { bytes_per_second, sank_bytes })
    }
}

prop_compose! {
    fn any_memory()(
        amounts in prop::array::uniform12(reading()),
        trends in prop::array::uniform4(trend()),
        baseline in 0..4 * GIB,
        orphans in 0..4_u8,
    ) -> GateMemory {
        let [total, free, free_cma, clean_cache, dirty_cache, mapped_cache, ..] = amounts;
        let [.., reclaimable_slab, reserve, two, thirty_two, unaccounted, shmem] = amounts;
        let [memory, contiguous, held, shared] = trends;
        GateMemory {
            total, free, free_cma, clean_cache, dirty_cache, mapped_cache, reclaimable_slab,
            reserve, unaccounted, shmem,
            contiguous_2mib: two,
            contiguous_32mib: thirty_two,
            baseline: Baseline { bytes: baseline, is_learned: true },
            orphans: match orphans {
                0 => Reading::Failed,
                1 => Reading::Unsupported,
                2 => Reading::Value(Arc::new([orphan()])),
                _ => Reading::Value(Arc::new([])),
            },
            motion: MemoryTrends { available: memory, contiguous, unaccounted: held, shmem: shared },
        }
    }
}

proptest! {
    #[test]
    fn an_open_gate_has_no_unknown_reading(
        memory in any_memory(),
        gib in 0..130_u64,
        contiguous in prop::option::of(0..64 * GIB),
    ) {
        let request = GateRequest { contiguous_bytes: contiguous, ..GateRequest::of(gib * GIB) };
        let response = check(&request, &memory);
        prop_assert_eq!(response.is_open, response.reasons.is_empty());
        prop_assert!(!(response.is_open && response.is_hopeless));
        serde_json::to_string(&response).unwrap();
        if response.is_open {
            let value = |reading: Reading<u64>| u128::from(reading.value().unwrap());
            let of = |reading: Reading<u64>| u128::from(reading.value().unwrap_or(0));
            let there = value(memory.free) + value(memory.clean_cache) + of(memory.reclaimable_slab) / 2;
            let kept = of(memory.reserve) + request.need_bytes as u128;
            prop_assert!(there >= kept, "{:?}", response);
            prop_assert!(contiguous.is_none_or(|need| need == 0
                || value(memory.contiguous_2mib) >= u128::from(need)));
            prop_assert!(!matches!(memory.orphans, Reading::Failed));
            prop_assert!(memory.orphans.clone().value().is_none_or(|orphans| orphans.is_empty()));
            prop_assert_eq!(response.wait, Some(Duration::ZERO));
        }
    }

    #[test]
    fn free_memory_never_closes_the_gate(memory in any_memory(), gib in 0..130_u64, more in 0..GIB) {
        let is_open = asked(gib, &memory).is_open;
        let more_free = GateMemory { free: memory.free.map(|free| free.saturating_add(more)), ..memory };
        prop_assert!(!is_open || asked(gib, &more_free).is_open);
    }

    #[test]
    fn the_gate_opens_after_any_past_once_memory_is_steady(
        before in prop::collection::vec((1..2_000_u64, 0..120_000_u64, 0..100_000_u64), 0..40),
        left in 0..100_000_u64,
    ) {
        let mut at_ms = 0;
        let mut samples = Vec::new();
        for (later, free, unaccounted) in before {
            at_ms += later;
            samples.push((at_ms, free, unaccounted));
        }
        samples.extend((1..=30).map(|sample| (at_ms + sample * 100, 100 * 1024, left)));
        prop_assert!(play(&samples, 90).last().unwrap().is_open);
    }

    #[test]
    fn swinging_memory_does_not_keep_the_gate_closed(
        half_period in 1..20_u64,
        low_mib in 2_000..20_000_u64,
        swing_mib in 0..20_000_u64,
    ) {
        let samples: Vec<(u64, u64, u64)> = (0..200)
            .map(|sample| {
                let is_high = (sample / half_period) % 2 == 0;
                (sample * 100, 100 * 1024, low_mib + if is_high { swing_mib } else { 0 })
            })
            .collect();
        // From its second swing on it is known for what it is.
        let known = usize::try_from(3 * half_period + 6).unwrap();
        let answers = play(&samples, 50);
        prop_assert!(answers[known..].iter().all(|response| response.is_open));
    }
}

#[test]
fn the_gate_of_several_nodes_is_as_open_and_slow_as_the_worst() {
    let peer = |gate| PeerGateResponse { node: Arc::from("spark-2"), gate };
    let closed = |wait: Option<u64>, is_hopeless| PeerGate::Closed {
        reasons: vec!["too little".into(), "an orphan".into()],
        wait: wait.map(Duration::from_secs),
        is_hopeless,
    };
    let unknown = || PeerGate::Unknown { why: "it is silent".into() };
    let (open, own_closed) = (asked(90, &node(100 * GIB)), asked(90, &node(50 * GIB)));
    let of = |own: &GateResponse, peers: Vec<PeerGate>| {
        with_peers(own.clone(), peers.into_iter().map(peer).collect())
    };
    let all = of(&open, vec![PeerGate::Open, PeerGate::Open]);
    assert!(all.is_open && all.reasons.is_empty() && all.wait == Some(Duration::ZERO));
    let one = of(&open, vec![PeerGate::Open, closed(Some(7), false), closed(Some(9), false)]);
    assert!(!one.is_open && !one.is_hopeless);
    assert_eq!(one.wait, Some(Duration::from_secs(9)));
    assert_eq!(reasons(&one)[..2], ["spark-2: too little", "spark-2: an orphan"]);
    // For an unknown node no end is estimated.
    let doubt = of(&open, vec![closed(Some(7), false), unknown()]);
    assert_eq!((doubt.is_open, doubt.wait), (false, None));
    assert_eq!(reasons(&doubt)[2], "spark-2 is unknown: it is silent");
    assert!(of(&open, vec![closed(None, true)]).is_hopeless);
    let own = of(&own_closed, vec![PeerGate::Open]);
    assert_eq!((own.is_open, reasons(&own)), (false, reasons(&own_closed)));
}
