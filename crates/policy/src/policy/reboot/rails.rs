//! What suppresses a reboot, besides the guard rails of every remedy.

use std::sync::Arc;
use std::time::Duration;

use super::{GIVEN_UP_AFTER, RebootFacts, Reboots, needs_reboot};
use crate::model::{
    EnginesRule, HoldReason, LoggedInReadings, LoggedInRule, MemoryState, Moment, Reading,
    RebootBudget, RebootForce, RebootPlan, RebootResult, counted, duration_text,
};

/// A list of logged-in users is current for this time.
const OBSERVED_WITHIN: Duration = Duration::from_secs(60);

/// Most users that a text names.
const MOST_NAMED: usize = 4;

/// Why it does not happen now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::policy) struct RebootHold {
    pub(in crate::policy) reason: HoldReason,
    pub(in crate::policy) text: Arc<str>,
}

impl RebootHold {
    pub(super) fn new(reason: HoldReason, text: impl Into<Arc<str>>) -> Self {
        Self { reason, text: text.into() }
    }

    pub(super) fn plain(reason: HoldReason) -> Self {
        Self::new(reason, reason.meaning())
    }
}

impl Reboots {
    /// Why none must be scheduled now.
    pub(in crate::policy) fn hold_new(
        &self,
        plan: &RebootPlan,
        facts: &RebootFacts<'_>,
    ) -> Option<RebootHold> {
        if self.pending.is_some() {
            return Some(RebootHold::plain(HoldReason::RebootUnderWay));
        }
        if self.is_called_off && plan.ordered_by.is_none() {
            return Some(RebootHold::plain(HoldReason::CalledOff));
        }
        // Logged-in users are read only once a reboot is considered. An ordered one waits for
        // unknown readings when it is due.
        let asks = self.knows_users(facts.at) || plan.ordered_by.is_none();
        let is_known = facts.engines.living(facts.at.uptime).value().is_some();
        let checks_engines = is_known || plan.ordered_by.is_none();
        self.hold(plan, facts)
            .or_else(|| self.users_hold(plan, facts).filter(|_| asks && !self.warns()))
            .or_else(|| {
                let checks_engines = checks_engines && !self.drains(plan);
                self.engines_hold_but_evicted(plan, facts).filter(|_| checks_engines)
            })
    }

    /// Why a reboot is blocked now, apart from users and engines.
    pub(super) fn hold(&self, plan: &RebootPlan, facts: &RebootFacts<'_>) -> Option<RebootHold> {
        let forced = |what| plan.force.contains(&what);
        let is_ordered = plan.ordered_by.is_some();
        if !self.is_restored {
            return Some(RebootHold::plain(HoldReason::JournalUnreadable));
        }
        if self.boot_id.is_none() {
            return Some(RebootHold::plain(HoldReason::BootUnknown));
        }
        if let Some(held) = self.loss_holds(facts.at) {
            return Some(held);
        }
        if !forced(RebootForce::Budget)
            && let Some(held) = self.budget_holds(is_ordered, facts)
        {
            return Some(held);
        }
        let uptime = facts.at.uptime;
        let is_young = uptime < self.settings.minimum_uptime && !self.is_rehearsal;
        if is_young && !forced(RebootForce::Uptime) {
            let (since, least) =
                (duration_text(uptime), duration_text(self.settings.minimum_uptime));
            let text =
                format!("the machine has booted {since} ago; reboot.minimum_uptime is {least}");
            return Some(RebootHold::new(HoldReason::MinimumUptime, text));
        }
        // A node of which nothing is known is not rebooted for it.
        if !is_ordered && matches!(facts.memory_state(), None | Some(MemoryState::Unknown)) {
            return Some(RebootHold::plain(HoldReason::NoCause));
        }
        if !forced(RebootForce::Alerts) && facts.guard.blocks_reboot() {
            return Some(RebootHold::plain(HoldReason::Blocked));
        }
        None
    }

    fn budget_holds(&self, is_ordered: bool, facts: &RebootFacts<'_>) -> Option<RebootHold> {
        if !is_ordered && self.did_not_help() >= GIVEN_UP_AFTER {
            return Some(RebootHold::plain(HoldReason::GivenUp));
        }
        let now_ms = facts.at.timeline_ms();
        let spent = self.settings.at_most.iter().find(|budget| self.left(**budget, now_ms) == 0)?;
        let text = format!(
            "reboot.at_most is used up: {} in {}, as proved by uptimes",
            counted(u64::from(spent.times), "reboot"),
            duration_text(spent.per)
        );
        Some(RebootHold::new(HoldReason::RebootBudget, text))
    }

    /// The number of further reboots in the budget. Every attempt counts, unless it certainly was
    /// not begun.
    pub(super) fn left(&self, budget: RebootBudget, now_ms: i64) -> u32 {
        let per_ms = i64::try_from(budget.per.as_millis()).unwrap_or(i64::MAX);
        let counts = self.attempts.iter().filter(|attempt| attempt.was_begun != Some(false));
        let spent = counts.filter(|attempt| now_ms.saturating_sub(attempt.uptime_ms) < per_ms);
        budget.times.saturating_sub(u32::try_from(spent.count()).unwrap_or(u32::MAX))
    }

    /// The number of last reboots in a row that did not help or were not checked.
    pub(super) fn did_not_help(&self) -> usize {
        let counts = self.attempts.iter().filter(|attempt| {
            attempt.was_begun != Some(false) && attempt.result != Some(RebootResult::CalledOff)
        });
        let newest = counts.rev().take_while(|attempt| {
            !attempt.is_cleared && attempt.result != Some(RebootResult::Helped)
        });
        newest.count()
    }

    fn knows_users(&self, at: Moment) -> bool {
        let is_new =
            |known: &LoggedInReadings| at.uptime.saturating_sub(known.at) <= OBSERVED_WITHIN;
        self.users.as_ref().is_some_and(is_new)
    }

    pub(super) fn warns(&self) -> bool {
        self.settings.logged_in == LoggedInRule::Warn
    }

    /// Whether engines are stopped for it. What a person says does not matter is left alone.
    pub(super) fn drains(&self, plan: &RebootPlan) -> bool {
        self.settings.engines == EnginesRule::Drain && !plan.force.contains(&RebootForce::Engines)
    }

    /// The hold for logged-in users, or for an unknown list of them.
    pub(super) fn users_hold(
        &self,
        plan: &RebootPlan,
        facts: &RebootFacts<'_>,
    ) -> Option<RebootHold> {
        if self.is_rehearsal || plan.force.contains(&RebootForce::Users) {
            return None;
        }
        let unknown = |why: &str| {
            let text = format!("it is not known whether a user is logged in: {why}");
            Some(RebootHold::new(HoldReason::LoggedIn, text))
        };
        let Some(known) = &self.users else { return unknown("they were not read yet") };
        if facts.at.uptime.saturating_sub(known.at) > OBSERVED_WITHIN {
            return unknown("they were not read lately");
        }
        let users = match &known.users {
            Reading::Value(users) => users,
            Reading::Unsupported => return unknown("there is neither logind nor utmp"),
            Reading::Failed => return unknown(known.error.as_deref().unwrap_or("asking failed")),
        };
        if users.is_empty() {
            return None;
        }
        let mut named = Vec::new();
        for one in users.iter().take(MOST_NAMED) {
            let place = one.terminal.as_ref().map(|terminal| format!(" on {terminal}"));
            named.push(format!("{}{}", one.user, place.unwrap_or_default()));
        }
        let more = users.len().saturating_sub(MOST_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let text = format!("logged in: {}{more}", named.join(", "));
        Some(RebootHold::new(HoldReason::LoggedIn, text))
    }

    /// Whether an engine runs, or may. Over a driver that is stuck none can serve.
    pub(super) fn engines_hold(
        &self,
        plan: &RebootPlan,
        facts: &RebootFacts<'_>,
    ) -> Option<RebootHold> {
        self.hold_of_engines(plan, facts, |_| true)
    }

    /// The same but for engines whose pods are evicted before the reboot.
    pub(super) fn engines_hold_but_evicted(
        &self,
        plan: &RebootPlan,
        facts: &RebootFacts<'_>,
    ) -> Option<RebootHold> {
        let evicts = self.evicts(plan);
        self.hold_of_engines(plan, facts, |name| !(evicts && facts.engines.is_in_pod(name)))
    }

    fn hold_of_engines(
        &self,
        plan: &RebootPlan,
        facts: &RebootFacts<'_>,
        counts: impl Fn(&str) -> bool,
    ) -> Option<RebootHold> {
        let is_wedged = facts.memory_state() == Some(MemoryState::Wedged);
        let is_forced = plan.force.contains(&RebootForce::Engines);
        if self.is_rehearsal || is_forced || is_wedged {
            return None;
        }
        match facts.engines.living(facts.at.uptime) {
            Reading::Value(engines) => {
                let named = engines.iter().filter(|(name, _)| counts(name)).take(MOST_NAMED);
                let named: Vec<String> =
                    named.map(|(name, phase)| format!("{name} ({phase})")).collect();
                if named.is_empty() {
                    return None;
                }
                let text = format!("engines run: {}", named.join(", "));
                Some(RebootHold::new(HoldReason::EnginesRun, text))
            }
            Reading::Unsupported | Reading::Failed => {
                let text = "it is not known whether an engine runs";
                Some(RebootHold::new(HoldReason::EnginesRun, text))
            }
        }
    }

    /// Whether the cause of a plan is the state of memory.
    pub(super) fn is_for_memory(plan: &RebootPlan) -> bool {
        plan.memory_state.is_some_and(needs_reboot)
    }
}
