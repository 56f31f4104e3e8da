//! The reboot of last resort: what is ordered, what is done on the way to it, and what came of it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::named;
use super::{DecisionId, MemoryVerdict, Moment, Reading, RebootStage, RuleId};

/// How the machine is rebooted, and what must be true before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootSettings {
    /// Who does it.
    pub way: RebootWay,
    /// For so long everybody can see it and cancel it.
    pub delay: Duration,
    /// No more reboots than these; each of them counts.
    pub at_most: Vec<RebootBudget>,
    /// None earlier after a boot.
    pub minimum_uptime: Duration,
    /// What is done about people who are logged in.
    pub logged_in: LoggedInRule,
    /// How long those who were warned have.
    pub warn_for: Duration,
    /// What is done about engines that run.
    pub engines: EnginesRule,
    /// Alerts that hold a reboot back while they fire or cannot be judged.
    pub blocked_by: Vec<Arc<str>>,
    /// Who lets one node of a cluster reboot at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<RebootLock>,
    /// After so long a wedged node whose orderly reboot hangs is rebooted by the kernel itself;
    /// `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysrq_after: Option<Duration>,
    /// So long after the boot it is judged whether it has helped.
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

/// At most so many reboots in any span of so much time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootBudget {
    /// So many.
    pub times: u32,
    /// In so much time.
    pub per: Duration,
}

/// Who reboots the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RebootWay {
    /// logind, or systemd where there is no logind.
    Logind,
    /// Whoever watches this file: kured, the distribution.
    Sentinel {
        /// Its absolute path.
        file: PathBuf,
    },
    /// This program, which is called without a shell.
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

    /// Whether somebody else decides when it happens, so that it may take hours.
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

/// What is done about people who are logged in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoggedInRule {
    /// The reboot waits until they have gone.
    #[default]
    Hold,
    /// They are told, and have some time.
    Warn,
}

/// What is done about engines that run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnginesRule {
    /// The reboot waits until none runs.
    #[default]
    Hold,
    /// They are stopped, one after the other.
    Drain,
}

/// A server that speaks FleetLock, and what this node is to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootLock {
    /// Its base: `http://lock:8080`, or `https://…`. The protocol's paths are added to it.
    pub url: String,
    /// Who is trusted over TLS, as certificates in PEM; `None`: whom the system trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// The group that shares the slots.
    pub group: String,
    /// This node's name there; `None`: derived from the machine's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// One act on the way to a reboot, or behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootAct {
    /// The reboot is scheduled. To be done: those who are logged in are told. It stands from when
    /// that has ended, however it did: then it is in the journal.
    Schedule(RebootPlan),
    /// Those who are logged in are told this.
    TellUsers {
        /// What.
        text: String,
    },
    /// The cluster's slot is asked for. `Done`: granted. `Failed`: refused, or no answer.
    TakeSlot(RebootLock),
    /// The machine is rebooted. `Done`: whoever does it has agreed. `NotDone`: it was refused, and
    /// certainly nothing was begun: it is tried again later. Anything else counts as a reboot.
    Perform(RebootOrder),
    /// It was called off: the sentinel file goes if it is ours, and those who are logged in are
    /// told.
    CallOff {
        /// What had been planned.
        way: RebootWay,
        /// Why not any more.
        why: String,
        /// Whether whoever does it was already told to.
        was_handed_over: bool,
    },
    /// The cluster's slot is given back.
    ReleaseSlot(RebootLock),
}

impl RebootAct {
    /// The `action` label.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Schedule(_) => "reboot",
            Self::TellUsers { .. } => "tell_users",
            Self::TakeSlot(_) => "take_reboot_slot",
            Self::Perform(_) => "perform_reboot",
            Self::CallOff { .. } => "call_off_reboot",
            Self::ReleaseSlot(_) => "release_reboot_slot",
        }
    }

    /// All names.
    pub const NAMES: [&'static str; 6] = [
        "reboot",
        "tell_users",
        "take_reboot_slot",
        "perform_reboot",
        "call_off_reboot",
        "release_reboot_slot",
    ];
}

/// A reboot that is to come. In a rule file only `why` is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootPlan {
    /// Why, for people. In a rule file perhaps a template.
    pub why: String,
    /// The person who has ordered it; `None`: a rule did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered_by: Option<String>,
    /// What a person has said does not matter.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub force: BTreeSet<RebootForce>,
    /// The boot that it ends.
    #[serde(default)]
    pub boot_id: Arc<str>,
    /// When it is due, where that is known: on the uptime clock, and for people by the wall clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Moment>,
    /// What the matter was with memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<MemoryVerdict>,
    /// How much memory above what is usual was in no counter of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_bytes: Option<u64>,
}

impl RebootPlan {
    /// What those who are logged in are told.
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
    /// The boot that it ends. In another one nothing is done: it has happened.
    pub boot_id: Arc<str>,
    /// How.
    pub how: RebootMeans,
    /// What was scheduled.
    pub plan: RebootPlan,
}

/// How a reboot is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootMeans {
    /// In order.
    Way(RebootWay),
    /// The kernel does it at once: sysrq s, u, b. Only where the orderly way hangs.
    Sysrq,
}

impl fmt::Display for RebootAct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Schedule(plan) => plan.fmt(f),
            Self::TellUsers { text } => write!(f, "tell_users {text:?}"),
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
    /// What of a reboot's own guard rails a person may say does not matter. The journal, the pause,
    /// the boot's name and another reboot under way are none of these.
    pub enum RebootForce {
        /// `at_most`, and that earlier ones did not help.
        Budget = "budget",
        /// `minimum_uptime`.
        Uptime = "uptime",
        /// Somebody is logged in, or that is not known.
        Users = "users",
        /// An engine runs, or that is not known. None is stopped: they end with the machine.
        Engines = "engines",
        /// An alert of `blocked_by`, or of the general `inhibited_by`.
        Alerts = "alerts",
        /// The calendar: `never_in`.
        Windows = "windows",
        /// The cluster's lock.
        Slot = "slot",
    }
}

/// Somebody has looked who is logged in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggedInReadings {
    /// When, on the uptime clock.
    pub at: Duration,
    /// Who. Nobody is `Value` of an empty list; where nobody can tell, that is `Unsupported`.
    pub users: Reading<Vec<LoggedIn>>,
    /// Why that is not known, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<str>>,
}

/// Somebody who is logged in. None of this is ever a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedIn {
    /// Who.
    pub user: Arc<str>,
    /// Where: `pts/0`, `tty1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Arc<str>>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

named! {
    /// What came of a reboot, once the machine is up again.
    pub enum RebootResult {
        /// What it was made for is gone.
        Helped = "helped",
        /// It is still so, or so again.
        DidNotHelp = "did_not_help",
        /// That could not be told; it counts as if it had not helped.
        Unknown = "unknown",
        /// The machine was not rebooted: nothing happened.
        NotRebooted = "not_rebooted",
        /// It was called off after it had been handed over, and before it happened.
        CalledOff = "called_off",
    }
}

impl RebootResult {
    /// What it says, for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Helped => "what it was made for is gone",
            Self::DidNotHelp => "it did not help",
            Self::Unknown => "whether it helped cannot be told, so that it counts as if not",
            Self::NotRebooted => "the machine was not rebooted",
            Self::CalledOff => "it was called off before it happened",
        }
    }
}

/// What the journal knows of reboots, those of other boots too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastReboots {
    /// This boot; `None`: its name cannot be read, and nothing is rebooted.
    pub boot_id: Option<Arc<str>>,
    /// Each time that the machine was to be rebooted, whatever came of it; oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<PastReboot>,
    /// What is scheduled in this boot, was not called off, and was not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<ScheduledReboot>,
    /// The cluster's slot that this node may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<RebootLock>,
    /// Whether it was asked for in this boot first, so that nothing was rebooted with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_slot_of_boot: bool,
    /// Whether the journal can tell nothing of slots: a server may know of one all the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_slot_unknown: bool,
    /// Whether a person has called off what was scheduled last in this boot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_called_off: bool,
    /// When the journal was last lost, on the uptime clock of this boot, in milliseconds, as
    /// [`PastReboot::uptime_ms`]; `None`: never, or a person has cleared that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_ms: Option<i64>,
    /// It was lost, and nobody has noted yet when.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_newly_lost: bool,
}

/// A reboot that stands in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledReboot {
    /// The decision that has scheduled it.
    pub decision: DecisionId,
    /// Whose remedy.
    pub rule: RuleId,
    /// What.
    pub plan: RebootPlan,
}

/// Once that the machine was to be rebooted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastReboot {
    /// The decision's number.
    pub decision: DecisionId,
    /// Whose remedy.
    pub rule: RuleId,
    /// In which boot; it was to end that.
    pub boot_id: Arc<str>,
    /// When, on the uptime clock of this boot, in milliseconds; negative: before this boot. It is
    /// never earlier than is proved by the uptimes of the boots since: no wall clock counts.
    pub uptime_ms: i64,
    /// When, on the wall clock of then; for people.
    pub utc: Timestamp,
    /// Whether there were other boots between the one that it was to end and this one: then nobody
    /// can tell any more whether it has helped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_long_past: bool,
    /// What was scheduled.
    pub plan: RebootPlan,
    /// Who was to do it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<RebootWay>,
    /// Whether it was handed over, as far as that was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was_begun: Option<bool>,
    /// What came of it, where that was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RebootResult>,
    /// Whether a person has said since that it does not count against the remedy any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cleared: bool,
}

/// Where it stands with reboots, for people and programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootStatus {
    /// How far the present one has come.
    pub stage: RebootStage,
    /// The present one, if there is one.
    pub scheduled: Option<ScheduledReboot>,
    /// What it waits for, in words.
    pub waits_for: Option<Arc<str>>,
    /// This boot; `None`: it cannot be told, and nothing is rebooted.
    pub boot_id: Option<Arc<str>>,
    /// What is left of each bound, in the order of the configuration.
    pub budget: Vec<RebootBudgetLeft>,
    /// So many in a row did not help.
    pub did_not_help: u32,
    /// They are so many that no rule reboots any more until a person clears that.
    pub is_given_up: bool,
    /// Whether a journal was lost so lately that what it held of reboots would matter.
    #[serde(default)]
    pub is_journal_lost: bool,
    /// Whether the cluster's slot is held, as far as is known.
    pub holds_slot: bool,
    /// The last time that the machine was to be rebooted.
    pub last: Option<PastReboot>,
    /// Why the last one that was scheduled was called off.
    pub called_off: Option<Arc<str>>,
}

/// What is left of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebootBudgetLeft {
    /// The bound.
    #[serde(flatten)]
    pub budget: RebootBudget,
    /// So many more are allowed now.
    pub left: u32,
}
