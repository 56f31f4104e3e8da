//! What the policy gives a reboot to decide by.

use super::{RebootContext, Reboots};
use crate::model::Moment;
use crate::policy::group::RunningGroup;
use crate::policy::{Policy, Step};

impl Policy {
    /// Whether it must be known who is logged in: a reboot is scheduled, or thought of.
    pub fn wants_logged_in(&self) -> bool {
        self.reboots.is_any_scheduled() || self.groups.iter().any(RunningGroup::thinks_of_reboot)
    }

    /// Follows a reboot that is scheduled, and what came of the last one. What the matter is must
    /// be of now.
    pub(in crate::policy) fn reboot(&mut self, at: Moment, step: &mut Step) {
        if !self.has_measured(at) {
            return;
        }
        let condition = self.reboots.watched().and_then(|(rule, mode)| {
            self.groups
                .iter()
                .find_map(|group| group.condition(rule, mode, self.mode, &self.cluster))
        });
        let (reboots, mut context) = self.rebooting(at, step);
        reboots.step(condition, &mut context);
    }

    /// The reboots, and their context.
    pub(in crate::policy) fn rebooting<'a>(
        &'a mut self,
        at: Moment,
        step: &'a mut Step,
    ) -> (&'a mut Reboots, RebootContext<'a>) {
        let context = RebootContext {
            at,
            mode: self.mode,
            engines: &self.engines,
            store: &self.store,
            assessment: self.assessment.current(),
            guard: &mut self.guard,
            numbers: &mut self.numbers,
            counters: &mut self.counters,
            step,
        };
        (&mut self.reboots, context)
    }
}
