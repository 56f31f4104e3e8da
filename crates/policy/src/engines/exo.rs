//! exo, a node of a cluster that shares models. From its documentation and source (1.0.71); no real
//! one was run.
//!
//! Models are loaded by processes below it. Deleting an instance unloads its model on all nodes.

use super::command_line::{EnginePart, ProcessRole, Program};
use super::facts::{EngineFacts, HealthPath};
use super::last_words::Reason;
use crate::model::EngineKind;

pub(super) static FACTS: EngineFacts = EngineFacts {
    known_as: Some("exo"),
    recognise,
    loads_while_up: true,
    port: Some(52415),
    host: "0.0.0.0",
    // The latter until 0.0.15.
    port_options: &["--api-port", "--chatgpt-api-port"],
    part: |program| EnginePart { is_headless: program.has_any(&["--no-api"]), ..EnginePart::WHOLE },
    // The latter until 0.0.15.
    health: &[HealthPath::of("/node_id"), HealthPath::of("/healthcheck")],
    last_words: &[("Terminated (signal=", Reason::WorkerDied)],
    ..EngineFacts::new(EngineKind::Exo)
};

/// Other programs are called `exo`, too, such as the client of Exoscale. They take commands, and a
/// node of exo takes options only.
fn recognise(program: &Program<'_>) -> Option<ProcessRole> {
    let is_option = |word: &String| word.starts_with('-');
    let mut before = false;
    let takes_options = program.rest.iter().all(|word| {
        let follows = std::mem::replace(&mut before, is_option(word));
        is_option(word) || follows
    });
    // With these, it is a process that a packaged node has started.
    let is_child = program.has_any(&["-c", "--multiprocessing-fork"]);
    let is_script = program.name == "main.py" && program.is_in_folder("exo");
    let is_called_so = matches!(program.name, "exo" | "exo.main") || is_script;
    (is_called_so && takes_options && !is_child).then_some(ProcessRole::Server)
}
