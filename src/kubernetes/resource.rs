//! The memory that pods of this node can request.

use crate::model::{EnginePools, HOST_POOL};
use crate::policy::status::Status;

const GIB: u64 = 1 << 30;

/// What engines can have on a machine whose GPU shares the memory of the CPUs, those that run
/// included, in MiB and whole GiB: the scheduler subtracts what running pods have requested.
/// `None`: not known now, or the GPUs have memory of their own.
pub(super) fn mebibytes(status: &Status) -> Option<u64> {
    let memory = status.gate_memory.as_ref()?;
    if !matches!(memory.engines, EnginePools::Host) {
        return None;
    }
    let host = memory.pools.iter().find(|pool| *pool.pool == *HOST_POOL)?;
    let obtainable = host.obtainable.value()?;
    let engines: u64 = status.engines.iter().map(|engine| engine.memory_bytes).sum();
    let bytes = obtainable.saturating_add(engines);
    Some(bytes / GIB * 1024)
}
