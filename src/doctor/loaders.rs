//! How running engines read their weights. It matters at their next start. What is known against a
//! loader is advice.

use super::{DoctorFacts, Finding, StartedEngine, known};
use crate::engines::facts;
use crate::engines::loaders::WeightDaemon;

/// A process that has read weights.
#[derive(Clone, Debug)]
pub enum RunningLoader {
    /// The server of an engine.
    Server {
        /// Its process.
        pid: u32,
        /// What it runs.
        started: StartedEngine,
    },
    /// A daemon that holds weights for engines.
    Holder {
        /// Its process.
        pid: u32,
        /// What it is.
        daemon: &'static WeightDaemon,
    },
}

pub(super) fn examine(facts: &DoctorFacts) -> Vec<Finding> {
    match known("loader", &facts.loaders, "no engine runs") {
        Err(finding) => vec![*finding],
        Ok(loaders) if loaders.is_empty() => vec![Finding::ok("loader", "no engine runs")],
        Ok(loaders) => loaders.iter().map(of_process).collect(),
    }
}

fn of_process(running: &RunningLoader) -> Finding {
    match running {
        RunningLoader::Server { pid, started: StartedEngine { engine, loader, .. } } => {
            let text = format!("its loader ({}) {} ({})", loader.name, loader.costs, loader.source);
            let name = facts(*engine).known_as.unwrap_or("engine");
            Finding::ok("loader", text).of(&format!("{name} (pid {pid})"))
        }
        RunningLoader::Holder { pid, daemon } => {
            let text = format!(
                "holds the weights of engines with {}, and outlives them: wanted memory, which no \
                 engine has left behind",
                daemon.option
            );
            Finding::ok("loader", text).of(&format!("{} (pid {pid})", daemon.command))
        }
    }
}
