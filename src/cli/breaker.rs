//! `umawarden breaker`.

use clap::{Args, Subcommand};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::Exit;
use super::control::{AttributionArguments, DaemonArguments, entries, list, print_result};
use super::order_text::order_result;
use crate::policy::status::BreakerStatus;

/// Arguments of `umawarden breaker`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct BreakerArguments {
    #[command(subcommand)]
    what: BreakerCommand,
}

#[derive(Debug, Subcommand)]
enum BreakerCommand {
    /// Show remedies that have missed their aim since they last met it, and open breakers.
    List {
        /// The daemon.
        #[command(flatten)]
        daemon: DaemonArguments,
    },
    /// Reset the breaker of a remedy.
    Reset {
        /// The remedy's rule: the alert's name, or group/alert.
        #[arg(value_name = "RULE")]
        rule: String,
        /// Author and reason.
        #[command(flatten)]
        words: AttributionArguments,
        /// The daemon.
        #[command(flatten)]
        daemon: DaemonArguments,
    },
}

const AFTER_HELP: &str = "\
A remedy that misses its aim too often in a row is stopped: its circuit breaker is open. It stays \
so over restarts and reboots.

Exit codes: 0 done; 1 refused: there is no such rule, or its remedy has not missed its aim; 2 no \
daemon answers, or this user may not give orders.

  umawarden breaker list
  umawarden breaker reset memory/PageCacheEatsReserve --comment 'new driver'";

/// Runs the command.
///
/// # Errors
/// No daemon responds, or the order fails.
pub fn execute(arguments: &BreakerArguments) -> anyhow::Result<Exit> {
    match &arguments.what {
        BreakerCommand::List { daemon } => {
            let reply = daemon.client()?.request("GET", "/api/v1/breakers", None)?;
            let breakers = entries(reply, "breakers")?;
            list(&breakers, daemon.json, "No remedy has missed its aim lately.", line);
            Ok(Exit::Fine)
        }
        BreakerCommand::Reset { rule, words, daemon } => {
            let rule = utf8_percent_encode(rule, NON_ALPHANUMERIC);
            let target = format!("/api/v1/breakers/{rule}/reset");
            let body = words.json().into();
            let reply = daemon.client()?.request("POST", &target, Some(&body))?;
            print_result(reply, daemon.json, order_result)
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
