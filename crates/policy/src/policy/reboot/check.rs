//! The check after the boot: whether it happened, and whether it has helped.

use super::{RebootContext, RebootFacts, Reboots, needs_reboot};
use crate::model::{Event, MemoryState, PastReboot, ProgramEvent, RebootResult, bytes_text};
use crate::policy::remedy::Condition;

impl Reboots {
    /// Checks attempts that have no result yet.
    pub(super) fn check(&mut self, condition: Option<Condition>, context: &mut RebootContext<'_>) {
        let Some(boot) = self.boot_id.clone() else { return };
        let last = self.attempts.len().checked_sub(1);
        for place in 0..self.attempts.len() {
            let attempt = &self.attempts[place];
            if attempt.result.is_some() || attempt.was_begun == Some(false) {
                continue;
            }
            let is_last = Some(place) == last;
            let checked = if attempt.boot_id == boot {
                let is_under_way = is_last && self.pending.is_some();
                (!is_under_way).then(|| {
                    let why = self.called_off.as_deref().unwrap_or("it did not happen");
                    let result = match is_last && self.was_called_off {
                        true => RebootResult::CalledOff,
                        false => RebootResult::NotRebooted,
                    };
                    (result, why.to_owned())
                })
            } else if is_last && !attempt.is_long_past {
                self.has_helped(attempt, condition, &context.facts())
            } else {
                let why = "the machine was rebooted again before it was checked";
                Some((RebootResult::Unknown, why.to_owned()))
            };
            if let Some((result, reason)) = checked {
                self.conclude(place, result, reason, context);
            }
        }
    }

    fn conclude(
        &mut self,
        place: usize,
        result: RebootResult,
        reason: String,
        context: &mut RebootContext<'_>,
    ) {
        let Some(attempt) = self.attempts.get_mut(place) else { return };
        attempt.result = Some(result);
        let kind = ProgramEvent::RebootChecked {
            decision: attempt.decision.0,
            ended_boot_id: attempt.boot_id.to_string(),
            result,
            reason,
        };
        self.has_changed = true;
        self.cells.count(result, context.counters);
        Self::report(context, Event { kind: kind.into(), utc: Some(context.at.utc), seq: None });
    }

    /// Whether the last reboot has helped, once that is known or was knowable for long.
    fn has_helped(
        &self,
        attempt: &PastReboot,
        condition: Option<Condition>,
        facts: &RebootFacts<'_>,
    ) -> Option<(RebootResult, String)> {
        // A leak or a wedge shows only after minutes of observation.
        let watched = facts.at.uptime.saturating_sub(self.restored);
        if watched < self.settings.check_after {
            return None;
        }
        let result = |result, why: String| Some((result, why));
        let state = facts.memory_state().unwrap_or(MemoryState::Unknown);
        if needs_reboot(state) {
            return result(RebootResult::DidNotHelp, format!("memory is {state} again"));
        }
        if condition == Some(Condition::Firing) {
            let why = format!("{} fires again", attempt.rule);
            return result(RebootResult::DidNotHelp, why);
        }
        if let (Some(before), Some(now)) = (attempt.plan.held_bytes, facts.assessment.held_bytes)
            && before > 0
            && now >= before
            && Self::is_for_memory(&attempt.plan)
        {
            let [before, now] = [before, now].map(bytes_text);
            let why = format!("{now} are in no counter of the kernel again, and {before} were");
            return result(RebootResult::DidNotHelp, why);
        }
        // What may bring it back is being tried, or something is not known yet.
        let is_open = matches!(state, MemoryState::Unknown | MemoryState::Reclaimable)
            || condition == Some(Condition::Unknown);
        if !is_open {
            return result(RebootResult::Helped, format!("memory is {state}"));
        }
        (watched >= self.settings.check_after * 2).then(|| {
            let why = format!("memory is {state}: whether it helped is unknown");
            (RebootResult::Unknown, why)
        })
    }
}
