//! An API server with one node, its pods and Events, which can fail in every way. What merges mean
//! is shown by a real one (`real::kubernetes`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};

pub const NODE: &str = "node-1";

/// How it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// This status for all requests.
    Status(u16),
    /// It takes requests and never answers.
    Hangs,
    /// It answers what is no JSON.
    Garbage,
    /// Somebody changes the node between each reading and each change.
    Conflicts,
}

#[derive(Debug)]
pub struct Content {
    pub node: Value,
    pub events: BTreeMap<String, Value>,
    pub pods: Vec<Value>,
    /// That of umawarden, while there is one.
    pub daemon_set: Option<Value>,
    pub evicted: Vec<String>,
    /// What evictions are answered with.
    pub eviction_status: u16,
    pub fault: Fault,
    pub requests: u64,
    version: u64,
}

/// Serves until the end of the test.
pub struct FakeApi {
    content: Arc<Mutex<Content>>,
    port: u16,
    _runtime: tokio::runtime::Runtime,
}

impl FakeApi {
    pub fn start() -> Self {
        let node = json!({
            "kind": "Node",
            "metadata": {"name": NODE, "uid": "uid-of-node-1", "resourceVersion": "1"},
            "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"cpu": "2"}},
        });
        let content = Arc::new(Mutex::new(Content {
            node,
            events: BTreeMap::new(),
            pods: Vec::new(),
            daemon_set: None,
            evicted: Vec::new(),
            eviction_status: 201,
            fault: Fault::None,
            requests: 0,
            version: 1,
        }));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let router = axum::Router::new().fallback(answer).with_state(Arc::clone(&content));
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(router.clone());
                let connection =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        Self { content, port, _runtime: runtime }
    }

    pub fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap()
    }

    pub fn set_fault(&self, fault: Fault) {
        self.content().fault = fault;
    }

    /// A kubeconfig for it.
    pub fn kubeconfig(&self, folder: &Path) -> PathBuf {
        let file = folder.join("kubeconfig");
        let port = self.port;
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: \
             {{cluster: a, user: a}}}}]\nclusters: [{{name: a, cluster: {{server: \
             'http://127.0.0.1:{port}'}}}}]\nusers: [{{name: a, user: {{token: secret}}}}]\n"
        );
        std::fs::write(&file, text).unwrap();
        file
    }
}

async fn answer(
    State(content): State<Arc<Mutex<Content>>>,
    method: Method,
    uri: Uri,
    headers: axum::http::HeaderMap,
    body: Bytes,
) -> Response {
    let fault = {
        let mut content = content.lock().unwrap();
        content.requests += 1;
        content.fault
    };
    match fault {
        Fault::Status(code) => return status(code, "it fails"),
        Fault::Hangs => tokio::time::sleep(Duration::from_secs(600)).await,
        Fault::Garbage => return "<html>no API</html>".into_response(),
        Fault::None | Fault::Conflicts => {}
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_strategic = kind == Some("application/strategic-merge-patch+json");
    let mut content = content.lock().unwrap();
    content.answer(&method, uri.path(), &body, is_strategic)
}

impl Content {
    fn answer(&mut self, method: &Method, path: &str, body: &Value, strategic: bool) -> Response {
        let parts: Vec<&str> = path.trim_start_matches("/api/v1/").split('/').collect();
        match (method.as_str(), parts.as_slice()) {
            ("GET", ["nodes", NODE]) => {
                let node = self.node.clone();
                if self.fault == Fault::Conflicts {
                    self.touch();
                }
                json_of(&node)
            }
            ("PATCH", ["nodes", NODE]) => {
                let version = body.pointer("/metadata/resourceVersion");
                if version.is_some_and(|version| *version != json!(self.version.to_string())) {
                    return status(409, "the object has been modified");
                }
                let mut node = self.node.clone();
                merge(&mut node, body);
                self.node = node;
                self.touch();
                json_of(&self.node)
            }
            ("PATCH", ["nodes", NODE, "status"]) => {
                assert!(strategic, "lists of the status are merged by their keys");
                self.patch_status(&body["status"]);
                json_of(&self.node)
            }
            ("POST", ["namespaces", namespace, "events"]) => {
                let mut event = body.clone();
                let name = format!("umawarden-{}", self.events.len());
                assert_eq!(event["metadata"]["namespace"], **namespace);
                event["metadata"]["name"] = name.clone().into();
                self.events.insert(name, event.clone());
                json_of(&event)
            }
            ("PATCH", ["namespaces", _, "events", name]) => match self.events.get_mut(*name) {
                Some(event) => {
                    merge(event, body);
                    json_of(event)
                }
                None => status(404, "events \"e\" not found"),
            },
            ("GET", ["", "apis", "apps", "v1", "namespaces", _, "daemonsets", _]) => {
                match &self.daemon_set {
                    Some(daemon_set) => json_of(daemon_set),
                    None => status(404, "daemonsets.apps \"umawarden\" not found"),
                }
            }
            ("GET", ["pods"]) => json_of(&json!({"kind": "PodList", "items": self.pods})),
            ("POST", ["namespaces", _, "pods", name, "eviction"]) => {
                self.evicted.push((*name).to_owned());
                match self.eviction_status {
                    201 => self.pods.retain(|pod| pod["metadata"]["name"] != **name),
                    code => return status(code, "it would violate the pod's disruption budget"),
                }
                status(201, "evicted")
            }
            _ => status(404, &format!("{method} {path} is not known")),
        }
    }

    fn touch(&mut self) {
        self.version += 1;
        self.node["metadata"]["resourceVersion"] = self.version.to_string().into();
    }

    fn patch_status(&mut self, patch: &Value) {
        for new in patch["conditions"].as_array().into_iter().flatten() {
            let conditions = self.node["status"]["conditions"].as_array_mut().unwrap();
            match conditions.iter_mut().find(|known| known["type"] == new["type"]) {
                Some(known) => merge(known, new),
                None => conditions.push(new.clone()),
            }
        }
        for key in ["capacity", "allocatable"] {
            if let Some(quantities) = patch.get(key) {
                merge(&mut self.node["status"][key], quantities);
            }
        }
        self.touch();
    }

    /// A condition's status.
    pub fn condition(&self, kind: &str) -> Option<String> {
        let conditions = self.node["status"]["conditions"].as_array()?;
        let found = conditions.iter().find(|condition| condition["type"] == kind)?;
        Some(found["status"].as_str()?.to_owned())
    }
}

fn json_of(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

fn status(code: u16, message: &str) -> Response {
    let body = json!({"kind": "Status", "code": code, "message": message}).to_string();
    let code = StatusCode::from_u16(code).unwrap();
    (code, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// A merge patch, RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.as_object_mut().unwrap().remove(key)),
            value => merge(&mut target[key.as_str()], value),
        }
    }
}
