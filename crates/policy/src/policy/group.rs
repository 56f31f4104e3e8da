//! A group of rules at work.

use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;
use promql_rules::template::Template;
use promql_rules::{Alert, Alerts, EvalTime, Evaluated, Labels, Sample, Value, Watch};

use super::aim::Case;
use super::alert;
use super::cluster::Cluster;
use super::counters::{Cell, Counters};
use super::guard::{ByMode, Guard};
use super::remedy::{Condition, RemedyProgress, RemedyState};
use super::rule::{Remedy, Rule, RuleGroup, RuleScope, RuleSet};
use super::status::{RuleState, RuleStatus};
use super::{Context, Doubt};
use crate::model::{AlertChange, AlertState, Mode, Moment, NODE_LABEL, Outcome, RuleId, SeriesKey};

/// The rules of one group, and when they are evaluated next.
#[derive(Debug)]
pub(super) struct RunningGroup {
    file: String,
    scope: RuleScope,
    interval: Duration,
    due: Duration,
    rules: Vec<RunningRule>,
}

/// One rule with its alerts and its remedy in progress, in each mode.
#[derive(Debug)]
struct RunningRule {
    rule: Rule,
    watch: Watch,
    alerts: Alerts<Moment>,
    remedies: ByMode<RemedyState>,
    unknown: Vec<String>,
    evaluated: Option<Duration>,
    /// What the configuration has changed in it, in words.
    overridden: Option<Arc<str>>,
    /// Whether any step of its remedy is enforced, where its mode is that.
    may_enforce: bool,
    /// There is nothing that it could read.
    is_idle: bool,
    cells: RuleCells,
    /// What the cells were set to last.
    published: Option<(RuleState, Option<[bool; 2]>, i64)>,
    changed: bool,
}

/// The series of one rule.
#[derive(Clone, Debug)]
struct RuleCells {
    states: [Cell; RuleState::NOTABLE.len()],
    /// For a rule with a remedy: whether its breaker is open, whether it waits for approval.
    guard: Option<[Cell; 2]>,
    /// For a remedy that goes ahead unless it is denied: when.
    goes_ahead: Option<Cell>,
}

/// A rule, the state of its remedy, and labels and value of its alert if that fires.
type RuleProgress<'a> = (&'a Rule, RemedyProgress, Option<(&'a Labels, f64)>);

impl RunningGroup {
    /// Takes over what `old` groups know of the same rules.
    pub(super) fn new(
        group: &RuleGroup,
        at: Moment,
        old: &mut [Self],
        store: &mut SeriesStore,
        counters: &mut Counters,
        guard: &mut Guard,
    ) -> Self {
        let rules = group.rules.iter().map(|rule| {
            let cells = RuleCells::new(rule, store, counters);
            RunningRule::succeeding(old, rule, cells, at, guard)
        });
        Self {
            file: group.file.display().to_string(),
            scope: group.scope,
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
        guard: &mut Guard,
        changes: &mut Vec<AlertChange>,
    ) {
        for running in &mut self.rules {
            let rule = &running.rule;
            running.alerts.end(|alert, from| changes.push(alert::change(rule, alert, from, at)));
            let id = &running.rule.id;
            let stays = new.iter().flat_map(|group| &group.rules).any(|rule| rule.rule.id == *id);
            if !stays {
                running.break_off(at, guard);
                running.cells.retire(counters);
            }
        }
    }

    /// Takes what the configuration has changed, for people, and which grades it enforces.
    pub(super) fn configure(&mut self, rules: &RuleSet) {
        for running in &mut self.rules {
            let enforced = &rules.guard_rails.enforced;
            let may_enforce = running.rule.mode_in_force(Mode::Enforce, enforced) == Mode::Enforce;
            running.changed |= running.may_enforce != may_enforce;
            running.may_enforce = may_enforce;
            let text = rules.overridden.get(&running.rule.id).map(|own| own.to_string().into());
            running.changed |= running.overridden != text;
            running.overridden = text;
        }
    }

    /// When it is evaluated next, on the uptime clock.
    pub(super) fn due(&self) -> Duration {
        self.due
    }

    /// Whose series its rules read.
    pub(super) fn scope(&self) -> RuleScope {
        self.scope
    }

    /// How often it is evaluated.
    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// Whether any alert is pending or firing.
    pub(super) fn is_active(&self) -> bool {
        self.rules.iter().any(|running| running.alerts.state() != AlertState::Inactive)
    }

    /// How many rules it has.
    pub(super) fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Evaluates every rule's condition.
    pub(super) fn evaluate(&mut self, context: &mut Context<'_>) {
        let is_idle = self.scope == RuleScope::Cluster && context.cluster.is_idle();
        for running in &mut self.rules {
            running.changed |= running.is_idle != is_idle;
            running.is_idle = is_idle;
            if !is_idle {
                running.evaluate(context);
            }
        }
    }

    /// Advances every remedy, once all conditions are evaluated.
    pub(super) fn remedy(&mut self, context: &mut Context<'_>) {
        self.rules.iter_mut().for_each(|running| running.remedy(context));
    }

    /// Sets when it is evaluated next.
    pub(super) fn evaluated(&mut self, now: Duration) {
        self.due += self.interval;
        if self.due <= now {
            self.due = now + self.interval;
        }
    }

    /// The state of each rule, by alert name.
    pub(super) fn states(&self) -> impl Iterator<Item = (&str, RuleState)> {
        self.rules.iter().map(|running| {
            let is_evaluated = running.evaluated.is_some() || running.is_idle;
            let state = if is_evaluated { running.state() } else { RuleState::Unknown };
            (&*running.rule.id.alert, state)
        })
    }

    pub(super) fn observe_outcome(&mut self, outcome: &Outcome, guard: &mut Guard) {
        for RunningRule { rule, remedies, .. } in &mut self.rules {
            for mode in [Mode::Observe, Mode::Enforce] {
                remedies.of_mut(mode).observe_outcome(rule, mode, outcome, guard);
            }
        }
    }

    /// Publishes the state of each rule.
    pub(super) fn publish(
        &mut self,
        at: Moment,
        mode: Mode,
        guard: &Guard,
        counters: &mut Counters,
        counts: &mut [u32; RuleState::ALL.len()],
    ) {
        let now_ms = at.timeline_ms();
        for running in &mut self.rules {
            let mode = running.mode(mode);
            let (id, remedy) = (&running.rule.id, running.rule.remedy.as_ref());
            let rails = remedy.map(|remedy| &remedy.rails);
            let signs = running.cells.guard.map(|_| guard.signs(id, rails, mode, now_ms));
            let goes_ahead = guard.goes_ahead_at(&running.rule.id);
            let current = (running.state(), signs, goes_ahead);
            for (state, count) in RuleState::ALL.iter().zip(&mut *counts) {
                *count += u32::from(*state == current.0);
            }
            if running.published.replace(current) == Some(current) {
                continue;
            }
            for (cell, sign) in running.cells.guard.iter().flatten().zip(signs.iter().flatten()) {
                counters.set(*cell, f64::from(*sign));
            }
            if let Some(cell) = running.cells.goes_ahead {
                counters.set(cell, goes_ahead as f64);
            }
            for (state, cell) in RuleState::NOTABLE.iter().zip(running.cells.states) {
                counters.set(cell, f64::from(*state == current.0));
            }
        }
    }

    /// The rule of that name with the state of its remedy, and labels and value of its alert if
    /// that fires.
    pub(super) fn progress(&self, rule: &RuleId, mode: Mode) -> Option<RuleProgress<'_>> {
        let running = self.rules.iter().find(|running| running.rule.id == *rule)?;
        let mode = running.mode(mode);
        let progress = running.remedies.of(mode).progress();
        Some((&running.rule, progress, running.alerts.firing()))
    }

    /// Whether the rule of that name, if it is here, fires in that mode for this node.
    pub(super) fn fires(
        &self,
        rule: &RuleId,
        mode: Mode,
        in_force: Mode,
        cluster: &Cluster,
    ) -> Option<bool> {
        let running = self.rules.iter().find(|running| running.rule.id == *rule)?;
        let is_of_mode = running.mode(in_force) == mode;
        let has_remedy = running.rule.remedy.is_some();
        (is_of_mode && has_remedy)
            .then(|| acted_on(&running.rule, &running.alerts, cluster).is_some())
    }

    /// The rule of that name, and in which mode it is.
    pub(super) fn rule(&self, rule: &RuleId, in_force: Mode) -> Option<(&Rule, Mode)> {
        let running = self.rules.iter().find(|running| running.rule.id == *rule)?;
        Some((&running.rule, running.mode(in_force)))
    }

    /// Whether the rule of that name fires, if it is here and acts in that mode.
    pub(super) fn condition(
        &self,
        rule: &RuleId,
        mode: Mode,
        in_force: Mode,
        cluster: &Cluster,
    ) -> Option<Condition> {
        let running = self.rules.iter().find(|running| running.rule.id == *rule)?;
        let is_of_mode = running.mode(in_force) == mode;
        (is_of_mode && running.rule.remedy.is_some()).then(|| running.condition(cluster))
    }

    /// Whether a rule whose remedy reboots is about to act, or to report that it would.
    pub(super) fn thinks_of_reboot(&self) -> bool {
        self.rules.iter().any(|running| {
            let reboots = running.rule.remedy.as_ref().is_some_and(Remedy::reboots);
            reboots && running.alerts.state() != AlertState::Inactive
        })
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

impl RuleCells {
    fn new(rule: &Rule, store: &mut SeriesStore, counters: &mut Counters) -> Self {
        let labels = [("group", &*rule.id.group), ("rule", &*rule.id.alert)];
        let states = RuleState::NOTABLE.map(|state| {
            let labels = [labels[0], labels[1], ("state", state.name())];
            counters.cell(store, &SeriesKey::new("uma_rule_state", &labels))
        });
        let guard = rule.remedy.as_ref().map(|remedy| {
            counters.begin_remedy(rule, remedy, store);
            ["uma_remedy_breaker_open", "uma_remedy_approval_pending"]
                .map(|name| counters.cell(store, &SeriesKey::new(name, &labels)))
        });
        let waits = rule.remedy.as_ref().is_some_and(|remedy| remedy.rails.unless_denied);
        let goes_ahead = waits.then(|| {
            let name = "uma_remedy_goes_ahead_timestamp_seconds";
            counters.cell(store, &SeriesKey::new(name, &labels))
        });
        Self { states, guard, goes_ahead }
    }

    fn retire(&self, counters: &mut Counters) {
        let guard = self.guard.iter().flatten().chain(&self.goes_ahead);
        for cell in self.states.iter().chain(guard) {
            counters.retire(*cell);
        }
    }
}

impl RunningRule {
    /// An unchanged rule keeps its state; a changed one starts afresh, except for its guard rails.
    fn succeeding(
        old: &mut [RunningGroup],
        rule: &Rule,
        cells: RuleCells,
        at: Moment,
        guard: &mut Guard,
    ) -> Self {
        let mut remedies = ByMode::default();
        for group in old {
            let known = group.rules.iter().position(|known| known.rule.id == rule.id);
            let Some(position) = known else { continue };
            if group.rules[position].rule == *rule {
                let known = group.rules.swap_remove(position);
                return Self { cells, published: None, changed: true, ..known };
            }
            let known = &mut group.rules[position];
            known.break_off(at, guard);
            remedies = std::mem::take(&mut known.remedies);
        }
        Self {
            rule: rule.clone(),
            watch: Watch::default(),
            alerts: Alerts::default(),
            remedies,
            unknown: Vec::new(),
            evaluated: None,
            overridden: None,
            may_enforce: true,
            is_idle: false,
            cells,
            published: None,
            changed: true,
        }
    }

    /// Its mode on a node with that one.
    fn mode(&self, of_node: Mode) -> Mode {
        match self.rule.mode.unwrap_or(of_node) {
            Mode::Enforce if self.may_enforce => Mode::Enforce,
            _ => Mode::Observe,
        }
    }

    fn evaluate(&mut self, context: &mut Context<'_>) {
        let now = context.at.uptime;
        let since_last = self.evaluated.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        self.evaluated = Some(now);
        let before = context.step.alerts.len();
        let unknown = self.advance_alerts(context).err().unwrap_or_default();
        if !unknown.is_empty() {
            self.alerts.stand_still(since_last);
        }
        self.changed |= self.unknown != unknown
            || context.step.alerts.len() != before
            || self.alerts.state() != AlertState::Inactive;
        if self.unknown != unknown {
            let doubt = Doubt { rule: self.rule.id.clone(), reasons: unknown.clone() };
            context.step.doubts.push(doubt);
            self.unknown = unknown;
        }
    }

    fn remedy(&mut self, context: &mut Context<'_>) {
        let Some(remedy) = &self.rule.remedy else { return };
        let alert = acted_on(&self.rule, &self.alerts, context.cluster);
        let condition = self.condition(context.cluster);
        let is_at_rest = |mode| self.remedies.of(mode).is_at_rest();
        let are_at_rest = [Mode::Observe, Mode::Enforce].into_iter().all(is_at_rest);
        if condition == Condition::Quiet && are_at_rest {
            return;
        }
        let decisions = context.step.decisions.len();
        let in_force = self.mode(context.mode);
        for mode in [Mode::Observe, Mode::Enforce] {
            let state = self.remedies.of_mut(mode);
            let asks = |of: &Labels| {
                let alert = Some((of, 0.0));
                let case = Case { rule: &self.rule, remedy, mode, alert };
                is_meant(&self.rule, of, context.cluster)
                    && !state.has_answered(&case, context.engines)
                    && !state.spares(&case, context.guard, context.at.timeline_ms())
            };
            // One that nothing can be done for, or more, keeps no other one waiting.
            let alert = self.alerts.firing_where(asks).or(alert);
            let case = Case { rule: &self.rule, remedy, mode, alert };
            if mode == in_force {
                state.advance(&case, condition, context);
            } else {
                state.wind_up(&case, context);
            }
        }
        self.changed |= context.step.decisions.len() != decisions;
    }

    fn condition(&self, cluster: &Cluster) -> Condition {
        match (acted_on(&self.rule, &self.alerts, cluster), self.unknown.is_empty()) {
            (Some(_), true) => Condition::Firing,
            (Some(_), false) => Condition::Unknown,
            (None, _) => Condition::Quiet,
        }
    }

    /// Ends what its remedy has begun.
    fn break_off(&mut self, at: Moment, guard: &mut Guard) {
        for mode in [Mode::Observe, Mode::Enforce] {
            self.remedies.of_mut(mode).break_off(&self.rule, mode, at, guard);
        }
    }

    /// Evaluates the condition and advances the alerts; the error is why it is unknown.
    fn advance_alerts(&mut self, context: &mut Context<'_>) -> Result<(), Vec<String>> {
        let at = EvalTime { timeline_ms: context.at.timeline_ms(), utc_ms: context.at.utc_ms() };
        let evaluated = self.watch.evaluate(&self.rule.expr.expr, context.store_of(&self.rule), at);
        let samples = match evaluated {
            Ok(Evaluated::Known(Value::Vector(samples))) => samples,
            Ok(Evaluated::Known(Value::Scalar(value))) => {
                vec![Sample { name: None, labels: Arc::new([]), value }]
            }
            Ok(Evaluated::Unknown(reasons)) => return Err(reasons),
            Err(error) => {
                context.counters.count_failed_evaluation();
                return Err(vec![error]);
            }
        };
        let (rule, at) = (&self.rule, context.at);
        let report = |alert: &Alert<Moment>, from| {
            context.step.alerts.push(alert::change(rule, alert, from, at));
        };
        self.alerts.update(rule, at, at.uptime, &samples, report).map_err(|error| {
            context.counters.count_failed_evaluation();
            vec![error]
        })
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
        let in_force = self.mode(mode);
        RuleStatus {
            rule: self.rule.id.clone(),
            file: file.to_owned(),
            overridden: self.overridden.clone(),
            is_idle: self.is_idle,
            interval,
            expr: Arc::clone(&self.rule.expr.text),
            hold_for: self.rule.hold_for,
            keep_firing_for: self.rule.keep_firing_for,
            labels: as_written(&self.rule.labels),
            annotations: as_written(&self.rule.annotations),
            mode: in_force,
            state: self.state(),
            unknown: self.unknown.clone(),
            alerts: self.alerts.active().iter().map(alert::status).collect(),
            remedy: self.remedies.of(in_force).summary.clone(),
        }
    }
}

/// The firing alert that is acted on here: of those that name a node only this one's.
fn acted_on<'a>(
    rule: &Rule,
    alerts: &'a Alerts<Moment>,
    cluster: &Cluster,
) -> Option<(&'a Labels, f64)> {
    alerts.firing_where(|labels| is_meant(rule, labels, cluster))
}

/// Whether an alert with these labels is acted on here.
fn is_meant(rule: &Rule, labels: &Labels, cluster: &Cluster) -> bool {
    match rule.scope {
        RuleScope::Node => true,
        RuleScope::Cluster => is_of_this_node(labels, cluster),
    }
}

/// Whether labels name this node, or none.
fn is_of_this_node(labels: &Labels, cluster: &Cluster) -> bool {
    let node = labels.iter().find(|(name, _)| **name == *NODE_LABEL);
    !node.is_some_and(|(_, node)| cluster.is_other(node))
}

fn as_written(templates: &[(Arc<str>, Template)]) -> Vec<(Arc<str>, Arc<str>)> {
    let written =
        templates.iter().map(|(name, text)| (Arc::clone(name), Arc::clone(text.as_written())));
    written.collect()
}
