//! A remedy that misses its aim again and again is stopped.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::EnginePhase;

/// When a remedy is stopped, and when it may try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerLimit {
    /// So many rounds in a row that miss the aim; 0: never.
    pub misses: u32,
    /// After so long one more round may be tried; `None`: only when a person says so.
    pub reset_after: Option<Duration>,
}

/// The rounds since the aim was last met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::policy) struct MissedAims {
    in_a_row: u32,
    last_ms: i64,
    /// In which phase what was started died last.
    died_in: Option<EnginePhase>,
}

impl MissedAims {
    /// A round has ended and its aim is missed. What was started and has died in another phase than
    /// the last time is a first miss: it has come further, or fails for another reason.
    pub(super) fn miss(&mut self, at_ms: i64, died_in: Option<EnginePhase>) {
        if died_in != self.died_in {
            self.in_a_row = 0;
        }
        self.died_in = died_in;
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.last_ms = self.last_ms.max(at_ms);
    }

    /// The aim is met, or a person says that it may be tried again.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(in crate::policy) fn in_a_row(self) -> u32 {
        self.in_a_row
    }

    /// Whether the remedy is stopped at `now`. Past `reset_after` it may be tried once: another
    /// miss stops it again.
    pub(super) fn is_open(self, limit: BreakerLimit, now_ms: i64) -> bool {
        let since_ms = now_ms.saturating_sub(self.last_ms);
        let rested = limit
            .reset_after
            .is_some_and(|after| since_ms >= i64::try_from(after.as_millis()).unwrap_or(i64::MAX));
        limit.misses > 0 && self.in_a_row >= limit.misses && !rested
    }
}
