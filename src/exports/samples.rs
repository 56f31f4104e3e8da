//! `/api/v1/query` and its relatives, as Prometheus responds to them: Grafana's data source for
//! Prometheus reads this node without a Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query as UriQuery, State};
use axum::response::{IntoResponse, Response};
use hyper::{StatusCode, Uri, header};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::json;
use tokio::sync::Semaphore;

use super::api::{error, success};
use super::orders::read_short;
use super::routes::Site;
use super::{VERSION, probes};
use crate::samples::{CatalogueListing, Data, Parameters, QueryFailure, SampleQuery, metadata};

/// The time limit of one query, with the wait for its turn.
const QUERY_TAKES: Duration = Duration::from_secs(10);

/// How much of it a query or a list may wait for the flight recorder.
const PAST_TAKES: Duration = Duration::from_secs(5);

/// Characters that clients leave as they are in a form, and that a URI may not have.
const RAW_IN_FORMS: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>');

type SampleRefusal = Box<Response>;

/// `GET` and `POST /api/v1/query`: at one instant.
pub(super) async fn query(State(site): State<Site>, uri: Uri, body: Body) -> Response {
    let parameters = match parameters(&site, &uri, body).await {
        Ok(parameters) => parameters,
        Err(refusal) => return *refusal,
    };
    let now_ms = site.served.status.load().at.utc.as_millisecond();
    found(&site, SampleQuery::at_instant(&parameters, now_ms)).await
}

/// `GET` and `POST /api/v1/query_range`: at the steps of a range.
pub(super) async fn query_range(State(site): State<Site>, uri: Uri, body: Body) -> Response {
    match parameters(&site, &uri, body).await {
        Ok(parameters) => found(&site, SampleQuery::over_range(&parameters)).await,
        Err(refusal) => *refusal,
    }
}

/// `GET` and `POST /api/v1/series`.
pub(super) async fn series(State(site): State<Site>, uri: Uri, body: Body) -> Response {
    listed(&site, &uri, body, CatalogueListing::Series).await
}

/// `GET` and `POST /api/v1/labels`.
pub(super) async fn labels(State(site): State<Site>, uri: Uri, body: Body) -> Response {
    listed(&site, &uri, body, CatalogueListing::Labels).await
}

/// `GET /api/v1/label/{name}/values`.
pub(super) async fn values(
    State(site): State<Site>,
    Path(name): Path<String>,
    uri: Uri,
    body: Body,
) -> Response {
    listed(&site, &uri, body, CatalogueListing::Values(name)).await
}

/// `GET /api/v1/metadata`.
pub(super) async fn metric_metadata(State(site): State<Site>, uri: Uri, body: Body) -> Response {
    let parameters = match parameters(&site, &uri, body).await {
        Ok(parameters) => parameters,
        Err(refusal) => return *refusal,
    };
    match metadata(&parameters) {
        Ok(data) => success(&data),
        Err(why) => failed(&QueryFailure::BadData(why)),
    }
}

/// `GET /api/v1/status/buildinfo`, by which clients recognise the program.
pub(super) async fn build_info() -> Response {
    success(&json!({
        "application": "umawarden",
        "version": VERSION,
        "revision": env!("UMAWARDEN_REVISION"),
        "branch": "",
        "buildUser": "",
        "buildDate": "",
        "goVersion": "",
    }))
}

/// The parameters of the body, which is a form, and of the URI.
async fn parameters(site: &Site, uri: &Uri, body: Body) -> Result<Parameters, SampleRefusal> {
    let bad = |what: &str| Box::new(failed(&QueryFailure::BadData(format!("cannot parse {what}"))));
    let pairs = |uri: &Uri, what: &str| {
        UriQuery::<Vec<(String, String)>>::try_from_uri(uri)
            .map(|UriQuery(pairs)| pairs)
            .map_err(|_| bad(what))
    };
    let body = read_short(site, body).await?;
    let mut all = Vec::new();
    if !body.is_empty() {
        // A form is written like the query of a URI.
        let text = std::str::from_utf8(&body).map_err(|_| bad("the form in the body"))?;
        let form = utf8_percent_encode(text.trim(), RAW_IN_FORMS);
        let form = format!("/?{form}").parse::<Uri>();
        let form = form.map_err(|_| bad("the form in the body"))?;
        all = pairs(&form, "the form in the body")?;
    }
    all.extend(pairs(uri, "the query of the URI")?);
    Ok(Parameters::new(all))
}

async fn found(site: &Site, query: Result<SampleQuery, QueryFailure>) -> Response {
    let query = match query {
        Ok(query) => query,
        Err(failure) => return failed(&failure),
    };
    let limit = limit(&query);
    let served = Arc::clone(&site.served);
    let found = on_a_thread(site, limit, move |is_canceled| {
        let now = served.status.load_full();
        let result = served.samples.query(&query, &now, PAST_TAKES, is_canceled)?;
        Ok(result.data().envelope(&result.warnings))
    });
    written(found.await)
}

/// The time limit of a query: its own, if that is shorter.
fn limit(query: &SampleQuery) -> Duration {
    query.timeout.unwrap_or(QUERY_TAKES).min(QUERY_TAKES)
}

async fn listed(site: &Site, uri: &Uri, body: Body, listing: CatalogueListing) -> Response {
    let parameters = match parameters(site, uri, body).await {
        Ok(parameters) => parameters,
        Err(refusal) => return *refusal,
    };
    let listed = match listing.read(&parameters) {
        Ok(listed) => listed,
        Err(failure) => return failed(&failure),
    };
    let served = Arc::clone(&site.served);
    let found = on_a_thread(site, QUERY_TAKES, move |is_canceled| {
        let now = served.status.load_full();
        let (all, remark) = served.samples.series(&listed, &now, PAST_TAKES, is_canceled)?;
        let (data, mut warnings) = listing.of(&all, &listed);
        warnings.extend(remark);
        Ok(Data(data.to_string()).envelope(&warnings))
    });
    written(found.await)
}

/// Cancels the work once nobody waits for it.
struct Canceled(Arc<AtomicBool>);

impl Drop for Canceled {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does the work in its turn, once this node has been sampled.
async fn on_a_thread(
    site: &Site,
    limit: Duration,
    work: impl FnOnce(&AtomicBool) -> Result<String, QueryFailure> + Send + 'static,
) -> Result<String, QueryFailure> {
    if !probes::was_sampled(&site.served.status.load()) {
        return Err(QueryFailure::Unavailable("this node has not been sampled yet".to_owned()));
    }
    in_turn(Arc::clone(&site.sample_queries), limit, work).await
}

/// Does the work in its turn, on a thread of its own. It is canceled once the time is over or the
/// client has left.
async fn in_turn(
    turns: Arc<Semaphore>,
    limit: Duration,
    work: impl FnOnce(&AtomicBool) -> Result<String, QueryFailure> + Send + 'static,
) -> Result<String, QueryFailure> {
    let canceled = Canceled(Arc::default());
    let is_canceled = Arc::clone(&canceled.0);
    let done = async move {
        let turn = turns.acquire_owned().await;
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(&is_canceled)
        })
        .await
    };
    match tokio::time::timeout(limit, done).await {
        Ok(Ok(result)) => result,
        Ok(Err(failure)) => Err(QueryFailure::Execution(failure.to_string())),
        Err(_) => Err(QueryFailure::Timeout(format!(
            "query timed out: it was not done within {} s, with the wait for other queries; \
             choose a shorter range or a longer step, or query less at once",
            limit.as_secs_f64()
        ))),
    }
}

fn written(found: Result<String, QueryFailure>) -> Response {
    match found {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(failure) => failed(&failure),
    }
}

/// With the status that Prometheus gives to each kind.
fn failed(failure: &QueryFailure) -> Response {
    let status = match failure {
        QueryFailure::BadData(_) => StatusCode::BAD_REQUEST,
        QueryFailure::Execution(_) => StatusCode::UNPROCESSABLE_ENTITY,
        QueryFailure::Timeout(_) | QueryFailure::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    error(status, failure.kind(), &failure.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::routes::SAMPLE_QUERIES;
    use super::*;

    #[tokio::test]
    async fn a_query_that_gets_no_turn_times_out_and_the_next_one_gets_it() {
        let turns = Arc::new(Semaphore::new(SAMPLE_QUERIES));
        let running: Vec<_> =
            (0..SAMPLE_QUERIES).map(|_| Arc::clone(&turns).try_acquire_owned().unwrap()).collect();
        let parameter = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let parameters = vec![parameter("query", "1"), parameter("timeout", "100ms")];
        let query = SampleQuery::at_instant(&Parameters::new(parameters), 0).unwrap();
        let work = |_: &AtomicBool| Ok("done".to_owned());
        let response = written(in_turn(Arc::clone(&turns), limit(&query), work).await);
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["errorType"], "timeout", "{body}");
        let error = body["error"].as_str().unwrap();
        assert!(error.contains("not done within 0.1 s"), "{error}");
        drop(running);
        assert_eq!(in_turn(turns, QUERY_TAKES, work).await.unwrap(), "done");
    }
}
