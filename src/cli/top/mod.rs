//! `umawarden top`.

mod feed;
mod frame;
mod memory;
#[cfg(test)]
mod tests;
mod watching;

use std::io::{self, IsTerminal as _};

use clap::Args;
use serde_json::json;

use super::Exit;
use super::control::DaemonArguments;
use super::pictures::{NodeSource, NodesArguments, query_all};
use super::style::{Screen, is_utf8};
use crate::cli::output::{self, errln, outln};
pub(super) use frame::FrameView;
use frame::{FrameSize, lines};

/// Arguments of `umawarden top`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct TopArguments {
    #[command(flatten)]
    daemon: DaemonArguments,

    /// Other nodes.
    #[command(flatten)]
    nodes: NodesArguments,

    /// Print one picture of each node as text, and end.
    #[arg(long)]
    once: bool,
}

const AFTER_HELP: &str = "\
Shows the node, once a second: whether it is well and why not; where memory is, by engine, other \
processes, page cache by state, unaccounted (mostly the driver's) and free memory; in a larger \
terminal the past hour of it; the engines with their phases, the progress of a load and the time \
left, queues and KV caches; who waits for memory; decisions that wait for a person; silences; the \
nodes of the cluster; and what happened. In observe mode a decision says what would have been done.

It needs 80 columns and 24 lines; a smaller terminal shows less. A daemon that does not answer is \
reported, and queried again each second.

  q, Ctrl-C          end
  1 to 9, Tab        the node of that number, the next node
  Down, Up           older and newer events

Without a terminal, and with --once or --json, it prints one picture of each node and ends; in a \
pipe lists and lines are whole. Colours are left out if NO_COLOR is set, and all but ASCII if the \
locale is not UTF-8.

Exit codes: 0 ended, or printed; 2 no daemon answers (with --once or --json, or without a \
terminal), or this user may not query it; 129, 130 and 143 ended by a signal.

  umawarden top
  umawarden top --node spark-1,spark-2
  ssh spark-1 umawarden top --once";

/// The columns of the bar of memory without a terminal.
const COLUMNS: usize = 80;

/// Runs the command.
///
/// # Errors
/// The configuration or the terminal cannot be used.
pub fn execute(arguments: &TopArguments) -> anyhow::Result<Exit> {
    let sources = arguments.nodes.sources(&arguments.daemon)?;
    let is_for_people = output::is_terminal() && io::stdin().is_terminal() && !output::is_dumb();
    if arguments.once || arguments.daemon.json || !is_for_people {
        return Ok(once(sources, arguments.daemon.json));
    }
    watching::run(sources)
}

/// Prints a picture of each node.
fn once(sources: Vec<NodeSource>, as_json: bool) -> Exit {
    let mut exit = Exit::Fine;
    for (index, answered) in query_all(sources, !as_json).into_iter().enumerate() {
        match answered.picture {
            Ok(picture) if as_json => outln!("{}", json!(picture)),
            Ok(picture) => {
                if index > 0 {
                    outln!();
                }
                print(&FrameView { memory: answered.memory.as_ref(), ..FrameView::of(&picture) });
            }
            Err(why) => {
                errln!("umawarden: {why}");
                exit = Exit::Unusable;
            }
        }
    }
    exit
}

/// Prints a picture on standard output: one screen of the terminal, or else all of it.
pub(super) fn print(view: &FrameView<'_>) {
    let screen = Screen::of_output();
    let width = screen.width.unwrap_or(COLUMNS);
    // The prompt has a line, too.
    let height = output::height().map(|lines| lines.saturating_sub(1).max(1));
    let frame = FrameSize { width, height, is_utf8: is_utf8(), scroll: 0 };
    for line in lines(view, frame) {
        outln!("{}", line.shown(screen).trim_end());
    }
}
