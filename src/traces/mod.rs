//! Remedies as traces: what the journal is told, joined to one trace for each round of a remedy.
//!
//! A trace has a root for the round; below it the kernel event that the rule reads, if it reads
//! any, the alert while it was pending, and each decision. Below a decision to act are its step,
//! from when the action began to its outcome, and its aim, from there to when the signals were
//! measured again. A round is told once it has ended.
//!
//! Ids follow from the boot and the first decision, so that what is told twice is the same span
//! twice, and what comes after a round was told still finds its place in it.

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
    AlertChange, AlertState, Assessment, Decision, DecisionId, Event, Moment, Outcome, Reading,
    RuleId, Verdict,
};
use ids::Ids;
use round::{Ending, Round};

pub use spans::scope;

/// Rules that are known at once; of others nothing is told.
const MOST_RULES: usize = 1024;

/// Alerts of one rule that a trace tells of.
const MOST_ALERTS: usize = 8;

/// Acts that were told without an end, and whose end may still come.
const MOST_UNENDED: usize = 64;

/// An older event is none that made a rule fire.
const EVENT_COUNTS_FOR: Duration = Duration::from_secs(600);

/// What was seen, decided or done.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// Something happened.
    Event(Event),
    /// An alert changed its state.
    Alert(AlertChange),
    /// A decision.
    Decision(Decision),
    /// How an action ended.
    Outcome(Outcome),
    /// Whether it helped.
    Assessment(Assessment),
}

/// The spans of one round, the root first; or what came after it was told.
pub type Trace = Vec<SpanData>;

/// Joins what it is told to traces.
#[derive(Debug)]
pub struct Tracer {
    boot_id: Arc<str>,
    rules: BTreeMap<RuleId, Known>,
    /// The latest of each kind.
    events: BTreeMap<&'static str, Event>,
    unended: VecDeque<Unended>,
    finished: Vec<Trace>,
}

/// What is known of a rule.
#[derive(Debug, Default)]
struct Known {
    alerts: Vec<Alert>,
    round: Option<Round>,
    /// The round before, of the same alert.
    previous: Option<Ids>,
}

/// One alert of a rule.
#[derive(Clone, Debug, PartialEq)]
struct Alert {
    labels: BTreeMap<Arc<str>, Arc<str>>,
    summary: Option<String>,
    value: Reading<f64>,
    pending: Option<Moment>,
    firing: Option<Moment>,
}

/// An act that was told without its end.
#[derive(Debug)]
struct Unended {
    decision: DecisionId,
    ids: Ids,
}

impl Tracer {
    /// One that knows nothing yet.
    pub fn new(boot_id: Arc<str>) -> Self {
        Self {
            boot_id,
            rules: BTreeMap::new(),
            events: BTreeMap::new(),
            unended: VecDeque::new(),
            finished: Vec::new(),
        }
    }

    /// Takes in what was told.
    pub fn take(&mut self, told: Told) {
        match told {
            Told::Event(event) => {
                self.events.insert(event.kind.kind(), event);
            }
            Told::Alert(change) => self.alert(change),
            Told::Decision(decision) => self.decision(decision),
            Told::Outcome(outcome) => self.outcome(outcome),
            Told::Assessment(assessment) => self.assessment(assessment),
        }
    }

    /// The traces that have ended by now.
    pub fn ended(&mut self, now: Moment) -> Vec<Trace> {
        let due = |(rule, known): (&RuleId, &Known)| {
            let round = known.round.as_ref()?;
            let fires = known.alerts.iter().any(|alert| alert.firing.is_some());
            round.is_due(now.uptime, fires).then(|| rule.clone())
        };
        let due: Vec<RuleId> = self.rules.iter().filter_map(due).collect();
        for rule in due {
            self.close(&rule, Ending::Rest);
        }
        self.rules.retain(|_, known| !known.alerts.is_empty() || known.round.is_some());
        std::mem::take(&mut self.finished)
    }

    /// The program ends: what is open is told as far as it has come.
    pub fn end(&mut self) -> Vec<Trace> {
        let open: Vec<RuleId> = self.rules.keys().cloned().collect();
        for rule in open {
            self.close(&rule, Ending::Cut);
        }
        std::mem::take(&mut self.finished)
    }

    /// What is known of that rule, unless too many are known.
    fn known(&mut self, rule: &RuleId) -> Option<&mut Known> {
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
        let place = known.alerts.iter().position(|alert| alert.labels == change.labels);
        if change.to == AlertState::Inactive {
            if let Some(place) = place {
                known.alerts.remove(place);
            }
            if known.alerts.iter().all(|alert| alert.firing.is_none()) {
                known.previous = None;
                if let Some(round) = &mut known.round {
                    round.alert_ended(change.at);
                }
            }
            return;
        }
        let place = match place {
            Some(place) => place,
            None if known.alerts.len() >= MOST_ALERTS => return,
            None => {
                let labels = change.labels.clone();
                let (pending, firing) = (None, None);
                known.alerts.push(Alert {
                    labels,
                    summary: None,
                    value: change.value,
                    pending,
                    firing,
                });
                known.alerts.len() - 1
            }
        };
        let Some(alert) = known.alerts.get_mut(place) else { return };
        alert.value = change.value;
        alert.summary = change.annotations.get("summary").cloned();
        match change.to {
            AlertState::Pending => alert.pending = Some(change.at),
            _ => alert.firing = Some(change.at),
        }
    }

    fn decision(&mut self, decision: Decision) {
        let rule = decision.rule.clone();
        let Some(known) = self.known(&rule) else { return };
        let is_new = |round: &Round| {
            round.is_full() || decision.verdict == Verdict::Act && round.is_concluded()
        };
        if known.round.as_ref().is_some_and(is_new) {
            self.close(&rule, Ending::Rest);
        }
        let ids = Ids::of_round(&self.boot_id, decision.id);
        let Some(known) = self.rules.get_mut(&rule) else { return };
        let (alerts, previous) = (&known.alerts, &mut known.previous);
        let round = known.round.get_or_insert_with(|| {
            // The alert is told once, with the first round that it brought about.
            let alerts = if previous.is_none() { alerts.clone() } else { Vec::new() };
            Round::new(ids, decision.at, alerts, previous.take())
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

    fn assessment(&mut self, assessment: Assessment) {
        let mut rounds = self.rules.values_mut().filter_map(|known| known.round.as_mut());
        if let Some(act) = rounds.find_map(|round| round.act(assessment.decision, assessment.at)) {
            act.assessment = Some(assessment);
        } else if let Some(unended) = self.unended(assessment.decision) {
            self.finished.push(vec![spans::late_aim(&unended.ids, &assessment)]);
        }
    }

    fn unended(&self, decision: DecisionId) -> Option<&Unended> {
        self.unended.iter().find(|unended| unended.decision == decision)
    }

    fn close(&mut self, rule: &RuleId, ending: Ending) {
        let Some(known) = self.rules.get_mut(rule) else { return };
        let Some(round) = known.round.take() else { return };
        if known.alerts.iter().any(|alert| alert.firing.is_some()) {
            known.previous = Some(round.ids().clone());
        }
        for decision in round.unended() {
            if self.unended.len() >= MOST_UNENDED {
                self.unended.pop_front();
            }
            self.unended.push_back(Unended { decision, ids: round.ids().clone() });
        }
        self.finished.push(spans::of_round(&round, rule, &self.boot_id, ending));
    }
}

/// The kinds of events that the values that led to a decision are about.
fn read_events(decision: &Decision) -> Vec<&str> {
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
