//! TensorRT-LLM.

use super::command_line::{ProcessRole, Program};
use super::facts::{EngineFacts, HealthPath};
use super::last_words::Reason;
use crate::model::EngineKind;

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("TensorRT-LLM"),
    recognise,
    port: Some(8000),
    port_options: &["--port"],
    host_options: &["--host"],
    model_options: &["--model"],
    may_name_model_first: true,
    health: &[HealthPath::of("/health")],
    last_words: &[
        ("[TensorRT-LLM][ERROR]*out of memory", Reason::OutOfMemory),
        ("Executor worker*out of memory", Reason::OutOfMemory),
        ("Executor creation failed due to insufficient GPU memory", Reason::OutOfMemory),
        ("Requested amount of GPU memory*could not be allocated", Reason::OutOfMemory),
        ("OutOfMemory (", Reason::OutOfMemory),
        ("Impossible to fit in any sequence in kvCache", Reason::KvCacheTooSmall),
        ("Executor worker died during initialization", Reason::WorkerDied),
        ("Hang detected on rank", Reason::WorkerTimedOut),
        ("Executor worker returned error", Reason::GaveUp),
    ],
    images: &["nvcr.io/nvidia/tensorrt-llm/release"],
    ..EngineFacts::new(EngineKind::TensorRtLlm)
};

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    match program.name {
        "trtllm-serve" | "tensorrt_llm.commands.serve" => Some(ProcessRole::Server),
        // The other ranks of `trtllm-llmapi-launch`. Without it, workers are of the module
        // `mpi4py.futures.server`, as those of any program with MPI: only the tree shows whose.
        "tensorrt_llm.llmapi.mgmn_worker_node" | "tensorrt_llm.llmapi.mgmn_leader_node" => {
            Some(ProcessRole::Worker)
        }
        _ => None,
    }
}
