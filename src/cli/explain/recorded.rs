//! Explains from the recording, which is replayed up to the requested time.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};

use super::journalled::OpenedJournal;
use super::{STALE_AFTER, StateSince};
use crate::cli::progress::{Progress, ProgressReader};
use crate::config::mistake::SourceText;
use crate::config::rules::parse_rules;
use crate::files::{open_regular, refuse_irregular};
use crate::journal::StoredDecision;
use crate::model::{Moment, Observation, RuleId};
use crate::policy::Policy;
use crate::policy::explain::Explanation;
use crate::policy::rule::{Rule, RuleSet};
use crate::policy::status::RuleStatus;
use crate::recording::{
    RecordedRules, RecordedStep, RecordingEntry, RuleText, SegmentBegin, SegmentReader,
    segment_files,
};
use crate::replayer::{Replayer, override_again};

/// A process is replayed from its start if its segments have at most this many bytes.
const FROM_START_BYTES: u64 = 4 << 20;

/// Otherwise from this long before the range of the rules.
const WARM_UP: Duration = Duration::from_secs(60);

/// The longest range: the store has no older samples at ten a second.
const LONGEST_REACH: Duration = Duration::from_secs(7200);

/// Decisions of all rules that are kept.
const DECISIONS: usize = 10_000;

/// A state that begins this soon after the replay may have begun earlier.
const AT_BEGIN: SignedDuration = SignedDuration::from_secs(1);

/// One file, with its first entry.
struct RecordingFile {
    path: PathBuf,
    begin: SegmentBegin,
    bytes: u64,
}

/// The policy at the time.
pub(super) struct Recorded {
    replayer: Replayer,
    name: String,
    begin: Timestamp,
    last: Option<Moment>,
    /// Whether the recording continues after the requested time.
    goes_on: bool,
    /// The last change of state of each rule.
    changes: BTreeMap<RuleId, Moment>,
    decisions: VecDeque<StoredDecision>,
    gaps: Vec<String>,
}

/// Replays a file or a folder of segments.
pub(super) fn of_file(
    path: &Path,
    at: Option<Timestamp>,
    journal: &OpenedJournal,
) -> anyhow::Result<Option<Recorded>> {
    let name = path.display().to_string();
    let meta = fs::metadata(path).with_context(|| format!("cannot read {name}"))?;
    let files = if meta.is_dir() { segment_files(path) } else { vec![path.to_owned()] };
    let Some(first) = files.first() else { anyhow::bail!("{name} has no recording (*.umarec)") };
    refuse_irregular(first).with_context(|| format!("cannot read {name}"))?;
    let pieces = pieces(&files);
    anyhow::ensure!(!pieces.is_empty(), "{name} is not a recording that this build can read");
    let Some(chain) = chain(&pieces, at) else {
        let begins = pieces[0].begin.at.utc;
        anyhow::bail!("{name} begins later, at {begins:.3}");
    };
    replay(chain, name, at, journal, &mut progress_of(chain))
        .map(|recorded| recorded.filter(|r| r.last.is_some()))
}

/// Replays the daemon's own ring, or else an incident file that covers the time.
pub(super) fn of_storage(
    dir: &Path,
    at: Option<Timestamp>,
    journal: &OpenedJournal,
) -> anyhow::Result<Option<Recorded>> {
    let folder = dir.join("recording");
    let ring = pieces(&segment_files(&folder));
    if let Some(chain) = chain(&ring, at) {
        let found =
            replay(chain, folder.display().to_string(), at, journal, &mut progress_of(chain))?;
        // Nothing was recorded or journalled, so that nothing changed.
        let is_newest =
            |found: &Recorded| at.is_some_and(|at| !journal.has_entries_between(found.at(), at));
        if let Some(found) = found.filter(|found| found.covers(at) || is_newest(found)) {
            return Ok(Some(found));
        }
    }
    let incidents = pieces(&segment_files(&dir.join("incidents")));
    // Any of them may be the one, so that the total is unknown.
    let mut progress = Progress::bytes("explain", None);
    for piece in incidents.chunks(1).rev() {
        if at.is_some_and(|at| piece[0].begin.at.utc > at) {
            continue;
        }
        let name = piece[0].path.display().to_string();
        let found = replay(piece, name, at, journal, &mut progress)?;
        if let Some(found) = found.filter(|found| found.covers(at)) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The begin of the daemon's recording, and its last rules.
pub(super) fn kept(dir: &Path) -> Option<(Timestamp, RecordedRules)> {
    let ring = pieces(&segment_files(&dir.join("recording")));
    let begin = ring.first()?.begin.at.utc;
    Some((begin, ring.last()?.begin.rules.clone()))
}

pub(super) fn parsed(rules: &RecordedRules) -> anyhow::Result<RuleSet> {
    let text = |file: &RuleText| SourceText::new(file.name.as_str(), file.text.as_str());
    let texts: Vec<SourceText> = rules.files.iter().map(text).collect();
    let mut parsed = parse_rules(&texts, rules.evaluation_interval)?;
    override_again(&rules.overrides, &mut parsed)?;
    Ok(parsed)
}

/// The readable files, in their order.
fn pieces(files: &[PathBuf]) -> Vec<RecordingFile> {
    let piece = |path: &PathBuf| {
        let bytes = fs::metadata(path).ok()?.len();
        let mut reader = SegmentReader::open(BufReader::new(open_regular(path).ok()?)).ok()?;
        match reader.next_entry().ok()?? {
            RecordingEntry::Begin(begin) => {
                Some(RecordingFile { path: path.clone(), begin: *begin, bytes })
            }
            _ => None,
        }
    };
    files.iter().filter_map(piece).collect()
}

/// The files of one process to replay: all until then if they are small, otherwise from before the
/// range of the rules.
fn chain(pieces: &[RecordingFile], at: Option<Timestamp>) -> Option<&[RecordingFile]> {
    let is_before = |piece: &RecordingFile| at.is_none_or(|at| piece.begin.at.utc <= at);
    let last = pieces.iter().rposition(is_before)?;
    let goes_on = |index: usize| {
        let (piece, before) = (&pieces[index].begin, &pieces[index - 1].begin);
        !piece.is_start
            && piece.goes_on_from == Some(before.segment)
            && piece.started == before.started
            && piece.boot_id == before.boot_id
    };
    let mut first = last;
    while first > 0 && goes_on(first) {
        first -= 1;
    }
    let whole = pieces.get(first..=last)?;
    let bytes: u64 = whole.iter().map(|piece| piece.bytes).sum();
    if bytes <= FROM_START_BYTES {
        return Some(whole);
    }
    let at = at.unwrap_or(pieces[last].begin.at.utc);
    let needed = at.checked_sub(reach(&pieces[last].begin) + WARM_UP).unwrap_or(at);
    let from = whole.iter().rposition(|piece| piece.begin.at.utc <= needed).unwrap_or(0);
    whole.get(from..)
}

/// How far back the rules depend on the past.
fn reach(begin: &SegmentBegin) -> Duration {
    let Ok(rules) = parsed(&begin.rules) else { return LONGEST_REACH };
    let of_rule = |rule: &Rule| {
        let aim = rule.remedy.as_ref().and_then(|remedy| remedy.aim.as_ref());
        let reads = [Some(&rule.expr), aim].into_iter().flatten();
        let longest = reads.flat_map(|query| query.expr.reads()).map(|(_, reach_ms)| reach_ms);
        let longest = u64::try_from(longest.max().unwrap_or(0)).unwrap_or(0);
        Duration::from_millis(longest) + rule.hold_for + rule.keep_firing_for
    };
    let rules = rules.groups.iter().flat_map(|group| &group.rules);
    rules.map(of_rule).max().unwrap_or_default().min(LONGEST_REACH)
}

/// The progress of a replay of these files.
fn progress_of(chain: &[RecordingFile]) -> Progress {
    Progress::bytes("explain", Some(chain.iter().map(|piece| piece.bytes).sum()))
}

/// Replays these files up to the time. Their bytes count as progress.
fn replay(
    chain: &[RecordingFile],
    name: String,
    at: Option<Timestamp>,
    journal: &OpenedJournal,
    progress: &mut Progress,
) -> anyhow::Result<Option<Recorded>> {
    let Some(first) = chain.first() else { return Ok(None) };
    let mut recorded = Recorded {
        replayer: Replayer::under_recorded_rules(),
        name,
        begin: first.begin.at.utc,
        last: None,
        goes_on: false,
        changes: BTreeMap::new(),
        decisions: VecDeque::new(),
        gaps: Vec::new(),
    };
    for (index, piece) in chain.iter().enumerate() {
        let Ok(file) = open_regular(&piece.path) else {
            recorded.gap(format!("{} is gone meanwhile", piece.path.display()));
            continue;
        };
        let mut reader = SegmentReader::open(BufReader::new(ProgressReader::new(file, progress)))
            .with_context(|| format!("cannot use {}", piece.path.display()))?;
        while let Some(entry) = reader.next_entry()? {
            let time = entry.at().map(|at| at.utc);
            if at.zip(time).is_some_and(|(at, time)| time > at) {
                recorded.goes_on = true;
                return Ok(Some(recorded));
            }
            recorded.take(&entry)?;
            if matches!(entry, RecordingEntry::Begin(_)) && index == 0 && !first.begin.is_start {
                let past = journal.past(first.begin.at, first.begin.next_decision);
                recorded.replayer.resume(first.begin.at, &past);
            }
        }
        // The newest block of the last file may not be on disk yet.
        if let Some(torn) = reader.torn().filter(|_| index + 1 < chain.len()) {
            recorded.gap(format!("{} is {torn}", piece.path.display()));
        }
    }
    Ok(Some(recorded))
}

impl Recorded {
    fn take(&mut self, entry: &RecordingEntry) -> anyhow::Result<()> {
        let stepped = self.replayer.take(entry)?;
        match entry {
            RecordingEntry::Gap { .. } => self.gap("some steps could not be recorded".to_owned()),
            RecordingEntry::Reload { at, .. } => {
                let ended = stepped.ended.iter().map(|change| (change.rule.clone(), *at));
                self.changes.extend(ended);
            }
            RecordingEntry::Step(step) => {
                self.last = Some(step.at);
                let alerts = stepped.step.alerts.iter().map(|change| &change.rule);
                let doubts = stepped.step.doubts.iter().map(|doubt| &doubt.rule);
                for rule in alerts.chain(doubts) {
                    self.changes.insert(rule.clone(), step.at);
                }
                self.remember(step);
            }
            RecordingEntry::Begin(_) => {}
        }
        Ok(())
    }

    /// Keeps the decisions of a step and their results.
    fn remember(&mut self, step: &RecordedStep) {
        for observation in &step.seen {
            let Observation::Outcome(outcome) = observation else { continue };
            let of = |record: &&mut StoredDecision| record.decision.id == outcome.decision;
            if let Some(record) = self.decisions.iter_mut().rev().find(of) {
                record.outcome = Some(outcome.clone());
            }
        }
        for aim_check in &step.said.aim_checks {
            let of = |record: &&mut StoredDecision| record.decision.id == aim_check.decision;
            if let Some(record) = self.decisions.iter_mut().rev().find(of) {
                record.aim_check = Some(aim_check.clone());
            }
        }
        for decision in &step.said.decisions {
            let decision = decision.clone();
            self.decisions.push_back(StoredDecision { decision, outcome: None, aim_check: None });
            if self.decisions.len() > DECISIONS {
                self.decisions.pop_front();
            }
        }
    }

    fn gap(&mut self, what: String) {
        self.replayer.cut();
        if !self.gaps.contains(&what) {
            self.gaps.push(what);
        }
    }

    /// Whether it covers the time, or is the latest.
    fn covers(&self, at: Option<Timestamp>) -> bool {
        let Some(last) = self.last else { return false };
        let is_close = |at: Timestamp| at.duration_since(last.utc) <= STALE_AFTER;
        self.goes_on || at.is_none_or(is_close)
    }

    pub(super) fn rules(&self) -> Arc<[RuleStatus]> {
        self.replayer.policy().map(Policy::rules).unwrap_or_default()
    }

    pub(super) fn explain(&self, rule: &RuleId) -> Option<Explanation> {
        self.replayer.policy()?.explain(rule, self.last?, true)
    }

    /// The time of the explanation.
    pub(super) fn at(&self) -> Timestamp {
        self.last.map_or(self.begin, |last| last.utc)
    }

    /// The begin of the replay.
    pub(super) fn begin(&self) -> Timestamp {
        self.begin
    }

    pub(super) fn is_whole(&self) -> bool {
        self.replayer.is_whole()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// When the rule entered its state, if known.
    pub(super) fn since(&self, rule: &RuleId) -> Option<StateSince> {
        let changed = self.changes.get(rule)?.utc;
        let status = self.rules().iter().find(|status| status.rule == *rule).cloned()?;
        let began = status.alerts.iter().map(|alert| alert.active_since.utc).min();
        let began = began.unwrap_or(changed);
        let may_be_older = !self.is_whole() && began.duration_since(self.begin) < AT_BEGIN;
        (!may_be_older).then_some(StateSince::Exactly(changed))
    }

    /// The rule's newest decisions, the newest last.
    pub(super) fn decisions(&self, rule: &RuleId, most: usize) -> Vec<StoredDecision> {
        let own = self.decisions.iter().filter(|record| record.decision.rule == *rule);
        let mut own: Vec<StoredDecision> = own.rev().take(most).cloned().collect();
        own.reverse();
        own
    }

    /// Remarks about the recording for the reader.
    pub(super) fn remarks(&self, requested: Option<Timestamp>, now: Timestamp) -> Vec<String> {
        let mut remarks = self.gaps.clone();
        if !self.is_whole() {
            remarks.push(format!(
                "it is replayed from {:.3}, not from where the process started: what the rule \
                 remembered then is known only from the journal",
                self.begin
            ));
        }
        let ends = self.at();
        if !self.goes_on && requested.unwrap_or(now).duration_since(ends) > STALE_AFTER {
            let why = match requested {
                Some(_) => "`umawarden run` did not run, or did not record, at the requested time",
                None => "is `umawarden run` running?",
            };
            remarks.push(format!("the recording ends at {ends:.3}, and this is of then: {why}"));
        }
        remarks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_replay_counts_as_progress() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/incidents/harmless-dip");
        let pieces = pieces(&segment_files(&folder));
        let chain = chain(&pieces, None).unwrap();
        let mut progress = progress_of(chain);
        let replayed = replay(chain, String::new(), None, &OpenedJournal::none(), &mut progress);
        assert!(replayed.unwrap().is_some());
        assert_eq!(progress.done(), chain.iter().map(|piece| piece.bytes).sum::<u64>());
        assert!(progress.done() > 0);
    }
}
