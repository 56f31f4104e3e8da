//! What engines leave behind.

use crate::model::{EngineProcess, EngineSeen, Orphan, Reading};

/// Less than this is worth no wait: a resource tracker, a shell.
const LEAST: u64 = 64 << 20;

/// The processes that an engine's server has left behind, and that hold memory or the GPU.
pub fn orphans(seen: &EngineSeen) -> impl Iterator<Item = Orphan> {
    let has_ended = |process: &EngineProcess| matches!(process.state, 'Z' | 'X');
    let server = seen.processes.iter().find(|process| process.id == seen.server);
    let is_left = seen.is_left_behind || server.is_none_or(has_ended);
    let left = seen.processes.iter().filter(move |process| is_left && !has_ended(process));
    left.map(|process| Orphan {
        id: process.id,
        comm: process.comm.clone(),
        engine: seen.name.clone(),
        bytes: held(process),
        open_devices: process.open_devices.value().unwrap_or(0),
    })
    .filter(|orphan| orphan.bytes >= LEAST || orphan.open_devices > 0)
}

/// What goes with the process; its resident files stay in the page cache.
fn held(process: &EngineProcess) -> u64 {
    let of = |reading: Reading<u64>| reading.value().unwrap_or(0);
    of(process.anon_bytes)
        .saturating_add(of(process.shmem_bytes))
        .saturating_add(of(process.hugetlb_bytes))
}
