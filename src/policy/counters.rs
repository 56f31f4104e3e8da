//! The policy's own series: what it has counted, decided, and where its rules stand.

use std::collections::BTreeMap;

use super::guard::Guard;
use super::store::{SeriesId, SeriesStore};
use crate::model::{
    Action, Decision, HoldReason, KernelEvent, Mode, Moment, Outcome, OutcomeResult, Reading,
    RuleId, SeriesKey, Verdict,
};

/// A place in [`Counters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell(usize);

/// Every own series with its current value. Counters start at 0, so that a first event is an
/// increase and not a birth.
#[derive(Debug)]
pub(super) struct Counters {
    cells: Vec<(SeriesId, Reading<f64>)>,
    /// So many of the first cells tell of the kernel log.
    of_kernel_log: usize,
    /// The kernel log cannot be read: what it would have told is not known.
    is_blind: bool,
    places: BTreeMap<SeriesKey, Cell>,
    records: Cell,
    records_lost: Cell,
    records_malformed: Cell,
    records_userspace: Cell,
    events: [Cell; KernelEvent::KINDS.len()],
    guard: GuardCells,
}

/// The series that tell what holds all remedies back.
#[derive(Clone, Copy, Debug)]
struct GuardCells {
    paused: Cell,
    restored: Cell,
    silences: Cell,
    budget_left: Cell,
}

impl Counters {
    pub(super) fn new(store: &mut SeriesStore) -> Self {
        let mut counters = Self {
            cells: Vec::new(),
            of_kernel_log: 0,
            is_blind: false,
            places: BTreeMap::new(),
            records: Cell(0),
            records_lost: Cell(0),
            records_malformed: Cell(0),
            records_userspace: Cell(0),
            events: [Cell(0); KernelEvent::KINDS.len()],
            guard: GuardCells {
                paused: Cell(0),
                restored: Cell(0),
                silences: Cell(0),
                budget_left: Cell(0),
            },
        };
        counters.guard = GuardCells {
            paused: counters.plain(store, "uma_paused"),
            restored: counters.plain(store, "uma_guard_rails_restored"),
            silences: counters.plain(store, "uma_silences"),
            budget_left: counters.plain(store, "uma_action_budget_left"),
        };
        counters.records = counters.plain(store, "uma_kernel_log_records_total");
        counters.records_lost = counters.plain(store, "uma_kernel_log_lost_records_total");
        counters.records_malformed =
            counters.plain(store, "uma_kernel_log_malformed_records_total");
        counters.records_userspace =
            counters.plain(store, "uma_kernel_log_userspace_records_total");
        for (position, kind) in KernelEvent::KINDS.iter().enumerate() {
            let key = SeriesKey::new("uma_kernel_events_total", &[("event", kind)]);
            counters.events[position] = counters.cell(store, &key);
        }
        counters.of_kernel_log = counters.cells.len();
        for action in Action::NAMES {
            for outcome in OutcomeResult::NAMES {
                counters.cell(store, &outcome_key(action, outcome));
            }
        }
        counters
    }

    /// The cell of that series, which starts at 0 if it is new or had been retired.
    pub(super) fn cell(&mut self, store: &mut SeriesStore, key: &SeriesKey) -> Cell {
        if let Some(cell) = self.places.get(key).copied() {
            if let Some((_, reading @ Reading::Unsupported)) = self.cells.get_mut(cell.0) {
                *reading = Reading::Value(0.0);
            }
            return cell;
        }
        let cell = Cell(self.cells.len());
        self.cells.push((store.intern(key), Reading::Value(0.0)));
        self.places.insert(key.clone(), cell);
        cell
    }

    fn plain(&mut self, store: &mut SeriesStore, name: &str) -> Cell {
        self.cell(store, &SeriesKey::new(name, &[]))
    }

    pub(super) fn add(&mut self, cell: Cell, amount: f64) {
        if let Some((_, reading)) = self.cells.get_mut(cell.0) {
            *reading = Reading::Value(reading.value().unwrap_or(0.0) + amount);
        }
    }

    pub(super) fn set(&mut self, cell: Cell, value: f64) {
        self.write(cell, Reading::Value(value));
    }

    /// Ends a series.
    pub(super) fn retire(&mut self, cell: Cell) {
        self.write(cell, Reading::Unsupported);
    }

    fn write(&mut self, cell: Cell, reading: Reading<f64>) {
        if let Some((_, current)) = self.cells.get_mut(cell.0) {
            *current = reading;
        }
    }

    /// Whether the kernel log can be read.
    pub(super) fn set_kernel_log(&mut self, is_up: bool) {
        self.is_blind = !is_up;
    }

    pub(super) fn count_record(&mut self, from_kernel: bool) {
        self.add(self.records, 1.0);
        if !from_kernel {
            self.add(self.records_userspace, 1.0);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 lost records")]
    pub(super) fn count_lost_records(&mut self, lost: u64) {
        self.add(self.records_lost, lost as f64);
    }

    pub(super) fn count_malformed_record(&mut self) {
        self.add(self.records_malformed, 1.0);
    }

    pub(super) fn count_event(&mut self, event: &KernelEvent) {
        let kind = event.kind();
        if let Some(position) = KernelEvent::KINDS.iter().position(|known| *known == kind) {
            self.add(self.events[position], 1.0);
        }
    }

    pub(super) fn count_decision(&mut self, decision: &Decision, store: &mut SeriesStore) {
        let cell = self.cell(store, &decision_key(&decision.rule, decision.verdict));
        self.add(cell, 1.0);
    }

    pub(super) fn count_outcome(&mut self, outcome: &Outcome, store: &mut SeriesStore) {
        let cell = self.cell(store, &outcome_key(&outcome.action, outcome.result.name()));
        self.add(cell, 1.0);
    }

    /// What holds all remedies back.
    #[expect(clippy::cast_precision_loss, reason = "at most a thousand silences")]
    pub(super) fn set_guard(&mut self, guard: &Guard, mode: Mode, at: Moment) {
        let cells = self.guard;
        self.set(cells.paused, f64::from(guard.is_paused()));
        self.set(cells.restored, f64::from(guard.is_restored()));
        self.set(cells.silences, guard.silences() as f64);
        let left = guard.budget_left(mode, at.timeline_ms());
        let left = left.map_or(Reading::Unsupported, |left| Reading::Value(f64::from(left)));
        self.write(cells.budget_left, left);
    }

    pub(super) fn set_mode(&mut self, mode: Mode, store: &mut SeriesStore) {
        for candidate in [Mode::Observe, Mode::Enforce] {
            let key = SeriesKey::new("uma_mode", &[("mode", candidate.name())]);
            let cell = self.cell(store, &key);
            self.set(cell, f64::from(candidate == mode));
        }
    }

    /// Makes the decision counters of a rule with a remedy exist.
    pub(super) fn begin_decisions(&mut self, rule: &RuleId, store: &mut SeriesStore) {
        self.cell(store, &decision_key(rule, Verdict::Act));
        for reason in HoldReason::ALL {
            self.cell(store, &decision_key(rule, Verdict::Hold(reason)));
        }
    }

    /// Shows every value to exports. Between samples the past is left alone: a storm in the kernel
    /// log shall not fill the windows that rules look back through.
    pub(super) fn show(&self, store: &mut SeriesStore) {
        for (id, reading) in self.told() {
            store.show(id, reading);
        }
    }

    /// Writes every value into the store, for rules and exports to read.
    pub(super) fn publish(&self, at: Moment, store: &mut SeriesStore) {
        let at_ms = at.timeline_ms();
        for (id, reading) in self.told() {
            store.append(id, at_ms, reading);
        }
    }

    /// Every value; a count that may have missed something is none.
    fn told(&self) -> impl Iterator<Item = (SeriesId, Reading<f64>)> {
        let missed = if self.is_blind { self.of_kernel_log } else { 0 };
        self.cells.iter().enumerate().map(move |(position, (id, reading))| {
            (*id, if position < missed { Reading::Failed } else { *reading })
        })
    }
}

fn decision_key(rule: &RuleId, verdict: Verdict) -> SeriesKey {
    SeriesKey::new(
        "uma_decisions_total",
        &[("rule", &rule.alert), ("verdict", verdict.name()), ("reason", verdict.reason())],
    )
}

fn outcome_key(action: &str, outcome: &str) -> SeriesKey {
    SeriesKey::new("uma_actions_total", &[("action", action), ("outcome", outcome)])
}
