//! Processes that have the NVIDIA driver, or memory without a name in any file system, open.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::wording::bytes_text;
use super::{ProcessId, ProcessMemory, Reading};

/// A process that may keep memory of the driver allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its pid and start time.
    #[serde(flatten)]
    pub id: ProcessId,
    /// 15 bytes of its own choosing; what is not printable is escaped.
    pub comm: Arc<str>,
    /// `R`, `S`, `D`, `Z`, …
    pub state: char,
    /// How many files of the NVIDIA driver it has open or maps (`/dev/nvidia*`, `/dev/nvmap`).
    pub devices: u32,
    /// Whether it only watches the driver, or keeps it loaded.
    #[serde(default)]
    pub is_monitor: bool,
    /// How many buffers it shares with devices (dma-buf) it has open or maps.
    pub dma_buffers: u32,
    /// How many files without a name (memfd) it has open or maps.
    pub memfds: u32,
    /// How much is in those that it has open.
    pub memfd_bytes: u64,
    /// How much is in the pipes that it has open.
    #[serde(default)]
    pub pipe_bytes: u64,
    /// The container that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Arc<str>>,
    /// The systemd unit that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Arc<str>>,
}

impl Holder {
    /// One that has two files of the driver open, and nothing else.
    #[cfg(test)]
    pub(crate) fn of_driver(pid: u32, state: char) -> Self {
        Self {
            id: ProcessId { pid, start_ticks: 1 },
            comm: "python3".into(),
            state,
            devices: 2,
            is_monitor: false,
            dma_buffers: 0,
            memfds: 0,
            memfd_bytes: 0,
            pipe_bytes: 0,
            container: None,
            unit: None,
        }
    }

    /// Whether the driver may hold memory for it.
    pub fn uses_driver(&self) -> bool {
        !self.is_monitor && (self.devices > 0 || self.dma_buffers > 0)
    }

    /// Whether it waits in the kernel and cannot be ended.
    pub fn is_stuck(&self) -> bool {
        self.state == 'D'
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}", self.comm, self.id)?;
        if matches!(self.state, 'D' | 'Z') {
            write!(f, ", state {}", self.state)?;
        }
        match (&self.container, &self.unit) {
            (Some(container), _) => {
                write!(f, ", container {}", container.get(..12).unwrap_or(container))?;
            }
            (None, Some(unit)) => write!(f, ", {unit}")?,
            (None, None) => {}
        }
        f.write_str(") ")?;
        let mut held = Vec::new();
        if self.devices > 0 {
            held.push("the GPU open".to_owned());
        }
        if self.dma_buffers > 0 {
            held.push(format!("{} dma-buf open", self.dma_buffers));
        }
        if self.memfds > 0 {
            held.push(format!("{} in memfd", bytes_text(self.memfd_bytes)));
        }
        if self.pipe_bytes > 0 {
            held.push(format!("{} in pipes", bytes_text(self.pipe_bytes)));
        }
        write!(f, "has {}", held.join(", "))
    }
}

/// A task, a process or one of its threads, as `/proc` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedTask {
    /// Its own number, which the kernel log names, and when it started.
    pub id: ProcessId,
    /// `D`: it waits in the kernel, and no signal reaches it.
    pub state: char,
    /// A thread of the kernel.
    pub is_kernel: bool,
}

/// A process that this program may not inspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenProcess {
    /// Its pid and start time.
    #[serde(flatten)]
    pub id: ProcessId,
    /// CPU time that it has used, in milliseconds.
    pub cpu_ms: u64,
}

/// One scan of all processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HolderReadings {
    /// Start of the scan, on the uptime clock.
    pub read_at: Duration,
    /// All found holders, sorted by process number.
    pub holders: Vec<Holder>,
    /// Processes that were inspected, without kernel threads.
    pub processes: u32,
    /// Processes that this program may not inspect, or did not reach within its bounds. They may
    /// hold anything.
    #[serde(default)]
    pub unseen: u32,
    /// Those of them that were listed: 256 at most, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<HiddenProcess>,
    /// Whether the NVIDIA driver is loaded. `Failed` where that cannot be read.
    pub is_driver_loaded: Reading<bool>,
    /// The processes that have most memory which they do not give back by themselves, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<ProcessMemory>,
    /// The memory of TCP and UDP sockets in all network namespaces (`mem` of
    /// `/proc/net/sockstat`), in bytes.
    #[serde(default = "unsupported")]
    pub socket_bytes: Reading<u64>,
    /// The requested tasks that exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<ObservedTask>,
    /// Why there is no list, if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<str>>,
}

fn unsupported<T>() -> Reading<T> {
    Reading::Unsupported
}
