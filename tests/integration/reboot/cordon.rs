//! The node in Kubernetes before and after a reboot.

use std::sync::Arc;

use serde_json::json;
use umawarden::model::{KubernetesAccess, NodeDrain, RebootLock};

use super::fake_lock::FakeLock;
use super::*;
use crate::kubernetes::fake_api::{FakeApi, Fault, NODE};

const ENGINE: &str = "uid-of-the-engine";

struct Node {
    machine: Machine,
    api: FakeApi,
    rebooter: RebootExecutor,
}

impl Node {
    fn new() -> Self {
        let (machine, api) = (Machine::new(), FakeApi::start());
        let pods: fn() -> _ = || [Arc::from(ENGINE)].into();
        let rebooter =
            machine.rebooter().evicting(Arc::new(pods), umawarden::daemon::clock::uptime);
        let pod = |name: &str, uid: &str, phase: &str| {
            json!({
                "metadata": {"namespace": "models", "name": name, "uid": uid},
                "status": {"phase": phase},
            })
        };
        api.content().pods = vec![
            pod("llm-0", ENGINE, "Running"),
            pod("llm-old", ENGINE, "Succeeded"),
            pod("web-0", "uid-of-web", "Running"),
        ];
        Self { machine, api, rebooter }
    }

    fn lock(&self, url: &str, for_at_most: Duration) -> RebootLock {
        let api = KubernetesAccess {
            node: Some(NODE.to_owned()),
            kubeconfig: Some(self.api.kubeconfig(self.machine.folder.path())),
        };
        let drain = Some(NodeDrain { api, evict: true, for_at_most });
        let (group, id) = ("gpu".to_owned(), Some(NODE.to_owned()));
        RebootLock { url: url.to_owned(), group, id, drain, ca_file: None }
    }

    fn perform(&mut self, act: RebootAct) -> Outcome {
        let act = crate::actions::act(decision(act));
        let Performed { result, effect } = self.rebooter.execute(&act);
        (result, effect)
    }

    fn is_cordoned(&self) -> bool {
        self.api.content().node["spec"]["unschedulable"] == json!(true)
    }
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_node_is_cordoned_then_has_the_slot_then_evicts_its_engines_alone() {
    let (mut node, server) = (Node::new(), FakeLock::start(1));
    let lock = node.lock(&server.url(), LONG);
    let other = RebootLock { id: Some("other".to_owned()), drain: None, ..lock.clone() };
    assert_eq!(node.perform(RebootAct::TakeSlot(other.clone())).0, OutcomeResult::Done);
    let outcome = node.perform(RebootAct::TakeSlot(lock.clone()));
    assert!(failed(&outcome).contains("refuses"), "{outcome:?}");
    assert!(node.is_cordoned() && node.api.content().evicted.is_empty(), "it has no slot");
    assert_eq!(node.perform(RebootAct::ReleaseSlot(other)).0, OutcomeResult::Done);
    let outcome = node.perform(RebootAct::TakeSlot(lock.clone()));
    assert!(
        failed(&outcome).contains("models/llm-0"),
        "it was asked for a moment ago: {outcome:?}"
    );
    let (result, effect) = node.perform(RebootAct::TakeSlot(lock.clone()));
    assert_eq!(result, OutcomeResult::Done);
    let effect = effect.unwrap();
    for part in ["has agreed", "the node is cordoned", "no pod of an engine is left"] {
        assert!(effect.contains(part), "{effect}");
    }
    assert_eq!(node.api.content().evicted, ["llm-0"]);
    let (result, effect) = node.perform(RebootAct::ReleaseSlot(lock));
    assert_eq!(result, OutcomeResult::Done, "{effect:?}");
    assert!(!node.is_cordoned() && server.holders()["gpu"].is_empty());
}

#[test]
fn a_disruption_budget_holds_the_reboot_for_the_configured_time() {
    let mut node = Node::new();
    node.api.content().eviction_status = 429;
    let lock = node.lock("", LONG);
    for _ in 0..3 {
        let outcome = node.perform(RebootAct::TakeSlot(lock.clone()));
        let why = failed(&outcome);
        assert!(why.contains("models/llm-0 (") && why.contains("disruption budget"), "{why}");
    }
    let (result, effect) = node.perform(RebootAct::TakeSlot(node.lock("", Duration::ZERO)));
    assert_eq!(result, OutcomeResult::Done);
    assert!(effect.as_ref().unwrap().contains("gone on without"), "{effect:?}");
}

#[test]
fn an_api_server_that_is_away_holds_the_reboot_for_the_configured_time() {
    let mut node = Node::new();
    node.api.set_fault(Fault::Status(503));
    let outcome = node.perform(RebootAct::TakeSlot(node.lock("", LONG)));
    assert!(failed(&outcome).contains("(503)"), "{outcome:?}");
    let lock = node.lock("", Duration::ZERO);
    assert_eq!(node.perform(RebootAct::TakeSlot(lock.clone())).0, OutcomeResult::Done);
    // A cordon may be left: the release is tried until it is certain.
    let outcome = node.perform(RebootAct::ReleaseSlot(lock.clone()));
    assert!(failed(&outcome).contains("(503)"), "{outcome:?}");
    node.api.set_fault(Fault::None);
    assert_eq!(node.perform(RebootAct::ReleaseSlot(lock)).0, OutcomeResult::Done);
}

#[test]
fn a_cordon_of_somebody_else_outlasts_the_reboot() {
    let mut node = Node::new();
    node.api.content().pods.clear();
    node.api.content().node["spec"]["unschedulable"] = json!(true);
    let lock = node.lock("", LONG);
    let (result, effect) = node.perform(RebootAct::TakeSlot(lock.clone()));
    assert_eq!(result, OutcomeResult::Done);
    assert!(effect.as_ref().unwrap().contains("already, by somebody else"), "{effect:?}");
    assert_eq!(node.perform(RebootAct::ReleaseSlot(lock)).0, OutcomeResult::Done);
    assert!(node.is_cordoned());
}
