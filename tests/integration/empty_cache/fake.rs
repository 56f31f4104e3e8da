//! A small server that answers what the real engines answered, or what no engine should.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

/// One request, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub method: String,
    /// With its query.
    pub path: String,
    pub body: String,
    pub key: Option<String>,
    pub content_type: Option<String>,
    /// What says that a lock server is meant.
    pub fleet_lock: Option<String>,
}

impl Asked {
    /// Without its query.
    pub fn place(&self) -> &str {
        self.path.split('?').next().unwrap()
    }
}

/// What is done about it.
#[derive(Clone, Debug)]
pub enum Reply {
    /// An answer in order.
    Answer(u16, String),
    /// Bytes of the test's own.
    Raw(String),
    /// Nothing, and the connection stays.
    Hang,
    /// The connection ends.
    Close,
    /// A body without an end.
    Endless,
}

/// Listens until it is dropped with its process.
pub struct FakeEngine {
    pub port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl FakeEngine {
    pub fn start(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), answer)
    }

    pub fn on(
        listener: TcpListener,
        answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let port = listener.local_addr().unwrap().port();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (told, answer) = (Arc::clone(&asked), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (told, answer) = (Arc::clone(&told), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let Some(asked) = read(&stream) else { return };
                    told.lock().unwrap().push(asked.clone());
                    reply(stream, &answer(&asked));
                });
            }
        });
        Self { port, asked }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Everything that it was asked, as `METHOD /path`.
    pub fn calls(&self) -> Vec<String> {
        let line = |asked: &Asked| format!("{} {}", asked.method, asked.path);
        self.asked().iter().map(line).collect()
    }

    /// Those that change something.
    pub fn told(&self) -> Vec<String> {
        self.calls()
            .iter()
            .filter_map(|call| call.strip_prefix("POST "))
            .map(str::to_owned)
            .collect()
    }
}

fn read(stream: &TcpStream) -> Option<Asked> {
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
    Some(Asked { method, path, body, key, content_type, fleet_lock })
}

/// Whoever asked may have gone.
fn reply(mut stream: TcpStream, reply: &Reply) {
    let _gone = match reply {
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

/// What the real engine answered (tests/tools/record-answers).
pub fn recorded(kind: &str, state: &str, place: &str) -> Reply {
    let file = format!("tests/fixtures/engines/answers/{kind}.json");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let told: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let answers = told[state].as_array().unwrap();
    let is_it = |answer: &&Value| {
        answer["path"].as_str().unwrap().split('?').next() == Some(place)
            && answer["sent"] != "text"
    };
    match answers.iter().find(is_it) {
        Some(answer) => {
            let status = answer["status"].as_u64().unwrap();
            let body = answer["body"].as_str().unwrap().to_owned();
            Reply::Answer(u16::try_from(status).unwrap(), body)
        }
        None => Reply::Answer(404, r#"{"detail":"Not Found"}"#.to_owned()),
    }
}
