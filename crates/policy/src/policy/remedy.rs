//! A remedy in progress: its next step, what holds it, and whether it has helped.

use std::sync::Arc;
use std::time::Duration;

use promql_rules::Labels;

use super::Context;
use super::act::{Act, HoldReasons, Proposal};
use super::aim::{Aimed, Case, aim_met, holds};
use super::brake::present;
use super::engines::Engines;
use super::evidence;
use super::guard::{Guard, GuardedProposal, stops_lost_rank};
use super::rule::{RemedyStep, Rule, fill};
use crate::model::{
    Action, AimCheck, Decision, DecisionId, DecisionRecord, EngineTarget, Evidence, FleetAction,
    HoldReason, Mode, Moment, Outcome, ProcessId, RebootAct, Target,
};

/// An action whose effect cannot be measured for this long ends the round.
const CHECK_ENDS_AFTER: Duration = Duration::from_secs(30);

/// An engine is spared if this share of the machine has become free again by the time that it is
/// to be stopped.
const CAME_BACK: u64 = 32;

/// Whether the rule that a remedy belongs to fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// The rule does not fire.
    Quiet,
    /// The rule fires.
    Firing,
    /// It fired when that was last known.
    Unknown,
}

/// One remedy in progress, in one mode.
#[derive(Clone, Debug, Default)]
pub(super) struct RemedyState {
    phase: RemedyPhase,
    /// Why it holds back, and at which step.
    holds: HoldReasons<(HoldReason, usize)>,
    /// Steps that were passed over, since their grade is not enforced.
    passed: HoldReasons<usize>,
    /// The last decision, in words.
    pub(super) summary: Option<String>,
    /// Lives of engines whose loads would be followed by now: observe mode follows none, and their
    /// alerts go on.
    would_track: Vec<(Arc<str>, ProcessId)>,
}

#[derive(Clone, Debug)]
enum RemedyPhase {
    /// The next step may be decided. So many right before it were passed, since what they set is.
    Ready { step: usize, passed: usize },
    /// An action is under way, or has ended and the signals have not been measured since.
    Acting(StepAct),
}

#[derive(Clone, Debug)]
struct StepAct {
    act: Act,
    step: usize,
    before: Vec<Evidence>,
    /// The alert that it answers, where it is for one engine and not for the machine.
    answers: Option<Labels>,
}

/// How far a remedy has come, for explanations.
#[derive(Clone, Debug)]
pub(super) struct RemedyProgress {
    /// The step that is next, or under way.
    pub(super) step: usize,
    /// The decision whose action is under way, or whose effect is still to be measured.
    pub(super) under_way: Option<DecisionId>,
    /// Why it holds back in the present episode of its rule.
    pub(super) holds: Option<HoldReason>,
}

impl RemedyPhase {
    /// That step may be decided.
    fn next(step: usize) -> Self {
        Self::Ready { step, passed: 0 }
    }
}

impl Default for RemedyPhase {
    fn default() -> Self {
        Self::next(0)
    }
}

/// What is to be done, and on whose word.
#[derive(Clone, Copy, Debug)]
struct RemedyRuling {
    decision: Decision,
    /// The decision whose approval is used.
    approved: Option<DecisionId>,
}

impl From<HoldReason> for RemedyRuling {
    fn from(reason: HoldReason) -> Self {
        Self { decision: Decision::Hold(reason), approved: None }
    }
}

impl RemedyState {
    /// Takes the report on this remedy's action, if it is that.
    pub(super) fn observe_outcome(
        &mut self,
        rule: &Rule,
        mode: Mode,
        outcome: &Outcome,
        guard: &mut Guard,
    ) {
        let RemedyPhase::Acting(StepAct { act, .. }) = &mut self.phase else { return };
        if !act.is_of(outcome) || act.ended().is_some() {
            return;
        }
        if outcome.result.is_begun() {
            act.end(outcome);
        } else {
            // Nothing was touched, so there is no effect to measure and no reason for a next step.
            guard.round_ended(&rule.id, mode, outcome.ended.timeline_ms());
            self.phase = RemedyPhase::default();
        }
    }

    /// Whether it holds for what was announced.
    fn is_announced(&self) -> bool {
        matches!(self.holds.current(), Some((HoldReason::Announced, _)))
    }

    /// Whether nothing of it is left to do or to forget while its rule is quiet.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.phase, RemedyPhase::Ready { step: 0, .. }) && self.holds.is_empty()
    }

    pub(super) fn progress(&self) -> RemedyProgress {
        let (step, under_way) = match &self.phase {
            RemedyPhase::Ready { step, .. } => (*step, None),
            RemedyPhase::Acting(StepAct { act, step, .. }) => (*step, Some(act.decision)),
        };
        let holds = self.holds.current().map(|(reason, _)| reason);
        RemedyProgress { step, under_way, holds }
    }

    /// Ends the round, if there is one: its rule changes or goes.
    pub(super) fn break_off(&mut self, rule: &Rule, mode: Mode, at: Moment, guard: &mut Guard) {
        if !matches!(self.phase, RemedyPhase::Ready { step: 0, .. }) {
            guard.round_ended(&rule.id, mode, at.timeline_ms());
        }
        *self = Self { summary: self.summary.take(), ..Self::default() };
    }

    /// Moves on by one evaluation of the rule.
    pub(super) fn advance(
        &mut self,
        case: &Case<'_>,
        condition: Condition,
        context: &mut Context<'_>,
    ) {
        self.settle(case, context);
        self.would_track.retain(|(engine, server)| {
            let loads = context.engines.loading(engine);
            loads.is_some_and(|target| target.processes.first() == Some(server))
        });
        if condition == Condition::Quiet {
            if self.is_announced() {
                context.guard.withdraw(&case.rule.id, case.mode);
            }
            self.holds.release();
            self.end_begun_round(case, context);
            return;
        }
        // An act that is under way is this rule's answer.
        let RemedyPhase::Ready { step, passed } = self.phase else { return };
        let (mut step, mut passed) = still_passed(case, (step, passed), context);
        let mut ruling = rule_on(case, step, condition, context);
        let (mut at, mut unenforced) = (step, Vec::new());
        while at + 1 < case.remedy.steps.len() {
            match ruling.decision.hold_reason() {
                // What is set stays set while the steps behind it are tried again.
                Some(HoldReason::InForce) if unenforced.is_empty() => {
                    (step, passed) = (step + 1, passed + 1);
                }
                Some(HoldReason::InForce) => {}
                // It would act, and is only reported: the steps behind it are not for it to stop.
                Some(HoldReason::NotEnforced) => unenforced.push(at),
                _ => break,
            }
            at += 1;
            ruling = rule_on(case, at, condition, context);
        }
        self.phase = RemedyPhase::Ready { step, passed };
        if ruling.decision == Decision::Act && self.has_answered(case, context.engines) {
            ruling = HoldReason::InForce.into();
        }
        if matches!(ruling.decision, Decision::Act | Decision::Hold(HoldReason::NotEnforced)) {
            self.pass(case, &unenforced, context);
        }
        self.decide(case, at, ruling, context);
        // Nothing is left that may be done.
        if step > passed && ruling.decision.hold_reason() == Some(HoldReason::NotEnforced) {
            self.end_round(case, context);
        }
        // Whoever misses the aim later begins with the first step.
        if step > 0 && ruling.decision.hold_reason() == Some(HoldReason::AimMet) {
            context.guard.aim_checked(&case.rule.id, case.mode, Some(true));
            self.end_begun_round(case, context);
        }
    }

    /// Whether its next step has nothing to do for that alert: its engine does not load, or would
    /// be followed by now.
    pub(super) fn has_answered(&self, case: &Case<'_>, engines: &Engines) -> bool {
        let RemedyPhase::Ready { step, .. } = self.phase else { return false };
        let Some(RemedyStep::EvictCheckpoint { engine, .. }) = case.remedy.steps.get(step) else {
            return false;
        };
        engines.loading(&fill(engine, case.alert)).is_none_or(|target| {
            let is_it = |(name, server): &(Arc<str>, ProcessId)| {
                *name == target.name && target.processes.first() == Some(server)
            };
            self.would_track.iter().any(is_it)
        })
    }

    /// Whether nothing may be done for now to the engine that its next step would work on, though
    /// it may be to others.
    pub(super) fn spares(&self, case: &Case<'_>, guard: &Guard, now_ms: i64) -> bool {
        let RemedyPhase::Ready { step, .. } = self.phase else { return false };
        let engine = case.remedy.steps.get(step).and_then(RemedyStep::engine);
        engine.is_some_and(|engine| {
            let engine = fill(engine, case.alert);
            guard.spares((&case.rule.id, case.mode), &case.remedy.rails, &engine, now_ms)
        })
    }

    /// Lets a begun round end while the rule is in the other mode. Back in this one the rule
    /// reports its hold again.
    pub(super) fn wind_up(&mut self, case: &Case<'_>, context: &mut Context<'_>) {
        self.holds.forget();
        self.settle(case, context);
        self.end_begun_round(case, context);
    }

    fn settle(&mut self, case: &Case<'_>, context: &mut Context<'_>) {
        let now = context.at.uptime;
        if matches!(&self.phase, RemedyPhase::Acting(StepAct { act, .. }) if act.is_lost(now)) {
            context.guard.lost(&case.rule.id, case.mode);
            self.end_round(case, context);
        }
        self.check_aim(case, context);
    }

    fn end_begun_round(&mut self, case: &Case<'_>, context: &mut Context<'_>) {
        if matches!(self.phase, RemedyPhase::Ready { step, .. } if step > 0) {
            self.end_round(case, context);
        }
    }

    fn end_round(&mut self, case: &Case<'_>, context: &mut Context<'_>) {
        context.guard.round_ended(&case.rule.id, case.mode, context.at.timeline_ms());
        self.phase = RemedyPhase::default();
    }

    /// Measures the effect of the ended action, once there are readings from after it.
    fn check_aim(&mut self, case: &Case<'_>, context: &mut Context<'_>) {
        let RemedyPhase::Acting(StepAct { act, step, before, answers }) = &mut self.phase else {
            return;
        };
        let Some(ended) = act.ended() else { return };
        let (decision, step) = (act.decision, *step);
        // A scheduled reboot is checked after the boot.
        if case.remedy.steps.get(step).is_some_and(RemedyStep::reboots) {
            return self.end_round(case, context);
        }
        if case.remedy.aim.is_none() && context.guard.is_in_force(decision) {
            return self.go_on(case, step, context);
        }
        let out_of_time = context.at.uptime.saturating_sub(ended) >= CHECK_ENDS_AFTER;
        let is_stop = case.remedy.steps.get(step).is_some_and(RemedyStep::stops_engine);
        // What an alert says of one engine changes with the next sample of processes, which comes
        // later than that of memory.
        let of_processes = is_stop && answers.is_some();
        let measured = context.measured.is_some_and(|measured| measured > ended)
            && (!of_processes || context.engines.has_sampled_since(ended));
        if !measured && !out_of_time {
            return;
        }
        let aim_met = aim_met(case, answers.as_ref(), context);
        if aim_met.is_none() && !out_of_time {
            return;
        }
        let before = std::mem::take(before);
        context.step.aim_checks.push(AimCheck {
            decision,
            at: context.at,
            aim_met,
            after: evidence::again(&before, case.rule, context.store_of(case.rule)),
            has_aim: case.remedy.aim.is_some(),
            before,
            died_in: None,
        });
        context.guard.aim_checked(&case.rule.id, case.mode, aim_met);
        let next = step + 1;
        if aim_met == Some(false) && next < case.remedy.steps.len() {
            self.phase = RemedyPhase::next(next);
            return;
        }
        self.end_round(case, context);
        let was_measurable = !case.remedy.steps.get(step).is_some_and(RemedyStep::is_notice);
        if aim_met == Some(false) && was_measurable {
            self.hold(case, step, HoldReason::StepsExhausted, context);
        }
    }

    /// A setting that was made for as long as the alert lasts does not end it. Without an aim of
    /// its own it is not checked, and the next step follows.
    fn go_on(&mut self, case: &Case<'_>, step: usize, context: &mut Context<'_>) {
        if step + 1 < case.remedy.steps.len() {
            self.phase = RemedyPhase::next(step + 1);
        } else {
            self.end_round(case, context);
        }
    }

    fn decide(
        &mut self,
        case: &Case<'_>,
        step: usize,
        ruling: RemedyRuling,
        context: &mut Context<'_>,
    ) {
        match ruling.decision {
            Decision::Hold(reason) => self.hold(case, step, reason, context),
            Decision::Act => {
                let Some(decision) = decision(case, step, ruling, context) else { return };
                self.holds.forget();
                let (is_rehearsed, target) = (case.mode == Mode::Observe, tracked(&decision));
                let answers = target.is_some()
                    || matches!(decision.action, Action::StopEngine { engine: Some(_), .. });
                let life =
                    target.and_then(|of| Some((Arc::clone(&of.name), *of.processes.first()?)));
                self.would_track.extend(life.filter(|_| is_rehearsed));
                self.phase = RemedyPhase::Acting(StepAct {
                    act: Act::pending(decision.id, context.at.uptime),
                    step,
                    before: decision.because.clone(),
                    answers: case.alert.filter(|_| answers).map(|(of, _)| Arc::clone(of)),
                });
                self.record(case, decision, context);
            }
        }
    }

    /// Reports the steps that are passed over, each once for as long as that goes on.
    fn pass(&mut self, case: &Case<'_>, unenforced: &[usize], context: &mut Context<'_>) {
        for step in unenforced {
            let is_news = self.passed.hold(*step, context.at.uptime);
            let ruling = HoldReason::NotEnforced.into();
            if is_news && let Some(decision) = decision(case, *step, ruling, context) {
                self.record(case, decision, context);
            }
        }
        self.passed.release();
    }

    /// A hold is a decision of its own when its reason changes, and not at every evaluation, nor
    /// each time that a flapping rule comes back to it. An open question to people is asked once.
    fn hold(
        &mut self,
        case: &Case<'_>,
        step: usize,
        reason: HoldReason,
        context: &mut Context<'_>,
    ) {
        let mut is_news = self.holds.hold((reason, step), context.at.uptime);
        if reason.is_of_fleet()
            && let Some(aimed) = case.aimed(step, context)
            && let Some(action) = FleetAction::of(&aimed.action)
        {
            context.guard.claim_turn(action, context.at);
        }
        if matches!(reason, HoldReason::Approval | HoldReason::Announced) {
            let aimed = case.aimed(step, context);
            is_news = aimed.is_some_and(|aimed| {
                context.guard.must_ask(&case.proposal(step, &aimed), reason, context.at)
            });
        }
        if case.remedy.rails.unless_denied && is_ordered(reason) {
            context.guard.withdraw(&case.rule.id, case.mode);
        }
        if !is_news {
            return;
        }
        if let Some(decision) = decision(case, step, reason.into(), context) {
            self.record(case, decision, context);
        }
    }

    fn record(&mut self, case: &Case<'_>, decision: DecisionRecord, context: &mut Context<'_>) {
        context.guard.decided(&decision, &case.remedy.rails);
        context.reboots.scheduled(&decision);
        let reason = decision.decision.reason();
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        self.summary = Some(format!(
            "{} {} at {} ({} mode){reason}",
            decision.decision.name(),
            decision.deed(),
            decision.at.utc,
            decision.mode.name(),
        ));
        context.step.decisions.push(decision);
    }
}

/// The next step and how many before it are passed, as far as those are in force. The report that a
/// step was not done may come late, after its rule has changed or its outcome was given up. Then
/// that step is next again, and later ones follow only after it.
fn still_passed(
    case: &Case<'_>,
    (step, passed): (usize, usize),
    context: &Context<'_>,
) -> (usize, usize) {
    let first = step.saturating_sub(passed);
    let is_in_force = |passed: &usize| {
        let aimed = case.aimed(*passed, context);
        aimed.is_some_and(|aimed| context.guard.has_set(&case.proposal(*passed, &aimed)))
    };
    let step = (first..step).find(|passed| !is_in_force(passed)).unwrap_or(step);
    (step, step - first)
}

/// What is to be done at a step while the rule fires.
fn rule_on(
    case: &Case<'_>,
    step: usize,
    condition: Condition,
    context: &Context<'_>,
) -> RemedyRuling {
    let Some(aimed) = case.aimed(step, context) else { return HoldReason::StepsExhausted.into() };
    let guarded = GuardedProposal {
        proposal: case.proposal(step, &aimed),
        rails: &case.remedy.rails,
        labels: case.alert.map(|(labels, _)| labels),
        is_free_of_fleet: stops_lost_rank(&aimed.action, context.store),
    };
    if let Some(reason) = context.guard.hold(&guarded, context.at) {
        return reason.into();
    }
    if condition == Condition::Unknown {
        return HoldReason::Unknown.into();
    }
    if let Some(reason) = aimed.missing {
        return reason.into();
    }
    if let Some(reason) = context.guard.hold_act(&guarded, context.at) {
        return reason.into();
    }
    if let Some(held) = reboot_hold(&aimed.action, context) {
        return held.into();
    }
    match aim_met(case, None, context) {
        Some(true) => HoldReason::AimMet.into(),
        None => HoldReason::Unknown.into(),
        Some(false) if is_unconfirmed(case, &aimed.action, context) => {
            HoldReason::Unconfirmed.into()
        }
        // Nobody is asked to approve of what is not done.
        Some(false)
            if case.mode == Mode::Enforce && !context.guard.enforces(aimed.action.grade()) =>
        {
            HoldReason::NotEnforced.into()
        }
        Some(false) => match context.guard.approval(&guarded, context.at) {
            Ok(approved) => match context.guard.hold_for_fleet(&guarded, context.at) {
                None => RemedyRuling { decision: Decision::Act, approved },
                Some(reason) => reason.into(),
            },
            Err(reason) => reason.into(),
        },
    }
}

/// Why a reboot must not be scheduled now, if the act is that.
fn reboot_hold(action: &Action, context: &Context<'_>) -> Option<HoldReason> {
    let RebootAct::Schedule(plan) = action.reboot()? else { return None };
    context.reboots.hold_new(plan, &context.reboot_facts()).map(|held| held.reason)
}

/// Whether that must not be done for what was true a moment ago: while a rule keeps firing, memory
/// may have come back.
fn is_unconfirmed(case: &Case<'_>, action: &Action, context: &Context<'_>) -> bool {
    matches!(action, Action::StopEngine { .. } | Action::Reboot(_))
        && holds(case.rule, context) != Some(true)
}

/// An act with what its executor checks once more.
fn complete(action: Action, decision: Decision, context: &Context<'_>) -> Action {
    let store = context.store;
    match action {
        Action::Reboot(act) if decision == Decision::Act => match *act {
            RebootAct::Schedule(plan) => {
                let plan = context.reboots.complete(plan, &context.reboot_facts());
                Action::Reboot(Box::new(RebootAct::Schedule(plan)))
            }
            other => Action::Reboot(Box::new(other)),
        },
        Action::StopEngine { engine: None, grace_ms, for_reboot, .. }
            if decision == Decision::Act =>
        {
            let bytes = |name| present(name, store);
            let enough = bytes("uma_memory_free_bytes")
                .zip(bytes("uma_memory_total_bytes"))
                .map(|(free, total)| free.saturating_add(total / CAME_BACK));
            Action::StopEngine { engine: None, grace_ms, unless_free_bytes: enough, for_reboot }
        }
        other => other,
    }
}

fn decision(
    case: &Case<'_>,
    step: usize,
    ruling: RemedyRuling,
    context: &mut Context<'_>,
) -> Option<DecisionRecord> {
    let Aimed { action, target, .. } = case.aimed(step, context)?;
    let mut because = evidence::evidence(case.rule, context.at, context.store_of(case.rule));
    // Observe mode goes no further than the first step, and still reports which engine the
    // last one would stop.
    if case.remedy.stops_engines() {
        because.extend(context.brake.evidence(context.at.uptime));
    }
    let action = complete(action, ruling.decision, context);
    let (rule, mode) = (&case.rule.id, case.mode);
    let proposal = Proposal { rule, mode, step, action: &action, target: &target };
    let decision = proposal.decide(ruling.decision, context.numbers, context.at);
    let is_announced = ruling.decision.hold_reason() == Some(HoldReason::Announced);
    let within = case.remedy.rails.approval.filter(|_| is_announced);
    let goes_ahead = within.and_then(|within| context.at.utc.checked_add(within).ok());
    Some(DecisionRecord { approved: ruling.approved, goes_ahead, because, ..decision })
}

/// Whether people, or what they have written, hold it: that is as good as a denial.
fn is_ordered(reason: HoldReason) -> bool {
    matches!(
        reason,
        HoldReason::Paused
            | HoldReason::Silenced
            | HoldReason::Inhibited
            | HoldReason::Maintenance
            | HoldReason::Protected
    )
}

/// The engine whose load an act follows.
fn tracked(decision: &DecisionRecord) -> Option<&EngineTarget> {
    match (&decision.action, &decision.target) {
        (Action::EvictCheckpoint { .. }, Target::Engine(target)) => Some(target),
        _ => None,
    }
}
