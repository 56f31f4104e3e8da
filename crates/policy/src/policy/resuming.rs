//! Restores acts and orders of earlier runs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::Policy;
use crate::model::{EarlierRuns, Moment};

impl Policy {
    /// Events of these kernel-log records have been counted by an earlier run: records are read
    /// again after a restart where a trace was unfinished.
    pub fn resume_kernel_log(&mut self, already_counted: BTreeSet<u64>) {
        self.already_counted = already_counted;
    }

    /// Nothing is done until [`Observation::Past`] has the acts of earlier runs. Without this call
    /// the policy begins without a past.
    pub fn await_past(&mut self) {
        self.guard.await_past();
        self.received.await_past(&mut self.store);
    }

    /// Restores acts and orders of earlier runs, as [`Observation::Past`] does in a step:
    /// cooldowns, budgets, breakers, silences and approvals outlive restarts and reboots.
    pub fn resume(&mut self, at: Moment, past: &EarlierRuns) {
        self.restarts.restore(past);
        self.reboots.restore(past, at);
        self.guard.restore(past, at);
        self.engines.restore_loads(&past.loads);
        self.resume_received(at, &past.received);
        for (pool, bytes) in &past.unaccounted_baselines {
            self.gate.resume(pool, *bytes);
        }
    }

    /// Earlier runs in this boot have seen these kinds of events, each last then: what holds until
    /// a reboot outlives a restart.
    pub fn resume_events(&mut self, last: &BTreeMap<String, Timestamp>) {
        for (kind, utc) in last {
            self.counters.note_event(kind, *utc);
        }
    }
}
