//! An API server for tests that answers as a function says.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::model::KubernetesAccess;

/// The request lines so far, and their bodies.
pub type ScriptedRequests = Arc<Mutex<Vec<(String, Value)>>>;

/// Serves until the process ends. `answer` maps the line and the body of a request to a status code
/// and a body.
pub fn serve(
    folder: &Path,
    answer: impl Fn(&str, &Value) -> (u16, Value) + Send + 'static,
) -> (KubernetesAccess, ScriptedRequests) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests = ScriptedRequests::default();
    let seen = Arc::clone(&requests);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let Some((line, body)) = read(&mut stream) else { continue };
            let (code, answer) = answer(&line, &body);
            seen.lock().unwrap().push((line, body));
            let answer = answer.to_string();
            let head = format!("HTTP/1.1 {code} X\r\nconnection: close\r\ncontent-length: ");
            let _ = write!(stream, "{head}{}\r\n\r\n{answer}", answer.len());
        }
    });
    let kubeconfig = folder.join("kubeconfig");
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "users": [{"name": "a", "user": {"token": "secret"}}],
    });
    std::fs::write(&kubeconfig, text.to_string()).unwrap();
    (KubernetesAccess { node: Some("n".to_owned()), kubeconfig: Some(kubeconfig) }, requests)
}

/// A merge patch, RFC 7386.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.as_object_mut().unwrap().remove(key)),
            value => merge(&mut target[key.as_str()], value),
        }
    }
}

fn read(stream: &mut TcpStream) -> Option<(String, Value)> {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut buffer).ok().filter(|length| *length > 0)?;
        text.extend_from_slice(&buffer[..length]);
        let known = String::from_utf8_lossy(&text).to_lowercase();
        let Some((head, body)) = known.split_once("\r\n\r\n") else { continue };
        let expected = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= expected.map_or(0, |length| length.parse().unwrap()) {
            break;
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let line = head.lines().next()?.to_owned();
    Some((line, serde_json::from_str(body).unwrap_or_default()))
}
