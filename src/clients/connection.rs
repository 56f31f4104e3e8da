//! A connection to a server on another node, kept from question to question: the metrics of a
//! node, or the API of a Prometheus. Nothing leads elsewhere, and every answer has a bound.
//!
//! It has no deadline of its own: whoever asks gives the whole question one, and drops it.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsConnector;

use super::{https, keys};
use crate::model::{Access, Credentials};

/// The header by which a running umawarden knows itself.
pub const INSTANCE_HEADER: &str = "umawarden-instance";

/// More headers than these nobody sends.
const MOST_HEADERS: usize = 64;

/// So much of a name in a header is looked at.
const LONGEST_INSTANCE: usize = 128;

/// Where a server is, and how it is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// A name, or an address, in brackets if it has colons.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How it is spoken to.
    pub access: Access,
}

/// One question.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// Path and query.
    pub path: &'q str,
    /// What is understood.
    pub accept: &'static str,
    /// No answer is longer.
    pub most_bytes: usize,
    /// A status whose body is an answer, too.
    pub also: Option<u16>,
}

/// What came before an answer's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The HTTP status.
    pub status: u16,
    /// Which running umawarden it is, if it is any.
    pub instance: Option<String>,
}

type Sender = SendRequest<Empty<Bytes>>;

/// A connection that is made when it is needed.
#[derive(Debug)]
pub struct Connection {
    server: Server,
    kept: Option<(Sender, Option<HeaderValue>)>,
}

impl Connection {
    /// Connects to nothing yet.
    pub fn new(server: Server) -> Self {
        Self { server, kept: None }
    }

    /// Asks, and hands over the body in parts. Of an answer that is no 200 it hands over nothing.
    /// An error, also one of `take`, ends the connection.
    ///
    /// # Errors
    /// Says why there is no answer, or none that can be used.
    pub async fn get(
        &mut self,
        question: Question<'_>,
        take: &mut (dyn FnMut(&[u8]) -> Result<(), String> + Send),
    ) -> Result<Head, String> {
        let Question { path, accept, most_bytes, also } = question;
        let (response, sender, authorization) = self.ask(path, accept).await?;
        let status = response.status();
        let instance = response.headers().get(INSTANCE_HEADER);
        let instance = instance.and_then(|value| value.to_str().ok());
        let instance = instance.filter(|text| text.len() <= LONGEST_INSTANCE).map(str::to_owned);
        let head = Head { status: status.as_u16(), instance };
        if let Some(why) = refusal(status).filter(|_| also != Some(head.status)) {
            return Err(why);
        }
        let mut body = response.into_body();
        let mut read = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| format!("the answer breaks off: {error}"))?;
            let Some(part) = frame.data_ref() else { continue };
            read += part.len();
            if read > most_bytes {
                return Err(format!("the answer is longer than {} MiB", most_bytes >> 20));
            }
            take(part)?;
        }
        self.kept = Some((sender, authorization));
        Ok(head)
    }

    /// Asks on the connection that was kept, or on a new one where that has been closed.
    async fn ask(
        &mut self,
        path: &str,
        accept: &'static str,
    ) -> Result<(Response<hyper::body::Incoming>, Sender, Option<HeaderValue>), String> {
        if let Some((mut sender, authorization)) = self.kept.take()
            && sender.ready().await.is_ok()
        {
            let request = self.request(path, accept, authorization.as_ref())?;
            if let Ok(response) = sender.send_request(request).await {
                return Ok((response, sender, authorization));
            }
        }
        let (mut sender, authorization) = self.connect().await?;
        let request = self.request(path, accept, authorization.as_ref())?;
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| format!("the connection failed: {error}"))?;
        Ok((response, sender, authorization))
    }

    fn request(
        &self,
        path: &str,
        accept: &'static str,
        authorization: Option<&HeaderValue>,
    ) -> Result<Request<Empty<Bytes>>, String> {
        let Server { host, port, .. } = &self.server;
        let mut request = Request::builder()
            .uri(path)
            .header(HOST, format!("{host}:{port}"))
            .header(ACCEPT, accept)
            .header(USER_AGENT, concat!("umawarden/", env!("CARGO_PKG_VERSION")));
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        request.body(Empty::new()).map_err(|error| error.to_string())
    }

    /// Connects; keys and certificates are read anew each time.
    async fn connect(&self) -> Result<(Sender, Option<HeaderValue>), String> {
        let Server { host, port, access } = &self.server;
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let (tls, authorization) = match *access == Access::default() {
            // Whoever needs no files does not wait behind a disk that hangs.
            true => (None, None),
            false => {
                let access = access.clone();
                let read = spawn_blocking(move || read(&access)).await;
                read.map_err(|_| "reading the keys has failed".to_owned())??
            }
        };
        let stream = TcpStream::connect((bare.as_str(), *port))
            .await
            .map_err(|error| format!("connecting failed: {error}"))?;
        // What is asked is one small packet each time.
        let _slower = stream.set_nodelay(true);
        let sender = match tls {
            None => handshake(TokioIo::new(stream)).await?,
            Some((config, name)) => {
                let name = ServerName::try_from(name.unwrap_or(bare))
                    .map_err(|_| "the server's name is none that a certificate can bear")?;
                let stream = TlsConnector::from(config)
                    .connect(name, stream)
                    .await
                    .map_err(|error| format!("TLS failed: {error}"))?;
                handshake(TokioIo::new(stream)).await?
            }
        };
        Ok((sender, authorization))
    }
}

fn refusal(status: StatusCode) -> Option<String> {
    Some(match status {
        StatusCode::OK => return None,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!("it answers {}: it wants other credentials", status.as_u16())
        }
        _ => format!("it answers {}", status.as_u16()),
    })
}

async fn handshake<S>(stream: TokioIo<S>) -> Result<Sender, String>
where
    TokioIo<S>: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = Builder::new()
        .max_headers(MOST_HEADERS)
        .handshake(stream)
        .await
        .map_err(|error| format!("the connection failed: {error}"))?;
    // It ends with its sender.
    tokio::spawn(connection);
    Ok(sender)
}

type Tls = (Arc<ClientConfig>, Option<String>);

/// Reads who is trusted and what lets this program in.
fn read(access: &Access) -> Result<(Option<Tls>, Option<HeaderValue>), String> {
    let tls = match &access.tls {
        Some(files) => Some((https::config_of(files)?, files.server_name.clone())),
        None => None,
    };
    let authorization = match &access.credentials {
        None => None,
        Some(Credentials::Bearer(file)) => Some(format!("Bearer {}", line(file)?)),
        Some(Credentials::Basic { username, password }) => {
            let pair = format!("{username}:{}", line(password)?);
            Some(format!("Basic {}", BASE64_STANDARD.encode(pair)))
        }
    };
    let header = authorization.map(|text| {
        let mut header = HeaderValue::from_str(&text)
            .map_err(|_| "the credentials hold a control character".to_owned())?;
        header.set_sensitive(true);
        Ok::<_, String>(header)
    });
    Ok((tls, header.transpose()?))
}

/// The one line of a file of credentials.
fn line(file: &Path) -> Result<String, String> {
    let cannot =
        |why: String| format!("the credentials in {} cannot be read: {why}", file.display());
    let text = keys::read_file(file).map_err(|error| cannot(error.to_string()))?;
    let text = String::from_utf8(text).map_err(|_| cannot("they are not UTF-8".to_owned()))?;
    match text.trim() {
        "" => Err(cannot("the file is empty".to_owned())),
        text if text.contains(['\n', '\r']) => Err(cannot("they are more than a line".to_owned())),
        text => Ok(text.to_owned()),
    }
}
