//! A collector of telemetry that takes OTLP over HTTP: one request at a time. Each request has a
//! deadline, and each response a size limit; its content is untrusted.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request};
use tokio::time::timeout;

use super::http::{self, HttpClient, HttpError, Response};
use super::keys::read_secret;
use super::tls;
use crate::model::TlsFiles;
use crate::parse::answer::HttpResponse;
use crate::parse::header_lines::{MOST_TEXT_BYTES, header_lines, header_pairs};

/// The part of a request's deadline that the connection may take.
const CONNECTING_TAKES: Duration = Duration::from_secs(5);

/// The size limit of a response.
const MOST_ANSWER_BYTES: usize = 64 << 10;

/// The environment variable with headers, as in other OTLP exporters.
const HEADERS_VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// The usual port of OTLP over gRPC, another protocol.
const GRPC_PORT: u16 = 4317;

/// The endpoint of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorEndpoint {
    /// `http://host:port/path` or `https://…`, without the path of a signal.
    pub endpoint: String,
    /// A file with headers, credentials among them: `name: value`, one a line.
    pub headers_file: Option<PathBuf>,
    /// The certificate authorities to trust; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
}

/// A collector. The connection is made by the first message.
pub struct Collector {
    settings: CollectorEndpoint,
    /// Made by the first message, and again after a failure.
    client: Option<HttpClient>,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector")
            .field("endpoint", &self.settings.endpoint)
            .finish_non_exhaustive()
    }
}

/// The response of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorResponse {
    /// The HTTP status, and the beginning of the body.
    pub answer: HttpResponse,
    /// Whether the content type is HTML.
    pub is_page: bool,
    /// The Retry-After of the response.
    pub retry_after: Option<Duration>,
}

impl Collector {
    /// Prepares a client; connects to nothing.
    pub fn new(settings: CollectorEndpoint) -> Self {
        Self { settings, client: None }
    }

    /// The address, for texts.
    pub fn endpoint(&self) -> &str {
        &self.settings.endpoint
    }

    /// Sends a message of OTLP below the endpoint, `/v1/metrics` say.
    ///
    /// # Errors
    /// There was no response; the collector may have taken the message.
    pub async fn send(
        &mut self,
        path: &str,
        message: Bytes,
        patience: Duration,
    ) -> Result<CollectorResponse, HttpError> {
        let sent = self.attempt(path, message);
        let response = timeout(patience, sent).await;
        let response = response.unwrap_or(Err(HttpError::TimedOut(patience)));
        if response.is_err() {
            self.client = None;
        }
        response
    }

    async fn attempt(
        &mut self,
        path: &str,
        message: Bytes,
    ) -> Result<CollectorResponse, HttpError> {
        let url = format!("{}{path}", self.settings.endpoint);
        // Read each time: changed credentials need no restart.
        let request = self.request(&url, message)?;
        let port = request.uri().port_u16();
        let is_tls = request.uri().scheme_str() == Some("https");
        let response = async { answer(self.client(is_tls)?.send(request).await?).await };
        response.await.map_err(|error| with_hint(error, port))
    }

    fn client(&mut self, is_tls: bool) -> Result<HttpClient, HttpError> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let tls = || tls::config(&TlsFiles::trusting(self.settings.ca_file.clone()));
        let tls = is_tls.then(tls).transpose()?;
        let client = HttpClient::new(CONNECTING_TAKES, tls)?;
        Ok(self.client.insert(client).clone())
    }

    fn request(&self, url: &str, message: Bytes) -> Result<Request<Bytes>, HttpError> {
        let mut request = http::request(Method::POST, url)?
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(message)?;
        self.add_headers(request.headers_mut())?;
        Ok(request)
    }

    /// Whether the configured headers can be sent.
    pub(super) fn check_headers(&self) -> Result<(), String> {
        self.add_headers(&mut HeaderMap::new())
    }

    /// The headers of the environment, and then those of the file, which take precedence. Their
    /// values are never printed.
    fn add_headers(&self, headers: &mut HeaderMap) -> Result<(), String> {
        if let Some(text) = std::env::var_os(HEADERS_VARIABLE) {
            let pairs = text.to_str().map(header_pairs).unwrap_or(Err("it is no text".to_owned()));
            let pairs = pairs.map_err(|why| format!("the variable {HEADERS_VARIABLE}: {why}"))?;
            insert(headers, pairs).map_err(|why| format!("{HEADERS_VARIABLE}: {why}"))?;
        }
        let Some(file) = &self.settings.headers_file else { return Ok(()) };
        let unreadable = |why: String| format!("headers_file {}: {why}", file.display());
        let text = read_secret(file, MOST_TEXT_BYTES as u64);
        let text = text.map_err(|error| unreadable(error.to_string()))?;
        let text = String::from_utf8(text).map_err(|_| unreadable("it is no text".to_owned()))?;
        insert(headers, header_lines(&text).map_err(unreadable)?).map_err(unreadable)
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

async fn answer(response: Response) -> Result<CollectorResponse, HttpError> {
    let seconds = response.header(RETRY_AFTER).and_then(|text| text.trim().parse().ok());
    let is_page = response.header(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/html"));
    let answer = response.read(MOST_ANSWER_BYTES).await?;
    Ok(CollectorResponse { answer, is_page, retry_after: seconds.map(Duration::from_secs) })
}

fn with_hint(error: HttpError, port: Option<u16>) -> HttpError {
    match error {
        HttpError::Broken(why) if port == Some(GRPC_PORT) => {
            HttpError::Broken(why + "; port 4317 is usually gRPC's: OTLP over HTTP has 4318")
        }
        error => error,
    }
}
