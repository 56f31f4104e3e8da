//! Inference engines: what is found of them, and where in their life they are.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::names::named;
use super::{EngineKeys, EngineLoad, ExitStatus, Proof, Reading};

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

// What is known of each is in `src/engines`, in the same order.
named! {
    /// What serves a model.
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
        /// Something else, which the configuration declares.
        #[default]
        Declared = "declared",
    }
}

named! {
    /// Where in its life an engine is. A loading one may be stuck besides.
    #[derive(Default)]
    pub enum EnginePhase {
        /// Its processes are there; it takes no weights yet.
        #[default]
        Starting = "starting",
        /// It reads or maps its model, takes memory, or prepares itself besides.
        Loading = "loading",
        /// It can be asked.
        Ready = "ready",
        /// It answers requests.
        Serving = "serving",
        /// Some of what served is gone, or it no longer answers and gives memory back.
        Stopping = "stopping",
        /// None of its processes is left.
        Gone = "gone",
    }
}

impl EnginePhase {
    /// Whether it can be asked.
    pub fn is_up(self) -> bool {
        matches!(self, Self::Ready | Self::Serving)
    }
}

/// One process of an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineProcess {
    /// Which.
    #[serde(flatten)]
    pub id: ProcessId,
    /// Its parent's number.
    pub parent: u32,
    /// 15 bytes of its own choosing; what is not printable is escaped.
    pub comm: Arc<str>,
    /// `R`, `S`, `D`, `Z`, …
    pub state: char,
    /// Whether it ends, and gives back what it holds; the driver may take seconds for its share.
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
    /// What it had from storage (`read_bytes`); pages that it found in the cache are not in it.
    pub read_bytes: Reading<u64>,
    /// What it asked of read(2) and its like (`rchar`), from storage or not.
    pub read_chars: Reading<u64>,
    /// How many model files it maps, and how much of them it has mapped.
    pub mapped_files: Reading<u32>,
    /// How much of the model files is mapped.
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

/// One engine, as found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineSeen {
    /// Its name: of the configuration, or of its kind and port. Unique on the node.
    pub name: Arc<str>,
    /// What it is.
    pub kind: EngineKind,
    /// The process at the head of all others. Another one is another life of the engine.
    pub server: ProcessId,
    /// All of its processes, the server first, then by number.
    pub processes: Vec<EngineProcess>,
    /// Why these were taken for this engine, for people.
    pub found_by: Arc<str>,
    /// The server's control group, below the root of its hierarchy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Arc<str>>,
    /// The container that it runs in, as the container's supervisor confirms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Arc<str>>,
    /// The container that its control group names, and nobody confirms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_container: Option<Arc<str>>,
    /// What Docker calls that container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_name: Option<Arc<str>>,
    /// The unit of the system's systemd that it runs in; one of a user's own systemd is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Arc<str>>,
    /// The model, as its command line names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// Its model files: absolute paths or globs, as the engine itself sees them (in a container,
    /// below `/proc/PID/root`). From the configuration, or from what it maps and has open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub model_files: Vec<Arc<str>>,
    /// The port that it serves on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Where it is asked for its health.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_url: Option<Arc<str>>,
    /// The network namespace (`net:[4026532184]`) in which that address is meant, where it is not
    /// our own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_network: Option<Arc<str>>,
    /// Whether anything listens on that port, where the engine lives.
    #[serde(default = "unsupported")]
    pub is_listening: Reading<bool>,
    /// How long its log is, where it is a file that can be read.
    #[serde(default = "unsupported")]
    pub log_bytes: Reading<u64>,
    /// A loading engine without progress for so long is stuck.
    pub stuck_after: Duration,
    /// Whether `umawarden launch` has started it: it loads as soon as it is there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_launched: bool,
    /// Whether the process at the head is only a worker, whose server had ended before anybody
    /// looked: these are what an engine has left behind.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_left_behind: bool,
    /// Where the keys are that it asks for.
    #[serde(default, skip_serializing_if = "EngineKeys::is_empty")]
    pub keys: EngineKeys,
    /// The user that the server runs as, where all of its user ids agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Who vouches for it.
    #[serde(default, skip_serializing_if = "Proof::is_claimed")]
    pub proof: Proof,
}

impl EngineSeen {
    /// The service that it runs in, and its control group; those of a user's own systemd, and
    /// containers, are none.
    pub fn service(&self) -> Option<(&Arc<str>, &Arc<str>)> {
        let unit = self.unit.as_ref().filter(|unit| unit.ends_with(".service"))?;
        let cgroup = self.cgroup.as_ref()?;
        let is_users = cgroup.split('/').any(|part| part.starts_with("user@"));
        let is_contained = self.container.is_some() || self.claimed_container.is_some();
        (!is_contained && !is_users).then_some((unit, cgroup))
    }

    /// One of which only this is known; it is never stuck.
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
            unit: None,
            model: None,
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
        }
    }
}

fn unsupported<T>() -> Reading<T> {
    Reading::Unsupported
}

/// All engines that one look at the processes has found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineReadings {
    /// When the look began, on the uptime clock.
    pub read_at: Duration,
    /// By name.
    pub engines: Vec<EngineSeen>,
    /// Whether somebody is not told who may take memory: of more engines than are told one has
    /// worked in the last 10 s, and holds 64 MiB or has the driver open, or it could not be looked
    /// whether it has. Those that sleep are left out without this.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
    /// Whether only those were looked at that were known before, or some wait for their names: an
    /// engine may be there that is not told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_partial: bool,
    /// Servers of engines of the look before that live and are none any more, as they are no
    /// longer declared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turned: Vec<ProcessId>,
    /// Processes of engines that have ended since the look before, as far as anybody tells how.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<ProcessEnd>,
}

/// How a process of an engine ended, as the kernel tells it to who is not its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEnd {
    /// Which.
    pub id: ProcessId,
    /// The process at the head of its engine.
    pub server: ProcessId,
    /// Its name.
    pub comm: Arc<str>,
    /// How.
    pub status: ExitStatus,
}

/// What an engine answered when it was asked for its health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum HealthAnswer {
    /// It can be asked.
    Ready,
    /// It answered that it cannot.
    NotReady {
        /// The HTTP status.
        status: u16,
    },
    /// Nothing listens there.
    Refused,
    /// No answer came in time.
    TimedOut,
    /// It could not be asked, or answered something else.
    Failed {
        /// What went wrong.
        error: String,
    },
}

/// An engine was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineHealth {
    /// Which.
    pub engine: Arc<str>,
    /// In which of its lives.
    pub server: ProcessId,
    /// When it was asked, on the uptime clock.
    pub asked_at: Duration,
    /// What it said.
    #[serde(flatten)]
    pub answer: HealthAnswer,
    /// How many requests it works on, where it tells.
    #[serde(default = "unsupported")]
    pub requests: Reading<u64>,
    /// What else it tells of its work.
    #[serde(default, skip_serializing_if = "EngineLoad::is_empty")]
    pub load: EngineLoad,
    /// Why it was asked without its key, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_withheld: Option<Arc<str>>,
}

/// An engine that `umawarden launch` has started: that process, and all below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchedEngine {
    /// Its name.
    pub name: Arc<str>,
    /// The process at its head.
    pub head: ProcessId,
}

/// An engine that the configuration declares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredEngine {
    /// Its name.
    pub name: Arc<str>,
    /// Which processes are its; all that is written must hold of the same process.
    pub matches: EngineMatch,
    /// Its model files: absolute paths or globs.
    pub model_files: Vec<Arc<str>>,
    /// Where it is asked for its health.
    pub health: Option<Arc<str>>,
    /// A loading engine without progress for so long is stuck.
    pub stuck_after: Option<Duration>,
    /// Where the keys are that it asks for.
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
    /// Labels of the container; the keys are as they are.
    pub labels: Vec<(Arc<str>, Arc<str>)>,
}
