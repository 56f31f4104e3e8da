//! Who a request comes from, and whether it is served: the door's judgement, by the table of
//! routes.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::MatchedPath;
use axum::response::Response;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode, Uri};

use super::order::Caller;
use super::routes::{ORDER_BODY_BYTES, ROUTES, Site, refusal};
use crate::door::{Access, Greeting, Names, Refused};
use crate::model::{OrderedBy, RefusalReason, Role};

/// How a connection came in.
#[derive(Clone, Debug)]
pub(super) enum Arrival {
    /// Over the network.
    Network {
        address: IpAddr,
        /// Of a certificate that was verified.
        certificate: Option<Arc<Names>>,
        /// How it began.
        greeted: u64,
    },
    /// By the control socket.
    Control {
        /// The kernel's word for who that is.
        uid: u32,
    },
}

impl Arrival {
    /// Over the network, once it has begun; a certificate counts only if it was verified.
    pub(super) fn greeted(self, greeting: &Greeting, shown: Option<&[u8]>) -> Self {
        match self {
            Self::Network { address, .. } => {
                let shown = shown.filter(|_| greeting.verifies_clients);
                let certificate = shown.map(|shown| Arc::new(Names::of(shown)));
                Self::Network { address, certificate, greeted: greeting.number }
            }
            control @ Self::Control { .. } => control,
        }
    }

    /// Whether people who come now are greeted in another way.
    fn is_outdated(&self, site: &Site) -> bool {
        match self {
            Self::Network { greeted, .. } => !site.served.door.still_greets(*greeted),
            Self::Control { .. } => false,
        }
    }
}

/// What a request is for.
pub(super) struct Asked {
    /// `None`: nobody has said who may.
    access: Option<Access>,
    pub(super) body_bytes: u64,
    /// For the log.
    what: String,
}

impl Asked {
    /// By the table of routes. What matches none is not found, which is to be looked at; what
    /// matches one that is not in the table is nobody's to do.
    pub(super) fn of(site: &Site, matched: Option<&MatchedPath>, method: &Method) -> Self {
        let looks = matches!(*method, Method::GET | Method::HEAD);
        let Some(path) = matched.map(MatchedPath::as_str) else {
            let access = Some(Access::Role(Role::Read));
            return Self { access, body_bytes: ORDER_BODY_BYTES, what: "a page".to_owned() };
        };
        let what = format!("{method} {path}");
        if path == site.served.telemetry_path {
            let access = Some(Access::Role(Role::Read));
            return Self { access, body_bytes: ORDER_BODY_BYTES, what };
        }
        let same = |asked: &Method| *asked == *method || looks && *asked == Method::GET;
        let of_path = || ROUTES.iter().filter(|route| route.path == path);
        match of_path().find(|route| same(&route.method)) {
            Some(route) => Self { access: Some(route.access), body_bytes: route.body_bytes, what },
            // Another method than the page's is told so by the router.
            None => {
                let access = of_path().next().map(|_| Access::Role(Role::Read));
                Self { access, body_bytes: ORDER_BODY_BYTES, what }
            }
        }
    }

    /// For the log.
    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// The longest body, for people.
    pub(super) fn most(&self) -> String {
        format!("{} KiB", self.body_bytes / 1024)
    }
}

/// Says who asks, if that may be served.
pub(super) async fn admit(
    site: &Site,
    arrival: Option<&Arrival>,
    asked: &Asked,
    headers: &HeaderMap,
) -> Result<Caller, Refused> {
    let (address, certificate) = match arrival {
        Some(Arrival::Control { uid }) => {
            return Ok(Caller::Known(OrderedBy::Local { uid: *uid }));
        }
        Some(arrival @ Arrival::Network { address, certificate, .. }) => {
            // What was verified on other terms counts no more.
            let certificate = certificate.as_deref().filter(|_| !arrival.is_outdated(site));
            (*address, certificate)
        }
        None => return Err(nobody()),
    };
    let Some(access) = asked.access else { return Err(nobody()) };
    let door = &site.served.door;
    match door.judge(access, address, headers, certificate).await {
        Ok(Some(credential)) => Ok(Caller::Known(OrderedBy::Remote { credential, address })),
        Ok(None) => Ok(Caller::Anybody),
        Err(refused) => {
            door.tell_refused(&asked.what, address, &refused);
            Err(refused)
        }
    }
}

/// Fails closed: a route without a row in the table.
fn nobody() -> Refused {
    Refused {
        reason: RefusalReason::LocalOnly,
        text: "nobody may do that over the network".to_owned(),
        challenges: Vec::new(),
        retry_after_seconds: None,
    }
}

/// The response to whoever is refused.
pub(super) fn refuse(site: &Site, uri: &Uri, refused: &Refused) -> Response {
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

/// Adds the headers that every response carries, those of the web configuration among them; a
/// page's own say more than those. A connection that began on other terms ends.
pub(super) fn with_headers(
    site: &Site,
    arrival: Option<&Arrival>,
    mut response: Response,
) -> Response {
    let headers = response.headers_mut();
    if arrival.is_some_and(|arrival| arrival.is_outdated(site)) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if !matches!(arrival, Some(Arrival::Control { .. })) {
        for (name, value) in site.served.door.headers() {
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
