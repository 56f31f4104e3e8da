//! Guard rails: what suppresses a remedy although its rule fires. All are pure functions of state
//! and time, and [`Guard::hold`] is the one place that evaluates them.
//!
//! To add one: a file here, a [`HoldReason`] with its name, a line in [`Guard::hold`], its settings
//! in [`GuardRails`] or [`Rails`] with a reader in `config::guard_rails`, and a test. Its counts
//! belong into [`ledger`], so that they outlive reloads and restarts.

mod approval;
mod breaker;
mod budget;
mod by_engine;
mod exclusion;
mod fleet;
mod inhibition;
mod ledger;
mod maintenance;
mod protection;
mod rails;
mod restore;
mod settings;
mod silence;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::Labels;
use serde::{Deserialize, Serialize};

pub use breaker::BreakerLimit;
pub use budget::{AtMost, MOST_TIMES};
pub use by_engine::ByEngine;
pub use fleet::{FleetLimit, FleetLimits, FleetShare, LONGEST_FLEET_PER};
pub use maintenance::{DAY_MINUTES, MaintenanceWindow, WrittenWindow, time_zone};
pub use protection::{Glob, Protected};
pub use rails::Rail;
pub use restore::{PastMoment, on_this_boots_clock};
pub use silence::MOST_SILENCES;

pub(super) use fleet::{FleetNode, FleetTurn, OtherNodes, stops_lost_rank};
pub(super) use ledger::ByMode;

use super::CommandResult;
use super::act::{Act, Proposal};
use super::status::{GuardStatus, RuleState, WindowStatus};
use crate::model::{
    Action, Decision, DecisionId, DecisionRecord, EnginePhase, EngineTarget, Grade, Grades,
    HoldReason, Mode, Moment, OperatorCommand, OperatorOrder, Outcome, Pause, RebootSettings,
    RuleId, Target,
};
use approval::{Approvals, Reply};
use budget::Acts;
use exclusion::ActionsInFlight;
use fleet::Fleet;
use inhibition::Inhibitors;
use ledger::Ledger;
use settings::{DueUndo, HeldSettings};
use silence::Silences;

/// The guard rails of the configuration; those of a single rule are [`Rails`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardRails {
    /// Bound on all actions together; notices are none.
    #[serde(default)]
    pub budget: Option<AtMost>,
    /// For remedies that have none of their own.
    #[serde(default)]
    pub breaker: Option<BreakerLimit>,
    /// What no action may touch.
    #[serde(default)]
    pub protect: Protected,
    /// All windows of the configuration. `only_in` and `never_in` name them.
    #[serde(default)]
    pub maintenance_windows: Vec<MaintenanceWindow>,
    /// Windows in which nothing is done.
    #[serde(default)]
    pub never_in: Vec<Arc<str>>,
    /// Alerts while which nothing is done, but for remedies of those alerts themselves.
    #[serde(default)]
    pub inhibited_by: Vec<Arc<str>>,
    /// How the machine is rebooted, and what must be true before.
    #[serde(default)]
    pub reboot: RebootSettings,
    /// The grades of what is carried out; the others are only reported.
    #[serde(default)]
    pub enforced: Grades,
    /// Whether this machine is a node of a Kubernetes cluster.
    #[serde(default)]
    pub has_kubernetes: bool,
    /// How many nodes of the cluster do the same at the same time.
    #[serde(default, skip_serializing_if = "FleetLimits::are_none")]
    pub fleet: FleetLimits,
}

/// The guard rails of one rule's acts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rails {
    /// Rest after a round of steps.
    pub cooldown: Duration,
    /// Bound on the number of acts.
    pub at_most: Option<AtMost>,
    /// What is counted for each engine apart.
    pub by_engine: ByEngine,
    /// Time within which a person must approve an act; `None`: no approval is required.
    pub approval: Option<Duration>,
    /// Instead, the act goes ahead after that time unless a person denies it.
    #[serde(default)]
    pub unless_denied: bool,
    /// Instead of the general one.
    pub breaker: Option<BreakerLimit>,
    /// Only while one of these windows is open, if any is named.
    pub only_in: Vec<Arc<str>>,
    /// Not while one of these windows is open.
    pub never_in: Vec<Arc<str>>,
    /// Not while one of these alerts fires.
    pub inhibited_by: Vec<Arc<str>>,
}

/// How long a person has to approve where the remedy does not say.
pub const DEFAULT_APPROVAL_EXPIRES: Duration = Duration::from_secs(3_600);

/// The longest that a question to people stays open.
pub const LONGEST_APPROVAL_EXPIRES: Duration = Duration::from_secs(7 * 86_400);

/// A proposal, with the inputs of the guard rails.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuardedProposal<'a> {
    pub(super) proposal: Proposal<'a>,
    pub(super) rails: &'a Rails,
    /// Of the alert that fires.
    pub(super) labels: Option<&'a Labels>,
    /// The fleet's limit does not apply.
    pub(super) is_free_of_fleet: bool,
}

/// The state of all guard rails.
#[derive(Clone, Debug, Default)]
pub(super) struct Guard {
    rails: GuardRails,
    /// Of every rule that is loaded and acts.
    own: BTreeMap<RuleId, Rails>,
    pause: Option<Pause>,
    awaits_past: bool,
    lost_before_ms: Option<i64>,
    ledger: Ledger,
    spent: ByMode<Acts>,
    under_way: ActionsInFlight,
    settings: HeldSettings,
    silences: Silences,
    approvals: Approvals,
    inhibitors: Inhibitors,
    fleet: Fleet,
    /// For each window whether it is open, and the second of which that is true.
    open: (Option<i64>, Vec<bool>),
    now_ms: i64,
    status: Option<Arc<GuardStatus>>,
}

impl Guard {
    /// Takes other guard rails, and those of every rule that acts; what was counted stays.
    pub(super) fn replace_rails(&mut self, rails: &GuardRails, own: BTreeMap<RuleId, Rails>) {
        self.rails = rails.clone();
        self.own = own;
        let own = self.own.values().flat_map(|rails| &rails.inhibited_by);
        let blocking = &self.rails.reboot.blocked_by;
        self.inhibitors = Inhibitors::named(own.chain(&self.rails.inhibited_by).chain(blocking));
        self.ledger.retain_loaded(|known| self.own.contains_key(known));
        self.open = (None, Vec::new());
        self.status = None;
    }

    /// Whether that grade is enforced.
    pub(super) fn enforces(&self, grade: Grade) -> bool {
        self.rails.enforced.has(grade)
    }

    /// The mode of what is all of one grade.
    pub(super) fn capped(&self, mode: Mode, grade: Grade) -> Mode {
        if self.enforces(grade) { mode } else { Mode::Observe }
    }

    /// Nothing is done until [`Self::restore`].
    pub(super) fn await_past(&mut self) {
        self.awaits_past = true;
        self.status = None;
    }

    /// Brings everything to `at`: what has lapsed is forgotten.
    pub(super) fn advance(&mut self, at: Moment) {
        self.under_way.give_up(at.uptime);
        self.fleet.advance(at);
        let second = at.utc.as_second();
        if self.open.0 == Some(second) {
            return;
        }
        let windows = &self.rails.maintenance_windows;
        let open: Vec<bool> = windows.iter().map(|window| window.is_open(at.utc)).collect();
        self.silences.expire(at.utc);
        self.approvals.expire(at);
        self.open = (Some(second), open);
        self.now_ms = at.timeline_ms();
        // The clock alone seldom changes anything.
        if self.status.as_ref().is_some_and(|status| **status != self.picture()) {
            self.status = None;
        }
    }

    /// Sets the states of inhibiting rules.
    pub(super) fn set_inhibitors<'a>(
        &mut self,
        states: impl Iterator<Item = (&'a str, RuleState)>,
    ) {
        if self.inhibitors.is_empty() {
            return;
        }
        self.inhibitors.begin();
        states.for_each(|(alert, state)| self.inhibitors.set(alert, state));
    }

    pub(super) fn set_pause(&mut self, pause: Option<Pause>) {
        self.pause = pause;
        self.status = None;
    }

    pub(super) fn observe_outcome(&mut self, outcome: &Outcome) {
        self.under_way.end(outcome);
        self.settings.observe_outcome(outcome);
        if self.approvals.observe_outcome(outcome) {
            self.status = None;
        }
    }

    /// The temporary settings to undo now. `fires` returns whether a rule fires in that mode;
    /// `None` where there is no such rule.
    pub(super) fn due_undos(
        &mut self,
        at: Moment,
        fires: impl Fn(&RuleId, Mode, Grade) -> Option<bool>,
    ) -> Vec<DueUndo> {
        self.settings.due(at.uptime, fires)
    }

    /// Whether what that act has set for a while is set, as far as is known.
    pub(super) fn is_in_force(&self, act: DecisionId) -> bool {
        self.settings.is_in_force(act)
    }

    /// Whether the rule has set that already, or did for its time.
    pub(super) fn has_set(&self, proposal: &Proposal<'_>) -> bool {
        self.settings.has_set(proposal)
    }

    /// An undo has been decided. It is no act of its rule: it costs nothing, and nothing holds it
    /// back.
    pub(super) fn undoing(&mut self, undo: &DecisionRecord) {
        let Action::Undo { decision, why, .. } = undo.action else { return };
        self.settings.undoing(decision, Act::pending(undo.id, undo.at.uptime), why);
        self.under_way.begin(undo);
    }

    /// Does what a person has ordered, and says why nothing comes of it where that is so.
    pub(super) fn obey(&mut self, command: &OperatorCommand, at: Moment) -> CommandResult {
        self.status = None;
        let refused = match &command.order {
            OperatorOrder::Silence { .. } | OperatorOrder::EndSilence { .. } => {
                self.silences.obey(command, at.utc)
            }
            OperatorOrder::Approve { decision, until } => {
                self.approvals.answer(*decision, (Reply::Approve, &command.author), *until, at)
            }
            OperatorOrder::Deny { decision, until } => {
                self.approvals.answer(*decision, (Reply::Deny, &command.author), *until, at)
            }
            OperatorOrder::ResetBreaker { rules } => {
                let stopped: Vec<RuleId> = self.ledger.rules().cloned().collect();
                let mut any = false;
                for rule in stopped.iter().filter(|rule| rules.selects(rule)) {
                    for mode in [Mode::Observe, Mode::Enforce] {
                        any |= self.ledger.account_mut(rule, mode).clear_misses();
                    }
                }
                let none = || "no remedy that it names has missed its aim".to_owned();
                if any { Ok(()) } else { Err(none()) }
            }
            // Whoever reboots obeys these.
            OperatorOrder::Reboot { .. }
            | OperatorOrder::CancelReboot
            | OperatorOrder::ClearReboots => Ok(()),
        };
        CommandResult { command: command.clone(), refused: refused.err() }
    }

    /// Why that must not be done now, the aim and a person's approval left aside; the first reason
    /// in the order from what a person ordered to what is only a matter of time.
    pub(super) fn hold(&self, guarded: &GuardedProposal<'_>, at: Moment) -> Option<HoldReason> {
        let GuardedProposal { proposal, rails, .. } = *guarded;
        let now_ms = at.timeline_ms();
        let spent = self.spent_by(guarded);
        let rests = |spent: &ledger::Tally| {
            proposal.step == 0
                && spent.rests_since_ms.is_some_and(|since| {
                    now_ms.saturating_sub(since) < milliseconds(rails.cooldown)
                })
        };
        let is_past_unknown = self.is_past_unknown(rails, now_ms);
        let general = self.general_holds(proposal.rule, rails, is_past_unknown, at).into_iter();
        let counted = [
            (self.breaker_is_open(guarded, now_ms), HoldReason::BreakerOpen),
            (spent.is_some_and(rests), HoldReason::Cooldown),
        ];
        general.chain(counted).find(|(holds, _)| *holds).map(|(_, reason)| reason)
    }

    /// The holds of any act of a rule: orders and windows of people, other alerts, and unknown
    /// earlier runs.
    fn general_holds(
        &self,
        rule: &RuleId,
        rails: &Rails,
        is_past_unknown: bool,
        at: Moment,
    ) -> [(bool, HoldReason); 5] {
        [
            (self.pause.is_some(), HoldReason::Paused),
            (is_past_unknown, HoldReason::JournalUnreadable),
            (self.silences.silence(rule, at.utc), HoldReason::Silenced),
            (self.is_inhibited(rule, rails), HoldReason::Inhibited),
            (self.is_out_of_hours(rails), HoldReason::Maintenance),
        ]
    }

    /// Why that must not be done now although its rule certainly fires.
    pub(super) fn hold_act(&self, guarded: &GuardedProposal<'_>, at: Moment) -> Option<HoldReason> {
        let GuardedProposal { ref proposal, rails, labels, .. } = *guarded;
        let now_ms = at.timeline_ms();
        let is_notice = proposal.action.is_notice();
        let none: Labels = Arc::new([]);
        let is_of_cluster = proposal.action.grade() == Grade::Cordon;
        if !proposal.target.is_possible() || is_of_cluster && !self.rails.has_kubernetes {
            return Some(HoldReason::NoTarget);
        }
        if matches!(proposal.action, Action::ThrottleReadahead { of, .. }
            if of.iter().any(|path| !path.starts_with('/')))
        {
            return Some(HoldReason::NoTarget);
        }
        if let Some(reason) = self.settings.hold(proposal) {
            return Some(reason);
        }
        let protects = || self.rails.protect.protects(proposal.target, labels.unwrap_or(&none));
        if !is_notice && protects() {
            return Some(HoldReason::Protected);
        }
        if !is_notice && self.under_way.excluder(proposal.mode, proposal.action).is_some() {
            return Some(HoldReason::Busy);
        }
        let spent = self.spent_by(guarded);
        let spends = |limit| spent.is_some_and(|own| own.acts.has_spent(limit, now_ms));
        if rails.at_most.is_some_and(spends) {
            return Some(HoldReason::Budget);
        }
        let all = self.spent.of(proposal.mode);
        let is_counted = !is_notice && !proposal.action.takes_from_engine() && !is_of_cluster;
        if is_counted && self.rails.budget.is_some_and(|limit| all.has_spent(limit, now_ms)) {
            return Some(HoldReason::GlobalBudget);
        }
        None
    }

    /// A decision has been made.
    pub(super) fn decided(&mut self, decision: &DecisionRecord, rails: &Rails) {
        let at = decision.at;
        match (decision.decision, rails.approval) {
            (Decision::Act, _) => {
                let is_notice = decision.action.is_notice();
                let account = self.ledger.account_mut(&decision.rule, decision.mode);
                let engine = by_engine::engine(&decision.action, &decision.target);
                account.act(decision.id, at.timeline_ms(), is_notice, engine);
                if !is_notice {
                    if !decision.action.takes_from_engine()
                        && decision.action.grade() != Grade::Cordon
                    {
                        self.spent.of_mut(decision.mode).add(at.timeline_ms());
                    }
                    self.under_way.begin(decision);
                    self.settings.decided(decision);
                }
                self.fleet.decided(decision);
                if let Some(approved) = decision.approved {
                    self.approvals.use_up(approved, Act::pending(decision.id, at.uptime));
                }
                self.status = None;
            }
            (Decision::Hold(HoldReason::Approval | HoldReason::Announced), Some(time)) => {
                self.ask(decision, time);
            }
            (Decision::Hold(_), _) => {}
        }
    }

    /// Takes the check of an aim after an act, or a later one.
    pub(super) fn aim_checked(&mut self, rule: &RuleId, mode: Mode, aim_met: Option<bool>) {
        self.ledger.account_mut(rule, mode).check_aim(aim_met);
    }

    /// Takes the result of a start: it was ready for long, or has died in that phase. Its round
    /// ends.
    pub(super) fn start_checked(
        &mut self,
        rule: &RuleId,
        mode: Mode,
        is_well: bool,
        died_in: Option<EnginePhase>,
        at_ms: i64,
    ) {
        let account = self.ledger.account_mut(rule, mode);
        account.check_aim(Some(is_well));
        account.died(died_in);
        account.end_round(at_ms);
        self.status = None;
    }

    /// What is started again has this breaker, as if it were a remedy's.
    pub(super) fn know_restart(&mut self, rule: &RuleId, rails: &Rails) {
        if self.own.get(rule) != Some(rails) {
            self.own.insert(rule.clone(), rails.clone());
            self.status = None;
        }
    }

    /// How often in a row the aim was missed.
    pub(super) fn misses(&self, rule: &RuleId, mode: Mode) -> u32 {
        self.ledger.account(rule, mode).map_or(0, |account| account.all.misses.in_a_row())
    }

    /// Forgives the failures of an engine that runs well again; returns its last failed start.
    pub(super) fn forgive(&mut self, rule: &RuleId, mode: Mode) -> Option<DecisionId> {
        self.status = None;
        self.ledger.account_mut(rule, mode).forgive()
    }

    /// The outcome of an act will not come.
    pub(super) fn lost(&mut self, rule: &RuleId, mode: Mode) {
        self.ledger.account_mut(rule, mode).cut_off();
    }

    /// A round of steps has ended.
    pub(super) fn round_ended(&mut self, rule: &RuleId, mode: Mode, at_ms: i64) {
        self.ledger.account_mut(rule, mode).end_round(at_ms);
        self.status = None;
    }

    /// Why that rule's reboot must not be done now, by the rails that all remedies have; those that
    /// are forced are passed over. What bounds the number of acts was asked when it was scheduled.
    pub(super) fn hold_reboot(
        &self,
        rule: &RuleId,
        is_forced: &dyn Fn(HoldReason) -> bool,
        at: Moment,
    ) -> Option<HoldReason> {
        let none = Rails::default();
        let rails = self.own.get(rule).unwrap_or(&none);
        let holds = self.general_holds(rule, rails, self.awaits_past, at);
        let held = holds.into_iter().find(|(holds, reason)| *holds && !is_forced(*reason));
        held.map(|(_, reason)| reason)
    }

    /// Whether an alert that blocks reboots fires, or cannot be evaluated.
    pub(super) fn blocks_reboot(&self) -> bool {
        self.inhibitors.inhibit(&self.rails.reboot.blocked_by)
    }

    /// Whether nothing may be done to that target.
    pub(super) fn is_protected(&self, target: &Target) -> bool {
        let none: Labels = Arc::new([]);
        self.rails.protect.protects(target, &none)
    }

    /// Why nothing is to be done to an engine any longer, by what people have ordered or written.
    pub(super) fn ends_following(
        &self,
        rule: &RuleId,
        engine: &EngineTarget,
        at: Moment,
    ) -> Option<&'static str> {
        if self.silences.silence(rule, at.utc) {
            return Some("a person has silenced its rule");
        }
        let target = Target::Engine(Box::new(engine.clone()));
        let labels: Labels = Arc::new([(Arc::from("engine"), Arc::clone(&engine.name))]);
        let is_protected = self.rails.protect.protects(&target, &labels);
        is_protected.then_some("it is protected now")
    }

    /// Whether that must wait for an act that is under way.
    pub(super) fn is_busy(&self, action: &Action) -> bool {
        self.under_way.excluder(Mode::Enforce, action).is_some()
    }

    /// An act begins that is none of a remedy's round.
    pub(super) fn begin(&mut self, decision: &DecisionRecord) {
        self.under_way.begin(decision);
    }

    fn is_past_unknown(&self, rails: &Rails, now_ms: i64) -> bool {
        let own = rails.at_most.map_or(Duration::ZERO, |limit| limit.per);
        let all = self.rails.budget.map_or(Duration::ZERO, |limit| limit.per);
        let reaches_back = milliseconds(own.max(all).max(rails.cooldown));
        let lost = |before: i64| now_ms.saturating_sub(before) < reaches_back;
        self.awaits_past || self.lost_before_ms.is_some_and(lost)
    }

    fn is_inhibited(&self, rule: &RuleId, rails: &Rails) -> bool {
        // The alert that reports the trouble may do something about it.
        let is_inhibitor = self.rails.inhibited_by.contains(&rule.alert);
        self.inhibitors.inhibit(&rails.inhibited_by)
            || !is_inhibitor && self.inhibitors.inhibit(&self.rails.inhibited_by)
    }

    fn is_out_of_hours(&self, rails: &Rails) -> bool {
        let forbids = |name: &Arc<str>| self.is_open(name).unwrap_or(true);
        let allows = |name: &Arc<str>| self.is_open(name).unwrap_or(false);
        self.rails.never_in.iter().chain(&rails.never_in).any(forbids)
            || !rails.only_in.is_empty() && !rails.only_in.iter().any(allows)
    }

    fn is_open(&self, name: &str) -> Option<bool> {
        let windows = &self.rails.maintenance_windows;
        let place = windows.iter().position(|window| **window.name() == *name)?;
        self.open.1.get(place).copied()
    }

    fn breaker(&self, rails: &Rails) -> Option<BreakerLimit> {
        rails.breaker.or(self.rails.breaker)
    }

    fn breaker_is_open(&self, guarded: &GuardedProposal<'_>, now_ms: i64) -> bool {
        let Some(limit) = self.breaker(guarded.rails) else { return false };
        self.missed_by(guarded).is_some_and(|own| own.misses.is_open(limit, now_ms))
    }

    /// The values of the series of one rule: whether its breaker is open, and whether it waits for
    /// an approval.
    pub(super) fn signs(
        &self,
        rule: &RuleId,
        rails: Option<&Rails>,
        mode: Mode,
        now_ms: i64,
    ) -> [bool; 2] {
        let is_open = |rails| self.any_breaker_is_open(rule, mode, rails, now_ms);
        [rails.is_some_and(is_open), self.approvals.pending(rule) > 0]
    }

    pub(super) fn is_paused(&self) -> bool {
        self.pause.is_some()
    }

    pub(super) fn is_restored(&self) -> bool {
        !self.awaits_past
    }

    pub(super) fn silences(&self) -> usize {
        self.silences.all().len()
    }

    /// How many more actions all remedies together may do now, where that is bounded.
    pub(super) fn budget_left(&self, mode: Mode, now_ms: i64) -> Option<u32> {
        self.rails.budget.map(|limit| self.spent.of(mode).left(limit, now_ms))
    }

    /// A picture for exports; the same `Arc` while nothing changes.
    pub(super) fn status(&mut self) -> Arc<GuardStatus> {
        let status = self.status.take().unwrap_or_else(|| Arc::new(self.picture()));
        self.status = Some(Arc::clone(&status));
        status
    }

    fn picture(&self) -> GuardStatus {
        let windows = self.rails.maintenance_windows.iter().zip(&self.open.1);
        GuardStatus {
            pause: self.pause.clone(),
            is_restored: !self.awaits_past,
            silences: self.silences.all().to_vec(),
            approvals: self.approvals.statuses(),
            breakers: self.breakers(),
            windows: windows
                .map(|(window, open)| WindowStatus { name: window.name().clone(), is_open: *open })
                .collect(),
        }
    }
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
