//! `/api/v1/reboot`: where it stands with reboots; who may order is let in by the control socket.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use super::api::success;
use super::order::{self, Caller, Wish};
use super::orders::told;
use super::routes::Site;

/// `GET`: as it stands.
pub(super) async fn reboot(State(site): State<Site>) -> Response {
    let status = site.served.status.load_full();
    let mut shown = json!(*status.reboot);
    shown["meaning"] = status.reboot.stage.meaning().into();
    success(&json!({ "reboot": shown }))
}

/// `POST`: the machine is to be rebooted.
pub(super) async fn order(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    told(&site, caller, body, order::reboot).await
}

/// `DELETE`: what is scheduled is called off.
pub(super) async fn cancel(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    told(&site, caller, body, |body| Ok((Wish::CancelReboot, order::plain_words(body)?))).await
}

/// `POST /api/v1/reboot/clear`: those that did not help are forgiven.
pub(super) async fn clear(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    told(&site, caller, body, |body| Ok((Wish::ClearReboots, order::plain_words(body)?))).await
}
