//! HTTP over the control socket.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request};
use serde_json::Value;
use tokio::net::UnixStream;

use crate::clients::http::{self, HttpError, send_over};
use crate::exports::control_address;

/// The time limit of an order; that of the daemon is shorter.
const ORDER_TAKES: Duration = Duration::from_secs(20);

/// The time limit of a query: it is answered from the last snapshot.
const ANSWER_TAKES: Duration = Duration::from_secs(5);

/// The size limit of a response, in bytes.
const MOST_BYTES: usize = 4 << 20;

/// The daemon behind a control socket.
#[derive(Clone, Debug)]
pub(crate) struct ControlClient {
    socket: PathBuf,
    /// `None`: as long as the request may take.
    patience: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DaemonResponse {
    pub(crate) status: u16,
    /// The data; null without any.
    pub(crate) data: Value,
    /// The error; empty without one.
    pub(crate) problem: String,
    pub(crate) warnings: Vec<String>,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// There is no socket, or no process listens.
    #[error(
        "no daemon listens at {}: start `umawarden run`, or name the folder of the one that \
         runs with --storage.path (under systemd mostly /var/lib/umawarden)",
        .0.display()
    )]
    Absent(PathBuf),
    /// Only its owner may open the socket.
    #[error(
        "this user may not connect to the daemon: {} is its owner's alone; try it with sudo",
        .0.display()
    )]
    Forbidden(PathBuf),
    /// There was no response to a query in time.
    #[error(
        "the daemon at {} has not answered within {} s: it hangs or is stopped; restart it (under \
         systemd: systemctl restart umawarden)",
        .0.display(), .1.as_secs()
    )]
    Silent(PathBuf, Duration),
    /// There was no response to an order in time.
    #[error(
        "the daemon at {} has not answered within {} s: it hangs, and may or may not have taken \
         the order; `umawarden pause` works all the same",
        .0.display(), .1.as_secs()
    )]
    OrderSilent(PathBuf, Duration),
    /// The socket belongs to another user.
    #[error("{} belongs to user {}, who is neither root nor you: not trusted", .0.display(), .1)]
    Stranger(PathBuf, u32),
    /// Any other failure.
    #[error("the request to the daemon at {} failed: {}", .0.display(), .1)]
    Failed(PathBuf, String),
}

impl ControlClient {
    /// The daemon behind that socket.
    pub(crate) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), patience: None }
    }

    /// The same, waited for no longer than that.
    pub(crate) fn with_patience(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// Sends a request, and waits for the response.
    ///
    /// # Errors
    /// The failure of a request, with the remedy.
    pub(crate) fn request(
        &self,
        method: &str,
        target: &str,
        body: Option<&Value>,
    ) -> Result<DaemonResponse, ClientError> {
        let body = body.map(Value::to_string).unwrap_or_default();
        self.send(method, target, "application/json", body)
    }

    /// The same with an encoded form.
    ///
    /// # Errors
    /// The failure of a request, with the remedy.
    pub(crate) fn post_form(
        &self,
        target: &str,
        form: &str,
    ) -> Result<DaemonResponse, ClientError> {
        self.send("POST", target, "application/x-www-form-urlencoded", form.to_owned())
    }

    fn send(
        &self,
        method: &str,
        target: &str,
        content_type: &'static str,
        body: String,
    ) -> Result<DaemonResponse, ClientError> {
        let failed =
            |error: &dyn std::fmt::Display| ClientError::Failed(self.path(), error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed(&error))?;
        let method = Method::from_bytes(method.as_bytes()).map_err(|error| failed(&error))?;
        let is_query = method == Method::GET;
        let patience = self.patience.unwrap_or(if is_query { ANSWER_TAKES } else { ORDER_TAKES });
        let request = http::request(method, &format!("http://umawarden{target}"))
            .and_then(|request| {
                let request = request.header(CONTENT_TYPE, content_type);
                Ok(request.body(Bytes::from(body))?)
            })
            .map_err(|error| failed(&error))?;
        let answer = runtime
            .block_on(async { tokio::time::timeout(patience, self.exchange(request)).await });
        runtime.shutdown_background();
        answer.unwrap_or_else(|_| {
            let silent = if is_query { ClientError::Silent } else { ClientError::OrderSilent };
            Err(silent(self.path(), patience))
        })
    }

    fn path(&self) -> PathBuf {
        self.socket.clone()
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<DaemonResponse, ClientError> {
        let failed =
            |error: &dyn std::fmt::Display| ClientError::Failed(self.path(), error.to_string());
        control_address(&self.socket).map_err(|error| failed(&error))?;
        let stream =
            UnixStream::connect(&self.socket).await.map_err(|error| match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::NotADirectory => {
                    ClientError::Absent(self.path())
                }
                ErrorKind::PermissionDenied => ClientError::Forbidden(self.path()),
                _ => failed(&error),
            })?;
        let listener = stream.peer_cred().map_err(|error| failed(&error))?.uid();
        if ![0, rustix::process::getuid().as_raw()].contains(&listener) {
            return Err(ClientError::Stranger(self.path(), listener));
        }
        // Only now, since only the owner of the socket may get the request.
        let sent = async { send_over(stream, request).await?.read(MOST_BYTES).await };
        let answer = sent.await.map_err(|error| failed(&error))?;
        match answer.is_cut {
            true => Err(failed(&HttpError::TooLong(MOST_BYTES))),
            false => Ok(read(answer.status, &answer.body)),
        }
    }
}

fn read(status: u16, bytes: &[u8]) -> DaemonResponse {
    let Ok(mut answer) = serde_json::from_slice::<Value>(bytes) else {
        let text = String::from_utf8_lossy(bytes);
        let problem = format!("the daemon answered {status}: {}", text.trim());
        return DaemonResponse { status, data: Value::Null, problem, warnings: Vec::new() };
    };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let warnings = answer["warnings"].as_array();
    let warnings = warnings.map_or_else(Vec::new, |all| all.iter().filter_map(text).collect());
    let problem = text(&answer["error"]).unwrap_or_else(|| format!("the daemon answered {status}"));
    DaemonResponse { status, data: answer["data"].take(), problem, warnings }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn pause(socket: &Path) -> Result<DaemonResponse, ClientError> {
        let client = ControlClient::new(socket).with_patience(Duration::from_millis(500));
        client.request("GET", "/api/v1/pause", None)
    }

    fn response_to(text: &str) -> Result<DaemonResponse, ClientError> {
        let bytes = text.as_bytes().to_vec();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // A response before the request is invalid.
            let _ = stream.read(&mut [0; 4096]);
            // The receiver may be gone.
            let _ = stream.write_all(&bytes);
            stream
        });
        let reply = pause(&socket);
        drop(answering.join().unwrap());
        reply
    }

    #[test]
    fn a_missing_daemon_is_an_error_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        assert!(matches!(pause(&socket), Err(ClientError::Absent(_))));
        drop(UnixListener::bind(&socket).unwrap());
        let error = pause(&socket).unwrap_err();
        assert!(error.to_string().contains("start `umawarden run`"), "{error}");
        let error = pause(&folder.path().join("x".repeat(200))).unwrap_err().to_string();
        assert!(error.contains("at most 107"), "{error}");
    }

    #[test]
    fn a_silent_daemon_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let _listener = UnixListener::bind(&socket).unwrap();
        let error = pause(&socket).unwrap_err();
        assert!(matches!(error, ClientError::Silent(..)), "{error}");
        let text = error.to_string();
        assert!(text.contains("restart it") && !text.contains("pause"), "of a query: {text}");
        let client = ControlClient::new(&socket).with_patience(Duration::from_millis(500));
        let error = client.request("POST", "/api/v1/silences", None).unwrap_err();
        assert!(error.to_string().contains("`umawarden pause` works"), "of an order: {error}");
    }

    #[test]
    fn responses_are_parsed_and_malformed_ones_are_errors() {
        let (head, body) = ("HTTP/1.1 409 Conflict\r\nContent-Length", "{\"error\": \"no\"}");
        let reply = response_to(&format!("{head}: {}\r\n\r\n{body}", body.len())).unwrap();
        assert_eq!((reply.status, &*reply.problem), (409, "no"));
        let cut = &body[..body.len() - 1];
        let reply = response_to(&format!("{head}: {}\r\n\r\n{cut}", cut.len())).unwrap();
        assert!(reply.problem.contains("the daemon answered 409: {"), "{reply:?}");
        let body = "{\"data\": [1], \"warnings\": [\"a\", 5]}";
        let reply = response_to(&format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let reply = reply.unwrap();
        assert_eq!((reply.status, reply.data), (200, serde_json::json!([1])));
        assert_eq!(reply.warnings, ["a"]);
        for text in ["SSH-2.0-OpenSSH\r\n\r\n", "\0\0\0\0\0\r\n\r\n", ""] {
            assert!(response_to(text).is_err());
        }
    }
}
