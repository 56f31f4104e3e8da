//! What counts by engine: an engine that makes no progress, or that a user pretends, must not hold
//! back what is done for the others.

use super::ledger::Tally;
use super::{Guard, Intent, milliseconds};
use crate::model::{Action, Mode, RuleId, Target};
use crate::policy::rule::Remedy;
use crate::policy::status::BreakerStatus;

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
    /// What bounds a remedy in time and number: of that engine alone where all of its steps only
    /// take from one engine what that can spare.
    pub(super) fn spent_by(&self, intent: &Intent<'_>) -> Option<&Tally> {
        self.tally(intent, intent.remedy.spends_by_engine())
    }

    /// What its breaker goes by: the misses of that engine alone where all of its steps work on one
    /// engine.
    pub(super) fn missed_by(&self, intent: &Intent<'_>) -> Option<&Tally> {
        self.tally(intent, intent.remedy.breaks_by_engine())
    }

    fn tally(&self, intent: &Intent<'_>, is_by_engine: bool) -> Option<&Tally> {
        let wish = &intent.wish;
        let account = self.ledger.account(wish.rule, wish.mode)?;
        if is_by_engine && !wish.action.is_notice() {
            return account.engine(engine(wish.action, wish.target)?);
        }
        Some(&account.all)
    }

    /// Whether nothing may be done to that engine for now, though it may be for others.
    pub(in crate::policy) fn spares(
        &self,
        (rule, mode): (&RuleId, Mode),
        remedy: &Remedy,
        engine: &str,
        now_ms: i64,
    ) -> bool {
        let account = self.ledger.account(rule, mode);
        let Some(tally) = account.and_then(|account| account.engine(engine)) else { return false };
        let limit = self.breaker(remedy);
        let is_broken = remedy.breaks_by_engine()
            && limit.is_some_and(|limit| tally.misses.is_open(limit, now_ms));
        let rests = || {
            let since = tally.rests_since_ms;
            since.is_some_and(|since| now_ms.saturating_sub(since) < milliseconds(remedy.cooldown))
        };
        let is_spent = || remedy.at_most.is_some_and(|limit| tally.acts.has_spent(limit, now_ms));
        is_broken || remedy.spends_by_engine() && (rests() || is_spent())
    }

    /// Whether its breaker is open; of one that counts by engine, for any engine.
    pub(super) fn any_breaker_is_open(
        &self,
        rule: &RuleId,
        mode: Mode,
        remedy: &Remedy,
        now_ms: i64,
    ) -> bool {
        let limit = self.breaker(remedy);
        let Some((limit, account)) = limit.zip(self.ledger.account(rule, mode)) else {
            return false;
        };
        let is_open = |tally: &Tally| tally.misses.is_open(limit, now_ms);
        match remedy.breaks_by_engine() {
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
                let own = self.remedies.get(rule).and_then(|rails| rails.breaker);
                let limit = own.or(self.rails.breaker);
                let is_by_engine = self.by_engine.contains(rule);
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
