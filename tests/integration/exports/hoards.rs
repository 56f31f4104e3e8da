//! Clients that hoard: connections of one address, and unread responses.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::Instant;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use serde_json::json;
use umawarden::access::AccessControl;
use umawarden::exports::{ClientLimits, Page, PageRequest, Queries};
use umawarden::model::Reading;

use super::server::{PATIENCE, Server, blocked_journal, no_queries, parse, start_with};

const EVENTS: &[u8] = b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
const METRICS: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// A connection from 127.0.0.`last`, with the smallest receive window.
pub fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
    let kind = (AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = socket_with(kind.0, kind.1, kind.2, None).unwrap();
    set_socket_recv_buffer_size(&socket, 2048).unwrap();
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), 0)).unwrap();
    connect(&socket, &to).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The status of the response; 0 if the connection was closed without one.
fn status(mut stream: TcpStream, request: &[u8]) -> u16 {
    // The server may have closed the connection.
    let _ = stream.write_all(request);
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    if response.is_empty() { 0 } else { parse(&response).status }
}

fn refused(server: &Server, reason: &str) -> f64 {
    let all = AccessControl::series().into_iter().zip(server.access.values());
    let mut of = all.filter(|(key, _)| key.to_string().contains(&format!("{reason:?}")));
    match of.next() {
        Some((_, Reading::Value(count))) => count,
        other => panic!("{reason}: {other:?}"),
    }
}

#[test]
fn connections_of_one_address_are_bounded_without_keeping_out_others() {
    let (journal, queries) = blocked_journal();
    let limits =
        ClientLimits { connections_of_address: 8, query: PATIENCE, ..ClientLimits::default() };
    let server = start_with(limits, queries);
    let mut busy: Vec<TcpStream> = (0..8).map(|_| connect_from(1, server.address)).collect();
    busy.iter_mut().for_each(|stream| stream.write_all(EVENTS).unwrap());
    journal.entered.recv().unwrap();
    // All eight are busy once a new one is refused; an idle one would be closed for it.
    let began = Instant::now();
    while status(connect_from(1, server.address), METRICS) != 0 {
        assert!(began.elapsed() < PATIENCE, "no connection is refused");
        let mut another = connect_from(1, server.address);
        if another.write_all(EVENTS).is_ok() {
            busy.push(another);
        }
    }
    assert!(refused(&server, "connections") >= 1.0);
    assert_eq!(status(connect_from(2, server.address), METRICS), 200);
    drop(journal.release);
    drop(busy);
    let began = Instant::now();
    while status(connect_from(1, server.address), METRICS) != 200 {
        assert!(began.elapsed() < PATIENCE, "the address is not admitted again");
    }
    server.end();
}

#[test]
fn idle_connections_of_an_address_are_closed_only_for_its_own_new_ones() {
    let limits = ClientLimits { connections_of_address: 8, ..ClientLimits::default() };
    let server = start_with(limits, no_queries());
    let other = connect_from(2, server.address);
    let hoard: Vec<TcpStream> = (0..100).map(|_| connect_from(1, server.address)).collect();
    assert_eq!(status(connect_from(1, server.address), METRICS), 200);
    assert_eq!(status(other, METRICS), 200, "it connected before all of them");
    assert_eq!(refused(&server, "connections"), 0.0);
    drop(hoard);
    server.end();
}

#[test]
fn unread_responses_of_one_address_are_bounded_and_dropped() {
    let large = |_: PageRequest| Ok(Page { items: vec![json!("x".repeat(8 << 20))], more: false });
    let queries = Queries { events: Box::new(large), ..no_queries() };
    let limits =
        ClientLimits { response: std::time::Duration::from_secs(2), ..ClientLimits::default() };
    let server = start_with(limits, queries);
    let began = Instant::now();
    let mut greedy = Vec::new();
    // Each reads the first bytes of its response, so that it is being served.
    let refused_at = loop {
        let mut stream = connect_from(1, server.address);
        stream.write_all(EVENTS).unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        if first.ends_with(b"503") {
            break greedy.len();
        }
        greedy.push(stream);
        assert!(greedy.len() < 10, "ten unread responses of 8 MiB");
    };
    assert_eq!(refused_at, 1, "a second unread response of that size is refused");
    assert_eq!(
        status(connect_from(2, server.address), EVENTS),
        200,
        "another address has its own share"
    );
    while status(connect_from(1, server.address), EVENTS) != 200 {
        assert!(began.elapsed() < PATIENCE, "the unread response is never dropped");
    }
    assert!(refused(&server, "unread") >= 2.0, "one response, and one connection");
    server.end();
}

#[test]
fn a_scrape_is_rendered_once_per_snapshot() {
    let server = start_with(ClientLimits::default(), no_queries());
    let first = server.get("/metrics");
    assert_eq!(server.get("/metrics").body, first.body);
    let mut next = super::made_up_status();
    next.values[0] = Reading::Value(8192.0);
    server.status.store(std::sync::Arc::new(next));
    assert!(server.get("/metrics").text().contains("uma_memory_free_bytes 8192\n"));
    let packed = server.request("GET", "/metrics", &["Accept-Encoding: gzip"]);
    assert_eq!(packed.headers["content-encoding"], "gzip");
    let one = server.get("/metrics?name[]=uma_memory_free_bytes");
    assert_eq!(one.text().lines().count(), 3);
    server.end();
}
