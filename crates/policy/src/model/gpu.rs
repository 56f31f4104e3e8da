//! GPUs as the NVIDIA driver reports them, and the state of the driver.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Reading;
use super::names::named;

/// The state of the NVIDIA driver. A missing response is a signal of its own: while the driver
/// waits for memory, all queries wait for its lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum GpuDriver {
    /// There is no driver, or it has no GPU.
    Absent {
        /// What is missing.
        why: Arc<str>,
    },
    /// The state is unknown: the first query is running, or queries are impossible.
    Unknown {
        /// The reason, for people.
        why: Arc<str>,
    },
    /// It has answered the last query, perhaps with an error.
    Responsive,
    /// It has not answered in time, and still does not.
    Silent {
        /// Time of the query, on the uptime clock.
        since: Duration,
        /// State of the querying process in `/proc/PID/stat`: `D` hangs in the kernel.
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

/// The state of the driver, and its last response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuReadings {
    /// Time of this report, on the uptime clock.
    pub read_at: Duration,
    /// State of the driver.
    pub driver: GpuDriver,
    /// Time of its last response, on the uptime clock; an error is a response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_at: Option<Duration>,
    /// Processes of this program that have the driver open, or hang in it: the querying one, and
    /// earlier ones that hang. They are no holders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub askers: Vec<u32>,
    /// The response, if this report is one. Otherwise the previous response is still valid, of the
    /// time `answered_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picture: Option<Arc<GpuPicture>>,
}

/// All GPUs in one response.
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
    /// Whether GPUs, instances or processes were left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

/// Superchips whose GPU's memory is a NUMA node, by their names.
const COHERENT: [&str; 4] = ["GH200", "GB200", "GB300", "GH300"];

/// A GPU, as the driver describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuDevice {
    /// Its index in the driver's order.
    pub index: u32,
    /// Product name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// Id that is stable over reboots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Arc<str>>,
    /// PCI address: domain, bus, device, function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<Arc<str>>,
    /// Compute mode: `default`, `exclusive_process` or `prohibited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_mode: Option<Arc<str>>,
    /// Memory of its own. `Unsupported` where it shares the machine's memory.
    pub memory: GpuMemory,
    /// The NUMA node that its memory is; `Unsupported` where it is none.
    #[serde(default = "unsupported")]
    pub numa_node: Reading<u32>,
    /// The share of time in which it computed, from 0 to 1.
    pub utilization: Reading<f64>,
    /// The share of time in which its own memory was read or written, from 0 to 1.
    pub memory_utilization: Reading<f64>,
    /// In degrees Celsius.
    pub temperature_celsius: Reading<f64>,
    /// Power draw.
    pub power_watts: Reading<f64>,
    /// Processes with memory on it, each once an instance.
    pub processes: Reading<Vec<GpuProcess>>,
    /// Whether it is parted into instances (MIG).
    pub is_mig: Reading<bool>,
    /// Its instances (MIG).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<GpuInstance>,
    /// Errors and pending repairs.
    pub health: GpuHealth,
    /// Failed queries of this response, with the reason, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Arc<str>>,
}

fn unsupported() -> Reading<u32> {
    Reading::Unsupported
}

/// Memory of a GPU's own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuMemory {
    /// Total size.
    pub total_bytes: Reading<u64>,
    /// Used memory. Used and free memory are less than the total: the driver reserves some.
    pub used_bytes: Reading<u64>,
    /// Free memory.
    pub free_bytes: Reading<u64>,
}

impl GpuMemory {
    /// The driver reports no memory of its own.
    pub const UNSUPPORTED: Self = Self {
        total_bytes: Reading::Unsupported,
        used_bytes: Reading::Unsupported,
        free_bytes: Reading::Unsupported,
    };

    /// The query failed.
    pub const FAILED: Self = Self {
        total_bytes: Reading::Failed,
        used_bytes: Reading::Failed,
        free_bytes: Reading::Failed,
    };
}

/// A process that has memory of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Pid in the pid namespace of the querying process.
    pub pid: u32,
    /// Its memory on the GPU; unknown within containers.
    pub used_bytes: Reading<u64>,
    /// Whether it uses CUDA.
    pub is_compute: bool,
    /// Whether it uses graphics.
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
    /// Name of its profile, with its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// Id of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Arc<str>>,
    /// Memory of the instance, as the driver reports it.
    pub memory: GpuMemory,
}

/// Errors of a GPU, as the driver reports them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuHealth {
    /// Uncorrected memory errors since the driver was loaded.
    pub uncorrected_errors: Reading<u64>,
    /// Whether retired pages or remapped rows are pending until the GPU is reset.
    pub is_repair_pending: Reading<bool>,
    /// Whether rows could not be remapped: the GPU is to be replaced.
    pub has_repair_failed: Reading<bool>,
    /// Recovery that the driver requests.
    pub recovery: Reading<GpuRecovery>,
}

impl GpuHealth {
    /// Of a driver that reports no errors.
    pub const UNSUPPORTED: Self = Self {
        uncorrected_errors: Reading::Unsupported,
        is_repair_pending: Reading::Unsupported,
        has_repair_failed: Reading::Unsupported,
        recovery: Reading::Unsupported,
    };
}

named! {
    /// The recovery action that the driver requests for a GPU.
    pub enum GpuRecovery {
        /// The driver requests no recovery.
        None = "none",
        /// Reset the GPU.
        GpuReset = "gpu_reset",
        /// Reboot the machine.
        NodeReboot = "node_reboot",
        /// Reset all linked GPUs.
        DrainPeers = "drain_peers",
        /// Drain the GPU, then reset it.
        DrainAndReset = "drain_and_reset",
    }
}

impl GpuDevice {
    /// The processes that the driver reports; empty where it reports none.
    pub fn processes(&self) -> &[GpuProcess] {
        match &self.processes {
            Reading::Value(processes) => processes,
            Reading::Unsupported | Reading::Failed => &[],
        }
    }

    /// Whether it shares the machine's memory, so that the driver reports none of its own. `None`
    /// where the query failed.
    pub fn is_unified(&self) -> Option<bool> {
        match self.memory.total_bytes {
            Reading::Value(_) => Some(false),
            Reading::Unsupported => Some(true),
            Reading::Failed => None,
        }
    }

    /// Whether its memory is a NUMA node of the machine. There, memory may stay counted after its
    /// process ends; NVIDIA documents this as normal.
    pub fn is_coherent(&self) -> bool {
        let name = self.name.as_deref().unwrap_or_default();
        COHERENT.iter().any(|chip| name.contains(chip))
    }

    /// Used memory that the driver attributes to no process. `Unsupported` for GPUs with instances,
    /// which have processes of their own, and for superchips.
    pub fn unowned_bytes(&self) -> Reading<u64> {
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
    /// Pids of all processes with memory on any GPU, sorted, each once. `None` where the list is
    /// incomplete.
    pub fn pids(&self) -> Option<Vec<u32>> {
        let is_whole = !self.is_cut
            && self.devices.iter().all(|device| matches!(device.processes, Reading::Value(_)));
        let processes = self.devices.iter().flat_map(GpuDevice::processes);
        let mut pids: Vec<u32> = processes.map(|process| process.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        is_whole.then_some(pids)
    }

    /// Memory of a process on all GPUs together. `Unsupported` where the driver reports none,
    /// `Failed` where the query failed.
    pub fn used_by(&self, pid: u32) -> Reading<u64> {
        let processes = self.devices.iter().flat_map(GpuDevice::processes);
        let own = processes.filter(|process| process.pid == pid);
        own.map(|process| process.used_bytes)
            .reduce(|one, other| one.zip(other).map(|(one, other)| one.saturating_add(other)))
            .unwrap_or(Reading::Unsupported)
    }
}
