//! The daemon as an agent of a real API server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use umawarden::actions::{Executor as _, Performed, RebootExecutor};
use umawarden::model::{Action, KubernetesAccess, NodeDrain, OutcomeResult, RebootAct, RebootLock};
use umawarden::supervisors::logind::Bus;

use super::Cluster;
use crate::kubernetes::fake_api::NODE;
use crate::kubernetes::{ALWAYS, Agent, NEVER};

const KILLS: usize = 20;

fn cluster() -> Option<Cluster> {
    let cluster = Cluster::start()?;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
    cluster.apply("admin", &node.to_string()).unwrap();
    Some(cluster)
}

fn agent(cluster: &Cluster, user: &str, more: &str) -> Agent {
    let folder = tempfile::tempdir().unwrap();
    Agent::of(&cluster.kubeconfig(user), folder, more)
}

fn node(cluster: &Cluster) -> Value {
    let text = cluster.kubectl(&["get", "node", NODE, "-o", "json"]);
    serde_json::from_str(&text).unwrap()
}

fn condition(node: &Value, kind: &str) -> Option<Value> {
    let conditions = node["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind).cloned()
}

fn status_of(node: &Value, kind: &str) -> String {
    let found = condition(node, kind);
    found.map(|found| found["status"].as_str().unwrap().to_owned()).unwrap_or_default()
}

/// Keys of taints, but for the one that the API server gives a new node; and whether it is cordoned.
fn held(node: &Value) -> (Vec<String>, bool) {
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let keys = taints.iter().map(|taint| taint["key"].as_str().unwrap().to_owned());
    let keys = keys.filter(|key| !key.starts_with("node.kubernetes.io/")).collect();
    (keys, node["spec"]["unschedulable"] == json!(true))
}

fn patch_status(cluster: &Cluster, user: &str, conditions: &Value) {
    let path = format!("/api/v1/nodes/{NODE}/status");
    let kind = "application/strategic-merge-patch+json";
    let body = json!({"status": {"conditions": conditions}});
    let (status, answer) = cluster.request(user, "PATCH", &path, kind, &body);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn real_conditions_and_events_stand_beside_those_of_others_and_a_missing_right_is_named() {
    let Some(cluster) = cluster() else { return };
    let others = json!([{"type": "KernelDeadlock", "status": "False", "reason": "a"}]);
    patch_status(&cluster, "admin", &others);
    let agent = agent(&cluster, "detector", "  extended_resource: true\n");
    let daemon = agent.start(ALWAYS);
    daemon.wait_until("reported", |daemon| {
        let found = node(&cluster);
        status_of(&found, "Tight") == "True"
            && found["status"]["capacity"]["umawarden.dev/unified-memory"].is_string()
            && daemon.log().contains("cannot patch resource")
    });
    let found = node(&cluster);
    assert_eq!(status_of(&found, "KernelDeadlock"), "False");
    assert_eq!(held(&found), (vec![], false), "the role may not change the node");
    assert!(daemon.log().contains(r#"resource \"nodes\""#) || daemon.log().contains("\"nodes\""));
    let events = cluster.kubectl(&["get", "events", "-o", "json"]);
    let events: Value = serde_json::from_str(&events).unwrap();
    let reasons = events["items"].as_array().unwrap().iter().map(|event| &event["reason"]);
    assert!({ reasons }.any(|reason| reason == "Tight"), "{events}");
    let described = cluster.kubectl(&["describe", "node", NODE]);
    assert!(described.contains("it is tight"), "{described}");
    agent.set(NEVER);
    assert_eq!(daemon.post("/-/reload").0, 200);
    daemon.wait_until("cleared", |_| status_of(&node(&cluster), "Tight") == "False");
    daemon.terminate();
    let found = node(&cluster);
    assert_eq!(condition(&found, "Tight").unwrap()["reason"], "UmawardenStopped");
    assert_eq!(status_of(&found, "KernelDeadlock"), "False");
}

#[test]
fn real_taints_and_cordons_are_undone_after_kill_nine_at_any_moment() {
    let Some(cluster) = cluster() else { return };
    cluster.kubectl(&["taint", "node", NODE, "gpu=a:NoSchedule"]);
    let agent = agent(&cluster, "admin", "");
    let mut in_force = 0;
    for round in 0..KILLS {
        let daemon = agent.start(ALWAYS);
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..1_500)));
        daemon.kill();
        let left = held(&node(&cluster));
        in_force += usize::from(left != (vec!["gpu".to_owned()], false));
        let daemon = agent.start(NEVER);
        daemon.wait_until("undone", |_| {
            let found = node(&cluster);
            held(&found) == (vec!["gpu".to_owned()], false)
                && found["metadata"]["annotations"].get("umawarden.dev/held").is_none()
        });
        daemon.terminate();
        assert_eq!(held(&node(&cluster)).0, ["gpu"], "round {round}: it had left {left:?}");
    }
    println!("{KILLS} kills, {in_force} of them while something was set; all is undone");
    assert!(in_force > 0, "no kill came while something was set: the test shows nothing");
}

/// A pod that runs on the node, as a kubelet would report it. Returns its UID.
fn pod(cluster: &Cluster, name: &str) -> String {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeName": NODE, "containers": [{"name": "a", "image": "a"}],
                 "terminationGracePeriodSeconds": 0},
    });
    cluster.apply("admin", &pod.to_string()).unwrap();
    // No budget protects a pod that does not run.
    let path = format!("/api/v1/namespaces/default/pods/{name}/status");
    let running = json!({"status": {"phase": "Running"}});
    let kind = "application/merge-patch+json";
    assert_eq!(cluster.request("admin", "PATCH", &path, kind, &running).0, 200);
    cluster.kubectl(&["get", "pod", name, "-o", "jsonpath={.metadata.uid}"])
}

struct Rebooter {
    executor: RebootExecutor,
    lock: RebootLock,
}

impl Rebooter {
    fn new(cluster: &Cluster, folder: &Path, engine: String) -> Self {
        let engine: Arc<str> = engine.into();
        let executor = RebootExecutor::new(folder, Bus::Peer(folder.join("bus")));
        let executor = executor.evicting(
            Arc::new(move || [Arc::clone(&engine)].into()),
            umawarden::daemon::clock::uptime,
        );
        let api = KubernetesAccess {
            node: Some(NODE.to_owned()),
            kubeconfig: Some(cluster.kubeconfig("admin")),
        };
        let drain = NodeDrain { api, evict: true, for_at_most: Duration::from_secs(3_600) };
        Self { executor, lock: RebootLock { drain: Some(drain), ..RebootLock::default() } }
    }

    fn perform(&mut self, act: fn(RebootLock) -> RebootAct) -> (OutcomeResult, String) {
        let action = Action::Reboot(Box::new(act(self.lock.clone())));
        let act = crate::actions::act(crate::actions::decision(action));
        let Performed { result, effect } = self.executor.execute(&act);
        (result, effect.unwrap_or_default())
    }
}

fn why(outcome: (OutcomeResult, String)) -> String {
    match outcome.0 {
        OutcomeResult::Failed(why) => why,
        other => panic!("{other:?}: {}", outcome.1),
    }
}

#[test]
fn a_real_api_server_that_goes_away_in_each_step_of_a_reboot_forgets_no_cordon() {
    let Some(mut cluster) = cluster() else { return };
    let folder = tempfile::tempdir().unwrap();
    let engine = pod(&cluster, "llm-0");
    pod(&cluster, "web-0");
    let mut rebooter = Rebooter::new(&cluster, folder.path(), engine);
    // Away before the cordon.
    cluster.stop_api();
    let text = why(rebooter.perform(RebootAct::TakeSlot));
    assert!(text.contains("cannot be reached"), "{text}");
    cluster.start_api();
    let budget = json!({
        "apiVersion": "policy/v1beta1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "llm-0"}}},
    });
    cluster.apply("admin", &budget.to_string()).unwrap();
    let text = why(rebooter.perform(RebootAct::TakeSlot));
    assert!(text.contains("default/llm-0") && text.contains("disruption budget"), "{text}");
    assert!(held(&node(&cluster)).1, "it is cordoned, and waits");
    // Away while pods are evicted.
    cluster.stop_api();
    why(rebooter.perform(RebootAct::TakeSlot));
    cluster.start_api();
    assert!(held(&node(&cluster)).1);
    cluster.kubectl(&["delete", "pdb", "all"]);
    let mut tries = 0;
    while rebooter.perform(RebootAct::TakeSlot).0 != OutcomeResult::Done {
        tries += 1;
        assert!(tries < 20, "the pod is not evicted");
    }
    let left = cluster.kubectl(&["get", "pods", "-o", "jsonpath={.items[*].metadata.name}"]);
    assert_eq!(left, "web-0", "other pods stay");
    // Away after the reboot.
    cluster.stop_api();
    why(rebooter.perform(RebootAct::ReleaseSlot));
    cluster.start_api();
    let (result, effect) = rebooter.perform(RebootAct::ReleaseSlot);
    assert_eq!((result, &*effect), (OutcomeResult::Done, "the node is schedulable again"));
    assert!(!held(&node(&cluster)).1);
}
