//! `umawarden approve` and `umawarden deny`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::Exit;
use super::control::{
    AttributionArguments, DaemonArguments, entries, lasting, left, list, print_result, put_lasts,
};
use super::order_text::order_result;
use crate::policy::status::ApprovalStatus;

/// Arguments of `umawarden approve`.
#[derive(Debug, Args)]
#[command(
    after_help = AFTER_HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct ApproveArguments {
    #[command(subcommand)]
    what: Option<ApproveCommand>,

    /// The decision's id, from `umawarden approve list` or the log.
    #[arg(value_name = "ID", required = true)]
    decision: Option<u64>,

    /// How long the approval is valid, up to 366d: 1h, 1h30m [default: 10m].
    #[arg(long = "for", value_name = "DURATION", value_parser = lasting)]
    lasts: Option<Duration>,

    /// Author and reason.
    #[command(flatten)]
    words: AttributionArguments,

    #[command(flatten)]
    daemon: DaemonArguments,
}

#[derive(Debug, Subcommand)]
enum ApproveCommand {
    /// Show decisions that wait for approval.
    List {
        /// The daemon.
        #[command(flatten)]
        daemon: DaemonArguments,
    },
}

const AFTER_HELP: &str = "\
A remedy with `require_approval` holds until a person approves; then it is done once, at the next \
chance at which its rule still fires and nothing else holds it. An approval that is not used \
lapses. What was announced (unless_denied_within) is done at once when it is approved.

Exit codes: 0 done; 1 refused: that decision does not wait for approval, or has it; 2 no daemon \
answers, this user may not give orders, the approval cannot be kept, or a value makes no sense.

  umawarden approve list
  umawarden approve 42 --for 1h";

/// Arguments of `umawarden deny`.
#[derive(Debug, Args)]
#[command(after_help = DENY_HELP)]
pub struct DenyArguments {
    /// The decision's id, from `umawarden approve list` or the log.
    #[arg(value_name = "ID")]
    decision: u64,

    /// How long it stays denied, up to 7d: 1h, 1h30m [default: 12h].
    #[arg(long = "for", value_name = "DURATION", value_parser = lasting)]
    lasts: Option<Duration>,

    /// Author and reason.
    #[command(flatten)]
    words: AttributionArguments,

    #[command(flatten)]
    daemon: DaemonArguments,
}

const DENY_HELP: &str = "\
A remedy with `require_approval: {unless_denied_within: 10m}` announces what it will do, and does \
it after that time. `umawarden deny` prevents it: that act on that target is neither done nor \
announced again before the denial lapses, or a person approves it. It also answers a remedy that \
waits for approval.

Exit codes: 0 done; 1 refused: that decision does not wait, or is denied already; 2 no daemon \
answers, this user may not give orders, or a value makes no sense.

  umawarden approve list
  umawarden deny 42 --for 2h --comment 'draining it by hand'";

/// Runs `umawarden deny`.
///
/// # Errors
/// No daemon responds, or the order fails.
pub fn deny(arguments: &DenyArguments) -> anyhow::Result<Exit> {
    let mut body = arguments.words.json();
    put_lasts(&mut body, arguments.lasts, None);
    let daemon = &arguments.daemon;
    let target = format!("/api/v1/approvals/{}", arguments.decision);
    let reply = daemon.client()?.request("DELETE", &target, Some(&body.into()))?;
    print_result(reply, daemon.json, order_result)
}

/// Runs the command.
///
/// # Errors
/// No daemon responds, or the order fails.
pub fn execute(arguments: &ApproveArguments) -> anyhow::Result<Exit> {
    if let Some(ApproveCommand::List { daemon }) = &arguments.what {
        let reply = daemon.client()?.request("GET", "/api/v1/approvals", None)?;
        let approvals = entries(reply, "approvals")?;
        list(&approvals, daemon.json, "Nothing waits for approval.", line);
        return Ok(Exit::Fine);
    }
    let mut body = arguments.words.json();
    put_lasts(&mut body, arguments.lasts, None);
    let daemon = &arguments.daemon;
    let target = format!("/api/v1/approvals/{}", arguments.decision.unwrap_or_default());
    let reply = daemon.client()?.request("POST", &target, Some(&body.into()))?;
    print_result(reply, daemon.json, order_result)
}

fn line(approval: &ApprovalStatus) -> String {
    let pending = &approval.asked;
    let answer = match (&approval.given_by, &approval.denied_by, pending.goes_ahead) {
        (Some(by), _, _) => format!(", approved by {by}"),
        (None, Some(by), _) => format!(", denied by {by}"),
        (None, None, Some(due)) => {
            let due = due.utc;
            format!(", goes ahead {} at {due:.0} unless it is denied", left(due))
        }
        (None, None, None) => String::new(),
    };
    format!(
        "{:<5} {}: {} ({} mode), lapses {} at {:.0}{answer}",
        pending.decision,
        pending.rule,
        pending.action,
        pending.mode.name(),
        left(approval.lapses),
        approval.lapses,
    )
}
