//! vLLM: nothing that it offers gives memory back while it serves.

use super::Refusal;

/// Says why not.
pub(super) fn empty() -> Result<String, Refusal> {
    // /reset_prefix_cache frees blocks within a pool that stays; /sleep and /wake_up are never
    // called, and what /release_kv_cache_memory gives is taken again by the /wake_up behind it.
    Err(Refusal::NothingToCall(
        "vLLM gives no memory back while it serves: its KV cache is one pool from start to end, \
         /reset_prefix_cache frees 0 bytes of it, and /sleep with /wake_up may kill the engine or \
         the host. Start it with a smaller --gpu-memory-utilization",
    ))
}
