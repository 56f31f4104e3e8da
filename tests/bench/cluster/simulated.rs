//! Agents that only answer: all of them in one thread, each at an address of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Varies from agent to agent.
const VARIES: &str = "\numa_memory_available_bytes ";

/// The agents.
pub struct Simulated {
    port: u16,
    seen: Arc<Seen>,
}

/// What they were asked.
#[derive(Default)]
struct Seen {
    answers: AtomicU64,
    bytes: AtomicU64,
    /// The last address that asked for some metrics alone.
    selecting: Mutex<Option<String>>,
}

/// What stands before and after the value that varies.
struct Body {
    before: String,
    value: u64,
    after: String,
}

impl Simulated {
    /// Answers on all addresses of the loopback, until the process ends.
    pub fn start(port: u16, metrics: &str) -> Self {
        let (before, rest) = metrics.split_once(VARIES).unwrap();
        let (value, after) = rest.split_once('\n').unwrap();
        let body = Arc::new(Body {
            before: format!("{before}{VARIES}"),
            value: value.parse().unwrap(),
            after: format!("\n{after}"),
        });
        let seen = Arc::<Seen>::default();
        let counted = Arc::clone(&seen);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await.unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(serve(stream, Arc::clone(&body), Arc::clone(&counted)));
                }
            });
        });
        Self { port, seen }
    }

    /// Where an agent is.
    pub fn address(&self, number: usize) -> String {
        let [.., high, low] = (number as u32 + 2).to_be_bytes();
        SocketAddr::from(([127, 1, high, low], self.port)).to_string()
    }

    /// Answers of all of them so far.
    pub fn answers(&self) -> u64 {
        self.seen.answers.load(Ordering::Relaxed)
    }

    /// What all of them have said so far, without the heads.
    pub fn bytes(&self) -> u64 {
        self.seen.bytes.load(Ordering::Relaxed)
    }

    /// How an agent asked for what its rules read.
    pub fn selecting(&self) -> Option<String> {
        self.seen.selecting.lock().unwrap().clone()
    }
}

/// The lines of those metrics that are asked for: all, unless some are named.
fn selected(path: &str, text: &str) -> String {
    let named = path.split(['?', '&']).filter_map(|part| part.strip_prefix("name%5B%5D="));
    let named: Vec<&str> = named.collect();
    if named.is_empty() {
        return text.to_owned();
    }
    let name = |line: &str| {
        let line = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        line.and_then(|line| line.split(' ').next()).map(str::to_owned)
    };
    let is_asked = |line: &&str| {
        let name = name(line);
        let name = name.as_deref().or_else(|| line.split(['{', ' ']).next());
        name.is_some_and(|name| named.contains(&name))
    };
    text.lines().filter(is_asked).map(|line| format!("{line}\n")).collect()
}

async fn serve(mut stream: TcpStream, body: Arc<Body>, seen: Arc<Seen>) {
    let SocketAddr::V4(own) = stream.local_addr().unwrap() else { return };
    let less = u64::from(u32::from(*own.ip()) & 0xff) << 20;
    let value = body.value.saturating_sub(less);
    let text = format!("{}{value}{}", body.before, body.after);
    let mut known: Option<(String, String)> = None;
    let mut request = Vec::new();
    loop {
        let mut part = [0; 2048];
        match stream.read(&mut part).await {
            Ok(read @ 1..) => request.extend_from_slice(&part[..read]),
            _ => return,
        }
        if request.ends_with(b"\r\n\r\n") {
            let asked = String::from_utf8_lossy(&request);
            let path = asked.split(' ').nth(1).unwrap_or_default().to_owned();
            request.clear();
            if known.as_ref().is_none_or(|(of, _)| *of != path) {
                if path.contains("name%5B%5D=") {
                    *seen.selecting.lock().unwrap() = Some(path.clone());
                }
                known = Some((path.clone(), selected(&path, &text)));
            }
            let Some((_, body)) = &known else { return };
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\numawarden-instance: \
                 {own}\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            if stream.write_all((head + body).as_bytes()).await.is_err() {
                return;
            }
            seen.answers.fetch_add(1, Ordering::Relaxed);
            seen.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        }
    }
}
