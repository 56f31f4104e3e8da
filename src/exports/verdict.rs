//! `/api/v1/verdict`: memory that no counter accounts for, its cause, and who took memory lately.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::api::success;
use super::routes::Site;
use crate::model::{AccountEntry, MemoryAccount};

/// The current assessment, with its evidence.
pub(super) async fn verdict(State(site): State<Site>) -> Response {
    let status = site.served.status.load_full();
    let mut shown = json!(*status.assessment);
    shown["meaning"] = status.assessment.meaning().into();
    shown["account"] = account(&status.account);
    success(&json!({ "verdict": shown }))
}

/// Times are in seconds, sizes in bytes; `text` is a line for people.
fn account(account: &MemoryAccount) -> Value {
    let entry = |entry: &AccountEntry| {
        let mut shown = json!(entry);
        shown["text"] = entry.to_string().into();
        shown
    };
    json!({
        "window_seconds": account.window.as_secs_f64(),
        "grown_bytes": account.grown_bytes,
        "entries": account.entries.iter().map(entry).collect::<Vec<_>>(),
        "driver_figures_age_seconds": account.driver_figures_age.map(|age| age.as_secs_f64()),
        "scan_age_seconds": account.scan_age.map(|age| age.as_secs_f64()),
    })
}
