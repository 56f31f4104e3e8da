//! Engines that are known only because the configuration declares them.

use super::facts::{EngineFacts, Options};
use crate::model::EngineKind;

pub(super) static FACTS: EngineFacts = EngineFacts {
    options: Options {
        port: &["--port"],
        host: &["--host"],
        model: &["--model", "--model-path"],
        may_name_model_first: false,
    },
    // NVIDIA NIM serves with several engines.
    images: &["nvcr.io/nim/"],
    ..EngineFacts::new(EngineKind::Declared)
};
