//! `umawarden silence`.

use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use super::Exit;
use super::control::{
    PlaceArguments, WordsArguments, duration, entries, instant, left, list, put_lasts, tell,
};
use super::order_text::{selector_text, told_order};
use crate::policy::status::SilenceStatus;

/// Arguments of `umawarden silence`.
#[derive(Debug, Args)]
#[command(
    after_help = AFTER_HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct SilenceArguments {
    /// What else to do with silences.
    #[command(subcommand)]
    what: Option<SilenceCommand>,

    /// Which rule: the alert's name, or group/alert.
    #[arg(value_name = "RULE", required_unless_present = "all", conflicts_with = "all")]
    rule: Option<String>,

    /// Every rule.
    #[arg(long)]
    all: bool,

    /// For how long, as in 2h.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration,
          required_unless_present = "until", conflicts_with = "until")]
    lasts: Option<Duration>,

    /// Until when: 2026-11-21T10:00 (UTC), or RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = instant)]
    until: Option<Timestamp>,

    /// Why and who.
    #[command(flatten)]
    words: WordsArguments,

    /// Where the daemon is.
    #[command(flatten)]
    place: PlaceArguments,
}

/// What else can be done with silences.
#[derive(Debug, Subcommand)]
enum SilenceCommand {
    /// Show those in force.
    List {
        /// Where the daemon is.
        #[command(flatten)]
        place: PlaceArguments,
    },
    /// End one before its time.
    End {
        /// Its number.
        #[arg(value_name = "ID")]
        id: u64,
        /// Why and who.
        #[command(flatten)]
        words: WordsArguments,
        /// Where the daemon is.
        #[command(flatten)]
        place: PlaceArguments,
    },
}

const AFTER_HELP: &str = "\
While a silence is in force, the remedies of its rules hold; their alerts go on, and what would have
been done is journalled. It outlives restarts and reboots, and ends by itself.

Exit codes: 0 done; 1 refused: there is no such rule or silence, or it has ended already; 2 no daemon
answers, or this user may not give orders.

  umawarden silence PageCacheEatsReserve --for 2h --comment 'loading by hand'
  umawarden silence --all --until 2026-11-22T06:00
  umawarden silence list
  umawarden silence end 3";

/// Runs the command.
///
/// # Errors
/// No daemon answers, or it cannot do it.
pub fn execute(arguments: &SilenceArguments) -> anyhow::Result<Exit> {
    match &arguments.what {
        None => make(arguments),
        Some(SilenceCommand::List { place }) => {
            let reply = place.client()?.ask("GET", "/api/v1/silences", None)?;
            let silences = entries(reply, "silences")?;
            list(&silences, place.json, "No silence is in force.", line);
            Ok(Exit::Fine)
        }
        Some(SilenceCommand::End { id, words, place }) => {
            let body = words.json().into();
            let target = format!("/api/v1/silences/{id}");
            let reply = place.client()?.ask("DELETE", &target, Some(&body))?;
            tell(reply, place.json, told_order)
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
    let place = &arguments.place;
    let reply = place.client()?.ask("POST", "/api/v1/silences", Some(&body.into()))?;
    tell(reply, place.json, told_order)
}

fn line(silence: &SilenceStatus) -> String {
    let SilenceStatus { id, rules, until, author, comment, .. } = silence;
    let rules = selector_text(rules);
    let why = if comment.is_empty() { String::new() } else { format!(": {comment}") };
    format!("{id:<5} {rules}  ends {} at {until:.0}, by {author}{why}", left(*until))
}
