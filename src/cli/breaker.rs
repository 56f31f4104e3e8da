//! `umawarden breaker`.

use clap::{Args, Subcommand};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::Exit;
use super::control::{PlaceArguments, WordsArguments, entries, list, tell};
use super::order_text::told_order;
use crate::policy::status::BreakerStatus;

/// Arguments of `umawarden breaker`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct BreakerArguments {
    /// What to do.
    #[command(subcommand)]
    what: BreakerCommand,
}

/// What can be done with circuit breakers.
#[derive(Debug, Subcommand)]
enum BreakerCommand {
    /// Show remedies that have missed their aim since they last met it, and those stopped for it.
    List {
        /// Where the daemon is.
        #[command(flatten)]
        place: PlaceArguments,
    },
    /// Let a stopped remedy try again.
    Reset {
        /// Whose remedy: the alert's name, or group/alert.
        #[arg(value_name = "RULE")]
        rule: String,
        /// Why and who.
        #[command(flatten)]
        words: WordsArguments,
        /// Where the daemon is.
        #[command(flatten)]
        place: PlaceArguments,
    },
}

const AFTER_HELP: &str = "\
A remedy that misses its aim too often in a row is stopped: its circuit breaker is open. It stays so
over restarts and reboots.

Exit codes: 0 done; 1 refused: there is no such rule, or its remedy has not missed its aim; 2 no
daemon answers, or this user may not give orders.

  umawarden breaker list
  umawarden breaker reset memory/PageCacheEatsReserve --comment 'new driver'";

/// Runs the command.
///
/// # Errors
/// No daemon answers, or it cannot do it.
pub fn execute(arguments: &BreakerArguments) -> anyhow::Result<Exit> {
    match &arguments.what {
        BreakerCommand::List { place } => {
            let reply = place.client()?.ask("GET", "/api/v1/breakers", None)?;
            let breakers = entries(reply, "breakers")?;
            list(&breakers, place.json, "No remedy has missed its aim lately.", line);
            Ok(Exit::Fine)
        }
        BreakerCommand::Reset { rule, words, place } => {
            let rule = utf8_percent_encode(rule, NON_ALPHANUMERIC);
            let target = format!("/api/v1/breakers/{rule}/reset");
            let body = words.json().into();
            let reply = place.client()?.ask("POST", &target, Some(&body))?;
            tell(reply, place.json, told_order)
        }
    }
}

fn line(breaker: &BreakerStatus) -> String {
    let BreakerStatus { rule, mode, engine, misses, is_open } = breaker;
    let of = engine.as_ref().map(|engine| format!(" for engine {engine}")).unwrap_or_default();
    let state = if *is_open { "stopped" } else { "goes on" };
    let times = if *misses == 1 { "once".to_owned() } else { format!("{misses} times") };
    format!("{state:<8} {rule} ({} mode) has missed its aim {times}{of}", mode.name())
}
