//! What counts by engine: an engine that makes no progress, or that a user pretends, must not hold
//! back what is done for the others.

use super::ledger::Tally;
use super::{Guard, GuardedProposal, Rails, milliseconds};
use crate::model::{Action, Mode, RuleId, Target};
use crate::policy::status::BreakerStatus;

/// What of a remedy is counted for each engine apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum ByEngine {
    /// Nothing: some step works on more than one engine, or there is no step that acts.
    #[default]
    Nothing,
    /// Misses of the aim: each step works on one engine.
    Misses,
    /// Misses, acts and rests: each step names the engine that it works on.
    Everything,
}

impl ByEngine {
    pub(super) fn counts_misses(self) -> bool {
        self != Self::Nothing
    }

    pub(super) fn counts_acts(self) -> bool {
        self == Self::Everything
    }
}

/// The engine that an act works on.
pub(super) fn engine<'a>(action: &'a Action, target: &'a Target) -> Option<&'a str> {
    let name = match (target, action) {
        (Target::Engine(engine), _) => &*engine.name,
        (_, Action::Reclaim { engine: Some(engine), .. }) => engine,
        _ => return None,
    };
    (!name.is_empty()).then_some(name)
}

impl Guard {
    /// What bounds a remedy in time and number: of that engine alone where all of its steps name
    /// theirs.
    pub(super) fn spent_by(&self, guarded: &GuardedProposal<'_>) -> Option<&Tally> {
        self.tally(guarded, guarded.rails.by_engine.counts_acts())
    }

    /// What its breaker goes by: the misses of that engine alone where all of its steps work on one
    /// engine.
    pub(super) fn missed_by(&self, guarded: &GuardedProposal<'_>) -> Option<&Tally> {
        self.tally(guarded, guarded.rails.by_engine.counts_misses())
    }

    fn tally(&self, guarded: &GuardedProposal<'_>, is_by_engine: bool) -> Option<&Tally> {
        let proposal = &guarded.proposal;
        let account = self.ledger.account(proposal.rule, proposal.mode)?;
        if is_by_engine && !proposal.action.is_notice() {
            return account.engine(engine(proposal.action, proposal.target)?);
        }
        Some(&account.all)
    }

    /// Whether nothing may be done to that engine for now, though it may be for others.
    pub(in crate::policy) fn spares(
        &self,
        (rule, mode): (&RuleId, Mode),
        rails: &Rails,
        engine: &str,
        now_ms: i64,
    ) -> bool {
        let account = self.ledger.account(rule, mode);
        let Some(tally) = account.and_then(|account| account.engine(engine)) else { return false };
        let limit = self.breaker(rails);
        let is_broken = rails.by_engine.counts_misses()
            && limit.is_some_and(|limit| tally.misses.is_open(limit, now_ms));
        let rests = || {
            let since = tally.rests_since_ms;
            since.is_some_and(|since| now_ms.saturating_sub(since) < milliseconds(rails.cooldown))
        };
        let is_spent = || rails.at_most.is_some_and(|limit| tally.acts.has_spent(limit, now_ms));
        is_broken || rails.by_engine.counts_acts() && (rests() || is_spent())
    }

    /// Whether its breaker is open; of one that counts by engine, for any engine.
    pub(super) fn any_breaker_is_open(
        &self,
        rule: &RuleId,
        mode: Mode,
        rails: &Rails,
        now_ms: i64,
    ) -> bool {
        let limit = self.breaker(rails);
        let Some((limit, account)) = limit.zip(self.ledger.account(rule, mode)) else {
            return false;
        };
        let is_open = |tally: &Tally| tally.misses.is_open(limit, now_ms);
        match rails.by_engine.counts_misses() {
            true => account.engines().any(|(_, tally)| is_open(tally)),
            false => is_open(&account.all),
        }
    }

    /// The breakers that have counted a miss.
    pub(super) fn breakers(&self) -> Vec<BreakerStatus> {
        let mut breakers = Vec::new();
        for rule in self.ledger.rules() {
            for mode in [Mode::Observe, Mode::Enforce] {
                let Some(account) = self.ledger.account(rule, mode) else { continue };
                let own = self.own.get(rule);
                let limit = own.and_then(|rails| rails.breaker).or(self.rails.breaker);
                let is_by_engine = own.is_some_and(|rails| rails.by_engine.counts_misses());
                let all = (!is_by_engine).then_some((None, &account.all));
                let each = account.engines().filter(|_| is_by_engine);
                for (engine, tally) in each.map(|(name, tally)| (Some(name), tally)).chain(all) {
                    let misses = tally.misses;
                    if misses.in_a_row() == 0 {
                        continue;
                    }
                    breakers.push(BreakerStatus {
                        rule: rule.clone(),
                        mode,
                        engine: engine.cloned(),
                        misses: misses.in_a_row(),
                        is_open: limit.is_some_and(|limit| misses.is_open(limit, self.now_ms)),
                    });
                }
            }
        }
        breakers
    }
}
