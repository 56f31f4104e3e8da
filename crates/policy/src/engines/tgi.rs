//! Hugging Face's text-generation-inference.

use super::command_line::{ProcessRole, Program, ServingArguments};
use super::facts::{EngineFacts, HealthPath, LoadSource};
use super::last_words::Reason;
use super::load::sum;
use crate::model::{EngineKind, EngineLoad};

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("text-generation-inference"),
    recognise,
    port: Some(3000),
    port_options: &["--port", "-p"],
    host_options: &["--hostname"],
    model_options: &["--model-id"],
    // HOSTNAME is the container's own name, and no address that it listens at.
    variables: &["PORT", "MODEL_ID"],
    of_variables: |variable| ServingArguments::of_environment(variable, ["", "PORT", "MODEL_ID"]),
    health: &[HealthPath::of("/health")],
    load: &[LoadSource { path: "/metrics", read: metrics }],
    last_words: &[
        ("Not enough memory to handle", Reason::KvCacheTooSmall),
        ("Shard process was signaled to shutdown with signal", Reason::WorkerDied),
        ("Shard*crashed$", Reason::WorkerDied),
        ("ShardCannotStart", Reason::GaveUp),
        ("ShardFailed", Reason::GaveUp),
        ("WebserverFailed", Reason::GaveUp),
    ],
    takes_less: Some("a lower --cuda-memory-fraction or --max-batch-total-tokens"),
    images: &["ghcr.io/huggingface/text-generation-inference"],
    ..EngineFacts::new(EngineKind::Tgi)
};

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    match program.name {
        "text-generation-launcher" => Some(ProcessRole::Server),
        // The launcher starts both, with the options of each.
        "text-generation-router" | "text-generation-server" => Some(ProcessRole::Worker),
        _ => None,
    }
}

fn metrics(text: &str) -> Option<EngineLoad> {
    Some(EngineLoad {
        running: sum(text, &["tgi_batch_current_size"]),
        waiting: sum(text, &["tgi_queue_size"]),
        ..EngineLoad::NONE
    })
}
