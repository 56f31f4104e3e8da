//! What was truly done, and whether it may be: this shares no code with the policy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{Decision, RebootBudget, RebootForce, RebootPlan};

use super::node::{Node, Trouble};

/// What was truly done.
#[derive(Default)]
pub struct Truth {
    /// When the machine was rebooted by the program, in true time, and whether that had helped.
    pub reboots: Vec<(Duration, bool)>,
    /// When each boot was last to be ended, by the orderly way.
    pub performed: BTreeMap<Arc<str>, Duration>,
    /// So many of them a person has forgiven, or the journal can know nothing of any more.
    pub forgiven: usize,
    /// So many the journal can know nothing of any more.
    pub forgotten: usize,
    /// When the journal was last lost before the eyes of the program, and nobody has cleared that.
    pub lost: Option<Duration>,
    /// A person has called one off in this boot while there was trouble.
    pub is_called_off: bool,
    /// When the cluster's lock last said in this boot that the slot is ours, if it has not been
    /// given back and has not said otherwise since.
    pub slot: Option<Duration>,
    /// When an engine was last told to end for a reboot.
    pub stopped: Option<Duration>,
    pub counts: Counts,
}

/// How much of everything has happened, so that a test of nothing does not pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub refused: usize,
    /// Reboots for a driver that is stuck, for a leak, and by people.
    pub wedges: usize,
    pub leaks: usize,
    pub ordered: usize,
    /// Of those, so many went past something.
    pub forced: usize,
    pub stopped: usize,
    pub called_off: usize,
    pub cleared: usize,
    pub lost: usize,
    pub forgotten: usize,
    /// Slots that were given back, and those that the server has forgotten.
    pub given_back: usize,
    pub slots_lost: usize,
}

impl Counts {
    pub fn add(&mut self, more: Self) {
        self.refused += more.refused;
        self.wedges += more.wedges;
        self.leaks += more.leaks;
        self.ordered += more.ordered;
        self.forced += more.forced;
        self.stopped += more.stopped;
        self.called_off += more.called_off;
        self.cleared += more.cleared;
        self.lost += more.lost;
        self.forgotten += more.forgotten;
        self.given_back += more.given_back;
        self.slots_lost += more.slots_lost;
    }
}

impl Truth {
    /// The journal was lost, and the program was there.
    pub fn lose(&mut self, now: Duration) {
        self.forget();
        self.lost = Some(now);
        self.counts.lost += 1;
    }

    /// It was lost, and nobody can know.
    pub fn forget(&mut self) {
        self.forgotten = self.reboots.len();
        self.forgiven = self.reboots.len();
        self.performed.clear();
        self.lost = None;
        self.counts.forgotten += 1;
    }

    /// The slot is another's from now on, for all that this node knows.
    pub fn given_back(&mut self) {
        self.slot = None;
        self.counts.given_back += 1;
    }

    /// Whether the last two did not help, and nobody has forgiven them.
    fn is_given_up(&self) -> bool {
        let unforgiven = self.reboots.iter().skip(self.forgiven);
        let mut last = unforgiven.rev().take(2).map(|(_, has_helped)| *has_helped);
        last.next() == Some(false) && last.next() == Some(false)
    }

    fn count(&mut self, plan: &RebootPlan, trouble: Option<Trouble>) {
        match (&plan.ordered_by, trouble) {
            (Some(_), _) => self.counts.ordered += 1,
            (None, Some(Trouble::Leak)) => self.counts.leaks += 1,
            (None, _) => self.counts.wedges += 1,
        }
        self.counts.forced += usize::from(!plan.force.is_empty());
    }
}

impl Node {
    /// The machine is to be rebooted: may it be?
    pub fn judge(&mut self, plan: &RebootPlan, told: &str) -> Result<(), String> {
        let now = self.now;
        self.truth.count(plan, self.boot.trouble());
        let before = self.truth.performed.insert(Arc::clone(&self.boot.id), now);
        let forced = |what| plan.force.contains(&what);
        if !forced(RebootForce::Budget) {
            self.judge_budget(before, told)?;
        }
        let is_rules = plan.ordered_by.is_none();
        let is_wedged = self.boot.trouble() == Some(Trouble::Wedge);
        let runs = self.engine && !is_wedged;
        // Engines take time to end, and the server may have forgotten who has asked.
        let is_confirmed = is_confirmed(&self.truth);
        let forbidden = [
            (is_rules && self.boot.trouble().is_none(), "nothing is the matter"),
            (self.users && !forced(RebootForce::Users), "somebody is logged in"),
            (runs && !forced(RebootForce::Engines), "an engine runs"),
            (self.is_paused, "it is paused"),
            (self.disk.is_broken, "the journal cannot be written"),
            (!is_confirmed && !forced(RebootForce::Slot), "the cluster's slot is not ours"),
            (self.is_young() && !forced(RebootForce::Uptime), "the boot is young"),
            (is_rules && self.truth.is_called_off, "a person has called it off"),
            (is_rules && self.truth.is_given_up(), "two that did not help"),
        ];
        match forbidden.iter().find(|(is_so, _)| *is_so) {
            Some((_, why)) => Err(format!("rebooted although: {why}\n{told}")),
            None => Ok(()),
        }
    }

    /// An engine is to be told to end for a reboot: may it be?
    pub fn judge_stop(&mut self, decision: &Decision) -> Result<(), String> {
        let reboot = self.policy.status(self.at()).reboot;
        let Some(scheduled) = &reboot.scheduled else {
            return Err(format!("an engine is stopped for no reboot\n{decision:?}"));
        };
        let is_forced = scheduled.plan.force.contains(&RebootForce::Slot);
        if self.truth.slot.is_none() && !is_forced {
            let told = format!("at {:?} in {}: {decision:?}", self.now, self.boot.id);
            return Err(format!("an engine is stopped before the cluster's slot is ours\n{told}"));
        }
        self.truth.stopped = Some(self.now);
        Ok(())
    }

    fn is_young(&self) -> bool {
        self.boot.uptime < Duration::from_secs(1_800)
    }

    fn judge_budget(&self, before: Option<Duration>, told: &str) -> Result<(), String> {
        let (now, truth) = (self.now, &self.truth);
        let [shortest, longest] = [0, 1].map(|place| self.settings.budgets[place].per);
        if truth.lost.is_some_and(|lost| now - lost < longest) {
            return Err(format!("rebooted after the journal was lost\n{told}"));
        }
        if before.is_some_and(|before| now - before < shortest) {
            return Err(format!("twice in one boot\n{told}"));
        }
        for RebootBudget { times, per } in &self.settings.budgets {
            let since = now.saturating_sub(*per);
            let known = truth.reboots.iter().skip(truth.forgotten);
            let in_window = known.filter(|(when, _)| *when > since).count();
            if in_window >= *times as usize {
                return Err(format!("more than {times} reboots in {per:?}\n{told}"));
            }
        }
        Ok(())
    }
}

/// Whether the lock has said that the slot is ours after the last engine was told to end.
fn is_confirmed(truth: &Truth) -> bool {
    let Truth { slot, stopped, .. } = truth;
    slot.is_some_and(|granted| stopped.is_none_or(|stopped| granted > stopped))
}
