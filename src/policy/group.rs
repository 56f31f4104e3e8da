//! A group of rules at work.

use std::sync::Arc;
use std::time::Duration;

use super::alert::Alerts;
use super::counters::{Cell, Counters};
use super::promql::{EvalTime, Evaluated, Sample, Value};
use super::remedy::{Case, Condition, Course, Stand};
use super::rule::{Rule, RuleGroup};
use super::status::{RuleState, RuleStatus};
use super::store::SeriesStore;
use super::template::Template;
use super::{Doubt, Surroundings};
use crate::model::{AlertChange, AlertState, Mode, Moment, Outcome, RuleId, SeriesKey};

/// The rules of one group, and when they are evaluated next.
#[derive(Debug)]
pub(super) struct Group {
    file: String,
    interval: Duration,
    due: Duration,
    rules: Vec<RunningRule>,
}

/// One rule with its alerts and its remedy's course.
#[derive(Debug)]
struct RunningRule {
    rule: Rule,
    alerts: Alerts,
    course: Course,
    unknown: Vec<String>,
    evaluated: Option<Duration>,
    cells: Cells,
    changed: bool,
}

/// The series that tell of one rule.
#[derive(Clone, Debug)]
struct Cells {
    states: [Cell; RuleState::ALL.len()],
    failures: Cell,
}

impl Group {
    /// Takes over what `old` groups know of the same rules.
    pub(super) fn new(
        group: &RuleGroup,
        at: Moment,
        old: &mut [Self],
        store: &mut SeriesStore,
        counters: &mut Counters,
    ) -> Self {
        let rules = group.rules.iter().map(|rule| {
            let cells = Cells::new(rule, store, counters);
            RunningRule::succeeding(old, rule, cells, at)
        });
        Self {
            file: group.file.display().to_string(),
            interval: group.interval,
            due: at.uptime,
            rules: rules.collect(),
        }
    }

    /// Ends what the `new` groups have not taken over.
    pub(super) fn end(
        &mut self,
        at: Moment,
        new: &[Self],
        counters: &mut Counters,
        changes: &mut Vec<AlertChange>,
    ) {
        for running in &mut self.rules {
            running.alerts.end(&running.rule, at, changes);
            let id = &running.rule.id;
            let stays = new.iter().flat_map(|group| &group.rules).any(|rule| rule.rule.id == *id);
            if !stays {
                running.cells.retire(counters);
            }
        }
    }

    pub(super) fn resume_acts(
        &mut self,
        at: Moment,
        mode: Mode,
        acts: &[(RuleId, Mode, Duration)],
    ) {
        for RunningRule { rule, course, .. } in &mut self.rules {
            let Some(remedy) = &rule.remedy else { continue };
            let mode = rule.mode.unwrap_or(mode);
            for (_, _, ago) in acts.iter().filter(|act| act.0 == rule.id && act.1 == mode) {
                course.resume_act(remedy, at.uptime, *ago);
            }
        }
    }

    /// When it is evaluated next, on the uptime clock.
    pub(super) fn due(&self) -> Duration {
        self.due
    }

    /// How many rules it has.
    pub(super) fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Evaluates every rule and lets its remedy move on.
    pub(super) fn evaluate(&mut self, around: &mut Surroundings<'_>) {
        for running in &mut self.rules {
            running.evaluate(around);
        }
        self.due += self.interval;
        if self.due <= around.at.uptime {
            self.due = around.at.uptime + self.interval;
        }
    }

    pub(super) fn observe_outcome(&mut self, outcome: &Outcome) {
        for running in &mut self.rules {
            if let Some(remedy) = &running.rule.remedy {
                running.course.observe_outcome(remedy, outcome);
            }
        }
    }

    /// Writes where each rule stands.
    pub(super) fn publish(&self, counters: &mut Counters) {
        for running in &self.rules {
            let current = running.state();
            for (state, cell) in RuleState::ALL.iter().zip(running.cells.states) {
                counters.set(cell, f64::from(*state == current));
            }
        }
    }

    /// The rule of that name, and where its remedy stands.
    pub(super) fn stand(&self, rule: &RuleId) -> Option<(&Rule, Stand)> {
        let running = self.rules.iter().find(|running| running.rule.id == *rule)?;
        Some((&running.rule, running.course.stand()))
    }

    /// Whether any rule's picture may differ from the one that was taken last.
    pub(super) fn changed(&self) -> bool {
        self.rules.iter().any(|running| running.changed)
    }

    /// Takes the picture of each rule.
    pub(super) fn statuses(&mut self, mode: Mode) -> Vec<RuleStatus> {
        let (file, interval) = (&self.file, self.interval);
        self.rules.iter_mut().map(|running| running.status(file, interval, mode)).collect()
    }
}

impl Cells {
    fn new(rule: &Rule, store: &mut SeriesStore, counters: &mut Counters) -> Self {
        let labels = [("group", &*rule.id.group), ("rule", &*rule.id.alert)];
        let states = RuleState::ALL.map(|state| {
            let labels = [labels[0], labels[1], ("state", state.name())];
            counters.cell(store, &SeriesKey::new("uma_rule_state", &labels))
        });
        let failures = SeriesKey::new("uma_rule_evaluation_failures_total", &labels);
        if rule.remedy.is_some() {
            counters.begin_decisions(&rule.id, store);
        }
        Self { states, failures: counters.cell(store, &failures) }
    }

    fn retire(&self, counters: &mut Counters) {
        for cell in self.states.iter().chain([&self.failures]) {
            counters.retire(*cell);
        }
    }
}

impl RunningRule {
    /// A rule that stays the same is taken over whole; one that has changed begins anew, but for
    /// its guard rails.
    fn succeeding(old: &mut [Group], rule: &Rule, cells: Cells, at: Moment) -> Self {
        let mut course = Course::default();
        for group in old {
            let known = group.rules.iter().position(|known| known.rule.id == rule.id);
            let Some(position) = known else { continue };
            if group.rules[position].rule == *rule {
                let known = group.rules.swap_remove(position);
                return Self { cells, changed: true, ..known };
            }
            if let Some(remedy) = &rule.remedy {
                course = group.rules[position].course.carried_over(at.uptime, remedy);
            }
        }
        Self {
            rule: rule.clone(),
            alerts: Alerts::default(),
            course,
            unknown: Vec::new(),
            evaluated: None,
            cells,
            changed: true,
        }
    }

    fn evaluate(&mut self, around: &mut Surroundings<'_>) {
        let now = around.at.uptime;
        let since_last = self.evaluated.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        self.evaluated = Some(now);
        let before = around.step.alerts.len();
        let unknown = self.judge(around).err().unwrap_or_default();
        if !unknown.is_empty() {
            self.alerts.stand_still(since_last);
        }
        self.changed |= self.unknown != unknown
            || around.step.alerts.len() != before
            || self.alerts.state() != AlertState::Inactive;
        if self.unknown != unknown {
            let doubt = Doubt { rule: self.rule.id.clone(), reasons: unknown.clone() };
            around.step.doubts.push(doubt);
            self.unknown = unknown;
        }
        let Some(remedy) = &self.rule.remedy else { return };
        let condition = match (self.alerts.state(), self.unknown.is_empty()) {
            (AlertState::Firing, true) => Condition::Firing,
            (AlertState::Firing, false) => Condition::Unknown,
            (AlertState::Inactive | AlertState::Pending, _) => Condition::Quiet,
        };
        let decisions = around.step.decisions.len();
        let case = Case { rule: &self.rule, remedy, alert: self.alerts.firing() };
        self.course.advance(&case, condition, around);
        self.changed |= around.step.decisions.len() != decisions;
    }

    /// Evaluates the condition and moves the alerts on; an error says why that cannot be told.
    fn judge(&mut self, around: &mut Surroundings<'_>) -> Result<(), Vec<String>> {
        let at = EvalTime { timeline_ms: around.at.timeline_ms(), utc_ms: around.at.utc_ms() };
        let evaluated = self.rule.expr.expr.evaluate(around.store, at);
        let samples = match evaluated {
            Ok(Evaluated::Known(Value::Vector(samples))) => samples,
            Ok(Evaluated::Known(Value::Scalar(value))) => {
                vec![Sample { name: None, labels: Arc::new([]), value }]
            }
            Ok(Evaluated::Unknown(reasons)) => return Err(reasons),
            Err(error) => {
                around.counters.add(self.cells.failures, 1.0);
                return Err(vec![error]);
            }
        };
        self.alerts.update(&self.rule, around.at, &samples, &mut around.step.alerts).map_err(
            |error| {
                around.counters.add(self.cells.failures, 1.0);
                vec![error]
            },
        )
    }

    fn state(&self) -> RuleState {
        if !self.unknown.is_empty() {
            return RuleState::Unknown;
        }
        match self.alerts.state() {
            AlertState::Inactive => RuleState::Inactive,
            AlertState::Pending => RuleState::Pending,
            AlertState::Firing => RuleState::Firing,
        }
    }

    fn status(&mut self, file: &str, interval: Duration, mode: Mode) -> RuleStatus {
        self.changed = false;
        RuleStatus {
            rule: self.rule.id.clone(),
            file: file.to_owned(),
            interval,
            expr: Arc::clone(&self.rule.expr.text),
            hold_for: self.rule.hold_for,
            keep_firing_for: self.rule.keep_firing_for,
            labels: as_written(&self.rule.labels),
            annotations: as_written(&self.rule.annotations),
            mode: self.rule.mode.unwrap_or(mode),
            state: self.state(),
            unknown: self.unknown.clone(),
            alerts: self.alerts.statuses(),
            remedy: self.course.summary.clone(),
        }
    }
}

fn as_written(templates: &[(Arc<str>, Template)]) -> Vec<(Arc<str>, Arc<str>)> {
    let written =
        templates.iter().map(|(name, text)| (Arc::clone(name), Arc::clone(text.as_written())));
    written.collect()
}
