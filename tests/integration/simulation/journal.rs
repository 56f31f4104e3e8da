//! What of a simulated process outlives it, and how much of that a crash leaves.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use umawarden::journal::Entry;
use umawarden::model::{
    AlertChange, Assessment, Decision, DecisionId, Mode, Moment, Outcome, RuleId, Verdict,
};

use super::chance::Chance;

/// What has been written but is not on disk may be so old.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Kept {
    entries: Vec<(Duration, Entry)>,
    /// So many entries are on disk, come what may.
    safe: usize,
    down_until: Duration,
}

impl Kept {
    pub fn record(&mut self, now: Duration, entry: Entry) {
        self.entries.push((now, entry));
    }

    /// The disk fails until then.
    pub fn fail(&mut self, until: Duration) {
        self.down_until = until;
    }

    pub fn is_up(&self, now: Duration) -> bool {
        self.down_until <= now
    }

    /// All that was recorded so far is on disk when this returns true.
    pub fn flush(&mut self, now: Duration) -> bool {
        if self.is_up(now) {
            self.safe = self.entries.len();
        }
        self.is_up(now)
    }

    /// Loses what was not on disk yet; returns the decisions that nobody will remember.
    pub fn crash(&mut self, now: Duration, chance: &mut Chance) -> BTreeSet<DecisionId> {
        if self.is_up(now) {
            let old = now.saturating_sub(WRITTEN_WITHIN);
            let written = self.entries.partition_point(|(at, _)| *at <= old);
            self.safe = self.safe.max(written);
        }
        let left = chance.whole(self.safe as u64..=self.entries.len() as u64) as usize;
        let left = if self.is_up(now) { left } else { self.safe };
        let lost = self.entries.drain(left..).filter_map(|(_, entry)| match entry {
            Entry::Decision(decision) => Some(decision.id),
            _ => None,
        });
        lost.collect()
    }

    pub fn next_decision(&self) -> DecisionId {
        let last = self.decisions().map(|decision| decision.id.0).max();
        DecisionId(last.unwrap_or(0) + 1)
    }

    pub fn earlier_acts(&self, started: Moment) -> Vec<(RuleId, Mode, Duration)> {
        let acts = self.decisions().filter(|decision| decision.verdict == Verdict::Act);
        let acts = acts.map(|decision| {
            let ago = started.utc.duration_since(decision.at.utc);
            let ago = Duration::try_from(ago).unwrap_or_default();
            (decision.rule.clone(), decision.mode, ago)
        });
        acts.collect()
    }

    /// Where to go on in this boot's kernel log, and the records from there on whose events are
    /// known.
    pub fn resume_point(&self, boot: &Arc<str>) -> Option<(u64, BTreeSet<u64>)> {
        let of_boot = self.entries.iter().filter_map(|(_, entry)| match entry {
            Entry::KernelLog { boot_id, events, resume_seq } if boot_id == boot => {
                Some((events, *resume_seq))
            }
            _ => None,
        });
        let (all, resume): (Vec<_>, Vec<_>) = of_boot.unzip();
        let resume = *resume.last()?;
        let seqs = all.into_iter().flatten().filter_map(|event| event.seq);
        Some((resume, seqs.filter(|seq| *seq >= resume).collect()))
    }

    /// Boot and record of every kernel event.
    pub fn event_seqs(&self) -> impl Iterator<Item = (Arc<str>, u64)> {
        self.entries.iter().flat_map(|(_, entry)| {
            let (boot, events) = match entry {
                Entry::KernelLog { boot_id, events, .. } => (Arc::clone(boot_id), &**events),
                _ => (Arc::from(""), &[][..]),
            };
            let seqs = events.iter().filter_map(|event| event.seq);
            seqs.map(move |seq| (Arc::clone(&boot), seq))
        })
    }

    /// The last entries, short enough to look at.
    pub fn end(&self, entries: usize) -> Vec<String> {
        let last = &self.entries[self.entries.len().saturating_sub(entries)..];
        let told = last.iter().map(|(_, entry)| match entry {
            Entry::KernelLog { events, resume_seq, .. } => {
                let kinds: BTreeSet<_> = events.iter().map(|event| event.kind.kind()).collect();
                format!("kernel log up to {resume_seq}: {} of {kinds:?}", events.len())
            }
            Entry::Decision(Decision { id, at, rule, mode, verdict, step, action, because }) => {
                let because = because.iter().map(|evidence| {
                    format!("{} {:?}", evidence.series, evidence.value)
                });
                let because = Vec::from_iter(because).join(", ");
                format!(
                    "{:?} decision {id} {rule} {mode:?} {verdict:?} step {step} {action}: {because}",
                    at.uptime
                )
            }
            Entry::Outcome(outcome) => {
                let Outcome { decision, result, ended, .. } = outcome;
                format!("{:?} outcome of {decision}: {result:?}", ended.uptime)
            }
            Entry::Assessment(Assessment { decision, at, aim_met, .. }) => {
                format!("{:?} judged {decision}: aim met {aim_met:?}", at.uptime)
            }
            Entry::Alert(AlertChange { at, rule, labels, from, to, value, .. }) => {
                let labels: Vec<_> = labels.values().collect();
                format!("{:?} alert {rule} {labels:?}: {from:?} to {to:?}, {value:?}", at.uptime)
            }
            Entry::Note(note) => format!("{:?} {}", note.at.uptime, note.text),
        });
        told.collect()
    }

    /// Every entry as JSON, a line each.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (_, entry) in &self.entries {
            let (kind, json) = match entry {
                Entry::KernelLog { boot_id, events, resume_seq } => {
                    write!(text, "{boot_id} {resume_seq} ").unwrap();
                    ("events", serde_json::to_string(events))
                }
                Entry::Decision(decision) => ("decision", serde_json::to_string(decision)),
                Entry::Outcome(outcome) => ("outcome", serde_json::to_string(outcome)),
                Entry::Assessment(assessment) => ("judged", serde_json::to_string(assessment)),
                Entry::Alert(change) => ("alert", serde_json::to_string(change)),
                Entry::Note(note) => ("note", serde_json::to_string(note)),
            };
            writeln!(text, "{kind} {}", json.unwrap()).unwrap();
        }
        text
    }

    fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.entries.iter().filter_map(|(_, entry)| match entry {
            Entry::Decision(decision) => Some(decision),
            _ => None,
        })
    }
}
