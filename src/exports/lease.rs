//! `POST /api/v1/gate`: a start reserves memory here, as `umawarden gate` does on the node itself.
//! Its requester repeats the call until the gate is open. A start over several nodes calls each.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use hyper::{StatusCode, Uri};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::api::{error, success};
use super::gate::{fresh_memory, pairs, request, response};
use super::order::Caller;
use super::orders::sender;
use super::routes::Site;
use crate::model::{
    GateRequest, LeaseCall, LeaseRequest, LeaseStage, LeaseState, Pod, RESTART_LEASE, lease_lasts,
};
use crate::policy::gate::{check_gate, with_turn};

/// The queue of the ledger's thread.
pub type LeaseSender = SyncSender<LeaseOrder>;

/// A call for the ledger.
#[derive(Debug)]
pub enum LeaseOrder {
    /// A request or its repetition.
    Call {
        /// The start's request for memory.
        request: LeaseRequest,
        /// What it wants.
        call: LeaseCall,
        /// Takes the result, or why the ledger cannot be used.
        answer: oneshot::Sender<Result<LeaseReply, String>>,
    },
    /// Ends a lease or a request.
    End {
        /// The id of the lease or of the request.
        id: String,
        /// The caller, in words.
        by: Arc<str>,
        /// Takes whether it was there, or why the ledger cannot be used.
        answer: oneshot::Sender<Result<bool, String>>,
    },
}

/// The result of a call.
#[derive(Clone, Debug)]
pub struct LeaseReply {
    /// The name of its ledger in the order of nodes.
    pub node: Arc<str>,
    /// The state of the lease; `None` once it has ended.
    pub state: Option<LeaseState>,
}

/// The parameters that `GET /api/v1/gate` does not have; the last three are those of a start over
/// several nodes.
const OWN: [&str; 8] = ["id", "name", "priority", "lease", "pod", "requested", "call", "turn"];

/// 200 once memory is reserved; 503 with the reasons while it is not.
pub(super) async fn lease(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    body: Body,
) -> Response {
    let (need, mut lease, call) = match read(&uri) {
        Ok(read) => read,
        Err(text) => return error(StatusCode::BAD_REQUEST, "bad_data", &text),
    };
    lease.by = match sender(&site, caller, body).await {
        Ok(by) => Some(by.into()),
        Err(refusal) => return *refusal,
    };
    let status = site.served.status.load_full();
    if lease.requested_ms == 0 {
        lease.requested_ms = status.at.utc_ms();
    }
    let memory = match fresh_memory(&site, &status) {
        Ok(memory) => memory,
        Err(refusal) => return *refusal,
    };
    let order = |answer| LeaseOrder::Call { request: lease, call, answer };
    let reply = match carry_out(&site, order).await {
        Ok(reply) => reply,
        Err(refusal) => return *refusal,
    };
    let mut result = check_gate(&need, memory);
    match &reply.state {
        Some(LeaseState::Granted { .. }) => {
            result.is_open = true;
            result.reasons.clear();
        }
        Some(LeaseState::Waiting { reasons, .. }) => with_turn(&mut result, reasons),
        None => with_turn(&mut result, &["its lease has ended".into()]),
    }
    let stage = reply.state.as_ref().map_or(LeaseStage::Ended, LeaseState::stage);
    response(&result, Some(json!({ "stage": stage, "node": reply.node })))
}

/// `DELETE /api/v1/leases/{id}`.
pub(super) async fn end(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Body,
) -> Response {
    let by = match sender(&site, caller, body).await {
        Ok(by) => by.into(),
        Err(refusal) => return *refusal,
    };
    let order = |answer| LeaseOrder::End { id: id.clone(), by, answer };
    match carry_out(&site, order).await {
        Ok(true) => success(&json!({ "id": id })),
        Ok(false) => {
            let text = format!("there is no lease {id:?}; /api/v1/leases lists them");
            error(StatusCode::NOT_FOUND, "not_found", &text)
        }
        Err(refusal) => *refusal,
    }
}

async fn carry_out<T>(
    site: &Site,
    order: impl FnOnce(oneshot::Sender<Result<T, String>>) -> LeaseOrder,
) -> Result<T, Box<Response>> {
    let unavailable =
        |text: &str| Box::new(error(StatusCode::SERVICE_UNAVAILABLE, "unavailable", text));
    let Some(leases) = &site.served.leases else {
        let text = "this umawarden watches the files of another machine, and reserves nothing; \
                    name a folder for its leases (starts: {folder: …})";
        return Err(Box::new(error(StatusCode::NOT_IMPLEMENTED, "unavailable", text)));
    };
    let (answer, result) = oneshot::channel();
    leases.try_send(order(answer)).map_err(|error| match error {
        TrySendError::Full(_) => unavailable("too many starts call at once; call again"),
        TrySendError::Disconnected(_) => unavailable("umawarden ends"),
    })?;
    match timeout(site.served.limits.order, result).await {
        Ok(Ok(Ok(result))) => Ok(result),
        Ok(Ok(Err(why))) => Err(unavailable(&format!("nothing can be reserved: {why}"))),
        Ok(Err(_)) | Err(_) => Err(unavailable("the ledger of leases does not answer")),
    }
}

/// The pod that starts. The names become part of URLs.
fn pod(text: &str) -> Option<Pod> {
    let is_name = |name: &&str| {
        (1..=253).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
            && !name.starts_with('.')
    };
    let mut parts = text.split('/').filter(is_name);
    let [namespace, name, uid] = [parts.next()?, parts.next()?, parts.next()?];
    let is_whole = text.split('/').count() == 3;
    let pod =
        Pod { namespace: namespace.into(), name: name.into(), uid: uid.into(), ..Pod::default() };
    is_whole.then_some(pod)
}

fn is_short(text: &str) -> bool {
    (1..=128).contains(&text.len()) && !text.contains(char::is_control)
}

fn read(uri: &Uri) -> Result<(GateRequest, LeaseRequest, LeaseCall), String> {
    const EXAMPLE: &str = "write it like /api/v1/gate?need=90GiB&id=POD-UID&name=chat";
    let (own, other): (Vec<_>, Vec<_>) =
        pairs(uri)?.into_iter().partition(|(name, _)| OWN.contains(&name.as_str()));
    let need = request(&other)?;
    let mut lease = LeaseRequest::new("".into(), "".into(), need.clone());
    let mut call = LeaseCall::Take;
    for (index, (name, value)) in own.iter().enumerate() {
        if own.iter().take(index).any(|(other, _)| other == name) {
            return Err(format!("duplicate parameter {name:?}; {EXAMPLE}"));
        }
        let wrong = |what: &str| format!("parameter {name:?}: {value:?} is no {what}; {EXAMPLE}");
        match name.as_str() {
            "id" if value.starts_with(RESTART_LEASE) => {
                return Err(wrong("id of a start, but of a deferred restart"));
            }
            "id" if is_short(value) => lease.id = value.as_str().into(),
            "name" if is_short(value) => lease.who = value.as_str().into(),
            "id" | "name" => return Err(wrong("text of 1 to 128 printable characters")),
            "priority" => lease.priority = value.parse().map_err(|_| wrong("whole number"))?,
            "lease" => {
                lease.lasts =
                    lease_lasts(value).map_err(|error| format!("parameter {name:?}: {error}"))?;
            }
            "requested" => {
                lease.requested_ms = value.parse().map_err(|_| wrong("time in milliseconds"))?;
            }
            "pod" => {
                let pod = pod(value).ok_or_else(|| wrong("NAMESPACE/NAME/UID"))?;
                lease.pod = Some(Arc::new(pod));
            }
            "turn" => lease.turn = value.parse().map_err(|_| wrong("number"))?,
            _ => {
                call = LeaseCall::named(value)
                    .ok_or_else(|| wrong(&format!("call ({})", LeaseCall::NAMES.join(", "))))?;
                lease.spans_nodes = true;
            }
        }
    }
    if lease.id.is_empty() {
        return Err(format!("parameter \"id\" is missing: it names the start; {EXAMPLE}"));
    }
    if lease.who.is_empty() {
        lease.who = Arc::clone(&lease.id);
    }
    Ok((need, lease, call))
}
