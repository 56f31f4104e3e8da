//! What the loader of an engine's command does and costs, in words.

use std::ffi::OsString;

use crate::cli::output::errln;
use crate::engines::loaders::{Loader, PageCacheUse, WeightResidence};
use crate::engines::{LaunchCommand, facts};
use crate::model::EngineKind;

/// Notes on standard error what the loader of an engine's command does and costs. Silent if the
/// command starts no known engine, or nothing is known of its loader.
pub(super) fn note_loader(command: &[OsString]) {
    let words: Vec<String> =
        command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let read = LaunchCommand::read(&words);
    if let Some(read) = read.filter(|read| read.loader.peak_percent.is_some()) {
        errln!("umawarden: note: {}", sentence(read.engine, read.loader));
    }
}

/// What the loader of an engine does and costs.
pub(super) fn sentence(engine: EngineKind, loader: &Loader) -> String {
    let name = facts(engine).known_as.unwrap_or("The engine");
    let cache = match (loader.page_cache, loader.instead) {
        (PageCacheUse::Spares, _) => " It spares the page cache.".to_owned(),
        (PageCacheUse::Fills, Some(instead)) => {
            format!(" It fills the page cache, which {instead} spares.")
        }
        (PageCacheUse::Fills, None) => " It fills the page cache.".to_owned(),
        (PageCacheUse::Unknown, _) => " Whether it fills the page cache is unknown.".to_owned(),
    };
    let kept = match loader.residence {
        WeightResidence::Mapped => " What stays mapped is page cache.",
        WeightResidence::Copied | WeightResidence::Outlives => "",
    };
    format!("{name}'s loader ({}) {}.{cache}{kept}", loader.name, loader.costs)
}
