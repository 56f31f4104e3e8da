use super::*;
use crate::fit::{FitEngine, FitNode, Model, Overheads, fit};

const GIB: u64 = 1 << 30;

fn node(name: &str, total_gib: u64, available_gib: u64) -> FitNode {
    let available_bytes = available_gib * GIB;
    FitNode {
        name: name.into(),
        total_bytes: total_gib * GIB,
        available_bytes,
        seen_least_bytes: available_bytes,
        seen_most_bytes: available_bytes,
    }
}

fn advice_for(weights_gib: u64, nodes: &[FitNode]) -> String {
    let nothing = Some(0);
    let overheads = Overheads {
        processes_bytes: nothing,
        work_bytes: nothing,
        growth_bytes: nothing,
        headroom_bytes: nothing,
    };
    let read = ToFit {
        model: Model { weights_bytes: weights_gib * GIB, requests: 1, ..Model::default() },
        engine: FitEngine::default(),
        command: None,
        nodes: None,
        layers: None,
        notes: Vec::new(),
    };
    advice(&read, &fit(&read.model, &read.engine, &overheads, nodes).unwrap()).join("\n")
}

#[test]
fn the_smallest_node_is_named_if_only_the_common_share_is_too_small() {
    let by_share = advice_for(180, &[node("spark", 121, 94), node("small", 96, 94)]);
    assert!(by_share.contains("spark allows no more than 0.77"), "{by_share}");
    for nodes in [
        [node("spark", 121, 94), node("small", 96, 80)],
        [node("spark", 121, 117), node("two", 121, 60)],
    ] {
        let by_memory = advice_for(180, &nodes);
        assert!(by_memory.contains("What helps"), "{by_memory}");
        assert!(!by_memory.contains("allows no more"), "{by_memory}");
    }
}

#[test]
fn layers_are_described_by_what_they_keep() {
    let layers = LayerCounts { all: 88, kv: 8, windowed: 0, window_tokens: 0, state: 40 };
    assert_eq!(
        layers_sentence(layers),
        "8 of 88 layers keep KV cache; 40 keep a state of constant size for each request, which \
         is small and not counted."
    );
    let layers = LayerCounts { all: 62, kv: 62, windowed: 52, window_tokens: 1024, state: 0 };
    assert_eq!(
        layers_sentence(layers),
        "62 of 62 layers keep KV cache, 52 of them only that of the last 1024 tokens."
    );
}
