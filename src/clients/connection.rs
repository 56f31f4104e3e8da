//! A connection to a server on another node, kept from question to question: the metrics of a
//! node, or the API of a Prometheus. Nothing leads elsewhere, and every answer has a bound.
//!
//! It has no deadline of its own: whoever asks gives the whole question one, and drops it.

use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use rustls::ClientConfig;
use tokio::task::spawn_blocking;

use super::keys::Secret;
use super::tls;
use super::wire::{self, Wire};
use crate::model::Access;

/// The header by which a running umawarden knows itself.
pub const INSTANCE_HEADER: &str = "umawarden-instance";

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

/// A connection that has been made, and what lets this program in.
#[derive(Debug)]
struct Open {
    wire: Wire,
    authorization: Option<HeaderValue>,
}

/// A connection that is made when it is needed.
#[derive(Debug)]
pub struct Connection {
    server: Server,
    kept: Option<Open>,
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
        let (response, open) = self.ask(path, accept).await?;
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
        self.kept = Some(open);
        Ok(head)
    }

    /// Asks on the connection that was kept, or on a new one where that has been closed.
    async fn ask(
        &mut self,
        path: &str,
        accept: &'static str,
    ) -> Result<(Response<Incoming>, Open), String> {
        if let Some(mut open) = self.kept.take()
            && open.wire.is_open().await
        {
            let request = self.request(path, accept, open.authorization.as_ref())?;
            if let Ok(response) = open.wire.send(request).await {
                return Ok((response, open));
            }
        }
        let mut open = self.connect().await?;
        let request = self.request(path, accept, open.authorization.as_ref())?;
        match open.wire.send(request).await {
            Ok(response) => Ok((response, open)),
            Err(error) => Err(self.broken(&error)),
        }
    }

    fn request(
        &self,
        path: &str,
        accept: &'static str,
        authorization: Option<&HeaderValue>,
    ) -> Result<Request<Full<Bytes>>, String> {
        let Server { host, port, .. } = &self.server;
        let mut request =
            wire::request(Method::GET, &format!("{host}:{port}"), path).header(ACCEPT, accept);
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        request.body(Full::default()).map_err(|error| error.to_string())
    }

    /// Connects; keys and certificates are read anew each time.
    async fn connect(&self) -> Result<Open, String> {
        let Server { host, port, access } = &self.server;
        let (tls, authorization) = match *access == Access::default() {
            // Whoever needs no files does not wait behind a disk that hangs.
            true => (None, None),
            false => {
                let access = access.clone();
                let read = spawn_blocking(move || read(&access)).await;
                // What has failed may hold a secret: it is not told.
                read.map_err(|_| {
                    "this program has failed while it read what tls, bearer_token_file and \
                     basic_auth name: its log says where, and it tries again"
                        .to_owned()
                })??
            }
        };
        let name = access.tls.as_ref().and_then(|tls| tls.server_name.as_deref()).unwrap_or(host);
        let wire = Wire::connect(host, *port, tls.map(|config| (config, name))).await?;
        Ok(Open { wire, authorization })
    }

    /// What a server that ends a new connection may want. It need not have said so: its last words
    /// are lost where it has not heard all of the request.
    fn broken(&self, error: &hyper::Error) -> String {
        let why = wire::broken(error);
        match &self.server.access.tls {
            _ if tls::remedy(error).is_some() => why,
            None => why + "; if it speaks TLS, write tls: {ca_file: …}",
            Some(files) if files.own.is_none() => {
                why + "; it may want a certificate (tls: {cert_file: …, key_file: …})"
            }
            Some(_) => why + "; it may want another certificate (tls: cert_file)",
        }
    }
}

fn refusal(status: StatusCode) -> Option<String> {
    Some(match status {
        StatusCode::OK => return None,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let status = status.as_u16();
            format!(
                "it answers {status}: it wants other credentials (bearer_token_file, or basic_auth)"
            )
        }
        _ => format!("it answers {}", status.as_u16()),
    })
}

type Secrets = (Option<Arc<ClientConfig>>, Option<HeaderValue>);

/// Reads who is trusted and what lets this program in.
fn read(access: &Access) -> Result<Secrets, String> {
    let tls = access.tls.as_ref().map(tls::config).transpose()?;
    let secret = access.credentials.as_ref().map(Secret::read_for).transpose();
    let secret = secret.map_err(|error| error.to_string())?;
    Ok((tls, secret.map(|secret| secret.header())))
}
