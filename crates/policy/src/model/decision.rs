//! What the policy decides, why, and what came of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::named;
use super::{Action, EnginePhase, Moment, Proof, Reading, Target, UserUnit};

named! {
    /// Whether remedies are done or only reported.
    #[derive(Default)]
    pub enum Mode {
        /// Decide, journal, count and log what would be done; touch nothing.
        #[default]
        Observe = "observe",
        /// Do it.
        Enforce = "enforce",
    }
}

/// Number of a decision, unique within the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DecisionId(pub u64);

impl fmt::Display for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A rule's place: group and alert name. Unique within the loaded rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RuleId {
    /// `name` of the group in the rule file.
    pub group: Arc<str>,
    /// `alert` of the rule in the rule file.
    pub alert: Arc<str>,
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.alert)
    }
}

named! {
    /// Why a firing rule does not act now.
    pub enum HoldReason {
        /// The last round of this remedy ended less than `cooldown` ago.
        Cooldown = "cooldown",
        /// `at_most` is used up.
        Budget = "budget",
        /// Another action is under way.
        Busy = "busy",
        /// The aim is met already.
        AimMet = "aim_met",
        /// Whether the rule, or its aim, holds is unknown: a source is failing.
        Unknown = "unknown",
        /// Every step has been tried and the aim is still missed.
        StepsExhausted = "steps_exhausted",
        /// A person has paused the program.
        Paused = "paused",
        /// What was done before this process started is not known: the journal cannot be read.
        JournalUnreadable = "journal_unreadable",
        /// A person has silenced this rule.
        Silenced = "silenced",
        /// A rule that inhibits this one fires, or cannot be evaluated.
        Inhibited = "inhibited",
        /// A maintenance window forbids it now.
        Maintenance = "maintenance",
        /// This remedy has missed its aim too often.
        BreakerOpen = "breaker_open",
        /// The alert names no target, or nothing that could be one.
        NoTarget = "no_target",
        /// The target is protected, or it is unknown whether it is.
        Protected = "protected",
        /// The budget of all actions together is used up.
        GlobalBudget = "global_budget",
        /// It waits until the other nodes know that it comes.
        FleetTurn = "fleet_turn",
        /// As many other nodes as `guard_rails.fleet` allows did it lately, or come first.
        FleetLimit = "fleet_limit",
        /// So many other nodes are unknown that they may.
        FleetUnknown = "fleet_unknown",
        /// A person must approve it, and has not.
        Approval = "approval",
        /// It goes ahead at a time that was announced, unless a person denies it before.
        Announced = "announced",
        /// A person has denied it.
        Denied = "denied",
        /// Nobody would start the engine again afterwards, or others would at once.
        NotStartedAgain = "not_started_again",
        /// It is unknown which engine's growth eats the memory.
        UnclearTarget = "unclear_target",
        /// The rule still counts as firing, but its condition does not hold any more.
        Unconfirmed = "unconfirmed",
        /// What it would set is held by another remedy.
        SettingHeld = "setting_held",
        /// What it would set is set already, or has been for its time.
        InForce = "in_force",
        /// The grade of what it would do is not enforced.
        NotEnforced = "not_enforced",
        /// There is no memory for it yet, or something still holds or gives back some.
        Memory = "memory",
        /// It died so lately that it waits before the next start.
        BackOff = "back_off",
        /// Another engine of this node is starting.
        OtherStarts = "other_starts",
        /// It is a rank of an engine that spans nodes, and the others are not ready for its start.
        OtherNodes = "other_nodes",
        /// Somebody wanted it to end.
        Stopped = "stopped",
        /// It ended as if requested, while it was not watched.
        StopUnclear = "stop_unclear",
        /// Memory is neither leaked nor wedged, or what the matter is with it is unknown.
        NoCause = "no_cause",
        /// A reboot is scheduled or under way already.
        RebootUnderWay = "reboot_under_way",
        /// `reboot.at_most` is used up.
        RebootBudget = "reboot_budget",
        /// Reboots have not helped.
        GivenUp = "given_up",
        /// The machine has booted too lately.
        MinimumUptime = "minimum_uptime",
        /// The boot ID is unknown.
        BootUnknown = "boot_unknown",
        /// Somebody is logged in, or it is unknown whether.
        LoggedIn = "logged_in",
        /// An engine runs, or it is unknown whether.
        EnginesRun = "engines_run",
        /// An alert that blocks reboots fires, or cannot be evaluated.
        Blocked = "blocked",
        /// The cluster's lock has given no slot.
        NoSlot = "no_slot",
        /// A person has called the reboot off.
        CalledOff = "called_off",
    }
}

impl HoldReason {
    /// Whether only a reboot is held by it.
    pub fn is_of_reboot(self) -> bool {
        self.meaning_for_reboot().is_some()
    }

    /// Whether other nodes are the reason.
    pub fn is_of_fleet(self) -> bool {
        matches!(self, Self::FleetTurn | Self::FleetLimit | Self::FleetUnknown)
    }

    /// What it says, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Cooldown => "the remedy's last round ended less than its cooldown ago",
            Self::Budget => "the remedy's at_most is used up",
            Self::Busy => {
                "another action is under way: one at a time on a node; stop_engine waits for its \
                 like alone, and nothing but another start waits for a start"
            }
            Self::AimMet => "the aim is met already",
            Self::Unknown => "whether the rule or its aim holds is unknown: a source fails",
            Self::StepsExhausted => "every step has been tried and the aim is still missed",
            Self::Paused => "a person has paused the program, or that is unknown",
            Self::JournalUnreadable => {
                "what earlier runs did is not known: the journal cannot be read, or was lost so \
                 lately that it would matter"
            }
            Self::Silenced => "a person has silenced the rule",
            Self::Inhibited => "a rule of inhibited_by fires, or cannot be evaluated",
            Self::Maintenance => "no window of only_in is open, or one of never_in is",
            Self::BreakerOpen => "the remedy has missed its aim too often in a row (breaker)",
            Self::NoTarget => {
                "the alert names no target, or nothing that could be one, or no engine runs here"
            }
            Self::Protected => "the target is protected, or that is unknown",
            Self::GlobalBudget => "guard_rails.budget of all remedies together is used up",
            Self::Approval => "a person must approve (require_approval), and has not",
            Self::Announced => "it was announced, and goes ahead unless a person denies it in time",
            Self::Denied => "a person has denied it (umawarden deny)",
            Self::NotStartedAgain => {
                "umawarden does not start that engine again afterwards: defer its restarts \
                 (umawarden adopt)"
            }
            Self::UnclearTarget => "the engine whose growth takes the memory is unknown",
            Self::Unconfirmed => {
                "the rule's expr does not hold at this moment, and no engine is stopped for what \
                 was true before"
            }
            Self::SettingHeld => "another remedy has changed that setting for a while and holds it",
            Self::InForce => {
                "what it does for a while is in force already (in observe mode: would be), or was \
                 for its time and the alert goes on"
            }
            Self::NotEnforced => "`enforce` of the configuration has not the grade of that step",
            Self::Memory => {
                "there is no memory for it yet, or what held some is still there or gives it back"
            }
            Self::BackOff => "it died so lately that it waits before the next start",
            Self::OtherStarts => {
                "another engine of this node is starting: one at a time, the next when that is \
                 ready or has failed"
            }
            Self::OtherNodes | Self::FleetTurn | Self::FleetLimit | Self::FleetUnknown => {
                self.meaning_for_nodes().unwrap_or_default()
            }
            Self::Stopped => "it was stopped on request: it stays down until a person starts it",
            Self::StopUnclear => {
                "it ended as if stopped on request, while it was not watched: start it by hand"
            }
            Self::NoCause
            | Self::RebootUnderWay
            | Self::RebootBudget
            | Self::GivenUp
            | Self::MinimumUptime
            | Self::BootUnknown
            | Self::LoggedIn
            | Self::EnginesRun
            | Self::Blocked
            | Self::NoSlot
            | Self::CalledOff => self.meaning_for_reboot().unwrap_or_default(),
        }
    }

    /// The same of reasons that are other nodes.
    fn meaning_for_nodes(self) -> Option<&'static str> {
        Some(match self {
            Self::OtherNodes => {
                "it is one rank of an engine that spans nodes: a rank before it has not started, \
                 one of the last run still runs, or another node has no memory for its own"
            }
            Self::FleetTurn => {
                "it waits for its turn until the other nodes know of it (guard_rails.fleet)"
            }
            Self::FleetLimit => {
                "as many other nodes as guard_rails.fleet allows did the same lately, or come first"
            }
            Self::FleetUnknown => {
                "so many other nodes are unknown that more than guard_rails.fleet allows may do \
                 the same"
            }
            _ => return None,
        })
    }

    /// The same of reasons that hold only a reboot.
    fn meaning_for_reboot(self) -> Option<&'static str> {
        let meaning = match self {
            Self::NoCause => {
                "what holds the memory is unknown, and nothing is rebooted for an unknown cause"
            }
            Self::RebootUnderWay => "a reboot is scheduled or under way already",
            Self::RebootBudget => {
                "reboot.at_most is used up: the machine was rebooted, or was to be, too \
                 often lately"
            }
            Self::GivenUp => {
                "two reboots in a row did not help: umawarden reboot --clear lets rules \
                 reboot again"
            }
            Self::MinimumUptime => "the machine has booted less than reboot.minimum_uptime ago",
            Self::BootUnknown => {
                "the boot id is unknown (sys/kernel/random/boot_id), so that reboots cannot be \
                 counted"
            }
            Self::LoggedIn => "a person is logged in, or that is unknown (reboot.logged_in)",
            Self::EnginesRun => "an engine runs, or that is unknown (reboot.engines)",
            Self::Blocked => "an alert of reboot.blocked_by fires, or cannot be evaluated",
            Self::NoSlot => "the cluster's lock (reboot.lock) has given no slot",
            Self::CalledOff => {
                "a person has called the reboot off: no rule schedules another before memory is \
                 well again, or a person runs umawarden reboot --clear"
            }
            _ => return None,
        };
        Some(meaning)
    }
}

/// Act, or hold and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "decision", content = "reason", rename_all = "snake_case")]
pub enum Decision {
    /// Do it (or, in observe mode, say so).
    Act,
    /// Do not.
    Hold(HoldReason),
}

impl Decision {
    /// The `decision` label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Act => "act",
            Self::Hold(_) => "hold",
        }
    }

    /// The `reason` label: why held; empty for Act.
    pub fn reason(self) -> &'static str {
        self.hold_reason().map_or("", HoldReason::name)
    }

    /// The reason of a hold; `None` for an act.
    pub fn hold_reason(self) -> Option<HoldReason> {
        match self {
            Self::Act => None,
            Self::Hold(reason) => Some(reason),
        }
    }
}

/// A value that led to a decision, or was measured after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The series as in PromQL.
    pub series: String,
    /// Its value then.
    #[serde(with = "super::as_number")]
    pub value: Reading<f64>,
}

/// What to do, or not to do, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionRecord {
    /// Unique in the journal; decisions of later runs have larger numbers.
    pub id: DecisionId,
    /// When it was made.
    pub at: Moment,
    /// Which rule made it.
    pub rule: RuleId,
    /// The mode in force for that rule.
    pub mode: Mode,
    /// Act or hold.
    #[serde(flatten)]
    pub decision: Decision,
    /// Position in the remedy's steps, from 0.
    pub step: usize,
    /// The step itself.
    pub action: Action,
    /// What it works on.
    #[serde(default)]
    pub target: Target,
    /// The decision, held for want of it, whose approval this act uses up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<DecisionId>,
    /// When what is held is done after all, unless a person denies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goes_ahead: Option<Timestamp>,
    /// The values that led to it.
    pub because: Vec<Evidence>,
}

/// Process numbers that a text names.
const MOST_NAMED: usize = 8;

impl DecisionRecord {
    /// Whether it is to act. In observe mode nothing is done even so.
    pub fn is_act(&self) -> bool {
        self.decision == Decision::Act
    }

    /// The reason of a hold; `None` for an act.
    pub fn hold_reason(&self) -> Option<HoldReason> {
        self.decision.hold_reason()
    }

    /// What it would have done, and why its grade kept it from that, if so.
    pub fn unenforced(&self) -> Option<String> {
        (self.hold_reason() == Some(HoldReason::NotEnforced)).then(|| {
            format!("would {}, grade {} is not enforced", self.deed(), self.action.grade())
        })
    }

    /// What it announces, and how that is denied, if it does.
    pub fn announced(&self) -> Option<String> {
        let due = self.goes_ahead?;
        let will = if self.mode == Mode::Enforce { "will" } else { "would" };
        let (deed, id) = (self.deed(), self.id);
        Some(format!("{will} {deed} at {due:.0} unless it is denied: umawarden deny {id}"))
    }

    /// What is to be done, and to whom where the action does not say so itself, for people.
    pub fn deed(&self) -> String {
        if let Target::Workload(held) = &self.target {
            return format!("{}: {held}", self.action);
        }
        let Target::Engine(engine) = &self.target else { return self.action.to_string() };
        let named = engine.processes.iter().take(MOST_NAMED).map(ToString::to_string);
        let mut named = named.collect::<Vec<_>>().join(", ");
        if named.is_empty() {
            return self.action.to_string();
        }
        if let more @ 1.. = engine.processes.len().saturating_sub(MOST_NAMED) {
            named.push_str(&format!(" and {more} more"));
        }
        let pod = engine.pod.as_ref().map(|pod| format!("{pod}, ")).unwrap_or_default();
        let is_stop = matches!(self.action, Action::StopEngine { .. });
        let again = match (engine.starting_service(), &engine.user_unit) {
            _ if !is_stop => String::new(),
            _ if engine.proof == Proof::PodContainer => {
                "; the kubelet starts its container again".to_owned()
            }
            (Some(unit), _) => format!("; systemd starts {unit} again if its Restart= says so"),
            (None, Some(UserUnit { user, name })) => {
                format!("; the systemd of user {user} is asked not to start {name} again")
            }
            (None, None) => String::new(),
        };
        format!("{}: {} ({pod}pid {named}){again}", self.action, self.target)
    }
}

/// How an action ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", content = "detail", rename_all = "snake_case")]
pub enum OutcomeResult {
    /// It was done. Whether it helped is for the [`AimCheck`] to say.
    Done,
    /// Observe mode: it would have been done.
    Skipped,
    /// It was not begun: its intent could not be written, say. Nothing was touched.
    NotDone(String),
    /// It was begun, and could not be done.
    Failed(String),
    /// It had not ended in time; it may still be going on.
    TimedOut,
}

impl OutcomeResult {
    /// Whether anything may have been touched.
    pub fn is_begun(&self) -> bool {
        match self {
            Self::Done | Self::Failed(_) | Self::TimedOut => true,
            Self::Skipped | Self::NotDone(_) => false,
        }
    }

    /// The `outcome` label.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Skipped => "skipped",
            Self::NotDone(_) => "not_done",
            Self::Failed(_) => "failed",
            Self::TimedOut => "timed_out",
        }
    }

    /// All names, for series that start at 0.
    pub const NAMES: [&'static str; 5] = ["done", "skipped", "not_done", "failed", "timed_out"];
}

/// What the executor reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Of which decision.
    pub decision: DecisionId,
    /// Name of the action, as the label `action` has it.
    pub action: String,
    /// How it ended.
    #[serde(flatten)]
    pub result: OutcomeResult,
    /// When it had ended.
    pub ended: Moment,
    /// How long it took.
    pub took: Duration,
    /// Its effect in words, where the action measures one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

impl Outcome {
    /// Whether a stop may have ended processes. One that failed has an effect if a signal was
    /// delivered.
    pub fn may_have_ended(&self) -> bool {
        match &self.result {
            OutcomeResult::Done | OutcomeResult::TimedOut => true,
            OutcomeResult::Failed(_) => self.effect.is_some(),
            OutcomeResult::Skipped | OutcomeResult::NotDone(_) => false,
        }
    }
}

#[cfg(test)]
impl Outcome {
    /// One that took no time and has no effect.
    pub(crate) fn at_once(decision: &DecisionRecord, result: OutcomeResult, ended: Moment) -> Self {
        Self {
            decision: decision.id,
            action: decision.action.name().to_owned(),
            result,
            ended,
            took: Duration::ZERO,
            effect: None,
        }
    }
}

/// What an action changed, measured on the signals that the rule names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AimCheck {
    /// Of which decision.
    pub decision: DecisionId,
    /// When the signals were measured again.
    pub at: Moment,
    /// Whether the aim is met; `None` where that is unknown.
    pub aim_met: Option<bool>,
    /// Whether the rule names an aim; without one, `aim_met` says whether its condition has ended.
    #[serde(default = "yes")]
    pub has_aim: bool,
    /// In which phase what was started has died, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died_in: Option<EnginePhase>,
    /// The signals right before the action.
    pub before: Vec<Evidence>,
    /// The same signals after it.
    pub after: Vec<Evidence>,
}

/// What entries of the time before that field are taken to say.
fn yes() -> bool {
    true
}
