//! `/api/v1/gate` with a fake snapshot.

use std::sync::Arc;

use serde_json::json;
use umawarden::model::{Baseline, GateMemory, MemoryPools, MemoryTrends, Reading, Trend};
use umawarden::policy::status::Status;

use super::server::{made_up_status, moment, start};

/// The memory of a node of 120 GiB with `free_gib` free, without changes.
fn gate_memory(free_gib: u64) -> MemoryPools {
    let gib = |gib: u64| Reading::Value(gib << 30);
    let still = Some(Trend::default());
    MemoryPools::single(GateMemory {
        total: gib(120),
        free: gib(free_gib),
        free_cma: Reading::Unsupported,
        clean_cache: gib(0),
        dirty_cache: gib(0),
        mapped_cache: gib(0),
        reclaimable_slab: gib(0),
        reserve: gib(2),
        contiguous_2mib: gib(10),
        contiguous_32mib: Reading::Unsupported,
        unaccounted: gib(1),
        baseline: Baseline { bytes: 1 << 30, is_learned: true },
        shmem: gib(0),
        orphans: Reading::Value(Arc::new([])),
        motion: MemoryTrends {
            available: still,
            contiguous: still,
            unaccounted: still,
            shmem: still,
        },
    })
}

#[test]
fn the_gate_responds_with_status_and_reasons() {
    let server = start();
    let unknown = server.get("/api/v1/gate?need=90GiB");
    assert_eq!(unknown.status, 503);
    assert_eq!(unknown.json()["errorType"], "unavailable", "memory is not measured yet");
    server
        .status
        .store(Arc::new(Status { gate_memory: Some(gate_memory(100)), ..made_up_status() }));
    let open = server.get("/api/v1/gate?need=90GiB");
    assert_eq!(open.status, 200);
    let open = open.json();
    assert_eq!((&open["status"], &open["data"]["open"]), (&json!("success"), &json!(true)));
    assert_eq!(open["data"]["available_bytes"], json!(98_u64 << 30));
    assert_eq!(open["data"]["memory"]["orphans"], json!([]));
    let closed = server.get("/api/v1/gate?need=99GiB&contiguous=12GiB");
    assert_eq!(closed.status, 503);
    let closed = closed.json();
    let kinds: Vec<_> = closed["data"]["reasons"]
        .as_array()
        .unwrap()
        .iter()
        .map(|reason| {
            assert!(closed["error"].as_str().unwrap().contains(reason["text"].as_str().unwrap()));
            reason["kind"].as_str().unwrap()
        })
        .collect();
    assert_eq!(kinds, ["too_little", "fragmented"]);
    for invalid in ["", "?need=much", "?need=1GiB&peers=all", "?contiguous=1GiB"] {
        let refused = server.get(&format!("/api/v1/gate{invalid}"));
        assert_eq!(refused.status, 400, "{invalid}");
        let refused = refused.json();
        assert!(refused["error"].as_str().unwrap().contains("write it like"), "{refused}");
    }
    // A stale snapshot does not open the gate.
    let stale = Status { at: moment(60), gate_memory: Some(gate_memory(100)), ..made_up_status() };
    server.status.store(Arc::new(stale));
    assert_eq!(server.get("/api/v1/gate?need=1GiB").status, 503);
    server.end();
}
