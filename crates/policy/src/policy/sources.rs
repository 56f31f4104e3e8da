//! How the sources fare, and where their values go in the store.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::{Batch, SeriesId, SeriesStore, stale_marker};

use super::status::SourceStatus;
use crate::model::{Moment, Reading, Readings, Schema, SeriesKey, Source};

/// What is known of each source that has reported.
#[derive(Debug, Default)]
pub(super) struct SourceTable {
    rows: BTreeMap<Source, SourceRow>,
    memory_measured: Option<Duration>,
}

#[derive(Debug)]
struct SourceRow {
    schema: Arc<Schema>,
    ids: Vec<SeriesId>,
    batch: Batch,
    /// What was written last; empty where all must be written.
    last: Vec<Reading<f64>>,
    up: SeriesId,
    duration: SeriesId,
    status: SourceStatus,
}

impl SourceTable {
    /// Files one run of a source.
    pub(super) fn take(&mut self, at: Moment, readings: &Readings, store: &mut SeriesStore) {
        let row =
            self.rows.entry(readings.source).or_insert_with(|| SourceRow::new(readings, store));
        if !Arc::ptr_eq(&row.schema, &readings.schema) {
            row.change_schema(at, readings, store);
        }
        let at_ms = at.timeline_ms();
        row.write(at_ms, &readings.values, store);
        store.set_fault(readings.source.name(), readings.error.as_ref());
        let up = readings.error.is_none();
        store.append(row.up, at_ms, Reading::Value(f64::from(up)));
        store.append(row.duration, at_ms, Reading::Value(readings.took.as_secs_f64()));
        row.status.up = up;
        row.status.took = readings.took;
        row.status.detail.clone_from(&readings.error);
        if readings.source == Source::Meminfo {
            self.memory_measured = Some(at.uptime);
        }
    }

    /// When memory was last measured, on the uptime clock.
    pub(super) fn memory_measured(&self) -> Option<Duration> {
        self.memory_measured
    }

    /// How each source fares that has reported, in the order of [`Source::ALL`].
    pub(super) fn statuses(&self) -> impl Iterator<Item = &SourceStatus> {
        self.rows.values().map(|row| &row.status)
    }

    /// The same over an old table.
    pub(super) fn draw(&self, over: &mut Arc<[SourceStatus]>) {
        let current = self.statuses();
        match Arc::get_mut(over) {
            Some(old) if old.len() == self.rows.len() => {
                for (old, current) in old.iter_mut().zip(current) {
                    old.clone_from(current);
                }
            }
            _ => *over = current.cloned().collect(),
        }
    }
}

impl SourceRow {
    fn new(readings: &Readings, store: &mut SeriesStore) -> Self {
        let label = [("collector", readings.source.name())];
        Self {
            schema: Arc::clone(&readings.schema),
            ids: intern_all(&readings.schema, store),
            batch: Batch::new(store),
            last: Vec::new(),
            up: store.intern(&SeriesKey::new("uma_scrape_collector_success", &label)),
            duration: store
                .intern(&SeriesKey::new("uma_scrape_collector_duration_seconds", &label)),
            status: SourceStatus {
                source: readings.source,
                up: false,
                detail: None,
                took: Duration::ZERO,
            },
        }
    }

    /// Writes the values that have changed, while the others stay.
    fn write(&mut self, at_ms: i64, values: &[Reading<f64>], store: &mut SeriesStore) {
        let of_machine = is_of_machine(self.status.source);
        let shown = |value: Reading<f64>| match value {
            Reading::Unsupported if !of_machine => Reading::Value(stale_marker()),
            value => value,
        };
        let Self { ids, batch, last, .. } = self;
        if batch.is_past(store, at_ms) {
            return;
        }
        if last.len() != values.len() {
            for (id, value) in ids.iter().zip(values) {
                batch.append(store, *id, at_ms, shown(*value));
            }
            batch.stay(store, at_ms);
            batch.forget();
            last.clear();
            last.extend(values.iter().filter(|_| are_distinct(ids)));
            return;
        }
        batch.find_restless(store, ids.iter().copied());
        for place in batch.restless() {
            if let (Some(id), Some(value)) = (ids.get(*place), values.get(*place)) {
                batch.append(store, *id, at_ms, shown(*value));
            }
        }
        for ((id, value), last) in ids.iter().zip(values).zip(last) {
            if !value.is_same(*last) {
                *last = *value;
                batch.append(store, *id, at_ms, shown(*value));
            }
        }
        batch.stay(store, at_ms);
    }

    /// Series that are no longer in the schema end.
    fn change_schema(&mut self, at: Moment, readings: &Readings, store: &mut SeriesStore) {
        let ids = intern_all(&readings.schema, store);
        for gone in self.ids.iter().filter(|id| !ids.contains(id)) {
            store.end(*gone, at.timeline_ms());
        }
        self.ids = ids;
        self.last.clear();
        self.schema = Arc::clone(&readings.schema);
    }
}

/// Whether the machine lacks what this source does not have. What this program does not have is
/// not configured, or has not happened yet: it is absent.
fn is_of_machine(source: Source) -> bool {
    !matches!(source, Source::Alertmanager | Source::BlackBox | Source::Daemon | Source::Journal)
}

/// Of a series that is there twice the second value counts, changed or not.
fn are_distinct(ids: &[SeriesId]) -> bool {
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}

fn intern_all(schema: &Schema, store: &mut SeriesStore) -> Vec<SeriesId> {
    schema.series.iter().map(|key| store.intern(key)).collect()
}
