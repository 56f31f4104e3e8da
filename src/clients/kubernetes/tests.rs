use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;

use proptest::prelude::*;

use super::scripted::merge;
use super::*;
use crate::model::{DecisionId, Taint, TaintEffect};

fn taint(key: &str) -> Taint {
    Taint { key: key.to_owned(), value: None, effect: TaintEffect::NoSchedule }
}

fn held(decision: u64, taint: Option<Taint>) -> NodeHold {
    NodeHold { by: ChangeOwner::Decision(DecisionId(decision)), taint }
}

fn release_all() -> NodeChange {
    NodeChange::ReleaseAll
}

fn state(node: &Value) -> NodeState {
    serde_json::from_value(node.clone()).unwrap()
}

fn apply(node: &mut Value, change: &NodeChange) -> String {
    let PatchPlan { patch, effect } = state(node).plan(change).unwrap();
    patch.iter().for_each(|patch| merge(node, patch));
    effect
}

fn node() -> Value {
    let others = json!({"key": "gpu", "value": "a", "effect": "NoSchedule", "timeAdded": "t"});
    json!({
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "7"},
        "spec": {"podCIDR": "10.0.0.0/24", "taints": [others]},
    })
}

#[test]
fn a_change_and_its_record_are_one_patch_that_others_changes_refuse() {
    let own = held(3, Some(taint("umawarden.dev/leaked")));
    let plan = state(&node()).plan(&NodeChange::Hold(own.clone())).unwrap();
    let patch = plan.patch.unwrap();
    assert_eq!(patch.pointer("/metadata/resourceVersion"), Some(&json!("7")));
    let mut changed = node();
    merge(&mut changed, &patch);
    assert_eq!(state(&changed).held().unwrap(), [own]);
    assert_eq!(changed.pointer("/spec/taints/1/key"), Some(&json!("umawarden.dev/leaked")));
    assert_eq!(changed.pointer("/spec/taints/0/timeAdded"), Some(&json!("t")));
    assert_eq!(plan.effect, "the node is tainted with umawarden.dev/leaked:NoSchedule");
}

#[test]
fn what_others_have_set_stays() {
    let mut node = node();
    node["spec"]["unschedulable"] = true.into();
    let before = node.clone();
    for (change, part) in [
        (held(1, None), "cordoned already, by somebody else"),
        (held(1, Some(taint("gpu"))), "has the taint gpu=a:NoSchedule already"),
    ] {
        let effect = apply(&mut node, &NodeChange::Hold(change));
        assert!(effect.contains(part), "{effect}");
    }
    apply(&mut node, &release_all());
    assert_eq!(node, before);
    // Somebody has removed our taint, and set the same with a value of their own.
    let own = held(2, Some(taint("umawarden.dev/a")));
    apply(&mut node, &NodeChange::Hold(own));
    node["spec"]["taints"][1]["value"] = "mine".into();
    let effect = apply(&mut node, &NodeChange::Release(ChangeOwner::Decision(DecisionId(2))));
    assert_eq!(effect, "somebody else had undone it already");
    assert_eq!(node.pointer("/spec/taints/1/value"), Some(&json!("mine")));
    assert!(state(&node).held().unwrap().is_empty());
}

#[test]
fn a_cordon_of_two_holders_ends_with_the_last() {
    let mut node = node();
    let before = node.clone();
    apply(&mut node, &NodeChange::Hold(held(1, None)));
    apply(&mut node, &NodeChange::Hold(NodeHold { by: ChangeOwner::Reboot, taint: None }));
    apply(&mut node, &release_all());
    assert_eq!(node.pointer("/spec/unschedulable"), Some(&json!(true)));
    let effect = apply(&mut node, &NodeChange::Release(ChangeOwner::Reboot));
    assert_eq!(effect, "the node is schedulable again");
    let annotations = node["metadata"].as_object_mut().unwrap().remove("annotations");
    assert_eq!((node, annotations), (before, Some(json!({}))));
}

#[test]
fn what_this_run_has_set_outlasts_the_undo_of_an_earlier_one() {
    let mut node = node();
    apply(&mut node, &NodeChange::Hold(held(1, Some(taint("a")))));
    apply(&mut node, &NodeChange::Hold(held(2, Some(taint("b")))));
    let effect = apply(&mut node, &NodeChange::ReleaseDecisions([DecisionId(2)].into()));
    assert_eq!(effect, "the taint a:NoSchedule is removed");
    assert_eq!(state(&node).held().unwrap(), [held(2, Some(taint("b")))]);
}

/// A taint stays without a gap while pods of umawarden are replaced.
#[test]
fn what_a_run_leaves_stays_until_the_next_run_knows_better() {
    let mut node = node();
    let before = node["spec"].clone();
    apply(&mut node, &NodeChange::Hold(held(1, Some(taint("a")))));
    apply(&mut node, &NodeChange::Hold(held(2, None)));
    apply(&mut node, &NodeChange::Hold(NodeHold { by: ChangeOwner::Reboot, taint: None }));
    let during = node["spec"].clone();
    let effect = apply(&mut node, &NodeChange::Leave);
    assert_eq!(effect, "the node stays tainted with a:NoSchedule, the node stays cordoned");
    apply(&mut node, &NodeChange::ReleaseDecisions([].into()));
    assert_eq!(node["spec"], during, "the start of the next run undoes nothing");
    // It finds the node to be as bad, for the taint.
    apply(&mut node, &NodeChange::Hold(held(3, Some(taint("a")))));
    apply(&mut node, &NodeChange::ReleaseLeft);
    assert_eq!(node["spec"], during, "the reboot still wants the cordon");
    apply(&mut node, &NodeChange::Release(ChangeOwner::Reboot));
    apply(&mut node, &NodeChange::Release(ChangeOwner::Decision(DecisionId(3))));
    assert_eq!(node["spec"], before);
    assert_eq!(state(&node).plan(&NodeChange::Leave).unwrap().patch, None);
}

#[test]
fn a_damaged_record_is_left_alone() {
    let mut node = node();
    node["metadata"]["annotations"] = json!({"umawarden.dev/held": "[{\"by\": 7}]"});
    for change in [NodeChange::Hold(held(1, None)), release_all()] {
        let why = state(&node).plan(&change).unwrap_err();
        assert!(why.contains("cannot be read"), "{why}");
    }
}

/// A merge patch replaces the whole list of taints.
#[test]
fn a_node_without_a_version_is_left_alone() {
    let mut node = node();
    node["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    for change in [NodeChange::Hold(held(1, None)), release_all(), NodeChange::Leave] {
        let why = state(&node).plan(&change).unwrap_err();
        assert!(why.contains("no resourceVersion"), "{why}");
    }
}

proptest! {
    /// Whatever is set in whatever order: once all is released, the node is as it was.
    #[test]
    fn nothing_of_ours_is_left_and_nothing_of_others_is_lost(
        steps in prop::collection::vec((0u64..5, 0usize..4, any::<bool>()), 0..20),
        cordoned: bool,
        foreign in prop::collection::btree_set(0usize..3, 0..3),
    ) {
        let keys = ["a", "b", "gpu"];
        let mut node = node();
        let list = foreign.iter().map(|at| json!({"key": keys[*at], "effect": "NoSchedule"}));
        node["spec"]["taints"] = list.collect();
        if foreign.is_empty() {
            node["spec"].as_object_mut().unwrap().remove("taints");
        }
        if cordoned {
            node["spec"]["unschedulable"] = true.into();
        }
        let before = node["spec"].clone();
        for (decision, what, holds) in steps {
            if decision == 4 {
                apply(&mut node, &NodeChange::Leave);
                continue;
            }
            let by = match decision {
                0 => ChangeOwner::Reboot,
                decision => ChangeOwner::Decision(DecisionId(decision)),
            };
            let taint = keys.get(what).map(|key| taint(key));
            let change = if holds { NodeChange::Hold(NodeHold { by, taint }) } else { NodeChange::Release(by) };
            apply(&mut node, &change);
        }
        apply(&mut node, &release_all());
        apply(&mut node, &NodeChange::Release(ChangeOwner::Reboot));
        prop_assert_eq!(&node["spec"], &before);
        prop_assert!(state(&node).held().unwrap().is_empty());
    }

    /// The annotation is others' text.
    #[test]
    fn any_annotation_is_read_without_a_panic(text in ".{0,200}") {
        let node = json!({"metadata": {
            "resourceVersion": "7", "annotations": {"umawarden.dev/held": text},
        }});
        let _ = state(&node).plan(&release_all());
    }
}

fn kubeconfig(folder: &Path, port: u16) -> KubernetesAccess {
    let file = folder.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: \
         {{cluster: a, user: a}}}}]\nclusters: [{{name: a, cluster: {{server: \
         'http://127.0.0.1:{port}'}}}}]\nusers: [{{name: a, user: {{token: secret}}}}]\n"
    );
    std::fs::write(&file, text).unwrap();
    KubernetesAccess { node: Some("n".to_owned()), kubeconfig: Some(file) }
}

/// Serves one response to each of the requests, and returns the error of `state`.
fn error_of(response: &'static str) -> ApiError {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let access = kubeconfig(folder.path(), listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request);
        let _ = stream.write_all(response.as_bytes());
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { NodeApi::open(&access).await.unwrap().state().await.unwrap_err() })
}

#[test]
fn a_refusal_says_what_is_missing_and_when_to_ask_again() {
    let body = r#"{"kind":"Status","message":"nodes \"n\" is forbidden: User \"u\" cannot get"}"#;
    let response: &'static str = Box::leak(
        format!("HTTP/1.1 403 Forbidden\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into(),
    );
    let text = error_of(response).to_string();
    for part in ["read the node", "nodes \"n\" is forbidden", "(403)", "give this right"] {
        assert!(text.contains(part), "{text}");
    }
    let busy = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n";
    let error = error_of(busy);
    assert_eq!((error.code(), error.retry_after()), (Some(429), Some(Duration::from_secs(7))));
}

#[test]
fn what_is_no_api_server_is_said_with_its_address() {
    for response in ["", "SSH-2.0-x\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n["] {
        let error = error_of(response);
        assert!(matches!(error, ApiError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("127.0.0.1"), "{error}");
    }
    let nowhere = KubernetesAccess { kubeconfig: Some("/nowhere".into()), ..Default::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(NodeApi::open(&nowhere)).unwrap_err().to_string();
    assert!(error.contains("kubernetes.kubeconfig /nowhere"), "{error}");
}
