//! The stream of pictures.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umawarden::exports::ClientLimits;
use umawarden::model::{Picture, Reading};
use umawarden::policy::status::Status;

use super::page::full_status;
use super::server::{PATIENCE, Server, moment, no_queries, start, start_with};

const LIVE: &[u8] = b"GET /api/v1/live HTTP/1.1\r\nHost: x\r\n\r\n";

/// A client of the stream.
struct Client(BufReader<TcpStream>);

impl Client {
    fn open(server: &Server) -> Self {
        let mut stream = server.connect();
        stream.write_all(LIVE).unwrap();
        let mut client = Self(BufReader::new(stream));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(client.0.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.contains("text/event-stream"), "{head}");
        client
    }

    fn picture(&mut self) -> Picture {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream has ended");
            if let Some(json) = line.strip_prefix("data: ") {
                return serde_json::from_str(json).unwrap();
            }
        }
    }
}

#[test]
fn a_client_gets_the_picture_at_once_and_then_at_most_one_a_second() {
    let server = start();
    server.status.store(Arc::new(full_status()));
    let mut client = Client::open(&server);
    let first = client.picture();
    assert_eq!(first.engines.len(), 1);
    let began = Instant::now();
    server.status.store(Arc::new(Status { engines: Arc::new([]), ..full_status() }));
    let mut pictures = 0;
    while !client.picture().engines.is_empty() {
        pictures += 1;
        assert!(pictures < 3, "the change is in no picture");
    }
    client.picture();
    client.picture();
    assert!(began.elapsed() >= Duration::from_millis(1900), "two seconds for two more pictures");
    let ended = Instant::now();
    server.end();
    assert!(ended.elapsed() < Duration::from_millis(900), "streams do not delay the end");
}

#[test]
fn all_clients_get_the_same_picture_and_one_that_leaves_makes_way() {
    let limits = ClientLimits { connections_of_address: 512, ..ClientLimits::default() };
    let server = start_with(limits, no_queries());
    server.status.store(Arc::new(full_status()));
    let mut clients: Vec<Client> = (0..128).map(|_| Client::open(&server)).collect();
    for client in &mut clients {
        assert_eq!(client.picture().at, moment(99).utc);
    }
    let refused = server.get("/api/v1/live");
    assert_eq!((refused.status, refused.headers["retry-after"].as_str()), (503, "10"));
    assert_eq!(server.get("/metrics").status, 200, "others are served");
    drop(clients);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut stream = server.connect();
        stream.write_all(LIVE).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        if &head == b"HTTP/1.1 200" {
            break;
        }
        assert!(Instant::now() < deadline, "clients that are gone keep their places");
        std::thread::sleep(Duration::from_millis(100));
    }
    server.end();
}

#[test]
fn a_client_that_does_not_read_is_dropped() {
    let limits = ClientLimits { response: Duration::from_millis(300), ..ClientLimits::default() };
    let server = start_with(limits, no_queries());
    // Pictures that fill the buffers of the sockets soon.
    let long = "x".repeat(400);
    let mut status = full_status();
    let entry = status.happened[0].clone();
    let reason: Arc<str> = "y".repeat(2_000_000).into();
    status.happened = (0..20)
        .map(|_| umawarden::model::RecentEvent { text: long.clone(), ..entry.clone() })
        .collect();
    let engines = status.engines.iter().cloned();
    status.engines = engines
        .map(|engine| umawarden::policy::status::EngineStatus {
            reason: Arc::clone(&reason),
            ..engine
        })
        .collect();
    server.status.store(Arc::new(status));
    let mut stream = server.connect();
    stream.write_all(LIVE).unwrap();
    // It reads the first bytes only.
    stream.read_exact(&mut [0; 12]).unwrap();
    let refused = || server.access.values().any(|value| value == Reading::Value(1.0));
    let deadline = Instant::now() + PATIENCE;
    while !refused() {
        assert!(Instant::now() < deadline, "the refusal is counted");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut rest = Vec::new();
    let read = stream.read_to_end(&mut rest);
    assert!(read.is_err() || !rest.is_empty(), "{read:?}");
    server.end();
}
