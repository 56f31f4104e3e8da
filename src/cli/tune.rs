//! `umawarden tune`.

mod node;
mod persist;
mod show;

use std::path::{Path, PathBuf};

use clap::Args;

use super::Exit;
use crate::cli::output::outln;
use crate::doctor::Misfit;
use crate::model::{Sysctl, bytes_text};
use crate::tune::{Memory, Present, Profile, Reserve, Row, choose, profiles};
use node::NodeFiles;
use persist::Persisted;

/// Arguments of `umawarden tune`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct TuneArguments {
    /// Only tell, and exit 1 where a setting is not as the profile wants it.
    #[arg(long, conflicts_with_all = ["apply", "persist"])]
    check: bool,

    /// Set what does not fit, until the next boot. Needs root.
    #[arg(long)]
    apply: bool,

    /// Write the settings to a file that is read at each boot. Needs root.
    #[arg(long)]
    persist: bool,

    /// The file that --persist writes.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/sysctl.d/90-umawarden.conf",
        requires = "persist"
    )]
    file: PathBuf,

    /// Replace the file though it is not as umawarden has written it; a copy stays beside it.
    #[arg(long, requires = "persist")]
    force: bool,

    /// Take this profile instead of the one for this node; `list` lists them.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,

    /// The share of memory that vLLM is started with.
    #[arg(long, value_name = "SHARE", default_value_t = 0.92, value_parser = share)]
    gpu_memory_utilization: f64,

    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,

    /// Where procfs is mounted.
    #[arg(long = "path.procfs", value_name = "DIR", default_value = "/proc")]
    procfs: PathBuf,

    /// Where sysfs is mounted.
    #[arg(long = "path.sysfs", value_name = "DIR", default_value = "/sys")]
    sysfs: PathBuf,
}

const AFTER_HELP: &str = "\
Compares the settings of the kernel with a profile for a node of this kind and size, and says of
each why, how surely that is known (measured, derived, default, guess), and what it costs. A value
within the profile's bounds fits and stays. What it is about is memory that the driver finds without
waiting; that memory is no longer counted as available, and vLLM refuses to start where less is
available than its --gpu-memory-utilization of all memory: tune warns where a value would bring that
about.

--apply sets what does not fit, now; --persist writes it down for each boot (systemd-sysctl reads
it), together with what fits; both together do both. A file that somebody else has written, or
changed, is replaced only with --force. While a remedy of the daemon has changed a setting for a
while, that value is compared and written down; if --apply changes it, the daemon leaves it alone.

Exit codes: 0 fine, or set; 1 with --check: something does not fit; 2 not readable, or not written.

  umawarden tune
  umawarden tune --check --json
  sudo umawarden tune --apply --persist";

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.01..=1.0).contains(share));
    share.ok_or_else(|| format!("\"{text}\" is no share of all memory; write 0.9"))
}

/// What is known of the node beside a profile.
#[derive(Debug)]
struct Comparison<'p> {
    profile: &'p Profile,
    node: crate::tune::Node,
    rows: Vec<Row<'p>>,
    warnings: Vec<String>,
}

/// What was done about it.
#[derive(Debug, Default)]
struct Done {
    applied: Vec<(Sysctl, u32)>,
    failed: Vec<String>,
    persisted: Option<Persisted>,
}

/// Compares, sets, writes down.
///
/// # Errors
/// The node cannot be read, or a file not be written.
pub fn execute(arguments: &TuneArguments) -> anyhow::Result<Exit> {
    let profiles = profiles().map_err(anyhow::Error::msg)?;
    if arguments.profile.as_deref() == Some("list") {
        show::profiles(&profiles);
        return Ok(Exit::Fine);
    }
    let files = NodeFiles { procfs: &arguments.procfs, sysfs: &arguments.sysfs };
    let compared = compare(arguments, &files, &profiles)?;
    let mut done = Done::default();
    if arguments.apply {
        apply(&files, &compared, &mut done);
    }
    if arguments.persist && done.failed.is_empty() {
        let persisted = persist::write(&arguments.file, arguments.force, &compared)?;
        done.persisted = Some(persisted);
    }
    if arguments.json {
        outln!("{}", show::json(&compared, &done));
    } else {
        show::table(&compared, &done);
    }
    let fits = compared.rows.iter().all(Row::fits);
    Ok(match (done.failed.is_empty(), arguments.check && !fits) {
        (false, _) => Exit::Unusable,
        (true, true) => Exit::Findings,
        (true, false) => Exit::Fine,
    })
}

fn compare<'p>(
    arguments: &TuneArguments,
    files: &NodeFiles<'_>,
    profiles: &'p [Profile],
) -> anyhow::Result<Comparison<'p>> {
    let (node, memory) = (files.node()?, files.memory()?);
    let profile = match &arguments.profile {
        Some(name) => profiles.iter().find(|profile| profile.name == *name).ok_or_else(|| {
            let names: Vec<&str> = profiles.iter().map(|profile| &*profile.name).collect();
            anyhow::anyhow!("there is no profile {name}; there are {}", names.join(", "))
        })?,
        None => choose(profiles, &node)
            .ok_or_else(|| anyhow::anyhow!("no profile fits this node; choose one: --profile"))?,
    };
    let reserve = profile.value(Sysctl::MinFreeKbytes).map_or(0, |kib| u64::from(kib) << 10);
    if reserve > memory.total_bytes / 4 {
        anyhow::bail!(
            "profile {} reserves {}, more than a quarter of this node's {}: choose another",
            profile.name,
            bytes_text(reserve),
            bytes_text(memory.total_bytes)
        );
    }
    let mut rows = Vec::new();
    for advice in &profile.settings {
        rows.push(Row { advice, now: files.present(advice.name)? });
    }
    let mut warnings = vllm(&rows, &memory, arguments.gpu_memory_utilization);
    if arguments.persist || arguments.check {
        warnings.extend(persist::overruled_by(&arguments.file, &rows));
    }
    Ok(Comparison { profile, node, rows, warnings })
}

/// What is not as the profile for this node wants it, and the profile's name. `None`: there is no
/// profile for this node.
pub(super) fn misfits(
    procfs: &Path,
    sysfs: &Path,
) -> anyhow::Result<Option<(String, Vec<Misfit>)>> {
    let (profiles, files) = (profiles().map_err(anyhow::Error::msg)?, NodeFiles { procfs, sysfs });
    let node = files.node()?;
    let Some(profile) = choose(&profiles, &node) else { return Ok(None) };
    let mut misfits = Vec::new();
    for advice in &profile.settings {
        let row = Row { advice, now: files.present(advice.name)? };
        if let (Present::Value(now), Some(wanted), false) = (row.now, row.wanted(), row.fits()) {
            misfits.push(Misfit { name: advice.name, now, wanted });
        }
    }
    Ok(Some((profile.name.clone(), misfits)))
}

/// Whether the settings keep vLLM from starting.
fn vllm(rows: &[Row<'_>], memory: &Memory, utilization: f64) -> Vec<String> {
    let value = |sysctl| {
        let row = rows.iter().find(|row| row.advice.name == sysctl)?;
        match row.now {
            Present::Value(now) => Some(u64::from(now)),
            Present::InBytes | Present::Missing => None,
        }
    };
    let (Some(min_free_kib), Some(scale_factor)) =
        (value(Sysctl::MinFreeKbytes), value(Sysctl::WatermarkScaleFactor))
    else {
        return Vec::new();
    };
    let now = Reserve { min_free_kib, scale_factor };
    let wanted = memory.wanted_by_vllm(utilization);
    let then = now.available_under(now.wanted(rows), memory);
    if then >= wanted || then >= memory.available_bytes {
        return Vec::new();
    }
    let already =
        if memory.available_bytes < wanted { "refuses already now, as it" } else { "then" };
    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    let share = then as f64 / memory.total_bytes as f64;
    vec![format!(
        "with these settings {} would be available, of {} now, and vLLM with \
         --gpu-memory-utilization {utilization} {already} refuses to start below {}: end what uses \
         memory first, or start it with {:.2} or less",
        bytes_text(then),
        bytes_text(memory.available_bytes),
        bytes_text(wanted),
        (share * 100.0).floor() / 100.0,
    )]
}

/// Sets everything that does not fit; what fails keeps nothing else from being set.
fn apply(files: &NodeFiles<'_>, compared: &Comparison<'_>, done: &mut Done) {
    for row in compared.rows.iter().filter(|row| !row.fits()) {
        let Some(value) = row.wanted() else { continue };
        match files.set(row.advice.name, value) {
            Ok(()) => done.applied.push((row.advice.name, value)),
            Err(error) => done.failed.push(error),
        }
    }
}
