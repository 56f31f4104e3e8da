//! The pods of engines are evicted once the slot is granted, and engines are counted after that.

use super::drain::{engine, waits_for};
use super::*;
use crate::model::{KubernetesAccess, NodeDrain, Pod};
use crate::policy::guard::{Glob, Protected};

fn lock() -> RebootLock {
    let api = KubernetesAccess::default();
    let drain = Some(NodeDrain { api, evict: true, for_at_most: MINUTE * 10 });
    RebootLock { drain, ..RebootLock::default() }
}

fn in_pod(name: &str, pid: u32) -> EngineSeen {
    let [namespace, uid] = ["ml", "uid"].map(Arc::from);
    let pod = Pod { namespace, name: name.into(), uid, ..Pod::default() };
    let pod = Some(Arc::new(pod));
    EngineSeen { pod, ..engine(name, pid) }
}

/// A node of Kubernetes with the default `engines: hold`.
fn of_kubernetes(engines: Vec<EngineSeen>, rails: impl FnOnce(&mut GuardRails)) -> RebootWorld {
    let mut all = default_guard_rails();
    all.reboot.lock = Some(lock());
    rails(&mut all);
    let mut node = RebootWorld::under(all, Mode::Enforce, of_this_boot(Vec::new()));
    node.engines = engines;
    node.wait(5);
    node
}

#[test]
fn engines_of_pods_are_evicted_with_the_slot_and_do_not_hold_the_reboot() {
    let mut node = of_kubernetes(vec![in_pod("a", 100), in_pod("b", 101)], |_| {});
    node.reboot(&[]).unwrap();
    node.result = Some(OutcomeResult::Failed("evicted pods of engines have not ended".to_owned()));
    node.wait(130);
    assert_eq!(node.acts()[..2], ["reboot", "take_reboot_slot"]);
    let text = waits_for(&mut node);
    assert!(text.starts_with("the Kubernetes node is not drained: evicted pods"), "{text}");
    // They end, and the next request finds none; the last sample is older than that.
    node.acts.clear();
    node.result = Some(OutcomeResult::Done);
    node.waits_until("asked", |node| node.acts.len() == 1);
    node.samples = false;
    node.engines.clear();
    node.wait(2);
    assert_eq!((node.acts(), waits_for(&mut node)), (vec!["take_reboot_slot"], String::new()));
    node.samples = true;
    node.wait(3);
    assert_eq!((node.acts(), node.stops.len()), (vec!["perform_reboot"], 0));
}

#[test]
fn engines_outside_of_pods_hold_the_reboot_before_any_eviction() {
    let mut node = of_kubernetes(vec![in_pod("a", 100), engine("b", 101)], |_| {});
    let refused = node.reboot(&[]).unwrap_err();
    assert!(refused.starts_with("engines run: b (") && !refused.contains("a ("), "{refused}");
    node.engines.pop();
    node.wait(5);
    node.reboot(&[]).unwrap();
    node.engines.push(engine("b", 101));
    node.wait(600);
    assert_eq!(node.acts(), ["reboot"]);
    assert!(waits_for(&mut node).starts_with("engines run: b ("));

    let mut node = of_kubernetes(vec![in_pod("a", 100)], |rails| {
        let processes = vec![Glob::try_from("a".to_owned()).unwrap()];
        rails.protect = Protected { processes, ..Protected::default() };
    });
    node.reboot(&[]).unwrap();
    node.wait(600);
    assert_eq!(node.acts(), ["reboot"]);
    assert_eq!(waits_for(&mut node), "engine a runs, and is protected");
}

/// The pod is one of a DaemonSet, or a budget keeps it.
#[test]
fn an_engine_that_runs_after_the_eviction_holds_the_reboot_and_frees_the_node() {
    let mut node = of_kubernetes(vec![in_pod("a", 100)], |_| {});
    node.reboot(&[]).unwrap();
    node.wait(130);
    assert_eq!(node.acts(), ["reboot", "take_reboot_slot"]);
    let text = waits_for(&mut node);
    assert!(text.starts_with("engines run: a (") && text.ends_with("eviction of pods"), "{text}");
    node.wait(300);
    assert_eq!(node.acts(), ["release_reboot_slot"], "not evicted again at once");
    node.wait(600);
    assert_eq!(node.acts(), ["take_reboot_slot", "release_reboot_slot"]);
    node.wait(900);
    assert!(node.acts().is_empty(), "the pause doubles");
    // Somebody ends it.
    node.engines.clear();
    node.wait(10);
    assert_eq!(node.acts(), ["take_reboot_slot", "perform_reboot"]);
}

#[test]
fn a_stuck_driver_waits_for_no_engine_after_the_eviction() {
    let mut node = seen_by(|settings| settings.lock = Some(lock()));
    node.engines = vec![in_pod("a", 100), engine("b", 101)];
    node.wedge();
    node.wait(130);
    assert_eq!(node.acts(), ["reboot", "take_reboot_slot", "perform_reboot"]);
}
