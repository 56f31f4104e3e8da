//! The table of routes, and the middleware for all of them.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};
use axum::{Extension, Router};
use http_body_util::Limited;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode, Uri};
use tokio::sync::{Mutex, Semaphore, watch};

use super::admission::{self, ConnectionOrigin, RequestedRoute};
use super::negotiation::{self, Format};
use super::selection::NameSelection;
use super::unread::UnreadLimit;
use super::{
    Served, api, cluster, engines, exposition, gate, host, identity, lease, orders, page, picture,
    probes, reboot, received, samples, verdict,
};
use crate::access::Requirement;
use crate::model::{RefusalReason, Role};
use crate::policy::status::Status;

/// The header by which a node recognises itself in a response.
const INSTANCE: &str = "umawarden-instance";

/// The longest request URI.
const MAX_URI_BYTES: usize = 4096;
/// The longest body of an order.
pub(super) const ORDER_BODY_BYTES: u64 = 16 * 1024;
/// A name and two numbers, with a margin.
const LAUNCH_BODY_BYTES: u64 = 12 * 1024;
/// Concurrent scrapes. Others wait, so that they cannot occupy every thread.
const SCRAPES: usize = 2;
/// How long a scrape waits for its turn.
const SCRAPE_WAIT: Duration = Duration::from_secs(5);
/// Concurrent journal queries, on threads of their own.
const QUERIES: usize = 4;
/// Concurrent queries of samples, on threads of their own; each has up to 32 MiB.
pub(super) const SAMPLE_QUERIES: usize = 2;

/// A path, its handler, and who may use it.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// What a request from the network needs; the control socket may do everything.
    pub(super) needs: Requirement,
    /// The longest body that is read.
    pub(super) body_bytes: u64,
    pub(super) meaning: &'static str,
    handler: fn() -> MethodRouter<Site>,
}

impl Route {
    const fn get(
        path: &'static str,
        meaning: &'static str,
        handler: fn() -> MethodRouter<Site>,
    ) -> Self {
        Self::new(Method::GET, path, Requirement::Role(Role::Read), meaning, handler)
    }

    const fn new(
        method: Method,
        path: &'static str,
        needs: Requirement,
        meaning: &'static str,
        handler: fn() -> MethodRouter<Site>,
    ) -> Self {
        Self { method, path, needs, body_bytes: ORDER_BODY_BYTES, meaning, handler }
    }

    /// Sets the limit of the body.
    const fn longest_body(mut self, bytes: u64) -> Self {
        self.body_bytes = bytes;
        self
    }
}

const READ: Requirement = Requirement::Role(Role::Read);
const OPERATE: Requirement = Requirement::Role(Role::Operate);
const REMEDY: Requirement = Requirement::Role(Role::Remedy);

/// All routes except the telemetry path. Other requests are refused.
pub(super) static ROUTES: [Route; 54] = [
    Route::get("/", "overview", || get(page::page)),
    Route::get("/assets/{file}", "script and style of the overview", || get(page::asset)),
    Route::get("/-/healthy", "200 while this node is sampled", || get(probes::healthy)),
    Route::get("/-/ready", "200 after the first sample", || get(probes::ready)),
    Route::new(Method::POST, "/-/reload", OPERATE, "reload configuration and rules", || {
        post(probes::reload)
    }),
    Route::get("/api/v1/picture", "what the overview shows (JSON)", || get(picture::picture)),
    Route::get("/api/v1/live", "the same each second (server-sent events)", || {
        get(picture::live::live)
    }),
    Route::get("/api/v1/memory", "?since=1h: memory of the last hour, by part (JSON)", || {
        get(picture::memory::memory)
    }),
    Route::get("/api/v1/explain", "?decision=17 or ?rule=NAME: why, as a tree (JSON)", || {
        get(picture::explain::explain)
    }),
    Route::get("/api/v1/access", "the role of the client (JSON)", || get(identity::access)),
    Route::get("/api/v1/status", "sources, rules, alerts (JSON)", || get(api::status)),
    Route::get("/api/v1/rules", "rules as in Prometheus' API (JSON)", || get(api::rules)),
    Route::get("/api/v1/alerts", "alerts as in Prometheus' API (JSON)", || get(api::alerts)),
    Route::get(
        "/api/v1/alerts/received",
        "firing alerts that an Alertmanager has posted (JSON)",
        || get(received::list),
    ),
    // It applies its own limit, to count bodies that exceed it.
    Route::new(
        Method::POST,
        "/api/v1/alerts/webhook",
        OPERATE,
        "the webhook of an Alertmanager",
        || post(received::post),
    )
    .longest_body(u64::MAX),
    Route::get("/api/v1/engines", "inference engines and their phases (JSON)", || {
        get(engines::engines)
    }),
    Route::get("/api/v1/cluster", "the nodes of the cluster, and the weakest (JSON)", || {
        get(cluster::cluster)
    }),
    Route::get("/api/v1/gate", "?need=90GiB: whether this node can take it now (JSON)", || {
        get(gate::gate)
    }),
    Route::new(
        Method::POST,
        "/api/v1/gate",
        OPERATE,
        "?need=90GiB&id=ID: reserve this memory for a start",
        || post(lease::lease),
    ),
    Route::new(Method::DELETE, "/api/v1/leases/{id}", OPERATE, "end a lease", || {
        delete(lease::end)
    }),
    Route::get("/api/v1/leases", "starts with reserved memory, and those that wait (JSON)", || {
        get(gate::leases)
    }),
    Route::get(
        "/api/v1/verdict",
        "what holds memory that no counter names, and why (JSON)",
        || get(verdict::verdict),
    ),
    Route::get(
        "/api/v1/query",
        "?query=EXPR: the value of PromQL, as in Prometheus' API (JSON)",
        || get(samples::query),
    ),
    Route::new(Method::POST, "/api/v1/query", READ, "the same with a form", || {
        post(samples::query)
    }),
    Route::get(
        "/api/v1/query_range",
        "?query=EXPR&start=&end=&step=: the same over time (JSON)",
        || get(samples::query_range),
    ),
    Route::new(Method::POST, "/api/v1/query_range", READ, "the same with a form", || {
        post(samples::query_range)
    }),
    Route::get("/api/v1/series", "?match[]=SELECTOR: series, as in Prometheus' API (JSON)", || {
        get(samples::series)
    }),
    Route::new(Method::POST, "/api/v1/series", READ, "the same with a form", || {
        post(samples::series)
    }),
    Route::get("/api/v1/labels", "names of labels, as in Prometheus' API (JSON)", || {
        get(samples::labels)
    }),
    Route::new(Method::POST, "/api/v1/labels", READ, "the same with a form", || {
        post(samples::labels)
    }),
    Route::get("/api/v1/label/{name}/values", "the values of a label (JSON)", || {
        get(samples::values)
    }),
    Route::get(
        "/api/v1/metadata",
        "types and help of metrics, as in Prometheus' API (JSON)",
        || get(samples::metric_metadata),
    ),
    Route::get("/api/v1/status/buildinfo", "the version, as in Prometheus' API (JSON)", || {
        get(samples::build_info)
    }),
    Route::get("/api/v1/events", "kernel events from the journal (JSON)", || get(api::events)),
    Route::get("/api/v1/decisions", "decisions and outcomes from the journal (JSON)", || {
        get(api::decisions)
    }),
    Route::new(Method::POST, "/api/v1/notes", OPERATE, "record a remark in the journal", || {
        post(orders::note)
    }),
    Route::get("/api/v1/orders", "orders of people, from the journal (JSON)", || get(api::orders)),
    Route::get("/api/v1/silences", "silences in force (JSON)", || get(orders::silences)),
    Route::new(Method::POST, "/api/v1/silences", OPERATE, "hold remedies of rules", || {
        post(orders::make_silence)
    }),
    Route::new(Method::DELETE, "/api/v1/silences/{id}", OPERATE, "end a silence", || {
        delete(orders::end_silence)
    }),
    Route::get("/api/v1/approvals", "decisions that wait for approval (JSON)", || {
        get(orders::approvals)
    }),
    Route::new(Method::DELETE, "/api/v1/approvals/{decision}", OPERATE, "deny a decision", || {
        delete(orders::deny)
    }),
    Route::new(Method::POST, "/api/v1/approvals/{decision}", REMEDY, "approve a decision", || {
        post(orders::approve)
    }),
    Route::get("/api/v1/breakers", "remedies that missed their aim (JSON)", || {
        get(orders::breakers)
    }),
    Route::new(Method::POST, "/api/v1/breakers/{rule}/reset", REMEDY, "reset a breaker", || {
        post(orders::reset_breaker)
    }),
    Route::get("/api/v1/reboot", "the scheduled reboot, and the result of the last (JSON)", || {
        get(reboot::reboot)
    }),
    Route::new(Method::POST, "/api/v1/reboot", REMEDY, "reboot the machine", || {
        post(reboot::order)
    }),
    Route::new(Method::DELETE, "/api/v1/reboot", OPERATE, "cancel the reboot", || {
        delete(reboot::cancel)
    }),
    Route::new(
        Method::POST,
        "/api/v1/reboot/clear",
        REMEDY,
        "clear reboots that did not help",
        || post(reboot::clear),
    ),
    Route::get("/api/v1/pause", "whether the daemon is paused (JSON)", || get(orders::pause)),
    Route::new(Method::POST, "/api/v1/pause", OPERATE, "pause the daemon", || {
        post(orders::begin_pause)
    }),
    Route::new(Method::DELETE, "/api/v1/pause", OPERATE, "end the pause", || {
        delete(orders::end_pause)
    }),
    Route::new(
        Method::PUT,
        "/api/v1/launches",
        Requirement::Local,
        "report a process of this node as an engine",
        || put(orders::launched),
    )
    .longest_body(LAUNCH_BODY_BYTES),
    Route::new(
        Method::POST,
        "/api/v1/deaths",
        Requirement::Local,
        "report the death of an engine of this node",
        || post(orders::died),
    ),
];

/// The state of all handlers.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) served: Arc<Served>,
    pub(super) reloading: Arc<Mutex<()>>,
    pub(super) queries: Arc<Semaphore>,
    pub(super) sample_queries: Arc<Semaphore>,
    scrapes: Arc<Semaphore>,
    scraped: Arc<CachedExpositions>,
    unread: Arc<UnreadLimit>,
    pub(super) pictures: Arc<picture::Pictures>,
    /// Turns true at the end of the server.
    pub(super) shutdown: watch::Receiver<bool>,
}

impl Site {
    /// All pages with their meaning, but for those of which a part of the path is chosen.
    pub(super) fn pages(&self) -> impl Iterator<Item = (&str, &str)> {
        let telemetry = self.served.telemetry_path.as_str();
        let is_page = |route: &&Route| route.method == Method::GET && !route.path.contains('{');
        let pages = ROUTES.iter().filter(is_page);
        std::iter::once((telemetry, "metrics")).chain(
            pages
                .map(|route| (route.path, route.meaning))
                .filter(move |(path, _)| *path != telemetry),
        )
    }
}

/// Checks the telemetry path: `/` and plain characters, and not the path of another page. With `/`
/// there is no landing page.
///
/// # Errors
/// What is wrong with it.
pub fn check_telemetry_path(path: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~/".contains(c);
    if !path.starts_with('/') || !path.chars().all(plain) || path.len() > 256 {
        return Err(format!(
            "the telemetry path {path:?} must begin with / and consist of letters, digits and -._~/"
        ));
    }
    if path != "/" && ROUTES.iter().any(|route| route.path == path) {
        return Err(format!("the telemetry path {path:?} is the path of another page"));
    }
    Ok(())
}

pub(super) fn router(
    served: Arc<Served>,
    shutdown: watch::Receiver<bool>,
) -> Result<Router, String> {
    check_telemetry_path(&served.telemetry_path)?;
    let site = Site {
        reloading: Arc::new(Mutex::new(())),
        queries: Arc::new(Semaphore::new(QUERIES)),
        sample_queries: Arc::new(Semaphore::new(SAMPLE_QUERIES)),
        scrapes: Arc::new(Semaphore::new(SCRAPES)),
        scraped: Arc::default(),
        unread: Arc::default(),
        pictures: Arc::default(),
        shutdown,
        served: Arc::clone(&served),
    };
    let mut router = Router::new().route(&served.telemetry_path, get(metrics));
    for route in ROUTES.iter().filter(|route| route.path != served.telemetry_path) {
        router = router.route(route.path, (route.handler)());
    }
    Ok(router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(site.clone(), for_all))
        .with_state(site))
}

/// All routes and what they need over the network, for documents.
pub fn access_table() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    ROUTES.iter().map(|route| (route.method.as_str(), route.path, route.needs.name()))
}

/// Refuses oversized and unauthorized requests, and adds the headers of every response.
async fn for_all(
    State(site): State<Site>,
    arrival: Option<Extension<ConnectionOrigin>>,
    matched: Option<MatchedPath>,
    mut request: Request,
    next: Next,
) -> Response {
    let uri = request.uri().clone();
    let arrival = arrival.map(|Extension(arrival)| arrival);
    let uri_bytes = uri.path_and_query().map_or(0, |target| target.as_str().len());
    let route = RequestedRoute::of(&site, matched.as_ref(), request.method());
    let is_chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
    let mut response = if let Some(fault) = host::fault(request.version(), request.headers()) {
        let mut refusal = refusal(&uri, StatusCode::BAD_REQUEST, "bad_data", fault);
        refusal.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        refusal
    } else if uri_bytes > MAX_URI_BYTES {
        let text = "the request URI is too long\n";
        refusal(&uri, StatusCode::URI_TOO_LONG, "bad_data", text)
    } else if body_bytes(request.headers()) > route.body_bytes {
        let text = format!("the body is too long: at most {}\n", route.most());
        let too_large = StatusCode::PAYLOAD_TOO_LARGE;
        let mut refusal = refusal(&uri, too_large, "bad_data", &text);
        refusal.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        refusal
    } else {
        match admission::admit(&site, arrival.as_ref(), &route, request.headers()).await {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                // A body without a length is limited when it is read.
                let most = usize::try_from(route.body_bytes).unwrap_or(usize::MAX);
                let request = request.map(|body| Body::new(Limited::new(body, most)));
                let response = next.run(request).await;
                match site.unread.count(arrival.as_ref(), response).await {
                    Some(response) => response,
                    None => {
                        let text = "too many unread responses of this client\n";
                        if let Some(ConnectionOrigin::Network { address, .. }) = arrival {
                            let access = &site.served.access;
                            access.refuse(
                                RefusalReason::Unread,
                                route.what(),
                                address,
                                text.trim(),
                            );
                        }
                        refusal(&uri, StatusCode::SERVICE_UNAVAILABLE, "unavailable", text)
                    }
                }
            }
            Err(refused) => admission::refuse(&site, &uri, &refused),
        }
    };
    if is_chunked {
        // A proxy may have seen another length, and so another end of this request. What follows is
        // ambiguous (RFC 9112, section 6.1).
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    admission::with_headers(&site, arrival.as_ref(), response)
}

/// The announced length. Chunked bodies announce none, and are limited when they are read.
pub(super) fn body_bytes(headers: &HeaderMap) -> u64 {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    length.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The selected metrics of the latest snapshot.
async fn metrics(State(site): State<Site>, uri: Uri, headers: HeaderMap) -> Response {
    let Ok(Ok(_turn)) = tokio::time::timeout(SCRAPE_WAIT, site.scrapes.acquire()).await else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "too many scrapes at once\n");
    };
    // An empty page would look like a node without memory.
    if !probes::was_sampled(&site.served.status.load()) {
        return probes::not_ready();
    }
    let format = negotiation::format(&headers);
    let gzip = negotiation::accepts_gzip(&headers);
    match exposition(&site, format, gzip, NameSelection::of(&uri)) {
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
        Err(error) => {
            plain(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the metrics: {error}\n"))
        }
    }
}

/// The expositions of one snapshot, shared by all scrapes.
#[derive(Debug, Default)]
struct CachedExpositions(std::sync::Mutex<(Weak<Status>, RenderedForms)>);

/// By format, and whether compressed.
type RenderedForms = BTreeMap<(Format, bool), Bytes>;

impl CachedExpositions {
    fn of(&self, status: &Arc<Status>, form: (Format, bool)) -> Option<Bytes> {
        let scraped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = std::ptr::eq(scraped.0.as_ptr(), Arc::as_ptr(status));
        is_it.then(|| scraped.1.get(&form).cloned()).flatten()
    }

    fn keep(&self, status: &Arc<Status>, form: (Format, bool), body: &Bytes) {
        let mut scraped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::ptr::eq(scraped.0.as_ptr(), Arc::as_ptr(status)) {
            *scraped = (Arc::downgrade(status), RenderedForms::new());
        }
        scraped.1.insert(form, body.clone());
    }
}

fn exposition(
    site: &Site,
    format: Format,
    gzip: bool,
    selection: NameSelection,
) -> io::Result<Bytes> {
    let status = site.served.status.load_full();
    let is_whole = selection.is_everything();
    if let Some(body) = is_whole.then(|| site.scraped.of(&status, (format, gzip))).flatten() {
        return Ok(body);
    }
    let text = exposition::text(Arc::clone(&status), format, selection)?;
    let body = if gzip { exposition::gzip(&text)?.into() } else { text.into() };
    if is_whole {
        site.scraped.keep(&status, (format, gzip), &body);
    }
    Ok(body)
}

/// The response for an unknown path.
async fn not_found(State(site): State<Site>, uri: Uri) -> Response {
    let mut text = "404 page not found. ".to_owned();
    let bare = uri.path().trim_end_matches('/');
    if let Some((path, _)) = site.pages().find(|(path, _)| *path == bare) {
        text.push_str(&format!("Without the trailing slash it is: {path}\n"));
    }
    text.push_str(&format!("The metrics are at {}. Pages:\n", site.served.telemetry_path));
    for (path, meaning) in site.pages() {
        text.push_str(&format!("  {path}  {meaning}\n"));
    }
    refusal(&uri, StatusCode::NOT_FOUND, "not_found", &text)
}

/// The response for another method than the page's.
async fn method_not_allowed(uri: Uri) -> Response {
    let status = StatusCode::METHOD_NOT_ALLOWED;
    refusal(&uri, status, "method_not_allowed", "method not allowed\n")
}

/// An error as JSON below /api, as text elsewhere.
pub(super) fn refusal(uri: &Uri, status: StatusCode, kind: &str, text: &str) -> Response {
    match uri.path().starts_with("/api/") {
        true => api::error(status, kind, text.trim_end()),
        false => plain(status, text),
    }
}

pub(super) fn plain(status: StatusCode, text: impl Into<String>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    (status, kind, text.into()).into_response()
}
