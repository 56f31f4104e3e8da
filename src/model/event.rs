//! What happened: what the kernel log said, typed, what the black box found, and what became of
//! inference engines.
//!
//! The JSON form (`kind` and the fields below) is public: `umawarden dmesg --json`,
//! `umawarden history --json` and `/api/v1/events` speak it.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    DeathReport, EnginePhase, MemoryVerdict, RebootResult, ReceivedAlert, ReceivedTurn, Release,
    RestartState,
};

/// Sequence numbers from here up were made by this program: syslog(2) shows none. A kernel cannot
/// count that far.
pub const SYSLOG_SEQ_BASE: u64 = 1 << 62;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Event {
    /// What.
    #[serde(flatten)]
    pub kind: KernelEvent,
    /// When, if the log tells.
    pub utc: Option<Timestamp>,
    /// Sequence number of the record that completed the event; with the boot id, its identity.
    /// `None` where the log carries none (plain text).
    pub seq: Option<u64>,
}

impl Event {
    /// Whether only syslog(2) shows it. A newline within a record begins a line of its own there,
    /// and unprivileged users can have one written: such an event may be forged, and nothing that
    /// acts may follow from it.
    pub fn is_claimed(&self) -> bool {
        self.kind.is_of_kernel_log() && self.seq.is_some_and(|seq| seq >= SYSLOG_SEQ_BASE)
    }
}

impl Serialize for Event {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            #[serde(flatten)]
            kind: &'a KernelEvent,
            utc: Option<Timestamp>,
            seq: Option<u64>,
            /// Why it may be forged, if it may.
            #[serde(skip_serializing_if = "Option::is_none")]
            claimed_by: Option<&'static str>,
        }
        let claimed_by = self.is_claimed().then_some("syslog");
        Written { kind: &self.kind, utc: self.utc, seq: self.seq, claimed_by }.serialize(serializer)
    }
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

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
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
    /// The boot before this one did not end in order. The black box tells it, at the first start
    /// after that; what was, is that boot's last record.
    UncleanBoot {
        /// Which boot.
        ended_boot_id: String,
        /// When its last record was written.
        last_record: Option<Timestamp>,
        /// From then until this boot began, as the wall clock says.
        gap_seconds: Option<f64>,
        /// `MemFree`.
        memory_free_bytes: Option<f64>,
        /// `MemAvailable`.
        memory_available_bytes: Option<f64>,
        /// What no counter of the kernel names.
        memory_unaccounted_bytes: Option<f64>,
        /// Share of the last 10 s in which all tasks waited for memory.
        memory_pressure_full: Option<f64>,
        /// How old the loop's last picture was: the loop stood still if it is more than a second.
        loop_age_seconds: Option<f64>,
        /// The last kernel event.
        last_event: Option<String>,
        /// The rules that fired.
        firing: Vec<String>,
    },
    /// An inference engine went from one phase of its life to another.
    EnginePhase {
        /// Its name.
        engine: String,
        /// The phase before; `None`: it was not known.
        from: Option<EnginePhase>,
        /// The phase now.
        to: EnginePhase,
        /// What shows it.
        reason: String,
        /// The number of its server.
        pid: u32,
    },
    /// An inference engine that is not ready yet makes no progress, or makes some again.
    EngineStuck {
        /// Its name.
        engine: String,
        /// Whether it is stuck now.
        stuck: bool,
        /// What shows it.
        reason: String,
        /// The number of its server.
        pid: u32,
    },
    /// Where something stands that is started again when there is memory has changed.
    EngineRestart {
        /// Its name.
        engine: String,
        /// Where it stands now.
        to: RestartState,
        /// Why.
        reason: String,
        /// The container's id, where it is one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        container: Option<String>,
    },
    /// An inference engine, or a command that was launched, has died.
    EngineDied {
        /// Of what, what proves it, and what to do.
        report: Box<DeathReport>,
    },
    /// How an inference engine that has died gave its memory back.
    EngineRelease {
        /// Its name.
        engine: String,
        /// The number of its server.
        pid: u32,
        /// How it went.
        #[serde(flatten)]
        release: Box<Release>,
    },
    /// No engine runs, and so much memory is in no counter of the kernel: the least that was steady
    /// in this boot.
    UnaccountedBaseline {
        /// So much.
        bytes: u64,
    },
    /// What the matter is with memory that nobody seems to use has changed.
    MemoryVerdict {
        /// What it is now.
        verdict: MemoryVerdict,
        /// What it was.
        before: MemoryVerdict,
        /// How much more than usual is in no counter of the kernel, where that is known.
        held_bytes: Option<u64>,
        /// What it follows from.
        evidence: Vec<String>,
    },
    /// What came of a reboot that this program has made was judged.
    RebootChecked {
        /// The number of the decision that has made it.
        decision: u64,
        /// The boot that it was to end.
        ended_boot_id: String,
        /// What came of it.
        result: RebootResult,
        /// What shows it.
        reason: String,
    },
    /// The journal was begun anew, since it was deleted, replaced or damaged: what it held of
    /// reboots is lost.
    JournalLost {
        /// The boot in which that was noticed; empty where its name is not known.
        boot_id: String,
        /// How long that had lasted, in milliseconds.
        uptime_ms: i64,
    },
    /// An alert that an Alertmanager has told of began to fire, or fires no more.
    ReceivedAlert {
        /// What has become of it.
        to: ReceivedTurn,
        /// Which, as it was told.
        #[serde(flatten)]
        alert: Arc<ReceivedAlert>,
    },
}

impl KernelEvent {
    /// The `event` label values, and JSON kinds, of all events.
    pub const KINDS: [&'static str; 22] = [
        "nv_no_memory",
        "nv_alloc_failed",
        "xid",
        "uvm_fatal",
        "oom_kill",
        "oom_no_victim",
        "oom_reaped",
        "oom_unreapable",
        "page_alloc_failure",
        "hung_task",
        "userspace_kill",
        "unclean_boot",
        "engine_phase",
        "engine_stuck",
        "engine_restart",
        "engine_died",
        "engine_release",
        "unaccounted_baseline",
        "memory_verdict",
        "reboot_checked",
        "journal_lost",
        "received_alert",
    ];

    /// How many of [`Self::KINDS`], the first ones, the kernel log tells.
    pub const OF_KERNEL_LOG: usize = 11;

    /// This event's kind, one of [`Self::KINDS`].
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NvNoMemory { .. } => "nv_no_memory",
            Self::NvAllocFailed { .. } => "nv_alloc_failed",
            Self::Xid { .. } => "xid",
            Self::UvmFatal => "uvm_fatal",
            Self::OomKill { .. } => "oom_kill",
            Self::OomNoVictim => "oom_no_victim",
            Self::OomReaped { .. } => "oom_reaped",
            Self::OomUnreapable { .. } => "oom_unreapable",
            Self::PageAllocFailure { .. } => "page_alloc_failure",
            Self::HungTask { .. } => "hung_task",
            Self::UserspaceKill { .. } => "userspace_kill",
            Self::UncleanBoot { .. } => "unclean_boot",
            Self::EnginePhase { .. } => "engine_phase",
            Self::EngineStuck { .. } => "engine_stuck",
            Self::EngineRestart { .. } => "engine_restart",
            Self::EngineDied { .. } => "engine_died",
            Self::EngineRelease { .. } => "engine_release",
            Self::UnaccountedBaseline { .. } => "unaccounted_baseline",
            Self::MemoryVerdict { .. } => "memory_verdict",
            Self::RebootChecked { .. } => "reboot_checked",
            Self::JournalLost { .. } => "journal_lost",
            Self::ReceivedAlert { .. } => "received_alert",
        }
    }

    /// Whether the kernel log tells it. Others have no number there.
    pub fn is_of_kernel_log(&self) -> bool {
        !matches!(
            self,
            Self::UncleanBoot { .. }
                | Self::EnginePhase { .. }
                | Self::EngineStuck { .. }
                | Self::EngineRestart { .. }
                | Self::EngineDied { .. }
                | Self::EngineRelease { .. }
                | Self::UnaccountedBaseline { .. }
                | Self::MemoryVerdict { .. }
                | Self::RebootChecked { .. }
                | Self::JournalLost { .. }
                | Self::ReceivedAlert { .. }
        )
    }
}
