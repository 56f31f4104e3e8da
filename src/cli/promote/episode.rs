//! Episodes: a rule would have acted, once or several times while its trouble lasted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::lives::{EngineLives, KINDS};
use crate::cli::history::no_journal;
use crate::cli::progress::Progress;
use crate::cli::targets::{AlertLabels, subject, target_name};
use crate::journal::{JournalReader, TimelineItem, TimelineQuery};
use crate::model::{
    Action, AlertChange, AlertState, Decision, DecisionRecord, EventKind, Grade, HoldReason, Mode,
    ProgramEvent, Reading, RestartState, RuleId, Target,
};
use crate::policy::restarts;

/// A rule and one grade of what it does.
pub(super) type Pair = (RuleId, Grade);

/// Episodes of a pair that are kept, the oldest; alerts of a rule that fire at a time.
const MOST: usize = 10_000;

/// What a rule would have done to one target, from the first act until its trouble ended.
#[derive(Clone, Debug)]
pub(super) struct Episode {
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
    pub(super) acts: u64,
    /// The end of the trouble, if it was observed.
    pub(super) ended: Option<Timestamp>,
    /// When the daemon ceased to observe it.
    pub(super) cut: Option<Timestamp>,
    /// Whether another act of umawarden came before its end.
    pub(super) is_helped: bool,
    pub(super) action: &'static str,
    pub(super) target: String,
    /// The label that the alerts about this target have. `None`: all alerts of the rule are.
    pub(super) subject: Option<(Arc<str>, Arc<str>)>,
    /// Name of the engine that would have been the target, and the pid of its server.
    pub(super) engine: Option<(String, Option<u32>)>,
    pub(super) amount: Option<FreeableAmount>,
}

/// What an act could have freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreeableAmount {
    pub(super) bytes: u64,
    /// What they are: `of page cache`.
    pub(super) what: &'static str,
}

/// What the journal has of the time.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) since: Timestamp,
    /// The node was observed until then.
    pub(super) covered: Timestamp,
    /// The first entry, where that is later than `since`.
    pub(super) begins: Option<Timestamp>,
    pub(super) episodes: BTreeMap<Pair, Vec<Episode>>,
    /// Acts that were carried out.
    pub(super) acted: BTreeMap<Pair, u64>,
    pub(super) lives: EngineLives,
    pub(super) unreadable: u64,
    /// The time of the last entry.
    last: Timestamp,
    open: BTreeMap<RuleId, Vec<(Pair, usize)>>,
    firing: BTreeMap<RuleId, BTreeSet<AlertLabels>>,
}

impl Observed {
    /// Nothing, from that time on.
    pub(super) fn from(since: Timestamp, recorded: Option<Timestamp>) -> Self {
        Self {
            since,
            covered: recorded.unwrap_or(Timestamp::MIN),
            begins: None,
            episodes: BTreeMap::new(),
            acted: BTreeMap::new(),
            lives: EngineLives::default(),
            unreadable: 0,
            last: since,
            open: BTreeMap::new(),
            firing: BTreeMap::new(),
        }
    }

    /// Reads the journal. `recorded`: when the flight recorder wrote last.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(super) fn read(
        reader: &JournalReader,
        since: Timestamp,
        recorded: Option<Timestamp>,
    ) -> anyhow::Result<Self> {
        let mut observed = Self::from(since, recorded);
        let mut progress = Progress::uncounted("promote", "entries of the journal");
        // An engine may have been there long before.
        let kinds = KINDS.into_iter().chain(["alert", "decision", "note"]);
        let query =
            TimelineQuery { kinds: kinds.map(str::to_owned).collect(), ..TimelineQuery::default() };
        let mut first = None;
        let read = reader.timeline(&query, |at, item| {
            progress.advance(1);
            first.get_or_insert(at);
            observed.take(at, &item);
            true
        });
        read.map_err(no_journal)?;
        observed.begins = first.filter(|first| *first > since);
        observed.covered = observed.covered.min(Timestamp::now()).max(since);
        Ok(observed)
    }

    pub(super) fn take(&mut self, at: Timestamp, item: &TimelineItem) {
        self.covered = self.covered.max(at);
        let before = std::mem::replace(&mut self.last, at);
        match item {
            TimelineItem::Event(stored) => {
                let is_claimed = stored.event.is_claimed();
                self.lives.take(at, &stored.event.kind, is_claimed);
                self.take_restart(at, &stored.event.kind);
            }
            TimelineItem::Alert(change) => self.alert(change),
            TimelineItem::Decision(decision) => self.decision(decision),
            TimelineItem::Note(note) => {
                // Before a start nobody observed, for as long as there is no entry.
                if note.text.starts_with("started") {
                    self.interrupt(before);
                } else if note.text == "stopped" {
                    self.interrupt(at);
                }
            }
            TimelineItem::Unreadable => self.unreadable += 1,
            TimelineItem::Outcome { .. } | TimelineItem::Operator(_) => {}
        }
    }

    fn interrupt(&mut self, at: Timestamp) {
        self.lives.interrupt(at);
        self.firing.clear();
        for open in std::mem::take(&mut self.open).into_values().flatten() {
            if let Some(episode) = episode_of(&mut self.episodes, &open) {
                episode.cut = Some(at);
            }
        }
    }

    fn alert(&mut self, change: &AlertChange) {
        let firing = self.firing.entry(change.rule.clone()).or_default();
        match change.to {
            AlertState::Firing if firing.len() < MOST => {
                firing.insert(change.labels.clone());
            }
            AlertState::Inactive => {
                firing.remove(&change.labels);
                let fires = |episode: &Episode| match &episode.subject {
                    Some((label, value)) => {
                        firing.iter().any(|labels| labels.get(label) == Some(value))
                    }
                    None => !firing.is_empty(),
                };
                if let Some(open) = self.open.get_mut(&change.rule) {
                    end_those(open, &mut self.episodes, change.at.utc, |one| !fires(one));
                }
            }
            AlertState::Firing | AlertState::Pending => {}
        }
    }

    /// The trouble of a rule has ended.
    fn end(&mut self, rule: &RuleId, at: Timestamp) {
        if let Some(open) = self.open.get_mut(rule) {
            end_those(open, &mut self.episodes, at, |_| true);
        }
    }

    fn decision(&mut self, decision: &DecisionRecord) {
        let pair = (decision.rule.clone(), decision.action.grade());
        let at = decision.at.utc;
        match (decision.decision, decision.mode) {
            (Decision::Act, Mode::Observe) | (Decision::Hold(HoldReason::NotEnforced), _) => {
                if at >= self.since && !decision.action.is_undo() {
                    self.would_act(pair, decision);
                }
            }
            (Decision::Act, Mode::Enforce) => {
                if at >= self.since {
                    *self.acted.entry(pair).or_default() += 1;
                }
                if !decision.action.is_notice() {
                    self.help();
                }
            }
            (Decision::Hold(HoldReason::AimMet), _) => self.end(&decision.rule, at),
            (Decision::Hold(_), _) => {}
        }
    }

    /// Something was done, which may end any trouble.
    fn help(&mut self) {
        for open in self.open.values().flatten() {
            if let Some(episode) = episode_of(&mut self.episodes, open) {
                episode.is_helped = true;
            }
        }
    }

    fn would_act(&mut self, pair: Pair, decision: &DecisionRecord) {
        let none = BTreeSet::new();
        let firing = self.firing.get(&decision.rule).unwrap_or(&none);
        let (target, at) = (target_name(decision, firing), decision.at.utc);
        let subject = subject(decision, firing);
        let subject = subject.map(|(label, value)| (Arc::clone(label), Arc::clone(value)));
        let amount = amount(decision, &self.lives);
        let all = self.episodes.entry(pair.clone()).or_default();
        let open = self.open.entry(decision.rule.clone()).or_default();
        let its = open.iter().filter(|(of, _)| *of == pair).find_map(|(_, place)| {
            all.get(*place).filter(|episode| episode.target == target).map(|_| *place)
        });
        if let Some(episode) = its.and_then(|place| all.get_mut(place)) {
            episode.last = at;
            episode.acts += 1;
            let amounts = episode.amount.into_iter().chain(amount);
            episode.amount = amounts.max_by_key(|amount| amount.bytes);
            return;
        }
        if all.len() >= MOST {
            return;
        }
        open.push((pair, all.len()));
        let engine = match &decision.target {
            Target::Engine(engine) if !engine.name.is_empty() => {
                let server = engine.processes.first().map(|server| server.pid);
                Some((engine.name.to_string(), server))
            }
            _ => None,
        };
        all.push(Episode {
            first: at,
            last: at,
            acts: 1,
            ended: None,
            cut: None,
            is_helped: false,
            action: decision.action.name(),
            target,
            subject,
            engine,
            amount,
        });
    }

    /// A deferred restart that no longer waits ends what its rule waited for.
    fn take_restart(&mut self, at: Timestamp, event: &EventKind) {
        if let EventKind::Program(ProgramEvent::EngineRestart { engine, to, .. }) = event
            && !matches!(to, RestartState::Waiting | RestartState::Unknown)
        {
            self.end(&restarts::rule(&engine.as_str().into()), at);
        }
    }

    /// How long the node was observed.
    pub(super) fn span(&self) -> SignedDuration {
        self.covered.duration_since(self.begins.unwrap_or(self.since))
    }
}

/// Ends the open episodes whose trouble is over.
fn end_those(
    open: &mut Vec<(Pair, usize)>,
    episodes: &mut BTreeMap<Pair, Vec<Episode>>,
    at: Timestamp,
    is_over: impl Fn(&Episode) -> bool,
) {
    open.retain(|place| {
        let Some(episode) = episode_of(episodes, place) else { return false };
        if is_over(episode) {
            episode.ended = Some(at);
            return false;
        }
        true
    });
}

fn episode_of<'e>(
    episodes: &'e mut BTreeMap<Pair, Vec<Episode>>,
    (pair, place): &(Pair, usize),
) -> Option<&'e mut Episode> {
    episodes.get_mut(pair)?.get_mut(*place)
}

/// What an act would free, as far as the values of its decision and earlier events say.
fn amount(decision: &DecisionRecord, lives: &EngineLives) -> Option<FreeableAmount> {
    let at = decision.at.utc;
    let engine = match &decision.target {
        Target::Engine(engine) => Some(&*engine.name),
        _ => None,
    };
    let of = |what: &'static str| move |bytes: u64| FreeableAmount { bytes, what };
    match &decision.action {
        Action::DropCaches { .. } => {
            let clean = |series: &str| {
                (series.starts_with("uma_memory_page_cache_bytes{")
                    || series.starts_with("uma_pool_page_cache_bytes{"))
                    && series.contains("state=\"clean\"")
            };
            value(decision, clean).map(of("of clean page cache"))
        }
        Action::Reclaim { bytes, .. } => Some(of("to reclaim")(*bytes)),
        Action::StopEngine { .. } => {
            let engine = engine?;
            let grown =
                |series: &str| series == format!("uma_engine_growth_bytes{{engine=\"{engine}\"}}");
            let took = lives.took(engine, at).map(of("that its load took"));
            took.or_else(|| value(decision, grown).map(of("that it had just taken")))
        }
        Action::Reboot(_) => lives.held(at).map(of("without an owner")),
        _ => None,
    }
}

fn value(decision: &DecisionRecord, is_meant: impl Fn(&str) -> bool) -> Option<u64> {
    let found = decision.because.iter().find(|evidence| is_meant(&evidence.series))?;
    match found.value {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bytes, from 0 on"
        )]
        Reading::Value(bytes) if bytes >= 0.0 => Some(bytes as u64),
        _ => None,
    }
}
