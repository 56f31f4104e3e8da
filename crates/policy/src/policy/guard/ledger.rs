//! What each remedy has done, in each mode; it outlives rules, reloads and restarts.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::breaker::MissedAims;
use super::budget::Acts;
use crate::model::{DecisionId, EnginePhase, Mode, RuleId};

/// More rules than this are not remembered beyond those that are loaded.
const MOST_REMEMBERED: usize = 10_000;

/// One for each mode: decisions in observe mode must not use up budgets of enforce mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::policy) struct ByMode<T> {
    observe: T,
    enforce: T,
}

impl<T> ByMode<T> {
    pub(in crate::policy) fn of(&self, mode: Mode) -> &T {
        match mode {
            Mode::Observe => &self.observe,
            Mode::Enforce => &self.enforce,
        }
    }

    pub(in crate::policy) fn of_mut(&mut self, mode: Mode) -> &mut T {
        match mode {
            Mode::Observe => &mut self.observe,
            Mode::Enforce => &mut self.enforce,
        }
    }
}

/// So many engines of one remedy are counted apart; the one that was least lately acted on is
/// forgotten first. Any user can name engines without end.
const MOST_ENGINES: usize = 64;

/// What is counted: of a whole remedy, or of one engine that it has acted on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::policy) struct Tally {
    pub(super) acts: Acts,
    pub(super) misses: MissedAims,
    /// When its last round ended, on the uptime clock in milliseconds.
    pub(super) rests_since_ms: Option<i64>,
    /// When anything was last counted.
    last_ms: i64,
}

/// What one remedy has done in one mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::policy) struct RemedyAccount {
    pub(super) all: Tally,
    engines: BTreeMap<Arc<str>, Tally>,
    round: RemedyRound,
    /// The last act of the last round that missed its aim.
    last_missed: Option<DecisionId>,
}

/// The round under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RemedyRound {
    /// Its last act.
    last: Option<DecisionId>,
    /// The engine that its last act worked on, if it was one.
    engine: Option<Arc<str>>,
    /// Something else than a notice was done.
    has_acted: bool,
    /// The last word on the aim; `None` where nothing was measured.
    aim_met: Option<bool>,
    died_in: Option<EnginePhase>,
    /// An act was lost with the process that began it.
    is_cut_off: bool,
}

impl Tally {
    fn act(&mut self, at_ms: i64) {
        self.acts.add(at_ms);
        self.last_ms = self.last_ms.max(at_ms);
    }

    fn end_round(&mut self, at_ms: i64, is_met: Option<bool>, died_in: Option<EnginePhase>) {
        self.rests_since_ms = Some(self.rests_since_ms.map_or(at_ms, |since| since.max(at_ms)));
        self.last_ms = self.last_ms.max(at_ms);
        match is_met {
            Some(true) => self.misses.clear(),
            Some(false) => self.misses.miss(at_ms, died_in),
            None => {}
        }
    }
}

impl RemedyAccount {
    /// An act is decided. However it ends, it is one.
    pub(super) fn act(
        &mut self,
        id: DecisionId,
        at_ms: i64,
        is_notice: bool,
        engine: Option<&str>,
    ) {
        self.round.last = Some(id);
        self.all.act(at_ms);
        self.round.has_acted |= !is_notice;
        self.round.aim_met = None;
        if !is_notice {
            self.round.engine = engine.map(Arc::from);
        }
        if let Some(engine) = engine {
            self.engine_mut(engine).act(at_ms);
        }
    }

    /// What was done to one engine.
    pub(super) fn engine(&self, engine: &str) -> Option<&Tally> {
        self.engines.get(engine)
    }

    /// What was done to each engine that is remembered, by name.
    pub(super) fn engines(&self) -> impl Iterator<Item = (&Arc<str>, &Tally)> {
        self.engines.iter()
    }

    fn engine_mut(&mut self, engine: &str) -> &mut Tally {
        if !self.engines.contains_key(engine) && self.engines.len() >= MOST_ENGINES {
            // Names without end must not have a miss forgotten as long as others have none.
            let oldest = self
                .engines
                .iter()
                .min_by_key(|(_, tally)| (tally.misses.in_a_row() > 0, tally.last_ms));
            let oldest = oldest.map(|(name, _)| Arc::clone(name));
            oldest.and_then(|name| self.engines.remove(&name));
        }
        self.engines.entry(Arc::from(engine)).or_default()
    }

    /// What the last act came to.
    pub(super) fn check_aim(&mut self, aim_met: Option<bool>) {
        self.round.aim_met = aim_met;
    }

    /// What the last act has started has died.
    pub(super) fn died(&mut self, died_in: Option<EnginePhase>) {
        self.round.died_in = died_in;
    }

    /// The outcome of the last act will not come any more.
    pub(super) fn cut_off(&mut self) {
        self.round.is_cut_off = true;
    }

    /// A round has ended: the remedy rests.
    pub(super) fn end_round(&mut self, at_ms: i64) {
        let round = std::mem::take(&mut self.round);
        let is_met = match round.aim_met {
            Some(true) => Some(true),
            Some(false) => round.has_acted.then_some(false),
            None => (round.has_acted && round.is_cut_off).then_some(false),
        };
        self.all.end_round(at_ms, is_met, round.died_in);
        if let Some(engine) = &round.engine {
            self.engine_mut(engine).end_round(at_ms, is_met, round.died_in);
        }
        if is_met == Some(false) {
            self.last_missed = round.last;
        }
    }

    /// Nothing counts as missed any more; returns the act that was the last miss, if there was one.
    pub(super) fn forgive(&mut self) -> Option<DecisionId> {
        self.clear_misses();
        self.last_missed.take()
    }

    /// Nothing counts as missed any more; returns whether anything did.
    pub(super) fn clear_misses(&mut self) -> bool {
        let tallies = self.engines.values_mut().chain([&mut self.all]);
        let mut any = false;
        for tally in tallies {
            any |= tally.misses.in_a_row() > 0;
            tally.misses.clear();
        }
        any
    }

    /// The same of one engine, and of all together.
    pub(super) fn clear_misses_of(&mut self, engine: Option<&str>) {
        self.all.misses.clear();
        if let Some(tally) = engine.and_then(|engine| self.engines.get_mut(engine)) {
            tally.misses.clear();
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::policy) struct Ledger(BTreeMap<RuleId, ByMode<RemedyAccount>>);

impl Ledger {
    pub(super) fn account(&self, rule: &RuleId, mode: Mode) -> Option<&RemedyAccount> {
        self.0.get(rule).map(|modes| modes.of(mode))
    }

    pub(super) fn account_mut(&mut self, rule: &RuleId, mode: Mode) -> &mut RemedyAccount {
        if !self.0.contains_key(rule) {
            self.0.insert(rule.clone(), ByMode::default());
        }
        self.0.entry(rule.clone()).or_default().of_mut(mode)
    }

    pub(super) fn rules(&self) -> impl Iterator<Item = &RuleId> {
        self.0.keys()
    }

    /// Forgets rules that are not loaded, where there are very many.
    pub(super) fn retain_loaded(&mut self, is_loaded: impl Fn(&RuleId) -> bool) {
        if self.0.len() > MOST_REMEMBERED {
            self.0.retain(|rule, _| is_loaded(rule));
        }
    }
}
