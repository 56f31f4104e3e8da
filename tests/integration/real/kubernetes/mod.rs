//! A real API server of Kubernetes with its etcd. `tests/kubernetes/build` builds them; these tests
//! run where `UMAWARDEN_KUBE_APISERVER` and `UMAWARDEN_ETCD` name the programs.

mod agent;
mod chart;
mod privileges;
mod server;

use serde_json::Value;
use server::Cluster;

#[test]
fn the_api_server_keeps_its_data_while_it_is_away() {
    let Some(mut cluster) = Cluster::start() else { return };
    let node = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "spark-1"}}"#;
    cluster.apply("admin", node).unwrap();
    let named = |cluster: &Cluster| cluster.kubectl(&["get", "nodes", "-o", "name"]);
    assert_eq!(named(&cluster), "node/spark-1\n");
    let (url, token) = (cluster.url(), cluster.token("admin").to_owned());
    cluster.stop_api();
    let refused = cluster.kubectl_as("admin", &["get", "nodes"], "").unwrap_err();
    assert!(refused.contains("refused"), "{refused}");
    cluster.start_api();
    assert_eq!(named(&cluster), "node/spark-1\n");
    assert_eq!((cluster.url(), cluster.token("admin")), (url, &*token));
}

/// What the users of the harness may do.
#[test]
fn each_user_has_the_rights_of_its_role() {
    let Some(cluster) = Cluster::start() else { return };
    let can = |user: &str, verb: &str, resource: &str| {
        let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
        let part = format!("--subresource={part}");
        cluster.kubectl_as(user, &["auth", "can-i", verb, resource, &part], "").is_ok()
    };
    for (verb, resource) in [("patch", "nodes/status"), ("create", "events"), ("get", "nodes")] {
        assert!(can("admin", verb, resource), "admin: {verb} {resource}");
        assert!(can("detector", verb, resource), "detector: {verb} {resource}");
        assert!(!can("stranger", verb, resource), "stranger: {verb} {resource}");
    }
    assert!(can("admin", "patch", "nodes") && !can("detector", "patch", "nodes"));
    let nodes = |user: &str| cluster.request(user, "GET", "/api/v1/nodes", "", &Value::Null);
    assert_eq!(nodes("stranger").0, 403);
    let (code, list) = nodes("admin");
    assert_eq!((code, &list["kind"]), (200, &"NodeList".into()), "{list}");
    let ca = std::fs::read_to_string(cluster.ca()).unwrap();
    assert!(ca.starts_with("-----BEGIN CERTIFICATE-----"), "{ca}");
}
