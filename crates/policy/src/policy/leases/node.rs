//! The leases of the watched node, as the ledger was last reported.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::store::SeriesStore;

use crate::model::{
    Event, GANG_LEASE, GangReading, GateReason, HOST_POOL, Lease, LeaseReadings, LeaseRequest,
    LeaseState, MemoryPools, Moment, ProgramEvent, Reading, ReservedPool, SeriesKey,
};
use crate::policy::Step;
use crate::policy::counters::{Cell, Counters};

/// Starts that wait, of which there are series.
const MOST_SHOWN: usize = 16;

/// Leases, and what they reserve.
#[derive(Debug, Default)]
pub(in crate::policy) struct Leases {
    leases: Arc<[Lease]>,
    reserved: Arc<[ReservedPool]>,
    gangs: Vec<GangReading>,
    at_once: usize,
    cells: Vec<Cell>,
}

impl Leases {
    /// Takes a report. Changes are events.
    pub(in crate::policy) fn take(
        &mut self,
        at: Moment,
        readings: &LeaseReadings,
        (counters, store): (&mut Counters, &mut SeriesStore),
        step: &mut Step,
    ) {
        let events = readings.news.iter().map(|news| {
            let request = &news.lease.request;
            let kind = ProgramEvent::Lease {
                who: Arc::clone(&request.who),
                id: Arc::clone(&request.id),
                need_bytes: request.need.need_bytes,
                by: request.by.clone(),
                change: news.change,
            };
            Event { kind: kind.into(), utc: Some(at.utc), seq: None }
        });
        step.events.extend(events);
        self.leases = Arc::clone(&readings.leases);
        self.reserved = readings.reserved.as_slice().into();
        self.gangs.clone_from(&readings.gangs);
        self.at_once = readings.at_once as usize;
        self.publish(readings.error.is_some(), counters, store);
    }

    /// All leases of the last report, in the order in which they are granted.
    pub(in crate::policy) fn leases(&self) -> &Arc<[Lease]> {
        &self.leases
    }

    pub(in crate::policy) fn reserved(&self) -> &Arc<[ReservedPool]> {
        &self.reserved
    }

    /// The reservation of a restart over several nodes, after that end.
    pub(in crate::policy) fn gang(&self, restart: &str, after: &str) -> Option<&GangReading> {
        let is_it = |gang: &&GangReading| *gang.restart == *restart && *gang.after == *after;
        self.gangs.iter().find(is_it)
    }

    /// Whether the first rank of an engine over several nodes has reserved memory for that rank
    /// here, and on all other nodes.
    pub(in crate::policy) fn has_gang(&self, engine: &str, now: Duration) -> bool {
        self.leases.iter().any(|lease| {
            let LeaseRequest { id, who, .. } = &lease.request;
            id.starts_with(GANG_LEASE) && **who == *engine && lease.is_confirmed(now)
        })
    }

    /// The memory without what is reserved for others than those.
    pub(in crate::policy) fn left_of(&self, memory: &MemoryPools, who: &[&str]) -> MemoryPools {
        let mut left = memory.clone();
        let is_other = |by: &Arc<str>| !who.contains(&&**by);
        for reserved in self.reserved.iter().filter(|one| one.by.iter().any(is_other)) {
            left.reserve(&reserved.pool, reserved.bytes);
        }
        left
    }

    /// Why a start without a priority waits for others, if it does: they are starting, or wait with
    /// a higher one.
    pub(in crate::policy) fn others_start(&self, who: &[&str], at: Moment) -> Option<String> {
        let now = at.uptime;
        let is_first = |lease: &&Lease| {
            let is_higher = !lease.is_granted() && lease.request.priority > 0;
            is_higher && lease.blocks(0, (now, at.utc_ms()))
        };
        if let Some(first) = self.leases.iter().find(is_first) {
            let who = Arc::clone(&first.request.who);
            return Some(GateReason::Behind { who }.to_string());
        }
        let starting = self.leases.iter().filter(|lease| lease.is_starting(now));
        let others =
            starting.map(|lease| &lease.request.who).filter(|other| !who.contains(&&***other));
        let who: Vec<Arc<str>> = others.cloned().collect();
        let is_full = who.len() >= self.at_once.max(1);
        is_full.then(|| GateReason::StartsAtOnce { who }.to_string())
    }

    /// The series of those that wait, and of what they lack.
    fn waiting(&self) -> BTreeMap<SeriesKey, f64> {
        let mut values = BTreeMap::new();
        let waiting = self.leases.iter().filter(|lease| !lease.is_granted()).take(MOST_SHOWN);
        for lease in waiting {
            let LeaseState::Waiting { missing, .. } = &lease.state else { continue };
            let who = &*lease.request.who;
            let priority = values
                .entry(SeriesKey::new("uma_lease_priority", &[("who", who)]))
                .or_insert(f64::NEG_INFINITY);
            *priority = priority.max(lease.request.priority.into());
            for share in missing {
                let labels = [("pool", &*share.pool), ("who", who)];
                let bytes =
                    values.entry(SeriesKey::new("uma_lease_missing_bytes", &labels)).or_insert(0.0);
                *bytes = bytes.max(share.need_bytes as f64);
            }
        }
        values
    }

    fn publish(&mut self, is_unknown: bool, counters: &mut Counters, store: &mut SeriesStore) {
        let mut values: Vec<(SeriesKey, f64)> = Vec::new();
        let granted = self.leases.iter().filter(|lease| lease.is_granted()).count();
        let waiting = self.leases.len() - granted;
        for (state, count) in [("granted", granted), ("waiting", waiting)] {
            values.push((SeriesKey::new("uma_leases", &[("state", state)]), count as f64));
        }
        if self.reserved.is_empty() {
            values.push((SeriesKey::new("uma_lease_reserved_bytes", &[("pool", HOST_POOL)]), 0.0));
        }
        for reserved in self.reserved.iter() {
            let key = SeriesKey::new("uma_lease_reserved_bytes", &[("pool", &*reserved.pool)]);
            values.push((key, reserved.bytes as f64));
        }
        values.extend(self.waiting());
        let cells: Vec<Cell> = values
            .into_iter()
            .map(|(key, value)| {
                let cell = counters.cell(store, &key);
                let reading = if is_unknown { Reading::Failed } else { Reading::Value(value) };
                counters.set_reading(cell, reading);
                cell
            })
            .collect();
        for gone in self.cells.iter().filter(|cell| !cells.contains(cell)) {
            counters.retire(*gone);
        }
        self.cells = cells;
    }
}
