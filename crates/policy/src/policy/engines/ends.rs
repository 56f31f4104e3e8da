//! How processes of engines ended lately, as the kernel reports to other than their parents.

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::{EngineReadings, ProcessEnd, ProcessId};

/// More are not remembered.
const MOST: usize = 512;

/// They, the newest last.
#[derive(Debug, Default)]
pub(in crate::policy) struct ProcessEnds(VecDeque<(Duration, ProcessEnd)>);

impl ProcessEnds {
    pub(super) fn take(&mut self, readings: &EngineReadings) {
        for end in &readings.ended {
            if self.0.len() >= MOST {
                self.0.pop_front();
            }
            self.0.push_back((readings.read_at, end.clone()));
        }
    }

    /// That process's.
    pub(in crate::policy) fn of(&self, id: ProcessId) -> Option<&ProcessEnd> {
        self.0.iter().rev().map(|(_, end)| end).find(|end| end.id == id)
    }

    /// Those of that server's engine, seen since then.
    pub(in crate::policy) fn of_engine(
        &self,
        server: ProcessId,
        since: Duration,
    ) -> impl Iterator<Item = &ProcessEnd> {
        let is_of = move |at: Duration, end: &ProcessEnd| end.server == server && at >= since;
        self.0.iter().filter(move |(at, end)| is_of(*at, end)).map(|(_, end)| end)
    }
}
