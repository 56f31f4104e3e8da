//! How running engines read their weights. It matters at their next start.

use super::{Facts, Finding, Severity, known};
use crate::engines::facts;
use crate::engines::loaders::{Loader, PageCache};
use crate::model::EngineKind;

/// A process that has read weights.
#[derive(Clone, Copy, Debug)]
pub enum RunningLoader {
    /// A server.
    Server {
        /// Its process.
        pid: u32,
        /// Its kind.
        engine: EngineKind,
        /// How it reads weights.
        loader: &'static Loader,
    },
    /// A daemon that holds weights for engines: `vllm preload`.
    Holder {
        /// Its process.
        pid: u32,
    },
}

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    match known("loader", &facts.loaders, "no engine runs") {
        Err(finding) => vec![*finding],
        Ok(loaders) if loaders.is_empty() => vec![Finding::ok("loader", "no engine runs")],
        Ok(loaders) => loaders.iter().map(of_process).collect(),
    }
}

fn of_process(running: &RunningLoader) -> Finding {
    let (pid, engine, loader) = match running {
        RunningLoader::Server { pid, engine, loader } => (pid, engine, loader),
        RunningLoader::Holder { pid } => {
            let text = "holds the weights of engines with --load-format ipc_cache, and outlives \
                        them: wanted memory, which no engine has left behind";
            return Finding::ok("loader", text).of(&format!("vllm preload (pid {pid})"));
        }
    };
    let name = facts(*engine).known_as.unwrap_or("engine");
    let subject = format!("{name} (pid {pid})");
    let text = format!("its loader ({}) {}", loader.name, loader.costs);
    let finding = match (loader.page_cache, loader.instead) {
        (PageCache::Fills, Some(instead)) => {
            let text = format!("{text}; it fills the page cache, which CUDA counts as used memory");
            Finding::new("loader", Severity::Warning, text).fix(format!("start it with {instead}"))
        }
        _ if loader.is_costly => Finding::new("loader", Severity::Warning, text).fix(
            "if its KV cache is too small, start it without --load-format, or set \
             --kv-cache-memory-bytes",
        ),
        _ => Finding::ok("loader", text),
    };
    finding.of(&subject)
}
