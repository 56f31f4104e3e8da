//! NVIDIA Triton.

use super::command_line::{Program, Role};
use super::facts::{EngineClient, EngineFacts, GivesBack, HealthPath, Options};
use crate::model::EngineKind;

pub(super) static FACTS: EngineFacts = EngineFacts {
    recognise,
    port: Some(8000),
    host: "0.0.0.0",
    options: Options {
        port: &["--http-port"],
        host: &["--http-address"],
        model: &["--model-repository"],
        may_name_model_first: false,
    },
    health: &[HealthPath::of("/v2/health/ready")],
    gives_back: GivesBack::By(EngineClient::Triton),
    images: &["nvcr.io/nvidia/tritonserver"],
    ..EngineFacts::new(EngineKind::Triton)
};

fn recognise(program: &Program<'_>) -> Option<Role> {
    (program.name == "tritonserver").then_some(Role::Server)
}
