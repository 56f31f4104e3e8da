//! LMDeploy.

use super::command_line::{ProcessRole, Program};
use super::emptying::ReclaimMethod;
use super::facts::{EngineFacts, HealthPath, LoadSource};
use super::last_words::Reason;
use super::load::{greatest_share, sum};
use crate::model::{EngineKind, EngineLoad};

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("LMDeploy"),
    recognise,
    port: Some(23333),
    port_options: &["--server-port"],
    host_options: &["--server-name"],
    may_name_model_first: true,
    health: &[HealthPath::of("/health")],
    // Without the slash it may answer with a redirect, and none is followed.
    load: &[LoadSource { path: "/metrics/", read: metrics }],
    // At level 1 of /sleep the weights move to the host's memory, which is the same where memory is
    // unified; at level 2 they are gone and must be sent again.
    gives_back: ReclaimMethod::Never(
        "LMDeploy gives no memory back while it serves: its KV cache is one pool from start to \
         end, and /sleep ends all requests, serves none until /wakeup, and then takes it again. \
         Start it with a smaller --cache-max-entry-count",
    ),
    last_words: &[("No enough gpu memory for", Reason::KvCacheTooSmall)],
    takes_less: Some("a lower --cache-max-entry-count or --session-len"),
    images: &["openmmlab/lmdeploy"],
    ..EngineFacts::new(EngineKind::Lmdeploy)
};

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    let is_it = match (program.name, program.rest) {
        ("lmdeploy", [first, second, ..]) => first == "serve" && second == "api_server",
        (name, _) => name == "lmdeploy.serve.openai.api_server",
    };
    is_it.then_some(ProcessRole::Server)
}

fn metrics(text: &str) -> Option<EngineLoad> {
    Some(EngineLoad {
        running: sum(text, &["lmdeploy:num_requests_running"]),
        waiting: sum(text, &["lmdeploy:num_requests_waiting"]),
        kv_cache_usage: greatest_share(text, "lmdeploy:gpu_cache_usage_perc"),
        ..EngineLoad::NONE
    })
}
