//! A small HTTP server that replays responses of real engines, or sends broken ones.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

/// A request as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// Includes the query.
    pub path: String,
    pub body: String,
    pub key: Option<String>,
    pub content_type: Option<String>,
    /// The header `fleet-lock-protocol`.
    pub fleet_lock: Option<String>,
}

impl Request {
    /// The path without its query.
    pub fn endpoint(&self) -> &str {
        self.path.split('?').next().unwrap()
    }
}

/// The reaction of the server to a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A complete response: status and body.
    Answer(u16, String),
    /// These bytes, then the end of the connection.
    Raw(String),
    /// No response; the connection stays open.
    Hang,
    /// The connection is closed without a response.
    Close,
    /// A body without an end.
    Endless,
}

/// Listens on 127.0.0.1 until the process ends.
pub struct FakeServer {
    pub port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl FakeServer {
    pub fn start(respond: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), respond)
    }

    pub fn on(
        listener: TcpListener,
        respond: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (received, respond) = (Arc::clone(&requests), Arc::new(respond));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (received, respond) = (Arc::clone(&received), Arc::clone(&respond));
                std::thread::spawn(move || {
                    let Some(request) = read(&stream) else { return };
                    received.lock().unwrap().push(request.clone());
                    reply(stream, &respond(&request));
                });
            }
        });
        Self { port, requests }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// All requests, as `METHOD /path`.
    pub fn calls(&self) -> Vec<String> {
        let line = |request: &Request| format!("{} {}", request.method, request.path);
        self.requests().iter().map(line).collect()
    }

    /// Paths of all POST requests.
    pub fn posted(&self) -> Vec<String> {
        self.calls()
            .iter()
            .filter_map(|call| call.strip_prefix("POST "))
            .map(str::to_owned)
            .collect()
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut length, mut key, mut content_type, mut fleet_lock) = (0, None, None, None);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "authorization" => key = Some(value.to_owned()),
            "content-type" => content_type = Some(value.to_owned()),
            "fleet-lock-protocol" => fleet_lock = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8(body).ok()?;
    Some(Request { method, path, body, key, content_type, fleet_lock })
}

fn reply(mut stream: TcpStream, reply: &Reply) {
    // The client may have closed the connection.
    let _ = match reply {
        Reply::Answer(status, body) => {
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n", body.len());
            stream.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes())
        }
        Reply::Raw(text) => stream.write_all(text.as_bytes()),
        Reply::Close => Ok(()),
        Reply::Hang => {
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        }
        Reply::Endless => {
            let mut sent = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while sent.is_ok() {
                sent = stream.write_all(&[b'a'; 1 << 16]);
            }
            sent
        }
    };
}

/// The recorded response of the real engine (tests/tools/record-answers).
pub fn recorded(kind: &str, state: &str, endpoint: &str) -> Reply {
    let file = format!("tests/fixtures/engines/answers/{kind}.json");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let states: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let responses = states[state].as_array().unwrap();
    let is_wanted = |response: &&Value| {
        response["path"].as_str().unwrap().split('?').next() == Some(endpoint)
            && response["sent"] != "text"
    };
    match responses.iter().find(is_wanted) {
        Some(response) => {
            let status = response["status"].as_u64().unwrap();
            let body = response["body"].as_str().unwrap().to_owned();
            Reply::Answer(u16::try_from(status).unwrap(), body)
        }
        None => Reply::Answer(404, r#"{"detail":"Not Found"}"#.to_owned()),
    }
}
