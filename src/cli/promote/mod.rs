//! `umawarden promote`: which rules can be enforced, by what they would have done.

mod episode;
mod lives;
mod plan;
mod readiness;
mod show;
#[cfg(test)]
mod tests;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::{SignedDuration, Timestamp};

use super::Exit;
use super::explain::resolve;
use super::history::{no_journal, past};
use super::output;
use super::storage::{StorageArguments, may_be_read};
use crate::config::flags::LoadFlags;
use crate::config::reader::{LoadedConfig, environment, load};
use crate::journal::JournalReader;
use crate::model::{Grade, Mode, RuleId, duration};
use crate::policy::restarts;
use crate::recording::segment_files;
use episode::{Observed, Pair};
use plan::{PromotionPlan, PromotionRequest, ReadinessByGrade, RulesInForce, grades};
use readiness::{EpisodeReview, PromotionReadiness, ResultCounts, readiness, review};

/// Arguments of `umawarden promote`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct PromoteArguments {
    /// Only these rules: the alert's name, or group/alert [default: all].
    #[arg(value_name = "RULE")]
    rules: Vec<String>,

    /// From this time on: 7d or -7d (ago), 2026-11-21, 2026-11-21T10:00 (UTC), RFC 3339, 10:00 (the
    /// last time it was that, UTC), or seconds since 1970.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = past,
          allow_hyphen_values = true)]
    since: Timestamp,

    /// How long the node must have been observed before a rule is ready.
    #[arg(long, value_name = "TIME", default_value = "3d", value_parser = duration)]
    observed: std::time::Duration,

    /// Enforce the rules that are ready, in the configuration file; what changes is printed.
    #[arg(long)]
    write: bool,

    /// Also this rule, whatever its readiness is; may be repeated. What that overrides is printed.
    #[arg(long, value_name = "RULE", requires = "write")]
    force: Vec<String>,

    /// The daemon's storage and configuration.
    #[command(flatten)]
    storage: StorageArguments,

    /// The rules of the daemon, if it was started with --rules: a rule file, folder of *.yaml, or
    /// glob; may be repeated.
    #[arg(long = "rules", value_name = "PATH")]
    rule_files: Vec<PathBuf>,

    /// Name all rules and grades of which not enough was seen, however many.
    #[arg(long)]
    all: bool,

    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
For each rule and each grade of its steps (notice, evict, drop, cordon, restart, stop, reboot): \
what it would have done, to what, how much that could have freed, and what came of not doing it. \
An episode lasts from the first act until the trouble ends.

  in time          memory ran out soon after: the kernel or a daemon killed for
                   memory, the driver wedged, or the boot ended without order
  lasted           the trouble lasted more than a minute
  ended by itself  the trouble ended within a minute
  wrong            the engine that would have been stopped ran on and answered
                   for 10 minutes or more; the trouble ended without the reboot;
                   a person wanted the engine down
  unclear          the journal does not say
  too recent       it is too early to say

Readiness: ready; not enough seen, which is any doubt; would have been wrong. Ready needs 3 days \
of observation (--observed) and, for stop, restart and reboot, 2 episodes, all of them right; for \
evict, drop and cordon 3, most of them right; for notice 1, and at most 24 notices a day. In \
observe mode a remedy goes no further than its first step: enforce the grade of that, and the \
journal has the next one.

--write adds what is ready to the configuration file: `mode: enforce` of a rule, and its grades to \
`enforce` where the file has that list. Other rules that such a grade would let act observe from \
then on. Comments and the rest of the file stay. The result must pass `umawarden config check`. If \
the file cannot be changed safely, the lines are written to FILE.promote, to add by hand. Nothing \
changes before the daemon reads it again: systemctl reload umawarden.

Deferred restarts have their mode in `restarts` of the configuration, which is not changed here.

Exit codes: 0 shown, or written; 1 with --write: nothing was written, or only FILE.promote; 2 \
there is no readable journal, no such rule, or a file cannot be used or written.

  umawarden promote --since 30d
  umawarden promote MemoryCollapse
  sudo umawarden promote PageCacheEatsReserve --write
  umawarden promote --json | jq -r 'select(.readiness == \"ready\") | .rule'";

/// A rule and a grade with what is known of both.
struct Assessed {
    pair: Pair,
    counts: ResultCounts,
    reviews: Vec<EpisodeReview>,
    /// Acts that were carried out.
    acted: u64,
    readiness: PromotionReadiness,
    why: String,
    /// Whether the configuration has the rule.
    is_loaded: bool,
}

/// Shows, and writes on request.
///
/// # Errors
/// There is no readable journal or no such rule, or a file cannot be used or written.
pub fn execute(arguments: &PromoteArguments) -> anyhow::Result<Exit> {
    let dir = arguments.storage.folder()?;
    may_be_read(&dir)?;
    let flags = LoadFlags {
        config_file: arguments.storage.config_file.clone(),
        rules: arguments.rule_files.clone(),
        mode: None,
    };
    let loaded = load(&flags.clone().into(), &environment())?;
    let in_force = RulesInForce { rules: &loaded.rules, mode: loaded.settings.mode };
    let wanted = PromotionRequest {
        rules: resolved(&arguments.rules, &loaded)?,
        forced: resolved(&arguments.force, &loaded)?,
    };
    let reader = JournalReader::open(&dir).map_err(no_journal)?;
    let observed = Observed::read(&reader, arguments.since, last_recorded(&dir))?;
    let least = SignedDuration::try_from(arguments.observed)?;
    let mut assessed = assess(&observed, &in_force, least);
    let readiness = assessed.iter().map(|one| (one.pair.clone(), one.readiness)).collect();
    let plan = PromotionPlan::new(&in_force, &ReadinessByGrade(&readiness), &wanted);
    let is_shown = |rule: &RuleId| {
        wanted.rules.is_empty() && wanted.forced.is_empty()
            || wanted.rules.contains(rule)
            || wanted.forced.contains(rule)
    };
    assessed.retain(|one| is_shown(&one.pair.0));
    let remarks = remarks(&observed, &reader);
    let shown = show::PromotionView {
        observed: &observed,
        assessed: &assessed,
        plan: &plan,
        remarks: &remarks,
        is_all: arguments.all,
    };
    let mut out = output::stdout();
    let printed = if arguments.json { shown.json(&mut out) } else { shown.text(&mut out) };
    printed.and_then(|()| out.flush())?;
    if !arguments.write {
        return Ok(Exit::Fine);
    }
    if plan.changes.is_empty() {
        show::nothing(arguments.json);
        return Ok(Exit::Findings);
    }
    let packaged = environment().config_file;
    let file = write::file(&flags, packaged.as_deref())?;
    let written = write::write(&flags, &file, &plan)?;
    show::written(&written, &plan, (&assessed, &wanted), arguments.json);
    Ok(match written {
        write::WriteResult::File { .. } => Exit::Fine,
        write::WriteResult::Snippet { .. } => Exit::Findings,
    })
}

/// The rules of these names. Deferred restarts are no rules of the configuration.
fn resolved(names: &[String], loaded: &LoadedConfig) -> anyhow::Result<BTreeSet<RuleId>> {
    let all = loaded.rules.groups.iter().flat_map(|group| &group.rules).map(|rule| &rule.id);
    let one = |name: &String| match name.strip_prefix("restarts/") {
        Some(restart) => Ok(restarts::rule(&restart.into())),
        None => resolve(name, all.clone(), "are loaded"),
    };
    names.iter().map(one).collect()
}

/// When the flight recorder wrote last: until then the daemon observed the node.
fn last_recorded(dir: &Path) -> Option<Timestamp> {
    let files = segment_files(&dir.join("recording"));
    let times = files.iter().filter_map(|file| file.metadata().ok()?.modified().ok());
    times.max().and_then(|time| Timestamp::try_from(time).ok())
}

fn remarks(observed: &Observed, reader: &JournalReader) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(begins) = observed.begins {
        remarks.push(format!("the journal begins later, at {begins:.0}"));
    }
    if observed.unreadable > 0 {
        let count = observed.unreadable;
        remarks.push(format!("{count} entries of another version of umawarden are left out"));
    }
    if reader.may_lack_newest() {
        remarks.push("the journal was not closed: its newest entries may be missing".to_owned());
    }
    remarks
}

/// Each grade of each rule that acts, and each that the journal has.
fn assess(
    observed: &Observed,
    in_force: &RulesInForce<'_>,
    least: SignedDuration,
) -> Vec<Assessed> {
    let mut pairs: BTreeMap<Pair, (bool, bool)> = BTreeMap::new();
    for rule in in_force.acting() {
        for grade in grades(rule) {
            let is_enforced = in_force.carries_out(rule, grade);
            pairs.insert((rule.id.clone(), grade), (true, is_enforced));
        }
    }
    for pair in observed.episodes.keys().chain(observed.acted.keys()) {
        pairs.entry(pair.clone()).or_insert((false, false));
    }
    let first_steps: BTreeMap<&RuleId, Grade> = in_force
        .acting()
        .filter_map(|rule| Some((&rule.id, rule.remedy.as_ref()?.steps.first()?.grade())))
        .collect();
    let observes = |rule: &RuleId| {
        let mut rules = in_force.acting().filter(|acting| acting.id == *rule);
        rules.any(|rule| rule.mode.unwrap_or(in_force.mode) == Mode::Observe)
    };
    let assess = |(pair, (is_loaded, is_enforced)): (Pair, (bool, bool))| {
        let none = Vec::new();
        let episodes = observed.episodes.get(&pair).unwrap_or(&none);
        let reviews: Vec<EpisodeReview> =
            episodes.iter().map(|episode| review(&pair, episode, observed)).collect();
        let counts = ResultCounts::of(&reviews);
        let (mut readiness, mut why) = readiness(pair.1, &counts, (observed.span(), least));
        let is_later = first_steps.get(&pair.0).is_some_and(|first| *first != pair.1);
        if counts.episodes == 0 && is_later && observes(&pair.0) {
            "behind the first step, which observe mode does not go beyond".clone_into(&mut why);
        }
        if is_enforced {
            (readiness, why) = (PromotionReadiness::Enforced, String::new());
        }
        let acted = observed.acted.get(&pair).copied().unwrap_or(0);
        Assessed { counts, reviews, acted, readiness, why, is_loaded, pair }
    };
    pairs.into_iter().map(assess).collect()
}
