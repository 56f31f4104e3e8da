//! `umawarden silence`.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use super::Exit;
use super::control::{
    AttributionArguments, DaemonArguments, entries, lasting, left, list, print_result, put_lasts,
    until,
};
use super::order_text::{order_result, selector_text};
use crate::policy::status::SilenceStatus;

/// Arguments of `umawarden silence`.
#[derive(Debug, Args)]
#[command(
    after_help = AFTER_HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    group = ArgGroup::new("which").required(true),
    group = ArgGroup::new("end").required(true)
)]
pub struct SilenceArguments {
    #[command(subcommand)]
    what: Option<SilenceCommand>,

    /// The rule: the alert's name, or group/alert.
    #[arg(value_name = "RULE", group = "which")]
    rule: Option<String>,

    /// Every rule.
    #[arg(long, group = "which")]
    all: bool,

    /// The duration, up to 366d: 2h, 1h30m.
    #[arg(long = "for", value_name = "DURATION", value_parser = lasting, group = "end")]
    lasts: Option<Duration>,

    /// The end: 2026-11-21T10:00 (UTC), RFC 3339, 10:00 (the next time it is that, UTC), or seconds
    /// since 1970.
    #[arg(long, value_name = "TIME", value_parser = until, group = "end")]
    until: Option<Timestamp>,

    /// Author and reason.
    #[command(flatten)]
    words: AttributionArguments,

    #[command(flatten)]
    daemon: DaemonArguments,
}

#[derive(Debug, Subcommand)]
enum SilenceCommand {
    /// Show silences in force.
    List {
        /// The daemon.
        #[command(flatten)]
        daemon: DaemonArguments,
    },
    /// End a silence.
    End {
        /// Its id.
        #[arg(value_name = "ID")]
        id: u64,
        /// Author and reason.
        #[command(flatten)]
        words: AttributionArguments,
        /// The daemon.
        #[command(flatten)]
        daemon: DaemonArguments,
    },
}

const AFTER_HELP: &str = "\
While a silence is in force, the remedies of its rules hold; their alerts go on, and what would \
have been done is journalled. It outlives restarts and reboots, and ends by itself.

Exit codes: 0 done; 1 refused: there is no such rule or silence, or it has ended already; 2 no \
daemon answers, this user may not give orders, or a value makes no sense.

  umawarden silence PageCacheEatsReserve --for 2h --comment 'loading by hand'
  umawarden silence --all --until 2026-11-22T06:00
  umawarden silence list
  umawarden silence end 3";

/// Runs the command.
///
/// # Errors
/// No daemon responds, or the order fails.
pub fn execute(arguments: &SilenceArguments) -> anyhow::Result<Exit> {
    match &arguments.what {
        None => make(arguments),
        Some(SilenceCommand::List { daemon }) => {
            let reply = daemon.client()?.request("GET", "/api/v1/silences", None)?;
            let silences = entries(reply, "silences")?;
            list(&silences, daemon.json, "No silence is in force.", line);
            Ok(Exit::Fine)
        }
        Some(SilenceCommand::End { id, words, daemon }) => {
            let body = words.json().into();
            let target = format!("/api/v1/silences/{id}");
            let reply = daemon.client()?.request("DELETE", &target, Some(&body))?;
            print_result(reply, daemon.json, order_result)
        }
    }
}

fn make(arguments: &SilenceArguments) -> anyhow::Result<Exit> {
    let mut body = arguments.words.json();
    match &arguments.rule {
        Some(rule) => body.insert("rule".to_owned(), json!(rule)),
        None => body.insert("rules".to_owned(), json!("all")),
    };
    put_lasts(&mut body, arguments.lasts, arguments.until);
    let daemon = &arguments.daemon;
    let reply = daemon.client()?.request("POST", "/api/v1/silences", Some(&body.into()))?;
    print_result(reply, daemon.json, order_result)
}

fn line(silence: &SilenceStatus) -> String {
    let SilenceStatus { id, rules, until, author, comment, .. } = silence;
    let rules = selector_text(rules);
    let why = if comment.is_empty() { String::new() } else { format!(": {comment}") };
    format!("{id:<5} {rules}  ends {} at {until:.0}, by {author}{why}", left(*until))
}
