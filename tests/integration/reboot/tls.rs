//! A lock server over TLS is trusted only with a valid certificate.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rustls::{ServerConnection, StreamOwned};
use umawarden::model::RebootLock;

use super::*;
use crate::tls_front::{fixture, server_config};

/// It grants everything, and records the requests.
struct TlsLock {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl TlsLock {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (config, requests) = (Arc::new(server_config()), Arc::<Mutex<Vec<String>>>::default());
        let received = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut stream = StreamOwned::new(connection, stream);
                let mut text = Vec::new();
                while !text.ends_with(b"}}") {
                    let mut bytes = [0; 1024];
                    match stream.read(&mut bytes) {
                        Ok(length @ 1..) => text.extend_from_slice(&bytes[..length]),
                        _ => break,
                    }
                }
                if !text.is_empty() {
                    received.lock().unwrap().push(String::from_utf8(text).unwrap());
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    // The client may have disconnected.
                    let _ = stream.write_all(answer);
                }
            }
        });
        Self { port, requests }
    }

    fn lock(&self, host: &str, ca_file: Option<PathBuf>) -> RebootLock {
        let url = format!("https://{host}:{}/fleet/", self.port);
        RebootLock {
            url,
            ca_file,
            group: "gpu".to_owned(),
            id: Some("this-node".to_owned()),
            drain: None,
        }
    }
}

#[test]
fn a_server_with_a_trusted_certificate_is_queried_over_tls() {
    let (machine, server) = (Machine::new(), TlsLock::start());
    for host in ["127.0.0.1", "localhost"] {
        let lock = server.lock(host, Some(fixture("authority.pem")));
        assert_eq!(machine.perform(RebootAct::TakeSlot(lock.clone())).0, OutcomeResult::Done);
        assert_eq!(machine.perform(RebootAct::ReleaseSlot(lock)).0, OutcomeResult::Done);
    }
    let requests = server.requests.lock().unwrap();
    assert_eq!(requests.len(), 4);
    let (head, body) = requests[0].split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /fleet/v1/pre-reboot HTTP/1.1\r\n"), "{head}");
    let head = head.to_lowercase();
    assert!(head.contains("fleet-lock-protocol: true") && head.contains("host: 127.0.0.1:"));
    assert_eq!(body, r#"{"client_params":{"id":"this-node","group":"gpu"}}"#);
    assert!(requests[1].starts_with("POST /fleet/v1/steady-state "));
}

#[test]
fn a_server_with_an_untrusted_certificate_receives_nothing() {
    let (machine, server) = (Machine::new(), TlsLock::start());
    let empty = machine.path("empty.pem");
    fs::write(&empty, "no certificate").unwrap();
    let torn = machine.path("torn.pem");
    let text = fs::read_to_string(fixture("authority.pem")).unwrap();
    fs::write(&torn, &text[..text.len() / 2]).unwrap();
    let cases = [
        // No authority of the system has signed that.
        ("127.0.0.1", None, ""),
        ("127.0.0.1", Some(fixture("other.pem")), "invalid peer certificate"),
        // That name is not in the certificate.
        ("127.0.0.2", Some(fixture("authority.pem")), ""),
        ("127.0.0.1", Some(machine.path("gone.pem")), "gone.pem: No such file"),
        ("127.0.0.1", Some(machine.path("")), "it is no file"),
        ("127.0.0.1", Some(empty), "it holds no certificate (PEM)"),
        ("127.0.0.1", Some(torn), "torn.pem"),
    ];
    for (host, ca_file, expected) in cases {
        let lock = server.lock(host, ca_file);
        let outcome = machine.perform(RebootAct::TakeSlot(lock.clone()));
        let OutcomeResult::Failed(why) = &outcome.0 else { panic!("{lock:?}: {outcome:?}") };
        assert!(why.contains(expected) && why.contains("no response"), "{lock:?}: {why}");
    }
    assert!(server.requests.lock().unwrap().is_empty());
}

#[test]
fn a_server_without_tls_is_rejected() {
    let machine = Machine::new();
    let plain = fake_lock::FakeLock::start(1);
    let url = plain.url().replace("http://", "https://");
    let lock = RebootLock {
        url,
        ca_file: Some(fixture("authority.pem")),
        group: "gpu".to_owned(),
        id: Some("this-node".to_owned()),
        drain: None,
    };
    let outcome = machine.perform(RebootAct::TakeSlot(lock));
    assert!(matches!(&outcome.0, OutcomeResult::Failed(_)), "{outcome:?}");
    assert!(plain.holders().is_empty());
}
