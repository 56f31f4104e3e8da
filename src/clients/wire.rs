//! One connection to one server, over which HTTP/1.1 is spoken, plainly or over TLS. Clients go
//! this way, but for those that ask without TLS, without a key and once (`session`), for whom there
//! is reqwest, and for the looks at engines' health, which have one of their own, within the
//! networks of containers.
//!
//! Nothing leads elsewhere, no header has more lines than is usual, and no body is read further
//! than whoever asks wants. It has no deadline of its own: whoever asks gives the whole question
//! one, and drops it.

use std::error::Error;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{HOST, USER_AGENT};
use hyper::{Method, Request, Response, Uri, http};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::owner::Connection;
use super::tls;

/// More headers than these nobody sends.
pub(super) const MOST_HEADERS: usize = 64;

/// A connection; it ends with this.
#[derive(Debug)]
pub(super) struct Wire {
    sender: SendRequest<Full<Bytes>>,
    /// Its ends; `None` where it ended at once.
    ends: Option<Connection>,
    /// Whoever moves the bytes.
    _moving: JoinSet<()>,
}

impl Wire {
    /// Connects to the host of that address, over TLS where it is said who is trusted.
    pub(super) async fn to(uri: &Uri, tls: Option<Arc<ClientConfig>>) -> Result<Self, String> {
        let host = uri.host().ok_or_else(|| format!("{uri} names no host"))?;
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        Self::connect(host, port, tls.map(|config| (config, host))).await
    }

    /// Connects, over TLS where it is said who is trusted and which name the server must bear. An
    /// address of IPv6 may stand in brackets.
    pub(super) async fn connect(
        host: &str,
        port: u16,
        tls: Option<(Arc<ClientConfig>, &str)>,
    ) -> Result<Self, String> {
        let name = |name: &str| {
            ServerName::try_from(bare(name).to_owned()).map_err(|_| {
                format!("{name} is no name that a certificate can bear; {}", tls::OTHER_NAME)
            })
        };
        let tls = match tls {
            Some((config, wanted)) => Some((TlsConnector::from(config), name(wanted)?)),
            None => None,
        };
        let stream = TcpStream::connect((bare(host), port))
            .await
            .map_err(|error| format!("connecting failed: {error}"))?;
        // What is asked is one small packet each time.
        let _slower = stream.set_nodelay(true);
        let ends = stream.local_addr().and_then(|client| Ok((client, stream.peer_addr()?))).ok();
        let ends = ends.map(|(client, server)| Connection::new(client, server));
        let Some((connector, name)) = tls else { return Self::over(stream, ends).await };
        let stream = connector.connect(name, stream).await;
        Self::over(stream.map_err(|error| failed("TLS", &error))?, ends).await
    }

    async fn over<S>(stream: S, ends: Option<Connection>) -> Result<Self, String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut builder = Builder::new();
        builder.max_headers(MOST_HEADERS);
        let spoken = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = spoken.map_err(|error| broken(&error))?;
        let mut moving = JoinSet::new();
        moving.spawn(async {
            // Whoever waits for the answer hears of it.
            let _broken = connection.await;
        });
        Ok(Self { sender, ends, _moving: moving })
    }

    /// Its ends.
    pub(super) fn ends(&self) -> Result<Connection, String> {
        self.ends.ok_or_else(|| "the connection has ended".to_owned())
    }

    /// Whether another request can be sent.
    pub(super) async fn is_open(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    /// Sends, and waits for what comes before the answer's body.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        self.sender.send_request(request).await
    }
}

/// Begins a request of that path, with its query.
pub(super) fn request(method: Method, authority: &str, target: &str) -> http::request::Builder {
    Request::builder()
        .method(method)
        .uri(target)
        .header(HOST, authority)
        .header(USER_AGENT, concat!("umawarden/", env!("CARGO_PKG_VERSION")))
}

/// The same for a whole address.
pub(super) fn request_to(method: Method, uri: &Uri) -> http::request::Builder {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    request(method, authority, uri.path_and_query().map_or("/", |target| target.as_str()))
}

/// A body up to that length, and whether it is longer.
pub(super) async fn beginning<B>(mut body: B, most: usize) -> Result<(Vec<u8>, bool), String>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Error + 'static,
{
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(&error))?;
        let Some(chunk) = frame.data_ref() else { continue };
        let room = most - bytes.len();
        bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            return Ok((bytes, true));
        }
    }
    Ok((bytes, false))
}

/// That a connection has failed after it was made.
pub(super) fn broken(error: &(dyn Error + 'static)) -> String {
    failed("the connection", error)
}

/// An error with its causes, and with what to do where that is known.
fn failed(what: &str, error: &(dyn Error + 'static)) -> String {
    let mut text = format!("{what} failed: {error}");
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.for_each(|cause| text.push_str(&format!(": {cause}")));
    match tls::remedy(error) {
        Some(remedy) => text + "; " + remedy,
        None => text,
    }
}

/// Without the brackets of an address of IPv6.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TlsFiles;

    #[test]
    fn a_name_that_no_certificate_can_bear_is_told_with_what_to_write() {
        let authority = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/peers/authority.pem");
        let config = tls::config(&TlsFiles::trusting(Some(authority.into()))).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tls = Some((config, "a..b"));
        let why = runtime.block_on(Wire::connect("a..b", 1, tls)).unwrap_err();
        assert!(why.starts_with("a..b is no name") && why.ends_with(tls::OTHER_NAME), "{why}");
    }
}
