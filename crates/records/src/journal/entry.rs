//! Entries of the journal and their rows.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::reboots::RebootRow;
use crate::model::{
    AimCheck, AlertChange, Decision, DecisionRecord, Event, EventKind, Moment, OperatorCommand,
    OperatorOrder, Outcome, ProgramEvent, RuleId, RuleSelector,
};

/// The prefix of the action of a decision about a reboot.
const REBOOT: &str = "\"reboot\":";

/// The word of an order of which nothing came.
const REFUSED: &str = "refused";

/// One entry of the journal.
#[derive(Clone, Debug, PartialEq)]
pub enum JournalEntry {
    /// Events of the kernel log, and the position in it. Both are stored in one transaction.
    KernelLog {
        /// The boot that the sequence numbers belong to.
        boot_id: Arc<str>,
        /// May be empty: then only the position changes, and is stored within a second.
        events: Vec<Event>,
        /// The position to resume from after a restart: the first record whose event may not be
        /// stored.
        resume_seq: u64,
    },
    /// An event of the program. There is at most one of its kind in a boot.
    Event {
        /// The boot in which it was reported.
        boot_id: Arc<str>,
        /// The event to store.
        event: Event,
    },
    /// A decision to act or to hold.
    Decision(DecisionRecord),
    /// The end of an action.
    Outcome(Outcome),
    /// The effect of an action.
    AimCheck(AimCheck),
    /// An alert changed its state.
    Alert(AlertChange),
    /// A remark about the daemon itself.
    Note(Note),
    /// An order of a person.
    Operator(OperatorCommand),
    /// The uptime of a boot.
    Alive {
        /// Id of the boot.
        boot_id: Arc<str>,
        /// Time since its start, at least.
        uptime: Duration,
    },
}

/// A remark about the daemon itself: start, stop, reload, a reboot seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Time of the remark.
    pub at: Moment,
    /// The remark, for people.
    pub text: String,
}

/// Rows ready to be inserted. The caller serializes them, so their size is known and the writer
/// only writes.
#[derive(Debug)]
pub(super) enum JournalRecord {
    KernelLog { boot_id: Arc<str>, events: Vec<EventRow>, resume_seq: u64 },
    Event { boot_id: Arc<str>, event: EventRow },
    Decision { id: u64, utc_ms: i64, rule: RuleId, decision: Decision, json: String },
    Outcome { decision: u64, utc_ms: i64, json: String },
    AimCheck { decision: u64, utc_ms: i64, json: String },
    Alert { utc_ms: i64, rule: RuleId, json: String },
    Note { utc_ms: i64, json: String },
    Operator(OperatorRow),
    Alive { boot_id: Arc<str>, uptime_ms: i64 },
}

#[derive(Debug)]
pub(super) struct EventRow {
    pub(super) seq: Option<u64>,
    pub(super) utc_ms: Option<i64>,
    pub(super) kind: &'static str,
    /// At most one of its kind is stored in a boot.
    pub(super) is_once: bool,
    pub(super) json: String,
}

/// A row of `operator_commands`.
#[derive(Debug)]
pub(super) struct OperatorRow {
    pub(super) utc_ms: i64,
    pub(super) word: &'static str,
    pub(super) silence: Option<u64>,
    pub(super) decision: Option<u64>,
    pub(super) rule: Option<String>,
    pub(super) alert: Option<String>,
    pub(super) until_ms: i64,
    pub(super) json: String,
    /// The entry of the same order, before it was refused.
    pub(super) instead_of: Option<String>,
}

impl OperatorRow {
    fn new(command: &OperatorCommand) -> Result<Self, serde_json::Error> {
        let utc_ms = command.at.utc_ms();
        let mut row = Self {
            utc_ms,
            word: command.order.name(),
            silence: None,
            decision: None,
            rule: None,
            alert: None,
            until_ms: utc_ms,
            json: serde_json::to_string(command)?,
            instead_of: None,
        };
        match &command.order {
            OperatorOrder::Silence { id, rules, until } => {
                row.silence = Some(*id);
                row.until_ms = until.as_millisecond();
                row.select(rules);
            }
            OperatorOrder::EndSilence { id } => row.silence = Some(*id),
            OperatorOrder::Approve { decision, until }
            | OperatorOrder::Deny { decision, until } => {
                row.decision = Some(decision.0);
                row.until_ms = until.as_millisecond();
            }
            OperatorOrder::ResetBreaker { rules } => row.select(rules),
            OperatorOrder::Reboot { .. }
            | OperatorOrder::CancelReboot
            | OperatorOrder::ClearReboots => {}
        }
        if command.refused.is_some() {
            let given = OperatorCommand { refused: None, ..command.clone() };
            // It is in force under no word, and not kept for longer.
            (row.word, row.until_ms) = (REFUSED, utc_ms);
            row.instead_of = Some(serde_json::to_string(&given)?);
        }
        Ok(row)
    }

    fn select(&mut self, rules: &RuleSelector) {
        match rules {
            RuleSelector::All => {}
            RuleSelector::Alert(alert) => self.alert = Some(alert.to_string()),
            RuleSelector::Rule(rule) => {
                self.rule = Some(rule.to_string());
                self.alert = Some(rule.alert.to_string());
            }
        }
    }
}

impl JournalRecord {
    pub(super) fn new(entry: &JournalEntry) -> Result<Self, serde_json::Error> {
        Ok(match entry {
            JournalEntry::KernelLog { boot_id, events, resume_seq } => Self::KernelLog {
                boot_id: Arc::clone(boot_id),
                events: events.iter().map(EventRow::new).collect::<Result<_, _>>()?,
                resume_seq: *resume_seq,
            },
            JournalEntry::Event { boot_id, event } => {
                Self::Event { boot_id: Arc::clone(boot_id), event: EventRow::new(event)? }
            }
            JournalEntry::Decision(decision) => Self::decision(decision)?,
            JournalEntry::Outcome(outcome) => Self::Outcome {
                decision: outcome.decision.0,
                utc_ms: outcome.ended.utc_ms(),
                json: serde_json::to_string(outcome)?,
            },
            JournalEntry::AimCheck(aim_check) => Self::AimCheck {
                decision: aim_check.decision.0,
                utc_ms: aim_check.at.utc_ms(),
                json: serde_json::to_string(aim_check)?,
            },
            JournalEntry::Alert(change) => Self::Alert {
                utc_ms: change.at.utc_ms(),
                rule: change.rule.clone(),
                json: serde_json::to_string(change)?,
            },
            JournalEntry::Note(note) => {
                Self::Note { utc_ms: note.at.utc_ms(), json: serde_json::to_string(note)? }
            }
            JournalEntry::Operator(command) => Self::operator(command)?,
            JournalEntry::Alive { boot_id, uptime } => Self::Alive {
                boot_id: Arc::clone(boot_id),
                uptime_ms: i64::try_from(uptime.as_millis()).unwrap_or(i64::MAX),
            },
        })
    }

    pub(super) fn decision(decision: &DecisionRecord) -> Result<Self, serde_json::Error> {
        Ok(Self::Decision {
            id: decision.id.0,
            utc_ms: decision.at.utc_ms(),
            rule: decision.rule.clone(),
            decision: decision.decision,
            json: serde_json::to_string(decision)?,
        })
    }

    pub(super) fn operator(command: &OperatorCommand) -> Result<Self, serde_json::Error> {
        Ok(Self::Operator(OperatorRow::new(command)?))
    }

    /// Its memory use, roughly, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let text = match self {
            Self::KernelLog { events, .. } => {
                events.iter().map(|row| size_of::<EventRow>() + row.json.capacity()).sum()
            }
            Self::Event { event, .. } => event.json.capacity(),
            Self::Decision { json, .. }
            | Self::Outcome { json, .. }
            | Self::AimCheck { json, .. }
            | Self::Alert { json, .. }
            | Self::Note { json, .. }
            | Self::Operator(OperatorRow { json, .. }) => json.capacity(),
            Self::Alive { boot_id, .. } => boot_id.len(),
        };
        size_of::<Self>() + text
    }

    /// The number of rows that would be lost with it.
    pub(super) fn rows(&self) -> u64 {
        match self {
            Self::KernelLog { events, .. } => events.len() as u64,
            Self::Alive { .. } => 0,
            _ => 1,
        }
    }

    /// Whether it only has the position in the kernel log. That can wait: reading a few records
    /// again after a crash does no harm.
    pub(super) fn is_position_only(&self) -> bool {
        self.rows() == 0
    }

    /// Whether it must not be stored late: the author of an approval that was not stored in time
    /// was informed that it has no effect.
    pub(super) fn is_nothing_if_late(&self) -> bool {
        matches!(self, Self::Operator(row) if row.word == "approve")
    }

    /// The additional row of an entry about a reboot. An event is found by its kind. JSON is parsed
    /// only if it may be about one.
    pub(super) fn reboot(&self) -> Option<RebootRow> {
        match self {
            Self::Decision { decision: Decision::Act, json, .. } if json.contains(REBOOT) => {
                RebootRow::of_decision(&serde_json::from_str(json).ok()?)
            }
            Self::Outcome { json, .. }
                if json.contains("reboot") || json.contains("warn_users") =>
            {
                RebootRow::of(&JournalEntry::Outcome(serde_json::from_str(json).ok()?))
            }
            Self::Event { boot_id, event }
                if matches!(event.kind, "reboot_checked" | "journal_lost") =>
            {
                let (boot_id, event) = (Arc::clone(boot_id), serde_json::from_str(&event.json));
                RebootRow::of(&JournalEntry::Event { boot_id, event: event.ok()? })
            }
            Self::Operator(row)
                if row.word.ends_with("_reboot") || row.word.ends_with("_reboots") =>
            {
                RebootRow::of_order(&serde_json::from_str(&row.json).ok()?)
            }
            _ => None,
        }
    }

    /// Takes over a later position of the same boot instead of queueing it.
    pub(super) fn absorb(&mut self, later: &Self) -> bool {
        match (self, later) {
            (
                Self::KernelLog { boot_id, resume_seq, .. },
                Self::KernelLog { boot_id: later_boot, events, resume_seq: later_seq },
            ) if events.is_empty() && boot_id == later_boot => {
                *resume_seq = *later_seq;
                true
            }
            _ => false,
        }
    }
}

impl EventRow {
    fn new(event: &Event) -> Result<Self, serde_json::Error> {
        Ok(Self {
            seq: event.seq,
            utc_ms: event.utc.map(|utc| utc.as_millisecond()),
            kind: event.kind.kind(),
            is_once: matches!(event.kind, EventKind::Program(ProgramEvent::UncleanBoot { .. })),
            json: serde_json::to_string(event)?,
        })
    }
}
