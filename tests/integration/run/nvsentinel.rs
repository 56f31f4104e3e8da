//! Health events at a platform connector of NVSentinel: a server of this test that speaks HTTP/2
//! and gRPC, and reads the messages by the numbers of their fields.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::HeaderMap;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::{Node, XID, record};
use crate::daemon::Daemon;

/// A critical alert while little is free.
const LOW: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Low
    expr: uma_memory_free_bytes < 1073741824
    labels: {severity: critical}
    annotations: {summary: Little is free}
";

const GIB_IN_KIB: u64 = 1 << 20;

/// How the connector responds.
#[derive(Clone, Copy, PartialEq)]
enum ConnectorResponse {
    Takes,
    /// PERMISSION_DENIED.
    Refuses,
    Never,
}

/// A field of a message by its number: `health_event.proto` of NVSentinel v1.31.0.
#[derive(Clone, Debug, PartialEq)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

type Message = BTreeMap<u64, Vec<Field>>;

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    loop {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return number;
        }
        shift += 7;
    }
}

fn message(mut bytes: &[u8]) -> Message {
    let mut found = Message::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)),
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (own, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(own.to_vec())
            }
            other => panic!("wire type {other}"),
        };
        found.entry(tag >> 3).or_default().push(field);
    }
    found
}

fn number(message: &Message, field: u64) -> u64 {
    match message.get(&field).map(|fields| &fields[0]) {
        Some(Field::Number(number)) => *number,
        None => 0,
        Some(Field::Bytes(_)) => panic!("field {field} is no number: {message:?}"),
    }
}

fn bytes(message: &Message, field: u64) -> &[u8] {
    match message.get(&field).map(|fields| &fields[0]) {
        Some(Field::Bytes(bytes)) => bytes,
        None => &[],
        Some(Field::Number(_)) => panic!("field {field} is a number: {message:?}"),
    }
}

fn text(message: &Message, field: u64) -> String {
    String::from_utf8(bytes(message, field).to_vec()).unwrap()
}

/// The events of one call, and the path that was called.
async fn take(
    request: Request<Incoming>,
    answer: ConnectorResponse,
    to: Sender<Message>,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
    assert_eq!(request.uri().path(), "/datamodels.PlatformConnector/HealthEventOccurredV1");
    assert_eq!(request.headers()["content-type"], "application/grpc");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body[0], 0, "not compressed");
    let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
    assert_eq!(body.len(), 5 + length);
    let events = message(&body[5..]);
    assert_eq!(number(&events, 1), 1, "version");
    if answer != ConnectorResponse::Refuses {
        for event in &events[&2] {
            let Field::Bytes(event) = event else { panic!("{event:?}") };
            // The test may be over.
            let _ = to.send(message(event));
        }
    }
    if answer == ConnectorResponse::Never {
        std::future::pending::<()>().await;
    }
    let mut trailers = HeaderMap::new();
    let status = if answer == ConnectorResponse::Takes { "0" } else { "7" };
    trailers.insert("grpc-status", status.parse().unwrap());
    trailers.insert("grpc-message", "not%20yours".parse().unwrap());
    // An empty message, where there is one.
    let data =
        (answer == ConnectorResponse::Takes).then(|| Frame::data(Bytes::from_static(&[0; 5])));
    let frames: Vec<_> = data.into_iter().chain([Frame::trailers(trailers)]).map(Ok).collect();
    let body = StreamBody::new(futures_util::stream::iter(frames));
    Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
}

/// A connector at a socket, and what it takes; it ends with the sender.
struct Connector {
    events: Receiver<Message>,
    _ends: tokio::sync::oneshot::Sender<()>,
}

impl Connector {
    fn start(socket: &Path, answer: ConnectorResponse) -> Self {
        let (to, events) = channel();
        let (ends, ended) = tokio::sync::oneshot::channel();
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::UnixListener::from_std(listener).unwrap();
                let serve = async {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        let to = to.clone();
                        tokio::spawn(async move {
                            let service =
                                service_fn(move |request| take(request, answer, to.clone()));
                            let server = http2::Builder::new(TokioExecutor::new());
                            // The client may go.
                            let _ = server.serve_connection(TokioIo::new(stream), service).await;
                        });
                    }
                };
                tokio::select! {
                    () = serve => {}
                    _ = ended => {}
                }
            });
        });
        Self { events, _ends: ends }
    }

    fn next(&self) -> Message {
        self.events.recv_timeout(Duration::from_secs(30)).expect("an event in 30 s")
    }

    fn is_quiet_for(&self, time: Duration) -> bool {
        self.events.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
    }
}

/// A node that reports to a socket in its folder.
fn node(more: &str) -> (Node, Vec<String>) {
    let node = Node::new("gb10-4k");
    node.write_rules(LOW);
    node.set_meminfo("MemFree", 8 * GIB_IN_KIB);
    let socket = node.path("nvsentinel.sock");
    let config = format!("nvsentinel: {{socket: {}, node: gpu-1{more}}}\n", socket.display());
    fs::write(node.path("umawarden.yaml"), config).unwrap();
    let flag = format!("--config.file={}", node.path("umawarden.yaml").display());
    (node, vec![flag])
}

fn start(node: &Node, flags: &[String]) -> Daemon {
    node.start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

fn lines(daemon: &Daemon, of: &str) -> usize {
    daemon.log().lines().filter(|line| line.contains(of)).count()
}

#[test]
fn a_critical_alert_and_its_end_and_an_xid_reach_the_connector() {
    let (node, flags) = node("");
    let connector = Connector::start(&node.path("nvsentinel.sock"), ConnectorResponse::Takes);
    let daemon = start(&node, &flags);
    assert!(connector.is_quiet_for(Duration::from_secs(3)), "all is well");
    node.set_meminfo("MemFree", 1024);
    let fires = connector.next();
    assert_eq!((number(&fires, 1), text(&fires, 2)), (1, "umawarden".to_owned()));
    assert_eq!((text(&fires, 4), text(&fires, 7)), ("Low".into(), "Little is free".into()));
    assert_eq!([5, 6, 8].map(|field| number(&fires, field)), [0; 3], "not fatal, healthy, none");
    assert_eq!((text(&fires, 13), number(&fires, 16)), ("gpu-1".into(), 2), "STORE_ONLY");
    let skips = |field| number(&message(bytes(&fires, field)), 2);
    assert_eq!((skips(14), skips(15)), (1, 1));
    assert!(number(&message(bytes(&fires, 12)), 1) > 1_700_000_000, "seconds since 1970");
    node.set_meminfo("MemFree", 8 * GIB_IN_KIB);
    let ends = connector.next();
    assert_eq!((text(&ends, 4), number(&ends, 6)), ("Low".to_owned(), 1), "healthy");
    let mut kmsg = File::options().append(true).open(node.path("kmsg")).unwrap();
    kmsg.write_all(record(1, XID).as_bytes()).unwrap();
    let xid = connector.next();
    assert_eq!((text(&xid, 3), text(&xid, 4)), ("GPU".to_owned(), "KernelXid".to_owned()));
    assert_eq!(text(&xid, 9), "XID_31");
    let entity = message(bytes(&xid, 10));
    assert_eq!((text(&entity, 1), text(&entity, 2)), ("PCI".into(), "000f:01:00".into()));
    assert!(connector.is_quiet_for(Duration::from_secs(2)));
    daemon.terminate();
}

#[test]
fn without_a_connector_all_goes_on_and_the_present_state_comes_once_there_is_one() {
    let (node, flags) = node("");
    node.set_meminfo("MemFree", 1024);
    let daemon = start(&node, &flags);
    daemon.wait_until("the outage", |daemon| lines(daemon, "nvsentinel_down") == 1);
    assert!(daemon.log().contains("there is no such socket"), "{}", daemon.log());
    let socket = node.path("nvsentinel.sock");
    // Nobody listens on it any more.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    std::thread::sleep(Duration::from_secs(3));
    fs::remove_file(&socket).unwrap();
    let hangs = Connector::start(&socket, ConnectorResponse::Never);
    assert_eq!(text(&hangs.next(), 4), "Low");
    node.set_meminfo("MemFree", 512);
    daemon.wait_until("sampled on", |daemon| {
        daemon.metric("uma_memory_free_bytes") == 512.0 * 1024.0
    });
    drop(hangs);
    fs::remove_file(&socket).unwrap();
    let refuses = Connector::start(&socket, ConnectorResponse::Refuses);
    std::thread::sleep(Duration::from_secs(2));
    drop(refuses);
    fs::remove_file(&socket).unwrap();
    let connector = Connector::start(&socket, ConnectorResponse::Takes);
    let event = connector.events.recv_timeout(Duration::from_secs(70)).unwrap();
    assert_eq!(text(&event, 4), "Low");
    daemon.wait_until("its end", |daemon| lines(daemon, "nvsentinel_up") == 1);
    assert_eq!(lines(&daemon, "nvsentinel_down"), 1, "once");
    daemon.terminate();
}

#[test]
fn both_may_not_reboot() {
    let (node, mut flags) = node(", remediation: reboot");
    let rules = "
groups:
- name: g
  rules:
  - alert: Stuck
    expr: uma_memory_free_bytes < 0
    remedy: {steps: [{reboot: {why: stuck}}]}
";
    node.write_rules(rules);
    let run = |flags: &[String]| {
        let mut command = std::process::Command::new(crate::daemon::binary());
        command.arg("run").args(node.arguments()).args(flags);
        let storage = format!("--storage.path={}", node.storage().display());
        command.args([&storage, "--web.listen-address=127.0.0.1:0"]).output().unwrap()
    };
    flags.push("--mode=enforce".to_owned());
    let output = run(&flags);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(error.contains("one of them must not") && error.contains("g/Stuck"), "{error}");
    flags.pop();
    start(&node, &flags).terminate();
}
