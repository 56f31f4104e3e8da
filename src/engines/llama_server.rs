//! `llama-server` of llama.cpp.

use super::command_line::{Program, Role, Serving};
use super::facts::{
    EngineClient, EngineFacts, Environment, GivesBack, HealthPath, LoadSource, Options,
};
use super::last_words::LastWords;
use super::load::{greatest_share, sum};
use crate::model::{EngineKind, EngineLoad};

const HOST: &str = "LLAMA_ARG_HOST";
const PORT: &str = "LLAMA_ARG_PORT";
const MODEL: &str = "LLAMA_ARG_MODEL";

pub(super) static FACTS: EngineFacts = EngineFacts {
    recognise,
    port: Some(8080),
    options: Options {
        port: &["--port"],
        host: &["--host"],
        model: &["--model", "-m", "--hf-repo", "-hf", "-hfr"],
        may_name_model_first: false,
    },
    environment: Environment {
        variables: &[HOST, PORT, MODEL],
        serving: |variable| Serving {
            host: variable(HOST),
            port: variable(PORT).and_then(|text| text.parse().ok()),
            model: variable(MODEL),
        },
    },
    health: &[HealthPath::of("/health")],
    load: &[LoadSource { path: "/metrics", read: metrics }],
    gives_back: GivesBack::By(EngineClient::LlamaServer),
    last_words: &[("cudaMalloc failed: out of memory", LastWords::OutOfMemory)],
    takes_less: Some("a lower --ctx-size, or fewer --n-gpu-layers"),
    images: &["ghcr.io/ggml-org/llama.cpp"],
    ..EngineFacts::new(EngineKind::LlamaServer)
};

fn recognise(program: &Program<'_>) -> Option<Role> {
    (program.name == "llama-server").then_some(Role::Server)
}

/// Reads its metrics; those of one model where it is a router.
pub fn metrics(text: &str) -> Option<EngineLoad> {
    Some(EngineLoad {
        running: sum(text, &["llamacpp:requests_processing"]),
        waiting: sum(text, &["llamacpp:requests_deferred"]),
        kv_cache_usage: greatest_share(text, "llamacpp:kv_cache_usage_ratio"),
        ..EngineLoad::NONE
    })
}
