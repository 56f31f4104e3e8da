//! `umawarden lease`: waits for memory, reserves it, and becomes the command.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;

use super::Exit;
use super::gate::{
    self, GateNode, GateWait, LeaseArguments, LeaseOwner, NodeArguments, PlaceArguments,
    ProgressPrinter, WaitEnd, timeout,
};
use super::loads::need_bytes;
use crate::cli::output::errln;

/// Arguments of `umawarden lease`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct LeaseCommandArguments {
    /// Memory that the command will take, for example 60GiB.
    #[arg(long, value_name = "SIZE", value_parser = need_bytes)]
    need: u64,

    /// Where it takes memory.
    #[command(flatten)]
    places: PlaceArguments,

    #[command(flatten)]
    lease: LeaseArguments,

    /// How long to wait for memory and its turn.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = timeout)]
    timeout: Duration,

    /// Its name for others that wait [default: the program's name].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// This node and its daemon.
    #[command(flatten)]
    node: NodeArguments,

    /// The command, behind `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
Waits as `umawarden gate` does, reserves the memory, and becomes the command: same process, same \
terminal, nothing in between. Others that wait for memory see the lease (`umawarden leases`). It \
ends when the memory was taken, when the process ends, or after --lease. `umawarden launch` does \
the same and explains the command's death.

Exit codes: the command's own, or
  124  there was no memory for it in time, or never: it was not run
  126  the command cannot be executed
  127  there is no such command
    2  the arguments are wrong

  umawarden lease --need 60GiB --priority 5 -- vllm serve MODEL
  umawarden lease --need 20GiB -- python load.py";

/// As in timeout(1) and env(1).
const NO_MEMORY: u8 = 124;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs the command.
///
/// # Errors
/// The configuration cannot be used, or a thread cannot be started.
pub fn execute(arguments: &LeaseCommandArguments) -> anyhow::Result<Exit> {
    let settings = arguments.node.settings()?;
    let daemon = gate::daemon(&arguments.node, &settings);
    let mut node = GateNode::start(gate::setup(&settings, daemon))
        .context("cannot start the scan of processes")?;
    let request = arguments.places.request(arguments.need, None);
    let program = arguments.command.first().map(Path::new).and_then(Path::file_name);
    let who = arguments.name.clone().or_else(|| Some(program?.to_string_lossy().into_owned()));
    let who = who.unwrap_or_else(|| "lease".to_owned());
    let mut lease = arguments.lease.lease(&settings, &who, (&request, LeaseOwner::Own));
    let mut printer = ProgressPrinter::new(Some(arguments.timeout));
    let waiting = GateWait {
        request,
        limit: Some(arguments.timeout),
        preparer: None,
        peers: None,
        lease: lease.as_mut(),
    };
    let waited = waiting.run(&mut node, |progress| {
        printer.print(&progress);
        ControlFlow::Continue(())
    });
    printer.end();
    if waited.ended != WaitEnd::Open {
        gate::print_reasons(&waited);
        return Ok(Exit::Code(NO_MEMORY));
    }
    drop(node);
    let Some((program, words)) = arguments.command.split_first() else {
        return Ok(Exit::Unusable);
    };
    if let Some(lease) = &lease {
        lease.keep_at_exec();
    }
    let error = Command::new(program).args(words).exec();
    if let Some(lease) = &lease {
        lease.give_back();
    }
    errln!("umawarden: {}: {error}", program.to_string_lossy());
    Ok(Exit::Code(match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    }))
}
