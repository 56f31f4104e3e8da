//! Agents that only answer: all of them in one thread, each at an address of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Varies from agent to agent.
const VARIES: &str = "\numa_memory_available_bytes ";

/// The agents.
pub struct Simulated {
    port: u16,
    answers: Arc<AtomicU64>,
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
        let answers = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&answers);
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
        Self { port, answers }
    }

    /// Where an agent is.
    pub fn address(&self, number: usize) -> String {
        let [.., high, low] = (number as u32 + 2).to_be_bytes();
        SocketAddr::from(([127, 1, high, low], self.port)).to_string()
    }

    /// Answers of all of them so far.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}

async fn serve(mut stream: TcpStream, body: Arc<Body>, answers: Arc<AtomicU64>) {
    let SocketAddr::V4(own) = stream.local_addr().unwrap() else { return };
    let less = u64::from(u32::from(*own.ip()) & 0xff) << 20;
    let value = body.value.saturating_sub(less);
    let text = format!("{}{value}{}", body.before, body.after);
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    let answer = head + &text;
    let mut request = Vec::new();
    loop {
        let mut part = [0; 2048];
        match stream.read(&mut part).await {
            Ok(read @ 1..) => request.extend_from_slice(&part[..read]),
            _ => return,
        }
        if request.ends_with(b"\r\n\r\n") {
            request.clear();
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
            answers.fetch_add(1, Ordering::Relaxed);
        }
    }
}
