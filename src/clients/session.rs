//! Requests to one engine or FleetLock server, one after the other, each with a deadline.
//!
//! They are made on a thread that lives as long as the session. If the engine has a network
//! namespace of its own, the thread enters it, and its sockets belong to that namespace.

use std::fmt;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request, Uri};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::http::{self, HttpClient, HttpError, connect, send_over};
use super::key_ring::EngineKey;
use super::keys::Secret;
use super::network::Network;
use super::owner::ConnectionEnds;
use super::tls;
use crate::model::{EngineTarget, TlsFiles};
use crate::parse::answer::HttpResponse;

/// The time limit of a connection, with the lookup of a server's name.
const CONNECTING_TAKES: Duration = Duration::from_secs(1);
const CONNECTING_FAR_TAKES: Duration = Duration::from_secs(5);

/// The time beyond a request's own limit after which the thread counts as hanging.
const MARGIN: Duration = Duration::from_secs(1);

/// The size limit of a response, in bytes; `/v1/loads` of 64 ranks has 40 KiB.
const MOST_BYTES: usize = 1 << 20;

/// The address of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `http://host:port`.
    pub origin: String,
    /// Its network namespace, if that is another one.
    pub network: Option<Network>,
}

impl Endpoint {
    /// The address of an engine; `None` if unknown.
    pub fn of(procfs: &Path, engine: &EngineTarget) -> Option<Self> {
        let origin = origin(engine.health_url.as_deref()?).to_owned();
        let network = match &engine.health_network {
            None => None,
            Some(name) => {
                let pid = engine.processes.first()?.pid;
                let file = procfs.join(pid.to_string()).join("ns/net");
                Some(Network { file, name: name.clone() })
            }
        };
        Some(Self { origin, network })
    }

    /// The TCP port.
    pub fn port(&self) -> Option<u16> {
        let uri: Uri = self.origin.parse().ok()?;
        Some(uri.port_u16().unwrap_or(80))
    }
}

/// `http://host:port` of an address.
pub fn origin(url: &str) -> &str {
    let begins = url.find("://").map_or(0, |at| at + 3);
    let ends = url[begins..].find(['/', '?', '#']).map_or(url.len(), |at| begins + at);
    &url[..ends]
}

/// There was no response.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The thread cannot be started, or cannot enter the network of the engine.
    #[error("its network cannot be entered: {0}")]
    Unreachable(String),
    /// There was no response in time.
    #[error("{path} was not answered within {} s", .after.as_secs_f32())]
    TimedOut {
        /// The path of the request.
        path: String,
        /// The time limit.
        after: Duration,
    },
    /// The connection failed.
    #[error("the request to {path} failed: {why}")]
    Failed {
        /// The path of the request.
        path: String,
        /// The error of the connection.
        why: String,
    },
}

/// A header of a request: its name and value.
pub(super) type Header = (&'static str, &'static str);

/// The credentials of a request.
#[derive(Debug, Default)]
struct CallCredentials {
    key: Option<EngineKey>,
    /// The credentials for a server other than an engine.
    secret: Option<Secret>,
    header: Option<Header>,
}

impl CallCredentials {
    fn key(key: Option<&EngineKey>) -> Self {
        Self { key: key.cloned(), ..Self::default() }
    }
}

/// One request.
#[derive(Debug)]
struct SessionCall {
    method: Method,
    path: String,
    body: Option<Vec<u8>>,
    with: CallCredentials,
    patience: Duration,
    reply: SyncSender<Result<HttpResponse, CallError>>,
}

/// A session with one server.
pub struct ClientSession {
    calls: Sender<SessionCall>,
    /// A clock, and the deadline of all requests.
    ends: Option<(fn() -> Duration, Duration)>,
}

impl fmt::Debug for ClientSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl ClientSession {
    /// Starts the thread, which ends when the session is dropped; connects to nothing.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn open(endpoint: Endpoint) -> Result<Self, CallError> {
        Self::start("engine-client", CONNECTING_TAKES, endpoint, None)
    }

    /// The same for a server on any node, below an address, and over TLS if authorities are given.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn open_far(
        name: &str,
        origin: &str,
        trust: Option<TlsFiles>,
    ) -> Result<Self, CallError> {
        let endpoint = Endpoint { origin: origin.to_owned(), network: None };
        Self::start(name, CONNECTING_FAR_TAKES, endpoint, trust)
    }

    fn start(
        name: &str,
        connecting_takes: Duration,
        endpoint: Endpoint,
        trust: Option<TlsFiles>,
    ) -> Result<Self, CallError> {
        let (calls, to_make) = channel();
        let started = Builder::new().name(name.to_owned()).spawn(move || {
            let caller = SessionThread::new(endpoint, connecting_takes, trust.as_ref());
            for call in to_make {
                let answer = match &caller {
                    Ok(caller) => caller.make(&call),
                    Err(error) => Err(CallError::Unreachable(error.to_string())),
                };
                // The caller may have given up.
                let _ = call.reply.send(answer);
            }
        });
        started.map_err(|error| CallError::Unreachable(error.to_string()))?;
        Ok(Self { calls, ends: None })
    }

    /// Sets the time limit of all further requests together.
    #[must_use]
    pub fn within(self, uptime: fn() -> Duration, patience: Duration) -> Self {
        Self { ends: Some((uptime, uptime().saturating_add(patience))), ..self }
    }

    /// Sends a GET.
    ///
    /// # Errors
    /// There was no response in time.
    pub fn get(
        &self,
        path: &str,
        key: Option<&EngineKey>,
        patience: Duration,
    ) -> Result<HttpResponse, CallError> {
        self.call(Method::GET, path, None, CallCredentials::key(key), patience)
    }

    /// Sends a POST.
    ///
    /// # Errors
    /// There was no response in time; the server may have acted.
    pub fn post(
        &self,
        path: &str,
        body: Option<&Value>,
        key: Option<&EngineKey>,
        patience: Duration,
    ) -> Result<HttpResponse, CallError> {
        self.call(Method::POST, path, body, CallCredentials::key(key), patience)
    }

    /// Sends a POST with a header.
    ///
    /// # Errors
    /// There was no response in time; the server may have acted.
    pub(super) fn post_with(
        &self,
        path: &str,
        header: Header,
        body: &Value,
        patience: Duration,
    ) -> Result<HttpResponse, CallError> {
        let with = CallCredentials { header: Some(header), ..CallCredentials::default() };
        self.call(Method::POST, path, Some(body), with, patience)
    }

    /// Sends a POST with credentials to a server other than an engine.
    ///
    /// # Errors
    /// There was no response in time; the server may have acted.
    pub(super) fn post_as(
        &self,
        secret: Option<Secret>,
        path: &str,
        body: &Value,
        patience: Duration,
    ) -> Result<HttpResponse, CallError> {
        self.call(
            Method::POST,
            path,
            Some(body),
            CallCredentials { secret, ..CallCredentials::default() },
            patience,
        )
    }

    fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        with: CallCredentials,
        patience: Duration,
    ) -> Result<HttpResponse, CallError> {
        let (reply, answer) = sync_channel(1);
        let left = self.ends.map(|(uptime, ends_at)| ends_at.saturating_sub(uptime()));
        let patience = patience.min(left.unwrap_or(Duration::MAX));
        let failed = |why: &str| CallError::Failed { path: path.to_owned(), why: why.to_owned() };
        let call = SessionCall {
            method,
            path: path.to_owned(),
            body: body.map(|body| body.to_string().into_bytes()),
            with,
            patience,
            reply,
        };
        self.calls.send(call).map_err(|_| failed("the thread of the requests has ended"))?;
        wait(&answer, patience).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => {
                Err(CallError::TimedOut { path: path.to_owned(), after: patience + MARGIN })
            }
            RecvTimeoutError::Disconnected => Err(failed("the thread of the requests has ended")),
        })
    }
}

fn wait<T>(answer: &Receiver<T>, patience: Duration) -> Result<T, RecvTimeoutError> {
    answer.recv_timeout(patience + MARGIN)
}

/// The state of the thread.
struct SessionThread {
    runtime: Runtime,
    origin: String,
    client: HttpClient,
    connecting_takes: Duration,
}

impl SessionThread {
    fn new(
        endpoint: Endpoint,
        takes: Duration,
        trust: Option<&TlsFiles>,
    ) -> Result<Self, HttpError> {
        let tls = trust.map(tls::config).transpose()?;
        let client = HttpClient::new(takes, tls)?;
        if let Some(network) = &endpoint.network {
            network.enter().map_err(|error| error.to_string())?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        Ok(Self { runtime, origin: endpoint.origin, client, connecting_takes: takes })
    }

    fn make(&self, call: &SessionCall) -> Result<HttpResponse, CallError> {
        let path = || call.path.clone();
        let made =
            self.runtime.block_on(async { timeout(call.patience, self.exchange(call)).await });
        match made {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(why)) => Err(CallError::Failed { path: path(), why: why.to_string() }),
            Err(_) => Err(CallError::TimedOut { path: path(), after: call.patience }),
        }
    }

    /// Each call has a connection of its own.
    async fn exchange(&self, call: &SessionCall) -> Result<HttpResponse, HttpError> {
        let mut request = request(call, &format!("{}{}", self.origin, call.path))?;
        let response = match &call.with.key {
            None => self.client.send(request).await?,
            Some(key) => {
                let (uri, takes) = (request.uri(), self.connecting_takes);
                let connecting =
                    connect(uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(80), None);
                let stream = timeout(takes, connecting).await;
                let stream = stream.map_err(|_| HttpError::ConnectTimedOut(takes))?;
                let stream = stream.map_err(HttpError::Connect)?;
                let key = ConnectionEnds::of(&stream).and_then(|made| key.reveal(&made));
                let key = key.map_err(HttpError::Untrusted)?;
                request.headers_mut().insert(AUTHORIZATION, key.header());
                send_over(stream, request).await?
            }
        };
        response.read(MOST_BYTES).await
    }
}

fn request(call: &SessionCall, url: &str) -> Result<Request<Bytes>, HttpError> {
    let mut request = http::request(call.method.clone(), url)?.header(ACCEPT, "*/*");
    if let Some(secret) = &call.with.secret {
        request = request.header(AUTHORIZATION, secret.header());
    }
    if let Some((name, value)) = call.with.header {
        request = request.header(name, value);
    }
    if call.body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    Ok(request.body(Bytes::from(call.body.clone().unwrap_or_default()))?)
}
