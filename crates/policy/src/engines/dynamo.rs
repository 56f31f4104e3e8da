//! NVIDIA Dynamo. From its documentation (1.6); no real one was run.
//!
//! The frontend serves HTTP. Workers receive requests from it and run an engine, most often in
//! processes below them. Their own status server is off unless `DYN_SYSTEM_PORT` starts it.

use super::command_line::{EnginePart, ProcessRole, Program, ServingArguments};
use super::facts::{EngineFacts, HealthPath};
use crate::model::EngineKind;

const HOST: &str = "DYN_HTTP_HOST";
const PORT: &str = "DYN_HTTP_PORT";

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("Dynamo"),
    recognise,
    starts: &[EngineKind::Vllm, EngineKind::Sglang, EngineKind::TensorRtLlm],
    port: Some(8000),
    host: "0.0.0.0",
    port_options: &["--http-port"],
    host_options: &["--http-host"],
    model_options: &["--model", "--model-path"],
    part,
    variables: &[HOST, PORT],
    of_variables: |variable| ServingArguments::of_environment(variable, [HOST, PORT, ""]),
    // Its /health also reads the discovery service.
    health: &[HealthPath::of("/live")],
    images: &[
        "nvcr.io/nvidia/ai-dynamo/vllm-runtime",
        "nvcr.io/nvidia/ai-dynamo/sglang-runtime",
        "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime",
        "nvcr.io/nvidia/ai-dynamo/dynamo-frontend",
    ],
    ..EngineFacts::new(EngineKind::Dynamo)
};

/// The name of a worker.
fn worker(program: &Program<'_>) -> Option<&'static str> {
    match program.name {
        "dynamo.vllm" => Some("dynamo-vllm"),
        "dynamo.sglang" => Some("dynamo-sglang"),
        "dynamo.trtllm" => Some("dynamo-trtllm"),
        "dynamo-run" if takes(program, "in=dyn://") => Some("dynamo-run"),
        _ => None,
    }
}

/// Whether `dynamo-run` gets its requests from there. Without an input it is a chat.
fn takes(program: &Program<'_>, input: &str) -> bool {
    program.rest.iter().take(2).any(|word| word.starts_with(input))
}

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    let is_it = match program.name {
        "dynamo.frontend" => !program.has_any(&["-i", "--interactive"]),
        "dynamo-run" => takes(program, "in=http") || worker(program).is_some(),
        _ => worker(program).is_some(),
    };
    is_it.then_some(ProcessRole::Server)
}

fn part(program: &Program<'_>) -> EnginePart {
    let name = worker(program);
    EnginePart { is_headless: name.is_some(), name, ..EnginePart::WHOLE }
}
