//! An engine in another network namespace, as in a container.

use std::fs;
use std::os::unix::fs::symlink;

use umawarden::model::{EngineKind, EngineTarget, OutcomeResult};

use super::process::Sglang;
use super::{Bench, decision, engine};

#[test]
fn an_engine_in_another_network_namespace_is_called_there_by_one_thread() {
    let Some(sglang) = Sglang::start_elsewhere() else {
        return eprintln!("skipped: needs unshare --net and ip");
    };
    let bench = Bench::new();
    symlink(sglang.proc(), bench.path("proc").join(sglang.pid().to_string())).unwrap();
    let name = fs::read_link(sglang.proc().join("ns/net")).unwrap();
    let target = EngineTarget {
        processes: vec![sglang.id()],
        health_network: Some(name.to_str().unwrap().into()),
        ..engine(EngineKind::Sglang, sglang.port)
    };
    let effect = bench.effect(&decision(target.clone(), &[]));
    assert!(effect.ends_with("/continue_generation answered 200, with 1 request"), "{effect}");
    assert_eq!(sglang.posted("/continue_generation"), 1);
    // The thread that entered it has ended; all others stayed in this namespace.
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        if let Ok(network) = fs::read_link(task.path().join("ns/net")) {
            assert_eq!(network, own, "{task:?}");
        }
    }
    // The pid may belong to a process in another namespace by now.
    let other = EngineTarget { health_network: Some("net:[1]".into()), ..target.clone() };
    let why = bench.refusal(&decision(other, &[]));
    assert!(why.starts_with("its network cannot be entered: ") && why.contains("by now"), "{why}");
    // From this namespace it cannot be reached.
    let outside = EngineTarget { health_network: None, ..target };
    let (result, _) = bench.act(&decision(outside, &[]));
    assert!(matches!(result, OutcomeResult::Failed(_)), "{result:?}");
    assert_eq!(sglang.posted("/continue_generation"), 1);
}
