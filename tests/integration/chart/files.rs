//! What the chart takes from elsewhere is the same there.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::{configuration, documents, objects, only, path, read, rendered, yaml};

const CHART: &str = "packaging/kubernetes/chart/umawarden";

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = yaml(&read(&format!("{CHART}/Chart.yaml")));
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

/// Links, so that there is one source of each. Packages hold what they point to.
#[test]
fn alerts_and_dashboards_of_the_chart_are_links_to_all_of_them() {
    let mut linked = BTreeSet::new();
    for entry in fs::read_dir(path(CHART).join("files")).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.file_type().unwrap().is_symlink(), "{:?}", entry.file_name());
        assert!(linked.insert(entry.path().canonicalize().unwrap()));
    }
    let all = |folder: &str, ending: &str| {
        let files = fs::read_dir(path(folder)).unwrap().map(|entry| entry.unwrap().path());
        let is_meant = |file: &std::path::PathBuf| {
            let name = file.file_name().unwrap().to_str().unwrap();
            name.ends_with(ending) && !name.ends_with("_test.yaml")
        };
        files.filter(is_meant).collect::<Vec<_>>()
    };
    let expected =
        all("alerts", ".yaml").into_iter().chain(all("dashboards/provisioning", ".json"));
    assert_eq!(linked, expected.map(|file| file.canonicalize().unwrap()).collect());
}

/// Keys of the values and of the schema, as paths.
fn keys(values: &Value, schema: &Value, path: &str, of_values: &mut Vec<String>) -> Vec<String> {
    let mut found = Vec::new();
    let Some(properties) = schema["properties"].as_object() else { return found };
    // Texts and lists of Kubernetes, and settings of the program, are not the chart's own.
    if schema["additionalProperties"] != json!(false) {
        return found;
    }
    of_values.extend(values.as_object().unwrap().keys().map(|key| format!("{path}/{key}")));
    for (key, property) in properties {
        let below = format!("{path}/{key}");
        found.push(below.clone());
        if !values[key].is_null() {
            found.extend(keys(&values[key], property, &below, of_values));
        }
    }
    found
}

#[test]
fn the_schema_and_the_values_have_the_same_keys() {
    let values = yaml(&read(&format!("{CHART}/values.yaml")));
    let schema: Value =
        serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).unwrap();
    let mut written = Vec::new();
    let mut known = keys(&values, &schema, "", &mut written);
    known.retain(|key| key != "/global" && !key.starts_with("/image/pullSecrets/"));
    let sets = |keys: Vec<String>| keys.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(sets(written), sets(known));
}

#[test]
fn alerts_and_dashboards_reach_the_cluster_unchanged() {
    let values = json!({
        "prometheusRules": {"enabled": true, "cluster": true, "labels": {"release": "prom"}},
        "podMonitor": {"cluster": "lab"},
        "dashboards": {"enabled": true, "namespace": "monitoring", "annotations": {"folder": "umawarden"}},
    });
    let Some(objects) = objects(&values, "1.31.0") else { return };
    let folder = tempfile::tempdir().unwrap();
    for (name, file) in [
        ("node", "umawarden"),
        ("agents", "agents"),
        ("recording", "recording"),
        ("cluster", "cluster"),
    ] {
        let rule = only(&objects, "PrometheusRule", &format!("umawarden-{name}")).unwrap();
        assert_eq!(rule["spec"], yaml(&read(&format!("alerts/{file}.yaml"))), "{file}");
        assert_eq!(rule["metadata"]["labels"]["release"], "prom");
        let written = folder.path().join(format!("{name}.yaml"));
        fs::write(&written, rule["spec"].to_string()).unwrap();
        let output = Command::new("promtool").args(["check", "rules"]).arg(&written).output();
        let output = output.expect("promtool runs; it is in the Debian package prometheus");
        assert!(output.status.success(), "{name}: {output:?}");
    }
    for name in ["node", "cluster", "fleet", "remedies"] {
        let map = only(&objects, "ConfigMap", &format!("umawarden-dashboard-{name}")).unwrap();
        let text = map["data"][format!("umawarden-{name}.json")].as_str().unwrap();
        let source: Value =
            serde_json::from_str(&read(&format!("dashboards/provisioning/{name}.json"))).unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), source, "{name}");
        assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
        assert_eq!(map["metadata"]["annotations"]["folder"], "umawarden");
        assert_eq!(map["metadata"]["namespace"], "monitoring");
    }
}

/// The base, as the chart makes it of its defaults.
fn base() -> Option<(String, String)> {
    let text = rendered(&json!({}), "1.31.0")?.unwrap();
    let objects: Vec<Value> = documents(&text).iter().map(|document| yaml(document)).collect();
    let of_helm = ["helm.sh/chart:", "app.kubernetes.io/managed-by:", "# Source:"];
    // kustomize names the configuration by its content, so that a change starts the pods anew.
    let of_change = ["# A changed configuration", "umawarden.dev/configuration:"];
    let is_own = |line: &&str| {
        let line = line.trim_start();
        of_helm.iter().chain(&of_change).all(|other| !line.starts_with(other))
    };
    let mut base = "# What the chart makes of its defaults; a test compares them. UPDATE_GOLDEN=1 \
                    writes it anew.\n"
        .to_owned();
    for document in documents(&text).iter().filter(|one| yaml(one)["kind"] != "ConfigMap") {
        let lines: String =
            document.lines().filter(is_own).map(|line| format!("{line}\n")).collect();
        base += &format!("---\n{lines}");
    }
    Some((base, configuration(&objects).to_owned()))
}

#[test]
fn the_base_is_what_the_chart_makes_of_its_defaults() {
    let Some((objects, configuration)) = base() else { return };
    for (name, text) in [("objects.yaml", objects), ("umawarden.yaml", configuration)] {
        let file = format!("packaging/kubernetes/base/{name}");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(path(&file), &text).unwrap();
        }
        assert_eq!(read(&file), text, "{file}: UPDATE_GOLDEN=1 writes it anew");
    }
}

#[test]
fn kustomize_builds_the_base_with_the_same_objects() {
    let kubectl = std::env::var_os("UMAWARDEN_KUBECTL").filter(|path| !path.is_empty());
    let base = path("packaging/kubernetes/base");
    let mut kubectl = Command::new(kubectl.unwrap_or_else(|| "kubectl".into()));
    let Ok(output) = kubectl.arg("kustomize").arg(base).output() else {
        eprintln!("skipped: UMAWARDEN_KUBECTL names no kubectl; tests/tools/helm brings it");
        return;
    };
    assert!(output.status.success(), "{output:?}");
    let built = String::from_utf8(output.stdout).unwrap();
    let built: Vec<Value> = documents(&built).iter().map(|document| yaml(document)).collect();
    let kinds: BTreeSet<&str> = built.iter().map(|one| one["kind"].as_str().unwrap()).collect();
    let expected = [
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "DaemonSet",
        "Namespace",
        "ServiceAccount",
    ];
    assert_eq!(kinds, expected.into());
    let named = |kind: &str| built.iter().find(|one| one["kind"] == kind).unwrap();
    let map = &named("ConfigMap")["metadata"]["name"];
    let volumes = &named("DaemonSet")["spec"]["template"]["spec"]["volumes"];
    assert_eq!(volumes[0]["configMap"]["name"], *map);
    assert_ne!(map, "umawarden", "it is named by its content");
}
