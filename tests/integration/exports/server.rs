//! A server with a fake snapshot, and a client that reads raw bytes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use umawarden::access::{AccessControl, AccessFiles};
use umawarden::exports::{
    AlertInbox, ClientLimits, ExplainRequest, NodeNames, OrderRequest, Page, PageRequest, Queries,
    QueryError, ReloadFailure, ReloadRequest, Served, bind, serve,
};
use umawarden::model::{
    AlertState, MemoryAssessment, Mode, Moment, Reading, RuleId, SeriesKey, Source,
};
use umawarden::policy::memory_ring::MemoryRing;
use umawarden::policy::status::{AlertStatus, RuleState, RuleStatus, SourceStatus, Status};
use umawarden::samples::{LiveSamples, PastState, TargetLabels};

/// Long enough for a busy machine; only a failing test waits so long.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A constant clock, 100 s after boot.
pub fn uptime() -> Duration {
    Duration::from_secs(100)
}

pub fn moment(uptime_seconds: u64) -> Moment {
    Moment {
        uptime: Duration::from_secs(uptime_seconds),
        utc: Timestamp::from_second(1_795_000_000).unwrap(),
    }
}

pub fn made_up_status() -> Status {
    let series = [
        (SeriesKey::new("uma_memory_free_bytes", &[]), Reading::Value(4096.0)),
        (SeriesKey::new("made_up", &[("text", "<b>\"\\\n")]), Reading::Value(f64::INFINITY)),
        (SeriesKey::new("gone", &[]), Reading::Failed),
        (SeriesKey::new("never", &[]), Reading::Unsupported),
    ];
    let (series, values): (Vec<_>, Vec<_>) = series.into_iter().unzip();
    let alert = AlertStatus {
        labels: vec![("alertname".into(), "Low".into())],
        annotations: vec![("summary".into(), "<script>alert(1)</script>".to_owned())],
        state: AlertState::Firing,
        active_since: moment(40),
        value: f64::INFINITY,
    };
    let rule = |alert_name: &str, state, unknown: &[&str], alerts| RuleStatus {
        rule: RuleId { group: "memory".into(), alert: alert_name.into() },
        file: "shipped:memory.yaml".to_owned(),
        overridden: None,
        is_idle: false,
        interval: Duration::from_millis(100),
        expr: "uma_memory_free_bytes < 1 and \"<i>\" == \"\"".into(),
        hold_for: Duration::from_millis(300),
        keep_firing_for: Duration::from_secs(2),
        labels: vec![("severity".into(), "{{ \"warning\" }}".into())],
        annotations: vec![("summary".into(), "{{ $value }} left".into())],
        mode: Mode::Observe,
        state,
        unknown: unknown.iter().map(|text| (*text).to_owned()).collect(),
        alerts,
        remedy: None,
    };
    Status {
        at: moment(99),
        started: moment(10),
        mode: Mode::Observe,
        shipped_off: Arc::new([]),
        enforced: Arc::default(),
        series: series.into(),
        values,
        sources: Arc::new([SourceStatus {
            source: Source::Meminfo,
            up: true,
            detail: Some("a <remark>".into()),
            took: Duration::from_micros(12),
        }]),
        rules: Arc::new([
            rule("Low", RuleState::Firing, &[], vec![alert]),
            rule("Blind", RuleState::Unknown, &["gone: failed"], Vec::new()),
        ]),
        guard: Arc::default(),
        engines: Arc::new([]),
        gate_memory: None,
        leases: Arc::new([]),
        reserved: Arc::new([]),
        restarts: Arc::new([]),
        account: Arc::default(),
        assessment: Arc::new(MemoryAssessment::unknown(Timestamp::UNIX_EPOCH)),
        reboot: Arc::default(),
        received: Arc::new([]),
        cluster: None,
        happened: Arc::new([]),
    }
}

/// A server that runs in threads of its own.
pub struct Server {
    pub address: SocketAddr,
    pub status: Arc<ArcSwap<Status>>,
    pub stop: watch::Sender<bool>,
    pub reloads: mpsc::Receiver<ReloadRequest>,
    pub reload_failure: Arc<ArcSwapOption<ReloadFailure>>,
    pub orders: mpsc::Receiver<OrderRequest>,
    pub explains: mpsc::Receiver<ExplainRequest>,
    pub memory: Arc<Mutex<MemoryRing>>,
    pub control_socket: PathBuf,
    pub access: Arc<AccessControl>,
    pub received: Arc<AlertInbox>,
    /// Path of the control socket.
    pub folder: tempfile::TempDir,
    pub thread: JoinHandle<std::io::Result<()>>,
}

pub fn start() -> Server {
    start_with(ClientLimits::default(), no_queries())
}

pub fn no_queries() -> Queries {
    let down = |_| Err(QueryError::Unavailable("disk full".to_owned()));
    Queries {
        events: Box::new(down),
        decisions: Box::new(down),
        orders: Box::new(down),
        happened: Box::new(|_, _| Err(QueryError::Unavailable("disk full".to_owned()))),
        explain: Box::new(|_| Err(QueryError::Unavailable("disk full".to_owned()))),
    }
}

pub fn start_with(limits: ClientLimits, queries: Queries) -> Server {
    let access = AccessControl::open(AccessFiles::default(), || moment(100)).unwrap();
    start_behind(access, limits, queries)
}

pub fn start_behind(access: AccessControl, limits: ClientLimits, queries: Queries) -> Server {
    let node = NodeNames { name: "spark-<1>".into(), model: Some("NVIDIA_DGX_Spark".into()) };
    start_at(node, uptime, access, limits, queries)
}

/// Samples of before its start are never read: a query that needs them waits for them.
pub fn start_without_past() -> Server {
    let access = AccessControl::open(AccessFiles::default(), || moment(100)).unwrap();
    let node = NodeNames { name: "spark-1".into(), model: None };
    let samples = LiveSamples::new(TargetLabels::default(), PastState::Unread);
    start_over(samples, (node, uptime), access, ClientLimits::default(), no_queries())
}

/// With names and a clock of its own.
pub fn start_at(
    node: NodeNames,
    uptime: fn() -> Duration,
    access: AccessControl,
    limits: ClientLimits,
    queries: Queries,
) -> Server {
    let samples = LiveSamples::new(TargetLabels::default(), PastState::Read);
    start_over(samples, (node, uptime), access, limits, queries)
}

fn start_over(
    samples: LiveSamples,
    (node, uptime): (NodeNames, fn() -> Duration),
    access: AccessControl,
    limits: ClientLimits,
    queries: Queries,
) -> Server {
    let access = Arc::new(access);
    let listeners = bind(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 0))]).unwrap();
    let address = listeners[0].local_addr().unwrap();
    let status = Arc::new(ArcSwap::from_pointee(made_up_status()));
    let (reload, reloads) = mpsc::channel(4);
    let (order, orders) = mpsc::channel(4);
    let (explain, explains) = mpsc::channel(4);
    let memory = Arc::<Mutex<MemoryRing>>::default();
    let folder = tempfile::tempdir().unwrap();
    let control_socket = folder.path().join("control.sock");
    let (stop, stopped) = watch::channel(false);
    let received = Arc::new(AlertInbox::new(|| {}));
    let reload_failure = Arc::<ArcSwapOption<ReloadFailure>>::default();
    let served = Arc::new(Served {
        status: Arc::clone(&status),
        telemetry_path: "/metrics".to_owned(),
        node,
        memory: Arc::clone(&memory),
        explain,
        queries,
        samples: Arc::new(samples),
        reload,
        control_socket: control_socket.clone(),
        received: Arc::clone(&received),
        orders: order,
        leases: None,
        reload_failure: Arc::clone(&reload_failure),
        access: Arc::clone(&access),
        instance: "an-instance".into(),
        uptime,
        limits,
    });
    let thread = std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(serve(listeners, served, stopped))
    });
    Server {
        address,
        status,
        stop,
        reloads,
        reload_failure,
        orders,
        explains,
        memory,
        control_socket,
        access,
        received,
        folder,
        thread,
    }
}

/// A raw response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json");
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl Server {
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends these bytes and reads until the server closes the connection.
    pub fn raw(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // The server may respond and close before it has read everything.
        let _ = stream.write_all(request);
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        response
    }

    /// Like `raw`, over the control socket.
    pub fn raw_order(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = self.operator();
        let _ = stream.write_all(request);
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        response
    }

    /// A connection to the control socket, which exists shortly after the start.
    pub fn operator(&self) -> UnixStream {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            if let Ok(stream) = UnixStream::connect(&self.control_socket) {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            assert!(std::time::Instant::now() < deadline, "no control socket");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends an order over the control socket and reads the response.
    pub fn order(&self, method: &str, target: &str, body: &str) -> Response {
        parse(&self.raw_order(&order_request(method, target, body)))
    }

    pub fn request(&self, method: &str, target: &str, headers: &[&str]) -> Response {
        let mut request = format!("{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
        headers.iter().for_each(|header| request.push_str(&format!("{header}\r\n")));
        request.push_str("\r\n");
        parse(&self.raw(request.as_bytes()))
    }

    pub fn get(&self, target: &str) -> Response {
        self.request("GET", target, &[])
    }

    pub fn end(self) {
        self.stop.send(true).unwrap();
        self.thread.join().unwrap().unwrap();
    }
}

pub fn order_request(method: &str, target: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n\
         {body}"
    )
    .into_bytes()
}

pub fn parse(bytes: &[u8]) -> Response {
    let head_end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let head_end = head_end.unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(bytes)));
    let mut lines = std::str::from_utf8(&bytes[..head_end]).unwrap().split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    Response { status, headers, body: bytes[head_end + 4..].to_vec() }
}

/// A journal whose query for events blocks until it is released.
pub struct BlockedJournal {
    pub entered: std::sync::mpsc::Receiver<()>,
    pub release: std::sync::mpsc::Sender<()>,
}

pub fn blocked_journal() -> (BlockedJournal, Queries) {
    let (enter, entered) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    let events = move |_: PageRequest| {
        enter.send(()).unwrap();
        let _ = released.lock().unwrap().recv();
        Ok(Page::default())
    };
    let queries = Queries { events: Box::new(events), ..no_queries() };
    (BlockedJournal { entered, release }, queries)
}
