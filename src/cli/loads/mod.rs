//! `umawarden loads`.

mod auto;
mod compare;
mod read;
mod show;

use clap::Args;

use super::Exit;
use super::history::no_journal;
use super::storage::{StorageArguments, may_be_read};
use crate::cli::output::{errln, outln};
use crate::journal::JournalReader;
use crate::model::printable;

pub(crate) use auto::{MemoryNeed, expected, need_bytes};
use read::newest;

/// Arguments of `umawarden loads`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct LoadsArguments {
    /// Only the loads of this engine.
    #[arg(value_name = "NAME", conflicts_with = "compare")]
    name: Option<String>,

    /// Compare two loads: each by its number, the beginning of its fingerprint, or its engine's
    /// name (the newest of these).
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    compare: Vec<String>,

    /// Only the newest N loads; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "compare")]
    limit: usize,

    /// One JSON object a line.
    #[arg(long)]
    json: bool,

    /// The daemon's storage.
    #[command(flatten)]
    storage: StorageArguments,
}

const AFTER_HELP: &str = "\
Shows what each start of an inference engine took, the newest first, from the daemon's journal; \
the daemon need not run. A load is recorded a minute after its engine was ready, or when it died.

  NUMBER       the number of the event in the journal, for --compare
  READY        time from the start of its server until it was ready
  TOOK         memory when it was ready: growth of memory that no counter names
               and of shared memory, and anonymous memory of its processes
  PEAK         the most that it had until then; a start needs that much, too
  GROWTH       growth in the minute after it was ready
  LOWEST FREE  the lowest MemFree of the node meanwhile; page cache lowers it
  STALLS       allocations of the node meanwhile that had to reclaim memory
  READ         bytes that it read from storage until it was ready
  RELEASE      how its memory came back when it ended, if it has

Unknown amounts are \"-\"; --json and `umawarden history --kind engine_load` say why. If another \
engine starts or ends meanwhile, what each takes cannot be distinguished.

Equal fingerprints mean equal kind, name, image, model, kernel, driver and arguments. Secrets in \
arguments are not stored.

Exit codes: 0 shown, also when there is nothing to show; 2 there is no readable journal, or no \
such load.

Examples:
  umawarden loads                               the last twenty
  umawarden loads qwen --limit 5                of one engine
  umawarden loads --compare 341 398             what has changed between two
  umawarden loads --json | jq -r '[.engine, .ready_bytes, .growth_bytes] | @tsv'
  umawarden gate --need auto --like qwen        wait for what it took before";

/// Runs the command.
///
/// # Errors
/// The journal cannot be read, or has no such load.
pub fn execute(arguments: &LoadsArguments) -> anyhow::Result<Exit> {
    let dir = arguments.storage.folder()?;
    may_be_read(&dir)?;
    let reader = JournalReader::open(&dir).map_err(no_journal)?;
    if let [one, other] = arguments.compare.as_slice() {
        let found = newest(&reader)?;
        let (one, other) = (read::find(&found, one)?, read::find(&found, other)?);
        match arguments.json {
            true => outln!("{}", compare::json(one, other)),
            false => outln!("{}", compare::text(one, other).trim_end()),
        }
        return Ok(Exit::Fine);
    }
    let mut found = newest(&reader)?;
    let is_any = !found.is_empty();
    if let Some(name) = &arguments.name {
        found.retain(|load| load.engine == *name);
    }
    if arguments.limit > 0 {
        found.truncate(arguments.limit);
    }
    if found.is_empty() {
        let of = arguments.name.as_ref().map(|name| format!(" of {}", printable(name)));
        errln!(
            "The journal in {} has no load{} yet: one is recorded a minute after an engine was \
             ready while `umawarden run` watches{}",
            dir.display(),
            of.unwrap_or_default(),
            if is_any { "; without NAME those of other engines are shown." } else { "." }
        );
    } else if arguments.json {
        for load in &found {
            outln!("{}", load.json());
        }
    } else {
        outln!("{}", show::table(&found).trim_end());
    }
    Ok(Exit::Fine)
}
