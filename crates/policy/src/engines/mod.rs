//! The facts of inference engines: a file for each, and [`ENGINES`], the list of them.
//!
//! To add an engine:
//! 1. add its kind and name to the table in `model/engine.rs`;
//! 2. add a file here with its `FACTS`; a field that it omits is as in [`EngineFacts::new`];
//! 3. add its line to [`ENGINES`], in the order of the kinds;
//! 4. record a real one for `tests/fixtures/engines`.
//!
//! Other modules call [`facts`], match on no kind and name no engine. This module does no I/O:
//! sources and clients send the requests.

mod about;
mod arguments;
mod comfyui;
mod command_line;
mod declared;
mod ds4;
mod dynamo;
mod emptying;
mod exo;
mod facts;
mod last_words;
mod launch_command;
mod llama_server;
mod lm_studio;
mod lmdeploy;
mod load;
pub mod loaders;
mod localai;
mod mistralrs;
mod ollama;
pub mod sglang;
mod tabbyapi;
mod tensorrt_llm;
#[cfg(test)]
mod tests;
mod tgi;
mod triton;
mod vllm;
mod vllm_rs;

pub use about::{served_model, version_of_image};
pub use arguments::{HIDDEN, without_secrets};
pub use command_line::{
    EnginePart, ProcessRole, Program, ServingArguments, recognise, serving, serving_with,
};
pub use emptying::{
    Emptying, EmptyingRefusal, EngineCalls, Pausing, ReclaimMethod, ResumeCall, WhichKey,
    empty_cache,
};
pub use facts::{
    Balance, EngineFacts, HealthPath, LoadSource, MemoryShare, ShareOf, SlowHealth, UsualShare,
    Variable,
};
pub use last_words::{LastWords, Reason, RequestTexts, last_words};
pub use launch_command::{GivenOption, LaunchCommand, SizeOptions, count};

use crate::model::EngineKind;

/// All engines, in the order of their kinds.
pub static ENGINES: [&EngineFacts; EngineKind::ALL.len()] = [
    &sglang::FACTS,
    &vllm::FACTS,
    &ollama::FACTS,
    &llama_server::FACTS,
    &comfyui::FACTS,
    &tensorrt_llm::FACTS,
    &triton::FACTS,
    &lmdeploy::FACTS,
    &tgi::FACTS,
    &dynamo::FACTS,
    &tabbyapi::FACTS,
    &lm_studio::FACTS,
    &localai::FACTS,
    &exo::FACTS,
    &ds4::FACTS,
    &mistralrs::FACTS,
    &vllm_rs::FACTS,
    &declared::FACTS,
];

const _: () = {
    let mut index = 0;
    while index < ENGINES.len() {
        assert!(ENGINES[index].kind as usize == index, "ENGINES is not in the order of the kinds");
        index += 1;
    }
};

/// The facts of engines of that kind.
pub fn facts(kind: EngineKind) -> &'static EngineFacts {
    ENGINES[kind as usize]
}
