//! The accept loop: bounded connections with deadlines, and a quick end.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_user_timeout;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, warn};

use super::admission::ConnectionOrigin;
use super::control::{ControlSocket, SocketFile};
use super::stall::{Activity, Stall};
use super::{ClientLimits, Served, routes};
use crate::access::{AccessControl, network};
use crate::model::RefusalReason;

/// Connections above the limit that are being closed.
const SPARE_CONNECTIONS: usize = 32;
/// Request line and headers; bounds the memory of one connection.
const REQUEST_HEADER_BYTES: usize = 16 * 1024;
/// After a failed accept, until a descriptor or memory may be free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// At the end, for requests that are sent and not read yet.
const LAST_REQUESTS: Duration = Duration::from_millis(100);
/// At the end, for pending responses.
const LAST_RESPONSES: Duration = Duration::from_millis(600);

/// How often the files of access control are checked.
const CHECK_FILES_EVERY: Duration = Duration::from_secs(1);
/// How often the file of the control socket is checked.
const CHECK_CONTROL_EVERY: Duration = Duration::from_secs(2);
/// Between attempts to create the control socket.
const CONTROL_PAUSE: Duration = Duration::from_secs(2);

/// Serves until `shutdown` turns true or its sender is dropped, then ends within a second. Open
/// requests are completed, idle connections closed.
///
/// The control socket has its own connections, so that a flood from the network does not exclude
/// operators. If it cannot be created, this is logged and retried.
///
/// # Errors
/// The telemetry path is invalid, or a listener cannot be registered with the runtime.
pub async fn serve(
    listeners: Vec<StdListener>,
    served: Arc<Served>,
    shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    let listeners = listeners
        .into_iter()
        .map(|listener| {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        })
        .collect::<io::Result<Vec<_>>>()?;
    let limits = served.limits;
    let control = served.control_socket.clone();
    let access = Arc::clone(&served.access);
    let router = routes::router(served, shutdown.clone())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let mut ending = shutdown.clone();
    let network = Listeners::Network(listeners);
    let connections = Connections::new(router.clone(), limits, Some(Arc::clone(&access)));
    let on_network = serve_on(network, connections, ended_by(&mut ending));
    let control = serve_control(control, router, limits, shutdown.clone());
    tokio::join!(on_network, control, watch_files(access, shutdown));
    Ok(())
}

/// Checks the files of access control, on a thread that may hang.
async fn watch_files(access: Arc<AccessControl>, mut shutdown: watch::Receiver<bool>) {
    if !access.has_files() {
        return;
    }
    loop {
        let control = Arc::clone(&access);
        let checked = async {
            tokio::time::sleep(CHECK_FILES_EVERY).await;
            // A panic there is logged by its thread.
            let _ = tokio::task::spawn_blocking(move || control.reload()).await;
        };
        tokio::select! {
            biased;
            () = ended_by(&mut shutdown) => return,
            () = checked => {}
        }
    }
}

/// Keeps the control socket open: creates it again if it or its folder is removed.
async fn serve_control(
    path: PathBuf,
    router: Router,
    limits: ClientLimits,
    mut shutdown: watch::Receiver<bool>,
) {
    let mut logged = String::new();
    let mut ended = false;
    while !ended {
        let wanted = path.clone();
        // The file system may hang, so that this needs another thread.
        let opened = tokio::task::spawn_blocking(move || ControlSocket::open(&wanted)).await;
        let opened = opened.unwrap_or_else(|failure| Err(io::Error::other(failure)));
        let listening = opened.and_then(|opened| {
            UnixListener::from_std(opened.listener).map(|listener| (listener, opened.file))
        });
        match listening {
            Ok((listener, file)) => {
                logged.clear();
                tracing::debug!("control socket open at {}", path.display());
                let connections = Connections::new(router.clone(), limits, None);
                let lost_or_ended = async {
                    tokio::select! {
                        () = ended_by(&mut shutdown) => {}
                        () = lost(&file) => {
                            warn!("control socket {} removed; creating it again", path.display());
                        }
                    }
                };
                serve_on(Listeners::Control(listener), connections, lost_or_ended).await;
                // A panic is logged by its thread.
                let _ = tokio::task::spawn_blocking(move || file.remove()).await;
            }
            Err(error) => {
                let text = error.to_string();
                if text != logged {
                    warn!("no orders possible, retrying: {text}");
                    logged = text;
                }
            }
        }
        tokio::select! {
            biased;
            () = ended_by(&mut shutdown) => ended = true,
            () = tokio::time::sleep(CONTROL_PAUSE) => {}
        }
    }
}

/// Waits until the file no longer leads to the socket.
async fn lost(file: &SocketFile) {
    loop {
        tokio::time::sleep(CHECK_CONTROL_EVERY).await;
        let looked_at = file.clone();
        let is_there = tokio::task::spawn_blocking(move || looked_at.is_there()).await;
        if matches!(is_there, Ok(false)) {
            return;
        }
    }
}

/// Accepts until `end` completes.
async fn serve_on(listeners: Listeners, mut connections: Connections, end: impl Future) {
    let mut refusing = false;
    let mut end = pin!(end);
    loop {
        let may_accept = connections.evict_idle();
        tokio::select! {
            biased;
            _ = end.as_mut() => break,
            _ = connections.tasks.join_next(), if !connections.tasks.is_empty() => {}
            accepted = listeners.accept(), if may_accept => match accepted {
                Ok(accepted) => {
                    refusing = false;
                    connections.accept(accepted);
                }
                Err(error) if concerns_one_client(&error) => debug!(%error, "accept"),
                Err(error) => {
                    if !refusing {
                        warn!(%error, "cannot accept connections; retrying");
                    }
                    refusing = true;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            () = tokio::time::sleep(ACCEPT_PAUSE), if !may_accept => {}
        }
    }
    drop(listeners);
    connections.drain().await;
}

/// Waits until `shutdown` turns true or its sender is dropped.
async fn ended_by(shutdown: &mut watch::Receiver<bool>) {
    // The returned guard must not live across an await.
    let _ = shutdown.wait_for(|stop| *stop).await.is_ok();
}

enum Listeners {
    Network(Vec<TcpListener>),
    Control(UnixListener),
}

enum Accepted {
    Network(TcpStream, IpAddr),
    Control(UnixStream),
}

impl Listeners {
    /// The next connection.
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Network(listeners) => {
                std::future::poll_fn(|cx| {
                    let mut accepted = listeners.iter().map(|listener| listener.poll_accept(cx));
                    match accepted.find(Poll::is_ready) {
                        Some(Poll::Ready(accepted)) => {
                            Poll::Ready(accepted.map(|(stream, from)| {
                                // IPv4 over a dual-stack socket is IPv4.
                                Accepted::Network(stream, from.ip().to_canonical())
                            }))
                        }
                        Some(Poll::Pending) | None => Poll::Pending,
                    }
                })
                .await
            }
            Self::Control(listener) => {
                listener.accept().await.map(|(stream, _)| Accepted::Control(stream))
            }
        }
    }
}

/// The client disconnected between its SYN and our accept.
fn concerns_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// A connection, for the accept loop.
#[derive(Default)]
struct ConnectionHandle {
    activity: Arc<Activity>,
    close: Notify,
    /// `None` on the control socket.
    network: Option<IpAddr>,
}

type OpenConnections = Arc<Mutex<BTreeMap<u64, Arc<ConnectionHandle>>>>;

struct Connections {
    http: http1::Builder,
    router: Router,
    limits: ClientLimits,
    /// `None` for the control socket.
    access: Option<Arc<AccessControl>>,
    graceful: GracefulShutdown,
    tasks: JoinSet<()>,
    open: OpenConnections,
    opened: u64,
}

impl Connections {
    fn new(router: Router, limits: ClientLimits, access: Option<Arc<AccessControl>>) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(limits.request_header)
            .max_buf_size(REQUEST_HEADER_BYTES);
        Self {
            http,
            router,
            limits,
            access,
            graceful: GracefulShutdown::new(),
            tasks: JoinSet::new(),
            open: OpenConnections::default(),
            opened: 0,
        }
    }

    /// Whether another connection may be accepted. Above the limit it closes the oldest idle
    /// connection.
    fn evict_idle(&self) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while open.len() > self.limits.connections {
            let idle = open.iter().find(|(_, handle)| !handle.activity.is_busy());
            let Some(id) = idle.map(|(id, _)| *id) else { break };
            if let Some(handle) = open.remove(&id) {
                handle.close.notify_one();
            }
        }
        self.tasks.len() < self.limits.connections.saturating_add(SPARE_CONNECTIONS)
    }

    /// Whether this address may have another connection. Above its limit it closes its oldest idle
    /// connection.
    fn evict_idle_of(&self, address: IpAddr) -> bool {
        let network = network(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let own = |(_, handle): &(&u64, &Arc<ConnectionHandle>)| handle.network == Some(network);
        if open.iter().filter(own).count() < self.limits.connections_of_address {
            return true;
        }
        let idle = open.iter().filter(own).find(|(_, handle)| !handle.activity.is_busy());
        let idle = idle.map(|(id, _)| *id);
        if let Some(handle) = idle.and_then(|id| open.remove(&id)) {
            handle.close.notify_one();
            return true;
        }
        if let Some(access) = &self.access {
            let text = "too many connections of this address, none of them idle";
            access.refuse(RefusalReason::Connections, "a connection", address, text);
        }
        false
    }

    fn accept(&mut self, accepted: Accepted) {
        match accepted {
            Accepted::Network(stream, address) => {
                // Responses are written at once, so that Nagle's algorithm only delays.
                if let Err(error) = stream.set_nodelay(true) {
                    debug!(%error, "set_nodelay");
                }
                // Drops data that the kernel still buffers for a client that has gone.
                let patience = u32::try_from(self.limits.response.as_millis()).unwrap_or(0);
                if let Err(error) = set_tcp_user_timeout(&stream, patience) {
                    debug!(%error, "TCP_USER_TIMEOUT");
                }
                // The generation is known once its task runs.
                let arrival =
                    ConnectionOrigin::Network { address, certificate: None, generation: 0 };
                if self.evict_idle_of(address) {
                    self.open(stream, arrival);
                }
            }
            Accepted::Control(stream) => match stream.peer_cred() {
                Ok(peer) => self.open(stream, ConnectionOrigin::Control { uid: peer.uid() }),
                Err(error) => debug!(%error, "peer_cred"),
            },
        }
    }

    fn open<S>(&mut self, stream: S, arrival: ConnectionOrigin)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let address = match &arrival {
            ConnectionOrigin::Network { address, .. } => Some(*address),
            ConnectionOrigin::Control { .. } => None,
        };
        let handle =
            ConnectionHandle { network: address.map(network), ..ConnectionHandle::default() };
        let handle = Arc::new(handle);
        let id = self.opened;
        self.opened += 1;
        let guard = Registered { id, open: Arc::clone(&self.open) };
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::clone(&handle));
        let serving = ConnectionServer {
            http: self.http.clone(),
            router: self.router.clone(),
            graceful: self.graceful.watcher(),
            activity: Arc::clone(&handle.activity),
        };
        let stream = Stall::new(stream, self.limits.response, Arc::clone(&handle.activity));
        let (access, refusals) = (self.access.clone(), self.access.clone());
        let handshake_takes = self.limits.handshake;
        self.tasks.spawn(async move {
            let _guard = guard;
            let served = async {
                let Some(access) = access else { return serving.serve(stream, arrival).await };
                let handshake = access.handshake();
                let Some(config) = handshake.tls.clone() else {
                    return serving.serve(stream, arrival.with_handshake(&handshake, None)).await;
                };
                if let Some(stream) = shake_hands(config, handshake_takes, stream).await {
                    let arrival = arrival.with_handshake(&handshake, shown(&stream));
                    serving.serve(stream, arrival).await;
                } else {
                    access.count_failed_handshake();
                }
            };
            tokio::select! {
                () = served => {}
                () = handle.close.notified() => debug!("connection closed by limit"),
            }
            if let (Some(access), Some(address)) = (refusals, address)
                && handle.activity.has_stalled.load(Ordering::Relaxed)
            {
                let text = "its response was not read in time";
                access.refuse(RefusalReason::Unread, "a connection", address, text);
            }
        });
    }

    /// Waits a moment for open requests.
    async fn drain(self) {
        let Self { graceful, mut tasks, open, .. } = self;
        let mut drained = pin!(graceful.shutdown());
        if tokio::time::timeout(LAST_REQUESTS, drained.as_mut()).await.is_err() {
            for handle in open.lock().unwrap_or_else(PoisonError::into_inner).values() {
                if !handle.activity.is_busy() {
                    handle.close.notify_one();
                }
            }
            if tokio::time::timeout(LAST_RESPONSES, drained).await.is_err() {
                debug!("connections closed during a response");
            }
        }
        tasks.shutdown().await;
    }
}

struct ConnectionServer {
    http: http1::Builder,
    router: Router,
    graceful: Watcher,
    activity: Arc<Activity>,
}

impl ConnectionServer {
    async fn serve<S>(self, stream: S, arrival: ConnectionOrigin)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let answers = answers(self.router, arrival, self.activity);
        let connection = self.http.serve_connection(TokioIo::new(stream), answers);
        if let Err(error) = self.graceful.watch(connection).await {
            debug!(%error, "connection");
        }
    }
}

/// The TLS handshake, with a deadline. `None` if it fails. Until it is done, the connection counts
/// as idle, and is closed before those that are served.
async fn shake_hands<S>(
    config: Arc<ServerConfig>,
    takes: Duration,
    stream: S,
) -> Option<TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match tokio::time::timeout(takes, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            debug!(%error, "handshake");
            None
        }
        Err(_) => {
            debug!("tls handshake timed out");
            None
        }
    }
}

/// The client's certificate.
fn shown<S>(stream: &TlsStream<S>) -> Option<&[u8]> {
    let (_, connection) = stream.get_ref();
    connection.peer_certificates()?.first().map(AsRef::as_ref)
}

/// Removes a connection from the list whenever its task ends.
struct Registered {
    id: u64,
    open: OpenConnections,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// The routes, with the arrival of each request, and a mark while one is served.
fn answers(
    router: Router,
    arrival: ConnectionOrigin,
    activity: Arc<Activity>,
) -> impl Service<
    Request<Incoming>,
    Response = axum::response::Response,
    Error = Infallible,
    Future: Send + 'static,
> + Send {
    let router = TowerToHyperService::new(router);
    service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(arrival.clone());
        let responding = ActiveResponse::new(Arc::clone(&activity));
        let response = router.call(request);
        async move {
            let response = response.await;
            drop(responding);
            response
        }
    })
}

struct ActiveResponse(Arc<Activity>);

impl ActiveResponse {
    fn new(activity: Arc<Activity>) -> Self {
        activity.responding.store(true, Ordering::Relaxed);
        Self(activity)
    }
}

impl Drop for ActiveResponse {
    fn drop(&mut self) {
        self.0.responding.store(false, Ordering::Relaxed);
    }
}
