//! `ds4-server` of ds4, which serves DeepSeek V4. From its documentation and source (May 2026); no
//! real one was run.

use super::command_line::{ProcessRole, Program};
use super::facts::{EngineFacts, HealthPath};
use crate::model::EngineKind;

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("ds4"),
    recognise,
    port: Some(8000),
    port_options: &["--port"],
    host_options: &["--host"],
    model_options: &["--model", "-m"],
    // It has no other path for GET. The thread of the connection responds, without the model.
    health: &[HealthPath::of("/v1/models")],
    takes_less: Some("a lower --ctx"),
    ..EngineFacts::new(EngineKind::Ds4)
};

fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    (program.name == "ds4-server").then_some(ProcessRole::Server)
}
