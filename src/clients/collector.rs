//! A collector of telemetry that takes OTLP over HTTP: one request at a time, each with an end in
//! sight, and whatever it answers bounded and taken as hostile.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, Uri};
use rustls::ClientConfig;
use tokio::time::timeout;

use super::keys::read_secret;
use super::tls;
use super::wire::{self, Wire};
use crate::model::TlsFiles;
use crate::parse::answer::shown;
use crate::parse::header_lines::{MOST_TEXT_BYTES, header_lines, header_pairs};

/// How long a connection may take, of the time that all of a request has.
const CONNECTING_TAKES: Duration = Duration::from_secs(5);

/// So much of an answer is read: more than that, no collector has to say.
const MOST_ANSWER_BYTES: usize = 64 << 10;

/// The variable with headers, as other programs that speak OTLP know it.
const HEADERS_VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// The usual port of OTLP over gRPC, which is another language.
const GRPC_PORT: u16 = 4317;

/// Where telemetry is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorPlace {
    /// `http://host:port/path` or `https://…`, without the path of a signal.
    pub endpoint: String,
    /// A file with headers, credentials among them: `name: value`, one a line.
    pub headers_file: Option<PathBuf>,
    /// Over TLS only whoever signs with a certificate of that file is trusted; `None`: whom the
    /// system trusts.
    pub ca_file: Option<PathBuf>,
}

/// A collector. Nothing is connected before something is sent.
pub struct Collector {
    place: CollectorPlace,
    /// Made when it is first needed, and again after a failure.
    tls: Option<Arc<ClientConfig>>,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").field("place", &self.place).finish_non_exhaustive()
    }
}

/// What it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The HTTP status.
    pub status: u16,
    /// The body, or its beginning.
    pub body: Vec<u8>,
    /// Whether it says that the body is a page for people.
    pub is_page: bool,
    /// For how long it wants to be left alone.
    pub retry_after: Option<Duration>,
}

impl Answered {
    /// What people are shown of it.
    pub fn beginning(&self) -> String {
        shown(&self.body)
    }
}

/// It has not answered.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// Nothing was sent: what is needed for that cannot be read.
    #[error("{0}")]
    NotSent(String),
    /// The connection failed.
    #[error("{0}")]
    Failed(String),
    /// It did not answer in time.
    #[error("no answer within {} s", .0.as_secs_f32())]
    TimedOut(Duration),
}

impl Collector {
    /// The collector at that place.
    pub fn new(place: CollectorPlace) -> Self {
        Self { place, tls: None }
    }

    /// Where it is, for people.
    pub fn endpoint(&self) -> &str {
        &self.place.endpoint
    }

    /// Sends a message of OTLP below the endpoint, `/v1/metrics` say.
    ///
    /// # Errors
    /// It has not answered; it may have taken the message all the same.
    pub async fn send(
        &mut self,
        path: &str,
        message: Bytes,
        patience: Duration,
    ) -> Result<Answered, Unanswered> {
        let sent = self.attempt(path, message);
        let answered = timeout(patience, sent).await;
        let answered = answered.unwrap_or(Err(Unanswered::TimedOut(patience)));
        if answered.is_err() {
            self.tls = None;
        }
        answered
    }

    async fn attempt(&mut self, path: &str, message: Bytes) -> Result<Answered, Unanswered> {
        let not_sent = |why: String| Unanswered::NotSent(why);
        let url = format!("{}{path}", self.place.endpoint);
        let uri: Uri = url.parse().map_err(|_| not_sent(format!("{url} is no address")))?;
        // Read each time: whoever changes credentials need not restart anything.
        let request = self.request(&uri, message).map_err(not_sent)?;
        let is_tls = uri.scheme_str() == Some("https");
        let tls = is_tls.then(|| self.tls()).transpose().map_err(not_sent)?;
        let connected = timeout(CONNECTING_TAKES, Wire::to(&uri, tls)).await;
        let connected = connected.map_err(|_| Unanswered::TimedOut(CONNECTING_TAKES))?;
        let mut wire = connected.map_err(Unanswered::Failed)?;
        let answered =
            async { answer(wire.send(request).await.map_err(|error| wire::broken(&error))?).await };
        answered.await.map_err(|why| with_hint(why, &uri))
    }

    fn tls(&mut self) -> Result<Arc<ClientConfig>, String> {
        if let Some(config) = &self.tls {
            return Ok(Arc::clone(config));
        }
        let config = tls::config(&TlsFiles::trusting(self.place.ca_file.clone()))?;
        Ok(Arc::clone(self.tls.insert(config)))
    }

    fn request(&self, uri: &Uri, message: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let mut request = wire::request_to(Method::POST, uri)
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(Full::new(message))
            .map_err(|error| error.to_string())?;
        self.add_headers(request.headers_mut())?;
        Ok(request)
    }

    /// Whether the headers that it is told of can be sent.
    pub(super) fn check_headers(&self) -> Result<(), String> {
        self.add_headers(&mut HeaderMap::new())
    }

    /// Those of the environment, and then those of the file, which win. What they say is shown to
    /// nobody.
    fn add_headers(&self, headers: &mut HeaderMap) -> Result<(), String> {
        if let Some(text) = std::env::var_os(HEADERS_VARIABLE) {
            let pairs = text.to_str().map(header_pairs).unwrap_or(Err("it is no text".to_owned()));
            let pairs = pairs.map_err(|why| format!("the variable {HEADERS_VARIABLE}: {why}"))?;
            insert(headers, pairs).map_err(|why| format!("{HEADERS_VARIABLE}: {why}"))?;
        }
        let Some(file) = &self.place.headers_file else { return Ok(()) };
        let told = |why: String| format!("headers_file {}: {why}", file.display());
        let text = read_secret(file, MOST_TEXT_BYTES as u64);
        let text = text.map_err(|error| told(error.to_string()))?;
        let text = String::from_utf8(text).map_err(|_| told("it is no text".to_owned()))?;
        insert(headers, header_lines(&text).map_err(told)?).map_err(told)
    }
}

fn insert(headers: &mut HeaderMap, pairs: Vec<(String, String)>) -> Result<(), String> {
    for (name, value) in pairs {
        let known = HeaderName::from_bytes(name.as_bytes());
        let known = known.map_err(|_| format!("\"{name}\" is no name of a header"))?;
        if [CONTENT_TYPE, HOST].contains(&known) || is_framing(&known) {
            return Err(format!("the header {known} is not for others to set: leave it out"));
        }
        let mut value = HeaderValue::from_str(&value)
            .map_err(|_| format!("what {known} says is no value of a header"))?;
        value.set_sensitive(true);
        headers.insert(known, value);
    }
    Ok(())
}

fn is_framing(name: &HeaderName) -> bool {
    use hyper::header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
    [CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE].contains(name)
}

async fn answer(response: Response<Incoming>) -> Result<Answered, String> {
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let seconds = header(RETRY_AFTER).and_then(|text| text.trim().parse().ok());
    let is_page = header(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/html"));
    let status = response.status().as_u16();
    let (body, _is_cut) = wire::beginning(response.into_body(), MOST_ANSWER_BYTES).await?;
    Ok(Answered { status, body, is_page, retry_after: seconds.map(Duration::from_secs) })
}

fn with_hint(why: String, uri: &Uri) -> Unanswered {
    Unanswered::Failed(match uri.port_u16() {
        Some(GRPC_PORT) => why + "; port 4317 is usually gRPC's: OTLP over HTTP has 4318",
        _ => why,
    })
}
