//! `umawarden dmesg`.

use super::Exit;

/// Arguments of `umawarden dmesg`.
#[derive(Debug, clap::Args)]
pub struct DmesgArguments {}

/// Runs the command.
pub fn execute(_arguments: &DmesgArguments) -> anyhow::Result<Exit> {
    anyhow::bail!("not built yet")
}
