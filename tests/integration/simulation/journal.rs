//! The journal of a simulated process, and how much of it a crash leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use umawarden::journal::JournalEntry;
use umawarden::model::{
    AimCheck, AlertChange, AlertState, DecisionId, DecisionRecord, EarlierRuns, EnginePhase, Event,
    EventKind, FleetAction, HoldReason, Moment, OperatorCommand, OperatorOrder, Outcome,
    OutcomeResult, PastAct, PastReboots, PastReceived, PendingApproval, ProgramEvent, RestartState,
};
use umawarden::policy::guard::{PastMoment, on_this_boots_clock};

use super::chance::Chance;
use super::checker::engine_of;

/// The greatest age of written entries that are not on disk.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// Limit for stored received alerts.
const MAX_RECEIVED: usize = 2_000;

#[derive(Default)]
pub struct Kept {
    entries: Vec<(Duration, JournalEntry)>,
    /// Number of entries that are on disk in any case.
    safe: usize,
    down_until: Duration,
    commands: Vec<OperatorCommand>,
    /// Where the entries of the newest boot begin.
    boot_begins_at: Option<(Arc<str>, usize)>,
    ends: BTreeMap<DecisionId, OutcomeResult>,
    aim_checks: BTreeMap<DecisionId, (Option<bool>, Option<EnginePhase>)>,
}

/// Entries that a crash has lost.
#[derive(Default)]
pub struct Lost {
    pub decisions: BTreeSet<DecisionId>,
    /// Acts without a known result any more.
    pub aim_checks: BTreeSet<DecisionId>,
}

fn approval_for(decision: &DecisionRecord) -> PendingApproval {
    PendingApproval {
        decision: decision.id,
        rule: decision.rule.clone(),
        mode: decision.mode,
        step: decision.step,
        action: decision.action.clone(),
        target: decision.target.clone(),
        since: decision.at.utc,
        goes_ahead: decision.goes_ahead.map(|utc| {
            let left = Duration::try_from(utc.duration_since(decision.at.utc)).unwrap_or_default();
            Moment { utc, uptime: decision.at.uptime + left }
        }),
    }
}

impl Kept {
    pub fn record(&mut self, now: Duration, entry: JournalEntry) {
        match &entry {
            JournalEntry::Outcome(outcome) => {
                self.ends.insert(outcome.decision, outcome.result.clone());
            }
            JournalEntry::AimCheck(check) => {
                self.aim_checks.insert(check.decision, (check.aim_met, check.died_in));
            }
            _ => {}
        }
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

    /// Loses the entries that were not on disk yet.
    pub fn crash(&mut self, now: Duration, chance: &mut Chance) -> Lost {
        if self.is_up(now) {
            let old = now.saturating_sub(WRITTEN_WITHIN);
            let written = self.entries.partition_point(|(at, _)| *at <= old);
            self.safe = self.safe.max(written);
        }
        let left = chance.whole(self.safe as u64..=self.entries.len() as u64) as usize;
        let left = if self.is_up(now) { left } else { self.safe };
        if let Some((_, begins_at)) = &mut self.boot_begins_at {
            *begins_at = left.min(*begins_at);
        }
        let mut lost = Lost::default();
        for (_, entry) in self.entries.drain(left..) {
            match entry {
                JournalEntry::Decision(decision) => {
                    lost.decisions.insert(decision.id);
                }
                JournalEntry::Outcome(outcome) => {
                    self.ends.remove(&outcome.decision);
                }
                JournalEntry::AimCheck(check) => {
                    self.aim_checks.remove(&check.decision);
                    lost.aim_checks.insert(check.decision);
                }
                _ => {}
            }
        }
        lost
    }

    /// As the daemon requests it: by time where the journal has no answer.
    pub fn next_decision(&self, now: Duration, at: Moment) -> DecisionId {
        if !self.is_up(now) {
            return DecisionId(u64::try_from(at.utc_ms()).unwrap_or(0).max(1));
        }
        let last = self.decisions().map(|decision| decision.id.0).max();
        DecisionId(last.unwrap_or(0) + 1)
    }

    /// An order is on disk before it is obeyed.
    pub fn order(&mut self, now: Duration, command: OperatorCommand) {
        self.commands.push(command.clone());
        self.record(now, JournalEntry::Operator(command));
        self.safe = self.entries.len();
    }

    /// Number of orders so far.
    pub fn orders(&self) -> usize {
        self.commands.len()
    }

    /// Input of the guard rails from earlier runs; `None` while the disk fails. `commands`: number
    /// of orders when the process started.
    pub fn past(
        &mut self,
        now: Duration,
        at: Moment,
        boot: &Arc<str>,
        commands: usize,
    ) -> Option<EarlierRuns> {
        if !self.is_up(now) {
            return None;
        }
        let index = self.entries.len();
        let (known, begins_at) = self.boot_begins_at.get_or_insert((Arc::clone(boot), index));
        if known != boot {
            (*known, *begins_at) = (Arc::clone(boot), index);
        }
        let begins_at = *begins_at;
        let acts: Vec<_> = self.acts().collect();
        let moment = |(index, act): &(usize, &DecisionRecord)| PastMoment {
            at: act.at,
            is_this_boot: *index >= begins_at,
        };
        let moments: Vec<_> = acts.iter().map(moment).collect();
        let acts = acts.iter().zip(on_this_boots_clock(at, &moments));
        let requests = self.entries.iter().enumerate().filter_map(|(index, (_, entry))| {
            let JournalEntry::Decision(decision) = entry else { return None };
            let is_open = match decision.hold_reason() {
                Some(HoldReason::Approval) => true,
                Some(HoldReason::Announced) => index >= begins_at && !self.ended(index, decision),
                _ => false,
            };
            is_open.then(|| approval_for(decision))
        });
        Some(EarlierRuns {
            unaccounted_baselines: self.baselines(boot),
            acts: acts.map(|((index, act), ms)| self.past_act(*index, act, ms)).collect(),
            asked: requests.collect(),
            commands: self.commands[..commands].to_vec(),
            restart_states: self.last_states(),
            restart_ranks: BTreeMap::new(),
            received: self.received(),
            reboots: PastReboots::default(),
            loads: Vec::new(),
            lost_before_ms: None,
        })
    }

    /// Whether an alert of the rule has ended since that entry.
    fn ended(&self, index: usize, decision: &DecisionRecord) -> bool {
        let later = self.entries[index..].iter();
        later
            .filter_map(|(_, entry)| match entry {
                JournalEntry::Alert(change) => Some(change),
                _ => None,
            })
            .any(|change| change.rule == decision.rule && change.from == AlertState::Firing)
    }

    /// Reported events of kernel log, engines and restarts, each with its boot.
    fn events(&self) -> impl DoubleEndedIterator<Item = (&Arc<str>, &Event)> {
        self.entries.iter().flat_map(|(_, entry)| match entry {
            JournalEntry::KernelLog { boot_id, events, .. } => {
                events.iter().map(|event| (boot_id, event)).collect()
            }
            _ => Vec::new(),
        })
    }

    fn baselines(&self, boot: &Arc<str>) -> BTreeMap<Arc<str>, u64> {
        let of_boot = self.events().filter(|(of, _)| *of == boot);
        let baselines = of_boot.filter_map(|(_, event)| match &event.kind {
            EventKind::Program(ProgramEvent::UnaccountedBaseline { pool, bytes }) => {
                Some((Arc::clone(pool), *bytes))
            }
            _ => None,
        });
        baselines.collect()
    }

    fn last_states(&self) -> BTreeMap<Arc<str>, RestartState> {
        let mut states = BTreeMap::new();
        for (_, event) in self.events() {
            if let EventKind::Program(ProgramEvent::EngineRestart { engine, to, .. }) = &event.kind
                && *to != RestartState::Unknown
            {
                states.insert(Arc::from(engine.as_str()), *to);
            }
        }
        states
    }

    /// The last turn of each received alert, oldest first; the newest ones if there are too many.
    fn received(&self) -> Vec<PastReceived> {
        let mut last: BTreeMap<Arc<str>, (usize, PastReceived)> = BTreeMap::new();
        for (index, (_, event)) in self.events().enumerate() {
            if let EventKind::Program(ProgramEvent::ReceivedAlert { to, alert }) = &event.kind {
                let (to, alert, utc) = (*to, Arc::clone(alert), event.utc);
                let last_turn = PastReceived { to, alert, utc };
                last.insert(Arc::clone(&last_turn.alert.fingerprint), (index, last_turn));
            }
        }
        let mut last: Vec<_> = last.into_values().collect();
        last.sort_by_key(|(index, _)| *index);
        let over = last.len().saturating_sub(MAX_RECEIVED);
        last.drain(..over);
        last.into_iter().map(|(_, last_turn)| last_turn).collect()
    }

    /// With their positions. An undo of another act does not count.
    fn acts(&self) -> impl Iterator<Item = (usize, &DecisionRecord)> {
        self.entries.iter().enumerate().filter_map(|(index, (_, entry))| match entry {
            JournalEntry::Decision(decision) if decision.is_act() && !decision.action.is_undo() => {
                Some((index, decision))
            }
            _ => None,
        })
    }

    /// Whether its breaker was reset after its result.
    fn is_forgiven(&self, index: usize, act: &DecisionRecord) -> bool {
        self.entries[index..].iter().rev().find_map(|(_, entry)| match entry {
            JournalEntry::AimCheck(check) if check.decision == act.id => Some(false),
            JournalEntry::Operator(command) => match &command.order {
                OperatorOrder::ResetBreaker { rules } => rules.selects(&act.rule).then_some(true),
                _ => None,
            },
            _ => None,
        }) == Some(true)
    }

    fn past_act(&self, index: usize, act: &DecisionRecord, uptime_ms: i64) -> PastAct {
        let outcome = self.ends.get(&act.id);
        let aim_check = self.aim_checks.get(&act.id);
        let was_begun = outcome.is_none_or(OutcomeResult::is_begun);
        let was_not_done = matches!(outcome, Some(OutcomeResult::NotDone(_)));
        PastAct {
            id: act.id,
            rule: act.rule.clone(),
            mode: act.mode,
            step: act.step,
            is_notice: act.action.is_notice(),
            uptime_ms,
            utc: act.at.utc,
            has_ended: outcome.is_some_and(|result| *result != OutcomeResult::TimedOut)
                || aim_check.is_some(),
            aim_met: aim_check.and_then(|(aim_met, _)| *aim_met),
            approved: act.approved.filter(|_| !was_not_done),
            started_after: act.action.starts_after().filter(|_| was_begun).cloned(),
            died_in: aim_check.and_then(|(_, died_in)| *died_in),
            engine: engine_of(act),
            takes_from_engine: act.action.takes_from_engine(),
            fleet_action: FleetAction::of(&act.action),
            is_forgiven: self.is_forgiven(index, act),
        }
    }

    /// The position in this boot's kernel log, and the later records whose events are known.
    pub fn resume_point(&self, boot: &Arc<str>) -> Option<(u64, BTreeSet<u64>)> {
        let of_boot = self.entries.iter().filter_map(|(_, entry)| match entry {
            JournalEntry::KernelLog { boot_id, events, resume_seq } if boot_id == boot => {
                Some((events, *resume_seq))
            }
            _ => None,
        });
        let (all, resume): (Vec<_>, Vec<_>) = of_boot.unzip();
        let resume = *resume.last()?;
        let seqs = all.into_iter().flatten().filter_map(|event| event.seq);
        Some((resume, seqs.filter(|seq| *seq >= resume).collect()))
    }

    /// Time of the last event of each kind in a boot.
    pub fn last_events(&self, boot: &Arc<str>) -> BTreeMap<String, Timestamp> {
        let mut last = BTreeMap::new();
        for (_, entry) in &self.entries {
            let JournalEntry::KernelLog { boot_id, events, .. } = entry else { continue };
            for event in events.iter().filter(|_| boot_id == boot) {
                let known = last.entry(event.kind.kind().to_owned()).or_insert(Timestamp::MIN);
                *known = event.utc.unwrap_or(Timestamp::MIN).max(*known);
            }
        }
        last
    }

    /// The records of every kernel event of a boot.
    pub fn event_seqs(&self, boot: &Arc<str>) -> BTreeSet<u64> {
        let of_boot = self.entries.iter().filter_map(|(_, entry)| match entry {
            JournalEntry::KernelLog { boot_id, events, .. } if boot_id == boot => Some(events),
            _ => None,
        });
        of_boot.flatten().filter_map(|event| event.seq).collect()
    }

    /// The last entries, shortened.
    pub fn end(&self, entries: usize) -> Vec<String> {
        let lines = self.entries.iter().rev().filter_map(|(_, entry)| match entry {
            JournalEntry::KernelLog { .. } => None,
            entry => Some(short(entry)),
        });
        let mut lines: Vec<String> = lines.take(entries).collect();
        lines.reverse();
        lines
    }

    /// Every entry as JSON, a line each.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (_, entry) in &self.entries {
            let (kind, json) = match entry {
                JournalEntry::KernelLog { boot_id, events, resume_seq } => {
                    write!(text, "{boot_id} {resume_seq} ").unwrap();
                    ("events", serde_json::to_string(events))
                }
                JournalEntry::Decision(decision) => ("decision", serde_json::to_string(decision)),
                JournalEntry::Outcome(outcome) => ("outcome", serde_json::to_string(outcome)),
                JournalEntry::AimCheck(aim_check) => {
                    ("aim_check", serde_json::to_string(aim_check))
                }
                JournalEntry::Alert(change) => ("alert", serde_json::to_string(change)),
                JournalEntry::Event { event, .. } => ("event", serde_json::to_string(event)),
                JournalEntry::Note(note) => ("note", serde_json::to_string(note)),
                JournalEntry::Operator(command) => ("order", serde_json::to_string(command)),
                JournalEntry::Alive { uptime, .. } => ("alive", serde_json::to_string(uptime)),
            };
            writeln!(text, "{kind} {}", json.unwrap()).unwrap();
        }
        text
    }

    fn decisions(&self) -> impl Iterator<Item = &DecisionRecord> {
        self.entries.iter().filter_map(|(_, entry)| match entry {
            JournalEntry::Decision(decision) => Some(decision),
            _ => None,
        })
    }
}

/// The entry, shortened.
fn short(entry: &JournalEntry) -> String {
    match entry {
        JournalEntry::KernelLog { resume_seq, .. } => format!("kernel log up to {resume_seq}"),
        JournalEntry::Event { event, .. } => format!("event {event:?}"),
        JournalEntry::Operator(command) => {
            format!("{:?} order {:?}", command.at.uptime, command.order)
        }
        JournalEntry::Decision(decision) => {
            let DecisionRecord { id, at, rule, mode, decision, step, action, because, .. } =
                decision;
            let because =
                because.iter().map(|evidence| format!("{} {:?}", evidence.series, evidence.value));
            let because = Vec::from_iter(because).join(", ");
            format!(
                "{:?} decision {id} {rule} {mode:?} {decision:?} step {step} {action}: {because}",
                at.uptime
            )
        }
        JournalEntry::Outcome(outcome) => {
            let Outcome { decision, result, ended, .. } = outcome;
            format!("{:?} outcome of {decision}: {result:?}", ended.uptime)
        }
        JournalEntry::AimCheck(AimCheck { decision, at, aim_met, .. }) => {
            format!("{:?} aim check of {decision}: aim met {aim_met:?}", at.uptime)
        }
        JournalEntry::Alert(AlertChange { at, rule, labels, from, to, value, .. }) => {
            let labels: Vec<_> = labels.values().collect();
            format!("{:?} alert {rule} {labels:?}: {from:?} to {to:?}, {value:?}", at.uptime)
        }
        JournalEntry::Note(note) => format!("{:?} {}", note.at.uptime, note.text),
        JournalEntry::Alive { uptime, .. } => format!("{uptime:?} alive"),
    }
}
