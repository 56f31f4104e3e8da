//! Docker, or what speaks its language, through its socket.
//!
//! bollard reads answers of any length and loses a list over one odd entry; here a body is read up
//! to a bound, and what it says is for `parse` to make out.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::NotEnded;
use crate::model::bytes_text;

/// Longer headers are not Docker's.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Podman's answers carry this, and Docker's do not.
const PODMAN_HEADER: &str = "libpod-api-version";

/// A longer line of a stream is none of its.
const MAX_LINE_BYTES: usize = 256 << 10;

/// There was no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// There is no such socket.
    Absent,
    /// Nobody listens there.
    Refused,
    /// It did not come in time.
    TimedOut(Duration),
    /// Anything else.
    Failed(String),
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("there is no Docker: look at path.docker_socket"),
            Self::Refused => f.write_str("nobody listens at its socket: is Docker running?"),
            Self::TimedOut(patience) => {
                write!(f, "Docker has not answered within {} s", patience.as_secs())
            }
            Self::Failed(error) => f.write_str(error),
        }
    }
}

impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::NotFound => Self::Absent,
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<hyper::Error> for NoAnswer {
    fn from(error: hyper::Error) -> Self {
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        Self::Failed(text)
    }
}

/// An answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
    /// Whether Podman says that it is Podman: it knows less of what has happened.
    pub is_podman: bool,
}

impl Answer {
    /// What Docker says of a request that it could not do.
    pub fn message(&self) -> String {
        let told: Option<serde_json::Value> = serde_json::from_slice(&self.body).ok();
        let told = told.as_ref().and_then(|told| told.get("message")?.as_str());
        let told = told.unwrap_or_default().chars().filter(|c| !c.is_control()).take(300);
        let told: String = told.collect();
        match told.is_empty() {
            true => format!("Docker answered {}", self.status),
            false => format!("Docker answered {}: {told}", self.status),
        }
    }
}

/// The way to Docker.
#[derive(Clone, Debug)]
pub struct Docker {
    socket: PathBuf,
}

/// What moves the bytes, ended with whoever waits for them.
#[derive(Debug)]
struct Moving(JoinHandle<()>);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Docker {
    /// Through that socket.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// Asks. A body of more than `most` bytes is no answer.
    ///
    /// # Errors
    /// There was no answer, or none in time.
    pub async fn get(
        &self,
        path: &str,
        most: usize,
        patience: Duration,
    ) -> Result<Answer, NoAnswer> {
        self.ask(Method::GET, path, None, most, patience).await
    }

    /// Has something done.
    ///
    /// # Errors
    /// There was no answer, or none in time; it may be done all the same.
    pub async fn post(
        &self,
        path: &str,
        body: Option<String>,
        most: usize,
        patience: Duration,
    ) -> Result<Answer, NoAnswer> {
        self.ask(Method::POST, path, body, most, patience).await
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        most: usize,
        patience: Duration,
    ) -> Result<Answer, NoAnswer> {
        let asked = async {
            let (response, _moving) = self.send(method, path, body).await?;
            let status = response.status().as_u16();
            let is_podman = response.headers().contains_key(PODMAN_HEADER);
            let mut lines = Stream { body: response.into_body(), buffer: Vec::new() };
            while lines.more().await? {
                if lines.buffer.len() > most {
                    let most = bytes_text(most as u64);
                    return Err(NoAnswer::Failed(format!("it answered more than {most}")));
                }
            }
            Ok(Answer { status, body: lines.buffer, is_podman })
        };
        timeout(patience, asked).await.map_err(|_| NoAnswer::TimedOut(patience))?
    }

    /// Begins to read what does not end: a line for each thing that happens.
    ///
    /// # Errors
    /// It does not begin in time, or is refused.
    pub async fn follow(&self, path: &str, patience: Duration) -> Result<Lines, NoAnswer> {
        let asked = timeout(patience, self.send(Method::GET, path, None)).await;
        let (response, moving) = asked.map_err(|_| NoAnswer::TimedOut(patience))??;
        if response.status() != hyper::StatusCode::OK {
            return Err(NoAnswer::Failed(format!("it answered {}", response.status())));
        }
        let stream = Stream { body: response.into_body(), buffer: Vec::new() };
        Ok(Lines { stream, _moving: moving })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<(Response<Incoming>, Moving), NoAnswer> {
        let stream = UnixStream::connect(&self.socket).await?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEAD_BYTES);
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let moving = Moving(tokio::spawn(async {
            // Whoever waits for the answer hears of it.
            let _broken = connection.await;
        }));
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::USER_AGENT, concat!("umawarden/", env!("CARGO_PKG_VERSION")))
            .header(header::CONNECTION, "close");
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Full::<Bytes>::from(body.unwrap_or_default()))
            .map_err(|error| NoAnswer::Failed(error.to_string()))?;
        Ok((sender.send_request(request).await?, moving))
    }
}

#[derive(Debug)]
struct Stream {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Stream {
    /// Takes in some more; whether there was any. What is under way is not lost when this is given
    /// up.
    async fn more(&mut self) -> Result<bool, NoAnswer> {
        if self.body.is_end_stream() {
            return Ok(false);
        }
        let Some(frame) = self.body.frame().await else { return Ok(false) };
        if let Ok(chunk) = frame?.into_data() {
            self.buffer.extend_from_slice(&chunk);
        }
        Ok(true)
    }
}

/// A stream of lines.
#[derive(Debug)]
pub struct Lines {
    stream: Stream,
    _moving: Moving,
}

impl Lines {
    /// The next one; `None`: it has ended. It may be given up and called again.
    ///
    /// # Errors
    /// The stream is broken, or what comes is no line.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, NoAnswer> {
        loop {
            let buffer = &mut self.stream.buffer;
            if let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let rest = buffer.split_off(end + 1);
                let mut line = std::mem::replace(buffer, rest);
                line.pop();
                return Ok(Some(line));
            }
            if buffer.len() > MAX_LINE_BYTES {
                return Err(NoAnswer::Failed("it told a line that does not end".to_owned()));
            }
            if !self.stream.more().await? {
                return Ok(None);
            }
        }
    }
}

/// A text as part of a path or a query.
pub fn escaped(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Does something with Docker on a thread of its own, and waits no longer than that for it.
///
/// # Errors
/// It failed, or has not ended in time; it may go on.
pub fn within<T, F, W>(patience: Duration, work: F) -> Result<T, String>
where
    T: Send + 'static,
    F: FnOnce() -> W + Send + 'static,
    W: Future<Output = Result<T, String>>,
{
    super::within("docker", patience, work).unwrap_or_else(|not_ended| match not_ended {
        NotEnded::TimedOut => Err(NoAnswer::TimedOut(patience).to_string()),
        NotEnded::Broken(why) => Err(why),
    })
}
