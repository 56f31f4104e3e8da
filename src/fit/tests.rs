use proptest::prelude::*;
use serde_json::json;

use super::*;

const GIB: u64 = 1 << 30;

fn node(name: &str, total: u64, available: u64) -> FitNode {
    FitNode {
        name: name.into(),
        total_bytes: total,
        available_bytes: available,
        seen_least_bytes: available,
        seen_most_bytes: available,
    }
}

fn spark(name: &str, available_gib: u64) -> FitNode {
    node(name, 121 * GIB, available_gib * GIB)
}

fn model(weights_gib: u64, token: Option<(u64, u32)>, tokens: Option<u64>) -> Model {
    Model {
        weights_bytes: weights_gib * GIB,
        kv_cache: token.map(|(bytes, parts)| KvCache::of_token(bytes, parts)),
        context: tokens,
        requests: 1,
        ..Model::default()
    }
}

fn fit(model: &Model, overheads: &Overheads, nodes: &[FitNode]) -> Option<Fit> {
    super::fit(model, &FitEngine::default(), overheads, nodes)
}

fn exact(processes_gib: u64, work_gib: u64, headroom_gib: u64) -> Overheads {
    Overheads {
        processes_bytes: Some(processes_gib * GIB),
        work_bytes: Some(work_gib * GIB),
        growth_bytes: Some(0),
        headroom_bytes: Some(headroom_gib * GIB),
    }
}

#[test]
fn the_weakest_node_decides_for_all() {
    let nodes = [spark("one", 117), spark("two", 110)];
    let fit = fit(&model(130, Some((163_840, 8)), Some(131_072)), &exact(9, 4, 4), &nodes).unwrap();
    assert!(fit.fits);
    assert_eq!(&*fit.weakest, "two");
    assert_eq!(fit.nodes[1].budget_bytes, 97 * GIB);
    assert_eq!(fit.nodes[1].weights_bytes, 65 * GIB);
    let usable = 121 * GIB * 80 / 100;
    assert_eq!(fit.nodes[1].kv_available_bytes, usable - 69 * GIB, "in hundredths");
    assert_eq!(fit.nodes[1].kv_wanted_bytes, Some(10 * GIB), "20 GiB over two nodes");
    assert_eq!((fit.nodes[0].shares.of_all.most, fit.shares.of_all.most), (0.85, 0.80));
    assert_eq!(fit.shares.of_all.least, 0.66, "79 of 121 GiB");
    assert_eq!(fit.shares.of_free.most, 0.84, "93 of 110 GiB");
    assert_eq!(fit.most_tokens, Some((usable - 69 * GIB) * 2 / 163_840));
    assert!(!fit.is_unbalanced);
}

#[test]
fn the_shares_are_reported_by_engine() {
    let nodes = [spark("one", 117), spark("two", 110)];
    let fit = fit(&model(130, None, None), &exact(9, 4, 4), &nodes).unwrap();
    let report = json!(fit);
    for (engine, memory) in [("vllm", fit.shares.of_all), ("sglang", fit.shares.of_free)] {
        assert_eq!(report["shares"][engine], json!(memory), "{engine}");
    }
    assert_eq!(report["shares"].as_object().unwrap().len(), sharing_engines().count());
    assert_eq!(report["shares"]["vllm"]["most"], json!(0.80));
    assert_eq!(report["nodes"][0]["shares"]["vllm"], json!({ "safe": 0.85, "most": 0.85 }));
    assert_eq!(report["nodes"][1]["shares"]["sglang"], json!({ "safe": 0.84, "most": 0.84 }));
}

#[test]
fn missing_memory_is_reported_per_node() {
    let nodes = [spark("one", 117), spark("two", 60)];
    let fit = fit(&model(130, None, None), &exact(9, 4, 4), &nodes).unwrap();
    assert!(!fit.fits && fit.is_unbalanced);
    // 65 of weights, 4 of work, 9 of processes and 4 of headroom, of 60.
    assert_eq!((fit.nodes[0].lacks_bytes, fit.nodes[1].lacks_bytes), (0, 22 * GIB));
    assert_eq!((fit.result, &*fit.causes), (FitResult::DoesNotFit, &[Cause::Memory][..]));
    assert_eq!((&*fit.weakest, fit.most_tokens), ("two", None));
}

#[test]
fn an_indivisible_cache_is_on_each_node() {
    let nodes = [spark("one", 117), spark("two", 117)];
    let of = |parts| {
        let model = model(100, Some((1 << 20, parts)), Some(1024));
        fit(&model, &exact(9, 4, 4), &nodes).unwrap().nodes[0].kv_wanted_bytes
    };
    assert_eq!((of(1), of(2), of(8)), (Some(GIB), Some(GIB / 2), Some(GIB / 2)));
}

#[test]
fn vllm_gets_at_most_the_available_memory() {
    let reserved = FitNode { seen_least_bytes: 90 * GIB, ..spark("one", 117) };
    let fit = fit(&model(80, None, None), &exact(9, 4, 4), &[reserved]).unwrap();
    assert_eq!(fit.shares.of_all.most, 0.66, "81 of 121 GiB");
    // It may see more.
    assert_eq!((fit.result, fit.nodes[0].lacks_bytes), (FitResult::Tight, 0));
    assert!(fit.nodes[0].may_lack_bytes > 3 * GIB && fit.nodes[0].may_lack_bytes < 5 * GIB);
}

#[test]
fn overheads_scale_with_the_size_of_the_node() {
    let small = node("orin", 8 * GIB, 7 * GIB);
    let fit = fit(&model(3, None, None), &Overheads::default(), &[small]).unwrap();
    assert!(fit.fits);
    assert_eq!(fit.result, FitResult::Fits);
    assert!(fit.nodes[0].kv_available_bytes > GIB, "{fit:?}");
    assert_eq!(
        super::fit(&model(3, None, None), &FitEngine::default(), &Overheads::default(), &[]),
        None
    );
}

#[test]
fn nodes_of_different_sizes_get_the_share_of_the_smallest() {
    // Each would hold the 90 GiB at its own share: 94 of 121 GiB, and 94 of 96.
    let nodes = [node("spark", 121 * GIB, 94 * GIB), node("small", 96 * GIB, 94 * GIB)];
    let fit_of = |weights_gib| {
        let model = model(weights_gib, Some((1 << 20, 1)), None);
        fit(&model, &exact(0, 0, 0), &nodes).unwrap()
    };
    let fit = fit_of(180);
    assert_eq!((fit.nodes[0].shares.of_all.most, fit.nodes[1].shares.of_all.most), (0.77, 0.97));
    assert_eq!((fit.shares.of_all.most, fit.shares.of_all.least), (0.77, 0.94));
    assert!(!fit.fits && fit.fits_at_own_utilizations, "0.77 of 96 GiB are 73.9: {fit:?}");
    assert_eq!(&*fit.weakest, "small");
    let usable = 96 * GIB * 77 / 100;
    assert_eq!((fit.nodes[0].lacks_bytes, fit.nodes[1].lacks_bytes), (0, 90 * GIB - usable));
    let fit = fit_of(140);
    assert!(fit.fits);
    assert_eq!(fit.most_tokens, Some((usable - 70 * GIB) >> 20));
}

#[test]
fn the_ends_of_the_ranges_divide_the_results() {
    let result = |weights_gib, given: Overheads| {
        let nodes = [spark("one", 114)];
        fit(&model(weights_gib, None, None), &given, &nodes).unwrap().result
    };
    let usual = Overheads::default();
    assert_eq!(result(60, usual), FitResult::Fits);
    assert_eq!(result(74, usual), FitResult::Tight);
    assert_eq!(result(109, usual), FitResult::Tight);
    assert_eq!(result(112, usual), FitResult::DoesNotFit);
    // What is measured makes it exact.
    let measured = Overheads { work_bytes: Some(6 * GIB), growth_bytes: Some(2 * GIB), ..usual };
    assert_eq!(result(85, measured), FitResult::Fits);
    assert_eq!(result(109, measured), FitResult::DoesNotFit);
}

#[test]
fn a_window_bounds_the_cache_of_a_request() {
    let kv_cache =
        KvCache { token_bytes: 1 << 10, window_token_bytes: 1 << 20, window_tokens: 8, parts: 1 };
    assert_eq!(kv_cache.bytes(4, 1), (4 << 10) + (4 << 20));
    assert_eq!(kv_cache.bytes(1024, 2), 2 * ((1 << 20) + (8 << 20)));
    assert_eq!(kv_cache.tokens(10 << 20, 1024, 1), Some(2 << 10));
    assert_eq!(kv_cache.tokens(1 << 20, 1024, 1), Some(0));
    assert_eq!(KvCache { token_bytes: 0, ..kv_cache }.tokens(1, 1, 1), None);
}

proptest! {
    #[test]
    fn shares_never_exceed_available_memory(
        weights in any::<u64>(), token in any::<u64>(), window in any::<u64>(),
        parts in any::<u32>(), tokens in any::<u64>(),
        given in proptest::array::uniform4(proptest::option::of(any::<u64>())),
        nodes in proptest::collection::vec(
            (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()), 1..4,
        ),
    ) {
        let kv_cache = Some(KvCache {
            token_bytes: token, window_token_bytes: window, window_tokens: 128, parts,
        });
        let model = Model {
            weights_bytes: weights, kv_cache, context: Some(tokens), requests: 2,
            ..Model::default()
        };
        let [processes_bytes, work_bytes, growth_bytes, headroom_bytes] = given;
        let overheads = Overheads { processes_bytes, work_bytes, growth_bytes, headroom_bytes };
        let nodes: Vec<FitNode> = nodes
            .into_iter()
            .map(|(total_bytes, available_bytes, seen_least_bytes, seen_most_bytes)| FitNode {
                name: "n".into(), total_bytes, available_bytes, seen_least_bytes, seen_most_bytes,
            })
            .collect();
        let fit = fit(&model, &overheads, &nodes).unwrap();
        prop_assert!((0.0..=1.0).contains(&fit.shares.of_all.most));
        prop_assert!((0.0..=1.0).contains(&fit.shares.of_free.most));
        for (node, share) in nodes.iter().zip(&fit.nodes) {
            prop_assert!(share.budget_bytes <= node.available_bytes);
            prop_assert!(fit.shares.of_all.most * node.total_bytes as f64
                <= share.budget_bytes as f64 * (1.0 + 1e-9));
            let is_enough = share.budget_bytes >= share.weights_bytes;
            let is_clear = fit.result == FitResult::Fits;
            prop_assert!(!is_clear || is_enough);
            prop_assert!(!is_clear || fit.shares.of_all.least <= fit.shares.of_all.safe, "{fit:?}");
            prop_assert!(fit.shares.of_all.safe <= fit.shares.of_all.most);
            prop_assert!(fit.shares.of_all.least_possible <= fit.shares.of_all.least);
            prop_assert_eq!(fit.causes.is_empty(), is_clear);
            prop_assert!(fit.fits || fit.result == FitResult::DoesNotFit);
        }
    }
}
