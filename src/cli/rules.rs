//! `umawarden rules`.

use super::Exit;

/// Arguments of `umawarden rules`.
#[derive(Debug, clap::Args)]
pub struct RulesArguments {}

/// Runs the command.
pub fn execute(_arguments: &RulesArguments) -> anyhow::Result<Exit> {
    anyhow::bail!("not built yet")
}
