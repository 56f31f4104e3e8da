//! Rows about reboots, which neither age nor size deletes: budgets reach back for weeks, and a
//! forgotten reboot would allow one more.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::entry::JournalEntry;
use crate::model::{
    DecisionId, DecisionRecord, EventKind, Mode, OperatorCommand, OperatorOrder, Outcome,
    OutcomeResult, PastReboot, PastReboots, ProgramEvent, RebootAct, RebootLock, RebootMeans,
    RebootResult, ScheduledReboot,
};

/// A decision, outcome, check or order about reboots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootRow {
    /// An act of enforce mode.
    Decision(DecisionRecord),
    /// The outcome of an act.
    Outcome(Outcome),
    /// The result of a reboot, known after the boot.
    Checked {
        /// The decision that made it.
        decision: DecisionId,
        /// Whether it helped.
        result: RebootResult,
    },
    /// An order that cancels a reboot, or clears some.
    Order(OperatorCommand),
    /// Earlier rows are lost.
    Lost {
        /// Boot and uptime when the loss was noted. `None`: not noted yet.
        at: Option<BootDuration>,
    },
}

/// The least duration of a boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootDuration {
    /// Id of the boot.
    pub boot_id: Arc<str>,
    /// Its least duration, in milliseconds.
    pub uptime_ms: i64,
}

impl RebootRow {
    /// The row of an entry, if it has one.
    pub fn of(entry: &JournalEntry) -> Option<Self> {
        match entry {
            JournalEntry::Decision(decision) => Self::of_decision(decision),
            JournalEntry::Outcome(outcome) => {
                let is_one = RebootAct::NAMES.contains(&outcome.action.as_str());
                (is_one && outcome.result != OutcomeResult::Skipped)
                    .then(|| Self::Outcome(outcome.clone()))
            }
            JournalEntry::Event { event, .. } => match &event.kind {
                EventKind::Program(ProgramEvent::RebootChecked { decision, result, .. }) => {
                    Some(Self::Checked { decision: DecisionId(*decision), result: *result })
                }
                EventKind::Program(ProgramEvent::JournalLost { boot_id, uptime_ms }) => {
                    let boot =
                        BootDuration { boot_id: boot_id.as_str().into(), uptime_ms: *uptime_ms };
                    Some(Self::Lost { at: Some(boot).filter(|boot| !boot.boot_id.is_empty()) })
                }
                _ => None,
            },
            JournalEntry::Operator(command) => Self::of_order(command),
            _ => None,
        }
    }

    pub(super) fn of_decision(decision: &DecisionRecord) -> Option<Self> {
        let is_act = decision.mode == Mode::Enforce && decision.is_act();
        (is_act && decision.action.reboot().is_some()).then(|| Self::Decision(decision.clone()))
    }

    pub(super) fn of_order(command: &OperatorCommand) -> Option<Self> {
        matches!(command.order, OperatorOrder::CancelReboot | OperatorOrder::ClearReboots)
            .then(|| Self::Order(command.clone()))
    }

    /// Boot and uptime of the row, if it has them.
    pub(super) fn boot(&self) -> Option<BootDuration> {
        let decision = match self {
            Self::Decision(decision) => decision,
            Self::Lost { at } => return at.clone(),
            Self::Outcome(_) | Self::Checked { .. } | Self::Order(_) => return None,
        };
        let boot_id = match decision.action.reboot()? {
            RebootAct::Schedule(plan) => &plan.boot_id,
            RebootAct::Perform(order) => &order.boot_id,
            _ => return None,
        };
        (!boot_id.is_empty()).then(|| BootDuration {
            boot_id: Arc::clone(boot_id),
            uptime_ms: decision.at.timeline_ms(),
        })
    }
}

/// The state of reboots for this boot, from all rows, oldest first, and all boots in their order.
pub fn past_reboots(rows: &[RebootRow], boots: &[BootDuration], boot_id: &str) -> PastReboots {
    let known = PastReboots {
        boot_id: Some(Arc::from(boot_id)),
        is_slot_unknown: true,
        ..PastReboots::default()
    };
    let mut reading = Reading { boots, boot_id, known, open: None, boot: None, taken_by: None };
    for row in rows {
        match row {
            RebootRow::Decision(decision) => reading.decided(decision),
            RebootRow::Outcome(outcome) => reading.ended(outcome, rows),
            RebootRow::Checked { decision, result } => reading.checked(*decision, *result),
            RebootRow::Order(command) => reading.ordered(&command.order),
            RebootRow::Lost { at } => reading.lost(at.as_ref()),
        }
    }
    reading.known
}

struct Reading<'r> {
    boots: &'r [BootDuration],
    boot_id: &'r str,
    known: PastReboots,
    /// The last reboot scheduled in this boot and not cancelled.
    open: Option<ScheduledReboot>,
    /// The boot in which the last one was scheduled.
    boot: Option<Arc<str>>,
    /// The decision that first requested the slot that may be held.
    taken_by: Option<DecisionId>,
}

impl Reading<'_> {
    fn decided(&mut self, decision: &DecisionRecord) {
        let Some(act) = decision.action.reboot() else { return };
        if let RebootAct::Schedule(plan) = act {
            self.boot = Some(Arc::clone(&plan.boot_id));
        }
        match act {
            RebootAct::Schedule(plan) if *plan.boot_id == *self.boot_id => {
                let scheduled = ScheduledReboot {
                    decision: decision.id,
                    rule: decision.rule.clone(),
                    plan: plan.clone(),
                };
                self.open = Some(scheduled.clone());
                self.known.scheduled = Some(scheduled);
                self.known.is_called_off = false;
            }
            RebootAct::Schedule(_) | RebootAct::WarnUsers { .. } => {}
            RebootAct::TakeSlot(lock) => self.takes(lock, decision.id),
            RebootAct::ReleaseSlot(_) => {}
            RebootAct::CallOff { was_handed_over, .. } => {
                (self.open, self.known.scheduled) = (None, None);
                if *was_handed_over && let Some(last) = self.known.attempts.last_mut() {
                    last.result = last.result.or(Some(RebootResult::CalledOff));
                }
            }
            RebootAct::Perform(order) => {
                self.known.scheduled = None;
                let last = self.known.attempts.last();
                let is_second = order.how == RebootMeans::Sysrq
                    && last.is_some_and(|last| last.boot_id == order.boot_id);
                if !is_second {
                    let is_long_past = self.later_boots(&order.boot_id).next().is_some();
                    self.known.attempts.push(PastReboot {
                        decision: decision.id,
                        rule: decision.rule.clone(),
                        boot_id: Arc::clone(&order.boot_id),
                        uptime_ms: self.proved_ms(&order.boot_id, decision.at.timeline_ms()),
                        utc: decision.at.utc,
                        is_long_past,
                        plan: order.plan.clone(),
                        way: match &order.how {
                            RebootMeans::Way(way) => Some(way.clone()),
                            RebootMeans::Sysrq => None,
                        },
                        was_begun: None,
                        result: None,
                        is_cleared: false,
                    });
                }
            }
        }
    }

    fn takes(&mut self, lock: &RebootLock, decision: DecisionId) {
        // The slot is requested again while it is held.
        if self.known.slot.as_ref() != Some(lock) {
            self.known.slot = Some(lock.clone());
            self.known.is_slot_of_boot = self.boot.as_deref() == Some(self.boot_id);
            self.taken_by = Some(decision);
        }
    }

    fn has_no_slot(&mut self) {
        (self.known.slot, self.taken_by) = (None, None);
        self.known.is_slot_of_boot = false;
    }

    /// The time on this boot's clock, as far back as the uptimes of the boots since then prove.
    fn proved_ms(&self, boot_id: &str, uptime_ms: i64) -> i64 {
        if boot_id == self.boot_id {
            return uptime_ms;
        }
        let index = self.boots.iter().position(|boot| *boot.boot_id == *boot_id);
        let rest = index.map_or(0, |index| self.boots[index].uptime_ms.saturating_sub(uptime_ms));
        let later = self.later_boots(boot_id);
        later.fold(-rest.max(0), |sum, boot| sum.saturating_sub(boot.uptime_ms.max(0)))
    }

    /// The boots between that one and this.
    fn later_boots(&self, boot_id: &str) -> impl Iterator<Item = &BootDuration> {
        let index = self.boots.iter().position(|boot| *boot.boot_id == *boot_id);
        let later = &self.boots[index.map_or(0, |index| index + 1)..];
        let is_over = boot_id != self.boot_id;
        later.iter().filter(move |boot| is_over && *boot.boot_id != *self.boot_id)
    }

    fn ended(&mut self, outcome: &Outcome, rows: &[RebootRow]) {
        let is_untouched = !outcome.result.is_begun();
        let attempts = &mut self.known.attempts;
        if let Some(attempt) = attempts.iter_mut().find(|one| one.decision == outcome.decision) {
            attempt.was_begun = Some(!is_untouched);
            // It is still scheduled.
            if is_untouched && *attempt.boot_id == *self.boot_id {
                self.known.scheduled.clone_from(&self.open);
            }
            return;
        }
        if let Some(open) = &self.open
            && open.decision == outcome.decision
            && is_untouched
        {
            (self.open, self.known.scheduled) = (None, None);
            return;
        }
        match slot_act(outcome.decision, rows) {
            // The lock was not requested now, but may have been before.
            Some((true, _)) if is_untouched && self.taken_by == Some(outcome.decision) => {
                self.has_no_slot();
            }
            Some((false, lock))
                if outcome.result == OutcomeResult::Done
                    && self.known.slot.as_ref().is_none_or(|held| held == lock) =>
            {
                self.has_no_slot();
                self.known.is_slot_unknown = false;
            }
            _ => {}
        }
    }

    fn checked(&mut self, decision: DecisionId, result: RebootResult) {
        let attempts = &mut self.known.attempts;
        if let Some(attempt) = attempts.iter_mut().find(|one| one.decision == decision) {
            attempt.result = Some(result);
        }
    }

    fn lost(&mut self, at: Option<&BootDuration>) {
        self.known.is_newly_lost = at.is_none();
        self.known.is_slot_unknown = true;
        if let Some(boot) = at {
            self.known.lost_ms = Some(self.proved_ms(&boot.boot_id, boot.uptime_ms));
        }
    }

    fn ordered(&mut self, order: &OperatorOrder) {
        match order {
            OperatorOrder::CancelReboot => {
                self.known.is_called_off |= self.open.is_some();
                (self.open, self.known.scheduled) = (None, None);
            }
            OperatorOrder::ClearReboots => {
                self.known.is_called_off = false;
                (self.known.lost_ms, self.known.is_newly_lost) = (None, false);
                for attempt in &mut self.known.attempts {
                    attempt.is_cleared |= attempt.result != Some(RebootResult::Helped);
                }
            }
            _ => {}
        }
    }
}

/// Whether that decision takes the slot, or releases it; and which.
fn slot_act(decision: DecisionId, rows: &[RebootRow]) -> Option<(bool, &RebootLock)> {
    rows.iter().find_map(|row| match row {
        RebootRow::Decision(found) if found.id == decision => match found.action.reboot()? {
            RebootAct::TakeSlot(lock) => Some((true, lock)),
            RebootAct::ReleaseSlot(lock) => Some((false, lock)),
            _ => None,
        },
        _ => None,
    })
}
