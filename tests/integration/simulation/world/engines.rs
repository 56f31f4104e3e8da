//! What the program sees of engines, containers and units, and what it does to them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{
    Action, CachePermission, Decision, EngineReadings, Event, EventKind, Mode, Observation,
    OutcomeResult, ProgramEvent, Target,
};

use super::World;
use crate::simulation::checker::Violation;
use crate::simulation::executor::Ended;

/// What is left of an act is tried again so often.
const TENDED_EVERY: Duration = Duration::from_secs(10);

/// How often somebody looks through all processes, and at those that are known while one loads.
const LOOKED_EVERY: Duration = Duration::from_secs(1);
const LOOKED_OFTEN: Duration = Duration::from_millis(200);

/// How long a lie has an effect: as far as the brake looks back.
const LIES_COUNT_FOR: Duration = Duration::from_secs(310);

/// Times within which somebody may have taken it.
const WINDOWS: [Duration; 6] = [
    Duration::from_secs(8),
    Duration::from_secs(13),
    Duration::from_secs(55),
    Duration::from_secs(65),
    Duration::from_secs(290),
    Duration::from_secs(311),
];

/// What was seen longer ago is not believed any more.
const LOOKED_SELDOM: Duration = Duration::from_secs(10);

impl World {
    /// Supervisors and processes are looked at, where it is time for that.
    pub(super) fn look(&mut self) {
        let uptime = self.at().uptime;
        let Some(process) = &mut self.process else { return };
        self.fleet.look(self.now, uptime, &mut process.seen);
        let is_asked_for = process.policy.needs_engine_sample(uptime);
        let is_due = is_asked_for || self.next_look <= self.now;
        if !is_due || self.looks_hang_until > self.now {
            return;
        }
        let mut names = BTreeSet::new();
        let mut engines = Vec::new();
        let mut answers = Vec::new();
        // Who lives is called by its own name, and what others have left behind by another.
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
        // Where that is not too seldom, every other sample does while nothing much happens.
        let seldom = (self.sampling * 2).min(LOOKED_SELDOM).max(LOOKED_EVERY);
        let is_partial = !is_asked_for && self.next_full_look > self.now;
        if is_partial {
            engines.retain(|seen| self.known.contains(&seen.server));
            answers.retain(|health| self.known.contains(&health.server));
        } else {
            self.known = engines.iter().map(|seen| seen.server).collect();
            self.next_full_look = self.now + seldom;
        }
        let loads = process.policy.is_any_engine_on_its_way();
        self.next_look = if loads { self.now + LOOKED_OFTEN } else { self.next_full_look };
        let readings =
            EngineReadings { read_at: uptime, engines, is_partial, ..EngineReadings::default() };
        process.seen.push(Observation::Engines(Box::new(readings)));
        // Everybody is scanned when engines are searched for, and the driver is asked.
        if !is_partial {
            process.seen.push(self.machine.scan(uptime));
            if self.has_driver_figures {
                // It falls silent when memory is short.
                let is_short = self.machine.free() < self.machine.build.total / 16.0;
                let answers = !is_short || self.fate.once_in(3);
                process.seen.push(self.machine.driver(uptime, answers));
            }
        }
        let answers = answers.into_iter().map(|health| Observation::EngineHealth(Box::new(health)));
        process.seen.extend(answers);
    }

    /// An action has come to its end: what it really did.
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

    pub(super) fn perform(&mut self, decision: &Decision) -> Result<OutcomeResult, Violation> {
        let at = self.at();
        match (&decision.action, &decision.target) {
            (
                Action::StartContainer { ended } | Action::StartUnit { ended },
                Target::Held(held),
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

    /// An act begins: an engine may be paused for it, and is remembered before it is.
    pub(super) fn pause_for(&mut self, decision: &Decision) {
        if let Target::Engine(target) = &decision.target
            && pauses(decision)
            && let Some(engine) = self.machine.engine_of(target)
        {
            self.paused.insert(engine.server);
            engine.is_paused = true;
            self.paused_at = self.now;
        }
    }

    fn go_on_with(&mut self, decision: &Decision) {
        let Target::Engine(target) = &decision.target else { return };
        // It may not hear it the first time.
        if let Some(engine) = self.machine.engine_of(target)
            && !self.fate.once_in(4)
        {
            engine.is_paused = false;
            self.paused.remove(&engine.server);
        }
    }

    /// Engines that are still paused are told to go on.
    pub(super) fn tend(&mut self) {
        let paused = std::mem::take(&mut self.paused);
        for engine in &mut self.machine.engines {
            if paused.contains(&engine.server) {
                engine.is_paused = false;
            }
        }
        self.tend_at = self.now + TENDED_EVERY;
    }

    /// No engine stays paused: an act takes less than a minute, and what it has left is tried again.
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

    /// Of one that somebody has started by hand it is told once that it has died, and only if it
    /// has. Of others supervisors tell, who may lie.
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
                return Err(Violation { invariant: "nobody is told dead who lives", what });
            }
            if !self.buried.insert((self.boot, server)) {
                let what = report.sentence();
                return Err(Violation { invariant: "each death is told once", what });
            }
        }
        Ok(())
    }

    /// Whoever is stopped has taken the memory, by the world's own ledger; what a machine says that
    /// lies is nobody's fault.
    pub(super) fn has_grown(&self, decision: &Decision) -> Result<(), Violation> {
        let lies = self.files.lied_until() + LIES_COUNT_FOR > self.now
            && !self.files.lied_until().is_zero();
        let Target::Engine(target) = &decision.target else { return Ok(()) };
        if lies || !decision.action.is_brake() {
            return Ok(());
        }
        let machine = &self.machine;
        let its = |worker| target.processes.contains(worker);
        let Some(engine) = machine.engines.iter().find(|engine| its(&engine.worker)) else {
            let pretends = machine.takers.iter().find(|taker| its(&taker.id));
            let what = format!("{decision:?}");
            return match pretends {
                Some(_) => Err(Violation { invariant: "nobody is stopped for its name", what }),
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
        Err(Violation { invariant: "whoever is stopped has taken the memory", what })
    }
}

fn pauses(decision: &Decision) -> bool {
    let retracts =
        |allow: &BTreeSet<CachePermission>| allow.contains(&CachePermission::RetractRequests);
    decision.mode == Mode::Enforce
        && matches!(&decision.action, Action::EmptyCache { allow, .. } if retracts(allow))
}
