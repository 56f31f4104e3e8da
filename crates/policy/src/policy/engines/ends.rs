//! How processes of engines ended lately, as the kernel reports to other than their parents and as
//! the logs of raylets show, and what their servers wrote last.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::{
    EngineReadings, EngineSeen, LastOutput, ProcessEnd, ProcessId, RayKill, WorkloadLog,
};

/// More are not remembered.
const MOST: usize = 512;
const MOST_OUTPUTS: usize = 32;
const MOST_RAY_KILLS: usize = 64;

/// Process ends, outputs and kills, the newest last.
#[derive(Debug, Default)]
pub(in crate::policy) struct ProcessEnds {
    ends: VecDeque<(Duration, ProcessEnd)>,
    outputs: VecDeque<LastOutput>,
    ray_kills: VecDeque<RayKill>,
}

impl ProcessEnds {
    pub(super) fn take(&mut self, readings: &EngineReadings) {
        let ends = readings.ended.iter().map(|end| (readings.read_at, end.clone()));
        keep(&mut self.ends, ends, MOST);
        keep(&mut self.outputs, readings.outputs.iter().cloned(), MOST_OUTPUTS);
        keep(&mut self.ray_kills, readings.ray_kills.iter().cloned(), MOST_RAY_KILLS);
    }

    /// The end of that process, and when it was seen, on the uptime clock.
    pub(in crate::policy) fn of(&self, id: ProcessId) -> Option<&(Duration, ProcessEnd)> {
        self.ends.iter().rev().find(|(_, end)| end.id == id)
    }

    /// The ends of processes of that server's engine, seen since then.
    pub(in crate::policy) fn of_engine(
        &self,
        server: ProcessId,
        since: Duration,
    ) -> impl Iterator<Item = &ProcessEnd> {
        let is_of = move |at: Duration, end: &ProcessEnd| end.server == server && at >= since;
        self.ends.iter().filter(move |(at, end)| is_of(*at, end)).map(|(_, end)| end)
    }

    /// What that server wrote last, where it wrote to files.
    pub(in crate::policy) fn output_of(&self, server: ProcessId) -> Option<&WorkloadLog> {
        self.outputs.iter().rev().find(|output| output.server == server).map(|output| &output.log)
    }

    /// The workers of that engine that Ray's memory monitor has killed.
    pub(in crate::policy) fn ray_kills_of(&self, engine: &EngineSeen) -> Vec<RayKill> {
        let is_its = |kill: &&RayKill| {
            let mut processes = engine.processes.iter();
            kill.server == engine.server || processes.any(|process| process.id == kill.id)
        };
        self.ray_kills.iter().filter(is_its).cloned().collect()
    }
}

/// Adds the newest, and keeps so many.
fn keep<T>(all: &mut VecDeque<T>, newest: impl Iterator<Item = T>, most: usize) {
    all.extend(newest);
    all.drain(..all.len().saturating_sub(most));
}
