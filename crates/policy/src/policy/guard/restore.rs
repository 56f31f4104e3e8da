//! What earlier runs did, brought back: a restart and a reboot reset nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::approval::stays_open;
use super::{DEFAULT_APPROVAL_EXPIRES, Guard};
use crate::model::{
    EarlierRuns, Mode, Moment, OperatorCommand, OperatorOrder, PastAct, PendingApproval, RuleId,
};

/// Wall clocks before this (2025) were not set: this program is younger.
const CLOCK_NOT_SET_BEFORE_MS: i64 = 1_735_689_600_000;

/// When something happened, by the clocks of then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastMoment {
    /// Both clocks.
    pub at: Moment,
    /// Whether it was in this boot, so that the uptime clock is valid for it.
    pub is_this_boot: bool,
}

/// When things happened on this boot's uptime clock, in milliseconds, given in the order in which
/// they did. Within this boot that clock counts. Before it only the wall clock can: where it was
/// not set, was set back in between, or is behind now, the latest possible time counts, right
/// before this boot.
pub fn on_this_boots_clock(now: Moment, moments: &[PastMoment]) -> Vec<i64> {
    let mut latest = i64::MIN;
    let mut times = Vec::with_capacity(moments.len());
    for PastMoment { at, is_this_boot } in moments {
        let (utc_ms, now_ms) = (at.utc_ms(), now.utc_ms());
        let lies_ahead = utc_ms > now_ms;
        let is_trusted = !lies_ahead && utc_ms >= latest && utc_ms >= CLOCK_NOT_SET_BEFORE_MS;
        if !lies_ahead {
            latest = latest.max(utc_ms);
        }
        times.push(if *is_this_boot {
            at.timeline_ms().min(now.timeline_ms())
        } else if is_trusted {
            now.timeline_ms().saturating_sub(now_ms.saturating_sub(utc_ms)).min(0)
        } else {
            0
        });
    }
    times
}

impl Guard {
    /// Restores acts and orders of earlier runs; from now on remedies may act.
    pub(in crate::policy) fn restore(&mut self, past: &EarlierRuns, at: Moment) {
        self.awaits_past = false;
        self.lost_before_ms = past.lost_before_ms.or(self.lost_before_ms);
        for (act, ends_round) in past.acts.iter().zip(round_ends(&past.acts)) {
            self.restore_act(act, ends_round && !is_announced_after(act, past));
        }
        for asked in &past.asked {
            if past.acts.iter().any(|act| act.approved == Some(asked.decision)) {
                continue;
            }
            let time = self.own.get(&asked.rule).and_then(|rails| rails.approval);
            let time = time.unwrap_or(DEFAULT_APPROVAL_EXPIRES);
            let open = stays_open(asked.goes_ahead.is_some(), time);
            let expires = open.max(denied_for(asked, &past.commands));
            self.approvals.ask(asked.clone(), expires, at);
        }
        for command in standing(&past.commands) {
            // An ended silence needs no report.
            drop(self.obey(command, at));
        }
        self.status = None;
    }

    fn restore_act(&mut self, act: &PastAct, ends_round: bool) {
        if !act.is_notice && !act.takes_from_engine {
            self.spent.of_mut(act.mode).add(act.uptime_ms);
        }
        if let Some(action) = act.fleet_action.filter(|_| act.mode == Mode::Enforce) {
            self.fleet.acted(action, act.uptime_ms);
        }
        let account = self.ledger.account_mut(&act.rule, act.mode);
        account.act(act.id, act.uptime_ms, act.is_notice, act.engine.as_deref());
        account.check_aim(act.aim_met);
        account.died(act.died_in);
        if !act.has_ended {
            account.cut_off();
        }
        // What was started and has neither failed nor lived for long goes on.
        let goes_on = act.started_after.is_some() && act.has_ended && act.aim_met.is_none();
        if !ends_round || goes_on {
            return;
        }
        account.end_round(act.uptime_ms);
        if act.is_forgiven {
            account.clear_misses_of(act.engine.as_deref());
        }
    }
}

/// Whether the step after that act was announced: its round is not over.
fn is_announced_after(act: &PastAct, past: &EarlierRuns) -> bool {
    past.asked.iter().any(|asked| {
        asked.goes_ahead.is_some()
            && (&asked.rule, asked.mode, asked.step) == (&act.rule, act.mode, act.step + 1)
            && asked.decision > act.id
    })
}

/// How long after a question its denial lasts: it must be known for as long.
fn denied_for(asked: &PendingApproval, commands: &[OperatorCommand]) -> Duration {
    let denials = commands.iter().filter_map(|command| match command.order {
        OperatorOrder::Deny { decision, until } if decision == asked.decision => Some(until),
        _ => None,
    });
    let last = denials.max().map(|until| until.duration_since(asked.since));
    last.and_then(|lasts| Duration::try_from(lasts).ok()).unwrap_or_default()
}

/// The orders that still count. A later answer to the same question has taken the place of an
/// earlier one, even where the later one has lapsed. Resets of breakers are
/// restored with the acts, which have the order.
fn standing(commands: &[OperatorCommand]) -> impl Iterator<Item = &OperatorCommand> {
    let answered = |command: &OperatorCommand| match command.order {
        OperatorOrder::Approve { decision, .. } | OperatorOrder::Deny { decision, .. } => {
            Some(decision)
        }
        _ => None,
    };
    commands.iter().enumerate().filter_map(move |(place, command)| match command.order {
        OperatorOrder::ResetBreaker { .. } => None,
        OperatorOrder::Approve { decision, .. } | OperatorOrder::Deny { decision, .. } => {
            let mut later = commands[place + 1..].iter().filter_map(answered);
            (!later.any(|later| later == decision)).then_some(command)
        }
        _ => Some(command),
    })
}

/// Whether each act was the last of its round: the next one of its rule is not the next step.
fn round_ends(acts: &[PastAct]) -> Vec<bool> {
    let mut next_steps: BTreeMap<(&RuleId, Mode), usize> = BTreeMap::new();
    let backwards = acts.iter().rev().map(|act| {
        let next = next_steps.insert((&act.rule, act.mode), act.step);
        next != Some(act.step + 1)
    });
    let mut ends: Vec<bool> = backwards.collect();
    ends.reverse();
    ends
}
