//! Faults that the kernel log reports, typed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A fault, with its time and its record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggedEvent {
    /// The fault.
    #[serde(flatten)]
    pub kind: KernelEvent,
    /// Wall time, if the log has it.
    pub utc: Option<Timestamp>,
    /// Sequence number of the record that completed the event. `None`: the log has none.
    pub seq: Option<u64>,
}

/// Which memory a failed driver allocation was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Not in the text.
    Any,
    /// Host memory.
    System,
    /// Memory of a discrete GPU.
    Vram,
}

/// The recovery that Xid 154 requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// No recovery.
    None,
    /// Reset the GPU.
    GpuReset,
    /// Reboot the node.
    NodeReboot,
    /// Drain peer-to-peer traffic.
    DrainP2p,
    /// Drain, then reset.
    DrainAndReset,
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OomConstraint {
    /// The whole machine.
    None,
    /// A cgroup's limit.
    Memcg,
    /// A cpuset's nodes.
    Cpuset,
    /// A NUMA policy's nodes.
    MemoryPolicy,
}

/// What shows that a GPU is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuLossSign {
    /// Its registers cannot be read.
    OffBus,
    /// The driver says that it must be reset.
    ResetRequired,
    /// Its system processor (GSP) does not respond.
    GspTimeout,
}

/// What the kernel could do about a damaged page (`action_name` in mm/memory-failure.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageRecovery {
    /// The page is no longer used.
    Recovered,
    /// The page is freed later.
    Delayed,
    /// The page stays in use.
    Ignored,
    /// The page stays in use.
    Failed,
}

/// A daemon in user space that kills processes when memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillerDaemon {
    /// `systemd-oomd`.
    #[serde(rename = "systemd-oomd")]
    SystemdOomd,
    /// `earlyoom`.
    #[serde(rename = "earlyoom")]
    Earlyoom,
    /// `nohang`.
    #[serde(rename = "nohang")]
    Nohang,
    /// Facebook's `oomd`.
    #[serde(rename = "oomd")]
    Oomd,
    /// The OOM controller of Talos Linux.
    #[serde(rename = "talos")]
    Talos,
    /// The memory monitor of Ray. Its log lines are read with those of engines.
    #[serde(rename = "ray")]
    Ray,
}

/// A fault that the kernel log reports.
#[derive(
    Clone, Debug, PartialEq, Serialize, Deserialize, strum::IntoStaticStr, strum::VariantNames,
)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum KernelEvent {
    /// The NVIDIA resource manager failed to allocate. Recovered tries are logged just the same.
    NvNoMemory {
        /// `nvCheckOkFailed`, `nvAssertFailedNoLog`, `nv_alloc_pages`, …
        function: String,
        /// GPU number, if the line names one.
        gpu: Option<u32>,
        /// Kind of the requested memory.
        pool: Pool,
        /// `mem_desc.c:1359`.
        location: Option<String>,
    },
    /// The driver could not allocate its mapping metadata, or Jetson's nvgpu or nvmap a buffer.
    NvAllocFailed {
        /// The function that failed.
        function: String,
        /// Requested size in bytes.
        bytes: u64,
    },
    /// The GPU reported an error.
    Xid {
        /// Number of the Xid, as NVIDIA's catalogue lists it.
        xid: u32,
        /// PCI address as printed, with its domain: `000f:01:00`.
        pci: String,
        /// GPU instance under MIG.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        gpu_instance: Option<u32>,
        /// Compute instance under MIG.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        compute_instance: Option<u32>,
        /// Process that caused it, if known.
        pid: Option<u32>,
        /// Name of that process, as printed.
        process: Option<String>,
        /// Required recovery; only with Xid 154.
        recovery: Option<Recovery>,
    },
    /// The UVM driver gave up until the next boot.
    UvmFatal,
    /// A GPU is gone, or must be reset, and no Xid says so.
    GpuLost {
        /// PCI address as printed, with its domain.
        pci: Option<String>,
        /// GPU number, if the line names one.
        gpu: Option<u32>,
        /// What shows it.
        sign: GpuLossSign,
    },
    /// The driver could not initialise a GPU: `RmInitAdapter failed`.
    GpuInitFailed {
        /// PCI address as printed, with its domain. Older drivers do not name it.
        pci: Option<String>,
        /// The driver's codes: `0x62:0x40:2168`. The second is the status, 0x51 is no memory.
        /// `unknown` if the line with them is missing.
        status: String,
    },
    /// The kernel's OOM killer killed a process.
    ///
    /// A trace has up to a hundred lines, and any of them may be missing: lost, cut, or left out by
    /// the kernel. The kernel writes ten traces in five seconds, and only the last line of further
    /// kills. So one `Killed process` line is a kill. An `oom-kill:` line that names its victim is
    /// a kill too if no such line follows. Facts of missing lines are `None`. The lines of one
    /// trace are one kill.
    OomKill {
        /// Pid of the victim.
        pid: u32,
        /// Name of the victim: 15 bytes that the process itself chooses.
        comm: String,
        /// Bound of the memory that ran out.
        constraint: Option<OomConstraint>,
        /// The victim's cgroup.
        memcg: Option<String>,
        /// The cgroup whose limit was hit.
        oom_memcg: Option<String>,
        /// Name of the process whose allocation failed.
        trigger_comm: Option<String>,
        /// The victim's anonymous memory.
        anon_rss_bytes: Option<u64>,
        /// Whether the trace has frames of the NVIDIA driver.
        driver: bool,
        /// Whether a person requested a kill: sysrq f.
        #[serde(skip_serializing_if = "std::ops::Not::not", default)]
        manual: bool,
        /// Container id from the cgroup's path.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        container: Option<String>,
    },
    /// Memory ran out and nothing could be killed.
    OomNoVictim,
    /// The kernel panicked because memory ran out.
    OomPanic,
    /// The memory of a killed process was reclaimed.
    OomReaped {
        /// Pid of the victim.
        pid: u32,
        /// Name of the victim.
        comm: String,
    },
    /// The memory of a killed process could not be reclaimed.
    OomUnreapable {
        /// Pid of the victim.
        pid: u32,
        /// Name of the victim.
        comm: String,
    },
    /// The page allocator gave up.
    PageAllocFailure {
        /// Name of the process that requested the pages.
        comm: Option<String>,
        /// The request was for 2^order contiguous pages.
        order: u32,
    },
    /// No contiguous block of that size was free in a region of CMA.
    CmaAllocFailed {
        /// Name of the region: `linux,cma`.
        region: Option<String>,
        /// Requested pages.
        pages: u64,
    },
    /// The hardware reported a damaged page.
    MemoryFailure {
        /// Number of the page frame: `0x8a0000`.
        frame: String,
        /// Pid of the process that got SIGBUS.
        pid: Option<u32>,
        /// Name of that process.
        comm: Option<String>,
        /// What became of the page.
        outcome: Option<PageRecovery>,
    },
    /// A CPU has not left the kernel for long.
    SoftLockup {
        /// Pid of its task.
        pid: u32,
        /// Name of its task.
        comm: String,
        /// Number of the CPU.
        cpu: u32,
        /// For so long.
        seconds: u64,
    },
    /// A CPU or task has held up read-copy-update for long.
    RcuStall {
        /// Which RCU: `rcu_preempt`.
        flavour: String,
    },
    /// A task has been in state D for long.
    HungTask {
        /// Pid of the waiting task.
        pid: u32,
        /// Name of the waiting task.
        comm: String,
        /// Time in state D.
        seconds: u64,
        /// Pid of the likely owner of the lock.
        owner_pid: Option<u32>,
        /// Name of the likely owner.
        owner_comm: Option<String>,
    },
    /// A daemon in user space killed a process or a cgroup.
    UserspaceKill {
        /// The daemon that killed.
        by: KillerDaemon,
        /// Pid of the victim, if it is a process.
        pid: Option<u32>,
        /// Name of the victim.
        comm: Option<String>,
        /// The victim's cgroup, if it is one.
        memcg: Option<String>,
    },
}

impl KernelEvent {
    /// The `event` label values, and JSON kinds, of these events.
    pub const KINDS: [&'static str; <Self as strum::VariantNames>::VARIANTS.len()] =
        *<Self as strum::VariantNames>::VARIANTS.first_chunk().expect("their own length");

    /// The kind, one of [`Self::KINDS`].
    pub fn kind(&self) -> &'static str {
        self.into()
    }
}
