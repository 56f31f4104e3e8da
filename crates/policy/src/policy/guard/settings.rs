//! Temporary settings: one remedy at a time holds a setting, and each is undone in the end.

use std::time::Duration;

use crate::model::{
    DecisionId, DecisionRecord, Grade, HoldReason, Mode, Outcome, OutcomeResult, RuleId, Target,
    UndoReason,
};
use crate::policy::act::{Act, Proposal};

/// How long after an undo that failed it is tried again, at first; it doubles.
const UNDONE_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// What it does not exceed.
const UNDONE_AGAIN_AT_MOST: Duration = Duration::from_secs(600);

/// Everything that remedies have changed for a while.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldSettings(Vec<HeldSetting>);

/// What one act has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HeldSetting {
    decision: DecisionId,
    rule: RuleId,
    mode: Mode,
    step: usize,
    target: Target,
    grade: Grade,
    /// On the uptime clock.
    until: Duration,
    phase: SettingPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettingPhase {
    /// Set, or about to be.
    Set,
    /// It is being undone.
    Undoing { undo: Act, why: UndoReason, failures: u32 },
    /// That has failed.
    Waiting { why: UndoReason, failures: u32, until: Duration },
    /// Undone since its time was over; its alert goes on.
    TimedOut,
}

/// An act that is to be undone now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::policy) struct DueUndo {
    pub(in crate::policy) decision: DecisionId,
    pub(in crate::policy) rule: RuleId,
    pub(in crate::policy) mode: Mode,
    pub(in crate::policy) step: usize,
    pub(in crate::policy) target: Target,
    pub(in crate::policy) grade: Grade,
    pub(in crate::policy) why: UndoReason,
}

impl HeldSettings {
    /// Why that must not be set now.
    pub(super) fn hold(&self, proposal: &Proposal<'_>) -> Option<HoldReason> {
        proposal.action.for_at_most()?;
        let same_mode = self.0.iter().filter(|held| held.mode == proposal.mode);
        let mut sharing =
            same_mode.filter(|held| held.target.shared_setting(proposal.target).is_some());
        if sharing.any(|held| held.is_in_force() && held.rule != *proposal.rule) {
            return Some(HoldReason::SettingHeld);
        }
        self.has_set(proposal).then_some(HoldReason::InForce)
    }

    /// Whether the same rule has set a part of that already, or did for its time, even if another
    /// rule holds it now.
    pub(super) fn has_set(&self, proposal: &Proposal<'_>) -> bool {
        let mut its =
            self.0.iter().filter(|held| held.mode == proposal.mode && held.rule == *proposal.rule);
        its.any(|held| held.target.shared_setting(proposal.target).is_some())
    }

    /// The rules that hold the proposed settings, in words.
    pub(super) fn holder(&self, proposal: &Proposal<'_>) -> Option<String> {
        let mut held =
            self.0.iter().filter(|held| held.mode == proposal.mode && held.is_in_force());
        held.find_map(|held| {
            let setting = held.target.shared_setting(proposal.target)?;
            Some(format!("{setting} is held by #{} of {}", held.decision, held.rule))
        })
    }

    /// Whether what that act has set is, as far as is known.
    pub(super) fn is_in_force(&self, decision: DecisionId) -> bool {
        self.0.iter().any(|held| held.decision == decision)
    }

    /// An act or an undo has been decided.
    pub(super) fn decided(&mut self, decision: &DecisionRecord) {
        let Some(for_at_most) = decision.action.for_at_most() else { return };
        self.0.push(HeldSetting {
            decision: decision.id,
            rule: decision.rule.clone(),
            mode: decision.mode,
            step: decision.step,
            target: decision.target.clone(),
            grade: decision.action.grade(),
            until: decision.at.uptime.saturating_add(for_at_most),
            phase: SettingPhase::Set,
        });
    }

    /// What that decision has set is being undone.
    pub(super) fn undoing(&mut self, set: DecisionId, undo: Act, why: UndoReason) {
        if let Some(held) = self.0.iter_mut().find(|held| held.decision == set) {
            let failures = match held.phase {
                SettingPhase::Waiting { failures, .. } => failures,
                _ => 0,
            };
            held.phase = SettingPhase::Undoing { undo, why, failures };
        }
    }

    /// What failed or was not begun has touched nothing. What has not ended in time may have been
    /// done all the same.
    pub(super) fn observe_outcome(&mut self, outcome: &Outcome) {
        if matches!(outcome.result, OutcomeResult::Failed(_) | OutcomeResult::NotDone(_)) {
            self.0.retain(|held| held.decision != outcome.decision);
        }
        let is_undone = matches!(outcome.result, OutcomeResult::Done | OutcomeResult::Skipped);
        self.0.retain_mut(|held| match held.phase {
            SettingPhase::Undoing { undo, why, .. } if undo.is_of(outcome) => {
                if !is_undone {
                    held.undo_failed(outcome.ended.uptime);
                    return true;
                }
                // Setting it again for the same alert would never end.
                held.phase = SettingPhase::TimedOut;
                why == UndoReason::TimedOut
            }
            _ => true,
        });
    }

    /// The settings to undo at that moment. `fires` returns whether a rule fires in that mode;
    /// `None` where there is no such rule.
    pub(super) fn due(
        &mut self,
        now: Duration,
        fires: impl Fn(&RuleId, Mode, Grade) -> Option<bool>,
    ) -> Vec<DueUndo> {
        let mut due = Vec::new();
        self.0.retain_mut(|held| {
            let fires = fires(&held.rule, held.mode, held.grade);
            let ended = match fires {
                None => Some(UndoReason::RuleChanged),
                Some(false) => Some(UndoReason::AlertEnded),
                Some(true) => None,
            };
            let why = match held.phase {
                SettingPhase::TimedOut => return ended.is_none(),
                SettingPhase::Set => {
                    let timed_out = (now >= held.until).then_some(UndoReason::TimedOut);
                    ended.or(timed_out)
                }
                SettingPhase::Waiting { why, until, .. } => (now >= until).then_some(why),
                SettingPhase::Undoing { undo, .. } => {
                    if undo.is_lost(now) {
                        held.undo_failed(now);
                    }
                    None
                }
            };
            due.extend(why.map(|why| held.due(why)));
            true
        });
        // What was set last is put back first.
        due.reverse();
        due
    }
}

impl HeldSetting {
    fn is_in_force(&self) -> bool {
        self.phase != SettingPhase::TimedOut
    }

    fn due(&self, why: UndoReason) -> DueUndo {
        DueUndo {
            decision: self.decision,
            rule: self.rule.clone(),
            mode: self.mode,
            step: self.step,
            target: self.target.clone(),
            grade: self.grade,
            why,
        }
    }

    fn undo_failed(&mut self, now: Duration) {
        let SettingPhase::Undoing { why, failures, .. } = self.phase else { return };
        let wait = UNDONE_AGAIN_AFTER.saturating_mul(1 << failures.min(16));
        let until = now.saturating_add(wait.min(UNDONE_AGAIN_AT_MOST));
        self.phase = SettingPhase::Waiting { why, failures: failures.saturating_add(1), until };
    }
}
