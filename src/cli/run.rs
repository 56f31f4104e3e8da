//! `umawarden run`: the daemon.

use std::sync::Arc;

use clap::Args;

use super::{Exit, log, variables};
use crate::config::flags::RunFlags;
use crate::config::reader::{check_paths, environment, load};
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
Runs in the foreground until SIGTERM or SIGINT; SIGHUP, and POST /-/reload on the control socket, \
reload the rules. In observe mode, the default, nothing is changed: actions are logged as \"would \
act\", journalled, counted and shown on http://HOST:9942/.

  umawarden run                                   watch, export, report
  umawarden run --mode enforce                    and act
  umawarden run --rules shipped --rules my.yaml   with rules of one's own, too

Needs no privilege to start. As root it reads the kernel log and can act; missing privileges are \
logged, and the rest works.

Exit codes: 0 ended on request, 2 a setting, a file or an address cannot be used.";

/// Runs the command.
pub fn execute(arguments: RunArguments) -> anyhow::Result<Exit> {
    let flags = arguments.flags;
    let environment = environment();
    let loaded = load(&flags, &environment)?;
    check_paths(&loaded.settings.path)?;
    let log = log::begin(loaded.settings.log)?;
    for name in variables::unknown() {
        tracing::warn!(
            "the environment variable {name} is no setting: `umawarden run --help` has all"
        );
    }
    let loader = Arc::new(move || load(&flags, &environment).map_err(|error| error.to_string()));
    let ended = daemon::run(loaded, loader);
    log.end();
    ended.map(|()| Exit::Fine)
}
