//! GET over HTTP/1.1 with a deadline and a size limit.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::HeaderValue;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::clients::EngineKey;
use crate::clients::network::Network;
use crate::clients::owner::Connection;

/// The time limit of a response.
pub(super) const ANSWER_TAKES: Duration = Duration::from_secs(3);
const CONNECTING_TAKES: Duration = Duration::from_secs(1);

/// The size limit of the headers.
const MAX_HEAD_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

/// Why there is no response.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// Nothing listens at the address.
    Refused,
    /// The network namespace is gone.
    Absent,
    /// The deadline has passed.
    TimedOut,
    Failed(String),
}

impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::NotFound => Self::Absent,
            io::ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<hyper::Error> for NoAnswer {
    fn from(error: hyper::Error) -> Self {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        Self::Failed(text)
    }
}

/// Sends a request to `http://host:port/path`, in this network namespace or another. The body is
/// cut at `most` bytes.
pub(super) async fn get(
    url: &str,
    network: Option<&Network>,
    key: Option<&EngineKey>,
    most: usize,
) -> Result<Answer, NoAnswer> {
    let no_address = || NoAnswer::Failed(format!("{url} is no address"));
    let uri: Uri = url.parse().map_err(|_| no_address())?;
    let authority = uri.authority().ok_or_else(no_address)?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let port = authority.port_u16().unwrap_or(80);
    let asked = async {
        let connecting = timeout(CONNECTING_TAKES, connect(host, port, network));
        let stream = connecting.await.map_err(|_| NoAnswer::TimedOut)??;
        let key = revealed(key, &stream).await;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        exchange(stream, authority.as_str(), path, key, most).await
    };
    timeout(ANSWER_TAKES, asked).await.map_err(|_| NoAnswer::TimedOut)?
}

/// The header with the key, if the peer of the new connection is still proven to be the engine.
async fn revealed(key: Option<&EngineKey>, stream: &TcpStream) -> Option<HeaderValue> {
    let key = key?.clone();
    let made = Connection::new(stream.local_addr().ok()?, stream.peer_addr().ok()?);
    let proving = tokio::task::spawn_blocking(move || Some(key.reveal(&made).ok()?.header()));
    proving.await.ok()?
}

async fn connect(host: &str, port: u16, network: Option<&Network>) -> io::Result<TcpStream> {
    match (host.parse::<IpAddr>(), network) {
        (Ok(address), Some(network)) => network.connect(SocketAddr::new(address, port)).await,
        (Err(_), Some(_)) => Err(io::Error::other("names mean nothing in another network")),
        (_, None) => TcpStream::connect((host, port)).await,
    }
}

/// The task that transfers the bytes; it ends with its receiver.
struct Moving(JoinHandle<()>);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn exchange<S>(
    stream: S,
    host: &str,
    path: &str,
    key: Option<HeaderValue>,
    most: usize,
) -> Result<Answer, NoAnswer>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_BYTES);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let _moving = Moving(tokio::spawn(async {
        // The receiver of the response gets the error.
        let _ = connection.await;
    }));
    let mut request = Request::get(path);
    if let Some(key) = key {
        request = request.header(header::AUTHORIZATION, key);
    }
    let request = request
        .header(header::HOST, host)
        .header(header::USER_AGENT, concat!("umawarden/", env!("CARGO_PKG_VERSION")))
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| NoAnswer::Failed(error.to_string()))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    Ok(Answer { status, body: beginning(response.into_body(), most).await? })
}

async fn beginning(mut body: Incoming, most: usize) -> Result<Vec<u8>, NoAnswer> {
    let mut bytes = Vec::new();
    while bytes.len() < most {
        let Some(frame) = body.frame().await else { break };
        let Ok(chunk) = frame?.into_data() else { continue };
        let room = most - bytes.len();
        bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    Ok(bytes)
}
