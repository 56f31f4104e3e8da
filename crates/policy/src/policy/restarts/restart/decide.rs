//! Whether one is started now, and why not.

use std::sync::Arc;
use std::time::Duration;

use super::{Restart, StartAttempt, is_before_boot};
use crate::model::{
    Action, Decision, DecisionRecord, Event, Evidence, GangStart, Grade, HoldReason, Mode,
    OnRequest, RestartState, Supervisor, Target, WorkloadEnd, WorkloadState, counted,
    duration_text,
};
use crate::policy::Context;
use crate::policy::act::{Act, Proposal};
use crate::policy::guard::GuardedProposal;
use crate::policy::restarts::memory;

impl Restart {
    /// Decides whether it is started now; returns whether anything has changed.
    pub(in crate::policy::restarts) fn decide(
        &mut self,
        occupant: Option<Arc<str>>,
        context: &mut Context<'_>,
        events: &mut Vec<Event>,
    ) -> bool {
        let WorkloadState::Ended(end) = &self.seen.state else { return false };
        if self.attempt.is_some() || !self.is_down {
            return false;
        }
        let mut end = end.clone();
        let is_killed =
            end.requested == OnRequest::Unknown && context.kills.explain(&self.seen.target, &end);
        if is_killed || context.kills.stopped_for_start(&self.family, &end) {
            end.requested = OnRequest::No;
        }
        let mode = self.mode(context.mode, context.guard);
        let action = match self.supervisor() {
            Supervisor::Docker => Action::StartContainer { ended: Arc::clone(&end.mark) },
            Supervisor::Systemd | Supervisor::SystemdOfUser(_) => {
                Action::StartUnit { ended: Arc::clone(&end.mark) }
            }
            // They restart nothing for us.
            Supervisor::DockerOfUser(_) | Supervisor::Cri => return false,
        };
        let target = Target::Workload(Box::new(self.seen.target.clone()));
        let ruling = self.rule_on(&end, mode, occupant, (&action, &target), context);
        let has_changed = self.gang != ruling.gang || self.wait != ruling.wait;
        self.gang.clone_from(&ruling.gang);
        self.wait = ruling.wait;
        if ruling.reason.is_none() && self.rehearsed.as_ref() == Some(&end.mark) {
            let reason = match context.guard.enforces(Grade::Restart) {
                true => "it would be started now (observe mode)".into(),
                false => "it would be started now; the grade restart is not enforced".into(),
            };
            return self.set_state(RestartState::Waiting, reason, context.at, events);
        }
        let now = context.at.uptime;
        let is_new = ruling.reason.is_none_or(|reason| self.holds.hold(reason, now));
        if is_new {
            let decision = ruling.reason.map_or(Decision::Act, Decision::Hold);
            let (rule, action, target) = (&self.rule, &action, &target);
            let proposal = Proposal { rule, mode, step: 0, action, target };
            let decision = proposal.decide(decision, context.numbers, context.at);
            let decision = DecisionRecord { because: ruling.because, ..decision };
            let act = Act::pending(decision.id, now);
            let is_act = decision.is_act();
            context.guard.decided(&decision, &self.rails);
            context.step.decisions.push(decision);
            if is_act {
                let after = end.mark;
                self.attempt = Some(StartAttempt { act, mode, after, is_counted: false });
                self.last_act = Some(act.decision);
                self.holds.forget();
            }
        }
        if is_new {
            self.is_reported = false;
        }
        let state = match ruling.reason {
            None if mode == Mode::Enforce => RestartState::Starting,
            Some(HoldReason::BreakerOpen) => RestartState::GivenUp,
            Some(HoldReason::Stopped | HoldReason::StopUnclear) => RestartState::Stopped,
            _ => RestartState::Waiting,
        };
        self.set_state(state, ruling.text.into(), context.at, events) || has_changed
    }

    fn rule_on(
        &self,
        end: &WorkloadEnd,
        mode: Mode,
        occupant: Option<Arc<str>>,
        (action, target): (&Action, &Target),
        context: &Context<'_>,
    ) -> StartRuling {
        let at = context.at;
        let was_stopped = self.earlier_state == Some(RestartState::Stopped);
        if end.requested == OnRequest::Yes || was_stopped {
            let text = format!("it was stopped on request ({end}): start it by hand");
            return StartRuling::hold(HoldReason::Stopped, text);
        }
        // A stopped unit may end with 0, and so may one that gives up.
        let is_unit = self.supervisor().is_systemd();
        let looks_requested = end.looks_requested() || is_unit && end.exit_code == Some(0);
        if end.requested == OnRequest::Unknown && looks_requested && !is_before_boot(end, at) {
            let why = match end.are_stops_silent {
                true => "Podman does not report stops",
                false => "it was not watched",
            };
            let text =
                format!("it ended as if stopped on request ({end}), and {why}: start it by hand");
            return StartRuling::hold(HoldReason::StopUnclear, text);
        }
        if context.reboots.is_leaving() {
            let text = format!("it ended ({end}), and the machine is about to be rebooted");
            return StartRuling::hold(HoldReason::RebootUnderWay, text);
        }
        let proposal = Proposal { rule: &self.rule, mode, step: 0, action, target };
        let guarded =
            GuardedProposal { proposal, rails: &self.rails, labels: None, is_free_of_fleet: true };
        if let Some(reason) = context.guard.hold(&guarded, at) {
            let text = match reason {
                HoldReason::BreakerOpen => format!(
                    "it died {} in a row ({end}): `umawarden breaker reset {}` lets it go on, and \
                     so does a start by hand that goes well",
                    counted(u64::from(self.deaths), "time"),
                    self.rule
                ),
                other => format!("it died ({end}); {}", other.meaning()),
            };
            return StartRuling::hold(reason, text);
        }
        let back_off = self.back_off();
        let waits = back_off.saturating_sub(at.uptime.saturating_sub(self.turned));
        if !waits.is_zero() {
            // What is left of it is not in the text, since `wait` is shown beside it.
            let deaths = counted(u64::from(self.deaths), "time");
            let first = format!("waits {} before a start", duration_text(back_off));
            let text = format!("it died {deaths} in a row ({end}), and {first}");
            return StartRuling {
                wait: Some(waits),
                ..StartRuling::hold(HoldReason::BackOff, text)
            };
        }
        if let Some(waits) = self.waits_for_ranks(context) {
            return StartRuling::hold(HoldReason::OtherNodes, format!("it died ({end}); {waits}"));
        }
        if let Some(occupant) = occupant {
            let text =
                format!("it died ({end}), and waits until {occupant} is ready or has failed");
            return StartRuling::hold(HoldReason::OtherStarts, text);
        }
        let names = self.names();
        let memory = memory::check(&self.seen, (self.peak_bytes, &self.family), &names, context);
        if !memory.reasons.is_empty() {
            let text = format!("it died ({end}), and waits: {}", memory.reasons.join("; "));
            return StartRuling {
                because: memory.because,
                wait: memory.wait,
                ..StartRuling::hold(HoldReason::Memory, text)
            };
        }
        if let Some(reason) = context.guard.hold_act(&guarded, at) {
            let text = format!("it died ({end}); {}", reason.meaning());
            return StartRuling::hold(reason, text);
        }
        StartRuling { because: memory.because, ..self.rule_on_nodes(end, mode, context) }
    }

    /// Whether the other nodes have memory for it, where this one has.
    fn rule_on_nodes(&self, end: &WorkloadEnd, mode: Mode, context: &Context<'_>) -> StartRuling {
        let gang = self.gang_start(end, mode);
        let waits = gang.as_ref().and_then(|gang| self.waits_for_nodes(gang, context));
        let (reason, what) = match &waits {
            Some(waits) => (Some(HoldReason::OtherNodes), format!("; {waits}")),
            None => (None, ", and there is memory for it".to_owned()),
        };
        let text = format!("it died ({end}){what}");
        StartRuling { reason, text, because: Vec::new(), wait: None, gang }
    }

    /// How long it waits after its last death.
    fn back_off(&self) -> Duration {
        let limits = &self.seen.limits;
        let Some(doublings) = self.deaths.checked_sub(1) else { return Duration::ZERO };
        limits.back_off.saturating_mul(1 << doublings.min(20)).min(limits.back_off_at_most)
    }
}

/// What is to be done, and why.
struct StartRuling {
    /// `None`: it is to be started.
    reason: Option<HoldReason>,
    text: String,
    because: Vec<Evidence>,
    /// How long it still waits, where that shows.
    wait: Option<Duration>,
    gang: Option<GangStart>,
}

impl StartRuling {
    fn hold(reason: HoldReason, text: String) -> Self {
        Self { reason: Some(reason), text, because: Vec::new(), wait: None, gang: None }
    }
}
