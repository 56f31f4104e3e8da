//! Applies access control to requests, by the table of routes.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::MatchedPath;
use axum::response::Response;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode, Uri};

use super::order::Caller;
use super::routes::{ORDER_BODY_BYTES, ROUTES, Site, refusal};
use crate::access::{AccessRefusal, CertificateNames, Handshake, Requirement};
use crate::model::{OrderedBy, RefusalReason, Role};

/// The header that our page adds to orders.
const PAGE: &str = "umawarden-page";

/// Where a connection comes from.
#[derive(Clone, Debug)]
pub(super) enum ConnectionOrigin {
    /// Over the network.
    Network {
        address: IpAddr,
        /// Names of a verified certificate.
        certificate: Option<Arc<CertificateNames>>,
        /// The generation of access control when it began.
        generation: u64,
    },
    /// From the control socket.
    Control {
        /// The client's user id, from the kernel.
        uid: u32,
    },
}

impl ConnectionOrigin {
    /// Adds the result of the handshake. A certificate counts only if it was verified.
    pub(super) fn with_handshake(self, handshake: &Handshake, shown: Option<&[u8]>) -> Self {
        match self {
            Self::Network { address, .. } => {
                let shown = shown.filter(|_| handshake.verifies_clients);
                let certificate = shown.map(|shown| Arc::new(CertificateNames::of(shown)));
                Self::Network { address, certificate, generation: handshake.generation }
            }
            control @ Self::Control { .. } => control,
        }
    }

    /// The names of a certificate that present settings verify.
    pub(super) fn certificate(&self, site: &Site) -> Option<&CertificateNames> {
        match self {
            Self::Network { certificate, .. } => {
                certificate.as_deref().filter(|_| !self.is_outdated(site))
            }
            Self::Control { .. } => None,
        }
    }

    /// Whether access control was reloaded since.
    fn is_outdated(&self, site: &Site) -> bool {
        match self {
            Self::Network { generation, .. } => !site.served.access.is_current(*generation),
            Self::Control { .. } => false,
        }
    }
}

/// The route of a request.
pub(super) struct RequestedRoute {
    /// `None` if the route has no row in the table: refused.
    needs: Option<Requirement>,
    pub(super) body_bytes: u64,
    /// Whether it changes anything, and needs more than reading.
    is_order: bool,
    /// Method and path, for the log.
    what: String,
}

impl RequestedRoute {
    /// From the table of routes. An unknown path needs the role read, for its 404. A known path
    /// without a row is refused.
    pub(super) fn of(site: &Site, matched: Option<&MatchedPath>, method: &Method) -> Self {
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let Some(path) = matched.map(MatchedPath::as_str) else {
            let needs = Some(Requirement::Role(Role::Read));
            let what = "a page".to_owned();
            return Self { needs, body_bytes: ORDER_BODY_BYTES, is_order: false, what };
        };
        let what = format!("{method} {path}");
        if path == site.served.telemetry_path {
            let needs = Some(Requirement::Role(Role::Read));
            return Self { needs, body_bytes: ORDER_BODY_BYTES, is_order: false, what };
        }
        let same = |allowed: &Method| *allowed == *method || is_read && *allowed == Method::GET;
        let of_path = || ROUTES.iter().filter(|route| route.path == path);
        match of_path().find(|route| same(&route.method)) {
            Some(route) => {
                let is_order = !is_read && route.needs != Requirement::Role(Role::Read);
                let body_bytes = route.body_bytes;
                Self { needs: Some(route.needs), body_bytes, is_order, what }
            }
            // The router responds 405 to another method.
            None => {
                let needs = of_path().next().map(|_| Requirement::Role(Role::Read));
                Self { needs, body_bytes: ORDER_BODY_BYTES, is_order: false, what }
            }
        }
    }

    /// For the log.
    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// The longest body, for errors.
    pub(super) fn most(&self) -> String {
        format!("{} KiB", self.body_bytes / 1024)
    }
}

/// The sender of an admitted request.
pub(super) async fn admit(
    site: &Site,
    arrival: Option<&ConnectionOrigin>,
    route: &RequestedRoute,
    headers: &HeaderMap,
) -> Result<Caller, AccessRefusal> {
    let (address, certificate) = match arrival {
        Some(ConnectionOrigin::Control { uid }) => {
            return Ok(Caller::Authenticated(OrderedBy::Local { uid: *uid }));
        }
        Some(arrival @ ConnectionOrigin::Network { address, .. }) => {
            (*address, arrival.certificate(site))
        }
        None => return Err(no_row()),
    };
    let Some(needs) = route.needs else { return Err(no_row()) };
    let access = &site.served.access;
    match access.decide(needs, address, headers, certificate).await {
        Ok(_) if route.is_order && is_of_a_form(headers) => {
            let text =
                "a browser must send the header umawarden-page, as the page of this node does";
            access.refuse(RefusalReason::CrossSite, &route.what, address, text);
            Err(refused(RefusalReason::CrossSite, text))
        }
        Ok(Some(credential)) => {
            Ok(Caller::Authenticated(OrderedBy::Remote { credential, address }))
        }
        Ok(None) => Ok(Caller::Anonymous),
        Err(refused) => {
            access.log_refusal(&route.what, address, &refused);
            Err(refused)
        }
    }
}

/// Whether a browser sends it without the header of our page. A form, also of another site, cannot
/// add one; a script of another site would have to ask first, and is not allowed to.
fn is_of_a_form(headers: &HeaderMap) -> bool {
    let is_of_a_browser =
        headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    is_of_a_browser && !headers.contains_key(PAGE)
}

/// Fails closed: a route without a row in the table.
fn no_row() -> AccessRefusal {
    refused(RefusalReason::LocalOnly, "this is not allowed over the network")
}

fn refused(reason: RefusalReason, text: &str) -> AccessRefusal {
    AccessRefusal {
        reason,
        text: text.to_owned(),
        challenges: Vec::new(),
        retry_after_seconds: None,
    }
}

/// The response to a refused request.
pub(super) fn refuse(site: &Site, uri: &Uri, refused: &AccessRefusal) -> Response {
    let (status, kind) = match refused.reason {
        RefusalReason::RateLimit => (StatusCode::TOO_MANY_REQUESTS, "too_many_requests"),
        RefusalReason::Busy | RefusalReason::Connections | RefusalReason::Unread => {
            (StatusCode::SERVICE_UNAVAILABLE, "unavailable")
        }
        _ if refused.challenges.is_empty() => (StatusCode::FORBIDDEN, "forbidden"),
        _ => (StatusCode::UNAUTHORIZED, "unauthorized"),
    };
    let mut text = refused.text.clone();
    if status == StatusCode::FORBIDDEN && refused.reason != RefusalReason::CrossSite {
        text += &format!(
            "; on this node the umawarden command (silence, approve, breaker, reboot, pause, \
             resume) needs none, nor does its control socket {}",
            site.served.control_socket.display()
        );
    }
    text.push('\n');
    let mut response = refusal(uri, status, kind, &text);
    let headers = response.headers_mut();
    for challenge in &refused.challenges {
        headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    }
    if let Some(seconds) = refused.retry_after_seconds {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Adds the headers of every response and those of the web configuration. A page's own headers win.
/// A connection from before a reload ends.
pub(super) fn with_headers(
    site: &Site,
    arrival: Option<&ConnectionOrigin>,
    mut response: Response,
) -> Response {
    let headers = response.headers_mut();
    if arrival.is_some_and(|arrival| arrival.is_outdated(site)) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if !matches!(arrival, Some(ConnectionOrigin::Control { .. })) {
        for (name, value) in site.served.access.headers() {
            if let Ok(name) = HeaderName::try_from(name) {
                headers.entry(name).or_insert(value);
            }
        }
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
