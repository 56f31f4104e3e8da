//! `umawarden rules`, a file per command.

use clap::{Args, Subcommand};

use super::Exit;

mod check;
mod export;
mod report;
mod test;

/// Arguments of `umawarden rules`.
#[derive(Debug, Args)]
pub struct RulesArguments {
    /// What to do with them.
    #[command(subcommand)]
    pub command: RulesCommand,
}

/// What can be done with rule files.
#[derive(Debug, Subcommand)]
pub enum RulesCommand {
    /// Tell whether rule files are fine, and where they are not.
    Check(check::CheckArguments),
    /// Play test files and tell where alerts, samples or decisions are not as expected.
    Test(test::TestArguments),
    /// Write the alerts of rules as a rule file for Prometheus.
    Export(export::ExportArguments),
    /// Tell how often each rule fired, acted, would have acted or held back, by the journal.
    Report(report::ReportArguments),
}

/// Runs the command.
pub fn execute(arguments: &RulesArguments) -> anyhow::Result<Exit> {
    match &arguments.command {
        RulesCommand::Check(arguments) => check::execute(arguments),
        RulesCommand::Test(arguments) => test::execute(arguments),
        RulesCommand::Export(arguments) => export::execute(arguments),
        RulesCommand::Report(arguments) => report::execute(arguments),
    }
}

fn count(number: usize, noun: &str) -> String {
    match (number, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {noun}s"),
    }
}
