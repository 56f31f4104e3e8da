//! All acts as they truly happened, and whether they were allowed: this shares no code with the
//! policy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{DecisionRecord, RebootBudget, RebootForce, RebootPlan};

use super::node::{Node, Trouble};

/// All acts as they truly happened.
#[derive(Default)]
pub struct Truth {
    /// Times of the program's reboots, in true time, and whether each had helped.
    pub reboots: Vec<(Duration, bool)>,
    /// Time of the last attempt to end each boot by the orderly method.
    pub performed: BTreeMap<Arc<str>, Duration>,
    /// Number of reboots that a person has forgiven, or that the journal cannot know any more.
    pub forgiven: usize,
    /// Number of reboots that the journal cannot know any more.
    pub forgotten: usize,
    /// Time of the last loss of the journal that the program has detected and no person has
    /// cleared.
    pub lost: Option<Duration>,
    /// A person has cancelled one in this boot while there was trouble.
    pub is_cancelled: bool,
    /// Time of the last response of the cluster's lock in this boot that grants the slot, if it has
    /// not been released or revoked since.
    pub slot: Option<Duration>,
    /// Time of the last request to an engine to end for a reboot.
    pub stopped: Option<Duration>,
    pub counts: Counts,
}

/// Counts of everything, so that an idle test does not pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub refused: usize,
    /// Reboots for a driver that is stuck, for a leak, and by people.
    pub wedges: usize,
    pub leaks: usize,
    pub ordered: usize,
    /// Number of those that bypassed a guard rail.
    pub forced: usize,
    pub stopped: usize,
    pub called_off: usize,
    pub cleared: usize,
    pub lost: usize,
    pub forgotten: usize,
    /// Slots that were released, and those that the server has forgotten.
    pub released: usize,
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
        self.released += more.released;
        self.slots_lost += more.slots_lost;
    }
}

impl Truth {
    /// The journal was lost, and the program ran.
    pub fn lose(&mut self, now: Duration) {
        self.forget();
        self.lost = Some(now);
        self.counts.lost += 1;
    }

    /// It was lost without a trace.
    pub fn forget(&mut self) {
        self.forgotten = self.reboots.len();
        self.forgiven = self.reboots.len();
        self.performed.clear();
        self.lost = None;
        self.counts.forgotten += 1;
    }

    /// The slot belongs to another node from now on, as far as this node knows.
    pub fn released(&mut self) {
        self.slot = None;
        self.counts.released += 1;
    }

    /// Whether the last two did not help, and no person has forgiven them.
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
    /// The machine is to be rebooted: is it allowed?
    pub fn check_reboot(&mut self, plan: &RebootPlan, context: &str) -> Result<(), String> {
        let now = self.now;
        self.truth.count(plan, self.boot.trouble());
        let before = self.truth.performed.insert(Arc::clone(&self.boot.id), now);
        let forced = |what| plan.force.contains(&what);
        if !forced(RebootForce::Budget) {
            self.check_budget(before, context)?;
        }
        let is_rules = plan.ordered_by.is_none();
        let is_wedged = self.boot.trouble() == Some(Trouble::Wedge);
        let runs = self.engine && !is_wedged;
        // Engines take time to end, and the server may have forgotten the holder.
        let is_confirmed = is_confirmed(&self.truth);
        let forbidden = [
            (is_rules && self.boot.trouble().is_none(), "nothing is the matter"),
            (self.users && !forced(RebootForce::Users), "somebody is logged in"),
            (runs && !forced(RebootForce::Engines), "an engine runs"),
            (self.is_paused, "it is paused"),
            (self.disk.is_broken, "the journal cannot be written"),
            (!is_confirmed && !forced(RebootForce::Slot), "the cluster's slot is not ours"),
            (self.is_young() && !forced(RebootForce::Uptime), "the boot is young"),
            (is_rules && self.truth.is_cancelled, "a person has cancelled it"),
            (is_rules && self.truth.is_given_up(), "two that did not help"),
        ];
        match forbidden.iter().find(|(is_so, _)| *is_so) {
            Some((_, why)) => Err(format!("rebooted although: {why}\n{context}")),
            None => Ok(()),
        }
    }

    /// An engine is to end for a reboot: is it allowed?
    pub fn check_stop(&mut self, decision: &DecisionRecord) -> Result<(), String> {
        let reboot = self.policy.status(self.at()).reboot;
        let Some(scheduled) = &reboot.scheduled else {
            return Err(format!("an engine is stopped for no reboot\n{decision:?}"));
        };
        let is_forced = scheduled.plan.force.contains(&RebootForce::Slot);
        if self.truth.slot.is_none() && !is_forced {
            let context = format!("at {:?} in {}: {decision:?}", self.now, self.boot.id);
            return Err(format!(
                "an engine is stopped before the cluster's slot is ours\n{context}"
            ));
        }
        self.truth.stopped = Some(self.now);
        Ok(())
    }

    fn is_young(&self) -> bool {
        self.boot.uptime < Duration::from_secs(1_800)
    }

    fn check_budget(&self, before: Option<Duration>, context: &str) -> Result<(), String> {
        let (now, truth) = (self.now, &self.truth);
        let [shortest, longest] = [0, 1].map(|index| self.settings.budgets[index].per);
        if truth.lost.is_some_and(|lost| now - lost < longest) {
            return Err(format!("rebooted after the journal was lost\n{context}"));
        }
        if before.is_some_and(|before| now - before < shortest) {
            return Err(format!("twice in one boot\n{context}"));
        }
        for RebootBudget { times, per } in &self.settings.budgets {
            let since = now.saturating_sub(*per);
            let known = truth.reboots.iter().skip(truth.forgotten);
            let in_window = known.filter(|(when, _)| *when > since).count();
            if in_window >= *times as usize {
                return Err(format!("more than {times} reboots in {per:?}\n{context}"));
            }
        }
        Ok(())
    }
}

/// Whether the lock has confirmed the slot after the last engine was asked to end.
fn is_confirmed(truth: &Truth) -> bool {
    let Truth { slot, stopped, .. } = truth;
    slot.is_some_and(|granted| stopped.is_none_or(|stopped| granted > stopped))
}
