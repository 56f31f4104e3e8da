//! Observations of engines, containers and units, and acts on them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    Action, CachePermission, DecisionRecord, EngineReadings, Event, EventKind, Mode, Observation,
    OutcomeResult, ProgramEvent, Target,
};

use super::World;
use crate::simulation::checker::Violation;
use crate::simulation::executor::Ended;

/// How often the leftovers of an act are retried.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// How often all processes are scanned, and the known ones while one loads.
const SCAN_EVERY: Duration = Duration::from_secs(1);
const SCAN_OFTEN: Duration = Duration::from_millis(200);

/// How long a false value has an effect: the window of the brake.
const FALSE_VALUES_COUNT_FOR: Duration = Duration::from_secs(310);

/// Windows in which a process may have taken it.
const WINDOWS: [Duration; 6] = [
    Duration::from_secs(8),
    Duration::from_secs(13),
    Duration::from_secs(55),
    Duration::from_secs(65),
    Duration::from_secs(290),
    Duration::from_secs(311),
];

/// Older observations are not trusted.
const TRUSTED_FOR: Duration = Duration::from_secs(10);

impl World {
    /// Supervisors and processes are polled when they are due.
    pub(super) fn sample_engines(&mut self) {
        let uptime = self.at().uptime;
        let Some(process) = &mut self.process else { return };
        self.fleet.poll(self.now, uptime, &mut process.seen);
        let is_requested = process.policy.needs_engine_sample(uptime);
        let is_due = is_requested || self.next_scan <= self.now;
        if !is_due || self.scans_hang_until > self.now {
            return;
        }
        let mut names = BTreeSet::new();
        let mut engines = Vec::new();
        let mut answers = Vec::new();
        // A living engine has its own name, and leftovers of others have another.
        let all = &self.machine.engines;
        let alive = all.iter().filter(|engine| engine.is_alive());
        for engine in alive.chain(all.iter().filter(|engine| !engine.is_alive())) {
            let name = match names.insert(Arc::clone(&engine.name)) {
                true => Arc::clone(&engine.name),
                false => format!("{}-{}", engine.name, engine.worker).into(),
            };
            engines.extend(engine.seen(Arc::clone(&name)));
            answers.extend(engine.health(name, uptime));
        }
        engines.extend(self.machine.takers.iter().filter_map(|taker| taker.seen()));
        engines.sort_by(|one, other| one.name.cmp(&other.name));
        // If that is frequent enough, every second sample polls while little happens.
        let seldom = (self.sampling * 2).min(TRUSTED_FOR).max(SCAN_EVERY);
        let is_partial = !is_requested && self.next_full_scan > self.now;
        if is_partial {
            engines.retain(|seen| self.known.contains(&seen.server));
            answers.retain(|health| self.known.contains(&health.server));
        } else {
            self.known = engines.iter().map(|seen| seen.server).collect();
            self.next_full_scan = self.now + seldom;
        }
        let loads = process.policy.is_any_engine_on_its_way();
        self.next_scan = if loads { self.now + SCAN_OFTEN } else { self.next_full_scan };
        let readings =
            EngineReadings { read_at: uptime, engines, is_partial, ..EngineReadings::default() };
        process.seen.push(Observation::Engines(Box::new(readings)));
        // A scan for engines covers all processes, and queries the driver.
        if !is_partial {
            process.seen.push(self.machine.scan(uptime));
            if self.has_driver_figures {
                // The driver does not answer when memory is short.
                let is_short = self.machine.free() < self.machine.build.total / 16.0;
                let answers = !is_short || self.chance.once_in(3);
                process.seen.push(self.machine.driver(uptime, answers));
            }
        }
        let answers = answers.into_iter().map(|health| Observation::EngineHealth(Box::new(health)));
        process.seen.extend(answers);
    }

    /// An action has ended: its true effect.
    pub(super) fn carry_out(&mut self, ended: &Ended) -> Result<OutcomeResult, Violation> {
        let has_paused = pauses(&ended.decision);
        if has_paused {
            self.go_on_with(&ended.decision);
        }
        if !ended.touches() {
            return Ok(ended.result.clone());
        }
        let done = self.perform(&ended.decision)?;
        Ok(match &ended.result {
            OutcomeResult::TimedOut => OutcomeResult::TimedOut,
            _ => done,
        })
    }

    pub(super) fn perform(
        &mut self,
        decision: &DecisionRecord,
    ) -> Result<OutcomeResult, Violation> {
        let at = self.at();
        match (&decision.action, &decision.target) {
            (
                Action::StartContainer { ended } | Action::StartUnit { ended },
                Target::Workload(held),
            ) => self.fleet.start(held, ended, &mut self.machine, at),
            (Action::StopEngine { unless_free_bytes, .. }, Target::Engine(engine)) => {
                let has_stopped = self.machine.stop(engine, *unless_free_bytes);
                Ok(match has_stopped {
                    true => OutcomeResult::Done,
                    false => OutcomeResult::NotDone("it is no longer as it was".to_owned()),
                })
            }
            (Action::SetSysctl { .. } | Action::ThrottleReadahead { .. }, _) => {
                let done = self.settings.execute(decision);
                if done == OutcomeResult::Done {
                    self.set.insert(decision.id);
                }
                Ok(done)
            }
            (Action::Undo { decision: act, .. }, _) => {
                let done = self.settings.execute(decision);
                if done == OutcomeResult::Done {
                    self.set.remove(act);
                }
                if self.set.is_empty() {
                    self.settings.are_back("although nothing is set any more")?;
                }
                Ok(done)
            }
            (action, _) => {
                self.machine.apply(action);
                Ok(OutcomeResult::Done)
            }
        }
    }

    /// An act begins: an engine may be paused for it, and that is recorded before.
    pub(super) fn pause_for(&mut self, decision: &DecisionRecord) {
        if let Target::Engine(target) = &decision.target
            && pauses(decision)
            && let Some(engine) = self.machine.engine_of(target)
        {
            self.paused.insert(engine.server);
            engine.is_paused = true;
            self.paused_at = self.now;
        }
    }

    fn go_on_with(&mut self, decision: &DecisionRecord) {
        let Target::Engine(target) = &decision.target else { return };
        // The first request may be lost.
        if let Some(engine) = self.machine.engine_of(target)
            && !self.chance.once_in(4)
        {
            engine.is_paused = false;
            self.paused.remove(&engine.server);
        }
    }

    /// Paused engines are resumed.
    pub(super) fn retry_leftovers(&mut self) {
        let paused = std::mem::take(&mut self.paused);
        for engine in &mut self.machine.engines {
            if paused.contains(&engine.server) {
                engine.is_paused = false;
            }
        }
        self.retry_at = self.now + RETRY_EVERY;
    }

    /// No engine stays paused: an act takes less than a minute, and its leftovers are retried.
    pub(super) fn none_stays_paused(&self, patience: Duration) -> Result<(), Violation> {
        let paused = self.machine.engines.iter().find(|engine| engine.is_paused);
        match paused.filter(|_| self.now.saturating_sub(self.paused_at) > patience) {
            Some(engine) => {
                let what = format!("{} since {:?}", engine.name, self.paused_at);
                Err(Violation { invariant: "no engine stays paused", what })
            }
            None => Ok(()),
        }
    }

    /// An engine that was started by hand has its death reported once, and only if it died. Other
    /// deaths come from supervisors, which may answer falsely.
    pub(super) fn are_dead(&mut self, events: &[Event]) -> Result<(), Violation> {
        for event in events {
            let EventKind::Program(ProgramEvent::EngineDied { report }) = &event.kind else {
                continue;
            };
            let who = &report.who;
            let Some(server) = who.server.filter(|_| who.container.is_none() && who.unit.is_none())
            else {
                continue;
            };
            let mut living = self.machine.engines.iter().filter(|engine| engine.is_alive());
            if living.any(|engine| engine.server == server) {
                let what = report.sentence();
                return Err(Violation { invariant: "no living engine is reported dead", what });
            }
            if !self.reported_dead.insert((self.boot, server)) {
                let what = report.sentence();
                return Err(Violation { invariant: "each death is reported once", what });
            }
        }
        Ok(())
    }

    /// A stopped engine has taken the memory, by the world's own ledger; on a machine with false
    /// values nothing can be expected.
    pub(super) fn has_grown(&self, decision: &DecisionRecord) -> Result<(), Violation> {
        let is_false = self.files.false_until() + FALSE_VALUES_COUNT_FOR > self.now
            && !self.files.false_until().is_zero();
        let Target::Engine(target) = &decision.target else { return Ok(()) };
        if is_false || !decision.action.is_brake() {
            return Ok(());
        }
        let machine = &self.machine;
        let its = |worker| target.processes.contains(worker);
        let Some(engine) = machine.engines.iter().find(|engine| its(&engine.worker)) else {
            let pretends = machine.takers.iter().find(|taker| its(&taker.id));
            let what = format!("{decision:?}");
            return match pretends {
                Some(_) => Err(Violation { invariant: "no engine is stopped for its name", what }),
                None => Ok(()),
            };
        };
        let least = machine.build.total / 512.0;
        let is_taker = WINDOWS.iter().any(|window| {
            let own = engine.ledger.growth(*window);
            let engines = machine.engines.iter().map(|engine| engine.ledger.growth(*window));
            let others = machine.takers.iter().map(|taker| taker.ledger.growth(*window));
            let most_of_others = others.clone().fold(0.0, f64::max);
            let all: f64 = engines.chain(others).map(|grown| grown.max(0.0)).sum();
            own >= least && own >= all / 4.0 && own >= most_of_others
        });
        if is_taker {
            return Ok(());
        }
        let mut what = format!("{decision:?}");
        for engine in &machine.engines {
            let grown = WINDOWS.map(|window| engine.ledger.growth(window));
            what += &format!("\n{} {:?} has grown {grown:?}", engine.name, engine.phase);
        }
        for taker in &machine.takers {
            let grown = WINDOWS.map(|window| taker.ledger.growth(window));
            what += &format!("\n{} {:?} has grown {grown:?}", taker.id, taker.way);
        }
        Err(Violation { invariant: "a stopped engine has taken the memory", what })
    }
}

fn pauses(decision: &DecisionRecord) -> bool {
    let retracts =
        |allow: &BTreeSet<CachePermission>| allow.contains(&CachePermission::RetractRequests);
    decision.mode == Mode::Enforce
        && matches!(&decision.action, Action::EmptyCache { allow, .. } if retracts(allow))
}
