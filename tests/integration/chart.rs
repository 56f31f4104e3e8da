//! The Helm chart and the kustomize base in `packaging/kubernetes`. Most tests need Helm, which
//! `UMAWARDEN_HELM` names; `tests/tools/helm` brings it.

mod files;
mod policy;
mod readme;
pub mod rights;
pub mod switches;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The objects of a release `umawarden` in the namespace `umawarden`.
pub type Objects = Vec<Value>;

pub fn path(below_root: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(below_root)
}

fn read(below_root: &str) -> String {
    let path = path(below_root);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Helm with arguments, in a home of its own. `None`, with a note: there is none.
fn helm(arguments: &[&str]) -> Option<Result<String, String>> {
    helm_in(Path::new("/dev/null"), arguments)
}

/// The same, for a cluster.
pub fn helm_in(kubeconfig: &Path, arguments: &[&str]) -> Option<Result<String, String>> {
    let Some(helm) = std::env::var_os("UMAWARDEN_HELM").filter(|path| !path.is_empty()) else {
        eprintln!("skipped: UMAWARDEN_HELM names no Helm; tests/tools/helm brings it");
        return None;
    };
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(helm);
    command.env("KUBECONFIG", kubeconfig);
    for variable in ["HOME", "HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, home.path());
    }
    let output = command.args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    })
}

/// The chart as text with values in JSON, for a Kubernetes of this version.
fn rendered(values: &Value, kubernetes: &str) -> Option<Result<String, String>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), values.to_string()).unwrap();
    let chart = path("packaging/kubernetes/chart/umawarden");
    helm(&[
        "template",
        "umawarden",
        chart.to_str().unwrap(),
        "--namespace=umawarden",
        "--kube-version",
        kubernetes,
        "--values",
        file.path().to_str().unwrap(),
    ])
}

/// The chart's objects with these values. They must be accepted.
pub fn objects(values: &Value, kubernetes: &str) -> Option<Objects> {
    let text = rendered(values, kubernetes)?.unwrap_or_else(|error| panic!("{values}: {error}"));
    Some(documents(&text).iter().map(|document| yaml(document)).collect())
}

/// What Helm says against values that a document shows, if it says something.
pub fn fault(values: &str) -> Option<String> {
    let values: Value = match serde_saphyr::from_str(values) {
        Ok(values) => values,
        Err(error) => return Some(error.to_string()),
    };
    rendered(&values, "1.31.0")?.err()
}

/// The documents of a stream that have more than comments.
fn documents(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        match line {
            "---" => documents.push(String::new()),
            line => *documents.last_mut().unwrap() += &format!("{line}\n"),
        }
    }
    let has_content = |line: &str| !line.trim().is_empty() && !line.starts_with('#');
    documents.retain(|document| document.lines().any(has_content));
    documents
}

/// The only object of a kind; `name`: the end of its name.
fn only<'o>(objects: &'o [Value], kind: &str, name: &str) -> Option<&'o Value> {
    let mut found = objects.iter().filter(|object| {
        let own = object["metadata"]["name"].as_str().unwrap();
        object["kind"] == kind && own.ends_with(name)
    });
    let first = found.next();
    assert!(found.next().is_none(), "several {kind} {name}");
    first
}

pub fn daemon_set(objects: &[Value]) -> &Value {
    only(objects, "DaemonSet", "umawarden").unwrap()
}

pub fn container(objects: &[Value]) -> &Value {
    &daemon_set(objects)["spec"]["template"]["spec"]["containers"][0]
}

/// The configuration file of the pods.
fn configuration(objects: &[Value]) -> &str {
    let map = only(objects, "ConfigMap", "umawarden").unwrap();
    map["data"]["umawarden.yaml"].as_str().unwrap()
}

pub fn strings(list: &Value) -> Vec<&str> {
    let list = list.as_array().map_or(&[][..], Vec::as_slice);
    list.iter().map(|one| one.as_str().unwrap()).collect()
}
