//! Recent growth of memory by owner, and the evidence.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ProcessId, bytes_text};

/// Memory of one process that it does not return by itself, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Its pid and start time.
    #[serde(flatten)]
    pub id: ProcessId,
    /// 15 bytes of its own choosing; what is not printable is escaped.
    pub comm: Arc<str>,
    /// Anonymous memory (`RssAnon`).
    #[serde(default)]
    pub anon_bytes: u64,
    /// Resident shared memory (`RssShmem`).
    #[serde(default)]
    pub shmem_bytes: u64,
    /// Huge pages that it maps (`HugetlbPages`), and those of its unmapped memfds.
    #[serde(default)]
    pub hugetlb_bytes: u64,
    /// In its open pipes.
    #[serde(default)]
    pub pipe_bytes: u64,
    /// In the queues of its open sockets.
    #[serde(default)]
    pub socket_bytes: u64,
}

impl ProcessMemory {
    /// Memory that no counter of the kernel attributes to a process: huge pages, pipes and sockets.
    pub fn outside_bytes(&self) -> u64 {
        self.hugetlb_bytes.saturating_add(self.pipe_bytes).saturating_add(self.socket_bytes)
    }

    /// The sum of all kinds.
    pub fn sum_bytes(&self) -> u64 {
        self.outside_bytes().saturating_add(self.anon_bytes).saturating_add(self.shmem_bytes)
    }

    /// Adds the memory of another process, by kind.
    pub fn add(&mut self, other: &Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.anon_bytes, other.anon_bytes);
        add(&mut self.shmem_bytes, other.shmem_bytes);
        add(&mut self.hugetlb_bytes, other.hugetlb_bytes);
        add(&mut self.pipe_bytes, other.pipe_bytes);
        add(&mut self.socket_bytes, other.socket_bytes);
    }

    /// The growth since `before`, by kind; shrinking kinds count as 0.
    #[must_use]
    pub fn growth_since(&self, before: &Self) -> Self {
        Self {
            id: self.id,
            comm: Arc::clone(&self.comm),
            anon_bytes: self.anon_bytes.saturating_sub(before.anon_bytes),
            shmem_bytes: self.shmem_bytes.saturating_sub(before.shmem_bytes),
            hugetlb_bytes: self.hugetlb_bytes.saturating_sub(before.hugetlb_bytes),
            pipe_bytes: self.pipe_bytes.saturating_sub(before.pipe_bytes),
            socket_bytes: self.socket_bytes.saturating_sub(before.socket_bytes),
        }
    }
}

/// The owner of memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "owner", rename_all = "snake_case")]
pub enum Owner {
    /// An inference engine.
    Engine {
        /// Name of the engine.
        name: Arc<str>,
    },
    /// A process of no engine.
    Process {
        /// Pid and start time.
        #[serde(flatten)]
        id: ProcessId,
        /// Name of the process, which it chooses itself.
        comm: Arc<str>,
    },
    /// All processes of no engine that the driver names.
    DriverOther,
    /// Sockets in the kernel's counter, beyond the known open ones of processes.
    Sockets,
    /// Processes that are not listed one by one.
    SmallerProcesses,
    /// Shared memory and tmpfs beyond what a process maps.
    SharedMemory,
    /// Slab, page tables, vmalloc, unused huge pages.
    Kernel,
    /// No known owner.
    Unattributed,
}

impl Owner {
    /// The `owner` label: of all processes alike, since no process names a series.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Engine { .. } => "engines",
            Self::Process { .. } => "other_processes",
            Self::DriverOther => "driver_other",
            Self::Sockets => "sockets",
            Self::SmallerProcesses => "smaller_processes",
            Self::SharedMemory => "shared_memory",
            Self::Kernel => "kernel",
            Self::Unattributed => "unattributed",
        }
    }

    /// All values of the `owner` label.
    pub const LABELS: [&'static str; 8] = [
        "driver_other",
        "engines",
        "kernel",
        "other_processes",
        "shared_memory",
        "smaller_processes",
        "sockets",
        "unattributed",
    ];
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine { name } => write!(f, "engine {name}"),
            Self::Process { id, comm } => write!(f, "{comm} (pid {id})"),
            Self::DriverOther => f.write_str("other processes, through the driver"),
            Self::Sockets => f.write_str("sockets"),
            Self::SmallerProcesses => f.write_str("smaller processes"),
            Self::SharedMemory => f.write_str("shared memory and tmpfs"),
            Self::Kernel => {
                f.write_str("the kernel (slab, page tables, vmalloc, unused huge pages)")
            }
            Self::Unattributed => f.write_str("unattributed"),
        }
    }
}

/// The evidence for an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The driver's figures for each process.
    DriverFigures,
    /// The `/proc` files of its processes.
    Processes,
    /// No other process has the driver open, and all other memory is accounted for.
    OnlyDriverUser,
    /// A counter of the kernel.
    KernelCounter,
    /// No evidence.
    Nothing,
}

impl Basis {
    /// The text for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::DriverFigures => "by the driver's figures",
            Self::Processes => "as its processes show",
            Self::OnlyDriverUser => "as the only one with the driver open",
            Self::KernelCounter => "by the kernel's counters",
            Self::Nothing => "no evidence",
        }
    }
}

/// The growth of one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountEntry {
    /// The owner that has grown.
    #[serde(flatten)]
    pub owner: Owner,
    /// Growth in bytes.
    pub bytes: u64,
    /// The evidence; of several the one for most of it.
    pub basis: Basis,
}

impl fmt::Display for AccountEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", bytes_text(self.bytes), self.owner)?;
        match self.basis {
            Basis::Nothing => Ok(()),
            basis => write!(f, ", {}", basis.meaning()),
        }
    }
}

/// Growth of memory by owner within the last seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAccount {
    /// Time of the account, on the uptime clock.
    pub at: Duration,
    /// Length of the window.
    pub window: Duration,
    /// Growth of the whole node in the window, in bytes.
    pub grown_bytes: u64,
    /// Growth by owner, largest first; owners without growth are left out.
    pub entries: Vec<AccountEntry>,
    /// How old the driver's last figures are; `None` without any that count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_figures_age: Option<Duration>,
    /// How old the last scan of all processes is; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scan_age: Option<Duration>,
}

impl MemoryAccount {
    /// Growth of all owners with that label, in bytes.
    pub fn of_label(&self, label: &str) -> u64 {
        let own = self.entries.iter().filter(|entry| entry.owner.label() == label);
        own.map(|entry| entry.bytes).fold(0, u64::saturating_add)
    }
}
