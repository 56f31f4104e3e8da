//! Pictures of the policy for exports.

use std::sync::Arc;

use super::Policy;
use super::status::Status;
use crate::model::Moment;

impl Policy {
    /// A read-only picture for exports.
    pub fn status(&mut self, at: Moment) -> Status {
        let mut status = Status {
            at,
            started: self.started,
            mode: self.mode,
            series: Arc::clone(&self.series),
            values: Vec::new(),
            sources: Arc::new([]),
            rules: Arc::clone(&self.rule_statuses),
            shipped_off: Arc::clone(&self.shipped_off),
            enforced: Arc::clone(&self.enforced),
            guard: self.guard.status(),
            engines: self.engines.statuses(),
            gate_memory: None,
            leases: Arc::new([]),
            reserved: Arc::new([]),
            restarts: self.restarts.statuses(),
            assessment: self.assessment.shared(),
            account: Arc::clone(self.brake.account()),
            reboot: self.reboots.status(),
            received: self.received.statuses(),
            cluster: None,
            happened: Arc::new([]),
        };
        self.draw(at, &mut status);
        status
    }

    /// The same over an old status, whose allocations are reused.
    pub fn draw(&mut self, at: Moment, status: &mut Status) {
        let keys = self.store.keys();
        let revision = Some(self.store.revisions().series);
        if std::mem::replace(&mut self.series_of, revision) != revision {
            self.series = keys.into();
        }
        (status.at, status.started, status.mode) = (at, self.started, self.mode);
        status.series.clone_from(&self.series);
        status.values.clear();
        status.values.extend(self.store.readings());
        self.sources.draw(&mut status.sources);
        status.rules.clone_from(&self.rule_statuses);
        status.shipped_off.clone_from(&self.shipped_off);
        status.enforced.clone_from(&self.enforced);
        status.guard = self.guard.status();
        status.engines = self.engines.statuses();
        status.leases.clone_from(self.leases.leases());
        status.reserved.clone_from(self.leases.reserved());
        match (&mut status.gate_memory, self.gate.memory()) {
            (Some(old), Some(memory)) => {
                old.engines.clone_from(&memory.engines);
                old.pools.clone_from(&memory.pools);
            }
            (old, memory) => *old = memory.cloned(),
        }
        status.restarts = self.restarts.statuses();
        status.assessment = self.assessment.shared();
        status.reboot = self.reboots.status();
        status.received = self.received.statuses();
        status.cluster = self.cluster.status(&self.store);
        status.happened = self.happenings.shared();
    }
}
