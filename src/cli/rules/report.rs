//! `umawarden rules report`: how often rules would have acted, before they are enforced.

mod tally;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use super::count;
use crate::cli::Exit;
use crate::cli::explain::rules_recorded_last;
use crate::cli::history::{no_journal, past};
use crate::cli::output;
use crate::cli::storage::{StorageArguments, may_be_read};
use crate::cli::style::{fitted, headed, is_too_wide};
use crate::config::reader::load_rules;
use crate::config::settings::{RuleSource, limits};
use crate::journal::{JournalReader, TimelineItem, TimelineQuery};
use crate::model::{EventKind, Mode, ProgramEvent, RuleId};
use crate::policy::restarts;
use crate::policy::rule::RuleSet;
use tally::RuleTally;

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

    /// Name all rules that never fired, however many.
    #[arg(long)]
    all: bool,

    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
For each rule: how often its alerts fired, how often it acted or would have acted (in observe \
mode, or since `enforce` has not the grade of the step), on which targets, how often it held and \
why, and the values of its series when it acted or would have. Where nothing is done, a condition \
that ended within a minute ended by itself, and if most do, there is little to remedy. Rules that \
would have acted come first. Deferred restarts are reported as restarts/NAME, with their state; \
they fired as often as they were down and waited.

Of a flapping alert the journal has samples only: the count is a lower bound.

`umawarden promote` says which rules can be enforced.

Exit codes: 0 fine, also when nothing has fired; 2 there is no readable journal, or no rules.

  umawarden rules report --since 30d
  umawarden rules report --json | jq 'select(.would_act > 0) | .rule'";

/// Runs the command.
pub(super) fn execute(arguments: &ReportArguments) -> anyhow::Result<Exit> {
    let dir = arguments.storage.folder()?;
    may_be_read(&dir)?;
    let reader = JournalReader::open(&dir).map_err(no_journal)?;
    let (rules, mode, origin) = rules(arguments, &dir)?;
    let mut report = RulesReport::new(arguments.since, Timestamp::now(), &rules, mode, origin);
    report.read(&reader)?;
    if reader.may_lack_newest() {
        let remark = "the journal was not closed: its newest entries may be missing";
        report.remarks.push(remark.to_owned());
    }
    let mut out = output::stdout();
    let written =
        if arguments.json { report.json(&mut out) } else { report.text(arguments.all, &mut out) };
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
struct RulesReport {
    since: Timestamp,
    until: Timestamp,
    /// The time of the first entry, if it is later than `since`.
    begins: Option<Timestamp>,
    origin: &'static str,
    rules: BTreeMap<RuleId, RuleTally>,
    unreadable: u64,
    remarks: Vec<String>,
}

impl RulesReport {
    fn new(
        since: Timestamp,
        until: Timestamp,
        rules: &RuleSet,
        mode: Option<Mode>,
        origin: &'static str,
    ) -> Self {
        let all = rules.groups.iter().flat_map(|group| &group.rules);
        let tallies = all.map(|rule| {
            (rule.id.clone(), RuleTally::of(rule.mode.or(mode), rule.remedy.is_some()))
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
            kinds: ["alert", "decision", "outcome", "engine_restart"].map(str::to_owned).to_vec(),
            ..TimelineQuery::default()
        };
        let read = reader.timeline(&query, |time, item| {
            self.take(time, &item);
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

    fn take(&mut self, time: Timestamp, item: &TimelineItem) {
        match item {
            TimelineItem::Alert(change) => self.of(&change.rule).alert(change),
            TimelineItem::Decision(decision) => self.of(&decision.rule).decision(decision),
            TimelineItem::Outcome { outcome, decision: Some(decision), aim_check } => {
                let aim = aim_check.as_ref().map(|aim_check| aim_check.aim_met);
                self.of(&decision.rule).outcome(outcome, aim);
            }
            TimelineItem::Unreadable => self.unreadable += 1,
            TimelineItem::Event(stored) => {
                if let EventKind::Program(ProgramEvent::EngineRestart {
                    engine, to, reason, ..
                }) = &stored.event.kind
                {
                    let rule = restarts::rule(&engine.as_str().into());
                    self.of(&rule).restart(*to, reason, time);
                }
            }
            TimelineItem::Outcome { .. } | TimelineItem::Operator(_) | TimelineItem::Note(_) => {}
        }
    }

    fn of(&mut self, rule: &RuleId) -> &mut RuleTally {
        self.rules.entry(rule.clone()).or_default()
    }

    /// Rules by acts that they would have done, acts, holds and firings; then by name.
    fn sorted(&self) -> Vec<(&RuleId, &RuleTally)> {
        let mut sorted: Vec<(&RuleId, &RuleTally)> = self.rules.iter().collect();
        sorted.sort_by_key(|(_, tally)| std::cmp::Reverse(tally.rank()));
        sorted
    }

    fn text(&self, is_all: bool, out: &mut impl Write) -> io::Result<()> {
        let (mut quiet, mut busy) = (Vec::new(), Vec::new());
        for (rule, tally) in self.sorted() {
            if tally.is_quiet() { quiet.push(rule.to_string()) } else { busy.push((rule, tally)) }
        }
        let (since, until) = (self.since, self.until);
        writeln!(out, "From {since:.0} to {until:.0}, rules {}.", self.origin)?;
        if let Some(begins) = self.begins {
            writeln!(out, "# the journal begins later, at {begins:.0}")?;
        }
        for remark in &self.remarks {
            writeln!(out, "{}", fitted(&format!("# {remark}")))?;
        }
        if !busy.is_empty() {
            let names = busy.iter().map(|(rule, _)| rule.to_string().chars().count());
            let width = names.max().unwrap_or(0).max(4);
            // The names have lines of their own then.
            let width = if is_too_wide(width + COUNTS) { 4 } else { width };
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
            write!(out, "\n{}", headed("never fired", &quiet, is_all))?;
        }
        Ok(())
    }

    fn json(&self, out: &mut impl Write) -> io::Result<()> {
        let head = ReportHead {
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

/// The columns of the counts beside the names.
const COUNTS: usize = 61;

/// The first line of `--json`.
#[derive(Serialize)]
struct ReportHead<'a> {
    kind: &'static str,
    since: Timestamp,
    until: Timestamp,
    journal_begins: Option<Timestamp>,
    rules: &'static str,
    remarks: &'a [String],
}
