//! `umawarden leases`.

use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::Exit;
use super::gate::NodeArguments;
use super::style::fitted;
use crate::cli::output::{errln, outln};
use crate::daemon::clock;
use crate::leases::LeaseLedger;
use crate::model::{Lease, LeaseEnd, LeaseState, bytes_text, counted, seconds_text};

/// Arguments of `umawarden leases`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct LeasesArguments {
    /// End these: by the name that is shown, or by id.
    #[arg(long, value_name = "NAME")]
    end: Option<String>,

    /// One JSON object.
    #[arg(long)]
    json: bool,

    /// This node and its daemon.
    #[command(flatten)]
    node: NodeArguments,
}

const AFTER_HELP: &str = "\
Shows who has reserved memory for a start on this node, and who waits for whom. `umawarden gate`, \
`launch` and `lease` reserve what --need asks for, one start at a time (starts: {at_once: 1} in \
the configuration file). A lease ends when its memory was taken, when its process ends, or after \
its time. Needs no daemon; reads /run/umawarden/leases.json.

Exit codes: 0 shown, or ended; 1 none has that name; 2 the configuration or the ledger cannot be \
used.

  umawarden leases
  umawarden leases --end chat
  umawarden leases --json | jq '.leases[] | select(.state == \"waiting\")'";

/// Runs the command.
///
/// # Errors
/// The configuration or the ledger cannot be read.
pub fn execute(arguments: &LeasesArguments) -> anyhow::Result<Exit> {
    let settings = arguments.node.settings()?;
    let procfs = &settings.path.procfs;
    let folder = settings.starts.ledger_folder(procfs);
    let folder = folder.with_context(|| {
        format!(
            "{} is not this machine's procfs: name the folder of its leases in the configuration \
             file, starts: {{folder: …}}",
            procfs.display()
        )
    })?;
    let ledger = LeaseLedger::new(&folder, procfs);
    if let Some(name) = &arguments.end {
        return end(&ledger, name);
    }
    let mut book = ledger.read().map_err(anyhow::Error::msg)?;
    // They stay in the file until the next start removes them.
    book.end_dead(|holder| ledger.has_ended(holder));
    if arguments.json {
        let reserved: Vec<_> = book
            .reserved()
            .map(|(pool, bytes, by)| json!({"pool": pool, "bytes": bytes, "by": by}))
            .collect();
        outln!("{}", json!({"leases": book.leases(), "reserved": reserved}));
        return Ok(Exit::Fine);
    }
    if book.leases().is_empty() {
        outln!("No start waits, and none has reserved memory.");
        return Ok(Exit::Fine);
    }
    for lease in book.leases() {
        outln!("{}", fitted(&line(lease)));
    }
    for (pool, bytes, _) in book.reserved() {
        outln!("{} of {pool} are still reserved.", bytes_text(bytes));
    }
    Ok(Exit::Fine)
}

/// Ends all leases of that name, or that id.
fn end(ledger: &LeaseLedger, name: &str) -> anyhow::Result<Exit> {
    let ended = ledger.update(|book| {
        let is_its = |lease: &&Lease| *lease.request.who == *name || *lease.request.id == *name;
        let ids = book.leases().iter().filter(is_its).map(|lease| Arc::clone(&lease.request.id));
        let ids: Vec<Arc<str>> = ids.collect();
        ids.iter().filter(|id| book.end(id, LeaseEnd::Withdrawn)).count()
    });
    match ended.map_err(anyhow::Error::msg)? {
        0 => {
            errln!("umawarden: no lease is called {name}: `umawarden leases` shows all");
            Ok(Exit::Findings)
        }
        count => {
            outln!("{} ended.", counted(count as u64, "lease"));
            Ok(Exit::Fine)
        }
    }
}

fn line(lease: &Lease) -> String {
    let now = clock::uptime();
    let since = |then| seconds_text(now.saturating_sub(then));
    let need = bytes_text(lease.request.need.need_bytes);
    let who = &lease.request.who;
    let priority = match lease.request.priority {
        0 => String::new(),
        priority => format!(", priority {priority}"),
    };
    match &lease.state {
        LeaseState::Granted { at, .. } => {
            let ends = seconds_text((*at + lease.request.lasts).saturating_sub(now));
            format!("{who}: {need} granted {} ago, for at most {ends} more{priority}", since(*at))
        }
        LeaseState::Waiting { reasons, is_grantable, .. } => {
            let why = if *is_grantable { "other nodes".to_owned() } else { reasons.join("; ") };
            format!("{who}: waits for {need} since {}{priority}: {why}", since(lease.since))
        }
    }
}
