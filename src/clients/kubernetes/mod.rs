//! Requests to the API server of Kubernetes about this machine's node and its pods.
//!
//! Every request has a time limit, and every response a size limit. Nothing is retried here.

mod daemon_set;
mod held;
#[cfg(test)]
pub mod scripted;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::{Request, StatusCode, header};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request as ApiRequest;
use kube::core::params::{GetParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::model::{DaemonSetName, KubernetesAccess, printable_beginning};

pub use held::{ChangeOwner, NodeChange, NodeHold, NodeState, PatchPlan, Reported};

/// The time limit of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// A node lists up to 50 images, a full node has 110 pods of some 10 KiB.
const MOST_BYTES: usize = 8 << 20;

/// Attempts of a change that others overtake.
const MOST_CONFLICTS: usize = 5;

/// The longest message of a server that is shown, in characters.
const MOST_CHARS: usize = 400;

/// The manager of our fields: <https://kubernetes.io/docs/reference/using-api/server-side-apply/>.
const MANAGER: &str = "umawarden";

const NODES: &str = "/api/v1/nodes";

/// Every user that signs in may use it (the role `system:basic-user`).
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// The kubelet's mark of pods that it runs from a file
/// (k8s.io/kubernetes/pkg/kubelet/types/pod_update.go).
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// There is nothing to connect with.
    #[error("{0}")]
    Unconfigured(String),
    /// The node is in a state in which nothing can be done.
    #[error("{0}")]
    Unusable(String),
    /// No response, or none that can be read.
    #[error("the API server of Kubernetes at {server} {what}")]
    Unreachable {
        /// Its address.
        server: String,
        /// The failure, as the end of a sentence about the server.
        what: String,
    },
    /// The server refuses.
    #[error("the API server of Kubernetes refuses to {doing}: {message} ({code}){}", advice(*code))]
    Refused {
        /// The request, in words.
        doing: &'static str,
        /// The status code of HTTP.
        code: u16,
        /// Its message, printable. It names the missing right where that is the reason.
        message: String,
        /// When it may be asked again.
        retry_after: Option<Duration>,
    },
}

fn advice(code: u16) -> &'static str {
    match code {
        401 => ": its token is not valid there: check the service account, or the kubeconfig",
        403 => ": give this right to umawarden's role, or switch the feature off",
        _ => "",
    }
}

impl ApiError {
    /// The status code of a refusal.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// When the server wants to be asked again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// A pod on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePod {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`, which no other pod ever has.
    pub uid: String,
    /// Why an eviction does not end it for good: the kubelet or a controller runs it here again,
    /// also on a cordoned node.
    pub stays: Option<&'static str>,
}

impl NodePod {
    /// `None` for what is no pod.
    fn read(pod: &Value) -> Option<Self> {
        let metadata = pod.get("metadata")?;
        let text = |key: &str| Some(metadata.get(key)?.as_str()?.to_owned());
        let owners = metadata.get("ownerReferences").and_then(Value::as_array);
        let is_daemon_set = |owner: &Value| {
            owner.get("kind").and_then(Value::as_str) == Some("DaemonSet")
                && owner.get("controller").and_then(Value::as_bool) == Some(true)
        };
        let is_mirror =
            metadata.get("annotations").is_some_and(|notes| notes.get(MIRROR).is_some());
        let stays = match owners.is_some_and(|owners| owners.iter().any(is_daemon_set)) {
            true => Some("of a DaemonSet"),
            false => is_mirror.then_some("a static pod"),
        };
        Some(Self { namespace: text("namespace")?, name: text("name")?, uid: text("uid")?, stays })
    }
}

/// A verb, and a resource of the core group with its subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceRight {
    verb: &'static str,
    resource: &'static str,
}

impl ResourceRight {
    /// `patch`, `nodes/status`.
    pub fn new(verb: &'static str, resource: &'static str) -> Self {
        Self { verb, resource }
    }
}

impl fmt::Display for ResourceRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

/// A connection to the API server for one node.
#[derive(Clone)]
pub struct NodeApi {
    client: Client,
    node: String,
    server: String,
}

impl fmt::Debug for NodeApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeApi").field("node", &self.node).field("server", &self.server).finish()
    }
}

/// The node's name: as configured, of the environment, or the machine's.
pub fn node_name(access: &KubernetesAccess) -> String {
    let of_environment = || std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    access.node.clone().or_else(of_environment).unwrap_or_else(|| {
        // The kubelet does the same: its name for a node is the lower-case host name.
        rustix::system::uname().nodename().to_string_lossy().to_lowercase()
    })
}

impl NodeApi {
    /// Reads the kubeconfig or the service account. It sends nothing, and must be called on a
    /// runtime of tokio.
    ///
    /// # Errors
    /// There is neither, or it cannot be read.
    pub async fn open(access: &KubernetesAccess) -> Result<Self, ApiError> {
        let mut config = match &access.kubeconfig {
            Some(file) => {
                let failed = |error: &dyn fmt::Display| {
                    let file = file.display();
                    ApiError::Unconfigured(format!("kubernetes.kubeconfig {file}: {error}"))
                };
                let read = Kubeconfig::read_from(file).map_err(|error| failed(&error))?;
                let options = KubeConfigOptions::default();
                let config = Config::from_custom_kubeconfig(read, &options).await;
                config.map_err(|error| failed(&error))?
            }
            None => Config::incluster_env().map_err(|error| {
                ApiError::Unconfigured(format!(
                    "there is no service account of a pod ({error}): name a file with \
                     kubernetes.kubeconfig"
                ))
            })?,
        };
        config.connect_timeout = Some(PATIENCE);
        config.default_retry = false;
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).map_err(|error| {
            ApiError::Unconfigured(format!("no client for {server} can be made: {error}"))
        })?;
        Ok(Self { client, node: node_name(access), server })
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// What is changed in the node, and what for.
    ///
    /// # Errors
    /// See [`ApiError`]; 404: there is no such node.
    pub async fn state(&self) -> Result<NodeState, ApiError> {
        let request = ApiRequest::new(NODES).get(&self.node, &GetParams::default());
        self.ask("read the node", request).await
    }

    /// Changes the node, after others' changes that came in between. Returns in words what that
    /// did, and the UID of the node.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn change(&self, change: &NodeChange) -> Result<(String, String), ApiError> {
        self.change_if(change, |_| Ok(())).await
    }

    /// Changes the node while its state permits that.
    async fn change_if(
        &self,
        change: &NodeChange,
        permits: impl Fn(&NodeState) -> Result<(), String>,
    ) -> Result<(String, String), ApiError> {
        let mut conflicts = 0;
        loop {
            let state = self.state().await?;
            permits(&state).map_err(ApiError::Unusable)?;
            let PatchPlan { patch, effect } = state.plan(change).map_err(ApiError::Unusable)?;
            let changed = (effect, state.uid().to_owned());
            let Some(patch) = patch else { return Ok(changed) };
            let (params, patch) = (parameters(), Patch::Merge(patch));
            let request = ApiRequest::new(NODES).patch(&self.node, &params, &patch);
            match self.ask::<Value>("change the node", request).await {
                Ok(_) => return Ok(changed),
                Err(error) if error.code() == Some(409) && conflicts < MOST_CONFLICTS => {
                    conflicts += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Leaves what decisions have set to the pod of that DaemonSet that follows on this node.
    /// Returns in words what stays. An end has ten seconds: each request counts.
    ///
    /// # Errors
    /// None follows, or whether one does is not known: see [`ApiError`].
    pub async fn leave_to(&self, set: &DaemonSetName) -> Result<String, ApiError> {
        let path = format!("/apis/apps/v1/namespaces/{}/daemonsets", set.namespace);
        let request = ApiRequest::new(path).get(&set.name, &GetParams::default());
        let found: Value = self.ask("read the DaemonSet of umawarden", request).await?;
        let follows = |state: &NodeState| {
            daemon_set::check(&found, state.labels())
                .map_err(|why| format!("no pod of the DaemonSet {set} follows: {why}"))
        };
        self.change_if(&NodeChange::Leave, follows).await.map(|(effect, _)| effect)
    }

    /// Merges fields into the status of the node; lists with a key are merged by it.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn patch_status(&self, status: Value) -> Result<(), ApiError> {
        let patch = Patch::Strategic(json!({"status": status}));
        let request =
            ApiRequest::new(NODES).patch_subresource("status", &self.node, &parameters(), &patch);
        self.ask::<Value>("change the node's status", request).await.map(drop)
    }

    /// Writes a new Event into a namespace. Returns its name.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn create_event(&self, namespace: &str, event: &Value) -> Result<String, ApiError> {
        let body = event.to_string().into_bytes();
        let request = ApiRequest::new(events(namespace)).create(&PostParams::default(), body);
        let created: Value = self.ask("write an Event", request).await?;
        let name = created.pointer("/metadata/name").and_then(Value::as_str);
        name.map(str::to_owned).ok_or_else(|| self.unreachable("answers an Event without a name"))
    }

    /// Changes an Event that was written before.
    ///
    /// # Errors
    /// See [`ApiError`]; 404: it has expired.
    pub async fn patch_event(
        &self,
        namespace: &str,
        name: &str,
        patch: Value,
    ) -> Result<(), ApiError> {
        let (params, patch) = (parameters(), Patch::Merge(patch));
        let request = ApiRequest::new(events(namespace)).patch(name, &params, &patch);
        self.ask::<Value>("change an Event", request).await.map(drop)
    }

    /// The pods on this node that have not ended.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn pods(&self) -> Result<Vec<NodePod>, ApiError> {
        let of_node = format!("spec.nodeName={}", self.node);
        let params = ListParams { field_selector: Some(of_node), ..ListParams::default() };
        let request = ApiRequest::new("/api/v1/pods").list(&params);
        let list: Value = self.ask("list the node's pods", request).await?;
        let has_ended = |pod: &Value| {
            let phase = pod.pointer("/status/phase").and_then(Value::as_str);
            matches!(phase, Some("Succeeded" | "Failed"))
        };
        let pods = list.get("items").and_then(Value::as_array).into_iter().flatten();
        Ok(pods.filter(|pod| !has_ended(pod)).filter_map(NodePod::read).collect())
    }

    /// Asks for the eviction of a pod, which its PodDisruptionBudget may refuse (429).
    ///
    /// # Errors
    /// See [`ApiError`]; 404: it has gone; 409: another pod has its name.
    pub async fn evict(&self, pod: &NodePod) -> Result<(), ApiError> {
        let NodePod { namespace, name, uid, .. } = pod;
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        // Without a version it is of any that the server knows.
        let eviction = json!({
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        });
        let request = ApiRequest::new(pods).create_subresource(
            "eviction",
            name,
            &PostParams::default(),
            eviction.to_string().into_bytes(),
        );
        self.ask::<Value>("evict a pod", request).await.map(drop)
    }

    /// Whether this user may do that, on this node or in all namespaces.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn may(&self, right: ResourceRight) -> Result<bool, ApiError> {
        let ResourceRight { verb, resource } = right;
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let name = if resource == "nodes" { self.node.as_str() } else { "" };
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "verb": verb, "resource": resource, "subresource": subresource, "name": name,
            }},
        });
        let body = review.to_string().into_bytes();
        let request = ApiRequest::new(REVIEWS).create(&PostParams::default(), body);
        let answer: Value = self.ask("review the rights of umawarden", request).await?;
        Ok(answer.pointer("/status/allowed").and_then(Value::as_bool) == Some(true))
    }

    fn unreachable(&self, what: impl Into<String>) -> ApiError {
        ApiError::Unreachable { server: self.server.clone(), what: what.into() }
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        doing: &'static str,
        request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T, ApiError> {
        let request = request.map_err(|error| {
            ApiError::Unconfigured(format!("no request to {doing} can be made: {error}"))
        })?;
        let response = async {
            let response = self.client.send(request.map(Body::from)).await;
            let response = response.map_err(|error| self.unreachable(why(&error)))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MOST_BYTES).collect().await;
            let body = body.map_err(|error| self.unreachable(format!("fails: {error}")))?;
            Ok((head, body.to_bytes()))
        };
        let response = timeout(PATIENCE, response).await;
        let silent = |_| self.unreachable(format!("is silent for {} s", PATIENCE.as_secs()));
        let (head, body) = response.map_err(silent)??;
        if head.status.is_success() {
            let read = serde_json::from_slice(&body);
            return read
                .map_err(|error| self.unreachable(format!("answers no such JSON: {error}")));
        }
        let seconds = head.headers.get(header::RETRY_AFTER);
        let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
        Err(refusal(doing, head.status, &body, seconds.map(Duration::from_secs)))
    }
}

fn parameters() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

fn events(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/events")
}

/// The chain of causes: the outermost says only that there was an error.
fn why(error: &dyn std::error::Error) -> String {
    let mut text = format!("cannot be reached: {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    printable_beginning(&text, MOST_CHARS)
}

fn refusal(
    doing: &'static str,
    status: StatusCode,
    body: &[u8],
    retry_after: Option<Duration>,
) -> ApiError {
    let said: Option<Value> = serde_json::from_slice(body).ok();
    let message = said.as_ref().and_then(|said| said.get("message")?.as_str());
    let message = message.filter(|text| !text.is_empty());
    let message = message.or_else(|| status.canonical_reason()).unwrap_or("?");
    let message = printable_beginning(message, MOST_CHARS);
    let in_details = || said.as_ref()?.pointer("/details/retryAfterSeconds")?.as_u64();
    let retry_after = retry_after.or_else(|| in_details().map(Duration::from_secs));
    ApiError::Refused { doing, code: status.as_u16(), message, retry_after }
}
