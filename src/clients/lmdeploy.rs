//! LMDeploy: nothing that it offers gives memory back while it serves.

use super::Refusal;

/// Says why not.
pub(super) fn empty() -> Result<String, Refusal> {
    // /sleep ends all sessions, and answers nobody until /wakeup, which takes the KV cache again.
    // At level 1 the weights move to the host's memory, which is the same where memory is unified;
    // at level 2 they are gone, and somebody must send them again.
    Err(Refusal::NothingToCall(
        "LMDeploy gives no memory back while it serves: its KV cache is one pool from start to \
         end, and /sleep ends all requests, serves nobody until /wakeup, and then takes it again. \
         Start it with a smaller --cache-max-entry-count",
    ))
}
