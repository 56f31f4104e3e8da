//! `umawarden status`.

use clap::Args;
use serde_json::json;

use super::Exit;
use super::control::DaemonArguments;
use super::pictures::{NodesArguments, query_all};
use super::top::{self, FrameView};
use crate::cli::output::{errln, outln};
use crate::model::{NodeHealthLevel, Picture};

/// Arguments of `umawarden status`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct StatusArguments {
    #[command(flatten)]
    daemon: DaemonArguments,

    /// Other nodes.
    #[command(flatten)]
    nodes: NodesArguments,
}

const AFTER_HELP: &str = "\
Shows on one screen whether the node is well and why not, what waits for a person, where memory \
is, the engines, who waits, and what happened last. In a pipe lists and lines are whole. \
`umawarden top` shows the same once a second. With --json: one object a node.

Not well is a node with a firing alert, a stuck engine, or memory that is lost; unknown one on \
which something necessary for this cannot be read.

Exit codes: 0 it is well; 1 a warning, or it is unknown; 3 critical; 2 no daemon answers, or this \
user may not query it. Of several nodes it is the worst.

  umawarden status
  umawarden status --node spark-1,spark-2
  umawarden status --json | jq -r '.well.reasons[]'";

/// The exit code of a critical state, as that of the doctor for a problem.
const CRITICAL: u8 = 3;

/// How the command ends: the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WorstState {
    Well,
    Warning,
    Critical,
    Silent,
}

/// Runs the command.
///
/// # Errors
/// The configuration cannot be used.
pub fn execute(arguments: &StatusArguments) -> anyhow::Result<Exit> {
    let sources = arguments.nodes.sources(&arguments.daemon)?;
    let mut worst = WorstState::Well;
    for (index, answered) in query_all(sources, false).into_iter().enumerate() {
        if index > 0 && !arguments.daemon.json {
            outln!();
        }
        let of_node = match answered.picture {
            Ok(picture) => show(&picture, arguments.daemon.json),
            Err(why) => {
                errln!("umawarden: {why}");
                WorstState::Silent
            }
        };
        worst = worst.max(of_node);
    }
    Ok(match worst {
        WorstState::Well => Exit::Fine,
        WorstState::Warning => Exit::Findings,
        WorstState::Critical => Exit::Code(CRITICAL),
        WorstState::Silent => Exit::Unusable,
    })
}

fn show(picture: &Picture, as_json: bool) -> WorstState {
    if as_json {
        outln!("{}", json!(picture));
    } else {
        top::print(&FrameView::of(picture));
    }
    match picture.well.level {
        NodeHealthLevel::Well => WorstState::Well,
        NodeHealthLevel::Unknown | NodeHealthLevel::Warning => WorstState::Warning,
        NodeHealthLevel::Critical => WorstState::Critical,
    }
}
