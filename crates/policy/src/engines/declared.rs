//! Engines that are known only because the configuration declares them.

use super::facts::EngineFacts;
use crate::model::EngineKind;

pub(super) static FACTS: EngineFacts = EngineFacts {
    port_options: &["--port"],
    host_options: &["--host"],
    model_options: &["--model", "--model-path"],
    // NVIDIA NIM serves with several engines.
    images: &["nvcr.io/nim/"],
    ..EngineFacts::new(EngineKind::Declared)
};
