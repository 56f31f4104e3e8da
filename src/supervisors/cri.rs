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

use crate::parse::container::CriExit;

const CONTAINER_STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";
const LIST_CONTAINERS: &str = "/runtime.v1.RuntimeService/ListContainers";
const POD_SANDBOX_STATUS: &str = "/runtime.v1.RuntimeService/PodSandboxStatus";
const STOP_CONTAINER: &str = "/runtime.v1.RuntimeService/StopContainer";

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
    /// 1: running, 2: ended.
    #[prost(int32, tag = "3")]
    pub state: i32,
    /// In nanoseconds since 1970.
    #[prost(int64, tag = "5")]
    pub started_at: i64,
    /// The same; 0: it has not ended.
    #[prost(int64, tag = "6")]
    pub finished_at: i64,
    /// 128 and its number for a signal.
    #[prost(int32, tag = "7")]
    pub exit_code: i32,
    /// Its image, as a tag or its pod names it.
    #[prost(message, optional, tag = "8")]
    pub image: Option<ImageSpec>,
    /// Its image, mostly with the digest.
    #[prost(string, tag = "9")]
    pub image_ref: String,
    /// Why it has ended, in one word: `OOMKilled`.
    #[prost(string, tag = "10")]
    pub reason: String,
    /// The same for people.
    #[prost(string, tag = "11")]
    pub message: String,
    /// The labels of the kubelet, and those of the pod's author.
    #[prost(map = "string, string", tag = "12")]
    pub labels: HashMap<String, String>,
    /// The file of its log.
    #[prost(string, tag = "15")]
    pub log_path: String,
}

impl ContainerStatus {
    /// The parts that show its end.
    pub fn exit(&self) -> CriExit<'_> {
        CriExit {
            state: self.state,
            started_at: self.started_at,
            finished_at: self.finished_at,
            exit_code: self.exit_code,
            reason: &self.reason,
            message: &self.message,
        }
    }
}

/// The name of an image.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ImageSpec {
    /// The name.
    #[prost(string, tag = "1")]
    pub image: String,
}

/// The name of a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerMetadata {
    /// The name within the pod.
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListContainersRequest {
    #[prost(message, optional, tag = "1")]
    filter: Option<ContainerFilter>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContainerFilter {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListContainersResponse {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<ListedContainer>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListedContainer {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PodSandboxStatusRequest {
    #[prost(string, tag = "1")]
    pod_sandbox_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<PodSandboxStatus>,
}

/// The read part of the status of a pod's sandbox.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodSandboxStatus {
    /// 64 hexadecimal digits.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The names of its pod.
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<PodSandboxMetadata>,
    /// 0: ready, 1: not ready.
    #[prost(int32, tag = "3")]
    pub state: i32,
    /// The labels of the pod and of the kubelet.
    #[prost(map = "string, string", tag = "7")]
    pub labels: HashMap<String, String>,
}

impl PodSandboxStatus {
    /// Whether it has been stopped, and all containers of the pod with it.
    pub fn is_stopped(&self) -> bool {
        self.state != 0
    }
}

/// The names of a pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodSandboxMetadata {
    /// Name of the pod.
    #[prost(string, tag = "1")]
    pub name: String,
    /// UID of the pod, which no other pod ever has.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Namespace of the pod.
    #[prost(string, tag = "3")]
    pub namespace: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StopContainerRequest {
    #[prost(string, tag = "1")]
    container_id: String,
    /// Seconds between its stop signal and SIGKILL.
    #[prost(int64, tag = "2")]
    timeout: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StopContainerResponse {}

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

    /// The verbose status of the container with that id; `None`: the runtime has none.
    ///
    /// # Errors
    /// The runtime fails, its response has more than 4 MiB, or is late.
    pub async fn container_status(
        &self,
        id: &str,
    ) -> Result<Option<ContainerStatusResponse>, CriError> {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
        self.call(CONTAINER_STATUS, request, self.patience).await
    }

    /// The status of the container with that id, without further texts; `None`: there is none.
    ///
    /// # Errors
    /// As of [`Self::container_status`].
    pub async fn short_status(&self, id: &str) -> Result<Option<ContainerStatus>, CriError> {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let found: Option<ContainerStatusResponse> =
            self.call(CONTAINER_STATUS, request, self.patience).await?;
        Ok(found.and_then(|found| found.status).filter(|status| *status.id == *id))
    }

    /// The sandbox of the pod of the container with that id; `None`: there is none.
    ///
    /// # Errors
    /// As of [`Self::container_status`].
    pub async fn sandbox_of(&self, id: &str) -> Result<Option<PodSandboxStatus>, CriError> {
        let filter = Some(ContainerFilter { id: id.to_owned() });
        let listed: Option<ListContainersResponse> =
            self.call(LIST_CONTAINERS, ListContainersRequest { filter }, self.patience).await?;
        let mut listed = listed.unwrap_or_default().containers.into_iter();
        let Some(its) = listed.find(|one| *one.id == *id) else { return Ok(None) };
        self.sandbox(&its.pod_sandbox_id).await
    }

    /// The sandbox with that id; `None`: there is none.
    ///
    /// # Errors
    /// As of [`Self::container_status`].
    pub async fn sandbox(&self, id: &str) -> Result<Option<PodSandboxStatus>, CriError> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.to_owned() };
        let found: Option<PodSandboxStatusResponse> =
            self.call(POD_SANDBOX_STATUS, request, self.patience).await?;
        Ok(found.and_then(|found| found.status).filter(|status| *status.id == *id))
    }

    /// Stops the container with that id: its stop signal, and after the grace SIGKILL. Returns once
    /// it has ended, also where it is not there.
    ///
    /// # Errors
    /// The runtime fails, or has not ended it within the grace and the patience.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), CriError> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = StopContainerRequest { container_id: id.to_owned(), timeout };
        let patience = self.patience.saturating_add(grace);
        let _: Option<StopContainerResponse> = self.call(STOP_CONTAINER, request, patience).await?;
        Ok(())
    }

    /// A call; `None`: what it names is not there.
    async fn call<A, B>(
        &self,
        method: &'static str,
        request: A,
        patience: Duration,
    ) -> Result<Option<B>, CriError>
    where
        A: prost::Message + 'static,
        B: prost::Message + Default + 'static,
    {
        let response = async {
            let mut client =
                Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_STATUS_BYTES);
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec: ProstCodec<A, B> = ProstCodec::default();
            client.unary(Request::new(request), PathAndQuery::from_static(method), codec).await
        };
        match timeout(patience, response).await {
            Err(_) => Err(CriError::TimedOut(patience)),
            Ok(Err(status)) if status.code() == Code::NotFound => Ok(None),
            Ok(Err(status)) => Err(status.into()),
            Ok(Ok(response)) => Ok(Some(response.into_inner())),
        }
    }
}
