//! `umawarden rules`, a file per command.

use clap::{Args, Subcommand};

use super::Exit;

mod check;
mod export;
mod now;
mod print;
mod report;
mod test;

/// Arguments of `umawarden rules`.
#[derive(Debug, Args)]
pub struct RulesArguments {
    /// A command on rule files.
    #[command(subcommand)]
    pub command: RulesCommand,
}

/// The commands on rule files.
#[derive(Debug, Subcommand)]
pub enum RulesCommand {
    /// Check rule files, and print mistakes with their position.
    Check(check::RulesCheckArguments),
    /// Run rule tests, and print where alerts, samples or decisions differ.
    Test(test::TestArguments),
    /// Print the rules that `umawarden run` would use, with their remedies, sources and overrides.
    Print(print::RulesPrintArguments),
    /// Export alerts as a rule file for Prometheus.
    Export(export::ExportArguments),
    /// Report from the journal how often each rule fired, acted, would have acted, or held.
    Report(report::ReportArguments),
}

/// Runs the command.
pub fn execute(arguments: &RulesArguments) -> anyhow::Result<Exit> {
    match &arguments.command {
        RulesCommand::Check(arguments) => check::execute(arguments),
        RulesCommand::Test(arguments) => test::execute(arguments),
        RulesCommand::Print(arguments) => print::execute(arguments),
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
