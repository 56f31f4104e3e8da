//! `umawarden history`.

use super::Exit;

/// Arguments of `umawarden history`.
#[derive(Debug, clap::Args)]
pub struct HistoryArguments {}

/// Runs the command.
pub fn execute(_arguments: &HistoryArguments) -> anyhow::Result<Exit> {
    anyhow::bail!("not built yet")
}
