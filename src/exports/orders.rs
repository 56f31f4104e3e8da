//! Silences, approvals, breakers and the pause: many may look, and whoever was let in to do so may
//! order.

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
    self, Caller, OrderDone, OrderRefused, OrderRequest, RuleChoice, Unreadable, Wish, Words,
};
use super::routes::{ORDER_BODY_BYTES, Site};
use crate::model::{DecisionId, OrderedBy};
use crate::policy::status::GuardStatus;

pub(super) type Refusal = Box<Response>;

fn guard(site: &Site) -> Arc<GuardStatus> {
    Arc::clone(&site.served.status.load().guard)
}

/// Silences in force.
pub(super) async fn silences(State(site): State<Site>) -> Response {
    success(&json!({ "silences": guard(&site).silences }))
}

/// Approvals that are asked for, or given and not used.
pub(super) async fn approvals(State(site): State<Site>) -> Response {
    success(&json!({ "approvals": guard(&site).approvals }))
}

/// Remedies that have missed their aim.
pub(super) async fn breakers(State(site): State<Site>) -> Response {
    success(&json!({ "breakers": guard(&site).breakers }))
}

/// Whether nothing is done now, and on whose word.
pub(super) async fn pause(State(site): State<Site>) -> Response {
    success(&pause_json(&guard(&site)))
}

/// A pause for JSON.
pub(super) fn pause_json(guard: &GuardStatus) -> Value {
    json!({ "paused": guard.pause.is_some(), "pause": guard.pause })
}

/// `POST /api/v1/silences`.
pub(super) async fn make_silence(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    told(&site, caller, body, order::silence).await
}

/// `DELETE /api/v1/silences/{id}`.
pub(super) async fn end_silence(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    body: Body,
) -> Response {
    let read = async {
        let by = known(caller)?;
        let id = number(&id, "silence")?;
        let words = order::plain_words(&read_short(&site, body).await?).map_err(refuse)?;
        Ok((by, Wish::EndSilence { id }, words))
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
    let read = async {
        let by = known(caller)?;
        let decision = DecisionId(number(&decision, "decision")?);
        let body = read_short(&site, body).await?;
        let (wish, words) = order::approval(decision, &body).map_err(refuse)?;
        Ok((by, wish, words))
    };
    give(&site, read.await).await
}

/// `POST /api/v1/breakers/{rule}/reset`.
pub(super) async fn reset_breaker(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    Path(rule): Path<String>,
    body: Body,
) -> Response {
    let read = async {
        let by = known(caller)?;
        let rules = RuleChoice::Named(order::rule_name("rule", rule).map_err(refuse)?);
        let words = order::plain_words(&read_short(&site, body).await?).map_err(refuse)?;
        Ok((by, Wish::ResetBreaker { rules }, words))
    };
    give(&site, read.await).await
}

/// `PUT /api/v1/launches`.
pub(super) async fn launched(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    told(&site, caller, body, |body| Ok((order::launched(body)?, Words::default()))).await
}

/// `POST /api/v1/deaths`.
pub(super) async fn died(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    told(&site, caller, body, |body| Ok((order::died(body)?, Words::default()))).await
}

/// Takes an order all of which stands in its body.
pub(super) async fn told(
    site: &Site,
    caller: Caller,
    body: Body,
    reader: impl Fn(&[u8]) -> Result<(Wish, Words), Unreadable>,
) -> Response {
    let read = async {
        let by = known(caller)?;
        let (wish, words) = reader(&read_short(site, body).await?).map_err(refuse)?;
        Ok((by, wish, words))
    };
    give(site, read.await).await
}

/// `POST /api/v1/pause`.
pub(super) async fn begin_pause(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    told(&site, caller, body, |body| Ok((Wish::Pause, order::plain_words(body)?))).await
}

/// `DELETE /api/v1/pause`.
pub(super) async fn end_pause(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    told(&site, caller, body, |body| Ok((Wish::Resume, order::plain_words(body)?))).await
}

/// `POST /api/v1/notes`: whoever does something by hand tells the journal.
pub(super) async fn note(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    told(&site, caller, body, |body| Ok((Wish::Note, order::remark(body)?))).await
}

/// Who orders something. Nobody comes here unknown; were it so, nothing would be done.
pub(super) fn known(caller: Caller) -> Result<OrderedBy, Refusal> {
    match caller {
        Caller::Known(by) => Ok(by),
        Caller::Anybody => {
            let text = "orders need somebody who gives them";
            Err(Box::new(error(StatusCode::FORBIDDEN, "forbidden", text)))
        }
    }
}

fn number(text: &str, what: &str) -> Result<u64, Refusal> {
    text.parse().map_err(|_| {
        let text = format!("there is no {what} {text:?}: {what}s have numbers");
        Box::new(error(StatusCode::NOT_FOUND, "not_found", &text))
    })
}

async fn read_short(site: &Site, body: Body) -> Result<Vec<u8>, Refusal> {
    let most = usize::try_from(ORDER_BODY_BYTES).unwrap_or(usize::MAX);
    read_body(site, body, most, "the body is longer than 16 KiB, or was cut off").await
}

/// The whole body, if it is no longer than that and comes in time.
pub(super) async fn read_body(
    site: &Site,
    body: Body,
    most: usize,
    too_long: &str,
) -> Result<Vec<u8>, Refusal> {
    let refusal = |status, kind, text: &str| {
        let mut refusal = error(status, kind, text);
        // What is left of the body is not worth reading.
        let close = hyper::header::HeaderValue::from_static("close");
        refusal.headers_mut().insert(hyper::header::CONNECTION, close);
        Err(Box::new(refusal))
    };
    match tokio::time::timeout(site.served.limits.request_header, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes.to_vec()),
        Ok(Err(_)) => refusal(StatusCode::PAYLOAD_TOO_LARGE, "bad_data", too_long),
        Err(_) => refusal(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not come in time"),
    }
}

fn refuse(unreadable: Unreadable) -> Refusal {
    let (status, text) = match unreadable {
        Unreadable::Syntax(text) => (StatusCode::BAD_REQUEST, text),
        Unreadable::Content(text) => (StatusCode::UNPROCESSABLE_ENTITY, text),
    };
    Box::new(error(status, "bad_data", &text))
}

/// Hands the order on, and tells what came of it.
async fn give(site: &Site, read: Result<(OrderedBy, Wish, Words), Refusal>) -> Response {
    let (by, wish, Words { name, comment }) = match read {
        Ok(read) => read,
        Err(refusal) => return *refusal,
    };
    let (to, answered) = oneshot::channel();
    let request = OrderRequest { wish, by, name, comment, answer: to };
    let unavailable = |text: &str| error(StatusCode::SERVICE_UNAVAILABLE, "unavailable", text);
    match site.served.orders.try_send(request) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => return unavailable("too many orders at once; try again"),
        Err(TrySendError::Closed(_)) => return unavailable("umawarden is shutting down"),
    }
    let deadline = site.served.limits.order;
    match tokio::time::timeout(deadline, answered).await {
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
                "the order was not answered within {} s: umawarden hangs, and whether it will \
                 obey is not known; `umawarden pause` on this node works all the same",
                deadline.as_secs()
            );
            error(StatusCode::GATEWAY_TIMEOUT, "timeout", &text)
        }
    }
}
