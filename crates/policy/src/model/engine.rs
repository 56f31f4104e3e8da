//! Inference engines: what is found of them, and where in their life they are.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::names::named;
use super::{
    ContainerRuntime, EngineKeys, EngineLoad, ExitStatus, Pod, Proof, Reading, UserUnit,
    WorkloadLog,
};

/// One process for as long as it lives: a number alone is given to another one after its end.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ProcessId {
    /// Its number, as the host counts.
    pub pid: u32,
    /// When it started, in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pid.fmt(f)
    }
}

// The facts of each are in `engines`, in the same order.
named! {
    /// The kind of an inference engine.
    #[derive(Default)]
    pub enum EngineKind {
        /// SGLang.
        Sglang = "sglang",
        /// vLLM.
        Vllm = "vllm",
        /// Ollama, with the runners that it starts.
        Ollama = "ollama",
        /// `llama-server` of llama.cpp.
        LlamaServer = "llama_server",
        /// ComfyUI.
        ComfyUi = "comfyui",
        /// TensorRT-LLM.
        TensorRtLlm = "tensorrt_llm",
        /// NVIDIA Triton.
        Triton = "triton",
        /// LMDeploy.
        Lmdeploy = "lmdeploy",
        /// Hugging Face's text-generation-inference.
        Tgi = "tgi",
        /// NVIDIA Dynamo, with the engines below its workers.
        Dynamo = "dynamo",
        /// TabbyAPI, which serves ExLlama.
        TabbyApi = "tabbyapi",
        /// LM Studio, and its daemon without a desktop.
        LmStudio = "lm_studio",
        /// LocalAI, with the backends that it starts.
        LocalAi = "localai",
        /// A node of exo.
        Exo = "exo",
        /// ds4, which serves DeepSeek V4 alone.
        Ds4 = "ds4",
        /// mistral.rs.
        MistralRs = "mistralrs",
        /// vllm.rs.
        VllmRs = "vllm_rs",
        /// Something else, which the configuration declares.
        #[default]
        Declared = "declared",
    }
}

named! {
    /// The phase of an engine. A loading engine may be stuck.
    #[derive(Default)]
    pub enum EnginePhase {
        /// Its processes exist; it does not load weights yet.
        #[default]
        Starting = "starting",
        /// It reads or maps its model, allocates memory, or prepares itself.
        Loading = "loading",
        /// It accepts requests.
        Ready = "ready",
        /// It works on requests.
        Serving = "serving",
        /// Some of its processes are gone, or it no longer responds and returns memory.
        Stopping = "stopping",
        /// It has no process left.
        Gone = "gone",
    }
}

impl EnginePhase {
    /// Whether it accepts requests.
    pub fn is_up(self) -> bool {
        matches!(self, Self::Ready | Self::Serving)
    }

    /// Whether it ends, or has ended.
    pub fn is_ending(self) -> bool {
        matches!(self, Self::Stopping | Self::Gone)
    }
}

/// One process of an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineProcess {
    /// Its pid and start time.
    #[serde(flatten)]
    pub id: ProcessId,
    /// Its parent's number.
    pub parent: u32,
    /// 15 bytes of its own choosing; what is not printable is escaped.
    pub comm: Arc<str>,
    /// `R`, `S`, `D`, `Z`, …
    pub state: char,
    /// Whether it is exiting and returns its memory. The driver may need seconds for its share.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_exiting: bool,
    /// CPU time that it has used, in milliseconds.
    pub cpu_ms: u64,
    /// Anonymous memory (`RssAnon`).
    pub anon_bytes: Reading<u64>,
    /// Resident pages of mapped files (`RssFile`).
    pub file_bytes: Reading<u64>,
    /// Resident shared memory (`RssShmem`).
    pub shmem_bytes: Reading<u64>,
    /// Pages of the hugetlb pool (`HugetlbPages`), which are in no RSS.
    pub hugetlb_bytes: Reading<u64>,
    /// Bytes read from storage (`read_bytes`), without those found in the page cache.
    pub read_bytes: Reading<u64>,
    /// Bytes read by read(2) and similar calls (`rchar`), from storage or not.
    pub read_chars: Reading<u64>,
    /// Number of model files that it maps.
    pub mapped_files: Reading<u32>,
    /// Mapped bytes of model files.
    pub mapped_bytes: Reading<u64>,
    /// How many model files it has open.
    pub open_files: Reading<u32>,
    /// How many files of the NVIDIA driver it has open (`/dev/nvidia*`).
    #[serde(default = "unsupported")]
    pub open_devices: Reading<u32>,
}

impl EngineProcess {
    /// A process with anonymous memory alone, as tests need it.
    pub fn holding(id: ProcessId, comm: &str, anon_bytes: u64) -> Self {
        Self {
            id,
            parent: 1,
            comm: Arc::from(comm),
            state: 'S',
            is_exiting: false,
            cpu_ms: 0,
            anon_bytes: Reading::Value(anon_bytes),
            file_bytes: Reading::Value(0),
            shmem_bytes: Reading::Value(0),
            hugetlb_bytes: Reading::Unsupported,
            read_bytes: Reading::Value(0),
            read_chars: Reading::Value(0),
            mapped_files: Reading::Value(0),
            mapped_bytes: Reading::Value(0),
            open_files: Reading::Value(0),
            open_devices: Reading::Value(0),
        }
    }

    /// All that is resident (`VmRSS`).
    pub fn rss_bytes(&self) -> Reading<u64> {
        let file = self.anon_bytes.zip(self.file_bytes).map(|(one, other)| one + other);
        file.zip(self.shmem_bytes).map(|(one, other)| one + other)
    }
}

/// The rank of an engine on one node, where it spans several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineRank {
    /// What all its ranks have in common: the address at which they meet (`HOST:PORT`), or the
    /// session of the Ray cluster and the job.
    pub gang: Arc<str>,
    /// The number of this rank, from 0, where it is known. The first one serves requests.
    pub rank: Option<u32>,
    /// The number of ranks, where it is known.
    pub ranks: Option<u32>,
}

/// A rank of an engine on another node of the cluster, as that node reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStatus {
    /// Name of the node that reports the rank.
    pub node: Arc<str>,
    /// Name of the engine there.
    pub engine: Arc<str>,
    /// The number of the rank, or `unknown`.
    pub rank: Arc<str>,
    /// Phase of the rank's engine on that node.
    pub phase: EnginePhase,
}

impl fmt::Display for RankStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank.parse::<u32>() {
            Ok(number) => write!(f, "rank {number} on {} is {}", self.node, self.phase),
            Err(_) => write!(f, "a rank on {} is {}", self.node, self.phase),
        }
    }
}

/// An engine, as found by a scan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineSeen {
    /// Its name: of the configuration, or of its kind and port. Unique on the node.
    pub name: Arc<str>,
    /// The kind of engine, by its processes; `Declared` where these do not show it.
    pub kind: EngineKind,
    /// The main process. Another main process means another run of the engine.
    pub server: ProcessId,
    /// All of its processes, the server first, then by number.
    pub processes: Vec<EngineProcess>,
    /// Why these processes are this engine, for people.
    pub found_by: Arc<str>,
    /// The server's control group, below the root of its hierarchy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Arc<str>>,
    /// Id of its container, confirmed by the container's supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Arc<str>>,
    /// Id of the container that its control group names, not confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_container: Option<Arc<str>>,
    /// Name of that container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_name: Option<Arc<str>>,
    /// The runtime that reports its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<ContainerRuntime>,
    /// Why the own runtime of a user, which may run its container, cannot be queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_error: Option<Arc<str>>,
    /// Its pod, confirmed by the container's runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Arc<Pod>>,
    /// The unit of the system's systemd that it runs in; one of a user's own systemd is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Arc<str>>,
    /// The service of a user's own systemd that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_unit: Option<UserUnit>,
    /// The service of the system whose `docker run` runs its container in the foreground.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_unit: Option<Arc<str>>,
    /// The model, as its command line names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// Its server's arguments, one a line, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Arc<str>>,
    /// The image of its container, as the container's supervisor names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Arc<str>>,
    /// Its model files: absolute paths or globs, as the engine itself sees them (in a container,
    /// below `/proc/PID/root`). From the configuration, or from what it maps and has open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub model_files: Vec<Arc<str>>,
    /// The port that it serves on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// URL of its health check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_url: Option<Arc<str>>,
    /// The network namespace (`net:[4026532184]`) of that URL, if it is not our own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_network: Option<Arc<str>>,
    /// Whether a socket listens on that port, in the engine's network namespace.
    #[serde(default = "unsupported")]
    pub is_listening: Reading<bool>,
    /// Size of its log, where it is a readable file.
    #[serde(default = "unsupported")]
    pub log_bytes: Reading<u64>,
    /// Time without progress after which a loading engine is stuck.
    pub stuck_after: Duration,
    /// Whether `umawarden launch` has started it. It is then loading from its start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_launched: bool,
    /// Whether the main process is only a worker whose server had ended before the first scan.
    /// These processes are orphans of an engine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_left_behind: bool,
    /// Locations of the keys that it requires.
    #[serde(default, skip_serializing_if = "EngineKeys::is_empty")]
    pub keys: EngineKeys,
    /// The user that the server runs as, where all of its user ids agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// What proves its container or unit.
    #[serde(default, skip_serializing_if = "Proof::is_claimed")]
    pub proof: Proof,
    /// Its rank in an engine that spans nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<EngineRank>,
}

impl EngineSeen {
    /// The id of its container, if the system's runtimes report it: a user's own runtime may report
    /// any id.
    pub fn system_container(&self) -> Option<&Arc<str>> {
        self.container.as_ref().filter(|_| self.runtime_user().is_none())
    }

    /// The id of the container that it only claims, or that a user's own runtime reports.
    pub fn unproven_container(&self) -> Option<&Arc<str>> {
        let of_user = self.container.as_ref().filter(|_| self.runtime_user().is_some());
        self.claimed_container.as_ref().or(of_user)
    }

    /// The user whose own runtime reports its container.
    pub fn runtime_user(&self) -> Option<u32> {
        self.runtime.as_ref().and_then(|runtime| runtime.user)
    }

    /// Its service and control group. Services of a user's own systemd and containers do not count.
    pub fn service(&self) -> Option<(&Arc<str>, &Arc<str>)> {
        let unit = self.unit.as_ref().filter(|unit| unit.ends_with(".service"))?;
        let cgroup = self.cgroup.as_ref()?;
        let is_users = cgroup.split('/').any(|part| part.starts_with("user@"));
        let is_contained = self.container.is_some() || self.claimed_container.is_some();
        (!is_contained && !is_users).then_some((unit, cgroup))
    }

    /// An engine with these facts only. It is never stuck.
    pub fn new(
        name: Arc<str>,
        kind: EngineKind,
        server: ProcessId,
        processes: Vec<EngineProcess>,
        found_by: Arc<str>,
    ) -> Self {
        Self {
            name,
            kind,
            server,
            processes,
            found_by,
            cgroup: None,
            container: None,
            claimed_container: None,
            container_name: None,
            runtime: None,
            runtime_error: None,
            pod: None,
            unit: None,
            user_unit: None,
            client_unit: None,
            model: None,
            arguments: None,
            image: None,
            model_files: Vec::new(),
            port: None,
            health_url: None,
            health_network: None,
            is_listening: Reading::Unsupported,
            log_bytes: Reading::Unsupported,
            stuck_after: Duration::MAX,
            is_launched: false,
            is_left_behind: false,
            keys: EngineKeys::default(),
            uid: None,
            proof: Proof::Claimed,
            rank: None,
        }
    }
}

fn unsupported<T>() -> Reading<T> {
    Reading::Unsupported
}

/// All engines of one scan of the processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineReadings {
    /// Start of the scan, on the uptime clock.
    pub read_at: Duration,
    /// The found engines, sorted by name.
    pub engines: Vec<EngineSeen>,
    /// Whether an engine beyond the limit may take memory. It has worked in the last 10 s, and has
    /// 64 MiB or the driver open, or that could not be read. Idle engines beyond the limit do not
    /// set this.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
    /// Whether the scan was limited to known engines, or some wait for their names. There may be
    /// engines that are not reported.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_partial: bool,
    /// Servers of the previous scan that run and are no engines any more, since they are no longer
    /// declared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turned: Vec<ProcessId>,
    /// Processes of engines that have ended since the previous scan, where their exit status is
    /// known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<ProcessEnd>,
    /// The last output of servers that have ended since the previous scan, where they wrote to
    /// files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<LastOutput>,
    /// Workers that Ray's memory monitor has killed since the previous scan, by the logs of their
    /// raylets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ray_kills: Vec<RayKill>,
}

/// A worker that Ray's memory monitor has killed, by the log of its raylet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RayKill {
    /// Pid and start time of the worker.
    pub id: ProcessId,
    /// The main process of its engine when it was seen last.
    pub server: ProcessId,
    /// Name of the worker.
    pub comm: Arc<str>,
    /// The first scan without it, on the uptime clock.
    pub ended_at: Duration,
    /// The line of the log that names it.
    pub line: String,
}

/// The last lines that a server wrote to files as its output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastOutput {
    /// The main process whose output this is.
    pub server: ProcessId,
    /// The lines, the newest last; or why they are unknown.
    pub log: WorkloadLog,
}

/// The end of a process of an engine, as the kernel reports it to processes other than its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEnd {
    /// Pid and start time of the process.
    pub id: ProcessId,
    /// The main process of its engine.
    pub server: ProcessId,
    /// Name of the process.
    pub comm: Arc<str>,
    /// Exit code or signal.
    pub status: ExitStatus,
}

/// The result of a health check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum HealthResponse {
    /// It accepts requests.
    Ready,
    /// It reports that it is not ready.
    NotReady {
        /// The HTTP status.
        status: u16,
    },
    /// The connection was refused.
    Refused,
    /// There was no response in time.
    TimedOut,
    /// The request failed, or the response was unexpected.
    Failed {
        /// The error, for people.
        error: String,
    },
}

/// A health check of an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineHealth {
    /// Name of the engine.
    pub engine: Arc<str>,
    /// Its main process, which identifies the run.
    pub server: ProcessId,
    /// Time of the request, on the uptime clock.
    pub asked_at: Duration,
    /// The result.
    #[serde(flatten)]
    pub answer: HealthResponse,
    /// Running and waiting requests, where it reports them.
    #[serde(default = "unsupported")]
    pub requests: Reading<u64>,
    /// Its load, where it reports it.
    #[serde(default, skip_serializing_if = "EngineLoad::is_empty")]
    pub load: EngineLoad,
    /// Why the request was sent without its key, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_withheld: Option<Arc<str>>,
}

/// An engine that `umawarden launch` has started: that process, and all below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchedEngine {
    /// Name of the engine.
    pub name: Arc<str>,
    /// The process at its head.
    pub head: ProcessId,
}

/// An engine that the configuration declares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredEngine {
    /// Name of the engine.
    pub name: Arc<str>,
    /// Which processes are its; all that is written must hold of the same process.
    pub matches: EngineMatch,
    /// Its model files: absolute paths or globs.
    pub model_files: Vec<Arc<str>>,
    /// URL of its health check.
    pub health: Option<Arc<str>>,
    /// Time without progress after which a loading engine is stuck.
    pub stuck_after: Option<Duration>,
    /// Locations of the keys that it requires.
    #[serde(default, skip_serializing_if = "EngineKeys::is_empty")]
    pub keys: EngineKeys,
}

/// What the processes of a declared engine have in common. Every text is a glob.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineMatch {
    /// Their name, of at most 15 bytes.
    pub comm: Option<Arc<str>>,
    /// Their arguments, joined by blanks.
    pub cmdline: Option<Arc<str>>,
    /// The systemd unit that they run in.
    pub unit: Option<Arc<str>>,
    /// The container's id, or its name.
    pub container: Option<Arc<str>>,
    /// The namespace of their pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Arc<str>>,
    /// Labels of the container or its pod; the keys are as they are.
    pub labels: Vec<(Arc<str>, Arc<str>)>,
}
