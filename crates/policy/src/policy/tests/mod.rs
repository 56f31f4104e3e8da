//! The policy by scenarios: observations in, decisions out, on a clock of the test's own.

mod alerts;
mod assessment;
mod brake;
mod cluster;
mod emptying;
mod engine_info;
mod evicting;
mod fleet;
mod grades;
mod guard;
mod kernel_log;
mod loads;
mod release;
mod remedies;
mod temporary;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::status::RuleState;
use super::{Policy, Step};
use crate::config::mistake::SourceText;
use crate::config::rules::parse_rules;
use crate::model::{
    Action, Decision, DecisionId, DecisionRecord, Event, HoldReason, KernelRecord, Mode, Moment,
    Observation, Outcome, OutcomeResult, PastAct, Reading, Readings, RuleId, Schema, SeriesKey,
    Source,
};
use crate::policy::rule::RuleSet;

const FREE: &str = "uma_memory_free_bytes";
const INTERVAL: Duration = Duration::from_millis(100);

fn rules(yaml: &str) -> RuleSet {
    let source = SourceText::new("test.yaml", yaml);
    parse_rules(&[source], INTERVAL).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

/// A policy, its clock and a node with one signal: free memory.
pub(super) struct World {
    pub(super) policy: Policy,
    pub(super) at: Moment,
    schema: Arc<Schema>,
    free: Reading<f64>,
    pub(super) seen: Vec<Observation>,
}

impl World {
    pub(super) fn new(yaml: &str, mode: Mode) -> Self {
        let at = Moment { uptime: Duration::from_secs(1000), utc: Timestamp::UNIX_EPOCH };
        let key = SeriesKey::new(FREE, &[]);
        Self {
            policy: Policy::new(at, mode, &rules(yaml), DecisionId(1)),
            at,
            schema: Arc::new(Schema { series: vec![key] }),
            free: Reading::Value(100.0),
            seen: Vec::new(),
        }
    }

    /// Lets one interval pass, with one reading of memory and the other pending observations.
    pub(super) fn tick(&mut self) -> Step {
        self.at.uptime += INTERVAL;
        self.at.utc += INTERVAL;
        let mut seen = std::mem::take(&mut self.seen);
        seen.push(Observation::Readings(Readings {
            source: Source::Meminfo,
            schema: Arc::clone(&self.schema),
            values: vec![self.free],
            took: Duration::ZERO,
            error: None,
        }));
        self.policy.step(self.at, &seen)
    }

    /// Lets time pass and gathers what it brings.
    fn run(&mut self, time: Duration) -> Vec<Step> {
        let ticks = time.as_millis() / INTERVAL.as_millis();
        (0..ticks).map(|_| self.tick()).collect()
    }

    fn report(&mut self, decision: &DecisionRecord, result: OutcomeResult) {
        let outcome = Outcome::at_once(decision, result, self.at);
        self.seen.push(Observation::Outcome(outcome));
    }

    fn state(&mut self, rule: usize) -> RuleState {
        self.policy.status(self.at).rules[rule].state
    }

    pub(super) fn value(&mut self, series: &str) -> Option<f64> {
        let status = self.policy.status(self.at);
        let position = status.series.iter().position(|key| key.to_string() == series)?;
        status.values[position].sample()
    }
}

/// A world whose memory is short.
fn short(yaml: &str, mode: Mode) -> World {
    let mut world = World::new(yaml, mode);
    world.free = Reading::Value(5.0);
    world
}

/// An act of an earlier run that has ended and met its aim, so many seconds ago.
fn past_act(rule: &RuleId, mode: Mode, now: Moment, ago: u64) -> PastAct {
    PastAct {
        id: DecisionId(0),
        rule: rule.clone(),
        mode,
        step: 0,
        is_notice: false,
        uptime_ms: now.timeline_ms() - 1000 * ago.cast_signed(),
        utc: now.utc,
        has_ended: true,
        aim_met: Some(true),
        approved: None,
        started_after: None,
        died_in: None,
        engine: None,
        takes_from_engine: false,
        fleet_action: None,
        is_forgiven: false,
    }
}

fn decisions(steps: &[Step]) -> Vec<&DecisionRecord> {
    steps.iter().flat_map(|step| &step.decisions).collect()
}

fn acts(steps: &[Step]) -> Vec<&Action> {
    let acts = decisions(steps).into_iter().filter(|decision| decision.is_act());
    acts.map(|decision| &decision.action).collect()
}

fn holds(steps: &[Step]) -> Vec<HoldReason> {
    let decisions = decisions(steps).into_iter().map(|decision| decision.decision);
    let holds = decisions.filter_map(|decision| match decision {
        Decision::Hold(reason) => Some(reason),
        Decision::Act => None,
    });
    holds.collect()
}

fn record(seq: u64, facility: u16, text: &str) -> Observation {
    Observation::KernelRecord(KernelRecord {
        seq,
        facility,
        level: 4,
        usec: seq,
        caller: None,
        utc: Timestamp::UNIX_EPOCH,
        text: text.to_owned(),
        dictionary: String::new(),
    })
}
