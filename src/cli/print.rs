//! `umawarden print`: files to install.

mod unit;

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Exit, variables};
use crate::cli::output;
use crate::doctor::AdviceTable;

/// Arguments of `umawarden print`.
#[derive(Debug, Args)]
pub struct PrintArguments {
    #[command(subcommand)]
    what: PrintTarget,
}

#[derive(Debug, Subcommand)]
enum PrintTarget {
    /// The configuration file with all keys, their defaults and explanations.
    Config,
    /// The advice of `umawarden doctor`, to correct and to give to it with --advice.
    Advice,
    /// A unit for the daemon; or, with a command, for an engine that waits for memory.
    Unit(unit::UnitArguments),
    /// A drop-in for the daemon's unit: what remedies need before they can act [default: all]
    ///
    ///   umawarden print drop-in memory evict |
    ///     sudo tee /etc/systemd/system/umawarden.service.d/acting.conf
    ///
    /// Without it the unit only observes. `mode: enforce` in the configuration turns acting on.
    #[command(verbatim_doc_comment)]
    DropIn {
        /// Groups of remedies.
        groups: Vec<unit::RemedyGroup>,
    },
    /// Completions of commands and flags for a shell
    ///
    ///   umawarden print completions bash >/etc/bash_completion.d/umawarden
    #[command(verbatim_doc_comment)]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// A manual page: of umawarden, or of one command
    ///
    ///   umawarden print man rules check | man -l -
    #[command(verbatim_doc_comment)]
    Man(ManArguments),
}

/// Arguments of `umawarden print man`.
#[derive(Debug, Args)]
struct ManArguments {
    /// The command [default: umawarden itself].
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,

    /// Write the pages of all commands into this folder instead.
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    output: Option<PathBuf>,
}

/// All keys of the configuration file, commented out. The book shows the same file.
const CONFIG: &str = include_str!("../../packaging/umawarden.yaml");

/// Runs the command.
///
/// # Errors
/// A word is invalid in a unit, there is no such command, or a folder cannot be written.
pub fn execute(arguments: &PrintArguments) -> anyhow::Result<Exit> {
    match &arguments.what {
        PrintTarget::Config => output::print(CONFIG),
        PrintTarget::Advice => output::print(AdviceTable::shipped_text()),
        PrintTarget::Unit(unit) => output::print(&unit::text(unit)?),
        PrintTarget::DropIn { groups } => output::print(&unit::drop_in(groups)),
        PrintTarget::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut variables::command(), "umawarden", &mut text);
            output::print(&String::from_utf8_lossy(&text));
        }
        PrintTarget::Man(man) => print_man(man)?,
    }
    Ok(Exit::Fine)
}

fn print_man(arguments: &ManArguments) -> anyhow::Result<()> {
    let mut command = variables::command();
    if let Some(folder) = &arguments.output {
        return clap_mangen::generate_to(command, folder)
            .with_context(|| format!("cannot write manual pages to {}", folder.display()));
    }
    command.build();
    let mut page = &command;
    for name in &arguments.command {
        page = page.find_subcommand(name).with_context(|| {
            format!("there is no command {name:?}: `umawarden --help` lists all")
        })?;
    }
    let mut text = Vec::new();
    Man::new(page.clone()).render(&mut text)?;
    output::print(&String::from_utf8_lossy(&text));
    Ok(())
}
