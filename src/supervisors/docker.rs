//! Docker, or another server of its API, through its socket.
//!
//! bollard makes the requests and reads the responses. This module opens the socket for it, one
//! connection a request, and bounds the time and the size of each response. If a response does not
//! fit bollard's types, its text is used instead: one unknown state would otherwise lose the whole
//! list ([`Docker::list`]). `parse::container` interprets both.

mod sockets;

use std::collections::HashMap;
use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::models::{ContainerUpdateBody, EventMessage, RestartPolicy};
use bollard::query_parameters::{
    EventsOptions, KillContainerOptionsBuilder, ListContainersOptionsBuilder, LogsOptionsBuilder,
    StopContainerOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, BollardRequest};
use futures_util::stream::{BoxStream, StreamExt as _};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue, USER_AGENT};
use hyper::{Response, Uri};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::NotEnded;
use crate::model::bytes_text;
pub use sockets::{
    ClientEndpoint, MOST_CLIENT_BYTES, OF_USERS, USER_FOLDERS, socket_of_environment, user_of,
};

/// The size limit of a response's head.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Podman's responses have this header, and Docker's do not.
const PODMAN_HEADER: &str = "libpod-api-version";

/// The size limit of one event.
const MAX_EVENT_BYTES: usize = 256 << 10;

/// The size limits of a list, of an inspection and of the response to an order.
const MAX_LIST_BYTES: usize = 16 << 20;
const MAX_INSPECT_BYTES: usize = 1 << 20;
const MAX_ORDER_BYTES: usize = 1 << 20;

/// The most characters of Docker's message in an error.
const MESSAGE_CHARS: usize = 300;

/// Why a request has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DockerError {
    /// There is no such socket.
    Absent,
    /// No process listens at the socket.
    Refused,
    /// There was no response in time.
    TimedOut(Duration),
    /// The status of the response is not a success.
    Status {
        /// The HTTP status.
        status: u16,
        /// The message of Docker, printable; may be empty.
        message: String,
    },
    /// The name is impossible for a container.
    NotAContainer(String),
    /// The process at the socket runs as another user than the one whose runtime was expected.
    OfAnother {
        /// The expected user.
        user: u32,
        /// The user of the process, if it is known.
        found: Option<u32>,
    },
    /// The socket may not be used.
    Denied,
    /// Any other failure.
    Failed(String),
}

impl DockerError {
    /// Whether there is no such container.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Status { status: 404, .. })
    }
}

impl fmt::Display for DockerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("there is no Docker: check path.docker_socket"),
            Self::Refused => f.write_str("no process listens at its socket: is Docker running?"),
            Self::TimedOut(patience) => {
                write!(f, "Docker has not answered within {} s", patience.as_secs_f32())
            }
            Self::Status { status, message } if message.is_empty() => {
                write!(f, "Docker answered {status}")
            }
            Self::Status { status, message } => write!(f, "Docker answered {status}: {message}"),
            Self::NotAContainer(name) => write!(f, "{name:?} is no container's id"),
            Self::OfAnother { user, found } => {
                let found =
                    found.map_or("nobody known".to_owned(), |found| format!("user {found}"));
                write!(f, "it is served by {found} and not by user {user}: it is not asked")
            }
            Self::Denied => f.write_str(
                "permission denied: run as root with CAP_DAC_OVERRIDE (`umawarden print drop-in \
                 rootless`), or in the group of the socket",
            ),
            Self::Failed(error) => f.write_str(error),
        }
    }
}

impl From<io::Error> for DockerError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::NotFound => Self::Absent,
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<Error> for DockerError {
    fn from(error: Error) -> Self {
        match error {
            Error::IOError { err } => match err.get_ref().and_then(|own| own.downcast_ref()) {
                Some(WrongOwner { user, found }) => Self::OfAnother { user: *user, found: *found },
                None => err.into(),
            },
            Error::DockerResponseServerError { status_code, message } => {
                let printable = message.chars().filter(|c| !c.is_control());
                let message = printable.take(MESSAGE_CHARS).collect();
                Self::Status { status: status_code, message }
            }
            error => {
                let mut text = error.to_string();
                let causes = std::iter::successors(error.source(), |&cause| cause.source());
                causes.for_each(|cause| text.push_str(&format!(": {cause}")));
                Self::Failed(text)
            }
        }
    }
}

/// One container as in `GET /containers/ID/json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The JSON of the response.
    pub text: Vec<u8>,
    /// Whether the server is Podman, which records fewer events.
    pub is_podman: bool,
}

/// The outcome of a start that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOutcome {
    /// It was started.
    Now,
    /// It was running already.
    Before,
}

/// The process at a socket runs as another user.
#[derive(Debug, thiserror::Error)]
#[error("it is served by another user")]
struct WrongOwner {
    user: u32,
    found: Option<u32>,
}

/// A client of Docker.
#[derive(Clone, Debug)]
pub struct Docker {
    socket: PathBuf,
    user: Option<u32>,
}

impl Docker {
    /// A client of the server at a socket. In the folder of a user (`/run/user/UID`) the server
    /// must run as that user.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), user: user_of(socket) }
    }

    /// A client of a server that must run as that user. Nothing is sent to another one: a path in
    /// a user's folder may lead to any socket.
    pub fn of_user(socket: &Path, user: u32) -> Self {
        Self { socket: socket.to_owned(), user: Some(user) }
    }

    /// Path of the socket of the API.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Lists the running containers, or all of them, as the JSON of `GET /containers/json`.
    ///
    /// # Errors
    /// There is no response in time, or it is too long or no success.
    pub async fn list(&self, is_all: bool, patience: Duration) -> Result<Vec<u8>, DockerError> {
        let call = self.call(MAX_LIST_BYTES, None);
        let options = ListContainersOptionsBuilder::new().all(is_all).build();
        let listed = async { text(call.docker()?.list_containers(Some(options)).await) };
        call.within(patience, listed).await
    }

    /// Inspects a container.
    ///
    /// # Errors
    /// As of [`Self::list`].
    pub async fn inspect(&self, id: &str, patience: Duration) -> Result<Inspection, DockerError> {
        let (id, call) = (container(id)?, self.call(MAX_INSPECT_BYTES, None));
        let inspected = async { text(call.docker()?.inspect_container(id, None).await) };
        let text = call.within(patience, inspected).await?;
        Ok(Inspection { text, is_podman: call.is_podman.load(Ordering::Relaxed) })
    }

    /// Starts a container.
    ///
    /// # Errors
    /// As of [`Self::list`]; without a response it may have been started.
    pub async fn start(&self, id: &str, patience: Duration) -> Result<StartOutcome, DockerError> {
        let (id, call) = (container(id)?, self.call(MAX_ORDER_BYTES, None));
        call.within(patience, async { call.docker()?.start_container(id, None).await }).await?;
        // To bollard both are a success.
        let is_running = call.status.load(Ordering::Relaxed) == 304;
        Ok(if is_running { StartOutcome::Before } else { StartOutcome::Now })
    }

    /// Sends a signal to the first process of a container.
    ///
    /// # Errors
    /// As of [`Self::list`]; without a response it may have been sent.
    pub async fn kill(
        &self,
        id: &str,
        signal: &str,
        patience: Duration,
    ) -> Result<(), DockerError> {
        let (id, call) = (container(id)?, self.call(MAX_ORDER_BYTES, None));
        let options = KillContainerOptionsBuilder::new().signal(signal).build();
        call.within(patience, async { call.docker()?.kill_container(id, Some(options)).await })
            .await
    }

    /// Stops a container: its stop signal, and SIGKILL after a grace in seconds.
    ///
    /// # Errors
    /// As of [`Self::list`]; without a response it may be stopped.
    pub async fn stop(&self, id: &str, grace: i32, patience: Duration) -> Result<(), DockerError> {
        let (id, call) = (container(id)?, self.call(MAX_ORDER_BYTES, None));
        let options = StopContainerOptionsBuilder::new().t(grace).build();
        call.within(patience, async { call.docker()?.stop_container(id, Some(options)).await })
            .await
    }

    /// Changes the restart policy of a container: `no`, `always`, `unless-stopped`, or `on-failure`
    /// with at most `most` attempts.
    ///
    /// # Errors
    /// As of [`Self::list`], or there is no such policy.
    pub async fn set_restart_policy(
        &self,
        id: &str,
        policy: &str,
        most: i64,
        patience: Duration,
    ) -> Result<(), DockerError> {
        let (id, call) = (container(id)?, self.call(MAX_ORDER_BYTES, None));
        let name = policy.parse().map_err(DockerError::Failed)?;
        let policy = RestartPolicy { name: Some(name), maximum_retry_count: Some(most) };
        let wanted =
            ContainerUpdateBody { restart_policy: Some(policy), ..ContainerUpdateBody::default() };
        call.within(patience, async { call.docker()?.update_container(id, wanted).await }).await
    }

    /// Reads the log of a container between two times, in seconds since 1970: the last lines, each
    /// with its time. A piece has the number of its output: 1 and 2, or 0 for a terminal.
    ///
    /// # Errors
    /// As of [`Self::list`].
    pub async fn logs(
        &self,
        id: &str,
        (since, until): (&str, Option<&str>),
        lines: u32,
        most: usize,
        patience: Duration,
    ) -> Result<Vec<(usize, Vec<u8>)>, DockerError> {
        // bollard has whole seconds for these, and 32 bits.
        let until = until.map(|until| format!("&until={until}")).unwrap_or_default();
        let call = self.call(most, Some(format!("since={since}{until}")));
        let options = LogsOptionsBuilder::new().stdout(true).stderr(true).timestamps(true);
        let options = options.tail(&lines.to_string()).build();
        let id = container(id)?;
        let read = async {
            let mut pieces = Vec::new();
            let mut stream = pin!(call.docker()?.logs(id, Some(options)));
            while let Some(piece) = stream.next().await {
                let output = match &piece {
                    Ok(LogOutput::StdOut { .. }) => 1,
                    Ok(LogOutput::StdErr { .. }) => 2,
                    _ => 0,
                };
                pieces.push((output, piece?.into_bytes().to_vec()));
            }
            Ok(pieces)
        };
        call.within(patience, read).await
    }

    /// Reads the events since a time in seconds since 1970, each as its JSON. Without `until`,
    /// `stream=false` keeps Docker from waiting for further events; Podman ends by itself.
    ///
    /// # Errors
    /// As of [`Self::list`].
    pub async fn past_events(
        &self,
        filters: HashMap<String, Vec<String>>,
        (since, until): (String, Option<String>),
        most: usize,
        patience: Duration,
    ) -> Result<Vec<Vec<u8>>, DockerError> {
        let call = self.call(most, until.is_none().then(|| "stream=false".to_owned()));
        let options = EventsOptions { since: Some(since), until, filters: Some(filters) };
        let read = async {
            let mut events = Vec::new();
            let mut stream = pin!(call.docker()?.events(Some(options)));
            while let Some(event) = stream.next().await {
                events.push(text(event)?);
            }
            Ok(events)
        };
        call.within(patience, read).await
    }

    /// Begins to track events as they happen.
    ///
    /// # Errors
    /// The response does not begin in time, or is no success.
    pub async fn events(
        &self,
        filters: HashMap<String, Vec<String>>,
        patience: Duration,
    ) -> Result<Events, DockerError> {
        let call = self.call(MAX_EVENT_BYTES, None);
        let options = EventsOptions { filters: Some(filters), ..EventsOptions::default() };
        let mut stream = call.docker()?.events(Some(options)).boxed();
        let begun = async {
            tokio::select! {
                // No event is lost by that: each only triggers a query.
                event = stream.next() => event.transpose().map(drop),
                () = call.has_begun.notified() => Ok(()),
            }
        };
        call.within(patience, begun).await?;
        Ok(Events { stream, call })
    }

    fn call(&self, most: usize, query: Option<String>) -> Arc<DockerCall> {
        Arc::new(DockerCall {
            socket: self.socket.clone(),
            user: self.user,
            query,
            most,
            left: AtomicUsize::new(most + MAX_HEAD_BYTES),
            is_too_long: AtomicBool::new(false),
            is_podman: AtomicBool::new(false),
            status: AtomicU16::new(0),
            has_begun: Notify::new(),
        })
    }
}

/// Events as they happen.
pub struct Events {
    stream: BoxStream<'static, Result<EventMessage, Error>>,
    call: Arc<DockerCall>,
}

impl Events {
    /// Waits for the next event. Returns false at the end of the stream. The call may be cancelled
    /// and repeated.
    pub async fn next(&mut self) -> bool {
        let event = self.stream.next().await;
        self.call.left.store(MAX_EVENT_BYTES, Ordering::Relaxed);
        matches!(event, Some(Ok(_)))
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

/// The JSON of bollard's value, or that of the response if it does not fit bollard's types.
fn text<T: Serialize>(read: Result<T, Error>) -> Result<Vec<u8>, Error> {
    match read {
        Ok(read) => Ok(serde_json::to_vec(&read)?),
        Err(Error::JsonDataError { contents, .. }) => Ok(contents.into_bytes()),
        Err(error) => Err(error),
    }
}

/// The name or id, if it is possible for a container: it becomes a part of a path.
fn container(name: &str) -> Result<&str, DockerError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    let is_name = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    let is_name = is_name && name.bytes().all(is_plain);
    is_name.then_some(name).ok_or_else(|| DockerError::NotAContainer(name.to_owned()))
}

/// One request, and the parts of its response that bollard does not report.
#[derive(Debug)]
struct DockerCall {
    socket: PathBuf,
    user: Option<u32>,
    /// Parameters that bollard lacks, or has with less precision.
    query: Option<String>,
    /// The size limit of the response's body, and the rest that may still be read.
    most: usize,
    left: AtomicUsize,
    is_too_long: AtomicBool,
    is_podman: AtomicBool,
    status: AtomicU16,
    has_begun: Notify,
}

impl DockerCall {
    fn docker(self: &Arc<Self>) -> Result<bollard::Docker, Error> {
        let call = Arc::clone(self);
        let send = move |request| Arc::clone(&call).send(request);
        // The deadline is that of the whole call.
        bollard::Docker::connect_with_custom_transport(
            send,
            Some("http://localhost"),
            u64::MAX,
            API_DEFAULT_VERSION,
        )
    }

    async fn within<T>(
        &self,
        patience: Duration,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, DockerError> {
        match timeout(patience, work).await {
            Err(_) => Err(DockerError::TimedOut(patience)),
            Ok(Err(_)) if self.is_too_long.load(Ordering::Relaxed) => {
                let most = bytes_text(self.most as u64);
                Err(DockerError::Failed(format!("it answered more than {most}")))
            }
            Ok(done) => Ok(done?),
        }
    }

    async fn send(
        self: Arc<Self>,
        mut request: BollardRequest,
    ) -> Result<Response<Incoming>, Error> {
        *request.uri_mut() = self.target(request.uri()).parse()?;
        let headers = request.headers_mut();
        let agent = concat!("umawarden/", env!("CARGO_PKG_VERSION"));
        headers.insert(HOST, HeaderValue::from_static("localhost"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        let stream = UnixStream::connect(&self.socket).await?;
        self.verify(&stream)?;
        let stream = Bounded { stream, call: Arc::clone(&self) };
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEAD_BYTES);
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        // It ends with the response, or with its reader.
        tokio::spawn(connection);
        let response = sender.send_request(request).await?;
        self.status.store(response.status().as_u16(), Ordering::Relaxed);
        self.is_podman.store(response.headers().contains_key(PODMAN_HEADER), Ordering::Relaxed);
        if response.status().is_success() {
            self.has_begun.notify_one();
        }
        Ok(response)
    }

    /// The kernel reports the user of the process that listens (SO_PEERCRED, unix(7)).
    fn verify(&self, stream: &UnixStream) -> io::Result<()> {
        let Some(user) = self.user else { return Ok(()) };
        let found = stream.peer_cred().ok().map(|peer| peer.uid());
        let is_its = found == Some(user);
        is_its.then_some(()).ok_or_else(|| io::Error::other(WrongOwner { user, found }))
    }

    /// Path and query, with the parameters of this call in place of bollard's.
    fn target(&self, uri: &Uri) -> String {
        let own = self.query.as_deref().unwrap_or_default();
        let key = |pair: &str| pair.split('=').next().unwrap_or_default().to_owned();
        let is_own = |pair: &str| own.split('&').any(|own| key(own) == key(pair));
        let others = uri.query().unwrap_or_default().split('&').filter(|pair| !is_own(pair));
        let pairs: Vec<&str> = others.chain([own]).filter(|pair| !pair.is_empty()).collect();
        match pairs.is_empty() {
            true => uri.path().to_owned(),
            false => format!("{}?{}", uri.path(), pairs.join("&")),
        }
    }
}

/// A connection that breaks once a response is longer than its limit.
struct Bounded {
    stream: UnixStream,
    call: Arc<DockerCall>,
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read = buffer.filled().len() - before;
        let left = self.call.left.load(Ordering::Relaxed).checked_sub(read);
        self.call.left.store(left.unwrap_or(0), Ordering::Relaxed);
        if left.is_none() {
            self.call.is_too_long.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::Error::other("the response is too long")));
        }
        polled
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Runs work with Docker on a thread of its own, with a time limit.
///
/// # Errors
/// The work failed, or has not ended in time; it may go on.
pub fn within<T, F, W>(patience: Duration, work: F) -> Result<T, String>
where
    T: Send + 'static,
    F: FnOnce() -> W + Send + 'static,
    W: Future<Output = Result<T, String>>,
{
    super::within("docker", patience, work).unwrap_or_else(|not_ended| match not_ended {
        NotEnded::TimedOut => Err(DockerError::TimedOut(patience).to_string()),
        NotEnded::Broken(why) => Err(why),
    })
}

#[cfg(test)]
mod tests;
