//! What people order.

use std::sync::Arc;
use std::time::Duration;

use super::pending::PendingReboot;
use super::{OPERATOR_RULE, RebootContext, Reboots};
use crate::model::{
    Action, Grade, HoldReason, Mode, OperatorCommand, OperatorOrder, RebootAct, RebootForce,
    RebootPlan, RuleId, ScheduledReboot,
};

/// The rule that represents them.
pub(super) fn rule() -> RuleId {
    let [group, alert] = OPERATOR_RULE.map(Arc::from);
    RuleId { group, alert }
}

/// Does what is ordered; an error says why nothing comes of it.
pub(super) fn obey(
    reboots: &mut Reboots,
    command: &OperatorCommand,
    context: &mut RebootContext<'_>,
) -> Result<(), String> {
    match &command.order {
        OperatorOrder::Reboot { delay, force } => {
            let plan = RebootPlan {
                why: command.comment.clone(),
                ordered_by: Some(command.author.clone()),
                force: force.clone(),
                ..RebootPlan::default()
            };
            schedule(reboots, plan, delay.unwrap_or(reboots.settings.delay), context)
        }
        OperatorOrder::CancelReboot => {
            reboots.can_call_off()?;
            let why = match command.comment.as_str() {
                "" => format!("called off by {}", command.author),
                comment => format!("called off by {}: {comment}", command.author),
            };
            reboots.call_off(&why, context);
            reboots.is_called_off = true;
            Ok(())
        }
        OperatorOrder::ClearReboots => {
            let counts = |result| result != Some(crate::model::RebootResult::Helped);
            let is_lost = reboots.is_journal_lost(context.at.timeline_ms());
            if reboots.did_not_help() == 0 && !reboots.is_called_off && !is_lost {
                return Err("there is no reboot that did not help, none called off, and no \
                            journal was lost"
                    .to_owned());
            }
            reboots.loss.clear();
            reboots.is_called_off = false;
            let attempts = reboots.attempts.iter_mut().filter(|attempt| counts(attempt.result));
            attempts.for_each(|attempt| attempt.is_cleared = true);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn schedule(
    reboots: &mut Reboots,
    plan: RebootPlan,
    delay: Duration,
    context: &mut RebootContext<'_>,
) -> Result<(), String> {
    if context.mode != Mode::Enforce {
        return Err("the mode is observe: no order is carried out; reboot by hand, or set mode: \
                    enforce"
            .to_owned());
    }
    if !context.guard.enforces(Grade::Reboot) {
        return Err(
            "the grade reboot is not enforced: reboot by hand, or add reboot to enforce".to_owned()
        );
    }
    let rule = rule();
    let is_forced = |reason| match reason {
        HoldReason::Inhibited => plan.force.contains(&RebootForce::Alerts),
        HoldReason::Maintenance => plan.force.contains(&RebootForce::Windows),
        _ => false,
    };
    if let Some(reason) = context.guard.hold_reboot(&rule, &is_forced, context.at) {
        return Err(refusal(reason, reason.meaning()));
    }
    let facts = context.facts();
    if let Some(held) = reboots.hold_new(&plan, &facts) {
        return Err(refusal(held.reason, &held.text));
    }
    let plan = reboots.complete_after(plan, delay, &facts);
    let action = Action::Reboot(Box::new(RebootAct::Schedule(plan.clone())));
    let act = reboots.act(&rule, action, context);
    let scheduled = ScheduledReboot { decision: act.decision, rule, plan };
    reboots.pending = Some(PendingReboot::new(scheduled, act));
    reboots.called_off = None;
    reboots.is_called_off = false;
    Ok(())
}

/// What to say of a rail that holds it, and how to go past it where one can.
fn refusal(reason: HoldReason, text: &str) -> String {
    let force = match reason {
        HoldReason::RebootBudget | HoldReason::GivenUp => Some(RebootForce::Budget),
        HoldReason::MinimumUptime => Some(RebootForce::Uptime),
        HoldReason::LoggedIn => Some(RebootForce::Users),
        HoldReason::EnginesRun => Some(RebootForce::Engines),
        HoldReason::Blocked | HoldReason::Inhibited => Some(RebootForce::Alerts),
        HoldReason::Maintenance => Some(RebootForce::Windows),
        HoldReason::NoSlot => Some(RebootForce::Slot),
        _ => None,
    };
    match force {
        Some(force) => format!("{text}; --force {} goes past that", force.name()),
        None => text.to_owned(),
    }
}
