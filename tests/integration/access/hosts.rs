//! Requests whose Host header is missing, doubled or invalid.

use std::io::{Read as _, Write as _};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use umawarden::exports::access_table;

use super::*;

const TARGETS: [&str; 4] = ["/nowhere", "//metrics", "*", "http://x/metrics"];

/// Invalid Host headers, each with the HTTP version in which it is invalid.
const WRONG: [(&str, &str); 5] = [
    ("1.1", ""),
    ("1.1", "Host: x\r\nHost: x\r\n"),
    ("1.1", "Host: x\r\nHost: y\r\n"),
    ("1.0", "Host: x\r\nhost: x\r\n"),
    ("1.1", "Host: x y\r\n"),
];

/// Asserts a single response 400, after which the server has closed the connection.
fn assert_refused(response: &[u8], request: &str) {
    let text = String::from_utf8_lossy(response);
    assert!(text.starts_with("HTTP/1.") && text[9..].starts_with("400"), "{request}: {text}");
    assert_eq!(text.matches("400 Bad Request").count(), 1, "{request}: {text}");
}

#[test]
fn no_route_is_served_without_one_valid_host() {
    let mut server = Files::new("", "[]\n").serve();
    drop(server.operator());
    let known = access_table().map(|(method, path, _)| (method, concrete(path)));
    let others = TARGETS.iter().map(|target| ("GET", (*target).to_owned()));
    for (method, target) in known.chain(others) {
        for (version, hosts) in WRONG {
            let request =
                format!("{method} {target} HTTP/{version}\r\n{hosts}Content-Length: 0\r\n\r\n");
            let twice = request.repeat(2);
            assert_refused(&server.raw(twice.as_bytes()), &request);
            assert_refused(&server.raw_order(twice.as_bytes()), &request);
        }
    }
    assert!(server.orders.try_recv().is_err() && server.reloads.try_recv().is_err());
    for request in ["GET /metrics HTTP/1.0\r\n\r\n", "GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n"] {
        assert_eq!(parse(&server.raw(request.as_bytes())).status, 200, "{request}");
    }
    server.end();
}

#[test]
fn no_route_is_served_over_tls_without_one_valid_host() {
    let files = Files::new(TLS, "[]\n");
    let server = files.serve();
    for (version, hosts) in WRONG {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connection = ClientConnection::new(tls_client(None), name).unwrap();
        let mut stream = StreamOwned::new(connection, server.connect());
        let request = format!("GET /metrics HTTP/{version}\r\n{hosts}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = Vec::new();
        // The server may reset the connection.
        let _ = stream.read_to_end(&mut response);
        assert_refused(&response, &request);
    }
    assert_eq!(request_tls(server.address, None, "GET", "/metrics", &[]).unwrap().status, 200);
    server.end();
}
