//! `umawarden rules report`: how often rules would have acted, before they are enforced.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::count;
use crate::cli::Exit;
use crate::cli::explain::rules_recorded_last;
use crate::cli::history::{no_journal, number_text, past, printable};
use crate::cli::output;
use crate::cli::storage::{StorageArguments, may_be_read};
use crate::config::reader::load_rules;
use crate::config::settings::{RuleSource, limits};
use crate::journal::{JournalReader, TimelineItem, TimelineQuery};
use crate::model::{
    AlertChange, AlertState, Decision, DecisionRecord, HoldReason, Mode, Outcome, OutcomeResult,
    Reading, RuleId,
};
use crate::policy::rule::RuleSet;

/// A condition that ended within this time ended by itself.
const SOON: SignedDuration = SignedDuration::from_secs(60);

/// Series whose values are printed; `--json` has all.
const MOST_SERIES: usize = 8;

/// Arguments of `umawarden rules report`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ReportArguments {
    /// From this time on: 7d or -7d (ago), 2026-11-21, 2026-11-21T10:00 (UTC), RFC 3339, 10:00 (the
    /// last time it was that, UTC), or seconds since 1970.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = past,
          allow_hyphen_values = true)]
    since: Timestamp,

    /// The daemon's storage.
    #[command(flatten)]
    storage: StorageArguments,

    /// Rules that might have fired: a rule file, folder of *.yaml, or glob; may be repeated
    /// [default: the last recorded rules, else the shipped ones].
    #[arg(long, value_name = "PATH")]
    rules: Vec<PathBuf>,

    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
For each rule: how often its alerts fired, how often it acted or, in observe mode, would have acted,
how often it held and why, and the values of its series when it acted or would have. In observe mode
nothing is done: a condition that ended within a minute ended by itself, and if most do, there is
little to remedy. Rules that would have acted come first.

Of a flapping alert the journal has samples only: the count is a lower bound.

To let one rule act, write `mode: enforce` into it; for all, `umawarden run --mode enforce`.

Exit codes: 0 fine, also when nothing has fired; 2 there is no readable journal, or no rules.

  umawarden rules report --since 30d
  umawarden rules report --json | jq 'select(.would_act > 0) | .rule'";

/// Runs the command.
pub(super) fn execute(arguments: &ReportArguments) -> anyhow::Result<Exit> {
    let dir = arguments.storage.folder()?;
    may_be_read(&dir)?;
    let reader = JournalReader::open(&dir).map_err(no_journal)?;
    let (rules, mode, origin) = rules(arguments, &dir)?;
    let mut report = Report::new(arguments.since, Timestamp::now(), &rules, mode, origin);
    report.read(&reader)?;
    if reader.may_lack_newest() {
        let remark = "the journal was not closed: its newest entries may be missing";
        report.remarks.push(remark.to_owned());
    }
    let mut out = output::stdout();
    let written = if arguments.json { report.json(&mut out) } else { report.text(&mut out) };
    written.and_then(|()| out.flush())?;
    Ok(Exit::Fine)
}

/// The rules, the node's mode if known, and their source.
fn rules(
    arguments: &ReportArguments,
    dir: &Path,
) -> anyhow::Result<(RuleSet, Option<Mode>, &'static str)> {
    let recorded = rules_recorded_last(dir)?;
    let mode = recorded.as_ref().map(|(_, mode)| *mode);
    match (arguments.rules.as_slice(), recorded) {
        ([], Some((rules, _))) => Ok((rules, mode, "recorded last")),
        ([], None) => {
            let (rules, _) = load_rules(&RuleSource::shipped(), limits::DEFAULT_INTERVAL)?;
            Ok((rules, mode, "inside the binary"))
        }
        (paths, _) => {
            let source = RuleSource::given(paths);
            let (rules, _) = load_rules(&source, limits::DEFAULT_INTERVAL)?;
            Ok((rules, mode, "given"))
        }
    }
}

/// The report of all rules.
struct Report {
    since: Timestamp,
    until: Timestamp,
    /// The time of the first entry, if it is later than `since`.
    begins: Option<Timestamp>,
    origin: &'static str,
    rules: BTreeMap<RuleId, Tally>,
    unreadable: u64,
    remarks: Vec<String>,
}

/// The report of one rule.
#[derive(Default)]
struct Tally {
    /// Its current mode. `None` if unknown.
    mode: Option<Mode>,
    /// Whether it is among the current rules.
    is_loaded: bool,
    has_remedy: bool,
    fired: u64,
    would_act: u64,
    acted: u64,
    held: BTreeMap<HoldReason, u64>,
    /// Decisions to act that were not begun.
    not_done: u64,
    failed: u64,
    aim: Aim,
    /// How often it would have acted and its condition ended soon by itself.
    by_itself: u64,
    /// When it would have acted and its condition has not ended since.
    open: Vec<Timestamp>,
    values: BTreeMap<String, Vec<f64>>,
    last: Option<Timestamp>,
}

/// Assessments after acts.
#[derive(Clone, Copy, Default, Serialize)]
struct Aim {
    met: u64,
    missed: u64,
    unknown: u64,
}

impl Report {
    fn new(
        since: Timestamp,
        until: Timestamp,
        rules: &RuleSet,
        mode: Option<Mode>,
        origin: &'static str,
    ) -> Self {
        let all = rules.groups.iter().flat_map(|group| &group.rules);
        let tallies = all.map(|rule| {
            let tally = Tally {
                mode: rule.mode.or(mode),
                is_loaded: true,
                has_remedy: rule.remedy.is_some(),
                ..Tally::default()
            };
            (rule.id.clone(), tally)
        });
        Self {
            since,
            until,
            begins: None,
            origin,
            rules: tallies.collect(),
            unreadable: 0,
            remarks: Vec::new(),
        }
    }

    fn read(&mut self, reader: &JournalReader) -> anyhow::Result<()> {
        let mut first = None;
        reader
            .timeline(&TimelineQuery::default(), |time, _| {
                first = Some(time);
                false
            })
            .map_err(no_journal)?;
        self.begins = first.filter(|first| *first > self.since);
        let query = TimelineQuery {
            since: Some(self.since),
            kinds: ["alert", "decision", "outcome"].map(str::to_owned).to_vec(),
            ..TimelineQuery::default()
        };
        let read = reader.timeline(&query, |_, item| {
            self.take(&item);
            true
        });
        read.map_err(no_journal)?;
        if self.unreadable > 0 {
            self.remarks.push(format!(
                "{} were written by another version and are left out",
                count(usize::try_from(self.unreadable).unwrap_or(usize::MAX), "entry")
            ));
        }
        Ok(())
    }

    fn take(&mut self, item: &TimelineItem) {
        match item {
            TimelineItem::Alert(change) => self.of(&change.rule).alert(change),
            TimelineItem::Decision(decision) => self.of(&decision.rule).decision(decision),
            TimelineItem::Outcome { outcome, decision: Some(decision), aim_check } => {
                let aim = aim_check.as_ref().map(|aim_check| aim_check.aim_met);
                self.of(&decision.rule).outcome(outcome, aim);
            }
            TimelineItem::Unreadable => self.unreadable += 1,
            TimelineItem::Outcome { .. }
            | TimelineItem::Event(_)
            | TimelineItem::Operator(_)
            | TimelineItem::Note(_) => {}
        }
    }

    fn of(&mut self, rule: &RuleId) -> &mut Tally {
        self.rules.entry(rule.clone()).or_default()
    }

    /// Rules by acts that they would have done, acts, holds and firings; then by name.
    fn sorted(&self) -> Vec<(&RuleId, &Tally)> {
        let mut sorted: Vec<(&RuleId, &Tally)> = self.rules.iter().collect();
        sorted.sort_by_key(|(_, tally)| {
            let held: u64 = tally.held.values().sum();
            std::cmp::Reverse((tally.would_act, tally.acted, held, tally.fired))
        });
        sorted
    }

    fn text(&self, out: &mut impl Write) -> io::Result<()> {
        let (mut quiet, mut busy) = (Vec::new(), Vec::new());
        for (rule, tally) in self.sorted() {
            if tally.is_quiet() { quiet.push(rule) } else { busy.push((rule, tally)) }
        }
        let (since, until) = (self.since, self.until);
        writeln!(out, "From {since:.0} to {until:.0}, rules {}.", self.origin)?;
        if let Some(begins) = self.begins {
            writeln!(out, "# the journal begins later, at {begins:.0}")?;
        }
        for remark in &self.remarks {
            writeln!(out, "# {}", printable(remark))?;
        }
        if !busy.is_empty() {
            let names = busy.iter().map(|(rule, _)| rule.to_string().chars().count());
            let width = names.max().unwrap_or(0).max(4);
            let head = format!(
                "{:<width$}  {:<7}  {:>6}  {:>10}  {:>6}  {:>6}  {:>14}",
                "rule", "mode", "fired", "would act", "acted", "held", "ended by itself"
            );
            writeln!(out, "\n{head}")?;
            for (rule, tally) in busy {
                tally.text(rule, width, self.until, out)?;
            }
        }
        if !quiet.is_empty() {
            writeln!(out, "\nnever fired:")?;
            for rule in quiet {
                writeln!(out, "  {}", printable(&rule.to_string()))?;
            }
        }
        Ok(())
    }

    fn json(&self, out: &mut impl Write) -> io::Result<()> {
        let head = Head {
            kind: "report",
            since: self.since,
            until: self.until,
            journal_begins: self.begins,
            rules: self.origin,
            remarks: &self.remarks,
        };
        serde_json::to_writer(&mut *out, &head)?;
        writeln!(out)?;
        for (rule, tally) in self.sorted() {
            serde_json::to_writer(&mut *out, &tally.line(rule, self.until))?;
            writeln!(out)?;
        }
        Ok(())
    }
}

/// The first line of `--json`.
#[derive(Serialize)]
struct Head<'a> {
    kind: &'static str,
    since: Timestamp,
    until: Timestamp,
    journal_begins: Option<Timestamp>,
    rules: &'static str,
    remarks: &'a [String],
}

/// A rule's line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    kind: &'static str,
    rule: String,
    mode: Option<Mode>,
    is_loaded: bool,
    has_remedy: bool,
    fired: u64,
    would_act: u64,
    ended_by_itself: u64,
    too_recent: usize,
    acted: u64,
    not_done: u64,
    failed: u64,
    aim: Aim,
    held: BTreeMap<&'static str, u64>,
    last_decision: Option<Timestamp>,
    values: Vec<Spread<'a>>,
}

/// The values of one series when the rule (would have) acted.
#[derive(Serialize)]
struct Spread<'a> {
    series: &'a str,
    least: f64,
    median: f64,
    greatest: f64,
}

impl<'a> Spread<'a> {
    fn of(series: &'a str, values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, greatest) = (*sorted.first()?, *sorted.last()?);
        let middle = [(sorted.len() - 1) / 2, sorted.len() / 2].map(|index| sorted[index]);
        let median = f64::midpoint(middle[0], middle[1]);
        Some(Self { series, least, median, greatest })
    }
}

impl Tally {
    fn alert(&mut self, change: &AlertChange) {
        match change.to {
            AlertState::Firing => self.fired += 1,
            AlertState::Inactive => self.end(change.at.utc),
            AlertState::Pending => {}
        }
    }

    /// The condition of a would-be act has ended.
    fn end(&mut self, at: Timestamp) {
        let soon = self.open.iter().filter(|acted| at.duration_since(**acted) <= SOON);
        self.by_itself += soon.count() as u64;
        self.open.clear();
    }

    fn decision(&mut self, decision: &DecisionRecord) {
        let at = decision.at.utc;
        self.last = Some(at);
        match (decision.decision, decision.mode) {
            (Decision::Hold(reason), _) => {
                *self.held.entry(reason).or_default() += 1;
                if reason == HoldReason::AimMet {
                    self.end(at);
                }
                return;
            }
            (Decision::Act, Mode::Observe) => {
                self.would_act += 1;
                self.open.retain(|acted| at.duration_since(*acted) <= SOON);
                self.open.push(at);
            }
            (Decision::Act, Mode::Enforce) => self.acted += 1,
        }
        self.mode = self.mode.or(Some(decision.mode));
        for evidence in &decision.because {
            if let Reading::Value(value) = evidence.value {
                self.values.entry(evidence.series.clone()).or_default().push(value);
            }
        }
    }

    fn outcome(&mut self, outcome: &Outcome, aim: Option<Option<bool>>) {
        let has_failed =
            matches!(outcome.result, OutcomeResult::Failed(_) | OutcomeResult::TimedOut);
        self.failed += u64::from(has_failed);
        if matches!(outcome.result, OutcomeResult::NotDone(_)) {
            self.not_done += 1;
            self.acted = self.acted.saturating_sub(1);
        }
        match aim {
            Some(Some(true)) => self.aim.met += 1,
            Some(Some(false)) => self.aim.missed += 1,
            Some(None) => self.aim.unknown += 1,
            None => {}
        }
    }

    fn is_quiet(&self) -> bool {
        self.fired == 0 && self.would_act == 0 && self.acted == 0 && self.held.is_empty()
    }

    /// Would-be acts too recent to know what followed.
    fn too_recent(&self, until: Timestamp) -> usize {
        self.open.iter().filter(|acted| until.duration_since(**acted) <= SOON).count()
    }

    fn spreads(&self) -> Vec<Spread<'_>> {
        self.values.iter().filter_map(|(series, values)| Spread::of(series, values)).collect()
    }

    fn text(
        &self,
        rule: &RuleId,
        width: usize,
        until: Timestamp,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let rule = rule.to_string();
        let mode = self.mode.map_or("?", Mode::name);
        let held: u64 = self.held.values().sum();
        let by_itself = match self.would_act {
            0 => String::new(),
            would_act => format!("{} of {would_act}", self.by_itself),
        };
        writeln!(
            out,
            "{:<width$}  {mode:<7}  {:>6}  {:>10}  {:>6}  {held:>6}  {by_itself:>14}",
            printable(&rule),
            self.fired,
            self.would_act,
            self.acted
        )?;
        for note in self.notes(until) {
            writeln!(out, "  {}", printable(&note))?;
        }
        let spreads = self.spreads();
        let shown = &spreads[..spreads.len().min(MOST_SERIES)];
        let name = shown.iter().map(|spread| spread.series.chars().count()).max().unwrap_or(0);
        for spread in shown {
            let text = |value| number_text(spread.series, value);
            let (least, median) = (text(spread.least), text(spread.median));
            let greatest = text(spread.greatest);
            writeln!(
                out,
                "  {:<name$}  least {least:>12}  median {median:>12}  greatest {greatest:>12}",
                printable(spread.series)
            )?;
        }
        if spreads.len() > MOST_SERIES {
            writeln!(out, "  and {} more series", spreads.len() - MOST_SERIES)?;
        }
        Ok(())
    }

    fn notes(&self, until: Timestamp) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.is_loaded {
            notes.push("not among these rules any more".to_owned());
        }
        if self.is_loaded && !self.has_remedy {
            notes.push("has no remedy".to_owned());
        }
        if !self.held.is_empty() {
            let mut held = "held:".to_owned();
            for (reason, times) in &self.held {
                // Writing to a String cannot fail.
                write!(held, " {} {times},", reason.name()).unwrap_or_default();
            }
            notes.push(held.trim_end_matches(',').to_owned());
        }
        if self.acted > 0 {
            let Aim { met, missed, unknown } = self.aim;
            notes.push(format!(
                "after acts the aim was met {met} times, missed {missed}, unknown {unknown}; {} \
                 failed",
                self.failed
            ));
        }
        if self.not_done > 0 {
            notes.push(format!("was to act {} times more, and nothing was begun", self.not_done));
        }
        match self.too_recent(until) {
            0 => {}
            open => notes.push(format!("of {open} it is not known yet whether it ends by itself")),
        }
        notes
    }

    fn line(&self, rule: &RuleId, until: Timestamp) -> Line<'_> {
        Line {
            kind: "rule",
            rule: rule.to_string(),
            mode: self.mode,
            is_loaded: self.is_loaded,
            has_remedy: self.has_remedy,
            fired: self.fired,
            would_act: self.would_act,
            ended_by_itself: self.by_itself,
            too_recent: self.too_recent(until),
            acted: self.acted,
            not_done: self.not_done,
            failed: self.failed,
            aim: self.aim,
            held: self.held.iter().map(|(reason, times)| (reason.name(), *times)).collect(),
            last_decision: self.last,
            values: self.spreads(),
        }
    }
}
