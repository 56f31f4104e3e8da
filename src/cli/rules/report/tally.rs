//! What one rule did, or would have done.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::cli::history::number_text;
use crate::cli::style::{fitted, is_too_wide};
use crate::cli::targets::{AlertLabels, target_name, target_parts};
use crate::model::{
    AlertChange, AlertState, Decision, DecisionRecord, Grade, HoldReason, Mode, Outcome,
    OutcomeResult, Reading, RestartState, RuleId, Target, printable,
};

/// A condition that ended within this time ended by itself.
const SOON: SignedDuration = SignedDuration::from_secs(60);

/// Series whose values are printed, and targets; `--json` has all.
const MOST_SHOWN: usize = 8;

/// Targets that are kept apart, and alerts that fire at a time: other users choose names of
/// engines.
const MOST_NAMES: usize = 1_000;

/// The report of one rule.
#[derive(Default)]
pub(super) struct RuleTally {
    /// Its current mode. `None` if unknown.
    mode: Option<Mode>,
    /// Whether it is among the current rules.
    is_loaded: bool,
    has_remedy: bool,
    fired: u64,
    would_act: u64,
    /// How many of `would_act` were held since their grade is not enforced.
    not_enforced: BTreeMap<Grade, u64>,
    acted: u64,
    held: BTreeMap<HoldReason, u64>,
    /// Decisions to act that were not begun.
    not_done: u64,
    failed: u64,
    aim: AimCounts,
    /// How often it would have acted and its condition ended soon by itself.
    by_itself: u64,
    /// When it would have acted and its condition has not ended since.
    open: Vec<Timestamp>,
    values: BTreeMap<String, Vec<f64>>,
    targets: BTreeMap<String, TargetCounts>,
    firing: BTreeSet<AlertLabels>,
    restart: Option<RestartSeen>,
    last: Option<Timestamp>,
}

/// Assessments after acts.
#[derive(Clone, Copy, Default, Serialize)]
struct AimCounts {
    met: u64,
    missed: u64,
    unknown: u64,
}

/// What was done, or would have been, to one target.
#[derive(Clone, Default, Serialize)]
struct TargetCounts {
    would_act: u64,
    acted: u64,
    parts: Vec<String>,
}

/// The last known state of a deferred restart.
#[derive(Clone, Serialize)]
struct RestartSeen {
    /// The container or unit, where a decision names it.
    target: Option<String>,
    state: RestartState,
    since: Timestamp,
    reason: String,
}

/// A rule's line of `--json`.
#[derive(Serialize)]
pub(super) struct RuleReportLine<'a> {
    kind: &'static str,
    rule: String,
    mode: Option<Mode>,
    is_loaded: bool,
    has_remedy: bool,
    fired: u64,
    would_act: u64,
    not_enforced: BTreeMap<&'static str, u64>,
    ended_by_itself: u64,
    too_recent: usize,
    acted: u64,
    not_done: u64,
    failed: u64,
    aim: AimCounts,
    held: BTreeMap<&'static str, u64>,
    last_decision: Option<Timestamp>,
    targets: Vec<TargetLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart: Option<&'a RestartSeen>,
    values: Vec<SeriesSpread<'a>>,
}

#[derive(Serialize)]
struct TargetLine<'a> {
    target: &'a str,
    #[serde(flatten)]
    on: &'a TargetCounts,
}

/// The values of one series when the rule (would have) acted.
#[derive(Serialize)]
struct SeriesSpread<'a> {
    series: &'a str,
    least: f64,
    median: f64,
    greatest: f64,
}

impl<'a> SeriesSpread<'a> {
    fn of(series: &'a str, values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, greatest) = (*sorted.first()?, *sorted.last()?);
        let middle = [(sorted.len() - 1) / 2, sorted.len() / 2].map(|index| sorted[index]);
        let median = f64::midpoint(middle[0], middle[1]);
        Some(Self { series, least, median, greatest })
    }
}

impl RuleTally {
    /// That of a loaded rule, in its mode if known.
    pub(super) fn of(mode: Option<Mode>, has_remedy: bool) -> Self {
        Self { mode, is_loaded: true, has_remedy, ..Self::default() }
    }

    pub(super) fn alert(&mut self, change: &AlertChange) {
        match change.to {
            AlertState::Firing => {
                self.fired += 1;
                if self.firing.len() < MOST_NAMES {
                    self.firing.insert(change.labels.clone());
                }
            }
            AlertState::Inactive => {
                self.firing.remove(&change.labels);
                self.end(change.at.utc);
            }
            AlertState::Pending => {}
        }
    }

    /// A deferred restart is in that state now.
    pub(super) fn restart(&mut self, state: RestartState, reason: &str, at: Timestamp) {
        let before = self.restart.as_ref().map(|seen| seen.state);
        let is_down = state == RestartState::Waiting;
        self.fired += u64::from(is_down && before != Some(state));
        let since = self.restart.as_ref().filter(|seen| seen.state == state);
        let since = since.map_or(at, |seen| seen.since);
        let target = self.restart.take().and_then(|seen| seen.target);
        self.restart = Some(RestartSeen { target, state, since, reason: reason.to_owned() });
        self.has_remedy = true;
        if !matches!(state, RestartState::Waiting | RestartState::Unknown) {
            self.end(at);
        }
    }

    /// The condition of a would-be act has ended.
    fn end(&mut self, at: Timestamp) {
        let soon = self.open.iter().filter(|acted| at.duration_since(**acted) <= SOON);
        self.by_itself += soon.count() as u64;
        self.open.clear();
    }

    pub(super) fn decision(&mut self, decision: &DecisionRecord) {
        let at = decision.at.utc;
        self.last = Some(at);
        if let (Some(seen), Target::Workload(target)) = (&mut self.restart, &decision.target) {
            seen.target = Some(target.to_string());
        }
        match (decision.decision, decision.mode) {
            (Decision::Hold(HoldReason::NotEnforced), _) => {
                *self.not_enforced.entry(decision.action.grade()).or_default() += 1;
                self.would_act(at);
            }
            (Decision::Hold(reason), _) => {
                *self.held.entry(reason).or_default() += 1;
                if reason == HoldReason::AimMet {
                    self.end(at);
                }
                self.mode = self.mode.or(Some(decision.mode));
                return;
            }
            (Decision::Act, Mode::Observe) => self.would_act(at),
            (Decision::Act, Mode::Enforce) => {
                self.acted += 1;
                // What ends from now on was not left alone.
                if !decision.action.is_notice() {
                    self.open.clear();
                }
            }
        }
        self.mode = self.mode.or(Some(decision.mode));
        self.aimed_at(decision);
        for evidence in &decision.because {
            if let Reading::Value(value) = evidence.value {
                self.values.entry(evidence.series.clone()).or_default().push(value);
            }
        }
    }

    fn would_act(&mut self, at: Timestamp) {
        self.would_act += 1;
        self.open.retain(|acted| at.duration_since(*acted) <= SOON);
        self.open.push(at);
    }

    fn aimed_at(&mut self, decision: &DecisionRecord) {
        let mut name = target_name(decision, &self.firing);
        if self.targets.len() >= MOST_NAMES && !self.targets.contains_key(&name) {
            "others".clone_into(&mut name);
        }
        let on = self.targets.entry(name).or_default();
        match decision.decision == Decision::Act && decision.mode == Mode::Enforce {
            true => on.acted += 1,
            false => on.would_act += 1,
        }
        on.parts = target_parts(decision);
    }

    pub(super) fn outcome(&mut self, outcome: &Outcome, aim: Option<Option<bool>>) {
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

    pub(super) fn is_quiet(&self) -> bool {
        self.rank() == (0, 0, 0, 0)
    }

    /// Acts that it would have done, acts, holds and firings.
    pub(super) fn rank(&self) -> (u64, u64, u64, u64) {
        (self.would_act, self.acted, self.held.values().sum(), self.fired)
    }

    /// Would-be acts too recent to know what followed.
    fn too_recent(&self, until: Timestamp) -> usize {
        self.open.iter().filter(|acted| until.duration_since(**acted) <= SOON).count()
    }

    fn spreads(&self) -> Vec<SeriesSpread<'_>> {
        self.values.iter().filter_map(|(series, values)| SeriesSpread::of(series, values)).collect()
    }

    /// The targets, those with the most acts first.
    fn on_targets(&self) -> Vec<TargetLine<'_>> {
        let lines = self.targets.iter().map(|(target, on)| TargetLine { target, on });
        let mut lines: Vec<TargetLine<'_>> = lines.collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.on.would_act + line.on.acted));
        lines
    }

    pub(super) fn text(
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
        let name = printable(&rule);
        let is_short = name.chars().count() <= width;
        if !is_short {
            writeln!(out, "{name}")?;
        }
        writeln!(
            out,
            "{:<width$}  {mode:<7}  {:>6}  {:>10}  {:>6}  {held:>6}  {by_itself:>14}",
            if is_short { &*name } else { "" },
            self.fired,
            self.would_act,
            self.acted
        )?;
        for note in self.target_notes().into_iter().chain(self.notes(until)) {
            writeln!(out, "{}", fitted(&format!("  {note}")))?;
        }
        let spreads = self.spreads();
        let shown = &spreads[..spreads.len().min(MOST_SHOWN)];
        let name = shown.iter().map(|spread| spread.series.chars().count()).max().unwrap_or(0);
        for spread in shown {
            let text = |value| number_text(spread.series, value);
            let (least, median) = (text(spread.least), text(spread.median));
            let greatest = text(spread.greatest);
            let series = printable(spread.series);
            if is_too_wide(name + 60) {
                let text =
                    format!("  {series}  least {least}, median {median}, greatest {greatest}");
                writeln!(out, "{}", fitted(&text))?;
                continue;
            }
            writeln!(
                out,
                "  {series:<name$}  least {least:>12}  median {median:>12}  greatest {greatest:>12}"
            )?;
        }
        if spreads.len() > MOST_SHOWN {
            writeln!(out, "  and {} more series", spreads.len() - MOST_SHOWN)?;
        }
        Ok(())
    }

    fn target_notes(&self) -> Vec<String> {
        let lines = self.on_targets();
        let more = lines.len().saturating_sub(MOST_SHOWN);
        let note = |line: &TargetLine<'_>| {
            let TargetCounts { would_act, acted, parts } = line.on;
            let counts = [("would act", would_act), ("acted", acted)];
            let counts = counts.iter().filter(|(_, count)| **count > 0);
            let counts = counts.map(|(what, count)| format!("{what} {count}"));
            let counts = counts.collect::<Vec<_>>().join(", ");
            let about =
                if parts.is_empty() { String::new() } else { format!(" ({})", parts.join("; ")) };
            format!("on {}{about}: {counts}", line.target)
        };
        let mut notes: Vec<String> = lines.iter().take(MOST_SHOWN).map(note).collect();
        if more > 0 {
            notes.push(format!("and on {more} more"));
        }
        notes
    }

    fn notes(&self, until: Timestamp) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(RestartSeen { target, state, since, reason }) = &self.restart {
            let of = target.as_ref().map_or_else(String::new, |target| format!(" of {target}"));
            let state = state.meaning();
            notes.push(format!("deferred restart{of}, {state} since {since:.0}: {reason}"));
        } else if !self.is_loaded {
            notes.push("not among these rules any more".to_owned());
        }
        if self.is_loaded && !self.has_remedy {
            notes.push("has no remedy".to_owned());
        }
        if !self.not_enforced.is_empty() {
            let grades = self.not_enforced.iter().map(|(grade, times)| format!("{grade} {times}"));
            let grades = grades.collect::<Vec<_>>().join(", ");
            notes.push(format!("would have acted, if its grade were enforced: {grades}"));
        }
        if !self.held.is_empty() {
            let held = self.held.iter().map(|(reason, times)| format!("{} {times}", reason.name()));
            notes.push(format!("held: {}", held.collect::<Vec<_>>().join(", ")));
        }
        if self.acted > 0 {
            let AimCounts { met, missed, unknown } = self.aim;
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

    pub(super) fn line(&self, rule: &RuleId, until: Timestamp) -> RuleReportLine<'_> {
        let not_enforced = self.not_enforced.iter();
        RuleReportLine {
            kind: "rule",
            rule: rule.to_string(),
            mode: self.mode,
            is_loaded: self.is_loaded,
            has_remedy: self.has_remedy,
            fired: self.fired,
            would_act: self.would_act,
            not_enforced: not_enforced.map(|(grade, times)| (grade.name(), *times)).collect(),
            ended_by_itself: self.by_itself,
            too_recent: self.too_recent(until),
            acted: self.acted,
            not_done: self.not_done,
            failed: self.failed,
            aim: self.aim,
            held: self.held.iter().map(|(reason, times)| (reason.name(), *times)).collect(),
            last_decision: self.last,
            targets: self.on_targets(),
            restart: self.restart.as_ref(),
            values: self.spreads(),
        }
    }
}
