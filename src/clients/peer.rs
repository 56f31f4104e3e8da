//! The umawarden of another node, queried whether that node can take its part of an engine, and
//! called to reserve memory for it.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::connection::{ConnectionRequest, Server, ServerConnection};
use crate::model::{
    Access, GateRequest, LeaseCall, LeaseRequest, LeaseStage, PeerAddress, PeerGate, Pod,
};
use crate::parse::answer::HttpResponse;

/// The time limit of a response, which needs no measurement there.
pub const ANSWER_TAKES: Duration = Duration::from_secs(2);

/// Limits of the number and the length of the reasons in a response.
const MOST_REASONS: usize = 16;
const REASON_CHARS: usize = 300;

/// The longest estimated wait that is accepted.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The statuses of a call for a lease whose body is read: a closed gate, and refusals.
const READ: [u16; 7] = [400, 401, 403, 404, 405, 501, 503];

/// The status of a gate that is closed, and of a node that cannot say for now.
const CLOSED: u16 = 503;

/// After a refusal to reserve memory a node is only queried, so many times.
const QUERIES_AFTER_REFUSAL: u32 = 60;

/// The size limit of a response, in bytes.
const MOST_BYTES: usize = 1 << 20;

/// A client of one peer.
#[derive(Debug)]
pub struct Peer {
    runtime: Runtime,
    connection: ServerConnection,
    query: String,
    request: GateRequest,
    /// Why it has refused to reserve memory, and how many more times it is only queried.
    refused: Option<(Arc<str>, u32)>,
}

/// The response of a peer to a call for a lease.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerReply {
    /// Whether it can take the engine, and has reserved memory if that was called.
    pub gate: PeerGate,
    /// The lease there.
    pub lease: PeerLease,
}

/// A lease on a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerLease {
    /// There was no response, or none that makes sense.
    Unknown,
    /// The node, by its name in the order of nodes, and how far the lease has come.
    Known(Arc<str>, LeaseStage),
    /// The node reserves nothing, for this reason.
    Refused(Arc<str>),
}

impl Peer {
    /// Prepares the client; connects to nothing.
    ///
    /// # Errors
    /// The system has no resources for it.
    pub fn open(
        address: &PeerAddress,
        access: &Access,
        request: GateRequest,
    ) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (host, access) = (address.host().to_owned(), access.clone());
        let server = Server { host, port: address.port(), access };
        let mut query = format!("/api/v1/gate?need={}", request.need_bytes);
        if let Some(bytes) = request.contiguous_bytes {
            query.push_str(&format!("&contiguous={bytes}"));
        }
        if request.host_need_bytes > 0 {
            query.push_str(&format!("&host_need={}", request.host_need_bytes));
        }
        if !request.pools.is_empty() {
            query.push_str(&format!("&pool={}", request.pools.join(",")));
        }
        Ok(Self {
            runtime,
            connection: ServerConnection::new(server),
            query,
            request,
            refused: None,
        })
    }

    fn send(&mut self, method: &Method, path: &str) -> Result<HttpResponse, String> {
        let accept = "application/json";
        let also = if *method == Method::GET { &[CLOSED][..] } else { &READ };
        let question = ConnectionRequest { method, path, accept, most_bytes: MOST_BYTES, also };
        let (runtime, connection) = (&self.runtime, &mut self.connection);
        let received =
            runtime.block_on(async { timeout(ANSWER_TAKES, connection.receive(question)).await });
        let (head, body) = received.map_err(|_| {
            format!("{path} was not answered within {} s", ANSWER_TAKES.as_secs())
        })??;
        Ok(HttpResponse { status: head.status, body, is_cut: false })
    }

    /// The memory of the node: the `data` of the response, which is untrusted.
    ///
    /// # Errors
    /// Why there is no response.
    pub fn memory(&mut self) -> Result<Value, String> {
        let answer = self.send(&Method::GET, &self.query.clone())?;
        read(&self.request, &answer)?;
        let mut reply = answer.json().unwrap_or_default();
        Ok(reply["data"].take())
    }

    /// Queries the gate of the node.
    pub fn query(&mut self) -> PeerGate {
        let unknown = |why: String| PeerGate::Unknown { why: why.into() };
        match self.send(&Method::GET, &self.query.clone()) {
            Ok(answer) => read(&self.request, &answer).unwrap_or_else(unknown),
            Err(why) => unknown(why),
        }
    }

    /// Calls for a lease; where none can be had, only queries.
    pub fn call(&mut self, lease: &LeaseRequest, (call, turn): (LeaseCall, u64)) -> PeerReply {
        let is_waiting = call == LeaseCall::Wait;
        if let Some((why, left)) = self.refused.take().filter(|(_, left)| is_waiting && *left > 0) {
            self.refused = Some((Arc::clone(&why), left - 1));
            return PeerReply { gate: self.query(), lease: PeerLease::Refused(why) };
        }
        let path = format!(
            "{}&requested={}&call={}&turn={}",
            self.lease_path(lease),
            lease.requested_ms,
            call.name(),
            turn,
        );
        let unknown = |why: String| PeerGate::Unknown { why: why.into() };
        let answer = match self.send(&Method::POST, &path) {
            Ok(answer) => answer,
            Err(why) => return PeerReply { gate: unknown(why), lease: PeerLease::Unknown },
        };
        let reply = answer.json().unwrap_or_default();
        let lease = &reply["data"]["lease"];
        let stage = lease["stage"].as_str().and_then(LeaseStage::named);
        match lease["node"].as_str().zip(stage) {
            Some((node, stage)) => match read(&self.request, &answer) {
                Ok(gate) => PeerReply { gate, lease: PeerLease::Known(shown(node).into(), stage) },
                Err(why) => PeerReply { gate: unknown(why), lease: PeerLease::Unknown },
            },
            None if answer.status == CLOSED => {
                let why = format!("it answers {CLOSED}: {}", error_of(&reply));
                PeerReply { gate: unknown(why), lease: PeerLease::Unknown }
            }
            None => {
                let why: Arc<str> = refusal(answer.status, &reply).into();
                self.refused = Some((Arc::clone(&why), QUERIES_AFTER_REFUSAL));
                PeerReply { gate: self.query(), lease: PeerLease::Refused(why) }
            }
        }
    }

    /// Has the node reserve memory for a start on that node alone; repeated until it has.
    pub fn reserve(&mut self, lease: &LeaseRequest) -> PeerGate {
        let unknown = |why: String| PeerGate::Unknown { why: why.into() };
        let mut path = self.lease_path(lease);
        if let Some(Pod { namespace, name, uid, .. }) = lease.pod.as_deref() {
            path.push_str(&format!("&pod={}", encoded(&format!("{namespace}/{name}/{uid}"))));
        }
        let answer = match self.send(&Method::POST, &path) {
            Ok(answer) => answer,
            Err(why) => return unknown(why),
        };
        match answer.json() {
            Some(reply) if answer.status != 200 && reply["data"].is_null() => {
                unknown(refusal(answer.status, &reply))
            }
            _ => read(&self.request, &answer).unwrap_or_else(unknown),
        }
    }

    fn lease_path(&self, lease: &LeaseRequest) -> String {
        format!(
            "{}&id={}&name={}&priority={}&lease={}s",
            self.query,
            encoded(&lease.id),
            encoded(&lease.who),
            lease.priority,
            lease.lasts.as_secs().max(1),
        )
    }

    /// Gives a lease back.
    pub fn end(&mut self, id: &str) {
        let id = utf8_percent_encode(id, NON_ALPHANUMERIC);
        // A node that cannot be reached ends it by itself.
        let _ = self.send(&Method::DELETE, &format!("/api/v1/leases/{id}"));
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn error_of(reply: &Value) -> String {
    reply["error"].as_str().map(shown).unwrap_or_default()
}

/// Why a node reserves nothing.
fn refusal(status: u16, reply: &Value) -> String {
    let error = error_of(reply);
    match status {
        401 | 403 => format!(
            "it answers {status}: {error} (cluster: {{bearer_token_file: …}} with the role operate)"
        ),
        404 | 405 => "its umawarden is older and has no leases over the network".to_owned(),
        _ => format!("it answers {status}: {error}"),
    }
}

/// The state of the gate, or why the response is invalid: it must repeat the request.
fn read(request: &GateRequest, answer: &HttpResponse) -> Result<PeerGate, String> {
    let status = answer.status;
    let reply = answer.json();
    let data = reply.as_ref().and_then(|reply| reply.get("data"));
    let bytes = |name: &str| data?.get(name)?.as_u64();
    let is_open = data.and_then(|data| data.get("open")?.as_bool());
    let is_answer = bytes("need_bytes") == Some(request.need_bytes)
        && bytes("contiguous_bytes") == request.contiguous_bytes
        && bytes("host_need_bytes").unwrap_or(0) == request.host_need_bytes
        && pools(data) == request.pools;
    match (status, is_open.filter(|_| is_answer)) {
        (200, Some(true)) => Ok(PeerGate::Open),
        (503, Some(false)) => Ok(closed(data.unwrap_or(&Value::Null))),
        // A node that has not measured yet reports that.
        _ => Err(match reply.as_ref().and_then(|reply| reply.get("error")?.as_str()) {
            Some(error) => format!("it answers {status}: {}", shown(error)),
            None => format!("it answers {status}, and not as umawarden does"),
        }),
    }
}

fn pools(data: Option<&Value>) -> Vec<Arc<str>> {
    let pools = data.and_then(|data| data.get("pool_names")?.as_array());
    pools.into_iter().flatten().filter_map(|name| Some(name.as_str()?.into())).collect()
}

fn closed(data: &Value) -> PeerGate {
    let reasons = data.get("reasons").and_then(Value::as_array).into_iter().flatten();
    let reasons = reasons.filter_map(|reason| Some(shown(reason.get("text")?.as_str()?).into()));
    let wait = data.get("estimated_seconds").and_then(Value::as_f64);
    PeerGate::Closed {
        reasons: reasons.take(MOST_REASONS).collect(),
        wait: wait
            .and_then(|wait| Duration::try_from_secs_f64(wait).ok())
            .filter(|wait| *wait <= LONGEST_WAIT),
        is_hopeless: data.get("hopeless").and_then(Value::as_bool).unwrap_or(false),
    }
}

fn shown(text: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(REASON_CHARS).map(printable).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked() -> GateRequest {
        GateRequest::of(7)
    }

    fn says(status: u16, body: &str) -> Result<PeerGate, String> {
        read(&asked(), &HttpResponse { status, body: body.into(), is_cut: false })
    }

    #[test]
    fn only_a_response_to_the_same_request_opens_the_gate() {
        let open = json!({"data": {"open": true, "need_bytes": 7, "contiguous_bytes": null}});
        assert_eq!(says(200, &open.to_string()), Ok(PeerGate::Open));
        for (status, body) in [
            (200, "<html>"),
            (200, "{}"),
            (200, r#"{"data":{"open":true}}"#),
            (200, r#"{"data":{"open":true,"need_bytes":8}}"#),
            (200, r#"{"data":{"open":true,"need_bytes":7,"contiguous_bytes":1}}"#),
            (200, r#"{"data":{"open":false,"need_bytes":7}}"#),
            (503, r#"{"data":{"open":true,"need_bytes":7}}"#),
            (404, ""),
            (302, &*open.to_string()),
        ] {
            assert!(says(status, body).is_err(), "{status} {body}");
        }
        let unmeasured = r#"{"errorType":"unavailable","error":"memory\u001b was not measured"}"#;
        let reply = says(503, unmeasured).unwrap_err();
        assert_eq!(reply, "it answers 503: memory  was not measured");
    }

    #[test]
    fn reasons_of_a_closed_gate_are_bounded() {
        let reasons: Vec<_> = (0..99).map(|_| json!({"text": "x\n".repeat(999)})).collect();
        let data = json!({
            "open": false, "need_bytes": 7, "reasons": reasons, "estimated_seconds": 1e300,
            "hopeless": true,
        });
        let reply = says(503, &json!({ "data": data }).to_string()).unwrap();
        let PeerGate::Closed { reasons, wait: None, is_hopeless: true } = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(reasons.len(), MOST_REASONS);
        assert!(reasons.iter().all(|reason| reason.chars().count() == REASON_CHARS));
        assert!(!reasons[0].contains('\n'));
    }
}
