//! `umawarden tune`.

mod node;
mod persist;
mod show;

use std::path::{Path, PathBuf};

use clap::Args;

use super::Exit;
use crate::cli::gate::may_have_own_memory;
use crate::cli::output::outln;
use crate::doctor::{Misfit, ProfileMisfits};
use crate::engines::{ENGINES, EngineFacts, ShareOf};
use crate::model::{Sysctl, bytes_text};
use crate::tune::{
    CurrentMemory, HugePages, Profile, Reserve, SettingRow, SettingState, choose, profiles,
};
use node::NodeFiles;
use persist::PersistedSettings;

/// The share of memory that vLLM takes by default.
const SHARE: f64 = 0.92;

/// Arguments of `umawarden tune`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct TuneArguments {
    /// Only report, and exit 1 if a setting differs from the profile.
    #[arg(long, conflicts_with_all = ["apply", "persist"])]
    check: bool,

    /// Set what differs, until the next boot. Needs root.
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

    /// Replace the file even if umawarden did not write it; a backup is kept.
    #[arg(long, requires = "persist")]
    force: bool,

    /// Use this profile instead of the one for this node; `list` prints them.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,

    /// The share of memory that vLLM is started with.
    #[arg(long, value_name = "SHARE", default_value_t = SHARE, value_parser = share)]
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
Compares the kernel's settings with a profile for a node of this kind and size, and gives for each \
the reason, its certainty (measured, derived, default, guess) and its cost. A value within the \
profile's bounds is kept. The profile reserves memory that the driver gets without waiting. That \
memory is not available, and vLLM refuses to start if less is available than its share of all \
memory (--gpu-memory-utilization): tune warns about such values, where CPU and GPU share memory.

--apply sets what differs now; --persist writes the settings to a file for each boot \
(systemd-sysctl reads it); both may be combined. A file that umawarden did not write, or that was \
changed, is replaced only with --force. While a remedy of the daemon has changed a setting \
temporarily, that value is compared, and may be written; if --apply changes it, the daemon keeps \
the new value.

Exit codes: 0 done; 1 with --check: something differs; 2 a file cannot be read or written.

  umawarden tune
  umawarden tune --check --json
  sudo umawarden tune --apply --persist";

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.01..=1.0).contains(share));
    share.ok_or_else(|| format!("\"{text}\" is no share of all memory; write 0.9"))
}

/// The node compared with a profile.
#[derive(Debug)]
struct ProfileComparison<'p> {
    profile: &'p Profile,
    node: crate::tune::TuneNode,
    rows: Vec<SettingRow<'p>>,
    warnings: Vec<String>,
}

/// What was changed.
#[derive(Debug, Default)]
struct AppliedProfile {
    applied: Vec<(Sysctl, u32)>,
    failed: Vec<String>,
    persisted: Option<PersistedSettings>,
}

/// Compares, sets and writes the settings.
///
/// # Errors
/// The node cannot be read, or a file cannot be written.
pub fn execute(arguments: &TuneArguments) -> anyhow::Result<Exit> {
    let profiles = profiles().map_err(anyhow::Error::msg)?;
    if arguments.profile.as_deref() == Some("list") {
        show::profiles(&profiles, arguments.json);
        return Ok(Exit::Fine);
    }
    let files = NodeFiles { procfs: &arguments.procfs, sysfs: &arguments.sysfs };
    let compared = compare(arguments, &files, &profiles)?;
    let mut done = AppliedProfile::default();
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
    let fits = compared.rows.iter().all(SettingRow::fits);
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
) -> anyhow::Result<ProfileComparison<'p>> {
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
    let huge_pages = files.huge_pages(&memory);
    let mut rows = Vec::new();
    for advice in &profile.settings {
        rows.push(SettingRow::new(advice, files.present(advice.name)?, huge_pages));
    }
    let mut warnings = raised(&rows, huge_pages);
    warnings.extend(refused_starts(files, &rows, &memory, arguments.gpu_memory_utilization));
    if arguments.persist || arguments.check {
        warnings.extend(persist::overruled_by(&arguments.file, &rows));
    }
    Ok(ProfileComparison { profile, node, rows, warnings })
}

/// The settings that differ from the profile for this node. `None`: no profile is for this node.
pub(super) fn misfits(procfs: &Path, sysfs: &Path) -> anyhow::Result<Option<ProfileMisfits>> {
    let (profiles, files) = (profiles().map_err(anyhow::Error::msg)?, NodeFiles { procfs, sysfs });
    let (node, memory) = (files.node()?, files.memory()?);
    let Some(profile) = choose(&profiles, &node) else { return Ok(None) };
    let huge_pages = files.huge_pages(&memory);
    let mut rows = Vec::new();
    for advice in &profile.settings {
        rows.push(SettingRow::new(advice, files.present(advice.name)?, huge_pages));
    }
    let misfit = |row: &SettingRow<'_>| match (row.now, row.wanted(), row.fits()) {
        (SettingState::Value(now), Some(wanted), false) => {
            Some(Misfit { name: row.advice.name, now, wanted })
        }
        _ => None,
    };
    let misfits = rows.iter().filter_map(misfit).collect();
    let costs = refused_starts(&files, &rows, &memory, SHARE);
    Ok(Some(ProfileMisfits { profile: profile.name.clone(), misfits, costs }))
}

/// Warnings about engines that these settings prevent from starting.
fn refused_starts(
    files: &NodeFiles<'_>,
    rows: &[SettingRow<'_>],
    memory: &CurrentMemory,
    share: f64,
) -> Vec<String> {
    // Where a GPU has memory of its own, the share is of that.
    if may_have_own_memory(files.procfs, files.sysfs) {
        return Vec::new();
    }
    let sharing = ENGINES.iter().filter(|facts| facts.takes_share_of(ShareOf::AllMemory));
    sharing.filter_map(|facts| refused_start(facts, rows, memory, share)).collect()
}

/// Values that do not last.
fn raised(rows: &[SettingRow<'_>], huge_pages: Option<HugePages>) -> Vec<String> {
    let text = |row: &SettingRow<'_>| {
        let (floor, pages) = (row.raised_to()?, huge_pages?);
        Some(format!(
            "the kernel raises {} to {floor} ({}) when transparent huge pages (of {} here) are \
             switched, or memory comes online: a lower value lasts only with \
             transparent_hugepage=never on the kernel's command line",
            row.advice.name,
            bytes_text(u64::from(floor) << 10),
            bytes_text(pages.bytes),
        ))
    };
    rows.iter().filter_map(text).collect()
}

/// Warns if the settings prevent an engine that takes a share of all memory from starting.
fn refused_start(
    engine: &EngineFacts,
    rows: &[SettingRow<'_>],
    memory: &CurrentMemory,
    share: f64,
) -> Option<String> {
    let value = |sysctl| {
        let row = rows.iter().find(|row| row.advice.name == sysctl)?;
        match row.now {
            SettingState::Value(now) => Some(u64::from(now)),
            SettingState::InBytes | SettingState::Missing => None,
        }
    };
    let now = Reserve {
        min_free_kib: value(Sysctl::MinFreeKbytes)?,
        scale_factor: value(Sysctl::WatermarkScaleFactor)?,
    };
    let wanted = memory.share_bytes(share);
    let then = now.available_under(now.wanted(rows), memory);
    if then >= wanted || then >= memory.available_bytes {
        return None;
    }
    let already =
        if memory.available_bytes < wanted { "refuses already now, as it" } else { "then" };
    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    let possible = then as f64 / memory.total_bytes as f64;
    Some(format!(
        "with these settings {} would be available, of {} now, and {} with {} {share} {already} \
         refuses to start below {}: end what uses memory first, or start it with {:.2} or less",
        bytes_text(then),
        bytes_text(memory.available_bytes),
        engine.display_name(),
        engine.share_option(),
        bytes_text(wanted),
        (possible * 100.0).floor() / 100.0,
    ))
}

/// Sets everything that differs. An error of one does not stop the others.
fn apply(files: &NodeFiles<'_>, compared: &ProfileComparison<'_>, done: &mut AppliedProfile) {
    for row in compared.rows.iter().filter(|row| !row.fits()) {
        let Some(value) = row.wanted() else { continue };
        match files.set(row.advice.name, value) {
            Ok(()) => done.applied.push((row.advice.name, value)),
            Err(error) => done.failed.push(error),
        }
    }
}
