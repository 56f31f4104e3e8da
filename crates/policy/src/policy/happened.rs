//! What happened lately, one line each, for people.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::Step;
use crate::model::{
    AlertChange, AlertState, Decision, DecisionRecord, Event, EventKind, HoldReason, KernelEvent,
    LeaseChange, LeaseEnd, MOST_HAPPENED, MOST_PAST_HAPPENED, MemoryState, Mode, Moment, Outcome,
    OutcomeResult, ProgramEvent, ReceivedTurn, RecentEvent, RecentEventKind, RecentEventLevel,
    Target, printable_beginning,
};

/// Longer texts are cut. Names in them may be hostile.
const MOST_CHARS: usize = 400;

/// What happens again within this time is the same entry.
const AGAIN_WITHIN: SignedDuration = SignedDuration::from_secs(600);

/// Events of one step that are described; a storm in the kernel log has thousands.
const MOST_OF_STEP: usize = 64;

/// The newest entries.
#[derive(Debug)]
pub(super) struct Happenings {
    /// The newest first.
    newest: VecDeque<RecentEvent>,
    shared: Arc<[RecentEvent]>,
    has_changed: bool,
}

impl Default for Happenings {
    fn default() -> Self {
        Self { newest: VecDeque::new(), shared: Arc::new([]), has_changed: false }
    }
}

impl Happenings {
    /// Takes the results of a step. It allocates nothing where nothing has happened.
    pub(super) fn take(&mut self, at: Moment, step: &Step) {
        let first = step.events.len().saturating_sub(MOST_OF_STEP);
        let events = step.events.iter().skip(first).filter_map(|event| of_event(event, at));
        let alerts = step.alerts.iter().filter_map(of_alert);
        let decisions = step.decisions.iter().map(of_decision);
        for entry in events.chain(alerts).chain(decisions) {
            self.add(entry);
        }
    }

    /// Takes the end of an action.
    pub(super) fn take_outcome(&mut self, outcome: &Outcome) {
        if let Some(entry) = of_outcome(outcome) {
            self.add(entry);
        }
    }

    fn add(&mut self, entry: RecentEvent) {
        add(&mut self.newest, entry, MOST_HAPPENED);
        self.has_changed = true;
    }

    /// The newest first; the same `Arc` while nothing happens.
    pub(super) fn shared(&mut self) -> Arc<[RecentEvent]> {
        if std::mem::take(&mut self.has_changed) {
            self.shared = self.newest.iter().cloned().collect();
        }
        Arc::clone(&self.shared)
    }
}

/// Adds the newest entry; so many are kept. One that happened before within ten minutes is counted
/// instead.
fn add(newest: &mut VecDeque<RecentEvent>, mut entry: RecentEvent, most: usize) {
    let is_same = |known: &RecentEvent| {
        (known.kind, &known.rule, &known.text) == (entry.kind, &entry.rule, &entry.text)
            && entry.at.duration_since(known.at) < AGAIN_WITHIN
    };
    if let Some(place) = newest.iter().position(is_same)
        && let Some(known) = newest.remove(place)
    {
        entry.times = known.times.saturating_add(1);
    }
    newest.push_front(entry);
    newest.truncate(most);
}

/// The newest entries of both, those of `earlier` beyond the ones of this run. This run's may be
/// among `earlier`: it journals what the kernel log has of the time before its start.
pub fn merged(newest: &[RecentEvent], earlier: &[RecentEvent]) -> Vec<RecentEvent> {
    let mut all = joined(newest, earlier.iter().cloned(), |apart| apart.is_zero());
    all.truncate(MOST_HAPPENED);
    all
}

/// What happened since then, the newest first: the entries of this run, and those of the journal,
/// which has more of them, and may not have the newest yet.
pub fn past(
    newest: &[RecentEvent],
    journalled: Vec<RecentEvent>,
    since: Timestamp,
) -> Vec<RecentEvent> {
    let mut all = joined(newest, journalled, |apart| apart.abs() < AGAIN_WITHIN);
    all.retain(|entry| entry.at >= since);
    all.truncate(MOST_PAST_HAPPENED);
    all
}

/// The entries of this run and those of others, the newest first. An entry of others is one of this
/// run if it says the same, and `is_same` holds for the time between both.
fn joined(
    newest: &[RecentEvent],
    others: impl IntoIterator<Item = RecentEvent>,
    is_same: fn(SignedDuration) -> bool,
) -> Vec<RecentEvent> {
    let is_own = |entry: &RecentEvent| {
        newest.iter().any(|own| {
            (own.kind, &own.rule, &own.text) == (entry.kind, &entry.rule, &entry.text)
                && is_same(own.at.duration_since(entry.at))
        })
    };
    let others = others.into_iter().filter(|entry| !is_own(entry));
    let mut all: Vec<RecentEvent> = newest.iter().cloned().chain(others).collect();
    all.sort_by_key(|entry| std::cmp::Reverse(entry.at));
    all
}

/// Entries of the journal, the newest first, as they are shown; at most so many.
pub fn folded(entries: impl IntoIterator<Item = RecentEvent>, most: usize) -> Vec<RecentEvent> {
    let mut newest = VecDeque::new();
    for entry in entries {
        add(&mut newest, entry, most);
    }
    newest.into()
}

fn entry(at: Timestamp, kind: RecentEventKind, level: RecentEventLevel, text: &str) -> RecentEvent {
    let (text, times) = (printable_beginning(text, MOST_CHARS), 1);
    RecentEvent { at, kind, level, text, id: None, rule: None, engine: None, times }
}

/// The entry of an event; `None` for events that only matter to programs.
pub fn of_event(event: &Event, now: Moment) -> Option<RecentEvent> {
    let at = event.utc.unwrap_or(now.utc);
    let (level, text) = match &event.kind {
        EventKind::Kernel(kernel) if event.is_claimed() => {
            (RecentEventLevel::Info, format!("a line that may be forged: {kernel}"))
        }
        EventKind::Kernel(kernel) => (level_of_kernel(kernel), kernel.to_string()),
        EventKind::Program(program) => (level_of_program(program)?, program.to_string()),
    };
    let entry = entry(at, RecentEventKind::Event, level, &text);
    Some(RecentEvent { engine: engine_of(&event.kind).map(str::to_owned), ..entry })
}

fn engine_of(kind: &EventKind) -> Option<&str> {
    match kind {
        EventKind::Program(ProgramEvent::EngineDied { report }) => Some(&report.who.name),
        EventKind::Program(
            ProgramEvent::EngineStuck { engine, .. } | ProgramEvent::EngineRankLost { engine, .. },
        ) => Some(engine),
        _ => None,
    }
}

fn level_of_kernel(event: &KernelEvent) -> RecentEventLevel {
    match event {
        KernelEvent::UvmFatal
        | KernelEvent::GpuLost { .. }
        | KernelEvent::OomNoVictim
        | KernelEvent::OomPanic => RecentEventLevel::Critical,
        KernelEvent::OomReaped { .. } => RecentEventLevel::Info,
        _ => RecentEventLevel::Warning,
    }
}

fn level_of_program(event: &ProgramEvent) -> Option<RecentEventLevel> {
    Some(match event {
        // It turns with each request.
        ProgramEvent::EnginePhase { from: Some(from), to, .. } if from.is_up() && to.is_up() => {
            return None;
        }
        ProgramEvent::UnaccountedBaseline { .. } => return None,
        // The phases and the end of its engine say the same.
        ProgramEvent::Lease {
            change: LeaseChange::Ended(LeaseEnd::Ready | LeaseEnd::Taken | LeaseEnd::ProcessEnded),
            ..
        } => return None,
        ProgramEvent::UncleanBoot { .. } | ProgramEvent::EngineRankLost { .. } => {
            RecentEventLevel::Critical
        }
        ProgramEvent::MemoryAssessed { state, .. } => match state {
            MemoryState::Leaked | MemoryState::Wedged => RecentEventLevel::Critical,
            MemoryState::Orphan | MemoryState::HeldShmem => RecentEventLevel::Warning,
            _ => RecentEventLevel::Info,
        },
        ProgramEvent::EngineStuck { stuck: true, .. } | ProgramEvent::JournalLost { .. } => {
            RecentEventLevel::Warning
        }
        ProgramEvent::EngineDied { report } if report.is_failure => RecentEventLevel::Warning,
        ProgramEvent::ReceivedAlert { to: ReceivedTurn::Firing, .. } => RecentEventLevel::Warning,
        _ => RecentEventLevel::Info,
    })
}

/// The entry of an alert that began or ceased to fire.
pub fn of_alert(change: &AlertChange) -> Option<RecentEvent> {
    let summary = change.annotations.get("summary").map(String::as_str).unwrap_or_default();
    let colon = if summary.is_empty() { "" } else { ": " };
    let alert = &change.rule.alert;
    let (level, text) = match (change.from, change.to) {
        (_, AlertState::Firing) => {
            let is_critical =
                change.labels.get("severity").is_some_and(|severity| **severity == *"critical");
            let level =
                if is_critical { RecentEventLevel::Critical } else { RecentEventLevel::Warning };
            (level, format!("{alert} fires{colon}{summary}"))
        }
        (AlertState::Firing, _) => (RecentEventLevel::Info, format!("{alert} has ended")),
        _ => return None,
    };
    let entry = entry(change.at.utc, RecentEventKind::Alert, level, &text);
    Some(RecentEvent { rule: Some(change.rule.to_string()), ..entry })
}

/// The entry of a decision. In observe mode it says what would have been done.
pub fn of_decision(made: &DecisionRecord) -> RecentEvent {
    let (level, text) = match (made.decision, made.mode) {
        (Decision::Act, Mode::Enforce) => (RecentEventLevel::Warning, made.deed()),
        (Decision::Act, Mode::Observe) => {
            (RecentEventLevel::Info, format!("would {} (observe mode)", made.deed()))
        }
        (Decision::Hold(HoldReason::NotEnforced), _) => {
            (RecentEventLevel::Info, made.unenforced().unwrap_or_default())
        }
        (Decision::Hold(HoldReason::Announced), _) => {
            (RecentEventLevel::Warning, made.announced().unwrap_or_default())
        }
        (Decision::Hold(reason), _) => {
            let level = match reason {
                HoldReason::Approval => RecentEventLevel::Warning,
                _ => RecentEventLevel::Info,
            };
            (level, format!("holds {}: {}", made.deed(), reason.meaning()))
        }
    };
    let text = format!("{}: {text}", made.rule.alert);
    let entry = entry(made.at.utc, RecentEventKind::Decision, level, &text);
    let engine = match &made.target {
        Target::Engine(engine) => Some(engine.name.to_string()),
        _ => None,
    };
    RecentEvent { id: Some(made.id.0), rule: Some(made.rule.to_string()), engine, ..entry }
}

/// The entry of an action that was not done as decided, or has a measured effect.
pub fn of_outcome(outcome: &Outcome) -> Option<RecentEvent> {
    let action = &outcome.action;
    let (level, text) = match (&outcome.result, &outcome.effect) {
        (OutcomeResult::Skipped, _) | (OutcomeResult::Done, None) => return None,
        (OutcomeResult::Done, Some(effect)) => {
            (RecentEventLevel::Info, format!("{action} done: {effect}"))
        }
        (OutcomeResult::NotDone(why), _) => {
            (RecentEventLevel::Warning, format!("{action} was not done: {why}"))
        }
        (OutcomeResult::Failed(why), _) => {
            (RecentEventLevel::Critical, format!("{action} failed: {why}"))
        }
        (OutcomeResult::TimedOut, _) => (
            RecentEventLevel::Critical,
            format!("{action} has not ended in time, and may still be going on"),
        ),
    };
    let entry = entry(outcome.ended.utc, RecentEventKind::Decision, level, &text);
    Some(RecentEvent { id: Some(outcome.decision.0), ..entry })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn event(second: i64, text: &str) -> RecentEvent {
        entry(at(second), RecentEventKind::Event, RecentEventLevel::Info, text)
    }

    #[test]
    fn what_happens_again_soon_is_counted_and_a_flood_does_not_drown_the_rest() {
        let mut newest = VecDeque::new();
        add(&mut newest, event(0, "the one"), MOST_HAPPENED);
        for second in 0..500 {
            let text = if second % 2 == 0 { "a" } else { "b" };
            add(&mut newest, event(second, text), MOST_HAPPENED);
        }
        let texts: Vec<(&str, u64)> =
            newest.iter().map(|entry| (entry.text.as_str(), entry.times)).collect();
        assert_eq!(texts, [("b", 250), ("a", 250), ("the one", 1)]);
        add(&mut newest, event(2_000, "a"), MOST_HAPPENED);
        assert_eq!((newest.len(), newest[0].times), (4, 1), "ten minutes later it is another");
    }

    #[test]
    fn entries_are_bounded_and_of_printable_text() {
        let mut newest = VecDeque::new();
        for number in 0..100 {
            add(&mut newest, event(number, &number.to_string()), MOST_HAPPENED);
        }
        assert_eq!((newest.len(), newest[0].text.as_str()), (MOST_HAPPENED, "99"));
        let hostile = event(0, &format!("<b>\u{1b}[31m\n{}", "x".repeat(10_000)));
        assert!(hostile.text.starts_with("<b>\\u{1b}[31m\\nx"), "{}", hostile.text);
        assert_eq!(hostile.text.chars().last(), Some('…'));
        assert!(hostile.text.chars().count() < MOST_CHARS + 20);
    }

    #[test]
    fn of_leases_only_what_no_engine_shows_is_an_entry() {
        let now = Moment { uptime: std::time::Duration::ZERO, utc: at(0) };
        let is_shown = |change| {
            let (who, id) = ("chat".into(), "1".into());
            let kind = ProgramEvent::Lease { who, id, need_bytes: 1, by: None, change };
            of_event(&Event { kind: kind.into(), utc: None, seq: None }, now).is_some()
        };
        assert!(is_shown(LeaseChange::Granted));
        assert!(is_shown(LeaseChange::Ended(LeaseEnd::Expired)));
        assert!(is_shown(LeaseChange::Ended(LeaseEnd::Withdrawn)));
        assert!(!is_shown(LeaseChange::Ended(LeaseEnd::Ready)));
        assert!(!is_shown(LeaseChange::Ended(LeaseEnd::ProcessEnded)));
    }

    #[test]
    fn entries_of_earlier_runs_follow_those_of_this_one() {
        let newest = [event(9, "new"), event(5, "older")];
        // What the kernel log has of the time before the start is journalled by this run.
        let earlier = [event(7, "of the run before"), event(5, "older")];
        let texts: Vec<String> =
            merged(&newest, &earlier).into_iter().map(|entry| entry.text).collect();
        assert_eq!(texts, ["new", "of the run before", "older"]);
    }

    #[test]
    fn the_past_has_what_the_journal_has_beyond_the_newest_entries() {
        let newest = [event(900, "again"), event(800, "not journalled yet")];
        let journalled = (0..300).map(|second| event(second, &second.to_string()));
        let journalled = journalled.chain([event(600, "again")]).collect();
        let past = past(&newest, journalled, at(100));
        let texts: Vec<&str> = past.iter().take(3).map(|entry| entry.text.as_str()).collect();
        assert_eq!(texts, ["again", "not journalled yet", "299"]);
        assert_eq!((past.len(), past[199].text.as_str()), (MOST_PAST_HAPPENED, "102"));
    }
}
