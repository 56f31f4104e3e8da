//! The accept loop: bounded, patient with nobody, and quick to end.

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

use super::access::Arrival;
use super::control::{ControlSocket, SocketFile};
use super::stall::{Activity, Stall};
use super::{Limits, Served, routes};
use crate::door::{Door, network};
use crate::model::RefusalReason;

/// Room above the limit for connections that are just being cut off.
const SPARE_CONNECTIONS: usize = 32;
/// Header and request line together; also bounds the memory of one connection.
const REQUEST_HEADER_BYTES: usize = 16 * 1024;
/// After a failed accept: until a file descriptor or some memory may be free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// At the end: for requests that have been sent but not read yet.
const LAST_REQUESTS: Duration = Duration::from_millis(100);
/// At the end: for responses that are under way.
const LAST_RESPONSES: Duration = Duration::from_millis(600);

/// How often the door's files are looked at.
const FILES_LOOKED_AT: Duration = Duration::from_secs(1);
/// How often it is looked whether the control socket can still be found.
const CONTROL_LOOKED_AT: Duration = Duration::from_secs(2);
/// Between attempts to make a control socket.
const CONTROL_PAUSE: Duration = Duration::from_secs(2);

/// Serves until `shutdown` turns true (or its sender is gone), then ends within a second: open
/// requests are answered, idle connections closed.
///
/// The control socket has connections of its own, so that whoever floods the network keeps no
/// operator out. Where it cannot be made, that is told and tried again.
///
/// # Errors
/// The telemetry path is unusable, or a listener cannot be handed to the runtime.
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
    let door = Arc::clone(&served.door);
    let router = routes::router(served)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let mut ending = shutdown.clone();
    let network = Listeners::Network(listeners);
    let connections = Connections::new(router.clone(), limits, Some(Arc::clone(&door)));
    let on_network = serve_on(network, connections, told_to_end(&mut ending));
    let control = serve_control(control, router, limits, shutdown.clone());
    tokio::join!(on_network, control, follow_files(door, shutdown));
    Ok(())
}

/// Has the door look at its files, on a thread that may hang.
async fn follow_files(door: Arc<Door>, mut shutdown: watch::Receiver<bool>) {
    if !door.has_files() {
        return;
    }
    loop {
        let looking = Arc::clone(&door);
        let looked = async {
            tokio::time::sleep(FILES_LOOKED_AT).await;
            // A panic in there is told by its own thread.
            let _looked = tokio::task::spawn_blocking(move || looking.look()).await;
        };
        tokio::select! {
            biased;
            () = told_to_end(&mut shutdown) => return,
            () = looked => {}
        }
    }
}

/// Keeps the control socket open: makes it anew where it, or its folder, is removed.
async fn serve_control(
    path: PathBuf,
    router: Router,
    limits: Limits,
    mut shutdown: watch::Receiver<bool>,
) {
    let mut told = String::new();
    let mut ended = false;
    while !ended {
        let wanted = path.clone();
        // The file system may hang; this thread must not.
        let opened = tokio::task::spawn_blocking(move || ControlSocket::open(&wanted)).await;
        let opened = opened.unwrap_or_else(|failure| Err(io::Error::other(failure)));
        let listening = opened.and_then(|opened| {
            UnixListener::from_std(opened.listener).map(|listener| (listener, opened.file))
        });
        match listening {
            Ok((listener, file)) => {
                told.clear();
                tracing::info!("orders are taken on {}", path.display());
                let connections = Connections::new(router.clone(), limits, None);
                let lost_or_told = async {
                    tokio::select! {
                        () = told_to_end(&mut shutdown) => {}
                        () = lost(&file) => {
                            warn!("the control socket {} is gone; making it anew", path.display());
                        }
                    }
                };
                serve_on(Listeners::Control(listener), connections, lost_or_told).await;
                let _ended = tokio::task::spawn_blocking(move || file.remove()).await;
            }
            Err(error) => {
                let text = error.to_string();
                if text != told {
                    warn!("no orders can be taken, and this is tried again: {text}");
                    told = text;
                }
            }
        }
        tokio::select! {
            biased;
            () = told_to_end(&mut shutdown) => ended = true,
            () = tokio::time::sleep(CONTROL_PAUSE) => {}
        }
    }
}

/// Waits until the file no longer leads to the socket.
async fn lost(file: &SocketFile) {
    loop {
        tokio::time::sleep(CONTROL_LOOKED_AT).await;
        let looked_at = file.clone();
        let is_there = tokio::task::spawn_blocking(move || looked_at.is_there()).await;
        if matches!(is_there, Ok(false)) {
            return;
        }
    }
}

/// Accepts until `end` is over.
async fn serve_on(listeners: Listeners, mut connections: Connections, end: impl Future) {
    let mut refusing = false;
    let mut end = pin!(end);
    loop {
        let room = connections.make_room();
        tokio::select! {
            biased;
            _ = end.as_mut() => break,
            _ = connections.tasks.join_next(), if !connections.tasks.is_empty() => {}
            accepted = listeners.accept(), if room => match accepted {
                Ok(accepted) => {
                    refusing = false;
                    connections.accept(accepted);
                }
                Err(error) if concerns_one_client(&error) => debug!(%error, "accept"),
                Err(error) => {
                    if !refusing {
                        warn!(%error, "cannot accept connections; trying again");
                    }
                    refusing = true;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            () = tokio::time::sleep(ACCEPT_PAUSE), if !room => {}
        }
    }
    drop(listeners);
    connections.drain().await;
}

/// Waits until `shutdown` turns true, or nobody can turn it true any more.
async fn told_to_end(shutdown: &mut watch::Receiver<bool>) {
    // The guard that comes back must not live across another await.
    let _told_or_orphaned = shutdown.wait_for(|stop| *stop).await.is_ok();
}

/// Where connections come in.
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
                                // IPv4 by a socket of both kinds is IPv4 all the same.
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

/// The client went away between its SYN and our accept.
fn concerns_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// A connection as the accept loop sees it.
#[derive(Default)]
struct Handle {
    activity: Arc<Activity>,
    close: Notify,
    /// None: by the control socket.
    network: Option<IpAddr>,
}

type Open = Arc<Mutex<BTreeMap<u64, Arc<Handle>>>>;

struct Connections {
    http: http1::Builder,
    router: Router,
    limits: Limits,
    /// Who knows how TLS is spoken; the control socket has none.
    door: Option<Arc<Door>>,
    graceful: GracefulShutdown,
    tasks: JoinSet<()>,
    open: Open,
    opened: u64,
}

impl Connections {
    fn new(router: Router, limits: Limits, door: Option<Arc<Door>>) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(limits.request_header)
            .max_buf_size(REQUEST_HEADER_BYTES);
        Self {
            http,
            router,
            limits,
            door,
            graceful: GracefulShutdown::new(),
            tasks: JoinSet::new(),
            open: Open::default(),
            opened: 0,
        }
    }

    /// Whether another connection may be accepted; cuts off the idle one that came first where
    /// there are too many, so that whoever hoards connections keeps out only itself.
    fn make_room(&self) -> bool {
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

    /// Whether another connection of that address may be served; cuts off the idle one of its own
    /// that came first where there are too many. Busy ones of one address are no more than that.
    fn make_room_for(&self, address: IpAddr) -> bool {
        let network = network(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let own = |(_, handle): &(&u64, &Arc<Handle>)| handle.network == Some(network);
        if open.iter().filter(own).count() < self.limits.connections_of_address {
            return true;
        }
        let idle = open.iter().filter(own).find(|(_, handle)| !handle.activity.is_busy());
        let idle = idle.map(|(id, _)| *id);
        if let Some(handle) = idle.and_then(|id| open.remove(&id)) {
            handle.close.notify_one();
            return true;
        }
        if let Some(door) = &self.door {
            let text = "it has too many connections, and none of them is idle";
            door.refuse(RefusalReason::Connections, "a connection", address, text);
        }
        false
    }

    fn accept(&mut self, accepted: Accepted) {
        match accepted {
            Accepted::Network(stream, address) => {
                // Responses are written in one go, so nothing is gained by waiting for more.
                if let Err(error) = stream.set_nodelay(true) {
                    debug!(%error, "set_nodelay");
                }
                // What the kernel still holds for who has gone without reading it goes, too.
                let patience = u32::try_from(self.limits.response.as_millis()).unwrap_or(0);
                if let Err(error) = set_tcp_user_timeout(&stream, patience) {
                    debug!(%error, "TCP_USER_TIMEOUT");
                }
                // What it is greeted with is known once its task runs.
                let arrival = Arrival::Network { address, certificate: None, greeted: 0 };
                if self.make_room_for(address) {
                    self.open(stream, arrival);
                }
            }
            Accepted::Control(stream) => match stream.peer_cred() {
                Ok(peer) => self.open(stream, Arrival::Control { uid: peer.uid() }),
                Err(error) => debug!(%error, "peer_cred"),
            },
        }
    }

    fn open<S>(&mut self, stream: S, arrival: Arrival)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let address = match &arrival {
            Arrival::Network { address, .. } => Some(*address),
            Arrival::Control { .. } => None,
        };
        let handle = Handle { network: address.map(network), ..Handle::default() };
        let handle = Arc::new(handle);
        let id = self.opened;
        self.opened += 1;
        let guard = Registered { id, open: Arc::clone(&self.open) };
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::clone(&handle));
        let serving = Serving {
            http: self.http.clone(),
            router: self.router.clone(),
            graceful: self.graceful.watcher(),
            activity: Arc::clone(&handle.activity),
        };
        let stream = Stall::new(stream, self.limits.response, Arc::clone(&handle.activity));
        let (door, told_to) = (self.door.clone(), self.door.clone());
        let handshake_takes = self.limits.handshake;
        self.tasks.spawn(async move {
            let _guard = guard;
            let served = async {
                let Some(door) = door else { return serving.serve(stream, arrival).await };
                let greeting = door.greeting();
                let Some(config) = greeting.tls.clone() else {
                    return serving.serve(stream, arrival.greeted(&greeting, None)).await;
                };
                if let Some(stream) = shake_hands(config, handshake_takes, stream).await {
                    let arrival = arrival.greeted(&greeting, shown(&stream));
                    serving.serve(stream, arrival).await;
                } else {
                    door.count_failed_handshake();
                }
            };
            tokio::select! {
                () = served => {}
                () = handle.close.notified() => debug!("connection cut off"),
            }
            if let (Some(door), Some(address)) = (told_to, address)
                && handle.activity.has_stalled.load(Ordering::Relaxed)
            {
                let text = "its answer was not read in time";
                door.refuse(RefusalReason::Unread, "a connection", address, text);
            }
        });
    }

    /// Lets open requests end, for a while.
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
                debug!("connections cut off in the middle of a response");
            }
        }
        tasks.shutdown().await;
    }
}

/// Answers what comes in by one connection.
struct Serving {
    http: http1::Builder,
    router: Router,
    graceful: Watcher,
    activity: Arc<Activity>,
}

impl Serving {
    async fn serve<S>(self, stream: S, arrival: Arrival)
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

/// Speaks TLS with whoever has come, for so long; `None`: they cannot, or may not come in. Until it
/// is done the connection counts as idle, and is cut off before those that are served.
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
            debug!("no handshake in time");
            None
        }
    }
}

/// The certificate that the client has shown.
fn shown<S>(stream: &TlsStream<S>) -> Option<&[u8]> {
    let (_, connection) = stream.get_ref();
    connection.peer_certificates()?.first().map(AsRef::as_ref)
}

/// Takes a connection off the list however its task ends.
struct Registered {
    id: u64,
    open: Open,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// The routes, told who asks, with a note of whether a request is being answered.
fn answers(
    router: Router,
    arrival: Arrival,
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
        let answering = Answering::new(Arc::clone(&activity));
        let response = router.call(request);
        async move {
            let response = response.await;
            drop(answering);
            response
        }
    })
}

struct Answering(Arc<Activity>);

impl Answering {
    fn new(activity: Arc<Activity>) -> Self {
        activity.answering.store(true, Ordering::Relaxed);
        Self(activity)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answering.store(false, Ordering::Relaxed);
    }
}
