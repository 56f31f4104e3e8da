//! The Helm chart against a real API server: it accepts every object, and its roles permit what the
//! features do and nothing else.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::server::Cluster;
use crate::chart::rights::{FEATURES, Feature, sets_of_features, without_features};
use crate::chart::switches::{VERSIONS, positions};
use crate::chart::{Objects, helm_in, objects, path};

/// The service account of the chart.
const ACCOUNT: &str = "system:serviceaccount:umawarden:umawarden";

/// The objects of the Prometheus operator, without its schema.
const DEFINITIONS: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: PodMonitor, plural: podmonitors}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object,
    x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: prometheusrules.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: PrometheusRule, plural: prometheusrules}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object,
    x-kubernetes-preserve-unknown-fields: true}}}]
"#;

const NAMESPACE: &str =
    r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "umawarden"}}"#;
const NODE: &str = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "spark-1"}}"#;

/// A list of objects, as kubectl reads it.
fn list(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

#[test]
fn the_api_server_accepts_every_object_of_the_chart() {
    let Some(cluster) = cluster() else { return };
    let mut all: BTreeSet<String> = BTreeSet::new();
    for values in positions() {
        all.extend(objects(&values, VERSIONS[0]).unwrap().iter().map(Value::to_string));
    }
    let all: Objects = all.iter().map(|object| serde_json::from_str(object).unwrap()).collect();
    assert!(all.len() > 50, "{}", all.len());
    // The client's check of fields is by the server's own description of them.
    for dry_run in ["--dry-run=client", "--dry-run=server"] {
        let arguments = ["apply", dry_run, "--validate=true", "-f", "-"];
        cluster.kubectl_as("admin", &arguments, &list(&all)).unwrap();
    }
    // It does refuse what is wrong.
    let mut wrong = all.iter().find(|object| object["kind"] == "DaemonSet").unwrap().clone();
    wrong["spec"]["template"]["spec"]["hostPid"] = true.into();
    let arguments = ["apply", "--dry-run=server", "--validate=true", "-f", "-"];
    let refused = cluster.kubectl_as("admin", &arguments, &wrong.to_string()).unwrap_err();
    assert!(refused.contains("hostPid"), "{refused}");
}

/// A cluster that can take every object of the chart. `None`: Helm or the programs are not here.
fn cluster() -> Option<Cluster> {
    objects(&json!({}), VERSIONS[0])?;
    let cluster = Cluster::start()?;
    cluster.apply("admin", NAMESPACE).unwrap();
    cluster.apply("admin", DEFINITIONS).unwrap();
    let names = "customresourcedefinitions";
    cluster.kubectl(&["wait", "--for=condition=Established", names, "--all", "--timeout=60s"]);
    Some(cluster)
}

/// What a release of the chart has made: kinds and names.
fn made(cluster: &Cluster) -> BTreeSet<String> {
    let kinds = "daemonsets,configmaps,serviceaccounts,podmonitors,prometheusrules,clusterroles,\
                 clusterrolebindings,priorityclasses";
    let label = "app.kubernetes.io/instance=umawarden";
    let arguments = ["get", kinds, "--namespace=umawarden", "-o", "name", "-l", label];
    cluster.kubectl(&arguments).lines().map(str::to_owned).collect()
}

#[test]
fn helm_installs_upgrades_and_removes_a_release() {
    let Some(cluster) = cluster() else { return };
    let kubeconfig = cluster.kubeconfig("admin");
    let helm = |arguments: &[&str]| {
        let done = helm_in(&kubeconfig, &[arguments, &["--namespace=umawarden"]].concat());
        done.unwrap().unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    };
    let chart = path("packaging/kubernetes/chart/umawarden").display().to_string();
    let everything = "podMonitor.enabled=true,prometheusRules.enabled=true,dashboards.enabled=true,\
                      priorityClass.create=true,priorityClass.name=umawarden,enforce={evict}";
    let notes = helm(&["install", "umawarden", &chart, "--set", everything]);
    assert!(notes.contains("It carries out: evict."), "{notes}");
    let all = made(&cluster);
    for object in [
        "daemonset.apps/umawarden",
        "podmonitor.monitoring.coreos.com/umawarden",
        "prometheusrule.monitoring.coreos.com/umawarden-agents",
        "configmap/umawarden-dashboard-fleet",
        "priorityclass.scheduling.k8s.io/umawarden",
        "clusterrole.rbac.authorization.k8s.io/umawarden",
    ] {
        assert!(all.contains(object), "{object}: {all:?}");
    }
    let notes = helm(&["upgrade", "umawarden", &chart, "--reset-values"]);
    assert!(notes.contains("It observes, and carries out nothing."), "{notes}");
    let fewer = made(&cluster);
    assert!(fewer.is_subset(&all) && fewer.contains("daemonset.apps/umawarden"), "{fewer:?}");
    assert!(!fewer.iter().any(|object| object.contains("dashboard")), "{fewer:?}");
    helm(&["uninstall", "umawarden", "--wait"]);
    assert_eq!(made(&cluster), BTreeSet::new());
}

#[test]
fn the_api_server_accepts_the_base() {
    let Some(cluster) = cluster() else { return };
    let base = path("packaging/kubernetes/base").display().to_string();
    let built = cluster.kubectl(&["kustomize", &base]);
    let arguments = ["apply", "--dry-run=server", "--validate=true", "-f", "-"];
    let applied = cluster.kubectl_as("admin", &arguments, &built).unwrap();
    assert!(applied.contains("daemonset.apps/umawarden created"), "{applied}");
}

/// The role of the chart with these values, in place of the one before.
fn give(cluster: &Cluster, values: &Value) {
    cluster.kubectl(&[
        "delete",
        "clusterrole,clusterrolebinding",
        "umawarden",
        "--ignore-not-found",
    ]);
    let mut roles = objects(values, VERSIONS[0]).unwrap();
    roles.retain(|object| object["kind"].as_str().unwrap().starts_with("ClusterRole"));
    if !roles.is_empty() {
        cluster.apply("admin", &list(&roles)).unwrap();
    }
}

/// What a user may do, as the server says it: verbs and resources of the core group.
fn permitted(cluster: &Cluster, user: &str) -> BTreeSet<(String, String)> {
    let printed = cluster.kubectl(&["auth", "can-i", "--list", "--no-headers", "--as", user]);
    let mut permitted = BTreeSet::new();
    for line in printed.lines() {
        let resource = line.split_whitespace().next().unwrap_or_default();
        let verbs = line.rsplit_once('[').unwrap().1.trim_end_matches(']');
        for verb in verbs.split_whitespace() {
            permitted.insert((verb.to_owned(), resource.to_owned()));
        }
    }
    permitted
}

#[test]
fn the_server_permits_what_the_features_need_and_nothing_else() {
    if objects(&json!({}), VERSIONS[0]).is_none() {
        return;
    }
    let Some(cluster) = Cluster::start() else { return };
    let everybody = permitted(&cluster, "system:serviceaccount:default:stranger");
    for (values, rights) in sets_of_features() {
        give(&cluster, &values);
        let own = permitted(&cluster, ACCOUNT);
        let own: BTreeSet<_> = own.difference(&everybody).cloned().collect();
        let rights =
            rights.iter().map(|(verb, resource)| ((*verb).to_owned(), (*resource).to_owned()));
        assert_eq!(own, rights.collect(), "{values}");
    }
}

/// A request of the program: method, path, kind of patch, body.
type Request = (&'static str, &'static str, &'static str, Value);

const STRATEGIC: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";
const NODE_PATH: &str = "/api/v1/nodes/spark-1";
const STATUS: &str = "/api/v1/nodes/spark-1/status";

/// What each feature of [`FEATURES`] sends, in its order.
fn requests(feature: usize) -> Vec<Request> {
    let condition = json!({"type": "UnifiedMemoryPressure", "status": "True", "reason": "Test",
        "message": "of a test", "lastHeartbeatTime": "2026-11-27T00:00:00Z",
        "lastTransitionTime": "2026-11-27T00:00:00Z"});
    let conditions = json!({"status": {"conditions": [condition]}});
    let involved = json!({"kind": "Node", "name": "spark-1", "uid": "spark-1"});
    let event = json!({"apiVersion": "v1", "kind": "Event", "reason": "Test", "type": "Warning",
        "metadata": {"name": "of-a-test", "namespace": "default"}, "message": "of a test",
        "involvedObject": involved, "count": 1, "source": {"component": "umawarden"}});
    let capacity = json!({"status": {"capacity": {"umawarden.dev/unified-memory": "100"}}});
    let cordon = json!({"spec": {"unschedulable": true}});
    let taint = json!({"key": "umawarden.dev/leaked", "effect": "NoSchedule"});
    let taints = json!({"spec": {"taints": [taint]}});
    let eviction = json!({"apiVersion": "policy/v1beta1", "kind": "Eviction",
        "metadata": {"name": "engine", "namespace": "default"}});
    let get: Request = ("GET", NODE_PATH, JSON, Value::Null);
    let of_cordon = vec![get.clone(), ("PATCH", NODE_PATH, MERGE, cordon)];
    let of_node = "/api/v1/pods?fieldSelector=spec.nodeName%3Dspark-1";
    match feature {
        0 => vec![get, ("PATCH", STATUS, STRATEGIC, conditions)],
        1 => vec![
            get,
            ("POST", "/api/v1/namespaces/default/events", JSON, event),
            ("PATCH", "/api/v1/namespaces/default/events/of-a-test", MERGE, json!({"count": 2})),
        ],
        2 => vec![get, ("PATCH", STATUS, STRATEGIC, capacity)],
        3 => of_cordon,
        4 => [
            of_cordon,
            vec![
                ("GET", of_node, JSON, Value::Null),
                ("POST", "/api/v1/namespaces/default/pods/engine/eviction", JSON, eviction),
            ],
        ]
        .concat(),
        _ => vec![get, ("PATCH", NODE_PATH, MERGE, taints)],
    }
}

/// Pods that no kubelet runs: one for each eviction.
fn make_pod(cluster: &Cluster) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "engine", "namespace": "default"},
        "spec": {"nodeName": "spark-1", "terminationGracePeriodSeconds": 0,
                 "containers": [{"name": "engine", "image": "none"}]}});
    cluster.kubectl(&[
        "delete",
        "pod",
        "engine",
        "--ignore-not-found",
        "--force",
        "--grace-period=0",
    ]);
    cluster.apply("admin", &pod.to_string()).unwrap();
}

#[test]
fn each_feature_works_with_its_role_and_is_refused_without() {
    if objects(&json!({}), VERSIONS[0]).is_none() {
        return;
    }
    let Some(cluster) = Cluster::start() else { return };
    cluster.apply("admin", NODE).unwrap();
    give(&cluster, &without_features());
    let send = |user: &str, (method, path, kind, body): &Request| {
        cluster.request(user, method, path, kind, body)
    };
    make_pod(&cluster);
    for (number, Feature { place, value, .. }) in FEATURES.iter().enumerate() {
        for request in requests(number) {
            let (code, answer) = send("agent", &request);
            assert_eq!(code, 403, "{place} {value}: {request:?}: {answer}");
        }
    }
    for (number, Feature { place, value, .. }) in FEATURES.iter().enumerate() {
        let mut values = without_features();
        *values.pointer_mut(place).unwrap() = serde_json::from_str(value).unwrap();
        give(&cluster, &values);
        make_pod(&cluster);
        cluster.kubectl(&["delete", "events", "--all"]);
        for request in requests(number) {
            let (code, answer) = send("agent", &request);
            assert!((200..300).contains(&code), "{place} {value}: {request:?}: {code} {answer}");
        }
    }
    // Conditions and capacity are merged: each is there beside the other.
    let node = send("admin", &("GET", NODE_PATH, JSON, Value::Null)).1;
    assert_eq!(node["status"]["capacity"]["umawarden.dev/unified-memory"], "100", "{node}");
    assert_eq!(node["status"]["conditions"][0]["type"], "UnifiedMemoryPressure", "{node}");
    assert_eq!(node["spec"]["unschedulable"], true);
    // By the built-in role conditions and events work, too, and taints do not.
    for feature in [0, 1, 2] {
        cluster.kubectl(&["delete", "events", "--all"]);
        for request in requests(feature) {
            let (code, answer) = send("detector", &request);
            assert!((200..300).contains(&code), "{feature}: {request:?}: {code} {answer}");
        }
    }
    let taint = requests(5).pop().unwrap();
    assert_eq!(send("detector", &taint).0, 403);
}
