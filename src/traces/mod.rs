//! Remedies as traces: entries of the journal, joined to one trace for each round of a remedy.
//!
//! A trace has a root for the round. Below it are the kernel event that the rule reads, the alert
//! while it was pending, and each decision. A decision to act has a step, from the start of the
//! action to its outcome, and an aim, from the outcome to the next measurement. A round is finished
//! once it has ended.
//!
//! Ids are derived from the boot and the first decision. A round that is recorded twice gives the
//! same spans, and a late outcome finds its trace.

mod ids;
mod round;
mod spans;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_sdk::trace::SpanData;

use crate::model::{
    AimCheck, AlertChange, AlertState, DecisionId, DecisionRecord, Event, Moment, Outcome, Reading,
    RuleId,
};
use ids::Ids;
use round::{RoundEnd, TraceRound};

pub use spans::scope;

/// Rules that are tracked at once. Further rules get no traces.
const MOST_RULES: usize = 1024;

/// Alerts of one rule in a trace.
const MOST_ALERTS: usize = 8;

/// Acts whose traces are finished, and whose outcome or aim check may still come.
const MOST_UNENDED: usize = 64;

/// An older event did not make the rule fire.
const EVENT_COUNTS_FOR: Duration = Duration::from_secs(600);

/// An entry of the journal that belongs to a trace.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceInput {
    /// A kernel fault, or an event of the program.
    Event(Event),
    /// A change of an alert's state.
    Alert(AlertChange),
    /// A decision to act or to hold.
    Decision(DecisionRecord),
    /// The end of an action.
    Outcome(Outcome),
    /// The measurement after an action.
    AimCheck(AimCheck),
}

/// The spans of one round, the root first; or a late span of a finished round.
pub type Trace = Vec<SpanData>;

/// Joins its inputs to traces.
#[derive(Debug)]
pub struct Tracer {
    boot_id: Arc<str>,
    rules: BTreeMap<RuleId, RuleTrace>,
    /// The latest of each kind.
    events: BTreeMap<&'static str, Event>,
    unended: VecDeque<UnendedAct>,
    finished: Vec<Trace>,
}

#[derive(Debug, Default)]
struct RuleTrace {
    alerts: Vec<TracedAlert>,
    round: Option<TraceRound>,
    /// The round before, of the same alert.
    previous: Option<Ids>,
}

#[derive(Clone, Debug, PartialEq)]
struct TracedAlert {
    labels: BTreeMap<Arc<str>, Arc<str>>,
    summary: Option<String>,
    value: Reading<f64>,
    pending: Option<Moment>,
    firing: Option<Moment>,
}

/// An act whose trace was finished without its end.
#[derive(Debug)]
struct UnendedAct {
    decision: DecisionId,
    ids: Ids,
}

impl Tracer {
    /// An empty tracer.
    pub fn new(boot_id: Arc<str>) -> Self {
        Self {
            boot_id,
            rules: BTreeMap::new(),
            events: BTreeMap::new(),
            unended: VecDeque::new(),
            finished: Vec::new(),
        }
    }

    /// Adds an input.
    pub fn take(&mut self, input: TraceInput) {
        match input {
            TraceInput::Event(event) => {
                self.events.insert(event.kind.kind(), event);
            }
            TraceInput::Alert(change) => self.alert(change),
            TraceInput::Decision(decision) => self.decision(decision),
            TraceInput::Outcome(outcome) => self.outcome(outcome),
            TraceInput::AimCheck(aim_check) => self.aim_check(aim_check),
        }
    }

    /// Takes the finished traces.
    pub fn ended(&mut self, now: Moment) -> Vec<Trace> {
        let due = |(rule, known): (&RuleId, &RuleTrace)| {
            let round = known.round.as_ref()?;
            let fires = known.alerts.iter().any(|alert| alert.firing.is_some());
            round.is_due(now.uptime, fires).then(|| rule.clone())
        };
        let due: Vec<RuleId> = self.rules.iter().filter_map(due).collect();
        for rule in due {
            self.close(&rule, RoundEnd::Rest);
        }
        self.rules.retain(|_, known| !known.alerts.is_empty() || known.round.is_some());
        std::mem::take(&mut self.finished)
    }

    /// Takes all traces at the end of the program, unfinished rounds too.
    pub fn end(&mut self) -> Vec<Trace> {
        let open: Vec<RuleId> = self.rules.keys().cloned().collect();
        for rule in open {
            self.close(&rule, RoundEnd::Cut);
        }
        std::mem::take(&mut self.finished)
    }

    /// The state of a rule. `None` if too many rules are tracked.
    fn known(&mut self, rule: &RuleId) -> Option<&mut RuleTrace> {
        if self.rules.len() >= MOST_RULES && !self.rules.contains_key(rule) {
            return None;
        }
        Some(self.rules.entry(rule.clone()).or_default())
    }

    fn alert(&mut self, change: AlertChange) {
        if change.to == AlertState::Inactive && !self.rules.contains_key(&change.rule) {
            return;
        }
        let Some(known) = self.known(&change.rule) else { return };
        let index = known.alerts.iter().position(|alert| alert.labels == change.labels);
        if change.to == AlertState::Inactive {
            if let Some(index) = index {
                known.alerts.remove(index);
            }
            if known.alerts.iter().all(|alert| alert.firing.is_none()) {
                known.previous = None;
                if let Some(round) = &mut known.round {
                    round.alert_ended(change.at);
                }
            }
            return;
        }
        let index = match index {
            Some(index) => index,
            None if known.alerts.len() >= MOST_ALERTS => return,
            None => {
                let labels = change.labels.clone();
                let (pending, firing) = (None, None);
                known.alerts.push(TracedAlert {
                    labels,
                    summary: None,
                    value: change.value,
                    pending,
                    firing,
                });
                known.alerts.len() - 1
            }
        };
        let Some(alert) = known.alerts.get_mut(index) else { return };
        alert.value = change.value;
        alert.summary = change.annotations.get("summary").cloned();
        match change.to {
            AlertState::Pending => alert.pending = Some(change.at),
            _ => alert.firing = Some(change.at),
        }
    }

    fn decision(&mut self, decision: DecisionRecord) {
        let rule = decision.rule.clone();
        let Some(known) = self.known(&rule) else { return };
        let is_new =
            |round: &TraceRound| round.is_full() || decision.is_act() && round.is_concluded();
        if known.round.as_ref().is_some_and(is_new) {
            self.close(&rule, RoundEnd::Rest);
        }
        let ids = Ids::of_round(&self.boot_id, decision.id);
        let Some(known) = self.rules.get_mut(&rule) else { return };
        let (alerts, previous) = (&known.alerts, &mut known.previous);
        let round = known.round.get_or_insert_with(|| {
            // The alert is in the trace of the first round alone.
            let alerts = if previous.is_none() { alerts.clone() } else { Vec::new() };
            TraceRound::new(ids, decision.at, alerts, previous.take())
        });
        for kind in read_events(&decision) {
            if let Some(event) = self.events.get(kind)
                && is_recent(event, decision.at)
            {
                round.made_by(event);
            }
        }
        round.decide(decision);
    }

    fn outcome(&mut self, outcome: Outcome) {
        let mut rounds = self.rules.values_mut().filter_map(|known| known.round.as_mut());
        if let Some(act) = rounds.find_map(|round| round.act(outcome.decision, outcome.ended)) {
            act.outcome = Some(outcome);
        } else if let Some(unended) = self.unended(outcome.decision) {
            self.finished.push(vec![spans::late_step(&unended.ids, &outcome)]);
        }
    }

    fn aim_check(&mut self, aim_check: AimCheck) {
        let mut rounds = self.rules.values_mut().filter_map(|known| known.round.as_mut());
        if let Some(act) = rounds.find_map(|round| round.act(aim_check.decision, aim_check.at)) {
            act.aim_check = Some(aim_check);
        } else if let Some(unended) = self.unended(aim_check.decision) {
            self.finished.push(vec![spans::late_aim(&unended.ids, &aim_check)]);
        }
    }

    fn unended(&self, decision: DecisionId) -> Option<&UnendedAct> {
        self.unended.iter().find(|unended| unended.decision == decision)
    }

    fn close(&mut self, rule: &RuleId, ending: RoundEnd) {
        let Some(known) = self.rules.get_mut(rule) else { return };
        let Some(round) = known.round.take() else { return };
        if known.alerts.iter().any(|alert| alert.firing.is_some()) {
            known.previous = Some(round.ids().clone());
        }
        for decision in round.unended() {
            if self.unended.len() >= MOST_UNENDED {
                self.unended.pop_front();
            }
            self.unended.push_back(UnendedAct { decision, ids: round.ids().clone() });
        }
        self.finished.push(spans::of_round(&round, rule, &self.boot_id, ending));
    }
}

/// The kinds of the events whose counters are evidence of a decision.
fn read_events(decision: &DecisionRecord) -> Vec<&str> {
    let series = decision.because.iter().map(|evidence| &*evidence.series);
    let mut kinds: Vec<&str> = series.filter_map(read_event).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

fn read_event(series: &str) -> Option<&str> {
    let counters = ["uma_kernel_event", "uma_event"];
    let labels = counters.iter().find_map(|counter| series.strip_prefix(counter))?;
    let (_, kind) = labels.split_once("event=\"")?;
    kind.split_once('"').map(|(kind, _)| kind)
}

fn is_recent(event: &Event, at: Moment) -> bool {
    let age = event.utc.map(|utc| at.utc.duration_since(utc).unsigned_abs());
    age.is_some_and(|age| age <= EVENT_COUNTS_FOR)
}
