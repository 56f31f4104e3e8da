//! HTTP/1.1 to servers: all requests are sent and all responses are read here.
//!
//! [`HttpClient`] is reqwest: it connects by itself, over TLS if configured. An [`HttpConnection`]
//! is made by the caller: within the network namespace of a container, to an engine that gets its
//! key, to the control socket, or to another node, for which keys are read anew with each
//! connection. reqwest shows neither the peer before it sends, nor a reconnection.
//!
//! No redirect is followed, no proxy of the environment is used, nothing is sent twice, and no body
//! is read beyond the limit of the caller. Only connecting has a deadline: the caller limits the
//! whole request, and drops it.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::http::response::Parts;
use hyper::{Method, Request, Uri, http};
use hyper_util::rt::TokioIo;
use reqwest::{redirect, retry};
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::network::Network;
use super::tls;
pub use crate::parse::answer::HttpResponse;

/// The most header lines of a response.
const MOST_HEADERS: usize = 64;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Nothing was sent: the request cannot be made, or what it needs cannot be read.
    #[error("{0}")]
    NotSent(String),
    /// There is no connection. The kind distinguishes a refusal.
    #[error("connecting failed: {0}")]
    Connect(io::Error),
    /// There was no connection in time.
    #[error("no connection within {} s", .0.as_secs_f32())]
    ConnectTimedOut(Duration),
    /// TLS has failed; with the remedy if known.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// The connection has failed, or the peer does not speak HTTP.
    #[error("the connection failed: {0}")]
    Broken(String),
    /// The body is truncated.
    #[error("the answer breaks off: {0}")]
    Cut(String),
    /// The body is longer than this, in bytes.
    #[error("the answer is longer than {} MiB", .0 >> 20)]
    TooLong(usize),
    /// There was no response in time.
    #[error("no answer within {} s", .0.as_secs_f32())]
    TimedOut(Duration),
    /// The other end is not proven to be the server.
    #[error("no key is sent: {0}")]
    Untrusted(String),
}

/// A request to an absolute address.
///
/// # Errors
/// The address is invalid.
pub fn request(method: Method, url: &str) -> Result<http::request::Builder, HttpError> {
    let uri: Uri = url.parse().map_err(|_| no_address(url))?;
    if uri.host().is_none() {
        return Err(no_address(url));
    }
    let agent = concat!("umawarden/", env!("CARGO_PKG_VERSION"));
    Ok(Request::builder().method(method).uri(uri).header(USER_AGENT, agent))
}

fn no_address(url: &str) -> HttpError {
    HttpError::NotSent(format!("{url} is no address"))
}

impl From<String> for HttpError {
    fn from(why: String) -> Self {
        Self::NotSent(why)
    }
}

impl From<http::Error> for HttpError {
    fn from(error: http::Error) -> Self {
        Self::NotSent(error.to_string())
    }
}

/// A response whose body is not read yet.
pub struct Response {
    head: Parts,
    body: UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>,
    /// The connection, if the response owns it: it ends with the response.
    _connection: Option<HttpConnection>,
}

impl Response {
    fn new<B>(response: hyper::Response<B>) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (head, body) = response.into_parts();
        let body = body.map_err(Into::into).boxed_unsync();
        Self { head, body, _connection: None }
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.head.status.as_u16()
    }

    /// A header, if it is text.
    pub fn header(&self, name: HeaderName) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// The next part of the body; `None`: it has ended.
    ///
    /// # Errors
    /// The connection fails before the end.
    pub async fn part(&mut self) -> Result<Option<Bytes>, HttpError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| HttpError::Cut(cause(&*error)))?;
            if let Ok(part) = frame.into_data() {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }

    /// Reads the body up to `most` bytes.
    ///
    /// # Errors
    /// As of [`Self::part`].
    pub async fn read(mut self, most: usize) -> Result<HttpResponse, HttpError> {
        let (status, mut body) = (self.status(), Vec::new());
        if most == 0 {
            // Only the head is wanted, and the body may hang.
            return Ok(HttpResponse { status, body, is_cut: true });
        }
        while let Some(part) = self.part().await? {
            let left = most - body.len();
            body.extend_from_slice(&part[..part.len().min(left)]);
            if part.len() > left {
                return Ok(HttpResponse { status, body, is_cut: true });
            }
        }
        Ok(HttpResponse { status, body, is_cut: false })
    }
}

/// A client that opens a new connection for each request.
#[derive(Clone, Debug)]
pub struct HttpClient {
    client: reqwest::Client,
    connecting_takes: Duration,
}

impl HttpClient {
    /// A client with a time limit for connecting, over TLS if authorities are given.
    ///
    /// # Errors
    /// reqwest refuses the settings.
    pub fn new(connecting_takes: Duration, tls: Option<ClientConfig>) -> Result<Self, HttpError> {
        let client = reqwest::Client::builder()
            .redirect(redirect::Policy::none())
            .no_proxy()
            .retry(retry::never())
            .referer(false)
            .http1_only()
            .http1_max_headers(MOST_HEADERS)
            .pool_max_idle_per_host(0)
            .connect_timeout(connecting_takes)
            // Without a TLS configuration reqwest reads the certificates of the system, also for
            // plain HTTP.
            .tls_backend_preconfigured(tls.map_or_else(tls::without_authorities, Ok)?)
            .build();
        let client = client.map_err(|error| HttpError::NotSent(chain(&error)))?;
        Ok(Self { client, connecting_takes })
    }

    /// Sends, and waits for the head of the response.
    ///
    /// # Errors
    /// There is no response; the server may have acted.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response, HttpError> {
        let url = request.uri().to_string();
        let request = request.try_into().map_err(|_| no_address(&url))?;
        let response = self.client.execute(request).await;
        let response = response.map_err(|error| self.failed(&error.without_url()))?;
        Ok(Response::new(hyper::Response::<reqwest::Body>::from(response)))
    }

    fn failed(&self, error: &reqwest::Error) -> HttpError {
        if error.is_connect() && error.is_timeout() {
            return HttpError::ConnectTimedOut(self.connecting_takes);
        }
        match causes(error).find_map(|cause| cause.downcast_ref::<io::Error>()) {
            Some(why) if error.is_connect() && tls::failure(error).is_none() => {
                HttpError::Connect(match why.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::new(why.kind(), why.to_string()),
                })
            }
            _ => broken(error),
        }
    }
}

/// Connects, from within another network namespace if one is given. An IPv6 address may have
/// brackets.
///
/// # Errors
/// There is no connection.
pub async fn connect(host: &str, port: u16, network: Option<&Network>) -> io::Result<TcpStream> {
    let host = bare(host);
    let stream = match (host.parse::<IpAddr>(), network) {
        (Ok(address), Some(network)) => network.connect(SocketAddr::new(address, port)).await?,
        (Err(_), Some(_)) => return Err(io::Error::other("names mean nothing in another network")),
        (_, None) => TcpStream::connect((host, port)).await?,
    };
    // A request is one small packet. Without this it is only slower.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// A connection that the caller has made.
#[derive(Debug)]
pub struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    _moving: JoinSet<()>,
}

impl HttpConnection {
    /// A connection over a stream.
    ///
    /// # Errors
    /// It has ended.
    pub async fn over<S>(stream: S) -> Result<Self, HttpError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut builder = Builder::new();
        builder.max_headers(MOST_HEADERS);
        let spoken = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = spoken.map_err(|error| broken(&error))?;
        let mut moving = JoinSet::new();
        moving.spawn(async {
            // The receiver of the response gets the error.
            let _ = connection.await;
        });
        Ok(Self { sender, _moving: moving })
    }

    /// The same over TLS; the certificate of the server must have the given name.
    ///
    /// # Errors
    /// The certificate has another name, or TLS fails.
    pub async fn over_tls(
        stream: TcpStream,
        tls: ClientConfig,
        name: &str,
    ) -> Result<Self, HttpError> {
        let connecting = TlsConnector::from(Arc::new(tls)).connect(tls::name(name)?, stream);
        let stream = connecting.await.map_err(|error| match broken(&error) {
            HttpError::Broken(why) => HttpError::Tls(why),
            error => error,
        })?;
        Self::over(stream).await
    }

    /// Whether another request can be sent.
    pub async fn is_open(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    /// Sends, and waits for the head of the response. The response must be read to its end before
    /// the next request.
    ///
    /// # Errors
    /// As of [`HttpClient::send`].
    pub async fn send(&mut self, mut request: Request<Bytes>) -> Result<Response, HttpError> {
        let uri = std::mem::take(request.uri_mut());
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let host = HeaderValue::from_str(authority).map_err(http::Error::from)?;
        request.headers_mut().insert(HOST, host);
        if let Some(target) = uri.path_and_query() {
            *request.uri_mut() = Uri::from(target.clone());
        }
        let response = self.sender.send_request(request.map(Full::new)).await;
        Ok(Response::new(response.map_err(|error| broken(&error))?))
    }
}

/// Sends over a connection that ends with the response.
///
/// # Errors
/// As of [`HttpClient::send`].
pub async fn send_over<S>(stream: S, request: Request<Bytes>) -> Result<Response, HttpError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut connection = HttpConnection::over(stream).await?;
    let response = connection.send(request).await?;
    Ok(Response { _connection: Some(connection), ..response })
}

/// The error of an established connection.
fn broken(error: &(dyn Error + 'static)) -> HttpError {
    match tls::failure(error) {
        Some(failure) => HttpError::Tls(match tls::remedy(error) {
            Some(remedy) => format!("{failure}; {remedy}"),
            None => failure.to_string(),
        }),
        None => HttpError::Broken(cause(error)),
    }
}

/// The cause inside an error of reqwest.
fn cause(error: &(dyn Error + 'static)) -> String {
    let inner = causes(error).find(|cause| cause.is::<hyper::Error>());
    chain(inner.unwrap_or(error))
}

fn chain(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<String> = causes(error).map(ToString::to_string).collect();
    texts.join(": ")
}

fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// The host without the brackets of an IPv6 address.
pub(super) fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}
