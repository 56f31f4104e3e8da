//! Invariants of alerts, and of rules that cannot be evaluated.

use umawarden::model::{AlertChange, AlertState, RuleId};

use super::{
    Checker, Clock, HOLD_VALID_FOR, LATE, LOST_AFTER, Phase, Violation, broken, grades, reads,
};

impl Checker {
    /// A rule with unknown sources neither advances nor resolves. `begins` is about a rule whose
    /// condition must hold for its acts.
    pub(super) fn known_enough(
        &self,
        rule: &RuleId,
        clock: &Clock,
        begins: bool,
    ) -> Result<(), Violation> {
        let Some(watched) = self.rules.get(rule) else { return Ok(()) };
        let (text, failed) = (&watched.rule.expr.text, &self.failed);
        // An expression names its nodes, unless it reads all of them.
        let is_elsewhere = text.contains("{node=");
        let may_change = reads::may_hold(text, failed) || (!begins && reads::may_end(text, failed));
        if watched.is_unknown || !(is_elsewhere || may_change) {
            let what = format!("{rule} at {:?}, while {failed:?} cannot be read", clock.at.uptime);
            return broken("an unknown rule neither advances nor resolves", what);
        }
        Ok(())
    }

    /// An alert changes its state only as allowed.
    pub(super) fn change(&mut self, clock: &Clock, change: &AlertChange) -> Result<(), Violation> {
        const INVARIANT: &str = "alerts go from inactive to pending to firing";
        let Some(watched) = self.rules.get_mut(&change.rule) else {
            return broken("only loaded rules report", change.rule.to_string());
        };
        let now = clock.at.uptime;
        let known = watched.alerts.get(&change.labels).copied();
        let (from, since) = known.unwrap_or((AlertState::Inactive, now));
        if change.from != from {
            return broken(INVARIANT, format!("it was {from:?}: {change:?}"));
        }
        match (change.from, change.to) {
            (AlertState::Inactive, AlertState::Pending) => {
                watched.alerts.insert(change.labels.clone(), (AlertState::Pending, now));
            }
            (AlertState::Pending, AlertState::Firing) => {
                if now.saturating_sub(since) < watched.rule.hold_for {
                    return broken("a condition must hold for a while", format!("{change:?}"));
                }
                watched.alerts.insert(change.labels.clone(), (AlertState::Firing, now));
            }
            (AlertState::Inactive, AlertState::Firing) if watched.rule.hold_for.is_zero() => {
                watched.alerts.insert(change.labels.clone(), (AlertState::Firing, now));
            }
            (AlertState::Pending | AlertState::Firing, AlertState::Inactive) => {
                watched.alerts.remove(&change.labels);
            }
            _ => return broken(INVARIANT, format!("{change:?}")),
        }
        Ok(())
    }

    pub(super) fn note_firing(&mut self, clock: &Clock) {
        for watched in self.rules.values_mut() {
            if !watched.is_firing_here() {
                watched.firing_since = None;
            } else if watched.firing_since.is_none() {
                watched.firing_since = Some(clock.at.uptime);
            }
        }
    }

    /// A firing rule has acted and waits for the outcome, or has reported its reason, or does so at
    /// its next evaluation.
    pub(super) fn every_firing_rule_has_answered(
        &mut self,
        clock: &Clock,
    ) -> Result<(), Violation> {
        let now = clock.at.uptime;
        let pause = now.saturating_sub(std::mem::replace(&mut self.stepped, now));
        for (id, watched) in &mut self.rules {
            let (Some(since), Some(remedy)) = (watched.firing_since, &watched.rule.remedy) else {
                watched.silent_since = None;
                continue;
            };
            let mode = grades::mode_of(&self.rails, self.mode, &watched.rule);
            let is_awaited = match watched.phase(mode) {
                Phase::Acting { since, .. } => now - since < LOST_AFTER,
                Phase::Ended { .. } => true,
                Phase::Idle | Phase::Checked { .. } | Phase::Skipped { .. } => false,
            };
            let earliest = since.saturating_sub(HOLD_VALID_FOR);
            let has_said = watched.decided.is_some_and(|decided| decided >= earliest);
            let has_asked = remedy
                .rails
                .approval
                .is_some_and(|expires| self.people.has_request(clock, id, mode, expires));
            if is_awaited || has_said || has_asked {
                watched.silent_since = None;
                continue;
            }
            // After a suspend no report can exist yet.
            if pause > watched.interval + LATE {
                watched.silent_since = None;
            }
            let silent_since = *watched.silent_since.get_or_insert(now);
            if now - silent_since >= watched.patience() {
                let what = format!(
                    "{id} fires since {since:?}, last word {:?}, in {mode:?} {:?}",
                    watched.decided, watched.phases
                );
                return broken("every firing rule acts or gives its reason", what);
            }
        }
        Ok(())
    }
}
