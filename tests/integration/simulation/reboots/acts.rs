//! The executor of decisions, and its faults.

use std::time::Duration;

use umawarden::journal::JournalEntry;
use umawarden::model::{
    Action, DecisionRecord, Outcome, OutcomeResult, RebootAct, RebootMeans, RebootOrder,
};

use super::node::Node;

impl Node {
    pub fn carry_out(&mut self, decision: DecisionRecord) -> Result<(), String> {
        let Some(act) = decision.action.reboot().cloned() else {
            return self.remedy(&decision);
        };
        self.disk.record(&JournalEntry::Decision(decision.clone()));
        if let Err(why) = self.disk.intent(&decision) {
            self.report(&decision, OutcomeResult::NotDone(why));
            return Ok(());
        }
        // Between the intent and the act, and the outcome is lost with it.
        if self.chance.once_in(25) {
            self.dies = true;
            return Ok(());
        }
        let result = match act {
            RebootAct::Perform(order) => return self.perform(&decision, &order),
            RebootAct::TakeSlot(_) => self.take_slot(),
            RebootAct::ReleaseSlot(_) if self.chance.once_in(4) => OutcomeResult::TimedOut,
            RebootAct::ReleaseSlot(_) => {
                self.is_slot_ours = false;
                self.truth.released();
                OutcomeResult::Done
            }
            RebootAct::Schedule(_) | RebootAct::WarnUsers { .. } | RebootAct::CallOff { .. } => {
                OutcomeResult::Done
            }
        };
        if self.chance.once_in(15) {
            // It was done, and the outcome is lost.
            return Ok(());
        }
        self.report(&decision, result);
        Ok(())
    }

    /// Acts on memory and engines, which may fail or lose their outcome.
    fn remedy(&mut self, decision: &DecisionRecord) -> Result<(), String> {
        if !matches!(decision.action, Action::StopEngine { .. }) {
            self.report(decision, OutcomeResult::Done);
            return Ok(());
        }
        self.check_stop(decision)?;
        match self.chance.whole(0..=11) {
            0 => self.report(decision, OutcomeResult::NotDone("the disk is full".to_owned())),
            1 | 2 => self.report(decision, OutcomeResult::Failed("it goes on".to_owned())),
            3 => self.report(decision, OutcomeResult::TimedOut),
            // It has ended or not, and the outcome is lost.
            4 => self.engine = self.chance.once_in(2),
            _ => {
                self.engine = false;
                self.truth.counts.stopped += 1;
                self.report(decision, OutcomeResult::Done);
            }
        }
        Ok(())
    }

    fn take_slot(&mut self) -> OutcomeResult {
        if self.is_slot_busy && !self.is_slot_ours {
            self.truth.slot = None;
            return OutcomeResult::Failed("refused: failed_lock: another node".to_owned());
        }
        if self.chance.once_in(5) {
            return OutcomeResult::TimedOut;
        }
        self.is_slot_ours = true;
        self.truth.slot = Some(self.now);
        match self.chance.once_in(6) {
            // Granted, and the response is lost or garbled.
            true => OutcomeResult::Failed("no answer".to_owned()),
            false => OutcomeResult::Done,
        }
    }

    fn perform(&mut self, decision: &DecisionRecord, order: &RebootOrder) -> Result<(), String> {
        let context = format!("at {:?} in {}: {decision:?}", self.now, self.boot.id);
        if order.how != RebootMeans::Sysrq {
            self.check_reboot(&order.plan, &context)?;
        }
        match self.chance.whole(0..=9) {
            // The service refuses.
            0 => {
                self.truth.counts.refused += 1;
                let why = "an inhibitor blocks it".to_owned();
                self.truth.performed.remove(&self.boot.id);
                self.report(decision, OutcomeResult::NotDone(why));
            }
            1 => self.report(decision, OutcomeResult::Failed("no such unit".to_owned())),
            2 => self.report(decision, OutcomeResult::TimedOut),
            // The service agrees, and nothing happens.
            3 => self.report(decision, OutcomeResult::Done),
            // It may report a failure, and do it all the same.
            _ => self.fall(),
        }
        Ok(())
    }

    fn fall(&mut self) {
        self.truth.reboots.push((self.now, true));
        self.falls = true;
    }

    fn report(&mut self, decision: &DecisionRecord, result: OutcomeResult) {
        self.outcomes.push(Outcome {
            decision: decision.id,
            action: decision.action.name().to_owned(),
            result,
            ended: self.at(),
            took: Duration::ZERO,
            effect: None,
        });
    }
}
