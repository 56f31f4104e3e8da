//! Whether there is memory for it.

use std::time::Duration;

use crate::model::{Evidence, HeldSeen, Reading};
use crate::policy::Surroundings;
use crate::policy::brake::present;

/// A look at processes that is older says nothing of those that an engine has left behind.
const LOOKED_WITHIN: Duration = Duration::from_secs(15);

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Why there is not enough; empty if there is.
    pub(super) reasons: Vec<String>,
    pub(super) because: Vec<Evidence>,
}

/// What it needs, or what it was seen to hold, must be there, and nothing of it left behind.
pub(super) fn judge(seen: &HeldSeen, peak_bytes: u64, around: &Surroundings<'_>) -> Room {
    let mut room = Room::default();
    let need = seen.need_bytes.unwrap_or(peak_bytes);
    let available = present("uma_memory_available_bytes", around.store);
    let reserve = present("uma_memory_reserve_bytes", around.store).unwrap_or(0);
    match available {
        None => room.reasons.push("MemAvailable cannot be read".to_owned()),
        Some(available) if available.saturating_sub(reserve) < need => {
            room.reasons.push(format!("{} of {need} bytes", available.saturating_sub(reserve)));
        }
        Some(_) => {}
    }
    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
    room.because.push(Evidence {
        series: "uma_memory_available_bytes".to_owned(),
        value: available.map_or(Reading::Failed, |bytes| Reading::Value(bytes as f64)),
    });
    match around.engines.left_of(&seen.target, around.at.uptime, LOOKED_WITHIN) {
        None => room.reasons.push("nobody has looked for what it has left behind".to_owned()),
        Some(left) => room.reasons.extend(left),
    }
    room
}
