//! GET over HTTP/1.1 with a deadline and a size limit.

use std::time::Duration;

use hyper::Method;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderValue};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::clients::EngineKey;
use crate::clients::http::{HttpClient, HttpError, HttpResponse, connect, request, send_over};
use crate::clients::network::Network;
use crate::clients::owner::ConnectionEnds;

/// The time limit of a response.
pub(super) const ANSWER_TAKES: Duration = Duration::from_secs(3);
const CONNECTING_TAKES: Duration = Duration::from_secs(1);

/// A client for engines in this network namespace that need no key.
pub(super) fn client() -> Result<HttpClient, HttpError> {
    HttpClient::new(CONNECTING_TAKES, None)
}

/// Sends a request to `http://host:port/path`, in this network namespace or another. The body is
/// cut at `most` bytes.
pub(super) async fn get(
    client: &HttpClient,
    url: &str,
    network: Option<&Network>,
    key: Option<&EngineKey>,
    most: usize,
) -> Result<HttpResponse, HttpError> {
    let mut request = request(Method::GET, url)?.body(Bytes::new())?;
    let exchange = async {
        if network.is_none() && key.is_none() {
            return client.send(request).await?.read(most).await;
        }
        let (host, port) = (request.uri().host(), request.uri().port_u16());
        let connecting = connect(host.unwrap_or_default(), port.unwrap_or(80), network);
        let stream = timeout(CONNECTING_TAKES, connecting).await;
        let stream = stream.map_err(|_| HttpError::ConnectTimedOut(CONNECTING_TAKES))?;
        let stream = stream.map_err(HttpError::Connect)?;
        if let Some(key) = revealed(key, &stream).await {
            request.headers_mut().insert(AUTHORIZATION, key);
        }
        send_over(stream, request).await?.read(most).await
    };
    timeout(ANSWER_TAKES, exchange).await.map_err(|_| HttpError::TimedOut(ANSWER_TAKES))?
}

/// The header with the key, if the peer of the new connection is still proven to be the engine.
async fn revealed(key: Option<&EngineKey>, stream: &TcpStream) -> Option<HeaderValue> {
    let key = key?.clone();
    let made = ConnectionEnds::of(stream).ok()?;
    let proving = tokio::task::spawn_blocking(move || Some(key.reveal(&made).ok()?.header()));
    proving.await.ok()?
}
