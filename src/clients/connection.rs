//! A kept connection to a server on another node: the metrics of a node, or the API of a
//! Prometheus. No redirect is followed, and every response has a size limit.
//!
//! It has no deadline of its own: the caller limits the whole request, and drops it.

use hyper::Method;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, HeaderName, HeaderValue};
use rustls::ClientConfig;
use tokio::task::spawn_blocking;

use super::http::{self, HttpError, Response};
use super::keys::Secret;
use super::tls;
use crate::model::Access;

/// The header with the identity of a running umawarden.
pub const INSTANCE_HEADER: &str = "umawarden-instance";

/// Limit of the bytes of a name in a header.
const LONGEST_INSTANCE: usize = 128;

/// The address of a server, and its TLS and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// A name, or an address; IPv6 in brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// TLS and credentials.
    pub access: Access,
}

/// A request without a body.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionRequest<'q> {
    /// The HTTP method.
    pub method: &'q Method,
    /// Path and query.
    pub path: &'q str,
    /// The Accept header.
    pub accept: &'static str,
    /// The size limit of the response body, in bytes.
    pub most_bytes: usize,
    /// Statuses other than 200 whose body is read.
    pub also: &'q [u16],
}

impl<'q> ConnectionRequest<'q> {
    /// A GET, of whose response only the body of status 200 is read.
    pub fn get(path: &'q str, accept: &'static str, most_bytes: usize) -> Self {
        Self { method: &Method::GET, path, accept, most_bytes, also: &[] }
    }
}

/// The head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// The HTTP status.
    pub status: u16,
    /// The identity of the running umawarden, if it is one.
    pub instance: Option<String>,
}

/// An open connection, and its authorization header.
#[derive(Debug)]
struct OpenConnection {
    connection: http::HttpConnection,
    authorization: Option<HeaderValue>,
}

/// A connection that is made by the first request.
#[derive(Debug)]
pub struct ServerConnection {
    server: Server,
    kept: Option<OpenConnection>,
}

impl ServerConnection {
    /// Prepares a connection; connects to nothing.
    pub fn new(server: Server) -> Self {
        Self { server, kept: None }
    }

    /// Sends a request; the body is whole.
    ///
    /// # Errors
    /// Why there is no response, or no usable one.
    pub async fn receive(
        &mut self,
        question: ConnectionRequest<'_>,
    ) -> Result<(ResponseHead, Vec<u8>), String> {
        let mut body = Vec::new();
        let mut take = |part: &[u8]| {
            body.extend_from_slice(part);
            Ok(())
        };
        let head = self.send(question, &mut take).await?;
        Ok((head, body))
    }

    /// Sends a request and passes the body to `take` in parts, for status 200 only. An error, also
    /// one of `take`, ends the connection.
    ///
    /// # Errors
    /// Why there is no response, or no usable one.
    pub async fn send(
        &mut self,
        question: ConnectionRequest<'_>,
        take: &mut (dyn FnMut(&[u8]) -> Result<(), String> + Send),
    ) -> Result<ResponseHead, String> {
        let (mut response, open) = self.exchange(question).await?;
        let instance = response.header(HeaderName::from_static(INSTANCE_HEADER));
        let instance = instance.filter(|text| text.len() <= LONGEST_INSTANCE).map(str::to_owned);
        let head = ResponseHead { status: response.status(), instance };
        if let Some(why) = refusal(head.status).filter(|_| !question.also.contains(&head.status)) {
            return Err(why);
        }
        let mut read = 0;
        while let Some(part) = response.part().await.map_err(|error| error.to_string())? {
            read += part.len();
            if read > question.most_bytes {
                return Err(HttpError::TooLong(question.most_bytes).to_string());
            }
            take(&part)?;
        }
        self.kept = Some(open);
        Ok(head)
    }

    /// Sends on the kept connection, or on a new one if that was closed.
    async fn exchange(
        &mut self,
        question: ConnectionRequest<'_>,
    ) -> Result<(Response, OpenConnection), String> {
        if let Some(mut open) = self.kept.take()
            && open.connection.is_open().await
            && let Ok(response) = self.send_over(&mut open, question).await
        {
            return Ok((response, open));
        }
        let mut open = self.connect().await?;
        match self.send_over(&mut open, question).await {
            Ok(response) => Ok((response, open)),
            Err(error) => Err(self.describe(&error)),
        }
    }

    async fn send_over(
        &self,
        open: &mut OpenConnection,
        question: ConnectionRequest<'_>,
    ) -> Result<Response, HttpError> {
        let Server { host, port, .. } = &self.server;
        let url = format!("http://{host}:{port}{}", question.path);
        let method = question.method.clone();
        let mut request = http::request(method, &url)?.header(ACCEPT, question.accept);
        if let Some(value) = &open.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        open.connection.send(request.body(Bytes::new())?).await
    }

    /// Connects. Keys and certificates are read anew each time.
    async fn connect(&self) -> Result<OpenConnection, String> {
        let Server { host, port, access } = &self.server;
        let (tls, authorization) = match *access == Access::default() {
            // Without files no disk can hang.
            true => (None, None),
            false => {
                let access = access.clone();
                let read = spawn_blocking(move || read(&access)).await;
                // The error may contain a secret: it is not printed.
                read.map_err(|_| {
                    "this program has failed while it read what tls, bearer_token_file and \
                     basic_auth name: its log says where, and it tries again"
                        .to_owned()
                })??
            }
        };
        let name = access.tls.as_ref().and_then(|tls| tls.server_name.as_deref()).unwrap_or(host);
        let connected = async {
            let stream = http::connect(host, *port, None).await.map_err(HttpError::Connect)?;
            match tls {
                None => http::HttpConnection::over(stream).await,
                Some(tls) => http::HttpConnection::over_tls(stream, tls, name).await,
            }
        };
        let connection = connected.await.map_err(|error| error.to_string())?;
        Ok(OpenConnection { connection, authorization })
    }

    /// The error, with what a server that closes a new connection may require: its alert is lost if
    /// it has not received the whole request.
    fn describe(&self, error: &HttpError) -> String {
        let (why, tls) = (error.to_string(), &self.server.access.tls);
        match tls {
            _ if !matches!(error, HttpError::Broken(_)) => why,
            None => why + "; if it speaks TLS, write tls: {ca_file: …}",
            Some(files) if files.own.is_none() => {
                why + "; it may want a certificate (tls: {cert_file: …, key_file: …})"
            }
            Some(_) => why + "; it may want another certificate (tls: cert_file)",
        }
    }
}

fn refusal(status: u16) -> Option<String> {
    Some(match status {
        200 => return None,
        401 | 403 => {
            format!(
                "it answers {status}: it wants other credentials (bearer_token_file, or basic_auth)"
            )
        }
        _ => format!("it answers {status}"),
    })
}

type Secrets = (Option<ClientConfig>, Option<HeaderValue>);

/// Reads the trusted authorities, the client certificate and the credentials.
fn read(access: &Access) -> Result<Secrets, String> {
    let tls = access.tls.as_ref().map(tls::config).transpose()?;
    let secret = access.credentials.as_ref().map(Secret::read_for).transpose();
    let secret = secret.map_err(|error| error.to_string())?;
    Ok((tls, secret.map(|secret| secret.header())))
}
