//! The executor that touches nothing.

use super::Executor;
use crate::model::{Decision, OutcomeResult};

/// Skips everything: observe mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct DryRun;

impl Executor for DryRun {
    fn execute(&mut self, _decision: &Decision) -> OutcomeResult {
        OutcomeResult::Skipped
    }
}
