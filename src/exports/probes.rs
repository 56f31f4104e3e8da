//! `/-/healthy`, `/-/ready` and `/-/reload`.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use tokio::sync::oneshot;

use super::ReloadRequest;
use super::order::Caller;
use super::routes::{Site, plain};
use crate::model::{OrderedBy, Source};
use crate::policy::status::Status;

/// 200 while the loop samples. A server that responds does not prove that.
pub(super) async fn healthy(State(site): State<Site>) -> Response {
    let age = (site.served.uptime)().saturating_sub(site.served.status.load().at.uptime);
    if age > site.served.limits.snapshot_age {
        let text = format!(
            "umawarden does not sample: its last sample is {:.1} s old\n",
            age.as_secs_f64()
        );
        return plain(StatusCode::SERVICE_UNAVAILABLE, text);
    }
    plain(StatusCode::OK, "umawarden is healthy\n")
}

/// 200 once the node was sampled.
pub(super) async fn ready(State(site): State<Site>) -> Response {
    if has_sample(&site.served.status.load()) {
        return plain(StatusCode::OK, "umawarden is ready\n");
    }
    not_ready()
}

/// The response before the first sample.
pub(super) fn not_ready() -> Response {
    plain(StatusCode::SERVICE_UNAVAILABLE, "umawarden is not ready: no sample yet\n")
}

/// Whether memory was sampled and a source other than umawarden itself has responded. The kernel
/// log is read before that.
fn has_sample(status: &Status) -> bool {
    let has_answer = status.sources.iter().any(|source| {
        let own = matches!(
            source.source,
            Source::Process | Source::Journal | Source::Daemon | Source::BlackBox | Source::Docker
        );
        source.up && !own
    });
    was_sampled(status) && has_answer
}

/// Whether memory was sampled, with whatever result.
pub(super) fn was_sampled(status: &Status) -> bool {
    status.sources.iter().any(|source| source.source == Source::Meminfo)
}

/// Reloads configuration and rules; one request at a time.
pub(super) async fn reload(
    State(site): State<Site>,
    Extension(caller): Extension<Caller>,
) -> Response {
    let Caller::Authenticated(by) = caller else {
        return plain(StatusCode::FORBIDDEN, "a reload needs an authenticated client\n");
    };
    let deadline = site.served.limits.reload;
    match tokio::time::timeout(deadline, request_reload(&site, by)).await {
        Ok(Some(Ok(summary))) => plain(StatusCode::OK, with_newline(summary)),
        Ok(Some(Err(problems))) => plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            with_newline(format!("failed to reload: {problems}")),
        ),
        Ok(None) => plain(StatusCode::SERVICE_UNAVAILABLE, "umawarden is shutting down\n"),
        Err(_) => plain(
            StatusCode::GATEWAY_TIMEOUT,
            format!("the reload did not end within {} s; see the log\n", deadline.as_secs()),
        ),
    }
}

async fn request_reload(site: &Site, by: OrderedBy) -> Option<Result<String, String>> {
    let _turn = site.reloading.lock().await;
    let (answer, received) = oneshot::channel();
    site.served.reload.send(ReloadRequest { by, answer }).await.ok()?;
    received.await.ok()
}

fn with_newline(mut text: String) -> String {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}
