//! Prints a replay for people or as JSON.

use std::fmt::Write as _;
use std::io::{self, Write};

use jiff::Timestamp;
use serde::Serialize;

use super::compare::{ComparisonSide, ReplayComparison};
use crate::cli::history::{
    aim_text, alert_text, decision_text, event_text, outcome_text, value_text,
};
use crate::cli::json_time::{OutcomeObject, TimedObject};
use crate::cli::style::fitted;
use crate::model::{AimCheck, DecisionRecord, Event, Moment, Observation, counted};
use crate::recording::RecordingEntry;
use crate::replayer::{Replayer, StepOutcome};

/// Printed after every replay.
const LIMIT: &str = "The recorded world does not react: whatever is decided here, what follows is \
                     what happened then.";

pub(super) struct ResultWriter<W: Write> {
    out: W,
    json: bool,
    /// Only differences and remarks are printed.
    only_differences: bool,
    counts: ReplayCounts,
    first: Option<Moment>,
    last: Option<Moment>,
}

#[derive(Debug, Default, Serialize)]
struct ReplayCounts {
    steps: u64,
    events: u64,
    alerts: u64,
    decisions: u64,
}

#[derive(Serialize)]
struct Remark<'a> {
    kind: &'static str,
    text: &'a str,
}

#[derive(Serialize)]
struct Summary<'a> {
    kind: &'static str,
    #[serde(flatten)]
    counts: &'a ReplayCounts,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    compared: bool,
    differences: u64,
    /// A part is damaged or missing.
    cut: bool,
    result: &'a str,
    limit: &'static str,
}

impl<W: Write> ResultWriter<W> {
    pub(super) fn new(out: W, json: bool, only_differences: bool) -> Self {
        let counts = ReplayCounts::default();
        Self { out, json, only_differences, counts, first: None, last: None }
    }

    /// A remark about the recording.
    pub(super) fn remark(&mut self, text: &str) -> anyhow::Result<()> {
        if self.json {
            return self.object(&Remark { kind: "remark", text });
        }
        Ok(writeln!(self.out, "{}", fitted(&format!("# {text}")))?)
    }

    /// The result of an entry.
    pub(super) fn entry(
        &mut self,
        entry: &RecordingEntry,
        replayer: &Replayer,
        stepped: &StepOutcome,
    ) -> anyhow::Result<()> {
        match entry {
            RecordingEntry::Begin(begin) if stepped.is_new => {
                let (program, boot) = (&begin.program, &begin.boot_id);
                let started = begin.started.utc;
                let how = if replayer.is_whole() {
                    "from where it started".to_owned()
                } else {
                    format!(
                        "begins later, at {:.3}: what its rules remembered is not known, the first \
                         minutes are a warm-up, and decisions are not compared",
                        begin.at.utc
                    )
                };
                let text = format!("umawarden {program}, boot {boot}, started {started:.3}: {how}");
                self.remark(&text)
            }
            RecordingEntry::Begin(_) => Ok(()),
            RecordingEntry::Gap { steps } => self.remark(&match steps {
                0 => "some steps are missing here: decisions are not compared from here".to_owned(),
                steps => format!(
                    "{} could not be recorded here: decisions are not compared from here",
                    counted(*steps, "step")
                ),
            }),
            RecordingEntry::Reload { at, .. } => {
                self.note(*at)?;
                for change in &stepped.ended {
                    self.counts.alerts += 1;
                    self.line(*at, "alert", change, || alert_text(change))?;
                }
                Ok(())
            }
            RecordingEntry::Step(recorded) => self.step(recorded.at, &recorded.seen, stepped),
        }
    }

    fn note(&mut self, at: Moment) -> anyhow::Result<()> {
        if self.json {
            return Ok(());
        }
        self.remark(&format!("{:.3}: the rules were replaced", at.utc))
    }

    fn step(
        &mut self,
        at: Moment,
        seen: &[Observation],
        stepped: &StepOutcome,
    ) -> anyhow::Result<()> {
        self.counts.steps += 1;
        self.first.get_or_insert(at);
        self.last = Some(at);
        for observation in seen {
            if let Observation::Outcome(outcome) = observation {
                let object = OutcomeObject::new(None, outcome, None);
                self.line(at, "outcome", &object, || outcome_text(outcome, None, None))?;
            }
        }
        let step = &stepped.step;
        for event in &step.events {
            self.counts.events += 1;
            self.event(at, event)?;
        }
        for change in &step.alerts {
            self.counts.alerts += 1;
            self.line(at, "alert", change, || alert_text(change))?;
        }
        for aim_check in &step.aim_checks {
            let text = || aim_check_text(aim_check);
            self.line(at, "aim_check", aim_check, text)?;
        }
        for decision in &step.decisions {
            self.counts.decisions += 1;
            self.line(at, "decision", decision, || decision_text(decision))?;
        }
        Ok(())
    }

    /// A decision of one side alone.
    pub(super) fn difference(
        &mut self,
        at: Moment,
        side: ComparisonSide,
        name: &'static str,
        decision: &DecisionRecord,
    ) -> anyhow::Result<()> {
        if self.json {
            let object =
                TimedObject::new(at.utc, decision).of_kind("difference").at(at).of_side(name);
            return self.object(&object);
        }
        let (sign, text) = (side.sign(), decision_text(decision));
        let text = format!("{:.3}  {sign} {name:<16}  {text}", at.utc);
        writeln!(self.out, "{}", fitted(&text))?;
        Ok(())
    }

    /// Writes the counts of the replay and the result of the comparison.
    pub(super) fn summary(
        &mut self,
        comparison: &ReplayComparison,
        is_cut: bool,
    ) -> anyhow::Result<()> {
        let result = comparison.result();
        let (from, to) = (self.first.map(|at| at.utc), self.last.map(|at| at.utc));
        if self.json {
            let summary = Summary {
                kind: "summary",
                counts: &self.counts,
                from,
                to,
                compared: comparison.has_compared(),
                differences: comparison.differences(),
                cut: is_cut,
                result: &result,
                limit: LIMIT,
            };
            serde_json::to_writer(&mut self.out, &summary).map_err(io::Error::from)?;
            return Ok(writeln!(self.out)?);
        }
        let ReplayCounts { steps, events, alerts, decisions } = self.counts;
        writeln!(self.out)?;
        let mut text = counted(steps, "step");
        if let (Some(from), Some(to)) = (from, to) {
            // Writing to a String cannot fail.
            write!(text, " from {from:.3} to {to:.3}").unwrap_or_default();
        }
        text.push_str(&format!(
            ": {}, {} in alerts, {}.",
            counted(events, "event"),
            counted(alerts, "change"),
            counted(decisions, "decision"),
        ));
        for line in [&*text, &*result, LIMIT] {
            writeln!(self.out, "{}", fitted(line))?;
        }
        if is_cut {
            writeln!(self.out, "Part of the recording is damaged or missing: see above.")?;
        }
        Ok(())
    }

    pub(super) fn has_events(&self) -> bool {
        self.counts.events > 0
    }

    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        Ok(self.out.flush()?)
    }

    fn line<T: Serialize>(
        &mut self,
        at: Moment,
        kind: &'static str,
        entry: &T,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        if self.only_differences {
            return Ok(());
        }
        if self.json {
            return self.object(&TimedObject::new(at.utc, entry).of_kind(kind).at(at));
        }
        self.text(at.utc, kind, &text())
    }

    /// An event has its own kind and time.
    fn event(&mut self, at: Moment, event: &Event) -> anyhow::Result<()> {
        if self.only_differences {
            return Ok(());
        }
        let time = event.utc.unwrap_or(at.utc);
        if self.json {
            return self.object(&TimedObject::new(time, event));
        }
        self.text(time, event.kind.kind(), &event_text(&event.kind))
    }

    fn text(&mut self, time: Timestamp, kind: &str, text: &str) -> anyhow::Result<()> {
        Ok(writeln!(self.out, "{}", fitted(&format!("{time:.3}  {kind:<18}  {text}")))?)
    }

    fn object(&mut self, object: &impl Serialize) -> anyhow::Result<()> {
        serde_json::to_writer(&mut self.out, object).map_err(io::Error::from)?;
        Ok(writeln!(self.out)?)
    }
}

fn aim_check_text(aim_check: &AimCheck) -> String {
    let mut text = format!("#{}: ", aim_check.decision);
    text.push_str(aim_text(aim_check));
    for after in &aim_check.after {
        let before = aim_check.before.iter().find(|before| before.series == after.series);
        let before = before.map_or_else(|| "?".to_owned(), value_text);
        // Writing to a String cannot fail.
        write!(text, "; {} {before} → {}", after.series, value_text(after)).unwrap_or_default();
    }
    text
}
