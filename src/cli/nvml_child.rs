//! `umawarden nvml-child`: the process that queries the NVIDIA driver for the daemon.

use std::fs;
use std::io::{BufReader, stdin};
use std::path::PathBuf;

use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_name, set_no_new_privs,
};

use super::Exit;
use crate::nvml;
use crate::sys::descriptors::close_inherited_descriptors;

/// Arguments of `umawarden nvml-child`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct NvmlChildArguments {
    /// The library to load, instead of libnvidia-ml.so.1 where the loader finds it.
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
`umawarden run` starts it. It reads a request a line, {\"version\":1,\"number\":1}, and writes a \
response a line. It ends with its input, with its parent, or if the driver is unavailable:

  echo '{\"version\":1,\"number\":1}' | umawarden nvml-child

Exit codes: 0 ended, 2 a request cannot be read, or a response cannot be written.";

/// The driver requires it to list the processes of all MIG instances.
const KEPT: CapabilitySet = CapabilitySet::SYS_ADMIN;

/// Runs the command.
pub fn execute(arguments: &NvmlChildArguments) -> anyhow::Result<Exit> {
    close_inherited_descriptors();
    give_up_what_was_inherited();
    // The library may print, which must not mix with responses.
    let answers = rustix::io::dup(rustix::stdio::stdout())?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    let questions = BufReader::new(stdin().lock());
    nvml::serve(arguments.library.as_deref(), questions, fs::File::from(answers))?;
    Ok(Exit::Fine)
}

/// Drops privileges and OOM protection that the daemon has and this process does not need: it may
/// be killed first, and runs a foreign library. Failures are ignored.
fn give_up_what_was_inherited() {
    let named = set_name(c"umawarden-nvml");
    // Without the parent nobody reads the responses.
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    let scored = fs::write("/proc/self/oom_score_adj", "0");
    let bound = CapabilitySet::all()
        .difference(KEPT)
        .iter()
        .try_for_each(remove_capability_from_bounding_set);
    let ambient = clear_ambient_capability_set();
    let own = rustix::thread::capabilities(None).and_then(|own| {
        let kept = own.permitted & KEPT;
        let sets = CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets)
    });
    let no_new = set_no_new_privs(true);
    // Each is one of several measures; nothing depends on one.
    drop((named, tied, scored, bound, ambient, own, no_new));
}
