//! What an observation changes.

use std::time::Duration;

use jiff::Timestamp;

use super::assessment::AssessmentContext;
use super::brake::{self, Scope};
use super::counters::LogView;
use super::engines::{self, Levels, NodeView};
use super::pools::DeclaredView;
use super::received::{self, TrackedAlerts};
use super::{CommandResult, Policy, Step, old_by};
use crate::model::{
    DeathReport, EngineReadings, Event, EventKind, KernelRecord, MemoryPools, Moment, Observation,
    OperatorCommand, OperatorOrder, Outcome, PastReceived, ProgramEvent, Reading, Readings,
    SeriesKey, Source,
};
use kernel_faults::KernelLine;

/// Rules are evaluated with readings of at most this age. Sampling never pauses for so long, but
/// the machine may: after a suspend the first thing seen may be a line of the kernel log.
const MEASURED_WITHIN: Duration = Duration::from_secs(2);

impl Policy {
    pub(super) fn observe(&mut self, at: Moment, observation: &Observation, step: &mut Step) {
        match observation {
            Observation::KernelRecord(_) => {}
            Observation::Event(event) => {
                step.events.push(self.engines.with_last_phase(event.clone()));
            }
            Observation::KernelRecordsLost(lost) => self.counters.count_lost_records(*lost),
            Observation::KernelRecordMalformed => self.counters.count_malformed_record(),
            Observation::Readings(readings) => {
                if readings.source == Source::KernelLog {
                    self.set_log_view(at, log_view(readings), step);
                }
                self.sources.take(at, readings, &mut self.store);
            }
            Observation::Sample { series, value } => {
                let id = self.store.declare(series);
                self.store.append(id, at.timeline_ms(), *value);
            }
            Observation::Outcome(outcome) => self.observe_outcome(outcome),
            Observation::Operator(command) => self.obey(at, command, step),
            Observation::Pause(pause) => self.guard.set_pause(pause.clone()),
            Observation::Past(past) => self.resume(at, past),
            Observation::Engines(readings) => self.take_engines(at, readings, step),
            Observation::EngineHealth(health) => {
                self.engines.take_health(at, health, &mut step.events);
            }
            Observation::Restarts(readings) => {
                self.restarts.observe(
                    (at, self.started),
                    readings,
                    (&mut self.counters, &mut self.store),
                );
                self.deaths.take(&readings.ended);
            }
            Observation::Gpu(readings) => {
                let engines = self.engines.statuses();
                self.gpus.take(readings, &engines, (&mut self.counters, &mut self.store));
                self.gate.take_gpus(readings);
                self.assessment.take_driver(readings);
                self.brake.take_figures(readings);
            }
            Observation::Holders(readings) => {
                self.assessment.take_holders(readings);
                self.brake.scan(readings);
                self.report_growth(at);
            }
            Observation::LoggedIn(readings) => self.reboots.observe_users(readings),
            Observation::LoadReading(tracked) => self.engines.take_reading(tracked),
            Observation::Leases(readings) => {
                self.leases.take(at, readings, (&mut self.counters, &mut self.store), step);
            }
            Observation::ReceivedAlerts(post) => {
                let (received, mut context) = self.receiving(at, &mut step.events);
                received.take(post, &mut context);
            }
            Observation::Cluster(readings) => {
                self.cluster.observe(at, readings, (&mut self.counters, &mut self.store));
            }
        }
    }

    fn obey(&mut self, at: Moment, command: &OperatorCommand, step: &mut Step) {
        let answer = match command.order {
            OperatorOrder::Reboot { .. }
            | OperatorOrder::CancelReboot
            | OperatorOrder::ClearReboots => {
                let (reboots, mut context) = self.rebooting(at, step);
                let refused = reboots.obey(command, &mut context).err();
                CommandResult { command: command.clone(), refused }
            }
            _ => self.guard.obey(command, at),
        };
        step.answers.push(answer);
    }

    fn take_engines(&mut self, at: Moment, readings: &EngineReadings, step: &mut Step) {
        let node = engines::NodeLevels {
            levels: Levels::of(&self.store, self.gate.memory()),
            measured: self.sources.memory_measured(),
            baseline: self.gate.baseline(),
        };
        let world = (&mut self.counters, &mut self.store);
        self.engines.take_sample(at, readings, &node, world, &mut step.events);
        self.deaths.add(self.engines.take_dead());
        let seen = readings.engines.iter().filter_map(|seen| {
            let phase = self.engines.phase(&seen.name)?;
            Some((seen.clone(), phase))
        });
        self.brake.take_engines(readings.read_at, seen, Scope::of(readings));
        self.report_growth(at);
    }

    /// Computes and publishes who took memory lately.
    fn report_growth(&mut self, at: Moment) {
        let growth = self.brake.report(at.uptime);
        self.engines.set_growth(&growth, &mut self.counters);
        brake::publish(&self.brake, (&mut self.counters, &mut self.store));
    }

    /// A report that one view began is not continued by another: only one may be forged.
    fn set_log_view(&mut self, at: Moment, view: LogView, step: &mut Step) {
        if self.counters.set_kernel_log(view, at, &mut self.store) {
            self.kernel_log.finish(&mut self.logged);
            self.take_logged(step);
        }
    }

    /// Hands on what the assembler has found.
    pub(super) fn take_logged(&mut self, step: &mut Step) {
        step.events.extend(self.logged.drain(..).map(Event::from));
    }

    /// Returns when the record was written, on the uptime clock.
    pub(super) fn observe_record(
        &mut self,
        at: Moment,
        record: &KernelRecord,
        step: &mut Step,
    ) -> Duration {
        let from_kernel = record.facility == 0;
        let view = if record.is_claimed() { LogView::Claimed } else { LogView::Believed };
        self.set_log_view(at, view, step);
        self.counters.count_record(from_kernel, late_ms(record.utc, at));
        // A record of the backlog is as old as its wall time says.
        let age = Duration::try_from(at.utc.duration_since(record.utc)).unwrap_or_default();
        let written = at.uptime.saturating_sub(age);
        let line = KernelLine {
            seq: Some(record.seq),
            utc: Some(record.utc),
            uptime: Some(written),
            from_kernel,
            identifier: None,
            caller: record.caller.as_deref(),
            text: &record.text,
        };
        self.kernel_log.feed(&line, &mut self.logged);
        self.take_logged(step);
        written
    }

    /// Counts what has happened, what may be forged apart.
    pub(super) fn count_events(&mut self, at: Moment, events: &[Event]) {
        for event in events {
            let utc = event.utc.unwrap_or(at.utc);
            let late = late_ms(utc, at);
            match event.is_claimed() {
                true => self.counters.count_claimed_event(event.kind.kind(), late),
                false => self.counters.count_event(&event.kind, utc, late),
            }
        }
        self.counters.settle_late(&mut self.store);
    }

    fn observe_outcome(&mut self, outcome: &Outcome) {
        self.counters.count_outcome(outcome, &mut self.store);
        self.guard.observe_outcome(outcome);
        self.kills.observe_outcome(outcome);
        self.assessment.observe_outcome(outcome);
        self.restarts.observe_outcome(outcome);
        self.reboots.observe_outcome(outcome);
        self.happenings.take_outcome(outcome);
        for group in &mut self.groups {
            group.observe_outcome(outcome, &mut self.guard);
        }
    }

    fn receiving<'a>(
        &'a mut self,
        at: Moment,
        events: &'a mut Vec<Event>,
    ) -> (&'a mut TrackedAlerts, received::ReceivedContext<'a>) {
        let (counters, store) = (&mut self.counters, &mut self.store);
        (&mut self.received, received::ReceivedContext { at, counters, store, events })
    }

    /// Forgets received alerts that were not repeated, and advances the others.
    pub(super) fn follow_received(&mut self, at: Moment, step: &mut Step) {
        let (received, mut context) = self.receiving(at, &mut step.events);
        received.advance(&mut context);
    }

    /// Restores received alerts from the journal. One that still fires is no event.
    pub fn resume_received(&mut self, at: Moment, past: &[PastReceived]) {
        let mut no_events = Vec::new();
        let (received, mut context) = self.receiving(at, &mut no_events);
        received.restore(past, &mut context);
    }

    /// Measures the memory for an engine that is to start.
    pub(super) fn measure_gate_memory(&mut self, at: Moment, step: &mut Step) {
        if !self.has_measured(at) {
            return self.gate.forget();
        }
        let measured = self.sources.memory_measured();
        if self.gate_measured == measured && self.gate.memory().is_some() {
            return;
        }
        self.gate_measured = measured;
        // In a declared world no processes are sampled.
        let orphans = match &self.declared {
            Some(_) => Reading::Unsupported,
            None => self.engines.orphans(at.uptime),
        };
        let (uptime, presence) = (at.uptime, self.engines.presence(at.uptime));
        let learned = match &self.declared {
            Some(_) => self.gate.measure(uptime, &DeclaredView(&self.store), presence, orphans),
            None => self.gate.measure(uptime, &self.store, presence, orphans),
        };
        for (pool, bytes) in learned {
            let kind = ProgramEvent::UnaccountedBaseline { pool, bytes };
            step.events.push(Event { kind: kind.into(), utc: Some(at.utc), seq: None });
        }
        if let Some(memory) = self.gate.memory() {
            match self.declared {
                Some(_) => self.pool_series.declare(memory, at.timeline_ms(), &mut self.store),
                None => self.pool_series.publish(memory, &mut self.counters, &mut self.store),
            }
        }
        let levels = Levels::of(&self.store, self.gate.memory());
        let view = NodeView { levels, total: self.total_memory(), store: &self.store };
        self.engines.measure(at, &view, &mut self.counters, &mut step.events);
    }

    /// Compares the parts of engines that span nodes with those on other nodes.
    pub(super) fn track_ranks(&mut self, at: Moment, step: &mut Step) {
        if !self.engines.has_ranks() {
            return;
        }
        let others = self.cluster.ranks();
        let world = (&mut self.counters, &mut self.store);
        self.engines.track_ranks(at, others.as_ref(), world, &mut step.events);
        self.record_rank_deaths(at, &step.events, &[]);
    }

    /// Publishes the deaths of ranks among these events, and `explained` ones that are not
    /// reported yet, for the other nodes.
    pub(super) fn record_rank_deaths(
        &mut self,
        at: Moment,
        events: &[Event],
        explained: &[DeathReport],
    ) {
        let reported = events.iter().filter_map(|event| match &event.kind {
            EventKind::Program(ProgramEvent::EngineDied { report }) => Some(&**report),
            _ => None,
        });
        let world = (&mut self.counters, &mut self.store);
        self.engines.record_rank_deaths(at, reported.chain(explained), world);
    }

    /// All memory of all pools.
    fn total_memory(&self) -> Option<u64> {
        let mut pools = self.gate.memory()?.pools.iter();
        pools.try_fold(0_u64, |sum, pool| Some(pool.memory.total.value()?.saturating_add(sum)))
    }

    /// Assesses memory that no process accounts for. In a declared world nothing samples
    /// processes, and there is no assessment.
    pub(super) fn assess_memory(&mut self, at: Moment, step: &mut Step) {
        if self.declared.is_some() {
            return;
        }
        let living = self.engines.living(at.uptime);
        let pools = self.gate.memory();
        let memory = pools.map(MemoryPools::of_kernel);
        let by_pool = pools.map_or_else(Vec::new, MemoryPools::unaccounted_by_pool);
        let context =
            AssessmentContext { memory: memory.as_ref(), by_pool: &by_pool, engines: living };
        self.assessment.assess(at, &context, &mut self.counters, &mut step.events);
    }

    /// Whether the sample of memory is current.
    pub(super) fn has_measured(&self, at: Moment) -> bool {
        let measured = self.sources.memory_measured();
        measured.is_some_and(|measured| at.uptime.saturating_sub(measured) <= MEASURED_WITHIN)
    }
}

/// How the kernel log is read, by the readings of its source.
fn log_view(readings: &Readings) -> LogView {
    let claims = SeriesKey::new("uma_kernel_log_reader", &[("reader", "syslog")]);
    let mut values = readings.schema.series.iter().zip(&readings.values);
    if values.any(|(key, value)| *key == claims && value.value() == Some(1.0)) {
        return LogView::Claimed;
    }
    if readings.error.is_some() { LogView::Unread } else { LogView::Believed }
}

/// Where on the time line that was, if it is old.
pub(super) fn late_ms(utc: Timestamp, at: Moment) -> Option<i64> {
    let age = i64::try_from(old_by(utc, at)?.as_millis()).unwrap_or(i64::MAX);
    Some(at.timeline_ms().saturating_sub(age))
}
