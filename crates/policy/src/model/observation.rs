//! Everything that the policy may learn.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::named;
use super::{
    ClusterReadings, EngineHealth, EngineReadings, Event, GpuReadings, HeldReadings,
    HolderReadings, LoggedInReadings, OperatorCommand, Outcome, Past, Pause, Reading,
    ReceivedAlerts, SYSLOG_SEQ_BASE, Schema, SeriesKey,
};

named! {
    /// Where an observation comes from; the `source` label of `uma_source_up`.
    pub enum Source {
        /// `/proc/meminfo`.
        Meminfo = "meminfo",
        /// `/proc/vmstat`.
        Vmstat = "vmstat",
        /// `/proc/zoneinfo`.
        Zoneinfo = "zoneinfo",
        /// `/proc/buddyinfo`.
        Buddyinfo = "buddyinfo",
        /// `/proc/pressure/*`.
        Pressure = "pressure",
        /// `/sys/devices/system/node/node*/meminfo`.
        Numa = "numa",
        /// `/proc/sys/vm/*`.
        Sysctl = "sysctl",
        /// `/dev/kmsg`, or what stands in for it.
        KernelLog = "kernel_log",
        /// This process itself.
        Process = "process",
        /// The journal on disk.
        Journal = "journal",
        /// This program: its counters, decisions and rule states.
        Daemon = "daemon",
        /// The black box on disk, and what it knows of the boot before.
        BlackBox = "black_box",
        /// Inference engines: `/proc/PID/*`, and what they answer.
        Engines = "engines",
        /// Docker, or what speaks its language: which containers run.
        Docker = "docker",
        /// The NVIDIA driver, through NVML.
        Gpu = "gpu",
        /// Who has the NVIDIA driver open: `/proc/PID/fd`.
        Holders = "holders",
        /// The Alertmanagers that alerts are sent to, and what of them came in.
        Alertmanager = "alertmanager",
    }
}

/// One record of the kernel log, as raw as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelRecord {
    /// The kernel's sequence number within this boot.
    pub seq: u64,
    /// Syslog facility; 0 is the kernel, everything else was written by user space.
    pub facility: u16,
    /// Syslog level, 0 (emergency) to 7 (debug).
    pub level: u8,
    /// The kernel's own clock, in microseconds since boot. It drifts from `CLOCK_MONOTONIC`.
    pub usec: u64,
    /// The task (`T123`) or CPU (`C1`) that printed it, where the kernel says so
    /// (CONFIG_PRINTK_CALLER).
    pub caller: Option<String>,
    /// Wall time: of arrival for a live record, from a fresh clock offset for an old one.
    pub utc: Timestamp,
    /// The message; bytes outside printable ASCII stand as `\xNN`, as the kernel wrote them.
    pub text: String,
    /// The ` KEY=value` lines below the message, without the leading space, newline-separated.
    pub dictionary: String,
}

impl KernelRecord {
    /// Whether it was read by syslog(2), where users can have lines written that look like the
    /// kernel's.
    pub fn is_claimed(&self) -> bool {
        self.seq >= SYSLOG_SEQ_BASE
    }
}

/// One run of one source: a value for each series of its schema.
#[derive(Clone, Debug)]
pub struct Readings {
    /// Who read.
    pub source: Source,
    /// Which series the values belong to. The same `Arc` from run to run while nothing changes, so
    /// that receivers can keep what they derived from it.
    pub schema: Arc<Schema>,
    /// One reading for each entry of `schema`, in its order.
    pub values: Vec<Reading<f64>>,
    /// How long reading took.
    pub took: Duration,
    /// Why the source is down, if it is.
    pub error: Option<Arc<str>>,
}

/// One fact for the policy.
#[derive(Clone, Debug)]
pub enum Observation {
    /// A line of the kernel log.
    KernelRecord(KernelRecord),
    /// That many records were overwritten before they could be read.
    KernelRecordsLost(u64),
    /// A record that could not be parsed was skipped.
    KernelRecordMalformed,
    /// A source has been read.
    Readings(Readings),
    /// One value of one series, where the world is declared series by series: in rule tests.
    Sample {
        /// Which series.
        series: SeriesKey,
        /// Its value.
        value: Reading<f64>,
    },
    /// A decided action has ended.
    Outcome(Outcome),
    /// A person has given an order.
    Operator(OperatorCommand),
    /// Something happened that the kernel log does not tell.
    Event(Event),
    /// The panic switch: `Some` from now on, or `None` again.
    Pause(Option<Pause>),
    /// What the journal knows of earlier runs.
    Past(Box<Past>),
    /// Somebody has looked for inference engines.
    Engines(Box<EngineReadings>),
    /// An engine was asked for its health.
    EngineHealth(Box<EngineHealth>),
    /// A supervisor has told of what is started again when there is memory.
    Held(Box<HeldReadings>),
    /// How it stands with the NVIDIA driver, and what it tells of GPUs.
    Gpu(Box<GpuReadings>),
    /// Somebody has looked who has the driver open.
    Holders(Box<HolderReadings>),
    /// Somebody has looked who is logged in.
    LoggedIn(Box<LoggedInReadings>),
    /// Somebody has posted alerts.
    ReceivedAlerts(Box<ReceivedAlerts>),
    /// Other nodes have been asked.
    Cluster(Box<ClusterReadings>),
}
