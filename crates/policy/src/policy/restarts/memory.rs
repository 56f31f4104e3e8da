//! Whether there is memory for a restart: the gate's response, and what the engine left behind.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::model::{DeferredRestart, Evidence, ProcessId, Reading};
use crate::policy::Context;
use crate::policy::gate;

/// Series that say what there is.
const EVIDENCE: [&str; 3] =
    ["uma_memory_free_bytes", "uma_memory_available_bytes", "uma_memory_unaccounted_bytes"];

/// The findings.
#[derive(Debug, Default)]
pub(super) struct MemoryRuling {
    /// Why there is not enough; empty if there is.
    pub(super) reasons: Vec<String>,
    /// Time until there is, at the present pace; `None` where that is unknown.
    pub(super) wait: Option<Duration>,
    pub(super) because: Vec<Evidence>,
}

/// Its need, or else the peak of its last life, must be available, nothing left behind, and no
/// release under way. On GB10 the peak is too low, since driver memory is in no process; then only
/// the release defers the start. What is reserved for one of the names in `who` is its own.
pub(super) fn check(
    seen: &DeferredRestart,
    (peak_bytes, family): (u64, &BTreeSet<ProcessId>),
    who: &[&str],
    context: &Context<'_>,
) -> MemoryRuling {
    let mut ruled = MemoryRuling::default();
    match context.memory {
        None => ruled.reasons.push("memory was not measured of late".to_owned()),
        Some(memory) => {
            let need = seen.need.request(peak_bytes);
            ruled.reasons.extend(context.leases.others_start(who, context.at));
            let response = gate::check_gate(&need, &context.leases.left_of(memory, who));
            ruled.wait = response.wait.filter(|_| ruled.reasons.is_empty());
            ruled.reasons.extend(response.reasons.iter().map(ToString::to_string));
        }
    }
    for name in EVIDENCE {
        let value = context.latest(name);
        ruled.because.push(Evidence { series: name.to_owned(), value });
    }
    let left = context.engines.left_of(Some(&seen.target), family, context.at.uptime);
    for left in left.iter().flatten() {
        let (comm, pid) = (left.comm.replace(['"', '\\'], "_"), left.id);
        #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
        ruled.because.push(Evidence {
            series: format!("left_behind_bytes{{comm=\"{comm}\",pid=\"{pid}\"}}"),
            value: Reading::Value(left.bytes as f64),
        });
        let text = left.to_string();
        if !ruled.reasons.contains(&text) {
            ruled.reasons.push(text);
            ruled.wait = None;
        }
    }
    if left.is_none() {
        ruled.reasons.push("no process scan has looked for its orphans".to_owned());
        ruled.wait = None;
    }
    ruled
}
