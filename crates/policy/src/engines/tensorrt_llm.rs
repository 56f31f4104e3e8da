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
    let is_it = matches!(program.name, "trtllm-serve" | "tensorrt_llm.commands.serve");
    is_it.then_some(ProcessRole::Server)
}
