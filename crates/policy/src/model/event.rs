//! An event with its time: of the kernel log, or of this program.
//!
//! The JSON form (`kind` and the fields below) is public: `umawarden dmesg --json`, `umawarden
//! history --json` and `/api/v1/events` use it.

use jiff::Timestamp;
use kernel_faults::LoggedEvent;
use serde::{Deserialize, Serialize};

use super::{KernelEvent, ProgramEvent};

/// Sequence numbers from here up were made by this program: syslog(2) shows none. A kernel cannot
/// count that far.
pub const SYSLOG_SEQ_BASE: u64 = 1 << 62;

/// An event.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Event {
    /// The kind of event, with its facts.
    #[serde(flatten)]
    pub kind: EventKind,
    /// Time of the event, if the log has it.
    pub utc: Option<Timestamp>,
    /// Sequence number of the record that completed the event; with the boot id, its identity.
    /// `None` where the log carries none (plain text).
    pub seq: Option<u64>,
}

impl Event {
    /// Whether the kernel log reports it. Other events have no number there.
    pub fn is_kernel(&self) -> bool {
        matches!(self.kind, EventKind::Kernel(_))
    }

    /// Whether only syslog(2) shows it. A newline within a record begins a line of its own there,
    /// and unprivileged users can have one written. Such an event may be forged, and nothing that
    /// acts may follow from it.
    pub fn is_claimed(&self) -> bool {
        self.is_kernel() && self.seq.is_some_and(|seq| seq >= SYSLOG_SEQ_BASE)
    }
}

impl Serialize for Event {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct SerializedEvent<'a> {
            #[serde(flatten)]
            kind: &'a EventKind,
            utc: Option<Timestamp>,
            seq: Option<u64>,
            /// Why the event may be forged; `None` if it cannot.
            #[serde(skip_serializing_if = "Option::is_none")]
            claimed_by: Option<&'static str>,
        }
        let claimed_by = self.is_claimed().then_some("syslog");
        SerializedEvent { kind: &self.kind, utc: self.utc, seq: self.seq, claimed_by }
            .serialize(serializer)
    }
}

/// The kind of an event, by its reporter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EventKind {
    /// The kernel log.
    Kernel(KernelEvent),
    /// This program.
    Program(ProgramEvent),
}

impl EventKind {
    /// The JSON kinds of all events; those of the kernel log first.
    pub const KINDS: [&'static str; KernelEvent::KINDS.len() + ProgramEvent::KINDS.len()] = {
        let mut kinds = [""; KernelEvent::KINDS.len() + ProgramEvent::KINDS.len()];
        let mut at = 0;
        while at < kinds.len() {
            let of_program = at.checked_sub(KernelEvent::KINDS.len());
            kinds[at] = match of_program {
                None => KernelEvent::KINDS[at],
                Some(at) => ProgramEvent::KINDS[at],
            };
            at += 1;
        }
        kinds
    };

    /// The kind, one of [`Self::KINDS`].
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Kernel(event) => event.kind(),
            Self::Program(event) => event.kind(),
        }
    }
}

impl From<LoggedEvent> for Event {
    fn from(event: LoggedEvent) -> Self {
        Self { kind: event.kind.into(), utc: event.utc, seq: event.seq }
    }
}

impl From<KernelEvent> for EventKind {
    fn from(event: KernelEvent) -> Self {
        Self::Kernel(event)
    }
}

impl From<ProgramEvent> for EventKind {
    fn from(event: ProgramEvent) -> Self {
        Self::Program(event)
    }
}
