//! Ids that follow from what they stand for.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use sha2::{Digest as _, Sha256};

use crate::model::DecisionId;

/// The ids of a round: of its trace, of its root, and of whatever else is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ids {
    trace: TraceId,
}

impl Ids {
    /// Of the round that began in that boot with that decision.
    pub(super) fn of_round(boot_id: &str, first: DecisionId) -> Self {
        let digest = Sha256::new()
            .chain_update(boot_id.as_bytes())
            .chain_update([0])
            .chain_update(first.0.to_be_bytes())
            .finalize();
        Self { trace: TraceId::from_bytes(beginning(&digest)) }
    }

    /// Of its root.
    pub(super) fn root(&self) -> SpanContext {
        self.part("round", "")
    }

    /// Of what a decision has brought about: `decision`, `step`, `aim`.
    pub(super) fn of_decision(&self, part: &str, decision: DecisionId) -> SpanContext {
        self.part(part, &decision.to_string())
    }

    /// Of something that has a name among its like.
    pub(super) fn part(&self, part: &str, name: &str) -> SpanContext {
        let digest = Sha256::new()
            .chain_update(self.trace.to_bytes())
            .chain_update(part.as_bytes())
            .chain_update([0])
            .chain_update(name.as_bytes())
            .finalize();
        let span = SpanId::from_bytes(beginning(&digest));
        SpanContext::new(self.trace, span, TraceFlags::SAMPLED, false, TraceState::NONE)
    }
}

fn beginning<const BYTES: usize>(digest: &[u8]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (byte, of_digest) in bytes.iter_mut().zip(digest) {
        *byte = *of_digest;
    }
    bytes
}
