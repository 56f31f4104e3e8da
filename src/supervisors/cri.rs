//! The container runtime interface of Kubernetes (CRI), version 1, which containerd and CRI-O
//! serve on a unix socket.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

const CONTAINER_STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";

/// A verbose status holds the container's whole OCI specification.
const MAX_STATUS_BYTES: usize = 4 << 20;

/// Why there is no response of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CriError {
    /// There is no such socket, or its server has no CRI.
    Absent,
    /// There was no response in time.
    TimedOut(Duration),
    /// Any other failure.
    Failed(String),
}

impl fmt::Display for CriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("no CRI is served there"),
            Self::TimedOut(patience) => write!(f, "no answer within {} s", patience.as_secs()),
            Self::Failed(error) => f.write_str(error),
        }
    }
}

impl From<Status> for CriError {
    fn from(status: Status) -> Self {
        match status.code() {
            // Docker's packages switch the CRI of their containerd off.
            Code::Unimplemented => Self::Absent,
            code => {
                let message = status.message().chars().filter(|c| !c.is_control());
                Self::Failed(format!("{code:?}: {}", message.take(300).collect::<String>()))
            }
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContainerStatusRequest {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(bool, tag = "2")]
    verbose: bool,
}

/// The read part of the response to `ContainerStatus`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerStatusResponse {
    /// The status of the container.
    #[prost(message, optional, tag = "1")]
    pub status: Option<ContainerStatus>,
    /// Further texts; under `info` JSON with the first process, `pid`.
    #[prost(map = "string, string", tag = "2")]
    pub info: HashMap<String, String>,
}

/// The read part of the status of a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerStatus {
    /// 64 hexadecimal digits.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its name within the pod.
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<ContainerMetadata>,
    /// 1: running.
    #[prost(int32, tag = "3")]
    pub state: i32,
    /// Its image, mostly with the digest.
    #[prost(string, tag = "9")]
    pub image_ref: String,
    /// The labels of the kubelet, and those of the pod's author.
    #[prost(map = "string, string", tag = "12")]
    pub labels: HashMap<String, String>,
}

/// The name of a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerMetadata {
    /// The name within the pod.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A connection to a runtime.
#[derive(Clone, Debug)]
pub struct Cri {
    channel: Channel,
    patience: Duration,
}

impl Cri {
    /// Connects to a socket. `patience`: the time for this and for each request.
    ///
    /// # Errors
    /// No socket is there, or the connection is refused or takes too long.
    pub async fn connect(socket: &Path, patience: Duration) -> Result<Self, CriError> {
        let path: PathBuf = socket.to_owned();
        let stream = match timeout(patience, UnixStream::connect(&path)).await {
            Err(_) => return Err(CriError::TimedOut(patience)),
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                return Err(CriError::Absent);
            }
            Ok(Err(error)) => return Err(CriError::Failed(error.to_string())),
            Ok(Ok(stream)) => stream,
        };
        let mut stream = Some(stream);
        let connector = tower::service_fn(move |_: Uri| {
            let stream = stream.take().map(TokioIo::new);
            // Once: a connection that has ended is not made anew.
            std::future::ready(stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
        });
        let endpoint = Endpoint::from_static("http://localhost");
        let connected = timeout(patience, endpoint.connect_with_connector(connector)).await;
        let channel = connected.map_err(|_| CriError::TimedOut(patience))?;
        let channel = channel.map_err(|error| CriError::Failed(error.to_string()))?;
        Ok(Self { channel, patience })
    }

    /// The status of the container with that id; `None`: the runtime has none.
    ///
    /// # Errors
    /// The runtime fails, its response has more than 4 MiB, or is late.
    pub async fn container_status(
        &self,
        id: &str,
    ) -> Result<Option<ContainerStatusResponse>, CriError> {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
        let response = async {
            let mut client =
                Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_STATUS_BYTES);
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec: ProstCodec<_, ContainerStatusResponse> = ProstCodec::default();
            let path = PathAndQuery::from_static(CONTAINER_STATUS);
            client.unary(Request::new(request), path, codec).await
        };
        match timeout(self.patience, response).await {
            Err(_) => Err(CriError::TimedOut(self.patience)),
            Ok(Err(status)) if status.code() == Code::NotFound => Ok(None),
            Ok(Err(status)) => Err(status.into()),
            Ok(Ok(response)) => Ok(Some(response.into_inner())),
        }
    }
}
