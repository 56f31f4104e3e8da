//! GPUs, as the NVIDIA driver tells of them, and whether it tells anything at all.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Reading;
use super::names::named;

/// How it stands with the NVIDIA driver. That it does not answer is a signal of its own: while the
/// driver waits for memory, whoever asks it waits behind its lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum GpuDriver {
    /// There is none to ask, or it has no GPU.
    Absent {
        /// What is missing.
        why: Arc<str>,
    },
    /// Nobody can tell: it is asked for the first time, or cannot be asked.
    Unknown {
        /// Why.
        why: Arc<str>,
    },
    /// It has answered the last question, be it with an error.
    Responsive,
    /// It has not answered in time, and still does not.
    Silent {
        /// When it was asked, on the uptime clock.
        since: Duration,
        /// What the process that asks does, as `/proc/PID/stat` has it: `D` hangs in the kernel.
        process_state: Option<char>,
    },
}

impl GpuDriver {
    /// Whether it answers; `None` where that is not known, or where there is none.
    pub fn is_responsive(&self) -> Option<bool> {
        match self {
            Self::Absent { .. } | Self::Unknown { .. } => None,
            Self::Responsive => Some(true),
            Self::Silent { .. } => Some(false),
        }
    }
}

/// What is known of the driver now, and what it has answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuReadings {
    /// When this was so, on the uptime clock.
    pub read_at: Duration,
    /// How it stands with the driver.
    pub driver: GpuDriver,
    /// When it answered last, on the uptime clock; an error is an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_at: Option<Duration>,
    /// The processes of this program that have the driver open, or hang in it: the one that asks,
    /// and those that were given up. They are no holders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub askers: Vec<u32>,
    /// What it has answered, if this is an answer; what was answered before still stands otherwise,
    /// and is as old as `answered_at` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picture: Option<Arc<GpuPicture>>,
}

/// Everything of every GPU, as one answer told it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuPicture {
    /// The driver's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<Arc<str>>,
    /// The version of NVML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvml_version: Option<Arc<str>>,
    /// The GPUs, in the driver's order.
    pub devices: Vec<GpuDevice>,
    /// Whether there are more GPUs, instances or processes than are told here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

/// Superchips whose GPU's memory is a NUMA node, by their names.
const COHERENT: [&str; 4] = ["GH200", "GB200", "GB300", "GH300"];

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuDevice {
    /// Its place in the driver's order.
    pub index: u32,
    /// What it is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// What it is known by over reboots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Arc<str>>,
    /// Where it is: domain, bus, device, function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<Arc<str>>,
    /// Who may compute on it: `default`, `exclusive_process` or `prohibited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_mode: Option<Arc<str>>,
    /// Memory of its own. Where it shares the machine's, the driver has none to tell.
    pub memory: GpuMemory,
    /// The share of time in which it computed, from 0 to 1.
    pub utilization: Reading<f64>,
    /// The share of time in which its own memory was read or written, from 0 to 1.
    pub memory_utilization: Reading<f64>,
    /// In degrees Celsius.
    pub temperature_celsius: Reading<f64>,
    /// What it takes.
    pub power_watts: Reading<f64>,
    /// Who has memory of it, each process once an instance.
    pub processes: Reading<Vec<GpuProcess>>,
    /// Whether it is parted into instances (MIG).
    pub is_mig: Reading<bool>,
    /// Its parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<GpuInstance>,
    /// What is wrong with it.
    pub health: GpuHealth,
    /// What could not be read this time, and why, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Arc<str>>,
}

/// Memory of a GPU's own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuMemory {
    /// All of it.
    pub total_bytes: Reading<u64>,
    /// Taken. Together with what is free it is less than all: the driver keeps some for itself.
    pub used_bytes: Reading<u64>,
    /// Left.
    pub free_bytes: Reading<u64>,
}

impl GpuMemory {
    /// None that the driver knows of.
    pub const UNSUPPORTED: Self = Self {
        total_bytes: Reading::Unsupported,
        used_bytes: Reading::Unsupported,
        free_bytes: Reading::Unsupported,
    };

    /// Not told this time.
    pub const FAILED: Self = Self {
        total_bytes: Reading::Failed,
        used_bytes: Reading::Failed,
        free_bytes: Reading::Failed,
    };
}

/// A process that has memory of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Its number, in the PID namespace of who asked.
    pub pid: u32,
    /// How much; within containers the driver does not say.
    pub used_bytes: Reading<u64>,
    /// Whether it computes.
    pub is_compute: bool,
    /// Whether it draws.
    pub is_graphics: bool,
    /// The GPU instance that it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    /// The compute instance that it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_instance: Option<u32>,
}

/// A part of a GPU (MIG).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuInstance {
    /// The number of the GPU instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    /// The number of the compute instance within it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_instance: Option<u32>,
    /// What it is called, with its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// What it is known by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Arc<str>>,
    /// Its memory.
    pub memory: GpuMemory,
}

/// What the driver says is wrong with a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuHealth {
    /// Uncorrected memory errors since the driver was loaded.
    pub uncorrected_errors: Reading<u64>,
    /// Whether memory waits to be put out of use, by retired pages or remapped rows, until the GPU
    /// is reset.
    pub is_repair_pending: Reading<bool>,
    /// Whether rows could not be remapped: the GPU is to be replaced.
    pub has_repair_failed: Reading<bool>,
    /// What the driver wants done.
    pub recovery: Reading<GpuRecovery>,
}

named! {
    /// What the driver wants done with a GPU so that it can go on.
    pub enum GpuRecovery {
        /// Nothing.
        None = "none",
        /// Reset the GPU.
        GpuReset = "gpu_reset",
        /// Reboot the machine.
        NodeReboot = "node_reboot",
        /// Reset all GPUs that are linked.
        DrainPeers = "drain_peers",
        /// Let it run empty, and reset it.
        DrainAndReset = "drain_and_reset",
    }
}

impl GpuDevice {
    /// The processes that the driver tells of, none where it does not tell.
    pub fn processes(&self) -> &[GpuProcess] {
        match &self.processes {
            Reading::Value(processes) => processes,
            Reading::Unsupported | Reading::Failed => &[],
        }
    }

    /// Whether it shares the machine's memory: it has none of its own that the driver could tell.
    /// `None` where the driver failed to say.
    pub fn is_unified(&self) -> Option<bool> {
        match self.memory.total_bytes {
            Reading::Value(_) => Some(false),
            Reading::Unsupported => Some(true),
            Reading::Failed => None,
        }
    }

    /// Whether its memory is a NUMA node of the machine: there it is documented as normal that
    /// memory stays counted after its process.
    pub fn is_coherent(&self) -> bool {
        let name = self.name.as_deref().unwrap_or_default();
        COHERENT.iter().any(|chip| name.contains(chip))
    }

    /// How much of its own memory is taken and laid to no process by the driver. It means nothing
    /// of what is parted, whose instances have processes of their own, nor of superchips.
    pub fn unheld_bytes(&self) -> Reading<u64> {
        if self.is_coherent() || self.is_mig == Reading::Value(true) {
            return Reading::Unsupported;
        }
        let mut of_processes = self.processes.clone().map(|_| 0u64);
        for process in self.processes() {
            of_processes =
                of_processes.zip(process.used_bytes).map(|(sum, own)| sum.saturating_add(own));
        }
        let both = self.memory.used_bytes.zip(of_processes);
        both.map(|(used, of_processes)| used.saturating_sub(of_processes))
    }
}

impl GpuPicture {
    /// The numbers of all processes that have memory of any GPU, each once, in order; `None` where
    /// the driver does not tell of each GPU who has, or not of all.
    pub fn pids(&self) -> Option<Vec<u32>> {
        let is_whole = !self.is_cut
            && self.devices.iter().all(|device| matches!(device.processes, Reading::Value(_)));
        let processes = self.devices.iter().flat_map(GpuDevice::processes);
        let mut pids: Vec<u32> = processes.map(|process| process.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        is_whole.then_some(pids)
    }

    /// How much memory a process has of all GPUs together: `Unsupported` where it has none that
    /// the driver tells of, `Failed` where the driver could not say.
    pub fn used_by(&self, pid: u32) -> Reading<u64> {
        let processes = self.devices.iter().flat_map(GpuDevice::processes);
        let own = processes.filter(|process| process.pid == pid);
        own.map(|process| process.used_bytes)
            .reduce(|one, other| one.zip(other).map(|(one, other)| one.saturating_add(other)))
            .unwrap_or(Reading::Unsupported)
    }
}
