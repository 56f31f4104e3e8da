//! The reboot of last resort: settings, orders, acts and results.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::named;
use super::{DecisionId, MemoryState, Moment, NodeDrain, Reading, RebootStage, RuleId};

/// How the machine is rebooted, and what must be true before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootSettings {
    /// The program that reboots.
    pub way: RebootWay,
    /// Time between the decision and the reboot, in which it can be cancelled.
    pub delay: Duration,
    /// Limits of reboots; all of them apply.
    pub at_most: Vec<RebootBudget>,
    /// Least uptime before a reboot.
    pub minimum_uptime: Duration,
    /// The rule for logged-in users.
    pub logged_in: LoggedInRule,
    /// Time between the warning of users and the reboot.
    pub warn_for: Duration,
    /// The rule for running engines.
    pub engines: EnginesRule,
    /// Alerts that block a reboot while they fire or are unknown.
    pub blocked_by: Vec<Arc<str>>,
    /// The lock server that lets one node of a cluster reboot at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<RebootLock>,
    /// Time after which the kernel itself reboots a wedged node whose orderly reboot hangs; `None`:
    /// never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysrq_after: Option<Duration>,
    /// Time after the boot at which the result is checked.
    pub check_after: Duration,
}

impl Default for RebootSettings {
    fn default() -> Self {
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        Self {
            way: RebootWay::Logind,
            delay: Duration::from_secs(120),
            at_most: vec![
                RebootBudget { times: 1, per: hours(6) },
                RebootBudget { times: 3, per: hours(7 * 24) },
            ],
            minimum_uptime: Duration::from_secs(1_800),
            logged_in: LoggedInRule::Hold,
            warn_for: Duration::from_secs(600),
            engines: EnginesRule::Hold,
            blocked_by: Vec::new(),
            lock: None,
            sysrq_after: None,
            check_after: Duration::from_secs(600),
        }
    }
}

/// A limit of reboots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootBudget {
    /// Most reboots within `per`.
    pub times: u32,
    /// Length of the sliding window.
    pub per: Duration,
}

/// The way in which the machine is rebooted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RebootWay {
    /// logind, or systemd where there is no logind.
    Logind,
    /// A program that watches this file: kured, the distribution.
    Sentinel {
        /// Its absolute path.
        file: PathBuf,
    },
    /// A command, executed without a shell.
    Command {
        /// Its absolute path, or a name to be found on PATH, and its arguments.
        line: Vec<String>,
    },
}

impl RebootWay {
    /// The name in the configuration and in JSON.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// Whether another program decides on the time, so that it may take hours.
    pub fn hands_over(&self) -> bool {
        !matches!(self, Self::Logind)
    }
}

impl fmt::Display for RebootWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Logind => f.write_str("logind"),
            Self::Sentinel { file } => write!(f, "the file {}", file.display()),
            Self::Command { line } => write!(f, "{}", line.join(" ")),
        }
    }
}

named! {
    /// The rule for logged-in users.
    #[derive(Default)]
    pub enum LoggedInRule {
        /// The reboot waits until they have gone.
        #[default]
        Hold = "hold",
        /// They are warned, and the reboot follows after some time.
        Warn = "warn",
    }
}

named! {
    /// The rule for running engines.
    #[derive(Default)]
    pub enum EnginesRule {
        /// The reboot waits until none runs.
        #[default]
        Hold = "hold",
        /// They are stopped one after the other.
        Drain = "drain",
    }
}

/// Who is asked before a reboot: a FleetLock server, with the id of this node there, and the API
/// server of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootLock {
    /// The lock server's base: `http://lock:8080`, or `https://…`. The protocol's paths are added
    /// to it. Empty: there is none.
    pub url: String,
    /// Trusted certificates (PEM); `None`: those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// The group that shares the slots.
    pub group: String,
    /// This node's name there; `None`: derived from the machine's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What is done to the Kubernetes node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<NodeDrain>,
}

/// One act before or after a reboot.
#[derive(
    Clone, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr, strum::VariantNames,
)]
#[serde(rename_all = "snake_case")]
pub enum RebootAct {
    /// Schedules the reboot and warns logged-in users. The reboot is scheduled when this act has
    /// ended, with any outcome: then it is in the journal.
    #[strum(serialize = "reboot")]
    Schedule(RebootPlan),
    /// Sends a text to logged-in users.
    #[strum(serialize = "warn_users")]
    WarnUsers {
        /// The text that appears on the users' terminals.
        text: String,
    },
    /// Requests the cluster's slot. `Done`: granted. `Failed`: refused, or no response.
    #[strum(serialize = "take_reboot_slot")]
    TakeSlot(RebootLock),
    /// Reboots the machine. `Done`: the request was accepted. `NotDone`: it was refused and nothing
    /// has begun, so it is tried again later. Any other outcome counts as a reboot.
    #[strum(serialize = "perform_reboot")]
    Perform(RebootOrder),
    /// Calls the reboot off: removes the sentinel file if it is ours, and informs logged-in users.
    #[strum(serialize = "call_off_reboot")]
    CallOff {
        /// The planned way.
        way: RebootWay,
        /// Why it was called off.
        why: String,
        /// Whether the reboot was already handed over.
        was_handed_over: bool,
    },
    /// Returns the cluster's slot.
    #[strum(serialize = "release_reboot_slot")]
    ReleaseSlot(RebootLock),
}

impl RebootAct {
    /// All names that [`Self::name`] gives.
    pub const NAMES: &'static [&'static str] = <Self as strum::VariantNames>::VARIANTS;

    /// The `action` label.
    pub fn name(&self) -> &'static str {
        self.into()
    }
}

/// A planned reboot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootPlan {
    /// The reason, for people.
    pub why: String,
    /// The person who ordered it; `None`: a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered_by: Option<String>,
    /// Guard rails that the person overrides.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub force: BTreeSet<RebootForce>,
    /// The boot that it ends.
    #[serde(default)]
    pub boot_id: Arc<str>,
    /// Due time, where it is known: on the uptime clock, and on the wall clock for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Moment>,
    /// The state of memory at that time.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "verdict")]
    pub memory_state: Option<MemoryState>,
    /// Memory above the baseline that no counter of the kernel names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_bytes: Option<u64>,
}

impl RebootPlan {
    /// The text for logged-in users.
    pub fn announcement(&self) -> String {
        let why = if self.why.is_empty() { "no reason was given" } else { &self.why };
        let by = self.ordered_by.as_deref().map(|by| format!(", ordered by {by}"));
        let when = self.due.map(|due| format!(" at {:.0}", due.utc)).unwrap_or_default();
        format!(
            "umawarden will reboot this machine{when}: {why}{}\nTo prevent it: umawarden reboot \
             --cancel",
            by.unwrap_or_default()
        )
    }
}

impl fmt::Display for RebootPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("reboot")?;
        if let Some(due) = self.due {
            write!(f, " at {:.0}", due.utc)?;
        }
        match self.why.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", self.why),
        }
    }
}

/// The reboot itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootOrder {
    /// The boot that it ends. In another boot nothing is done, since the reboot has happened.
    pub boot_id: Arc<str>,
    /// Orderly, or by the kernel.
    pub how: RebootMeans,
    /// The scheduled reboot.
    pub plan: RebootPlan,
}

/// The means of a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootMeans {
    /// The configured way.
    Way(RebootWay),
    /// By the kernel, at once: sysrq s, u, b. Only where the orderly way hangs.
    Sysrq,
}

impl fmt::Display for RebootAct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Schedule(plan) => plan.fmt(f),
            Self::WarnUsers { text } => write!(f, "warn_users {text:?}"),
            Self::TakeSlot(lock) => {
                write!(f, "take_reboot_slot of group {} from {}", lock.group, lock.url)
            }
            Self::Perform(order) => match &order.how {
                RebootMeans::Way(way) => write!(f, "perform_reboot by {way}: {}", order.plan.why),
                RebootMeans::Sysrq => write!(f, "perform_reboot by sysrq: {}", order.plan.why),
            },
            Self::CallOff { why, .. } => write!(f, "call_off_reboot: {why}"),
            Self::ReleaseSlot(lock) => {
                write!(f, "release_reboot_slot of group {} at {}", lock.group, lock.url)
            }
        }
    }
}

named! {
    /// Guard rails of a reboot that a person may override. The journal, the pause, the boot id and
    /// another reboot in progress cannot be overridden.
    pub enum RebootForce {
        /// `at_most`, and earlier reboots that did not help.
        Budget = "budget",
        /// `minimum_uptime`.
        Uptime = "uptime",
        /// Logged-in users, or their number is unknown.
        Users = "users",
        /// Running engines, or they are unknown. None is stopped: they end with the machine.
        Engines = "engines",
        /// An alert of `blocked_by`, or of the general `inhibited_by`.
        Alerts = "alerts",
        /// The calendar: `never_in`.
        Windows = "windows",
        /// The cluster's lock.
        Slot = "slot",
    }
}

/// A reading of the logged-in users.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggedInReadings {
    /// Time of the reading, on the uptime clock.
    pub at: Duration,
    /// The users; an empty list if there are none. `Unsupported` where the system does not report
    /// them.
    pub users: Reading<Vec<LoggedIn>>,
    /// Why they are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<str>>,
}

/// A logged-in user. No label has any of this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedIn {
    /// Name of the user.
    pub user: Arc<str>,
    /// Terminal: `pts/0`, `tty1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Arc<str>>,
    /// Time of the login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

named! {
    /// The result of a reboot, checked after the boot.
    pub enum RebootResult {
        /// Its reason is gone.
        Helped = "helped",
        /// Its reason is still there, or again.
        DidNotHelp = "did_not_help",
        /// It is unknown; it counts as if it had not helped.
        Unknown = "unknown",
        /// The machine was not rebooted: nothing happened.
        NotRebooted = "not_rebooted",
        /// It was called off after it had been handed over, and before it happened.
        CalledOff = "called_off",
    }
}

impl RebootResult {
    /// The text for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Helped => "what it was made for is gone",
            Self::DidNotHelp => "it did not help",
            Self::Unknown => "whether it helped is unknown, so it counts as if not",
            Self::NotRebooted => "the machine was not rebooted",
            Self::CalledOff => "it was called off before it happened",
        }
    }
}

/// Reboots in the journal, including those of other boots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastReboots {
    /// Id of this boot; `None`: it cannot be read, and nothing is rebooted.
    pub boot_id: Option<Arc<str>>,
    /// All attempts to reboot, with any result; oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<PastReboot>,
    /// The reboot that is scheduled in this boot and has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<ScheduledReboot>,
    /// The cluster's slot that this node may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<RebootLock>,
    /// Whether it was first requested in this boot, so that no reboot has used it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_slot_of_boot: bool,
    /// Whether the journal has no knowledge of slots: the server may have granted one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_slot_unknown: bool,
    /// Whether a person has called off the last scheduled reboot of this boot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_called_off: bool,
    /// When the journal was last lost, on the uptime clock of this boot, in milliseconds, as
    /// [`PastReboot::uptime_ms`]; `None`: never, or a person has cleared that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_ms: Option<i64>,
    /// Whether it was lost, and the time of that is not recorded yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_newly_lost: bool,
}

/// A scheduled reboot in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledReboot {
    /// The decision that has scheduled it.
    pub decision: DecisionId,
    /// Rule of the remedy.
    pub rule: RuleId,
    /// The scheduled reboot.
    pub plan: RebootPlan,
}

/// One attempt to reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastReboot {
    /// The decision's number.
    pub decision: DecisionId,
    /// Rule of the remedy.
    pub rule: RuleId,
    /// Id of the boot that it was to end.
    pub boot_id: Arc<str>,
    /// Time on the uptime clock of this boot, in milliseconds; negative: before this boot. It is
    /// the latest time that the uptimes of the boots since allow: no wall clock counts.
    pub uptime_ms: i64,
    /// Time on the wall clock, for people.
    pub utc: Timestamp,
    /// Whether there were other boots between the one that it was to end and this one. Then it is
    /// unknown whether it has helped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_long_past: bool,
    /// The scheduled reboot.
    pub plan: RebootPlan,
    /// The way, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<RebootWay>,
    /// Whether it was handed over, as far as that was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was_begun: Option<bool>,
    /// The result, where it was checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RebootResult>,
    /// Whether a person has cleared it, so that it does not count against the remedy any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cleared: bool,
}

/// The status of reboots, for people and programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootStatus {
    /// Stage of the present reboot.
    pub stage: RebootStage,
    /// The present reboot, if there is one.
    pub scheduled: Option<ScheduledReboot>,
    /// What it waits for, in words.
    pub waits_for: Option<Arc<str>>,
    /// Id of this boot; `None`: it is unknown, and nothing is rebooted.
    pub boot_id: Option<Arc<str>>,
    /// What is left of each bound, in the order of the configuration.
    pub budget: Vec<RebootBudgetLeft>,
    /// Reboots in a row that did not help.
    pub did_not_help: u32,
    /// Whether rules reboot no more until a person clears that number.
    pub is_given_up: bool,
    /// Whether a journal was lost within the longest limit, so that reboots may be missing.
    #[serde(default)]
    pub is_journal_lost: bool,
    /// Whether the cluster's slot is held, as far as is known.
    pub holds_slot: bool,
    /// The last attempt to reboot.
    pub last: Option<PastReboot>,
    /// Why the last scheduled reboot was called off.
    pub called_off: Option<Arc<str>>,
}

/// What is left of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootBudgetLeft {
    /// The bound.
    #[serde(flatten)]
    pub budget: RebootBudget,
    /// Reboots that are allowed now.
    pub left: u32,
}
