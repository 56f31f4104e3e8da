//! `umawarden run`: the daemon.

use std::io::IsTerminal;
use std::sync::Arc;

use clap::Args;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::SubscriberBuilder;

use super::Exit;
use crate::config::flags::RunFlags;
use crate::config::reader::{environment, load};
use crate::config::settings::{Log, LogFormat, LogLevel};
use crate::daemon;

/// Arguments of `umawarden run`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct RunArguments {
    /// Settings.
    #[command(flatten)]
    pub flags: RunFlags,
}

const AFTER_HELP: &str = "\
Runs in the foreground until SIGTERM or SIGINT; SIGHUP and POST /-/reload read the rules again.
Nothing is touched in observe mode, the default: what would be done is logged as \"would act\",
journalled, counted and shown on http://HOST:9942/.

  umawarden run                                   watch, export, tell
  umawarden run --mode enforce                    and act
  umawarden run --rules my.yaml --log.level debug with rules of one's own

Needs no privilege to start. As root it reads the kernel log and can act; what is missing without
is said in the log, and the rest goes on.

Exit codes: 0 ended as asked, 2 a setting, a file or an address cannot be used.";

/// Runs the command.
pub fn execute(arguments: RunArguments) -> anyhow::Result<Exit> {
    let flags = arguments.flags;
    let environment = environment();
    let loaded = load(&flags, &environment)?;
    begin_log(loaded.settings.log);
    let loader = Arc::new(move || load(&flags, &environment).map_err(|error| error.to_string()));
    daemon::run(loaded, loader)?;
    Ok(Exit::Fine)
}

/// The program's own log goes to standard error.
fn begin_log(log: Log) {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let builder = SubscriberBuilder::default()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false);
    match log.format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}
