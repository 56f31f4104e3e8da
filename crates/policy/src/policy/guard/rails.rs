//! What each guard rail says of a remedy, in words.

use std::time::Duration;

use promql_rules::Labels;

use super::{AtMost, Guard, GuardedProposal, milliseconds};
use crate::model::{FleetAction, HoldReason, Moment, Target, because, duration_text};

/// One reason to hold back, and whether it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rail {
    /// The reason for which a guard rail can hold.
    pub reason: HoldReason,
    /// Whether it holds the remedy back now, or would if the rule fired.
    pub holds: bool,
    /// How much longer, where time alone ends it.
    pub left: Option<Duration>,
    /// How much of a bound is used up, and the bound.
    pub used: Option<(u64, u64)>,
    /// The same in words.
    pub detail: String,
}

impl Guard {
    /// What that rail says of an act that a remedy would make now; `None` where the reason is not
    /// one of these rails.
    pub(in crate::policy) fn rail(
        &self,
        reason: HoldReason,
        guarded: &GuardedProposal<'_>,
        at: Moment,
    ) -> Option<Rail> {
        let now_ms = at.timeline_ms();
        let (proposal, rails) = (&guarded.proposal, guarded.rails);
        let is_notice = proposal.action.is_notice();
        let (holds, detail) = match reason {
            HoldReason::Cooldown => return Some(self.cooldown(guarded, now_ms)),
            HoldReason::Budget => {
                let acts = self.spent_by(guarded).map(|spent| &spent.acts);
                return Some(budget(reason, acts, rails.at_most, now_ms));
            }
            HoldReason::GlobalBudget if is_notice => (false, "notices do not count".to_owned()),
            HoldReason::GlobalBudget if proposal.action.takes_from_engine() => {
                (false, "what an engine can spare does not count".to_owned())
            }
            HoldReason::GlobalBudget => {
                let acts = self.spent.of(proposal.mode);
                return Some(budget(reason, Some(acts), self.rails.budget, now_ms));
            }
            HoldReason::Paused => self.paused(),
            HoldReason::JournalUnreadable => {
                let holds = self.is_past_unknown(rails, now_ms);
                let word = if holds { "not known" } else { "known" };
                (holds, format!("what earlier runs did is {word}"))
            }
            HoldReason::Silenced => self.silenced(guarded, at),
            HoldReason::Inhibited => self.inhibited(guarded),
            HoldReason::Maintenance => {
                let holds = self.is_out_of_hours(rails);
                let word = if holds { "forbids" } else { "forbids nothing" };
                (holds, format!("the calendar {word} now"))
            }
            HoldReason::BreakerOpen => self.broken(guarded, now_ms),
            HoldReason::Protected => self.protected(guarded),
            HoldReason::NoTarget => (!proposal.target.is_possible(), target_text(proposal.target)),
            HoldReason::Busy => self.busy(guarded, at),
            HoldReason::SettingHeld | HoldReason::InForce => return self.setting(reason, guarded),
            HoldReason::Approval | HoldReason::Announced | HoldReason::Denied => {
                return Some(self.approval_rail(reason, guarded, at));
            }
            HoldReason::NotEnforced => self.unenforced(guarded),
            HoldReason::FleetTurn | HoldReason::FleetLimit | HoldReason::FleetUnknown => {
                return self.fleet_rail(reason, guarded, at);
            }
            HoldReason::AimMet
            | HoldReason::Unknown
            | HoldReason::StepsExhausted
            | HoldReason::UnclearTarget
            | HoldReason::NotStartedAgain
            | HoldReason::Unconfirmed
            | HoldReason::Memory
            | HoldReason::BackOff
            | HoldReason::OtherStarts
            | HoldReason::OtherNodes
            | HoldReason::Stopped
            | HoldReason::StopUnclear
            | HoldReason::NoCause
            | HoldReason::RebootUnderWay
            | HoldReason::RebootBudget
            | HoldReason::GivenUp
            | HoldReason::MinimumUptime
            | HoldReason::BootUnknown
            | HoldReason::LoggedIn
            | HoldReason::EnginesRun
            | HoldReason::Blocked
            | HoldReason::NoSlot
            | HoldReason::CalledOff => return None,
        };
        Some(Rail { reason, holds, left: None, used: None, detail })
    }

    fn approval_rail(&self, reason: HoldReason, guarded: &GuardedProposal<'_>, at: Moment) -> Rail {
        let found = self.approval(guarded, at);
        let holds = found == Err(reason);
        let due = self.approvals.goes_ahead_at(guarded.proposal.rule).filter(|_| holds);
        let left = due.filter(|_| reason == HoldReason::Announced);
        let left = left.and_then(|due| Duration::try_from(due.duration_since(at.utc)).ok());
        let detail = match (reason, found) {
            (HoldReason::Approval, Ok(None)) => "no approval is required".to_owned(),
            (HoldReason::Approval, Ok(Some(decision))) => format!("#{decision} is approved"),
            (HoldReason::Approval, Err(HoldReason::Approval)) => {
                "a person must approve, and has not".to_owned()
            }
            (HoldReason::Approval, Err(_)) => "it goes ahead unless it is denied".to_owned(),
            (HoldReason::Announced, _) if holds => match due {
                Some(due) => format!("it goes ahead at {due:.0} unless a person denies it"),
                None => "it has to be announced first".to_owned(),
            },
            (HoldReason::Announced, _) => "nothing is announced".to_owned(),
            _ if holds => "a person has denied it".to_owned(),
            _ => "nobody has denied it".to_owned(),
        };
        Rail { reason, holds, left, used: None, detail }
    }

    fn fleet_rail(
        &self,
        reason: HoldReason,
        guarded: &GuardedProposal<'_>,
        at: Moment,
    ) -> Option<Rail> {
        let action = FleetAction::of(guarded.proposal.action)?;
        if guarded.is_free_of_fleet {
            let detail = "an engine that has lost a rank serves nobody".to_owned();
            return Some(Rail { reason, holds: false, left: None, used: None, detail });
        }
        let detail = self.fleet.explain(&self.rails.fleet, action, at)?;
        let holds = self.hold_for_fleet(guarded, at) == Some(reason);
        Some(Rail { reason, holds, left: None, used: None, detail })
    }

    fn protected(&self, guarded: &GuardedProposal<'_>) -> (bool, String) {
        let (proposal, none) = (&guarded.proposal, Labels::from([]));
        let labels = guarded.labels.unwrap_or(&none);
        let is_notice = proposal.action.is_notice();
        let holds = !is_notice && self.rails.protect.protects(proposal.target, labels);
        let word = if holds { "protected" } else { "not protected" };
        (holds, format!("{} is {word}", proposal.target))
    }

    fn unenforced(&self, guarded: &GuardedProposal<'_>) -> (bool, String) {
        let grade = guarded.proposal.action.grade();
        let holds = !self.enforces(grade);
        let word = if holds { "not enforced" } else { "enforced" };
        (holds, format!("grade {grade} is {word}"))
    }

    fn paused(&self) -> (bool, String) {
        match &self.pause {
            Some(pause) => (true, because(&format!("paused by {}", pause.author), &pause.comment)),
            None => (false, "the program is not paused".to_owned()),
        }
    }

    fn busy(&self, guarded: &GuardedProposal<'_>, at: Moment) -> (bool, String) {
        let proposal = &guarded.proposal;
        match self.under_way.excluder(proposal.mode, proposal.action) {
            Some((decision, since)) if !proposal.action.is_notice() => {
                let since = duration_text(at.uptime.saturating_sub(since));
                (true, format!("the action of #{decision} is under way for {since}"))
            }
            _ => (false, "no action is under way".to_owned()),
        }
    }

    fn cooldown(&self, guarded: &GuardedProposal<'_>, now_ms: i64) -> Rail {
        let cooldown = guarded.rails.cooldown;
        let since_ms = self.spent_by(guarded).and_then(|spent| spent.rests_since_ms);
        let left_ms = since_ms
            .map_or(0, |since| milliseconds(cooldown).saturating_sub(now_ms.saturating_sub(since)));
        let left = (left_ms > 0 && guarded.proposal.step == 0).then(|| duration(left_ms));
        let whole = duration_text(cooldown);
        let detail = match left {
            Some(left) => format!("rests for {} more, of {whole}", duration_text(left)),
            None => format!("it rests for {whole} after a round, and does not now"),
        };
        Rail { reason: HoldReason::Cooldown, holds: left.is_some(), left, used: None, detail }
    }

    fn silenced(&self, guarded: &GuardedProposal<'_>, at: Moment) -> (bool, String) {
        let selects = |rules: &crate::model::RuleSelector| rules.selects(guarded.proposal.rule);
        let mut silences = self.silences.all().iter();
        match silences.find(|silence| silence.until > at.utc && selects(&silence.rules)) {
            Some(silence) => {
                let (id, author, until) = (silence.id, &silence.author, silence.until);
                let what = format!("silence {id} of {author} until {until:.0}");
                (true, because(&what, &silence.comment))
            }
            None => (false, "no silence is in force for it".to_owned()),
        }
    }

    fn inhibited(&self, guarded: &GuardedProposal<'_>) -> (bool, String) {
        let own = guarded.rails.inhibited_by.iter();
        let names: Vec<&str> = own.chain(&self.rails.inhibited_by).map(|name| &**name).collect();
        let names = names.join(", ");
        match self.is_inhibited(guarded.proposal.rule, guarded.rails) {
            true => (true, format!("one of {names} fires, or cannot be evaluated")),
            false if names.is_empty() => (false, "no alert inhibits it".to_owned()),
            false => (false, format!("none of {names} fires")),
        }
    }

    fn setting(&self, reason: HoldReason, guarded: &GuardedProposal<'_>) -> Option<Rail> {
        let proposal = &guarded.proposal;
        proposal.action.for_at_most()?;
        let holds = self.settings.hold(proposal) == Some(reason);
        let detail = match (reason, self.settings.holder(proposal)) {
            (HoldReason::SettingHeld, Some(held)) if holds => held,
            (HoldReason::SettingHeld, _) => "no other remedy holds what it would set".to_owned(),
            _ if holds => "what it would set is in force, or was for its time".to_owned(),
            _ => "what it would set is not in force".to_owned(),
        };
        Some(Rail { reason, holds, left: None, used: None, detail })
    }

    fn broken(&self, guarded: &GuardedProposal<'_>, now_ms: i64) -> (bool, String) {
        let Some(limit) = self.breaker(guarded.rails).filter(|limit| limit.misses > 0) else {
            return (false, "it has no breaker".to_owned());
        };
        let misses = self.missed_by(guarded).map_or(0, |missed| missed.misses.in_a_row());
        let mut detail = format!("the aim was missed {misses} times in a row, of {}", limit.misses);
        let is_open = self.breaker_is_open(guarded, now_ms);
        if let (true, false, Some(after)) = (misses >= limit.misses, is_open, limit.reset_after) {
            let after = duration_text(after);
            detail.push_str(&format!("; {after} (reset_after) have passed, it may try once more"));
        }
        (is_open, detail)
    }
}

/// What it works on, or why there is no such thing.
fn target_text(target: &Target) -> String {
    match target {
        Target::Cgroup { path } if path.is_empty() => "the alert names no control group".to_owned(),
        possible if possible.is_possible() => format!("it works on {possible}"),
        Target::Engine(_) => "no engine is there to be stopped".to_owned(),
        impossible => format!("{impossible} cannot be one"),
    }
}

fn duration(milliseconds: i64) -> Duration {
    Duration::from_millis(milliseconds.max(0).unsigned_abs())
}

fn budget(
    reason: HoldReason,
    acts: Option<&super::budget::Acts>,
    limit: Option<AtMost>,
    now_ms: i64,
) -> Rail {
    let Some(limit) = limit else {
        let detail = "there is no bound".to_owned();
        return Rail { reason, holds: false, left: None, used: None, detail };
    };
    let allowed = acts.map_or(limit.times, |acts| acts.left(limit, now_ms));
    let used = limit.times.saturating_sub(allowed);
    let free_in = acts.and_then(|acts| acts.free_in_ms(limit, now_ms)).map(duration);
    let per = duration_text(limit.per);
    let mut detail = format!("{used} of {} used in the last {per}", limit.times);
    if let Some(free_in) = free_in {
        detail.push_str(&format!(", the next in {}", duration_text(free_in)));
    }
    let used = Some((u64::from(used), u64::from(limit.times)));
    Rail { reason, holds: allowed == 0, left: free_in, used, detail }
}
