//! Calls to one engine, or to the server that keeps a cluster's reboots apart, one after the other,
//! each with an end in sight.
//!
//! They are made on a thread of their own, which lives as long as the session: where the engine has
//! a network of its own, that thread enters it, and all sockets that are made there belong to it.

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

use super::http::{self, Client, HttpError, connect, send_over};
use super::key_ring::EngineKey;
use super::keys::Secret;
use super::network::Network;
use super::owner::Connection;
use super::tls;
use crate::model::{EngineTarget, TlsFiles};
use crate::parse::answer::Answer;

/// How long a connection may take: the engine is on this node, and the server's name is first
/// looked up.
const CONNECTING_TAKES: Duration = Duration::from_secs(1);
const CONNECTING_FAR_TAKES: Duration = Duration::from_secs(5);

/// What the thread has beyond a call's own time before it is taken for hanging.
const MARGIN: Duration = Duration::from_secs(1);

/// No answer that is asked for is longer; `/v1/loads` of 64 ranks has 40 KiB.
const MOST_BYTES: usize = 1 << 20;

/// Where an engine is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `http://host:port`.
    pub origin: String,
    /// Where that is meant, if that is not our own network.
    pub network: Option<Network>,
}

impl Endpoint {
    /// Where that engine is asked; `None` where that is not known.
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

    /// The port.
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

/// There was no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The thread cannot be started, or the engine's network not be entered.
    #[error("its network cannot be entered: {0}")]
    Unreachable(String),
    /// It did not come in time.
    #[error("{path} was not answered within {} s", .after.as_secs_f32())]
    TimedOut {
        /// Where.
        path: String,
        /// After so long.
        after: Duration,
    },
    /// The connection failed.
    #[error("{path} could not be asked: {why}")]
    Failed {
        /// Where.
        path: String,
        /// How.
        why: String,
    },
}

/// A header of a call: its name and what it says.
pub(super) type Header = (&'static str, &'static str);

/// What goes with a call.
#[derive(Debug, Default)]
struct With {
    /// The key of an engine.
    key: Option<EngineKey>,
    /// What lets this program in at a server that is no engine.
    secret: Option<Secret>,
    header: Option<Header>,
}

impl With {
    fn key(key: Option<&EngineKey>) -> Self {
        Self { key: key.cloned(), ..Self::default() }
    }
}

/// One call.
#[derive(Debug)]
struct Call {
    method: Method,
    path: String,
    body: Option<Vec<u8>>,
    with: With,
    patience: Duration,
    reply: SyncSender<Result<Answer, CallError>>,
}

/// The connection to one engine.
pub struct Session {
    calls: Sender<Call>,
    /// A clock, and when all calls must have been answered.
    ends: Option<(fn() -> Duration, Duration)>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    /// Starts the thread, which ends when this is dropped; nothing is connected yet.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn open(endpoint: Endpoint) -> Result<Self, CallError> {
        Self::start("engine-client", CONNECTING_TAKES, endpoint, None)
    }

    /// The same for a server that may be on another node: below that address, and over TLS where
    /// it is said who is trusted.
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
            let caller = Caller::new(endpoint, connecting_takes, trust.as_ref());
            for call in to_make {
                let answer = match &caller {
                    Ok(caller) => caller.make(&call),
                    Err(error) => Err(CallError::Unreachable(error.to_string())),
                };
                // The caller may have given up.
                let _gone = call.reply.send(answer);
            }
        });
        started.map_err(|error| CallError::Unreachable(error.to_string()))?;
        Ok(Self { calls, ends: None })
    }

    /// From now on all calls together have so long.
    #[must_use]
    pub fn within(self, uptime: fn() -> Duration, patience: Duration) -> Self {
        Self { ends: Some((uptime, uptime().saturating_add(patience))), ..self }
    }

    /// Asks.
    ///
    /// # Errors
    /// No answer has come in time.
    pub fn get(
        &self,
        path: &str,
        key: Option<&EngineKey>,
        patience: Duration,
    ) -> Result<Answer, CallError> {
        self.call(Method::GET, path, None, With::key(key), patience)
    }

    /// Sends a POST.
    ///
    /// # Errors
    /// No response came in time; the server may have acted on the request all the same.
    pub fn post(
        &self,
        path: &str,
        body: Option<&Value>,
        key: Option<&EngineKey>,
        patience: Duration,
    ) -> Result<Answer, CallError> {
        self.call(Method::POST, path, body, With::key(key), patience)
    }

    /// Sends a POST with that header.
    ///
    /// # Errors
    /// No response came in time; the server may have acted on the request all the same.
    pub(super) fn post_with(
        &self,
        path: &str,
        header: Header,
        body: &Value,
        patience: Duration,
    ) -> Result<Answer, CallError> {
        let with = With { header: Some(header), ..With::default() };
        self.call(Method::POST, path, Some(body), with, patience)
    }

    /// Sends a POST to a server that is no engine, with credentials.
    ///
    /// # Errors
    /// No response came in time; the server may have acted on the request all the same.
    pub(super) fn post_as(
        &self,
        secret: Option<Secret>,
        path: &str,
        body: &Value,
        patience: Duration,
    ) -> Result<Answer, CallError> {
        self.call(Method::POST, path, Some(body), With { secret, ..With::default() }, patience)
    }

    fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        with: With,
        patience: Duration,
    ) -> Result<Answer, CallError> {
        let (reply, answer) = sync_channel(1);
        let left = self.ends.map(|(uptime, ends_at)| ends_at.saturating_sub(uptime()));
        let patience = patience.min(left.unwrap_or(Duration::MAX));
        let failed = |why: &str| CallError::Failed { path: path.to_owned(), why: why.to_owned() };
        let call = Call {
            method,
            path: path.to_owned(),
            body: body.map(|body| body.to_string().into_bytes()),
            with,
            patience,
            reply,
        };
        self.calls.send(call).map_err(|_| failed("the thread that asks has ended"))?;
        wait(&answer, patience).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => {
                Err(CallError::TimedOut { path: path.to_owned(), after: patience + MARGIN })
            }
            RecvTimeoutError::Disconnected => Err(failed("the thread that asks has ended")),
        })
    }
}

fn wait<T>(answer: &Receiver<T>, patience: Duration) -> Result<T, RecvTimeoutError> {
    answer.recv_timeout(patience + MARGIN)
}

/// What lives on the thread.
struct Caller {
    runtime: Runtime,
    origin: String,
    client: Client,
    connecting_takes: Duration,
}

impl Caller {
    fn new(
        endpoint: Endpoint,
        takes: Duration,
        trust: Option<&TlsFiles>,
    ) -> Result<Self, HttpError> {
        let tls = trust.map(tls::config).transpose()?;
        let client = Client::new(takes, tls)?;
        if let Some(network) = &endpoint.network {
            network.enter().map_err(|error| error.to_string())?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        Ok(Self { runtime, origin: endpoint.origin, client, connecting_takes: takes })
    }

    fn make(&self, call: &Call) -> Result<Answer, CallError> {
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
    async fn exchange(&self, call: &Call) -> Result<Answer, HttpError> {
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
                let key = Connection::of(&stream).and_then(|made| key.reveal(&made));
                let key = key.map_err(HttpError::Untrusted)?;
                request.headers_mut().insert(AUTHORIZATION, key.header());
                send_over(stream, request).await?
            }
        };
        response.read(MOST_BYTES).await
    }
}

fn request(call: &Call, url: &str) -> Result<Request<Bytes>, HttpError> {
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
