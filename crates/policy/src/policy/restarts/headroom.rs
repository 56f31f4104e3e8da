//! Whether there is memory for it: the gate's answer, and what it has left behind itself.

use std::collections::BTreeSet;

use crate::model::{DeferredRestart, Evidence, GateQuestion, ProcessId, Reading};
use crate::policy::Context;
use crate::policy::gate;

/// Series that say what there is.
const EVIDENCE: [&str; 3] =
    ["uma_memory_free_bytes", "uma_memory_available_bytes", "uma_memory_unaccounted_bytes"];

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Ruled {
    /// Why there is not enough; empty if there is.
    pub(super) reasons: Vec<String>,
    pub(super) because: Vec<Evidence>,
}

/// What it needs, or what it was seen to hold, must be there, nothing of it left behind, and
/// nothing be given back any more. Who does not say what it needs is known by what its processes
/// held in its last life: on GB10 that is less than it had, since a driver's memory is in no
/// process, and then only what is still being given back keeps it waiting.
pub(super) fn judge(
    seen: &DeferredRestart,
    (peak_bytes, family): (u64, &BTreeSet<ProcessId>),
    context: &Context<'_>,
) -> Ruled {
    let mut ruled = Ruled::default();
    match context.room {
        None => ruled.reasons.push("memory was not measured of late".to_owned()),
        Some(room) => {
            let question = GateQuestion {
                need_bytes: seen.need_bytes.unwrap_or(peak_bytes),
                contiguous_bytes: seen.contiguous_bytes,
            };
            let answer = gate::judge(&question, room);
            ruled.reasons.extend(answer.reasons.iter().map(ToString::to_string));
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
        }
    }
    if left.is_none() {
        ruled.reasons.push("nobody has looked for what it has left behind".to_owned());
    }
    ruled
}
