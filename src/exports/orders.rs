//! Silences, approvals, breakers and the pause. Everybody with the role read may list them; orders
//! need a higher role.

use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, State};
use axum::response::Response;
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use super::api::{answer, error, success};
use super::order::{
    self, Attribution, Caller, OrderDone, OrderKind, OrderPeriod, OrderRefused, OrderRequest,
    RuleChoice, Unreadable,
};
use super::routes::{ORDER_BODY_BYTES, Site};
use crate::model::{DecisionId, OrderedBy, author, because, remote_author};
use crate::policy::status::GuardStatus;

pub(super) type OrderRefusal = Box<Response>;

fn guard(site: &Site) -> Arc<GuardStatus> {
    Arc::clone(&site.served.status.load().guard)
}

/// Silences in force.
pub(super) async fn silences(State(site): State<Site>) -> Response {
    success(&json!({ "silences": guard(&site).silences }))
}

/// Requested and unused approvals.
pub(super) async fn approvals(State(site): State<Site>) -> Response {
    success(&json!({ "approvals": guard(&site).approvals }))
}

/// Remedies that missed their aim.
pub(super) async fn breakers(State(site): State<Site>) -> Response {
    success(&json!({ "breakers": guard(&site).breakers }))
}

/// Whether the daemon is paused, and by whom.
pub(super) async fn pause(State(site): State<Site>) -> Response {
    success(&pause_json(&guard(&site)))
}

pub(super) fn pause_json(guard: &GuardStatus) -> Value {
    json!({ "paused": guard.pause.is_some(), "pause": guard.pause })
}

/// `POST /api/v1/silences`.
pub(super) async fn make_silence(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    order_of(&site, caller, body, order::silence).await
}

/// `DELETE /api/v1/silences/{id}`.
pub(super) async fn end_silence(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Body,
) -> Response {
    let read = async {
        let by = authenticated(caller)?;
        let id = number(&id, "silence")?;
        let words = order::attribution(&read_short(&site, body).await?).map_err(refuse)?;
        Ok((by, OrderKind::EndSilence { id }, words))
    };
    give(&site, read.await).await
}

/// `POST /api/v1/approvals/{decision}`.
pub(super) async fn approve(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    Path(decision): Path<String>,
    body: Body,
) -> Response {
    let kind = |decision, lasts| OrderKind::Approve { decision, lasts };
    reply(&site, caller, &decision, body, kind).await
}

/// `DELETE /api/v1/approvals/{decision}`.
pub(super) async fn deny(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    Path(decision): Path<String>,
    body: Body,
) -> Response {
    let kind = |decision, lasts| OrderKind::Deny { decision, lasts };
    reply(&site, caller, &decision, body, kind).await
}

/// What a person says to a held decision.
async fn reply(
    site: &Site,
    caller: Caller,
    decision: &str,
    body: Body,
    kind: impl FnOnce(DecisionId, Option<OrderPeriod>) -> OrderKind,
) -> Response {
    let read = async {
        let by = authenticated(caller)?;
        let decision = DecisionId(number(decision, "decision")?);
        let (lasts, words) = order::reply(&read_short(site, body).await?).map_err(refuse)?;
        Ok((by, kind(decision, lasts), words))
    };
    give(site, read.await).await
}

/// `POST /api/v1/breakers/{rule}/reset`.
pub(super) async fn reset_breaker(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    Path(rule): Path<String>,
    body: Body,
) -> Response {
    let read = async {
        let by = authenticated(caller)?;
        let rules = RuleChoice::Named(order::rule_name("rule", rule).map_err(refuse)?);
        let words = order::attribution(&read_short(&site, body).await?).map_err(refuse)?;
        Ok((by, OrderKind::ResetBreaker { rules }, words))
    };
    give(&site, read.await).await
}

/// `PUT /api/v1/launches`.
pub(super) async fn launched(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    order_of(&site, caller, body, |body| Ok((order::launched(body)?, Attribution::default()))).await
}

/// `POST /api/v1/deaths`.
pub(super) async fn died(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    order_of(&site, caller, body, |body| Ok((order::died(body)?, Attribution::default()))).await
}

/// Handles an order whose body has all of it.
pub(super) async fn order_of(
    site: &Site,
    caller: Caller,
    body: Body,
    reader: impl Fn(&[u8]) -> Result<(OrderKind, Attribution), Unreadable>,
) -> Response {
    let read = async {
        let by = authenticated(caller)?;
        let (kind, words) = reader(&read_short(site, body).await?).map_err(refuse)?;
        Ok((by, kind, words))
    };
    give(site, read.await).await
}

/// `POST /api/v1/pause`.
pub(super) async fn begin_pause(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    order_of(&site, caller, body, |body| Ok((OrderKind::Pause, order::attribution(body)?))).await
}

/// `DELETE /api/v1/pause`.
pub(super) async fn end_pause(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    order_of(&site, caller, body, |body| Ok((OrderKind::Resume, order::attribution(body)?))).await
}

/// `POST /api/v1/notes`: records manual work in the journal.
pub(super) async fn note(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    order_of(&site, caller, body, |body| Ok((OrderKind::Note, order::remark(body)?))).await
}

/// The sender of an order. Routes admit authenticated senders only; others are refused here too.
pub(super) fn authenticated(caller: Caller) -> Result<OrderedBy, OrderRefusal> {
    match caller {
        Caller::Authenticated(by) => Ok(by),
        Caller::Anonymous => {
            let text = "orders need an authenticated client";
            Err(Box::new(error(StatusCode::FORBIDDEN, "forbidden", text)))
        }
    }
}

/// The sender in words, with the remark of a body that has nothing else.
pub(super) async fn sender(
    site: &Site,
    caller: Caller,
    body: Body,
) -> Result<String, OrderRefusal> {
    let by = authenticated(caller)?;
    let body = read_short(site, body).await?;
    let Attribution { name, comment } = order::attribution(&body).map_err(refuse)?;
    let author = match by {
        OrderedBy::Local { uid } => author(name.as_deref(), None, uid),
        OrderedBy::Remote { credential, address } => {
            remote_author(name.as_deref(), &credential, address)
        }
    };
    Ok(because(&author, &comment))
}

fn number(text: &str, what: &str) -> Result<u64, OrderRefusal> {
    text.parse().map_err(|_| {
        let text = format!("invalid {what} {text:?}: {what}s have numbers");
        Box::new(error(StatusCode::NOT_FOUND, "not_found", &text))
    })
}

pub(super) async fn read_short(site: &Site, body: Body) -> Result<Vec<u8>, OrderRefusal> {
    let most = usize::try_from(ORDER_BODY_BYTES).unwrap_or(usize::MAX);
    read_body(site, body, most, "the body is longer than 16 KiB, or was truncated").await
}

/// The whole body, within a size limit and a deadline.
pub(super) async fn read_body(
    site: &Site,
    body: Body,
    most: usize,
    too_long: &str,
) -> Result<Vec<u8>, OrderRefusal> {
    let refusal = |status, kind, text: &str| {
        let mut refusal = error(status, kind, text);
        // The rest of the body is not read.
        let close = hyper::header::HeaderValue::from_static("close");
        refusal.headers_mut().insert(hyper::header::CONNECTION, close);
        Err(Box::new(refusal))
    };
    match tokio::time::timeout(site.served.limits.request_header, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes.to_vec()),
        Ok(Err(_)) => refusal(StatusCode::PAYLOAD_TOO_LARGE, "bad_data", too_long),
        Err(_) => {
            refusal(StatusCode::REQUEST_TIMEOUT, "timeout", "the body was not received in time")
        }
    }
}

fn refuse(unreadable: Unreadable) -> OrderRefusal {
    let (status, text) = match unreadable {
        Unreadable::Syntax(text) => (StatusCode::BAD_REQUEST, text),
        Unreadable::Content(text) => (StatusCode::UNPROCESSABLE_ENTITY, text),
    };
    Box::new(error(status, "bad_data", &text))
}

/// Passes the order on, and returns its result.
async fn give(
    site: &Site,
    read: Result<(OrderedBy, OrderKind, Attribution), OrderRefusal>,
) -> Response {
    let (by, kind, Attribution { name, comment }) = match read {
        Ok(read) => read,
        Err(refusal) => return *refusal,
    };
    let (to, received) = oneshot::channel();
    let request = OrderRequest { kind, by, name, comment, answer: to };
    let unavailable = |text: &str| error(StatusCode::SERVICE_UNAVAILABLE, "unavailable", text);
    match site.served.orders.try_send(request) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => return unavailable("too many orders at once; try again"),
        Err(TrySendError::Closed(_)) => return unavailable("umawarden is shutting down"),
    }
    let deadline = site.served.limits.order;
    match tokio::time::timeout(deadline, received).await {
        Ok(Ok(Ok(OrderDone { data, remarks }))) => answer(
            StatusCode::OK,
            &json!({ "status": "success", "data": data, "warnings": remarks }),
        ),
        Ok(Ok(Err(refused))) => {
            let (status, kind) = match refused {
                OrderRefused::NotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
                OrderRefused::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
                OrderRefused::Unusable(_) => (StatusCode::UNPROCESSABLE_ENTITY, "bad_data"),
                OrderRefused::Failed(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            };
            error(status, kind, &refused.to_string())
        }
        Ok(Err(_)) => unavailable("umawarden is shutting down"),
        Err(_) => {
            let text = format!(
                "no response to the order within {} s: the loop hangs, and whether it will be \
                 carried out is unknown; `umawarden pause` on this node works without it",
                deadline.as_secs()
            );
            error(StatusCode::GATEWAY_TIMEOUT, "timeout", &text)
        }
    }
}
