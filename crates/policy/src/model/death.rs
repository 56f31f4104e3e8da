//! The death of an engine, a container, a unit or a launched command: what it ended with, what
//! killed it, what proves that, and what to do.
//!
//! The JSON form is public: `umawarden launch`, `umawarden history --json` and `/api/v1/events`
//! speak it.

mod health;
mod ranks;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use health::LastHealth;
pub use ranks::{FirstDeath, RankDeath, RankDeaths};

use super::{
    DecisionId, EngineKind, EnginePhase, Event, KillerDaemon, OomConstraint, Pod, ProcessId,
    RuleId, counted, duration_text,
};

/// Names of the signals that Linux has on x86-64 and arm64, from 1 on.
const SIGNALS: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// The highest signal of the kernel, real-time ones included.
const MOST_SIGNALS: i32 = 64;

/// The name of a signal, or `signal N` where it has none.
pub fn signal_name(signal: i32) -> String {
    let named = usize::try_from(signal).ok().and_then(|at| SIGNALS.get(at.checked_sub(1)?));
    named.map_or_else(|| format!("signal {signal}"), |name| (*name).to_owned())
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ended_by", rename_all = "snake_case")]
pub enum ExitStatus {
    /// It exited with this code, or its supervisor reports this code.
    Code {
        /// 0 to 255.
        code: i32,
    },
    /// A signal ended it.
    Signal {
        /// Number of the signal.
        signal: i32,
    },
    /// The status is unknown.
    #[default]
    Unknown,
}

impl ExitStatus {
    /// From the status of waitpid(2), `/proc/PID/stat` and the kernel.
    pub fn from_wait(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Code { code: (status >> 8) & 0xff },
            0x7f => Self::Unknown,
            signal => Self::Signal { signal },
        }
    }

    /// The number that a shell, Docker and systemd report; for a signal, 128 plus its number.
    pub fn code(self) -> Option<i32> {
        match self {
            Self::Code { code } => Some(code),
            Self::Signal { signal } => Some(128 + signal),
            Self::Unknown => None,
        }
    }

    /// The signal that ended it, or the one that its code means: supervisors report a signal as 128
    /// plus its number. A program may exit with such a code by itself.
    pub fn signal(self) -> Option<i32> {
        match self {
            Self::Signal { signal } => Some(signal),
            Self::Code { code } => Some(code - 128).filter(|n| (1..=MOST_SIGNALS).contains(n)),
            Self::Unknown => None,
        }
    }

    /// Whether it exited with 0.
    pub fn is_success(self) -> bool {
        self == Self::Code { code: 0 }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code { code } => match self.signal() {
                Some(signal) => {
                    write!(f, "exit code {code}, which means {}", signal_name(signal))
                }
                None => write!(f, "exit code {code}"),
            },
            Self::Signal { signal } => write!(f, "{} ({signal})", signal_name(signal)),
            Self::Unknown => f.write_str("an unknown exit status"),
        }
    }
}

/// The engine, container, unit or command that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deceased {
    /// Name of the engine, else of the container, the unit, or the command.
    pub name: Arc<str>,
    /// Kind of the engine, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineKind>,
    /// Its main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ProcessId>,
    /// Its container's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Arc<str>>,
    /// Name of its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_name: Option<Arc<str>>,
    /// Its pod, confirmed by the container's runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Arc<Pod>>,
    /// Its systemd unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Arc<str>>,
    /// The user whose own Docker, Podman or systemd ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// Its control group, below the root of its hierarchy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Arc<str>>,
}

impl fmt::Display for Deceased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        let mut about: Vec<String> = self.pod.iter().map(|pod| pod.to_string()).collect();
        if let Some(name) = self.container_name.as_ref().filter(|name| **name != self.name) {
            about.push(format!("container {name}"));
        } else if let Some(id) = self.container.as_ref().filter(|id| **id != self.name) {
            about.push(format!("container {}", id.get(..12).unwrap_or(id)));
        }
        if let Some(unit) = self.unit.as_ref().filter(|unit| **unit != self.name) {
            about.push(format!("unit {unit}"));
        }
        about.extend(self.user.map(|user| format!("of user {user}")));
        about.extend(self.server.map(|server| format!("pid {server}")));
        if about.is_empty() { Ok(()) } else { write!(f, " ({})", about.join(", ")) }
    }
}

/// The cause of death.
#[derive(
    Clone, Debug, PartialEq, Serialize, Deserialize, strum::IntoStaticStr, strum::VariantNames,
)]
#[serde(tag = "by", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Killer {
    /// The kernel's OOM killer.
    KernelOom {
        /// Bound of the memory that ran out.
        constraint: Option<OomConstraint>,
        /// The control group whose limit was hit.
        cgroup: Option<String>,
        /// Process whose allocation failed.
        trigger: Option<String>,
        /// Whether the allocation was the NVIDIA driver's.
        driver: bool,
        /// Whether a person requested a kill: sysrq f.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        manual: bool,
    },
    /// A daemon in user space that kills for memory.
    UserspaceOom {
        /// The daemon that killed it.
        daemon: KillerDaemon,
    },
    /// This program: `stop_engine`.
    Umawarden {
        /// The decision, where it is known.
        decision: Option<DecisionId>,
        /// The rule that made it.
        rule: Option<RuleId>,
    },
    /// A signal of an unknown sender.
    Signal {
        /// Number of the signal.
        signal: i32,
        /// The sender, where it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sender: Option<String>,
    },
    /// It ended by itself, perhaps with a reason.
    Itself {
        /// The reason in its log.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The cause is unknown.
    Unknown {
        /// Why it is unknown.
        why: String,
    },
}

impl Killer {
    /// All names that [`Self::name`] gives.
    pub const NAMES: [&'static str; <Self as strum::VariantNames>::VARIANTS.len()] =
        *<Self as strum::VariantNames>::VARIANTS.first_chunk().expect("their own length");

    /// The name in JSON and in labels.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// Whether it was killed to free memory.
    pub fn is_for_memory(&self) -> bool {
        matches!(self, Self::KernelOom { .. } | Self::UserspaceOom { .. } | Self::Umawarden { .. })
    }
}

impl fmt::Display for Killer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KernelOom { manual: true, .. } => {
                f.write_str("the kernel's OOM killer, which a person started by sysrq f")
            }
            Self::KernelOom { constraint, cgroup, trigger, driver, manual: false } => {
                f.write_str("the kernel's OOM killer")?;
                match (constraint, cgroup) {
                    (Some(OomConstraint::Memcg), Some(path)) => {
                        write!(f, ", at the limit of control group {path}")?;
                    }
                    (Some(OomConstraint::Memcg), None) => {
                        f.write_str(", at the limit of a control group")?;
                    }
                    (Some(OomConstraint::None), _) => {
                        f.write_str(", as the machine had none left")?
                    }
                    (Some(OomConstraint::Cpuset | OomConstraint::MemoryPolicy), _) => {
                        f.write_str(", as its NUMA nodes had none left")?;
                    }
                    (None, _) => {}
                }
                if let Some(trigger) = trigger {
                    write!(f, " when {trigger} asked for memory")?;
                }
                f.write_str(if *driver { " through the NVIDIA driver" } else { "" })
            }
            Self::UserspaceOom { daemon } => write!(f, "{daemon}"),
            Self::Umawarden { rule, decision } => {
                f.write_str("umawarden's own brake")?;
                if let Some(rule) = rule {
                    write!(f, ", by rule {rule}")?;
                }
                decision.map_or(Ok(()), |decision| write!(f, " (decision {decision})"))
            }
            Self::Signal { signal, sender } => {
                let sender = sender.as_deref().unwrap_or("an unknown process");
                write!(f, "{} from {sender}", signal_name(*signal))
            }
            Self::Itself { reason: Some(reason) } => write!(f, "itself: {reason}"),
            Self::Itself { reason: None } => f.write_str("itself"),
            Self::Unknown { why } => write!(f, "something that is not known: {why}"),
        }
    }
}

/// The proof of a cause of death.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "proof", rename_all = "snake_case")]
pub enum DeathProof {
    /// An event of the kernel log or of a daemon.
    Event {
        /// The event, with its time and the number of its record.
        event: Box<Event>,
        /// Why the event is about this process.
        fits_by: String,
    },
    /// The exit status of one of its processes.
    Process {
        /// Pid of the process.
        pid: u32,
        /// Name of the process.
        comm: String,
        /// Exit code or signal.
        status: ExitStatus,
        /// The source of the status.
        reported_by: String,
    },
    /// A line of the engine's log.
    LogLine {
        /// The line, printable and cut.
        line: String,
    },
    /// A line of the log of Ray's raylet.
    RayletLine {
        /// Pid of the worker that it is about.
        pid: u32,
        /// The line, printable and cut.
        line: String,
    },
    /// A decision of this program.
    Decision {
        /// The id of the decision, if it is known.
        decision: Option<DecisionId>,
        /// Time of the act.
        acted: Option<Timestamp>,
    },
    /// A counter that only a kill moves.
    Counter {
        /// Name of the counter.
        name: String,
        /// Its increase.
        by: u64,
    },
    /// A report of Docker about its container.
    Docker {
        /// Its report.
        says: String,
    },
    /// A report of the container runtime of Kubernetes (CRI) about its container.
    Cri {
        /// Its report.
        says: String,
    },
}

/// One of its processes that was killed. The exit code of its parent may not show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KilledWorker {
    /// Pid, where it is known.
    pub pid: Option<u32>,
    /// Name of the process.
    pub comm: String,
    /// Exit code or signal.
    pub status: ExitStatus,
    /// Time from its end to that of the main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_before: Option<u64>,
}

/// A process that outlived its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivor {
    /// Pid and start time.
    #[serde(flatten)]
    pub id: ProcessId,
    /// Name of the process.
    pub comm: String,
    /// Its anonymous, shared and hugetlb memory. `None`: it could not be read.
    pub bytes: Option<u64>,
    /// Whether it was killed for that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_killed: bool,
}

/// Memory at that moment, in bytes; `None` where it could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeathMemory {
    /// `MemTotal`.
    pub total_bytes: Option<u64>,
    /// `MemFree`.
    pub free_bytes: Option<u64>,
    /// `MemAvailable`.
    pub available_bytes: Option<u64>,
    /// Memory that no counter of the kernel names, mainly the driver's.
    pub unaccounted_bytes: Option<u64>,
    /// `Shmem`.
    pub shmem_bytes: Option<u64>,
    /// `SwapFree`.
    pub swap_free_bytes: Option<u64>,
    /// Memory of its own processes in the last scan.
    pub own_bytes: Option<u64>,
}

/// The report of one death.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeathReport {
    /// The engine or command that ended.
    pub who: Deceased,
    /// Exit status of its main process.
    pub exit: ExitStatus,
    /// Time of the end.
    pub ended: Timestamp,
    /// Duration of its run.
    pub lived_seconds: Option<f64>,
    /// Its phase at the end.
    pub phase: Option<EnginePhase>,
    /// The cause of death.
    pub killer: Killer,
    /// Whether the end is a failure, independent of the exit code.
    pub is_failure: bool,
    /// Proofs of the cause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proofs: Vec<DeathProof>,
    /// Its processes that were killed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub killed_workers: Vec<KilledWorker>,
    /// Its processes that still run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orphans: Vec<Survivor>,
    /// Memory at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<DeathMemory>,
    /// The last health check before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<LastHealth>,
    /// The last lines of its log, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_lines: Vec<String>,
    /// The ends of its ranks on other nodes, where it spans nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RankDeaths>,
    /// What the reason in its log means.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What to do, the most important first.
    pub advice: Vec<String>,
    /// Facts that could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_known: Vec<String>,
}

/// A server has gone on without a worker that was killed more seconds before: most end within
/// seconds of a worker's loss.
const MISSED_WITHIN: u64 = 60;

impl DeathReport {
    /// Whether it failed with exit code 0.
    pub fn is_exit_code_a_lie(&self) -> bool {
        self.is_failure && self.exit.is_success()
    }

    /// How long before its end the first of its workers was killed; 0 if none is known. A rank
    /// dies with its worker: its server may live on for a while.
    pub fn first_worker_before(&self) -> Duration {
        let before = self.killed_workers.iter().filter_map(|worker| worker.seconds_before);
        Duration::from_secs(before.filter(|before| *before <= MISSED_WITHIN).max().unwrap_or(0))
    }

    /// What ended, and the cause, in one line.
    pub fn sentence(&self) -> String {
        let mut text = format!("{} ended", self.who);
        if let Some(seconds) = self.lived_seconds {
            let lived = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs();
            text.push_str(&format!(" after {}", duration_text(Duration::from_secs(lived))));
        }
        if let Some(phase) = self.phase {
            text.push_str(&format!(", {phase},"));
        }
        text.push_str(&format!(" with {}", self.exit));
        text.push_str(&self.killer_text());
        text.extend(self.ranks.as_ref().map(RankDeaths::text));
        if self.is_exit_code_a_lie() {
            text.push_str("; the exit code does not show it");
        }
        text
    }

    /// The reason in its log, in words: a guess where nothing shows how it ended.
    pub fn cause_text(&self) -> Option<String> {
        let is_unknown = matches!(self.killer, Killer::Unknown { .. });
        let label = if is_unknown { "its log suggests" } else { "why" };
        self.cause.as_ref().map(|cause| format!("{label}: {cause}"))
    }

    /// What killed it and its workers. A signal that did not end the main process is said to have
    /// ended a worker, or to have been a request.
    fn killer_text(&self) -> String {
        let is_of_head = |signal: i32| self.exit.signal() == Some(signal);
        let (mut text, mut by) = (String::new(), String::new());
        match &self.killer {
            Killer::Itself { reason: None } if !self.is_failure => {}
            Killer::Itself { reason: None } => text.push_str("; it ended by itself"),
            Killer::Itself { reason: Some(reason) } => {
                text.push_str(&format!("; it ended by itself: {reason}"));
            }
            Killer::Unknown { why } => text.push_str(&format!("; why is not known: {why}")),
            killer @ Killer::Signal { signal, sender: Some(_) } if !is_of_head(*signal) => {
                text.push_str(&format!("; asked to end by {killer}"));
            }
            killer @ Killer::Signal { signal, sender: None }
                if !is_of_head(*signal) && !self.killed_workers.is_empty() =>
            {
                by = format!(" by {killer}");
            }
            killer => text.push_str(&format!("; killed by {killer}")),
        }
        match self.killed_workers.as_slice() {
            [] => {}
            [one] => text.push_str(&format!("; its worker {one} was killed{by}")),
            [first, ..] => {
                let number = self.killed_workers.len() as u64;
                text.push_str(&format!(
                    "; {} of it were killed{by}, {first} first",
                    counted(number, "worker")
                ));
            }
        }
        text
    }
}

impl fmt::Display for KilledWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.comm)?;
        self.pid.map_or(Ok(()), |pid| write!(f, " (pid {pid})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_their_names_and_real_time_ones_their_number() {
        let names = [1, 2, 9, 11, 15, 28, 31].map(signal_name);
        let expected = ["SIGHUP", "SIGINT", "SIGKILL", "SIGSEGV", "SIGTERM", "SIGWINCH", "SIGSYS"];
        assert_eq!(names, expected);
        assert_eq!([0, -1, 34].map(signal_name), ["signal 0", "signal -1", "signal 34"]);
    }

    #[test]
    fn a_status_is_read_as_the_kernel_writes_it() {
        let read = |status| ExitStatus::from_wait(status);
        assert_eq!(read(0), ExitStatus::Code { code: 0 });
        assert_eq!(read(3 << 8), ExitStatus::Code { code: 3 });
        assert_eq!(read(9), ExitStatus::Signal { signal: 9 });
        assert_eq!(read(0x80 | 11), ExitStatus::Signal { signal: 11 }, "with a core dump");
        assert_eq!(read(0x137f), ExitStatus::Unknown, "stopped, not ended");
    }

    #[test]
    fn a_code_above_128_means_a_signal_where_there_is_one() {
        let signal = |code| ExitStatus::Code { code }.signal();
        assert_eq!(
            [signal(0), signal(128), signal(137), signal(143)],
            [None, None, Some(9), Some(15)]
        );
        assert_eq!([signal(193), signal(255)], [None, None]);
        assert_eq!(ExitStatus::Signal { signal: 9 }.code(), Some(137));
        assert_eq!(
            ExitStatus::Code { code: 137 }.to_string(),
            "exit code 137, which means SIGKILL"
        );
        assert_eq!(ExitStatus::Signal { signal: 15 }.to_string(), "SIGTERM (15)");
    }
}
