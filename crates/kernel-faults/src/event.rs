//! Faults that the kernel log reports, typed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A fault, with its time and its record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggedEvent {
    /// What happened.
    #[serde(flatten)]
    pub kind: KernelEvent,
    /// When, if the log carries wall time.
    pub utc: Option<Timestamp>,
    /// Sequence number of the record that completed the event. `None` where the log carries none.
    pub seq: Option<u64>,
}

/// Which memory a failed driver allocation was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// The text does not tell.
    Any,
    /// Host memory.
    System,
    /// Memory of a discrete GPU.
    Vram,
}

/// What Xid 154 says is needed to recover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// Nothing.
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

/// What bounded the memory that ran out.
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

/// A daemon in user space that kills for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillerDaemon {
    /// systemd's.
    #[serde(rename = "systemd-oomd")]
    SystemdOomd,
    /// earlyoom.
    #[serde(rename = "earlyoom")]
    Earlyoom,
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
        /// `nvCheckOkFailed`, `nvAssertFailedNoLog`, …
        function: String,
        /// GPU number, if the line names one.
        gpu: Option<u32>,
        /// Which memory.
        pool: Pool,
        /// `mem_desc.c:1359`.
        location: Option<String>,
    },
    /// The driver could not allocate its mapping metadata.
    NvAllocFailed {
        /// The function that failed.
        function: String,
        /// The size that was asked for.
        bytes: u64,
    },
    /// The GPU reported an error.
    Xid {
        /// Its number.
        xid: u32,
        /// PCI address as printed, with its domain: `000f:01:00`.
        pci: String,
        /// GPU instance under MIG.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        gpu_instance: Option<u32>,
        /// Compute instance under MIG.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        compute_instance: Option<u32>,
        /// Process that it hit, if known.
        pid: Option<u32>,
        /// Its name, as printed.
        process: Option<String>,
        /// Only with 154.
        recovery: Option<Recovery>,
    },
    /// The UVM driver gave up until the next boot.
    UvmFatal,
    /// The kernel's OOM killer killed a process.
    ///
    /// A trace has up to a hundred lines, and any of them may be missing: lost, cut, or left out by
    /// the kernel, which writes ten traces in five seconds and of further kills only the last line.
    /// So one `Killed process` line is a kill, and so is an `oom-kill:` line that names its victim
    /// and is followed by no such line; what the missing lines would tell is `None`. The lines of
    /// one trace are one kill.
    OomKill {
        /// Victim.
        pid: u32,
        /// Its name: 15 bytes of its own choosing.
        comm: String,
        /// What ran out.
        constraint: Option<OomConstraint>,
        /// The victim's cgroup.
        memcg: Option<String>,
        /// The cgroup whose limit was hit.
        oom_memcg: Option<String>,
        /// Who asked for the memory.
        trigger_comm: Option<String>,
        /// The victim's anonymous memory.
        anon_rss_bytes: Option<u64>,
        /// Whether frames of the NVIDIA driver stand in the trace.
        driver: bool,
        /// Container id from the cgroup's path.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        container: Option<String>,
    },
    /// Memory ran out and nothing could be killed.
    OomNoVictim,
    /// A killed process' memory has been taken back.
    OomReaped {
        /// Victim.
        pid: u32,
        /// Its name.
        comm: String,
    },
    /// A killed process' memory could not be taken back.
    OomUnreapable {
        /// Victim.
        pid: u32,
        /// Its name.
        comm: String,
    },
    /// The page allocator gave up.
    PageAllocFailure {
        /// Who asked.
        comm: String,
        /// For 2^order pages in one block.
        order: u32,
    },
    /// A task has been in state D for long.
    HungTask {
        /// The waiter.
        pid: u32,
        /// Its name.
        comm: String,
        /// For how long.
        seconds: u64,
        /// Who likely holds the lock.
        owner_pid: Option<u32>,
        /// Its name.
        owner_comm: Option<String>,
    },
    /// A daemon in user space killed.
    UserspaceKill {
        /// Which daemon.
        by: KillerDaemon,
        /// Victim, where it is a process.
        pid: Option<u32>,
        /// Its name.
        comm: Option<String>,
        /// The victim's cgroup, where it is one.
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
