//! `umawarden approve`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::Exit;
use super::control::{
    PlaceArguments, WordsArguments, entries, lasting, left, list, put_lasts, tell,
};
use super::order_text::told_order;
use crate::policy::status::ApprovalStatus;

/// Arguments of `umawarden approve`.
#[derive(Debug, Args)]
#[command(
    after_help = AFTER_HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct ApproveArguments {
    /// What else to do with approvals.
    #[command(subcommand)]
    what: Option<ApproveCommand>,

    /// The decision's number, as `umawarden approve list` and the log tell.
    #[arg(value_name = "ID", required = true)]
    decision: Option<u64>,

    /// How long the approval may be used, up to 366d: 1h, 1h30m [default: 10m].
    #[arg(long = "for", value_name = "DURATION", value_parser = lasting)]
    lasts: Option<Duration>,

    /// Why and who.
    #[command(flatten)]
    words: WordsArguments,

    /// Where the daemon is.
    #[command(flatten)]
    place: PlaceArguments,
}

/// What else can be done with approvals.
#[derive(Debug, Subcommand)]
enum ApproveCommand {
    /// Show what waits for approval.
    List {
        /// Where the daemon is.
        #[command(flatten)]
        place: PlaceArguments,
    },
}

const AFTER_HELP: &str = "\
A remedy with `require_approval` holds until a person approves; then it is done once, at the next
chance at which its rule still fires and nothing else holds it. An approval that is not used lapses.

Exit codes: 0 done; 1 refused: that decision does not wait for approval, or has it; 2 no daemon
answers, this user may not give orders, the approval cannot be kept, or a value makes no
sense.

  umawarden approve list
  umawarden approve 42 --for 1h";

/// Runs the command.
///
/// # Errors
/// No daemon answers, or it cannot do it.
pub fn execute(arguments: &ApproveArguments) -> anyhow::Result<Exit> {
    if let Some(ApproveCommand::List { place }) = &arguments.what {
        let reply = place.client()?.ask("GET", "/api/v1/approvals", None)?;
        let approvals = entries(reply, "approvals")?;
        list(&approvals, place.json, "Nothing waits for approval.", line);
        return Ok(Exit::Fine);
    }
    let mut body = arguments.words.json();
    put_lasts(&mut body, arguments.lasts, None);
    let place = &arguments.place;
    let target = format!("/api/v1/approvals/{}", arguments.decision.unwrap_or_default());
    let reply = place.client()?.ask("POST", &target, Some(&body.into()))?;
    tell(reply, place.json, told_order)
}

fn line(approval: &ApprovalStatus) -> String {
    let asked = &approval.asked;
    let given = approval.given_by.as_ref().map(|by| format!(", approved by {by}"));
    format!(
        "{:<5} {}: {} ({} mode), lapses {} at {:.0}{}",
        asked.decision,
        asked.rule,
        asked.action,
        asked.mode.name(),
        left(approval.lapses),
        approval.lapses,
        given.unwrap_or_default(),
    )
}
