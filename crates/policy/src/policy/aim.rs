//! What a remedy works on, what it aims at, and whether that is so.

use promql_rules::{EvalTime, Evaluated, Labels, Value};

use super::Context;
use super::act::Proposal;
use super::brake::Brake;
use super::engines::Engines;
use super::rule::{Query, Remedy, RemedyStep, Rule};
use crate::model::{Action, HoldReason, Mode, Moment, Target};

/// What a remedy is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) rule: &'a Rule,
    /// The remedy of `rule`.
    pub(super) remedy: &'a Remedy,
    /// The mode in which it is in progress.
    pub(super) mode: Mode,
    /// Labels and value of the alert that fires, for texts.
    pub(super) alert: Option<(&'a Labels, f64)>,
}

impl Case<'_> {
    /// What it does at a step, and to what, if it has such a step.
    pub(super) fn aimed(&self, step: usize, context: &Context<'_>) -> Option<Aimed> {
        let step = self.remedy.steps.get(step)?;
        let now = (context.at, self.mode);
        Some(Aimed::of(step, self.alert, (context.engines, context.brake), now))
    }

    pub(super) fn proposal<'p>(&'p self, step: usize, aimed: &'p Aimed) -> Proposal<'p> {
        let Aimed { action, target, .. } = aimed;
        Proposal { rule: &self.rule.id, mode: self.mode, step, action, target }
    }
}

/// A step's action for an alert, and what it works on.
#[derive(Clone, Debug)]
pub(super) struct Aimed {
    pub(super) action: Action,
    pub(super) target: Target,
    /// Why there is no such target now.
    pub(super) missing: Option<HoldReason>,
}

impl Aimed {
    /// The action of a step for an alert, and its target as of now.
    pub(super) fn of(
        step: &RemedyStep,
        alert: Option<(&Labels, f64)>,
        (engines, brake): (&Engines, &Brake),
        (at, mode): (Moment, Mode),
    ) -> Self {
        let mut action = step.action(alert);
        let (target, missing) = match target(&action, engines, brake, (at, mode)) {
            Ok(target) => (target, None),
            Err(reason) => (action.target(), Some(reason)),
        };
        if let (Action::Reclaim { cgroup, engine: Some(_), .. }, Target::Cgroup { path }) =
            (&mut action, &target)
        {
            path.as_ref().clone_into(cgroup);
        }
        Self { action, target, missing }
    }
}

/// What an action works on, or why that is unknown. Model files are evicted of an engine that
/// loads, and caches are emptied of one that is up and can be queried; no other engine is touched.
fn target(
    action: &Action,
    engines: &Engines,
    brake: &Brake,
    (at, mode): (Moment, Mode),
) -> Result<Target, HoldReason> {
    let engine = match action {
        Action::EvictCheckpoint { engine, .. } => engines.loading(engine),
        Action::EmptyCache { engine, .. } => {
            engines.askable(engine).or_else(|| brake.declared_up(engine))
        }
        Action::Reclaim { engine: Some(engine), .. } => {
            // In the root of the hierarchy is everybody.
            let group = engines.target_of(engine).and_then(|engine| engine.cgroup);
            let own = group.filter(|path| !matches!(&**path, "" | "/"));
            return Ok(Target::Cgroup { path: own.ok_or(HoldReason::NoTarget)? });
        }
        Action::StopEngine { engine: Some(engine), .. } => {
            let rest = engines.without_its_gang(engine);
            Some(rest.map_or_else(|| brake.stoppable(engine, mode), Ok)?)
        }
        Action::StopEngine { engine: None, .. } => Some(brake.choose(at.uptime)?),
        _ => None,
    };
    Ok(engine.map_or_else(|| action.target(), |engine| Target::Engine(Box::new(engine))))
}

/// Whether the aim is met; `None` where that is unknown. Without an aim of its own, a remedy
/// aims at the end of its rule's condition: of the alert that it `answers`, where that is one of
/// several.
pub(super) fn aim_met(
    case: &Case<'_>,
    answers: Option<&Labels>,
    context: &Context<'_>,
) -> Option<bool> {
    match (&case.remedy.aim, answers) {
        (Some(aim), _) => yields_anything(aim, case.rule, context),
        (None, None) => holds(case.rule, context).map(|holds| !holds),
        (None, Some(labels)) => match evaluate(&case.rule.expr, case.rule, context)? {
            Value::Vector(samples) => {
                Some(!samples.iter().any(|sample| gives(case.rule, &sample.labels, labels)))
            }
            Value::Scalar(_) => Some(false),
        },
    }
}

/// Whether a sample with these labels gives that alert, as far as its labels are not the rule's.
fn gives(rule: &Rule, sample: &Labels, alert: &Labels) -> bool {
    let is_the_rules = |name: &str| rule.labels.iter().any(|(own, _)| **own == *name);
    sample.iter().all(|label| is_the_rules(&label.0) || alert.contains(label))
}

fn yields_anything(aim: &Query, rule: &Rule, context: &Context<'_>) -> Option<bool> {
    aim.expr.yields(context.store_of(rule), now(context)).ok()?
}

/// Whether a rule's condition holds: every sample and every scalar counts.
pub(super) fn holds(rule: &Rule, context: &Context<'_>) -> Option<bool> {
    match evaluate(&rule.expr, rule, context) {
        Some(Value::Vector(samples)) => Some(!samples.is_empty()),
        Some(Value::Scalar(_)) => Some(true),
        None => yields_anything(&rule.expr, rule, context),
    }
}

fn evaluate(query: &Query, rule: &Rule, context: &Context<'_>) -> Option<Value> {
    match query.expr.evaluate(context.store_of(rule), now(context)) {
        Ok(Evaluated::Known(value)) => Some(value),
        Ok(Evaluated::Unknown(_)) | Err(_) => None,
    }
}

fn now(context: &Context<'_>) -> EvalTime {
    EvalTime { timeline_ms: context.at.timeline_ms(), utc_ms: context.at.utc_ms() }
}
