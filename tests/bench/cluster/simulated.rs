//! Simulated agents that only serve metrics: all in one thread, each at an address of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The value of this series differs from agent to agent.
const VARIES: &str = "\numa_memory_available_bytes ";

/// All simulated agents.
pub struct Simulated {
    port: u16,
    received: Arc<Received>,
}

/// Requests received, and responses sent.
#[derive(Default)]
struct Received {
    responses: AtomicU64,
    bytes: AtomicU64,
    /// The last path that selected some metrics.
    selecting: Mutex<Option<String>>,
}

/// The metrics before and after the value that differs.
struct Body {
    before: String,
    value: u64,
    after: String,
}

impl Simulated {
    /// Serves all addresses of the loopback until the process ends.
    pub fn start(port: u16, metrics: &str) -> Self {
        let (before, rest) = metrics.split_once(VARIES).unwrap();
        let (value, after) = rest.split_once('\n').unwrap();
        let body = Arc::new(Body {
            before: format!("{before}{VARIES}"),
            value: value.parse().unwrap(),
            after: format!("\n{after}"),
        });
        let received = Arc::<Received>::default();
        let counted = Arc::clone(&received);
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
        Self { port, received }
    }

    /// The address of an agent.
    pub fn address(&self, number: usize) -> String {
        let [.., high, low] = (number as u32 + 2).to_be_bytes();
        SocketAddr::from(([127, 1, high, low], self.port)).to_string()
    }

    /// Number of responses so far.
    pub fn responses(&self) -> u64 {
        self.received.responses.load(Ordering::Relaxed)
    }

    /// Bytes of all response bodies so far.
    pub fn bytes(&self) -> u64 {
        self.received.bytes.load(Ordering::Relaxed)
    }

    /// The path by which an agent requested the metrics that its rules read.
    pub fn selecting(&self) -> Option<String> {
        self.received.selecting.lock().unwrap().clone()
    }
}

/// The lines of the metrics that the path selects; all without a selection.
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
    let is_selected = |line: &&str| {
        let name = name(line);
        let name = name.as_deref().or_else(|| line.split(['{', ' ']).next());
        name.is_some_and(|name| named.contains(&name))
    };
    text.lines().filter(is_selected).map(|line| format!("{line}\n")).collect()
}

async fn serve(mut stream: TcpStream, body: Arc<Body>, received: Arc<Received>) {
    let SocketAddr::V4(own) = stream.local_addr().unwrap() else { return };
    let less = u64::from(u32::from(*own.ip()) & 0xff) << 20;
    let value = body.value.saturating_sub(less);
    let text = format!("{}{value}{}", body.before, body.after);
    let mut cached: Option<(String, String)> = None;
    let mut request = Vec::new();
    loop {
        let mut part = [0; 2048];
        match stream.read(&mut part).await {
            Ok(read @ 1..) => request.extend_from_slice(&part[..read]),
            _ => return,
        }
        if request.ends_with(b"\r\n\r\n") {
            let text_of_request = String::from_utf8_lossy(&request);
            let path = text_of_request.split(' ').nth(1).unwrap_or_default().to_owned();
            request.clear();
            if cached.as_ref().is_none_or(|(of, _)| *of != path) {
                if path.contains("name%5B%5D=") {
                    *received.selecting.lock().unwrap() = Some(path.clone());
                }
                cached = Some((path.clone(), selected(&path, &text)));
            }
            let Some((_, body)) = &cached else { return };
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\numawarden-instance: \
                 {own}\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            if stream.write_all((head + body).as_bytes()).await.is_err() {
                return;
            }
            received.responses.fetch_add(1, Ordering::Relaxed);
            received.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        }
    }
}
