//! The picture of the node: `/api/v1/picture`, `/api/v1/live`, `/api/v1/memory` and
//! `/api/v1/explain`.
//!
//! A picture of a snapshot is rendered once for all clients.

pub(super) mod explain;
pub(super) mod live;
pub(super) mod memory;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::{StatusCode, header};
use tokio::sync::OnceCell;

use super::api::{error, query_journal};
use super::routes::Site;
use super::{Served, VERSION};
use crate::model::{MOST_HAPPENED, Moment, Picture, RecentEvent};
use crate::policy::overview::{self, PictureContext};
use crate::policy::status::Status;

/// A picture of the same snapshot is sent again for so long: it has the age of the snapshot.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// How long a request waits for the past in the journal.
const EARLIER_TAKES: Duration = Duration::from_secs(1);

/// Between attempts to read the past.
const EARLIER_PAUSE: Duration = Duration::from_secs(10);

/// What all requests for the picture share.
#[derive(Debug, Default)]
pub(super) struct Pictures {
    rendered: Mutex<Option<Rendered>>,
    earlier: OnceCell<Vec<RecentEvent>>,
    earlier_failed: Mutex<Option<Duration>>,
    pub(super) live: Arc<live::PictureFeed>,
    /// Until when the time of the loop for explanations is spent, on the uptime clock.
    explaining: tokio::sync::Mutex<Duration>,
}

#[derive(Debug)]
struct Rendered {
    at: Duration,
    /// Address and time of the snapshot. A reference would keep the loop from using it again.
    of: (usize, Moment),
    json: Bytes,
}

impl Pictures {
    /// The picture now.
    pub(super) fn picture(&self, served: &Served, status: &Status) -> Picture {
        let failures = failures(served);
        let about = PictureContext {
            node: &served.node.name,
            version: VERSION,
            model: served.node.model.as_deref(),
            now: (served.uptime)(),
            stale_after: served.limits.snapshot_age,
            earlier: self.earlier.get().map(Vec::as_slice).unwrap_or_default(),
            failures: &failures,
        };
        overview::picture(status, &about)
    }

    /// Whether what happened before this run has been read.
    pub(super) fn knows_earlier(&self) -> bool {
        self.earlier.initialized()
    }

    /// The picture as JSON.
    fn json(&self, served: &Served) -> serde_json::Result<Bytes> {
        let now = (served.uptime)();
        let status = served.status.load_full();
        let of = (Arc::as_ptr(&status).addr(), status.at);
        let mut rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |known: &&Rendered| known.of == of && now < known.at + FRESH_FOR;
        if let Some(known) = rendered.as_ref().filter(is_same) {
            return Ok(known.json.clone());
        }
        let json = Bytes::from(serde_json::to_vec(&self.picture(served, &status))?);
        *rendered = Some(Rendered { at: now, of, json: json.clone() });
        Ok(json)
    }

    /// Reads what happened before this run, once. A journal that cannot be read is tried again
    /// later.
    pub(super) async fn find_earlier(&self, site: &Site) {
        let now = (site.served.uptime)();
        let failed = *self.earlier_failed.lock().unwrap_or_else(PoisonError::into_inner);
        if self.earlier.initialized() || failed.is_some_and(|then| now < then + EARLIER_PAUSE) {
            return;
        }
        let started = site.served.status.load().started.utc;
        let read = || {
            query_journal(site, EARLIER_TAKES, move |queries| {
                (queries.happened)(started, MOST_HAPPENED)
            })
        };
        if self.earlier.get_or_try_init(read).await.is_err() {
            *self.earlier_failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        }
    }
}

/// Lines of a failure that are shown.
const MOST_LINES: usize = 3;

/// Configuration that could not be used, one sentence each.
fn failures(served: &Served) -> Vec<String> {
    let reload = served.reload_failure.load();
    let reload = reload.as_ref().map(|failure| {
        sentence(
            "the last reload failed, and the previous rules and settings are in force",
            &failure.why,
        )
    });
    let access = served.access.failure().map(|failure| {
        sentence(
            "the files of access control have mistakes, and the previous ones are in force",
            &failure.why,
        )
    });
    reload.into_iter().chain(access).collect()
}

fn sentence(what: &str, why: &str) -> String {
    let lines: Vec<&str> = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let shown = lines.iter().take(MOST_LINES).copied().collect::<Vec<_>>().join("; ");
    match lines.len().saturating_sub(MOST_LINES) {
        0 => format!("{what}: {shown}"),
        more => format!("{what}: {shown}; `umawarden config check` shows {more} more lines"),
    }
}

/// `GET /api/v1/picture`.
pub(super) async fn picture(State(site): State<Site>) -> Response {
    site.pictures.find_earlier(&site).await;
    match site.pictures.json(&site.served) {
        Ok(json) => {
            let body = [br#"{"status":"success","data":"#, &*json, b"}"].concat();
            (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err(problem) => internal(&problem),
    }
}

fn internal(problem: &serde_json::Error) -> Response {
    let text = format!("cannot write the picture: {problem}");
    error(StatusCode::INTERNAL_SERVER_ERROR, "internal", &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_sentence_with_its_first_lines() {
        assert_eq!(sentence("it failed", "a: b\n\n  c\n"), "it failed: a: b; c");
        let long = "it failed: 1; 2; 3; `umawarden config check` shows 2 more lines";
        assert_eq!(sentence("it failed", "1\n2\n3\n4\n5"), long);
    }
}
