//! Advances the time of a test and checks the results.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use promql_rules::Evaluated;

use super::compare;
use super::file::{TestCase, TestFile};
use super::guard::GuardEventKind;
use super::remedy::is_named;
use super::report::{Check, Failure, TestReport};
use super::world::DeclaredWorld;
use crate::model::{
    DecisionRecord, Mode, Moment, Observation, Outcome, OutcomeResult, Readings, Schema, Source,
};
use crate::policy::rule::{Rule, RuleSet};
use crate::policy::{Doubt, Policy};

/// Plays one test of a file with the rules that the file names.
pub fn play(file: &TestFile, test: &TestCase, rules: &RuleSet) -> TestReport {
    let rules = rehearsed(file, test, rules);
    let mut failures = ScenarioRun::new(file, test, &rules).run();
    failures.sort_by_key(|failure| failure.span.start);
    TestReport {
        name: test.name.clone(),
        span: test.span.clone(),
        checks: test.alerts.len() + test.exprs.len() + test.remedies.len(),
        failures,
    }
}

/// Every group is evaluated at the interval of the file, as in promtool, and in its order.
fn rehearsed(file: &TestFile, test: &TestCase, rules: &RuleSet) -> RuleSet {
    let mut rules = rules.clone();
    if let Some(rails) = &test.guard.rails {
        rules.guard_rails.clone_from(rails);
    }
    // A series says whether a declared world is a node of Kubernetes.
    rules.guard_rails.has_kubernetes = true;
    let order = |name: &str| file.group_eval_order.iter().position(|group| group == name);
    rules.groups.sort_by_key(|group| order(&group.name).unwrap_or(0));
    for group in &mut rules.groups {
        group.interval = file.evaluation_interval;
    }
    rules
}

struct ScenarioRun<'t> {
    file: &'t TestFile,
    test: &'t TestCase,
    rules: &'t RuleSet,
    policy: Policy,
    world: DeclaredWorld,
    measured: Arc<Schema>,
    next_evaluation: Duration,
    /// Actions under way: when each ends, and which declared outcome it has.
    acting: Vec<(Outcome, Option<usize>)>,
    /// Declared outcomes that an act has taken.
    taken: BTreeSet<usize>,
    decisions: Vec<DecisionRecord>,
    /// How many of them earlier tests have seen.
    compared: usize,
    /// Expectations still to be checked, the latest first.
    ahead: Vec<(Duration, Expectation)>,
    /// How many of the test's orders have been given.
    ordered: usize,
    failures: Vec<Failure>,
}

/// An expectation, by its index in the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Expectation {
    Alert(usize),
    Remedy(usize),
    Expr(usize),
}

impl<'t> ScenarioRun<'t> {
    fn new(file: &'t TestFile, test: &'t TestCase, rules: &'t RuleSet) -> Self {
        let alerts =
            test.alerts.iter().enumerate().map(|(n, test)| (test.at, Expectation::Alert(n)));
        let remedies =
            test.remedies.iter().enumerate().map(|(n, t)| (t.at, Expectation::Remedy(n)));
        let exprs = test.exprs.iter().enumerate().map(|(n, test)| (test.at, Expectation::Expr(n)));
        let mut ahead: Vec<(Duration, Expectation)> = alerts.chain(remedies).chain(exprs).collect();
        ahead.sort_by(|one, other| other.cmp(one));
        let start = moment(test, Duration::ZERO);
        let mut policy = Policy::rehearsing(start, test.mode, rules);
        if let Some(node) = &test.node {
            policy.rehearse_on(node);
        }
        if test.guard.orders.iter().any(|order| order.what == GuardEventKind::ReadJournal) {
            policy.await_past();
        }
        Self {
            file,
            test,
            rules,
            policy,
            world: DeclaredWorld::new(test),
            measured: Arc::new(Schema { series: Vec::new() }),
            next_evaluation: Duration::ZERO,
            acting: Vec::new(),
            taken: BTreeSet::new(),
            decisions: Vec::new(),
            compared: 0,
            ahead,
            ordered: 0,
            failures: Vec::new(),
        }
    }

    fn run(mut self) -> Vec<Failure> {
        let end = self.test.end();
        while self.next_evaluation <= end {
            let at = self.next_instant();
            self.check_until(at);
            if !self.advance(at) {
                return self.failures;
            }
        }
        // What is sampled after the last evaluation is not seen, as in promtool.
        self.check_until(Duration::MAX);
        self.failures
    }

    fn next_instant(&self) -> Duration {
        let outcomes = self.acting.iter().map(|(outcome, _)| outcome.ended.uptime).min();
        let order = self.test.guard.orders.get(self.ordered).map(|order| order.at);
        [self.world.due(), outcomes, order]
            .into_iter()
            .flatten()
            .fold(self.next_evaluation, Duration::min)
    }

    /// Lets everything happen that is due now. False: a rule cannot be evaluated.
    fn advance(&mut self, at: Duration) -> bool {
        let now = moment(self.test, at);
        let mut seen = Vec::new();
        if self.world.due() == Some(at) {
            self.world.sample(now, &mut seen);
        }
        self.end_actions(at, &mut seen);
        self.give_orders(now, &mut seen);
        seen.push(self.measured());
        let step = self.policy.step(now, &seen);
        for decision in step.decisions {
            self.begin_action(&decision);
            self.decisions.push(decision);
        }
        if self.next_evaluation != at {
            return true;
        }
        self.next_evaluation += self.file.evaluation_interval;
        if self.world.asks_for_alerts() {
            self.world.show_alerts(now, &self.policy.status(now).rules);
        }
        step.doubts.iter().all(|doubt| self.is_excusable(doubt, at))
    }

    /// Says what people say now.
    fn give_orders(&mut self, now: Moment, seen: &mut Vec<Observation>) {
        let orders = &self.test.guard.orders;
        while let Some(order) = orders.get(self.ordered).filter(|order| order.at <= now.uptime) {
            seen.extend(order.observation(self.ordered, now, &self.decisions));
            self.ordered += 1;
        }
    }

    /// Memory has been measured: without that, nothing is evaluated.
    fn measured(&self) -> Observation {
        Observation::Readings(Readings {
            source: Source::Meminfo,
            schema: Arc::clone(&self.measured),
            values: Vec::new(),
            took: Duration::ZERO,
            error: None,
        })
    }

    /// A rule may be unknown where the test lets readings fail; anything else ends the test.
    fn is_excusable(&mut self, doubt: &Doubt, at: Duration) -> bool {
        if doubt.reasons.is_empty() {
            return true;
        }
        let mut rules = self.rules.groups.iter().flat_map(|group| &group.rules);
        let rule = rules.find(|rule| rule.id == doubt.rule);
        let is_unknown = |rule: &Rule| {
            matches!(self.policy.ask(&rule.expr, moment(self.test, at)), Ok(Evaluated::Unknown(_)))
        };
        let is_error = !self.test.lets_readings_fail() || !rule.is_some_and(is_unknown);
        if is_error {
            self.failures.push(Failure {
                check: Check::Evaluation,
                span: self.test.span.clone(),
                at,
                subject: doubt.rule.to_string(),
                message: Some(doubt.reasons.join("; ")),
                expected: Vec::new(),
                got: Vec::new(),
            });
        }
        !is_error
    }

    fn begin_action(&mut self, decision: &DecisionRecord) {
        if !decision.is_act() {
            return;
        }
        let declared = self.declared(decision);
        let (result, after) = match declared.and_then(|index| self.test.outcomes.get(index)) {
            Some(outcome) => (outcome.result.clone(), outcome.after),
            None if decision.mode == Mode::Observe => (OutcomeResult::Skipped, Duration::ZERO),
            None => (OutcomeResult::Done, Duration::ZERO),
        };
        let outcome = Outcome {
            decision: decision.id,
            action: decision.action.name().to_owned(),
            result,
            ended: moment(self.test, decision.at.uptime.saturating_add(after)),
            took: after,
            effect: None,
        };
        self.acting.push((outcome, declared));
    }

    /// The declared outcome of an act: the first that names its action and that no act has taken
    /// yet, else the last that names it. In observe mode there is none.
    fn declared(&mut self, decision: &DecisionRecord) -> Option<usize> {
        if decision.mode == Mode::Observe {
            return None;
        }
        let outcomes = self.test.outcomes.iter().enumerate();
        let mut fitting = outcomes
            .filter(|(_, outcome)| is_named(&decision.action, &outcome.action))
            .map(|(index, _)| index);
        let free = fitting.clone().find(|index| !self.taken.contains(index));
        let index = free.or(fitting.next_back())?;
        self.taken.insert(index);
        Some(index)
    }

    fn end_actions(&mut self, at: Duration, seen: &mut Vec<Observation>) {
        let acting = std::mem::take(&mut self.acting);
        for (outcome, declared) in acting {
            if outcome.ended.uptime > at {
                self.acting.push((outcome, declared));
                continue;
            }
            seen.push(Observation::Outcome(outcome));
            if let Some(declared) = declared.and_then(|index| self.test.outcomes.get(index)) {
                self.world.replace(&declared.then);
            }
        }
    }

    /// Checks all expectations whose time is before the next instant.
    fn check_until(&mut self, next: Duration) {
        while let Some((at, expectation)) = self.ahead.pop_if(|(at, _)| *at < next) {
            let failure = match expectation {
                Expectation::Alert(index) => self.check_alerts(index, at),
                Expectation::Remedy(index) => self.check_decisions(index),
                Expectation::Expr(index) => self.check_samples(index, at),
            };
            self.failures.extend(failure);
        }
    }

    fn check_alerts(&mut self, index: usize, at: Duration) -> Option<Failure> {
        let test = self.test.alerts.get(index)?;
        let status = self.policy.status(moment(self.test, at));
        let rules = status.rules.iter().filter(|rule| *rule.rule.alert == *test.alert);
        compare::alerts(test, rules.flat_map(|rule| &rule.alerts))
    }

    fn check_decisions(&mut self, index: usize) -> Option<Failure> {
        let test = self.test.remedies.get(index)?;
        let since = std::mem::replace(&mut self.compared, self.decisions.len());
        compare::decisions(test, self.decisions.get(since..).unwrap_or_default())
    }

    fn check_samples(&mut self, index: usize, at: Duration) -> Option<Failure> {
        let test = self.test.exprs.get(index)?;
        match self.world.evaluate(&test.expr, at) {
            Ok(Evaluated::Known(value)) => compare::samples(test, value, self.file.fuzzy_compare),
            Ok(Evaluated::Unknown(reasons)) => Some(compare::unusable(test, reasons.join("; "))),
            Err(error) => Some(compare::unusable(test, error)),
        }
    }
}

/// A test begins at boot, in 1970 unless it says otherwise.
fn moment(test: &TestCase, at: Duration) -> Moment {
    let utc = test.start.checked_add(at).unwrap_or(Timestamp::MAX);
    Moment { uptime: at, utc }
}
