//! `/api/v1/verdict`: what the matter is with memory that nobody seems to use, and why.

use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use super::api::success;
use super::routes::Site;

/// The verdict as it stands, with its evidence.
pub(super) async fn verdict(State(site): State<Site>) -> Response {
    let status = site.served.status.load_full();
    let mut shown = json!(*status.verdict);
    shown["meaning"] = status.verdict.verdict.meaning().into();
    success(&json!({ "verdict": shown }))
}
