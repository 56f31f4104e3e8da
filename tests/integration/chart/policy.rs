//! The expressions of the admission policy, evaluated by an implementation of CEL that is not the
//! API server's. `tests/tools/cel` brings it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{objects, only, path};

/// Set by `tests/run`: where `tests/tools/cel` has installed it.
const MODULES: &str = "UMAWARDEN_CEL_MODULES";

const ACCOUNT: &str = "system:serviceaccount:umawarden:umawarden";

/// The extra of a pod's token that has its node.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// A request of the pod on the node `own`, as a policy has it. `resource` may name a subresource.
fn request(operation: &str, resource: &str, before: Value, after: Value) -> Value {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    json!({
        "request": {
            "operation": operation,
            "resource": {"group": "", "version": "v1", "resource": resource},
            "subResource": subresource,
            "userInfo": {"username": ACCOUNT, "extra": {NODE_NAME: ["own"]}},
        },
        "oldObject": before,
        "object": after,
    })
}

/// The same by a user with other information.
fn by(mut request: Value, user: Value) -> Value {
    request["request"]["userInfo"] = user;
    request
}

fn node(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"gpu": "gb10"}, "annotations": {"cni": "10.0.0.1"}},
        "spec": {},
        "status": {},
    })
}

/// With one value set, or removed where it is `null`.
fn with(mut object: Value, place: &str, value: Value) -> Value {
    let (above, key) = place.rsplit_once('/').unwrap();
    let above = object.pointer_mut(above).unwrap().as_object_mut().unwrap();
    match value {
        Value::Null => drop(above.remove(key)),
        value => drop(above.insert(key.to_owned(), value)),
    }
    object
}

fn event(host: &str) -> Value {
    json!({"metadata": {"name": "e"}, "source": {"component": "umawarden", "host": host}})
}

fn update(resource: &str, before: Value, after: Value) -> Value {
    request("UPDATE", resource, before, after)
}

fn tainted(name: &str) -> Value {
    let tainted = with(node(name), "/spec/taints", json!([{"key": "a", "effect": "NoSchedule"}]));
    with(tainted, "/metadata/annotations", json!({"cni": "10.0.0.1", "umawarden.dev/held": "[]"}))
}

/// What umawarden itself sends, and what the policy leaves to roles.
fn permitted() -> Vec<(Value, &'static str)> {
    let bare = || json!({"metadata": {"name": "own"}});
    let held = with(bare(), "/metadata/annotations", json!({"umawarden.dev/held": "[]"}));
    let status = with(node("own"), "/status/conditions", json!([]));
    let eviction = json!({"metadata": {"name": "llm-0"}});
    let other_user = json!({"username": "system:serviceaccount:umawarden:other"});
    vec![
        (update("nodes", node("own"), tainted("own")), "allowed"),
        (update("nodes", tainted("own"), node("own")), "allowed"),
        (update("nodes", bare(), held.clone()), "allowed"),
        (update("nodes", held, bare()), "allowed"),
        (update("nodes/status", node("own"), status), "allowed"),
        (request("CREATE", "events", Value::Null, event("own")), "allowed"),
        (update("events", event("own"), event("own")), "allowed"),
        (by(update("nodes", node("b"), tainted("b")), other_user), "not matched"),
        (request("CREATE", "pods/eviction", Value::Null, eviction), "not matched"),
    ]
}

/// Requests with a part of the message that refuses them.
fn refused() -> Vec<(Value, &'static str)> {
    let own = || update("nodes", node("own"), tainted("own"));
    let named = |extra: Value| json!({"username": ACCOUNT, "extra": extra});
    let labelled = || with(node("own"), "/metadata/labels/gpu", json!("none"));
    let noted = |value| with(node("own"), "/metadata/annotations/cni", value);
    let no_host = || json!({"metadata": {"name": "e"}, "source": {"component": "umawarden"}});
    let no_source = || json!({"metadata": {"name": "e"}});
    let (token, deleted) = ("names no node", "may create no node, and delete");
    let (labels, notes) = ("the labels of a node", "no annotation of a node but");
    let other = "umawarden on own may not change what is of ";
    vec![
        (by(own(), named(json!({}))), token),
        (by(own(), named(json!({NODE_NAME: []}))), token),
        (by(own(), named(json!({NODE_NAME: [""]}))), token),
        (by(own(), json!({"username": ACCOUNT})), "error: "),
        (update("nodes", node("b"), tainted("b")), other),
        (update("nodes/status", node("b"), node("b")), other),
        (update("nodes", node("own"), labelled()), labels),
        (update("nodes/status", node("own"), labelled()), labels),
        (update("nodes", node("own"), with(node("own"), "/metadata/labels", Value::Null)), labels),
        (update("nodes", node("own"), noted(json!("10.9.9.9"))), notes),
        (update("nodes", noted(Value::Null), node("own")), notes),
        (update("nodes", node("own"), noted(Value::Null)), notes),
        (request("CREATE", "nodes", Value::Null, node("own")), deleted),
        (request("DELETE", "nodes", node("own"), Value::Null), deleted),
        (request("DELETE", "nodes", Value::Null, Value::Null), deleted),
        (request("DELETE", "events", event("own"), Value::Null), deleted),
        (request("CREATE", "events", Value::Null, event("b")), other),
        (request("CREATE", "events", Value::Null, no_host()), other),
        (request("CREATE", "events", Value::Null, no_source()), other),
        (update("events", event("b"), event("own")), other),
        (update("events", event("own"), event("b")), other),
        (update("events", no_source(), event("own")), other),
    ]
}

/// Of each request the word of the policy. `None`, with a note: there is no evaluator.
fn judged(spec: &Value, requests: &[Value]) -> Option<Vec<String>> {
    let Some(modules) = std::env::var_os(MODULES).filter(|folder| !folder.is_empty()) else {
        eprintln!("skipped: {MODULES} names no folder; tests/tools/cel brings it");
        return None;
    };
    let mut command = Command::new("node");
    command.arg(path("tests/integration/chart/policy.mjs")).arg(modules);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let input = json!({"spec": spec, "requests": requests});
    child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn the_admission_policy_permits_what_umawarden_does_and_nothing_of_other_nodes() {
    let values = json!({"admissionPolicy": {"enabled": true}, "enforce": ["cordon"]});
    let Some(objects) = objects(&values, "1.31.0") else { return };
    let spec = &only(&objects, "ValidatingAdmissionPolicy", "umawarden").unwrap()["spec"];
    let cases: Vec<(Value, &str)> = permitted().into_iter().chain(refused()).collect();
    let requests: Vec<Value> = cases.iter().map(|(request, _)| request.clone()).collect();
    let Some(judged) = judged(spec, &requests) else { return };
    assert_eq!(judged.len(), cases.len());
    for ((request, expected), found) in cases.iter().zip(&judged) {
        assert!(found.contains(expected), "{found}, not {expected}: {request:#}");
    }
}
