//! What must hold of alerts, and of rules that cannot be judged.

use umawarden::model::{AlertChange, AlertState, RuleId};

use super::{Checker, Clock, Course, HELD_BEFORE, LATE, LOST_AFTER, Violation, broken, reads};

impl Checker {
    /// A rule about which too little is known neither advances nor resolves. `begins` is told of one
    /// whose condition must hold for what it does.
    pub(super) fn known_enough(
        &self,
        rule: &RuleId,
        clock: &Clock,
        begins: bool,
    ) -> Result<(), Violation> {
        let Some(watched) = self.rules.get(rule) else { return Ok(()) };
        let (text, failed) = (&watched.rule.expr.text, &self.failed);
        // Which node is read is written, if it is not all.
        let is_elsewhere = text.contains("{node=");
        let may_be_told =
            reads::may_hold(text, failed) || (!begins && reads::may_end(text, failed));
        if watched.is_unknown || !(is_elsewhere || may_be_told) {
            let what = format!("{rule} at {:?}, while {failed:?} cannot be read", clock.at.uptime);
            return broken("what is unknown neither advances nor resolves", what);
        }
        Ok(())
    }

    /// An alert goes from state to state as it may.
    pub(super) fn change(&mut self, clock: &Clock, change: &AlertChange) -> Result<(), Violation> {
        const INVARIANT: &str = "alerts go from inactive to pending to firing";
        let Some(watched) = self.rules.get_mut(&change.rule) else {
            return broken("only loaded rules speak", change.rule.to_string());
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

    /// A rule that fires has acted and is waiting for what comes of it, or has said why not, or
    /// does so when it is evaluated next.
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
            let mode = watched.rule.mode.unwrap_or(self.mode);
            let is_awaited = match watched.course(mode) {
                Course::Acting { since, .. } => now - since < LOST_AFTER,
                Course::Ended { .. } => true,
                Course::Idle | Course::Judged { .. } | Course::Skipped { .. } => false,
            };
            let earliest = since.saturating_sub(HELD_BEFORE);
            let has_said = watched.decided.is_some_and(|decided| decided >= earliest);
            let has_asked = remedy
                .rails
                .approval
                .is_some_and(|expires| self.people.are_asked(clock, id, mode, expires));
            if is_awaited || has_said || has_asked {
                watched.silent_since = None;
                continue;
            }
            // After a suspend nothing can have been said yet.
            if pause > watched.interval + LATE {
                watched.silent_since = None;
            }
            let silent_since = *watched.silent_since.get_or_insert(now);
            if now - silent_since >= watched.patience() {
                let what = format!(
                    "{id} fires since {since:?}, last word {:?}, in {mode:?} {:?}",
                    watched.decided, watched.courses
                );
                return broken("every firing rule acts or says why not", what);
            }
        }
        Ok(())
    }
}
