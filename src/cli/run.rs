//! `umawarden run`.

use super::Exit;

/// Arguments of `umawarden run`.
#[derive(Debug, clap::Args)]
pub struct RunArguments {}

/// Runs the command.
pub fn execute(_arguments: RunArguments) -> anyhow::Result<Exit> {
    anyhow::bail!("not built yet")
}
