//! Log lines of events, decisions and outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tracing::field::debug;

use super::thinning::Thinning;
use crate::journal::JournalError;
use crate::model::{
    AimCheck, AlertChange, AlertState, DeathReport, Decision, DecisionRecord, Event, EventKind,
    Evidence, Grade, HoldReason, MemoryState, Mode, Moment, Observation, OperatorCommand, Outcome,
    OutcomeResult, ProgramEvent, Reading, ReleaseEnd, RuleId, Source, seconds_text,
};
use crate::policy::{Doubt, Step, old_by};

/// So long after the start a rule that is unknown may only wait for a first reading, and old events
/// are read.
const SETTLES: Duration = Duration::from_secs(5);

/// Writes the log with a rate limit.
#[derive(Debug, Default)]
pub(super) struct LogReporter {
    thinning: Thinning,
    /// The logged reason of each source that is down.
    down: BTreeMap<Source, Arc<str>>,
    start: StartReport,
}

/// What the start has brought, which is logged in few lines.
#[derive(Debug, Default)]
struct StartReport {
    /// The end of this time, once it has begun.
    ends: Option<Duration>,
    is_over: bool,
    /// Rules that are unknown so far.
    doubts: BTreeMap<RuleId, Doubt>,
    /// Old events by kind.
    old: BTreeMap<&'static str, u64>,
}

impl StartReport {
    fn is_going_on(&self) -> bool {
        !self.is_over
    }

    /// Logs what is left of it at its end.
    fn advance(&mut self, now: Duration) {
        let ends = *self.ends.get_or_insert(now + SETTLES);
        if self.is_over || now < ends {
            return;
        }
        self.is_over = true;
        if !self.old.is_empty() {
            let kinds: Vec<String> =
                self.old.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
            tracing::info!(
                kinds = kinds.join(", "),
                remedy = "umawarden history",
                "kernel log has events from before this start"
            );
        }
        let mut doubts = std::mem::take(&mut self.doubts);
        // What this machine does not have is no trouble of it, at any start: the picture notes it.
        doubts.retain(|_, doubt| !doubt.is_of_machine());
        if let [only] = Vec::from_iter(doubts.values())[..] {
            return log_doubt(only);
        }
        if !doubts.is_empty() {
            let rules: Vec<String> = doubts.keys().map(ToString::to_string).collect();
            let reasons: BTreeSet<&str> =
                doubts.values().flat_map(|doubt| &doubt.reasons).map(String::as_str).collect();
            let reasons = Vec::from_iter(reasons).join("; ");
            tracing::warn!(rules = rules.join(","), reasons, "rules unknown");
        }
    }

    /// Takes a doubt if it may pass by itself.
    fn take(&mut self, doubt: &Doubt) -> bool {
        if !self.is_going_on() {
            return false;
        }
        if doubt.reasons.is_empty() {
            self.doubts.remove(&doubt.rule);
            tracing::debug!(rule = %doubt.rule, "rule known again");
        } else {
            let reasons = doubt.reasons.join("; ");
            tracing::debug!(rule = %doubt.rule, reasons, "rule unknown");
            self.doubts.insert(doubt.rule.clone(), doubt.clone());
        }
        true
    }
}

impl LogReporter {
    /// Logs the result of a step, rate-limited. All of it is counted and journalled, except
    /// suppressed changes of flapping alerts: these are removed, since they would displace
    /// everything else in the journal.
    pub(super) fn step(&mut self, at: Moment, step: &mut Step) {
        let now = at.uptime;
        for seen in &step.events {
            if self.start.is_going_on() && seen.is_kernel() && is_old(seen, at) {
                *self.start.old.entry(seen.kind.kind()).or_default() += 1;
                log_old(seen);
                continue;
            }
            if self.passes(now, seen.kind.kind().to_owned()) {
                event(seen, at);
            }
        }
        for change in &step.doubts {
            if !self.start.take(change)
                && self.passes(now, format!("doubts about rule {}", change.rule))
            {
                log_doubt(change);
            }
        }
        step.alerts.retain(|change| {
            let passes = self.passes(now, format!("alerts of rule {}", change.rule));
            if passes {
                alert(change);
            }
            passes
        });
        for made in &step.decisions {
            // Real acts are always logged; guard rails limit them.
            let done = made.is_act() && made.mode == Mode::Enforce;
            if done || self.passes(now, format!("decisions of rule {}", made.rule)) {
                decision(made);
            }
        }
        step.aim_checks.iter().for_each(aim_check);
    }

    /// Logs sources that have failed or recovered. The kernel log and the journal log more
    /// themselves.
    pub(super) fn sources(&mut self, now: Duration, seen: &[Observation]) {
        self.start.advance(now);
        for observation in seen {
            let Observation::Readings(readings) = observation else { continue };
            let source = readings.source;
            if matches!(source, Source::KernelLog | Source::Journal)
                || self.down.get(&source) == readings.error.as_ref()
            {
                continue;
            }
            let name = source.name();
            let passes = self.passes(now, format!("source {name}"));
            match &readings.error {
                None => {
                    self.down.remove(&source);
                    if passes {
                        tracing::info!(source = name, "source up");
                    }
                }
                Some(reason) => {
                    self.down.insert(source, Arc::clone(reason));
                    if passes {
                        tracing::warn!(source = name, %reason, "source down");
                    }
                }
            }
        }
    }

    fn passes(&mut self, now: Duration, subject: String) -> bool {
        let withheld = self.thinning.pass(subject.clone(), now);
        if let Some(lines @ 1..) = withheld {
            tracing::warn!(subject, lines, "log lines suppressed");
        }
        withheld.is_some()
    }
}

/// An old record in the kernel log is no news, and its line says so: the time of the line is that
/// of reading.
fn event(event: &Event, now: Moment) {
    let (kind, seq) = (event.kind.kind(), event.seq);
    let detail = serde_json::to_string(&event.kind).unwrap_or_default();
    if let EventKind::Program(program) = &event.kind
        && let ProgramEvent::EnginePhase { engine, to, reason, pod, .. } = program
    {
        let pod = pod.as_ref().map(tracing::field::display);
        return tracing::info!(engine, pod, phase = to.name(), reason, "engine phase");
    }
    if let EventKind::Program(program) = &event.kind
        && let ProgramEvent::EngineStuck { engine, stuck, reason, pod, .. } = program
    {
        let pod = pod.as_ref().map(tracing::field::display);
        return match stuck {
            true => tracing::warn!(engine, pod, reason, "engine stuck"),
            false => tracing::warn!(engine, pod, reason, "engine no longer stuck"),
        };
    }
    if let EventKind::Program(program) = &event.kind
        && let ProgramEvent::EngineRankLost { engine, node, reason, memory_bytes, .. } = program
    {
        return tracing::warn!(engine, node, reason, memory_bytes, "engine rank lost");
    }
    if let EventKind::Program(ProgramEvent::EngineRestart { engine, to, reason, .. }) = &event.kind
    {
        let (state, meaning) = (to.name(), to.meaning());
        return tracing::warn!(engine, state, meaning, reason, "deferred restart");
    }
    if let EventKind::Program(ProgramEvent::EngineDied { report }) = &event.kind {
        return death(report);
    }
    if let EventKind::Program(ProgramEvent::EngineRelease { engine, release, .. }) = &event.kind {
        let text = release.to_string();
        return match release.end {
            ReleaseEnd::Stayed => tracing::warn!(engine, text, "memory of a dead engine"),
            _ => tracing::info!(engine, text, "memory of a dead engine"),
        };
    }
    if let EventKind::Program(ProgramEvent::EngineLoad { engine, receipt, .. }) = &event.kind {
        return tracing::info!(engine, receipt = receipt.to_string(), "engine load");
    }
    if let EventKind::Program(ProgramEvent::Lease { who, .. }) = &event.kind {
        return tracing::info!(who = &**who, detail, "lease");
    }
    if let EventKind::Program(ProgramEvent::UnaccountedBaseline { pool, bytes }) = &event.kind {
        return tracing::info!(pool = &**pool, bytes, "unaccounted baseline");
    }
    if let EventKind::Program(ProgramEvent::MemoryAssessed { state, evidence, .. }) = &event.kind {
        let (name, why) = (state.name(), evidence.join("; "));
        let is_bad = matches!(state, MemoryState::Leaked | MemoryState::Wedged);
        let meaning = state.meaning();
        return match is_bad {
            true => tracing::error!(verdict = name, meaning, why, "memory assessed"),
            false => tracing::info!(verdict = name, meaning, why, "memory assessed"),
        };
    }
    if let EventKind::Program(ProgramEvent::ReceivedAlert { to, alert }) = &event.kind {
        return tracing::info!(state = to.name(), alert = alert.to_string(), "received alert");
    }
    match event.utc.filter(|utc| old_by(*utc, now).is_some()) {
        _ if event.is_claimed() => {
            tracing::info!(kind, seq, detail, "claimed kernel event, which may be forged");
        }
        None => tracing::warn!(kind, seq, detail, "kernel event"),
        Some(happened) => tracing::info!(kind, seq, detail, %happened, "old kernel event"),
    }
}

/// Whether it was in the log before this start.
fn is_old(event: &Event, now: Moment) -> bool {
    event.utc.is_some_and(|utc| old_by(utc, now).is_some())
}

fn log_old(event: &Event) {
    let (kind, seq) = (event.kind.kind(), event.seq);
    let detail = serde_json::to_string(&event.kind).unwrap_or_default();
    let happened = event.utc.map(tracing::field::display);
    match event.is_claimed() {
        true => tracing::debug!(
            kind,
            seq,
            detail,
            happened,
            "claimed kernel event, which may be forged"
        ),
        false => tracing::debug!(kind, seq, detail, happened, "old kernel event"),
    }
}

fn death(report: &DeathReport) {
    let (engine, killer, is_failure) = (&report.who.name, report.killer.name(), report.is_failure);
    let advice = report.advice.join("; ");
    let (cause, text) = (report.cause.as_deref(), report.sentence());
    if is_failure {
        tracing::warn!(%engine, killer, cause, advice, text, "engine died");
    } else {
        tracing::info!(%engine, killer, text, "engine ended");
    }
}

fn log_doubt(doubt: &Doubt) {
    if doubt.reasons.is_empty() {
        tracing::info!(rule = %doubt.rule, "rule known again");
    } else {
        let reasons = doubt.reasons.join("; ");
        tracing::warn!(rule = %doubt.rule, reasons, "rule unknown");
    }
}

fn alert(change: &AlertChange) {
    let (from, to) = (change.from.name(), change.to.name());
    let summary = change.annotations.get("summary").map_or("", String::as_str);
    let value = change.value.value();
    if change.to == AlertState::Firing {
        tracing::warn!(rule = %change.rule, from, to, value, summary, "alert");
    } else {
        tracing::info!(rule = %change.rule, from, to, value, summary, "alert");
    }
}

fn decision(decision: &DecisionRecord) {
    let (id, rule, action) = (decision.id, &decision.rule, decision.deed());
    let because = list(&decision.because);
    match (decision.decision, decision.mode) {
        (Decision::Hold(HoldReason::Announced), mode) => {
            let text = decision.announced().unwrap_or_default();
            let left = decision.goes_ahead.map(|due| due.duration_since(decision.at.utc));
            let left = left.and_then(|left| Duration::try_from(left).ok()).map(seconds_text);
            let mode = mode.name();
            tracing::warn!(%id, %rule, mode, left, because, text, "announced");
        }
        (Decision::Hold(reason), _) => {
            let (reason, grade) =
                (reason.name(), decision.unenforced().map(|_| decision.action.grade()));
            let grade = grade.map(Grade::name);
            tracing::info!(%id, %rule, %action, reason, grade, because, "hold");
        }
        (Decision::Act, Mode::Observe) => {
            tracing::warn!(%id, %rule, %action, because, "would act (observe mode)");
        }
        (Decision::Act, Mode::Enforce) => tracing::warn!(%id, %rule, %action, because, "act"),
    }
}

/// Logs an order.
pub(super) fn order(command: &OperatorCommand) {
    let order = command.order.name();
    let detail = serde_json::to_string(&command.order).unwrap_or_default();
    tracing::warn!(order, author = command.author, comment = command.comment, detail, "order");
}

/// Logs that the journal could not be closed, the consequence, and the remedy.
pub(super) fn journal_lacks_newest(dir: &Path, error: &JournalError) {
    let reason = match error {
        JournalError::Dropped => "they could not be written".to_owned(),
        error => error.to_string(),
    };
    tracing::error!(
        reason,
        dir = %dir.display(),
        effect = "this log alone has them; the kernel log is read again from where they begin",
        remedy = "check the space, the permissions and the health of the disk",
        "the journal lacks its newest entries"
    );
}

/// Logs an outcome.
pub(super) fn outcome(outcome: &Outcome) {
    let (id, action, took) = (outcome.decision, outcome.action.as_str(), outcome.took);
    match &outcome.result {
        OutcomeResult::Done => {
            // The duration of an immediate action is not logged.
            let took = (!took.is_zero()).then(|| debug(took));
            tracing::info!(%id, action, took, effect = outcome.effect, "done");
        }
        OutcomeResult::Skipped => tracing::debug!(%id, action, "skipped (observe mode)"),
        OutcomeResult::NotDone(why) => tracing::error!(%id, action, why, "not done"),
        OutcomeResult::Failed(error) => tracing::error!(%id, action, error, "failed"),
        OutcomeResult::TimedOut => {
            tracing::error!(%id, action, ?took, "timed out; the action may still be running")
        }
    }
}

fn aim_check(aim_check: &AimCheck) {
    let (id, before, after) = (aim_check.decision, list(&aim_check.before), list(&aim_check.after));
    if aim_check.has_aim {
        let aim = match aim_check.aim_met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "unknown",
        };
        tracing::info!(%id, aim, before, after, "measured");
    } else {
        let condition = match aim_check.aim_met {
            Some(true) => "ended",
            Some(false) => "holds",
            None => "unknown",
        };
        tracing::info!(%id, condition, before, after, "measured");
    }
}

fn list(evidence: &[Evidence]) -> String {
    let one = |evidence: &Evidence| match evidence.value {
        Reading::Value(value) => format!("{}={value}", evidence.series),
        Reading::Unsupported => format!("{}=unsupported", evidence.series),
        Reading::Failed => format!("{}=failed", evidence.series),
    };
    evidence.iter().map(one).collect::<Vec<_>>().join(" ")
}
