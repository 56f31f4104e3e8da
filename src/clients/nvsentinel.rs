//! Health events for the platform connector of NVSentinel, over gRPC on a unix socket of the node.
//!
//! The messages are those of `data-models/protobufs/health_event.proto` as of NVSentinel v1.31.0
//! (package `datamodels`). Fields are only added there: 16 since processing strategies exist, 17
//! (`id`, which the connector fills in) and 18 are not sent. A caller without a token is accepted
//! and bound to the node of the socket (docs/configuration/authentication.md there).

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::{Endpoint, Uri};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

const OCCURRED: &str = "/datamodels.PlatformConnector/HealthEventOccurredV1";

/// The answer is empty.
const MOST_ANSWER_BYTES: usize = 4_096;

/// Longer texts of a server are cut.
const MOST_ERROR_CHARS: usize = 300;

/// The version of the protocol.
const VERSION: u32 = 1;

/// `RecommendedAction`: nothing is to be done.
pub const ACTION_NONE: i32 = 0;
/// `RecommendedAction`: the machine is to be rebooted.
pub const ACTION_RESTART_BM: i32 = 24;

/// `ProcessingStrategy`: NVSentinel may cordon, drain and repair.
pub const STRATEGY_EXECUTE_REMEDIATION: i32 = 1;
/// `ProcessingStrategy`: the event is stored and shown, and nothing of the cluster changes.
pub const STRATEGY_STORE_ONLY: i32 = 2;

/// Some events, in their order.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthEvents {
    /// The version of the protocol.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// One entry for each event.
    #[prost(message, repeated, tag = "2")]
    pub events: Vec<HealthEvent>,
}

/// One event.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthEvent {
    /// The version of the protocol.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The program that reports it.
    #[prost(string, tag = "2")]
    pub agent: String,
    /// The class of the part: `GPU`, `Software`.
    #[prost(string, tag = "3")]
    pub component_class: String,
    /// The check; a healthy event ends the unhealthy one of the same check.
    #[prost(string, tag = "4")]
    pub check_name: String,
    /// Whether the node should be taken out of service.
    #[prost(bool, tag = "5")]
    pub is_fatal: bool,
    /// Whether the trouble is over.
    #[prost(bool, tag = "6")]
    pub is_healthy: bool,
    /// A sentence for people.
    #[prost(string, tag = "7")]
    pub message: String,
    /// See [`ACTION_NONE`].
    #[prost(int32, tag = "8")]
    pub recommended_action: i32,
    /// Codes of the fault.
    #[prost(string, repeated, tag = "9")]
    pub error_code: Vec<String>,
    /// The parts that are affected.
    #[prost(message, repeated, tag = "10")]
    pub entities_impacted: Vec<Entity>,
    /// Further facts.
    #[prost(map = "string, string", tag = "11")]
    pub metadata: HashMap<String, String>,
    /// When it was noticed.
    #[prost(message, optional, tag = "12")]
    pub generated_timestamp: Option<ProtoTime>,
    /// The node's name in Kubernetes.
    #[prost(string, tag = "13")]
    pub node_name: String,
    /// Whether the node must not be cordoned.
    #[prost(message, optional, tag = "14")]
    pub quarantine_overrides: Option<BehaviourOverrides>,
    /// Whether the node must not be drained.
    #[prost(message, optional, tag = "15")]
    pub drain_overrides: Option<BehaviourOverrides>,
    /// See [`STRATEGY_STORE_ONLY`].
    #[prost(int32, tag = "16")]
    pub processing_strategy: i32,
}

/// A part that is affected.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entity {
    /// `GPU`, `PCI`.
    #[prost(string, tag = "1")]
    pub entity_type: String,
    /// What identifies the part: of `PCI` its PCI address.
    #[prost(string, tag = "2")]
    pub entity_value: String,
}

/// What is done in any case, or in none.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct BehaviourOverrides {
    /// In any case.
    #[prost(bool, tag = "1")]
    pub force: bool,
    /// In none.
    #[prost(bool, tag = "2")]
    pub skip: bool,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ProtoTime {
    /// Seconds since 1970, in UTC.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Of the second.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl From<Timestamp> for ProtoTime {
    fn from(at: Timestamp) -> Self {
        Self { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
    }
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Empty {}

impl HealthEvents {
    /// With the version of the protocol.
    pub fn new(mut events: Vec<HealthEvent>) -> Self {
        events.iter_mut().for_each(|event| event.version = VERSION);
        Self { version: VERSION, events }
    }
}

/// Why events were not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryError {
    /// There is no such socket: no connector runs on this node.
    Absent,
    /// There was no answer in time.
    TimedOut(Duration),
    /// Any other failure.
    Failed(String),
}

impl fmt::Display for DeliveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("there is no such socket"),
            Self::TimedOut(patience) => write!(f, "no answer within {} s", patience.as_secs()),
            Self::Failed(error) => f.write_str(error),
        }
    }
}

impl From<Status> for DeliveryError {
    fn from(status: Status) -> Self {
        let message = status.message().chars().filter(|c| !c.is_control());
        let message: String = message.take(MOST_ERROR_CHARS).collect();
        Self::Failed(format!("{:?}: {message}", status.code()))
    }
}

/// Has the connector at a socket take events. The connection is made anew each time: connectors
/// restart, and events are rare. `patience`: the time for connecting, and for the answer.
///
/// # Errors
/// No connector is there, it refuses, or is late.
pub async fn report(
    socket: &Path,
    events: HealthEvents,
    patience: Duration,
) -> Result<(), DeliveryError> {
    let stream = match timeout(patience, UnixStream::connect(socket)).await {
        Err(_) => return Err(DeliveryError::TimedOut(patience)),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            return Err(DeliveryError::Absent);
        }
        Ok(Err(error)) => return Err(DeliveryError::Failed(error.to_string())),
        Ok(Ok(stream)) => stream,
    };
    let mut stream = Some(stream);
    let connector = tower::service_fn(move |_: Uri| {
        let stream = stream.take().map(TokioIo::new);
        // Once: a connection that has ended is not made anew.
        std::future::ready(stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    });
    let answer = async {
        let endpoint = Endpoint::from_static("http://localhost");
        let channel = endpoint.connect_with_connector(connector).await;
        let channel = channel.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut client = Grpc::new(channel).max_decoding_message_size(MOST_ANSWER_BYTES);
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let codec: ProstCodec<_, Empty> = ProstCodec::default();
        let path = PathAndQuery::from_static(OCCURRED);
        client.unary(Request::new(events), path, codec).await
    };
    match timeout(patience, answer).await {
        Err(_) => Err(DeliveryError::TimedOut(patience)),
        Ok(answered) => Ok(answered.map(drop)?),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn a_connector_that_accepts_no_call_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nvsentinel.sock");
        let _silent = UnixListener::bind(&socket).unwrap();
        let patience = Duration::from_millis(50);
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let reported = runtime.block_on(report(&socket, HealthEvents::new(Vec::new()), patience));
        assert_eq!(reported, Err(DeliveryError::TimedOut(patience)));
    }
}
