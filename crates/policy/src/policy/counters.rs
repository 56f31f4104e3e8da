//! The policy's own series: counters, decisions, and the states of its rules.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use jiff::Timestamp;
use promql_rules::store::{Batch, SeriesId, SeriesStore, stale_marker};

use super::guard::Guard;
use super::rule::{Remedy, RemedyStep, Rule};
use super::status::RuleState;
use crate::model::{
    DeathTime, Decision, DecisionRecord, EventKind, FaultClass, KernelEvent, Killer, Mode, Moment,
    NodeHealthLevel, OomBound, Outcome, ProgramEvent, Reading, RuleId, SeriesKey, XidClass,
};

/// What people are alerted to: these outcomes are counted from 0 on for what loaded rules may do.
/// The others appear with their first.
const ALERTED_OUTCOMES: [&str; 3] = ["done", "failed", "skipped"];

/// A place in [`Counters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cell(usize);

/// The series of a kind of event: how many, and when the last one was.
#[derive(Clone, Copy, Debug)]
struct EventCells {
    count: Cell,
    last: Cell,
}

/// How the kernel log is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogView {
    /// By a reader whose records are the kernel's own.
    Believed,
    /// By syslog(2): its lines may be forged.
    Claimed,
    /// By nothing: its counters are unknown.
    Unread,
}

impl LogView {
    /// Whether the value of a cell is not known then.
    fn is_unknown(self, place: usize, counters: &Counters) -> bool {
        match self {
            Self::Believed => false,
            Self::Claimed => counters.of_believed_log.contains(&place),
            Self::Unread => place < counters.of_kernel_log,
        }
    }
}

/// Every own series with its current value. Counters start at 0, so that a first event is an
/// increase and not a birth.
#[derive(Debug)]
pub(super) struct Counters {
    cells: Vec<(SeriesId, Reading<f64>)>,
    /// Cells that have changed since the last write to the store, each once.
    changed: Vec<Cell>,
    is_changed: Vec<bool>,
    /// Counts that have appeared since the last write to the store.
    born: Vec<Cell>,
    batch: Batch,
    places: BTreeMap<SeriesKey, Cell>,
    records: Cell,
    records_lost: Cell,
    records_malformed: Cell,
    records_userspace: Cell,
    faults: [EventCells; KernelEvent::KINDS.len()],
    claimed: [Cell; KernelEvent::KINDS.len()],
    findings: [EventCells; ProgramEvent::KINDS.len()],
    classes: ClassCells,
    /// How many rules are in each state.
    rules: [Cell; RuleState::ALL.len()],
    /// 1 for the level of the node.
    levels: [Cell; NodeHealthLevel::ALL.len()],
    failed_evaluations: Cell,
    /// Those of `cells` that only a log feeds which can be believed.
    of_believed_log: Range<usize>,
    /// How many of `cells`, the first ones, the kernel log feeds.
    of_kernel_log: usize,
    kernel_log: LogView,
    /// What was counted in this step and happened earlier, by its instant on the time line.
    late: Vec<(Cell, i64)>,
    guard: GuardCells,
}

/// The counts of faults by their class.
#[derive(Debug)]
struct ClassCells {
    xids: [Cell; XidClass::ALL.len()],
    oom_kills: [Cell; OomBound::ALL.len()],
    /// Deaths of engines that were failures, by killer and time of life.
    engine_failures: [[Cell; DeathTime::ALL.len()]; Killer::NAMES.len()],
}

impl ClassCells {
    const UNSET: Self = Self {
        xids: [Cell(0); XidClass::ALL.len()],
        oom_kills: [Cell(0); OomBound::ALL.len()],
        engine_failures: [[Cell(0); DeathTime::ALL.len()]; Killer::NAMES.len()],
    };
}

/// The series of what suppresses all remedies.
#[derive(Clone, Copy, Debug)]
struct GuardCells {
    paused: Cell,
    restored: Cell,
    silences: Cell,
    budget_left: Cell,
}

impl GuardCells {
    const UNSET: Self =
        Self { paused: Cell(0), restored: Cell(0), silences: Cell(0), budget_left: Cell(0) };

    fn new(counters: &mut Counters, store: &mut SeriesStore) -> Self {
        Self {
            paused: counters.plain(store, "uma_paused"),
            restored: counters.plain(store, "uma_guard_rails_restored"),
            silences: counters.plain(store, "uma_silences"),
            budget_left: counters.plain(store, "uma_action_budget_left"),
        }
    }
}

impl Counters {
    pub(super) fn new(store: &mut SeriesStore) -> Self {
        let mut counters = Self {
            cells: Vec::new(),
            changed: Vec::new(),
            is_changed: Vec::new(),
            born: Vec::new(),
            batch: Batch::new(store),
            places: BTreeMap::new(),
            records: Cell(0),
            records_lost: Cell(0),
            records_malformed: Cell(0),
            records_userspace: Cell(0),
            faults: [EventCells { count: Cell(0), last: Cell(0) }; KernelEvent::KINDS.len()],
            claimed: [Cell(0); KernelEvent::KINDS.len()],
            findings: [EventCells { count: Cell(0), last: Cell(0) }; ProgramEvent::KINDS.len()],
            classes: ClassCells::UNSET,
            rules: [Cell(0); RuleState::ALL.len()],
            levels: [Cell(0); NodeHealthLevel::ALL.len()],
            failed_evaluations: Cell(0),
            of_believed_log: 0..0,
            of_kernel_log: 0,
            kernel_log: LogView::Believed,
            late: Vec::new(),
            guard: GuardCells::UNSET,
        };
        counters.records = counters.plain(store, "uma_kernel_log_records_total");
        counters.records_lost = counters.plain(store, "uma_kernel_log_lost_records_total");
        counters.records_malformed =
            counters.plain(store, "uma_kernel_log_malformed_records_total");
        counters.records_userspace =
            counters.plain(store, "uma_kernel_log_userspace_records_total");
        for (position, kind) in KernelEvent::KINDS.iter().enumerate() {
            counters.claimed[position] =
                counters.of_event(store, "uma_kernel_claimed_events_total", kind);
        }
        let begin = counters.cells.len();
        counters.faults = KernelEvent::KINDS.map(|kind| EventCells {
            count: counters.of_event(store, "uma_kernel_events_total", kind),
            last: counters.of_event(store, "uma_kernel_event_last_timestamp_seconds", kind),
        });
        counters.classes.xids = XidClass::NAMES
            .map(|class| counters.labelled(store, "uma_kernel_xids_total", ("class", class)));
        counters.classes.oom_kills = OomBound::NAMES
            .map(|bound| counters.labelled(store, "uma_kernel_oom_kills_total", ("bound", bound)));
        counters.of_kernel_log = counters.cells.len();
        counters.of_believed_log = begin..counters.of_kernel_log;
        counters.findings = ProgramEvent::KINDS.map(|kind| EventCells {
            count: counters.of_event(store, "uma_events_total", kind),
            last: counters.of_event(store, "uma_event_last_timestamp_seconds", kind),
        });
        counters.classes.engine_failures = Killer::NAMES.map(|killer| {
            DeathTime::NAMES.map(|when| {
                let labels = [("killer", killer), ("when", when)];
                counters.cell(store, &SeriesKey::new("uma_engine_failures_total", &labels))
            })
        });
        counters.guard = GuardCells::new(&mut counters, store);
        counters.rules = RuleState::ALL
            .map(|state| counters.labelled(store, "uma_rules", ("state", state.name())));
        counters.levels = NodeHealthLevel::NAMES
            .map(|level| counters.labelled(store, "uma_node_health", ("level", level)));
        counters.failed_evaluations = counters.plain(store, "uma_rule_evaluation_failures_total");
        counters
    }

    /// The cell of that series, which starts at 0 if it is new or had been retired.
    pub(super) fn cell(&mut self, store: &mut SeriesStore, key: &SeriesKey) -> Cell {
        if let Some(cell) = self.known(key) {
            if self.cells.get(cell.0).is_some_and(|(_, reading)| reading.is_end()) {
                self.write(cell, Reading::Value(0.0));
            }
            return cell;
        }
        let cell = Cell(self.cells.len());
        self.cells.push((store.intern(key), Reading::Value(0.0)));
        self.is_changed.push(true);
        self.changed.push(cell);
        self.places.insert(key.clone(), cell);
        cell
    }

    /// The cell of that series, if there is one.
    pub(super) fn known(&self, key: &SeriesKey) -> Option<Cell> {
        self.places.get(key).copied()
    }

    /// The cell of a count that appears with its first event. Until then it was 0: for rules a
    /// count that appears at 1 is no increase.
    fn late_cell(&mut self, store: &mut SeriesStore, key: &SeriesKey) -> Cell {
        let is_new = self.known(key).is_none();
        let cell = self.cell(store, key);
        self.born.extend(is_new.then_some(cell));
        cell
    }

    /// Gives the place of a series that was retired to another one of the same metric, which is new
    /// and starts at 0. Names that others choose are without number.
    pub(super) fn reuse(&mut self, cell: Cell, store: &mut SeriesStore, key: &SeriesKey) {
        let Some((id, _)) = self.cells.get(cell.0).copied() else { return };
        if let Some(old) = store.key(id) {
            self.places.remove(old);
        }
        store.replace(id, key);
        self.places.insert(key.clone(), cell);
        self.write(cell, Reading::Value(0.0));
    }

    fn of_event(&mut self, store: &mut SeriesStore, name: &str, kind: &str) -> Cell {
        self.labelled(store, name, ("event", kind))
    }

    fn labelled(&mut self, store: &mut SeriesStore, name: &str, label: (&str, &str)) -> Cell {
        self.cell(store, &SeriesKey::new(name, &[label]))
    }

    fn plain(&mut self, store: &mut SeriesStore, name: &str) -> Cell {
        self.cell(store, &SeriesKey::new(name, &[]))
    }

    pub(super) fn add(&mut self, cell: Cell, amount: f64) {
        let Some((_, reading)) = self.cells.get(cell.0) else { return };
        self.write(cell, Reading::Value(reading.sample().unwrap_or(0.0) + amount));
    }

    pub(super) fn set(&mut self, cell: Cell, value: f64) {
        self.write(cell, Reading::Value(value));
    }

    pub(super) fn set_reading(&mut self, cell: Cell, reading: Reading<f64>) {
        self.write(cell, reading);
    }

    /// Sets a series of something that may lack this value, such as an engine: the series ends
    /// then. A value that the machine lacks is for [`Self::set_reading`].
    pub(super) fn set_or_retire(&mut self, cell: Cell, reading: Reading<f64>) {
        match reading {
            Reading::Unsupported => self.retire(cell),
            reading => self.write(cell, reading),
        }
    }

    /// Ends a series.
    pub(super) fn retire(&mut self, cell: Cell) {
        self.write(cell, Reading::Value(stale_marker()));
    }

    fn write(&mut self, cell: Cell, reading: Reading<f64>) {
        let Some((_, current)) = self.cells.get_mut(cell.0) else { return };
        if current.is_same(reading) {
            return;
        }
        *current = reading;
        self.mark(cell);
    }

    fn mark(&mut self, cell: Cell) {
        if let Some(is_changed) = self.is_changed.get_mut(cell.0)
            && !std::mem::replace(is_changed, true)
        {
            self.changed.push(cell);
        }
    }

    /// How the kernel log is read from now on, and whether that is new. When it is read again, the
    /// counters begin before what comes now.
    pub(super) fn set_kernel_log(
        &mut self,
        view: LogView,
        at: Moment,
        store: &mut SeriesStore,
    ) -> bool {
        let was = std::mem::replace(&mut self.kernel_log, view);
        if was == view {
            return false;
        }
        (0..self.of_kernel_log).for_each(|place| self.mark(Cell(place)));
        for place in 0..self.of_kernel_log {
            if was.is_unknown(place, self) && !view.is_unknown(place, self) {
                let Some((id, reading)) = self.cells.get(place).copied() else { continue };
                self.batch.append(store, id, at.timeline_ms() - 1, reading);
            }
        }
        true
    }

    /// Whether anything reads the kernel log that can be believed.
    pub(super) fn kernel_log_is_believed(&self) -> bool {
        self.kernel_log == LogView::Believed
    }

    /// Counts a record; `late_ms` is its instant if rules shall not take it for news.
    pub(super) fn count_record(&mut self, from_kernel: bool, late_ms: Option<i64>) {
        self.count(self.records, late_ms);
        if !from_kernel {
            self.count(self.records_userspace, late_ms);
        }
    }

    /// That records were lost is known only now, so it is always news.
    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 lost records")]
    pub(super) fn count_lost_records(&mut self, lost: u64) {
        self.add(self.records_lost, lost as f64);
    }

    pub(super) fn count_malformed_record(&mut self) {
        self.add(self.records_malformed, 1.0);
    }

    /// Counts an event that happened at `utc`; `late_ms` is its instant if rules shall not take it
    /// for news.
    pub(super) fn count_event(&mut self, event: &EventKind, utc: Timestamp, late_ms: Option<i64>) {
        let kind = event.kind();
        if let Some(cells) = self.of_kind(kind) {
            self.count(cells.count, late_ms);
            self.note_event(kind, utc);
        }
        if let Some(cell) = self.of_class(event) {
            self.count(cell, late_ms);
        }
    }

    /// The count of its class, if it has one.
    fn of_class(&self, event: &EventKind) -> Option<Cell> {
        let cells = &self.classes;
        let place = |names: &[&str], name: &str| names.iter().position(|known| *known == name);
        match event {
            EventKind::Kernel(fault) => match FaultClass::of(fault)? {
                FaultClass::Xid(class) => {
                    cells.xids.get(place(&XidClass::NAMES, class.name())?).copied()
                }
                FaultClass::OomKill(bound) => {
                    cells.oom_kills.get(place(&OomBound::NAMES, bound.name())?).copied()
                }
            },
            EventKind::Program(ProgramEvent::EngineDied { report }) if report.is_failure => {
                let of_killer = place(&Killer::NAMES, report.killer.name())?;
                let when = place(&DeathTime::NAMES, DeathTime::of(report.phase).name())?;
                cells.engine_failures.get(of_killer)?.get(when).copied()
            }
            EventKind::Program(_) => None,
        }
    }

    /// Counts an event that only syslog(2) shows, and that may be forged.
    pub(super) fn count_claimed_event(&mut self, kind: &str, late_ms: Option<i64>) {
        let cells = KernelEvent::KINDS.iter().zip(&self.claimed);
        let mut cells = cells.filter(|(known, _)| **known == kind).map(|(_, cell)| *cell);
        if let Some(cell) = cells.next() {
            self.count(cell, late_ms);
        }
    }

    /// An event of that kind has happened then; an earlier run may have counted it.
    pub(super) fn note_event(&mut self, kind: &str, utc: Timestamp) {
        let Some(EventCells { last: cell, .. }) = self.of_kind(kind) else { return };
        let seconds = utc.as_millisecond() as f64 / 1000.0;
        if let Some(last) = self.cells.get(cell.0).and_then(|(_, reading)| reading.sample()) {
            self.set(cell, last.max(seconds));
        }
    }

    fn of_kind(&self, kind: &str) -> Option<EventCells> {
        let faults = KernelEvent::KINDS.iter().zip(&self.faults);
        let mut all = faults.chain(ProgramEvent::KINDS.iter().zip(&self.findings));
        all.find(|(known, _)| **known == kind).map(|(_, cells)| *cells)
    }

    fn count(&mut self, cell: Cell, late_ms: Option<i64>) {
        self.add(cell, 1.0);
        self.late.extend(late_ms.map(|late_ms| (cell, late_ms)));
    }

    /// Puts what was counted late where it happened, so that it is no increase now.
    pub(super) fn settle_late(&mut self, store: &mut SeriesStore) {
        let mut late = std::mem::take(&mut self.late);
        late.sort_unstable();
        for of_cell in late.chunk_by(|one, other| one.0 == other.0) {
            let since_ms: Vec<i64> = of_cell.iter().map(|(_, since_ms)| *since_ms).collect();
            if let Some((id, _)) = of_cell.first().and_then(|(cell, _)| self.cells.get(cell.0)) {
                store.raise(*id, &since_ms);
            }
        }
    }

    pub(super) fn count_decision(&mut self, decision: &DecisionRecord, store: &mut SeriesStore) {
        let key = decision_key(&decision.rule, decision.decision.name());
        let cell = self.late_cell(store, &key);
        self.add(cell, 1.0);
        if let Decision::Hold(reason) = decision.decision {
            let labels = [("reason", reason.name()), ("rule", &*decision.rule.alert)];
            let cell = self.late_cell(store, &SeriesKey::new("uma_holds_total", &labels));
            self.add(cell, 1.0);
        }
    }

    pub(super) fn count_outcome(&mut self, outcome: &Outcome, store: &mut SeriesStore) {
        let key = outcome_key(&outcome.action, outcome.result.name());
        let cell = self.late_cell(store, &key);
        self.add(cell, 1.0);
    }

    pub(super) fn count_failed_evaluation(&mut self) {
        self.add(self.failed_evaluations, 1.0);
    }

    /// How many rules are in each state, in the order of [`RuleState::ALL`].
    pub(super) fn set_rules(&mut self, counts: [u32; RuleState::ALL.len()]) {
        for (cell, count) in self.rules.into_iter().zip(counts) {
            self.set(cell, f64::from(count));
        }
    }

    /// Whether the node is well.
    pub(super) fn set_level(&mut self, level: NodeHealthLevel) {
        for (cell, known) in self.levels.into_iter().zip(NodeHealthLevel::ALL) {
            self.set(cell, f64::from(known == level));
        }
    }

    /// What holds all remedies back.
    #[expect(clippy::cast_precision_loss, reason = "at most a thousand silences")]
    pub(super) fn set_guard(&mut self, guard: &Guard, mode: Mode, at: Moment) {
        let cells = self.guard;
        self.set(cells.paused, f64::from(guard.is_paused()));
        self.set(cells.restored, f64::from(guard.is_restored()));
        self.set(cells.silences, guard.silences() as f64);
        let left = guard.budget_left(mode, at.timeline_ms());
        self.set_or_retire(cells.budget_left, left.map(f64::from).into());
    }

    pub(super) fn set_mode(&mut self, mode: Mode, store: &mut SeriesStore) {
        for candidate in [Mode::Observe, Mode::Enforce] {
            let key = SeriesKey::new("uma_mode", &[("mode", candidate.name())]);
            let cell = self.cell(store, &key);
            self.set(cell, f64::from(candidate == mode));
        }
    }

    /// Makes the counters of what the remedy of a rule decides and does exist, if it does more than
    /// notify.
    pub(super) fn begin_remedy(&mut self, rule: &Rule, remedy: &Remedy, store: &mut SeriesStore) {
        if remedy.steps.iter().all(RemedyStep::is_notice) {
            return;
        }
        for decision in ["act", "hold"] {
            self.cell(store, &decision_key(&rule.id, decision));
        }
        for step in &remedy.steps {
            let action = step.action(None);
            for outcome in ALERTED_OUTCOMES {
                self.cell(store, &outcome_key(action.name(), outcome));
            }
        }
    }

    /// Shows every value to exports. Between samples the past is left alone: a storm in the kernel
    /// log shall not fill the ranges of rules.
    pub(super) fn show(&mut self, store: &mut SeriesStore) {
        let ids = self.cells.iter().map(|(id, _)| *id);
        self.batch.find_restless(store, ids);
        let restless = self.batch.restless().iter().copied();
        let places = restless.chain(self.changed.iter().map(|cell| cell.0));
        for (id, reading) in places.filter_map(|place| self.reading(place)) {
            store.show(id, reading);
        }
    }

    /// Writes every value into the store, for rules and exports to read: those that have changed,
    /// while the others stay.
    pub(super) fn publish(&mut self, at: Moment, store: &mut SeriesStore) {
        self.publish_changed(at, store);
        let at_ms = at.timeline_ms();
        let ids = self.cells.iter().map(|(id, _)| *id);
        self.batch.find_restless(store, ids);
        let restless = self.batch.restless().iter();
        for (id, reading) in restless.filter_map(|place| self.reading(*place)) {
            self.batch.append(store, id, at_ms, reading);
        }
        self.batch.stay(store, at_ms);
    }

    /// The same at the same instant again, after some have changed.
    pub(super) fn publish_changed(&mut self, at: Moment, store: &mut SeriesStore) {
        let at_ms = at.timeline_ms();
        let is_past = self.batch.is_past(store, at_ms);
        for cell in self.born.drain(..).filter(|_| !is_past) {
            if let Some((id, _)) = self.cells.get(cell.0) {
                self.batch.append(store, *id, at_ms - 1, Reading::Value(0.0));
            }
        }
        for (id, reading) in self.changed.iter().filter_map(|cell| self.reading(cell.0)) {
            self.batch.append(store, id, at_ms, reading);
        }
        if !is_past {
            for cell in self.changed.drain(..) {
                if let Some(is_changed) = self.is_changed.get_mut(cell.0) {
                    *is_changed = false;
                }
            }
        }
    }

    fn reading(&self, place: usize) -> Option<(SeriesId, Reading<f64>)> {
        let (id, reading) = self.cells.get(place)?;
        let is_unknown = self.kernel_log.is_unknown(place, self);
        Some((*id, if is_unknown { Reading::Failed } else { *reading }))
    }
}

fn decision_key(rule: &RuleId, decision: &str) -> SeriesKey {
    let labels = [("decision", decision), ("rule", &*rule.alert)];
    SeriesKey::new("uma_decisions_total", &labels)
}

fn outcome_key(action: &str, outcome: &str) -> SeriesKey {
    SeriesKey::new("uma_actions_total", &[("action", action), ("outcome", outcome)])
}
