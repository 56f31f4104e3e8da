//! The pause of an engine, which is resumed in any case.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::setting::{Setting, SettingMounts};
use super::undo_log::SettingChange;
use super::{OpenChange, TemporarySettings};
use crate::clients::owner::is_alive;
use crate::clients::{ClientSession, Endpoint, KeyRing, KeyedSession};
use crate::engines::facts;
use crate::model::{DecisionRecord, EngineTarget, UndoResult};

/// The values of the setting before and during a pause.
pub(super) const RUNNING: &str = "running";
pub(super) const PAUSED: &str = "paused";

/// Attempts to resume an engine at once, before it is left for later.
const TRIES: u32 = 3;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

/// The number of retries every 10 s, before they follow every 5 minutes.
const OFTEN: u32 = 6;
const SELDOM: u32 = 30;

/// Longer than an act may take: then it must have been resumed.
const LASTS: Duration = Duration::from_secs(30);

/// The data of an engine that a resume needs: the source of its key, and not the key.
fn essence(engine: &EngineTarget) -> EngineTarget {
    EngineTarget {
        name: engine.name.clone(),
        processes: engine.processes.clone(),
        cgroup: engine.cgroup.clone(),
        proof: engine.proof,
        kind: engine.kind,
        health_url: engine.health_url.clone(),
        health_network: engine.health_network.clone(),
        keys: engine.keys.clone(),
        ..EngineTarget::default()
    }
}

/// The state of a pause: paused while the server lives. The engine is not queried: its response
/// cannot show whether the pause is ours.
pub(super) fn state(mounts: &SettingMounts, engine: &EngineTarget) -> io::Result<String> {
    let server = engine.processes.first();
    match server.is_some_and(|server| is_alive(&mounts.procfs, *server)) {
        true => Ok(PAUSED.to_owned()),
        false => Err(io::Error::from(io::ErrorKind::NotFound)),
    }
}

pub(super) fn resume(mounts: &SettingMounts, engine: &EngineTarget) -> io::Result<()> {
    let endpoint = Endpoint::of(&mounts.procfs, engine);
    let endpoint = endpoint.ok_or_else(|| io::Error::other("its address is not known"))?;
    let keys = KeyRing::new(&mounts.procfs, Arc::new(engine.clone()), endpoint.clone());
    let resume = facts(engine.kind).go_on;
    let resume =
        resume.ok_or_else(|| io::Error::other("an engine of this kind is never paused"))?;
    let calls = KeyedSession::new(ClientSession::open(endpoint).map_err(io::Error::other)?, keys);
    let mut last = Ok(());
    for number in 0..TRIES {
        if number > 0 {
            std::thread::sleep(BETWEEN_TRIES);
        }
        last = resume(&calls);
        if last.is_ok() {
            break;
        }
    }
    last.map_err(io::Error::other)
}

impl TemporarySettings {
    /// Records in the undo log that the engine is about to be paused. Returns the number of the
    /// entry.
    pub(in crate::actions) fn pausing(
        &mut self,
        decision: &DecisionRecord,
        engine: &EngineTarget,
    ) -> Result<u64, String> {
        self.ready()?;
        let boot_id = self.boot_id.clone().ok_or("the boot ID is unknown")?;
        let setting = Setting::EnginePause(Box::new(essence(engine)));
        if self.open.iter().any(|open| open.change.setting == setting) {
            return Err(format!("{setting} is paused already"));
        }
        let at = (self.clock)().utc;
        let Some(log) = &mut self.log else { return Err("no undo log".to_owned()) };
        let change = SettingChange {
            number: log.next_number(),
            setting,
            old: RUNNING.to_owned(),
            new: PAUSED.to_owned(),
            boot_id,
            decision: decision.id,
            rule: decision.rule.clone(),
            at,
            until: at.saturating_add(LASTS).unwrap_or(at),
        };
        if let Err(error) = log.begin(std::slice::from_ref(&change)) {
            // The log may be torn: the next change reopens it.
            self.log = None;
            return Err(error.to_string());
        }
        let number = change.number;
        // No decision undoes it: the retries resume the engine.
        self.open.push(OpenChange { change, is_orphan: true });
        self.count();
        if self.tally.has_ended_pauses() {
            self.not_paused(number);
            return Err("the program ends".to_owned());
        }
        Ok(number)
    }

    /// Records that the engine was not paused.
    pub(in crate::actions) fn not_paused(&mut self, number: u64) {
        self.open.retain(|open| open.change.number != number);
        self.close(number, Some(UndoResult::AlreadyBack), None);
        self.count();
    }

    /// Resumes the engine of a change.
    pub(in crate::actions) fn resume(&mut self, number: u64) -> Result<(), String> {
        let is_it = |open: &mut OpenChange| open.change.number == number;
        let its: Vec<OpenChange> = self.open.extract_if(.., is_it).collect();
        self.undo_all(its, "");
        match self.open.iter().find(|open| open.change.number == number) {
            None => Ok(()),
            Some(open) => Err(format!("{} did not confirm the resume", open.change.setting)),
        }
    }

    /// For a shutdown: from then on no engine is paused. Returns whether one still is.
    pub fn end_pauses(&self) -> Box<dyn Fn() -> bool + Send> {
        let tally = Arc::clone(&self.tally);
        Box::new(move || tally.end_pauses())
    }

    /// Whether an engine is paused that should go on.
    pub(in crate::actions) fn is_any_engine_paused(&self) -> bool {
        let is_pause = |open: &OpenChange| matches!(open.change.setting, Setting::EnginePause(_));
        self.open.iter().any(is_pause)
    }

    /// Resumes engines that are still paused once more: at each call in the first minute, and then
    /// less often, since each attempt is reported.
    pub(in crate::actions) fn tend(&mut self) {
        self.tended = self.tended.saturating_add(1);
        if self.tended > OFTEN && !self.tended.is_multiple_of(SELDOM) {
            return;
        }
        let is_pause =
            |open: &mut OpenChange| matches!(open.change.setting, Setting::EnginePause(_));
        let paused: Vec<OpenChange> = self.open.extract_if(.., is_pause).collect();
        self.undo_all(paused, "after it did not before");
        if !self.is_any_engine_paused() {
            self.tended = 0;
        }
    }
}
