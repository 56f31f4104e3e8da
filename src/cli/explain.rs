//! `umawarden explain`.

mod journalled;
mod live;
mod recorded;
mod release;
mod sentence;
mod show;

use std::borrow::Cow;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use promql_rules::did_you_mean;

use self::journalled::OpenedJournal;
use self::recorded::Recorded;
use super::Exit;
use super::control::ControlClient;
use super::history::past;
use super::storage::{StorageArguments, may_be_read};
use crate::cli::output;
use crate::config::flags::RunFlags;
use crate::config::settings::RuleSource;
use crate::journal::StoredDecision;
use crate::model::{Mode, RuleId};
use crate::policy::explain::Explanation;
use crate::policy::rule::RuleSet;

/// Arguments of `umawarden explain`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ExplainArguments {
    /// The alert's name, or group/alert; or the number of a decision (17 or #17), which is
    /// explained by the values of its time.
    #[arg(value_name = "RULE|DECISION", required_unless_present = "release")]
    pub rule: Option<String>,

    /// Instead of a rule: how the memory of dead engines was reclaimed, of this one or of all:
    /// durations, kinds and times.
    #[arg(
        long,
        value_name = "ENGINE",
        num_args = 0..=1,
        default_missing_value = "",
        conflicts_with_all = ["rule", "recording", "rules"]
    )]
    pub release: Option<String>,

    /// At this time instead of now: 10m or -10m (ago), 2026-11-21T10:00 (UTC), RFC 3339, 10:00 (the
    /// last time it was that, UTC), or seconds since 1970.
    #[arg(long, value_name = "TIME", value_parser = past, allow_hyphen_values = true)]
    pub at: Option<Timestamp>,

    /// The daemon's storage.
    #[command(flatten)]
    pub storage: StorageArguments,

    /// Another recording, such as an incident file of another machine, instead of the daemon's.
    #[arg(long, value_name = "FILE")]
    pub recording: Option<PathBuf>,

    /// Rules for times before the recording: a rule file, folder of *.yaml, or glob; may be
    /// repeated [default: the last recorded rules, else the shipped ones].
    #[arg(long, value_name = "PATH")]
    pub rules: Vec<PathBuf>,

    /// One JSON object.
    #[arg(long)]
    pub json: bool,
}

const AFTER_HELP: &str = "\
Explains why a rule acted or did not act: the value of each part of its condition and aim, its \
state and since when, each guard rail, and its last decisions. Read-only, and usable while the \
daemon runs, which has the present values.

Without a daemon, and of another time, values come from the flight recorder, whose recording is \
replayed up to the time; it is up to five seconds behind. Earlier decisions come from the journal. \
Without a recording, the journal has the decisions and the values at their time; ranges and \
offsets are unknown then, and the rules are the current ones.

With --release only the journal is read, for the last five releases of that engine, or of all.

Exit codes: 0 explained, 2 nothing is known of that rule, engine or time.

  umawarden explain PageCacheEatsReserve
  umawarden explain MemoryRunsOutSoon --at -10m
  umawarden explain 17
  umawarden explain Low --recording INCIDENT --json | jq .sentence
  umawarden explain --release deepseek";

impl ExplainArguments {
    fn meant(&self) -> &str {
        self.rule.as_deref().unwrap_or_default()
    }

    /// Whether a running daemon has the values.
    fn is_of_now(&self) -> bool {
        self.at.is_none() && self.recording.is_none() && self.rules.is_empty()
    }
}

/// A recording that ends earlier before the requested time does not cover it.
const STALE_AFTER: SignedDuration = SignedDuration::from_secs(10);

/// The precision of times in the journal.
const MILLISECOND: SignedDuration = SignedDuration::from_millis(1);

/// Rules that are named where none has the requested name.
const MOST_NEAR: usize = 5;

/// Decisions that are printed.
const DECISIONS: usize = 5;

/// The explanation.
struct RuleReport {
    /// Its time.
    at: Timestamp,
    /// Where it comes from.
    source: ReportSource,
    explanation: Explanation,
    /// When the rule entered its state.
    since: Option<StateSince>,
    /// The newest last.
    decisions: Vec<StoredDecision>,
    /// Gaps and other remarks for the reader.
    remarks: Vec<String>,
}

/// The source of an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ReportSource {
    /// The daemon, which has the present values.
    Daemon,
    /// The flight recorder; `whole`: from the start of the process.
    Recording { whole: bool, name: String },
    /// The journal alone.
    Journal,
}

/// When a rule entered its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateSince {
    /// At this time.
    Exactly(Timestamp),
    /// At this time or earlier.
    AtLeast(Timestamp),
}

/// Runs the command.
///
/// # Errors
/// Nothing is known of the rule or the time, or the output cannot be written.
pub fn execute(arguments: &ExplainArguments) -> anyhow::Result<Exit> {
    let mut out = output::stdout();
    let written = match &arguments.release {
        Some(engine) => {
            let dir = arguments.storage.folder()?;
            may_be_read(&dir)?;
            release::write(&dir, engine, arguments.at, arguments.json, &mut out)
        }
        None => {
            let report = report(arguments)?;
            let written = match arguments.json {
                true => show::json(&report, &mut out),
                false => show::text(&report, Timestamp::now(), &mut out),
            };
            written.map_err(anyhow::Error::from)
        }
    };
    written?;
    out.flush()?;
    Ok(Exit::Fine)
}

fn report(arguments: &ExplainArguments) -> anyhow::Result<RuleReport> {
    let dir = match &arguments.recording {
        Some(_) => PathBuf::new(),
        None => arguments.storage.folder()?,
    };
    may_be_read(&dir)?;
    let journal = match &arguments.recording {
        // It may come from another machine.
        Some(_) => OpenedJournal::none(),
        None => OpenedJournal::open(&dir),
    };
    let of_decision = of_decision(arguments, &journal)?;
    let arguments = of_decision.as_ref().unwrap_or(arguments);
    if arguments.is_of_now() {
        let settings = arguments.storage.settings(RunFlags::default())?;
        let client = ControlClient::new(&settings.web.control_socket);
        if let Some(report) = live::explain(&client, &dir, arguments.meant(), &journal) {
            return Ok(report);
        }
    }
    let found = match &arguments.recording {
        Some(path) => recorded::of_file(path, arguments.at, &journal)?,
        None => recorded::of_storage(&dir, arguments.at, &journal)?,
    };
    match found {
        Some(recorded) => from_recording(arguments, recorded, &journal),
        None => {
            from_journal(arguments, &dir, &journal).map_err(|error| match arguments.recording {
                Some(_) => anyhow::anyhow!("the recording does not cover that time"),
                None => error,
            })
        }
    }
}

/// The arguments with rule and time of the decision whose number was given instead of a rule.
fn of_decision(
    arguments: &ExplainArguments,
    journal: &OpenedJournal,
) -> anyhow::Result<Option<ExplainArguments>> {
    let number = arguments.meant().trim_start_matches('#').parse();
    let (Ok(number), None) = (number, &arguments.recording) else { return Ok(None) };
    anyhow::ensure!(arguments.at.is_none(), "a decision has its time: leave out --at");
    let Some(found) = journal.decision(number) else {
        anyhow::bail!(
            "decision {number} is not in the journal: `umawarden history --kind decision` lists \
             the numbers"
        );
    };
    // The recording may be finer than the journal.
    let at = found.at.utc.checked_add(MILLISECOND).unwrap_or(found.at.utc);
    let rule = Some(found.rule.to_string());
    Ok(Some(ExplainArguments { rule, at: Some(at), ..arguments.clone() }))
}

fn from_recording(
    arguments: &ExplainArguments,
    recorded: Recorded,
    journal: &OpenedJournal,
) -> anyhow::Result<RuleReport> {
    let rules = recorded.rules();
    let rule =
        resolve(arguments.meant(), rules.iter().map(|status| &status.rule), "were in force")?;
    let explanation = recorded
        .explain(&rule)
        .ok_or_else(|| anyhow::anyhow!("rule {rule} was not evaluated by then"))?;
    let mut remarks = recorded.remarks(arguments.at, Timestamp::now());
    let mut decisions = journal.decisions(&rule, recorded.at(), DECISIONS);
    if decisions.is_empty() {
        decisions = recorded.decisions(&rule, DECISIONS);
        remarks.extend(journal.remark());
    }
    let state = explanation.rule.state.name();
    let before = || {
        let changed = journal.last_change(&rule, recorded.begin())?;
        (changed.to.name() == state).then_some(StateSince::Exactly(changed.at.utc))
    };
    let since = recorded.since(&rule).or_else(before);
    let since = since.unwrap_or(StateSince::AtLeast(recorded.begin()));
    Ok(RuleReport {
        at: recorded.at(),
        source: ReportSource::Recording {
            whole: recorded.is_whole(),
            name: recorded.name().to_owned(),
        },
        explanation,
        since: Some(since),
        decisions,
        remarks,
    })
}

fn from_journal(
    arguments: &ExplainArguments,
    dir: &Path,
    journal: &OpenedJournal,
) -> anyhow::Result<RuleReport> {
    let until = arguments.at.unwrap_or_else(Timestamp::now);
    let kept = recorded::kept(dir);
    journal.readable(kept.is_some())?;
    let (rules, where_from) = match (arguments.rules.as_slice(), &kept) {
        ([], Some((_, recorded))) => (recorded::parsed(recorded)?, "were recorded last"),
        ([], None) => {
            let rules = journalled::rules(&RuleSource::shipped())?;
            (rules, "are inside the binary, since none are recorded; name others by --rules")
        }
        (paths, _) => {
            let rules = journalled::rules(&RuleSource::given(paths))?;
            (rules, "are in the given files")
        }
    };
    let ids = rules.groups.iter().flat_map(|group| &group.rules).map(|rule| &rule.id);
    let rule = resolve(arguments.meant(), ids, where_from)?;
    let begins = kept.map_or_else(
        || "there is no recording".to_owned(),
        |(begin, _)| {
            format!("nothing is recorded of that time, the recording begins at {begin:.3}")
        },
    );
    journal.explain(&rules, &rule, until, &begins).map_err(|error| match arguments.at {
        Some(_) => anyhow::anyhow!("{error:#}; without --at it explains the present"),
        None => error,
    })
}

/// The rules and the mode at the end of the daemon's recording.
pub(super) fn rules_recorded_last(dir: &Path) -> anyhow::Result<Option<(RuleSet, Mode)>> {
    let Some((_, recorded)) = recorded::kept(dir) else { return Ok(None) };
    Ok(Some((recorded::parsed(&recorded)?, recorded.mode)))
}

/// Finds the rule of the argument.
pub(super) fn resolve<'r>(
    name: &str,
    rules: impl Iterator<Item = &'r RuleId>,
    where_from: &str,
) -> anyhow::Result<RuleId> {
    let all: Vec<&RuleId> = rules.collect();
    let is_meant = |rule: &&&RuleId| *rule.alert == *name || rule.to_string() == name;
    let meant: Vec<&&RuleId> = all.iter().filter(is_meant).collect();
    match meant.as_slice() {
        [only] => return Ok((**only).clone()),
        [] => {}
        several => {
            let names: Vec<String> = several.iter().map(ToString::to_string).collect();
            anyhow::bail!("{name} is ambiguous: give {}", names.join(" or "));
        }
    }
    if let Some(rest) = name.strip_prefix(crate::policy::restarts::GROUP)
        && let Some(restart) = rest.strip_prefix('/')
    {
        anyhow::bail!(
            "deferred restarts have no condition: `umawarden engines` shows the state of \
             {restart}, and `umawarden history` its decisions"
        );
    }
    let alerts = all.iter().map(|rule| &*rule.alert);
    let full: Vec<String> = all.iter().map(ToString::to_string).collect();
    let hint = did_you_mean(name, alerts.clone())
        .or_else(|| did_you_mean(name, full.iter().map(String::as_str)));
    let hint = match hint {
        Some(hint) => Cow::Owned(hint),
        None if all.is_empty() => Cow::Borrowed("there are none"),
        None => Cow::Owned(near(name, alerts.collect())),
    };
    anyhow::bail!("no rule \"{name}\" among those that {where_from} ({hint})")
}

/// The rules whose names have most in common with this one.
fn near(name: &str, mut alerts: Vec<&str>) -> String {
    let count = alerts.len();
    alerts.sort_by_key(|alert| std::cmp::Reverse(common(name, alert)));
    alerts.truncate(MOST_NEAR);
    match count.saturating_sub(MOST_NEAR) {
        0 => format!("there are {}", alerts.join(", ")),
        more => {
            format!("near are {}; `umawarden rules print` has {more} more", alerts.join(", "))
        }
    }
}

/// The length of the longest text that both have.
fn common(one: &str, other: &str) -> usize {
    let other = other.to_lowercase();
    let letters: Vec<char> = one.to_lowercase().chars().take(64).collect();
    let has = |length: &usize| {
        letters.windows(*length).any(|part| other.contains(&part.iter().collect::<String>()))
    };
    (1..=letters.len()).take_while(has).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_rule_has_a_few_near_ones() {
        let names = ["MemoryLow", "SwapIsOn", "PageCacheEatsReserve", "GpuHangs", "A", "B", "C"];
        let rules: Vec<RuleId> =
            names.map(|alert| RuleId { group: "g".into(), alert: alert.into() }).into();
        let of = |name: &str, count: usize| {
            resolve(name, rules.iter().take(count), "are loaded").unwrap_err().to_string()
        };
        let near = of("cache", 7);
        assert!(near.contains("near are PageCacheEatsReserve, "), "{near}");
        assert!(near.ends_with("`umawarden rules print` has 2 more)"), "{near}");
        assert!(of("xyz", 2).ends_with("(there are MemoryLow, SwapIsOn)"));
        assert!(of("MemoryLov", 7).contains("did you mean \"MemoryLow\"?"));
    }
}
