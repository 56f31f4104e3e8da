//! Who a client is, for pages.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use hyper::HeaderMap;
use serde_json::json;

use super::admission::ConnectionOrigin;
use super::api::success;
use super::routes::Site;
use crate::model::Role;

/// `GET /api/v1/access`: the role of the client, and its name. A browser sends its password or its
/// certificate.
pub(super) async fn access(
    State(site): State<Site>,
    arrival: Option<Extension<ConnectionOrigin>>,
    headers: HeaderMap,
) -> Response {
    let access = &site.served.access;
    let (role, name) = match arrival.as_ref().map(|Extension(arrival)| arrival) {
        Some(ConnectionOrigin::Control { uid }) => (Role::Remedy, Some(format!("user id {uid}"))),
        Some(arrival @ ConnectionOrigin::Network { address, .. }) => {
            let certificate = arrival.certificate(&site);
            match access.identify(*address, &headers, certificate).await {
                Some((credential, role)) => (role, Some(credential.to_string())),
                None => (Role::Read, None),
            }
        }
        None => (Role::Read, None),
    };
    success(&json!({ "role": role, "name": name }))
}
