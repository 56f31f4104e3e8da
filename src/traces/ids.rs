//! Trace and span ids, derived from what they identify.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use sha2::{Digest as _, Sha256};

use crate::model::DecisionId;

/// The ids of a round: of its trace, its root and its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ids {
    trace: TraceId,
}

impl Ids {
    /// The round that began in this boot with this decision.
    pub(super) fn of_round(boot_id: &str, first: DecisionId) -> Self {
        let digest = Sha256::new()
            .chain_update(boot_id.as_bytes())
            .chain_update([0])
            .chain_update(first.0.to_be_bytes())
            .finalize();
        Self { trace: TraceId::from_bytes(beginning(&digest)) }
    }

    pub(super) fn root(&self) -> SpanContext {
        self.part("round", "")
    }

    /// A span of a decision: `decision`, `step`, `aim`.
    pub(super) fn of_decision(&self, part: &str, decision: DecisionId) -> SpanContext {
        self.part(part, &decision.to_string())
    }

    /// A part that has a name among its kind.
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
