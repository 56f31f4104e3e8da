//! Which path leads where, and what holds for all of them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, StatusCode, Uri};
use tokio::sync::{Mutex, Semaphore};

use super::negotiation::{self, Format};
use super::{
    Served, api, cluster, engines, exposition, gate, landing, orders, probes, reboot, verdict,
};

/// By this a node that asks itself knows that it does.
const INSTANCE: &str = "umawarden-instance";

/// Longer request targets are nobody's.
const MAX_URI_BYTES: usize = 4096;
/// No order is longer, and nothing else needs a body.
pub(super) const MAX_BODY_BYTES: u64 = 16 * 1024;
/// Scrapes that are written at once; others wait, so that they cannot take every thread.
const SCRAPES: usize = 2;
/// For a scrape's turn.
const SCRAPE_WAIT: Duration = Duration::from_secs(5);
/// Journal queries that run at once, on threads of their own.
const QUERIES: usize = 4;

/// Fixed paths, apart from the telemetry path.
const PATHS: [(&str, &str); 20] = [
    ("/", "overview"),
    ("/-/healthy", "200 while this node is watched"),
    ("/-/ready", "200 once something has been sampled"),
    ("/-/reload", "POST: read configuration and rules again"),
    ("/api/v1/status", "sources, rules, alerts (JSON)"),
    ("/api/v1/rules", "rules as in Prometheus' API (JSON)"),
    ("/api/v1/alerts", "alerts as in Prometheus' API (JSON)"),
    ("/api/v1/engines", "inference engines and their phases (JSON)"),
    ("/api/v1/cluster", "the nodes of the cluster, and the weakest (JSON)"),
    ("/api/v1/gate", "?need=90GiB: whether this node can take it now (JSON)"),
    ("/api/v1/verdict", "what holds memory that no counter names, and why (JSON)"),
    ("/api/v1/events", "kernel events from the journal (JSON)"),
    ("/api/v1/decisions", "decisions and outcomes from the journal (JSON)"),
    ("/api/v1/notes", "POST: keep a remark in the journal"),
    ("/api/v1/orders", "what people ordered, from the journal (JSON)"),
    ("/api/v1/silences", "silences in force (JSON)"),
    ("/api/v1/approvals", "decisions that wait for approval (JSON)"),
    ("/api/v1/breakers", "remedies that missed their aim (JSON)"),
    ("/api/v1/reboot", "the reboot that is scheduled, and what came of the last (JSON)"),
    ("/api/v1/pause", "whether nothing is done now (JSON)"),
];

/// What every handler can reach.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) served: Arc<Served>,
    pub(super) reloading: Arc<Mutex<()>>,
    pub(super) queries: Arc<Semaphore>,
    scrapes: Arc<Semaphore>,
}

impl Site {
    /// All paths with their meaning.
    pub(super) fn paths(&self) -> impl Iterator<Item = (&str, &str)> {
        let telemetry = self.served.telemetry_path.as_str();
        std::iter::once((telemetry, "metrics"))
            .chain(PATHS.into_iter().filter(move |(path, _)| *path != telemetry))
    }
}

/// Whether metrics can be served there: `/` and plain characters, and not the path of another page.
/// `/` itself is fine; then there is no landing page.
///
/// # Errors
/// Says what is wrong with it.
pub fn check_telemetry_path(path: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~/".contains(c);
    if !path.starts_with('/') || !path.chars().all(plain) || path.len() > 256 {
        return Err(format!(
            "the telemetry path {path:?} must begin with / and consist of letters, digits and -._~/"
        ));
    }
    if path != "/" && PATHS.iter().any(|(taken, _)| *taken == path) {
        return Err(format!("the telemetry path {path:?} is the path of another page"));
    }
    Ok(())
}

pub(super) fn router(served: Arc<Served>) -> Result<Router, String> {
    check_telemetry_path(&served.telemetry_path)?;
    let site = Site {
        reloading: Arc::new(Mutex::new(())),
        queries: Arc::new(Semaphore::new(QUERIES)),
        scrapes: Arc::new(Semaphore::new(SCRAPES)),
        served: Arc::clone(&served),
    };
    let mut router = Router::new()
        .route(&served.telemetry_path, get(metrics))
        .route("/-/healthy", get(probes::healthy))
        .route("/-/ready", get(probes::ready))
        .route("/-/reload", post(probes::reload))
        .route("/api/v1/status", get(api::status))
        .route("/api/v1/rules", get(api::rules))
        .route("/api/v1/alerts", get(api::alerts))
        .route("/api/v1/engines", get(engines::engines))
        .route("/api/v1/cluster", get(cluster::cluster))
        .route("/api/v1/gate", get(gate::gate))
        .route("/api/v1/verdict", get(verdict::verdict))
        .route("/api/v1/events", get(api::events))
        .route("/api/v1/decisions", get(api::decisions))
        .merge(order_routes());
    if served.telemetry_path != "/" {
        router = router.route("/", get(landing::page));
    }
    Ok(router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn(for_all))
        .with_state(site))
}

/// Those that a person acts by; handlers that act see to it that nobody else does.
fn order_routes() -> Router<Site> {
    Router::new()
        .route("/api/v1/orders", get(api::orders))
        .route("/api/v1/notes", post(orders::note))
        .route("/api/v1/silences", get(orders::silences).post(orders::make_silence))
        .route("/api/v1/silences/{id}", delete(orders::end_silence))
        .route("/api/v1/approvals", get(orders::approvals))
        .route("/api/v1/approvals/{decision}", post(orders::approve))
        .route("/api/v1/launches", put(orders::launched))
        .route("/api/v1/deaths", post(orders::died))
        .route("/api/v1/breakers", get(orders::breakers))
        .route("/api/v1/breakers/{rule}/reset", post(orders::reset_breaker))
        .route("/api/v1/reboot", get(reboot::reboot).post(reboot::order).delete(reboot::cancel))
        .route("/api/v1/reboot/clear", post(reboot::clear))
        .route(
            "/api/v1/pause",
            get(orders::pause).post(orders::begin_pause).delete(orders::end_pause),
        )
}

/// Refuses what is too large, and adds the headers that every response carries.
async fn for_all(request: Request, next: Next) -> Response {
    let uri_bytes = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let mut response = if uri_bytes > MAX_URI_BYTES {
        let text = "the request's address is too long\n";
        refusal(request.uri(), StatusCode::URI_TOO_LONG, "bad_data", text)
    } else if body_bytes(request.headers()) > MAX_BODY_BYTES {
        let text = "no request here needs so long a body: 16 KiB are the most\n";
        let too_large = StatusCode::PAYLOAD_TOO_LARGE;
        let mut refusal = refusal(request.uri(), too_large, "bad_data", text);
        refusal.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        refusal
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// As announced; chunked bodies announce nothing, and are read up to the same bound.
fn body_bytes(headers: &HeaderMap) -> u64 {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    length.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The metrics of the latest snapshot.
async fn metrics(State(site): State<Site>, headers: HeaderMap) -> Response {
    let Ok(Ok(_turn)) = tokio::time::timeout(SCRAPE_WAIT, site.scrapes.acquire()).await else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "too many scrapes at once\n");
    };
    let format = negotiation::format(&headers);
    let gzip = negotiation::accepts_gzip(&headers);
    match exposition(&site, format, gzip) {
        Ok(body) => {
            let mut response = Response::new(Body::from(body));
            let out = response.headers_mut();
            out.insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
            if let Ok(instance) = HeaderValue::from_str(&site.served.instance) {
                out.insert(INSTANCE, instance);
            }
            out.insert(header::VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
            if gzip {
                out.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            response
        }
        Err(error) => plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the metrics cannot be written: {error}\n"),
        ),
    }
}

fn exposition(site: &Site, format: Format, gzip: bool) -> io::Result<Bytes> {
    let text = exposition::text(site.served.status.load_full(), format)?;
    Ok(if gzip { exposition::gzip(&text)?.into() } else { text.into() })
}

/// For whoever asks for a page that there is not.
async fn not_found(State(site): State<Site>, uri: Uri) -> Response {
    let mut text = "404 page not found. ".to_owned();
    let bare = uri.path().trim_end_matches('/');
    if let Some((path, _)) = site.paths().find(|(path, _)| *path == bare) {
        text.push_str(&format!("Without a slash at its end it is: {path}\n"));
    }
    text.push_str(&format!("The metrics are at {}. There are:\n", site.served.telemetry_path));
    for (path, meaning) in site.paths() {
        text.push_str(&format!("  {path}  {meaning}\n"));
    }
    refusal(&uri, StatusCode::NOT_FOUND, "not_found", &text)
}

/// For whoever uses another method than the page's.
async fn method_not_allowed(uri: Uri) -> Response {
    let status = StatusCode::METHOD_NOT_ALLOWED;
    refusal(&uri, status, "method_not_allowed", "method not allowed\n")
}

/// Programs read the API, and people the rest.
fn refusal(uri: &Uri, status: StatusCode, kind: &str, text: &str) -> Response {
    match uri.path().starts_with("/api/") {
        true => api::error(status, kind, text.trim_end()),
        false => plain(status, text),
    }
}

/// A response for people and shells.
pub(super) fn plain(status: StatusCode, text: impl Into<String>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    (status, kind, text.into()).into_response()
}
