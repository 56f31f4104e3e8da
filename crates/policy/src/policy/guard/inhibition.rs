//! Other rules that keep a remedy from acting while they fire.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::policy::status::RuleState;

/// Whether inhibiting rules may fire, by alert name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::policy) struct Inhibitors(BTreeMap<Arc<str>, bool>);

impl Inhibitors {
    /// The alerts that are named anywhere; each is unknown until it is evaluated.
    pub(super) fn named<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> Self {
        Self(names.map(|name| (Arc::clone(name), true)).collect())
    }

    /// Whether no rule is named as one.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Begins a round of [`Self::set`].
    pub(in crate::policy) fn begin(&mut self) {
        self.0.values_mut().for_each(|inhibits| *inhibits = false);
    }

    /// The state of a rule of that name. In several groups, any of them inhibits; an unknown one
    /// may fire.
    pub(in crate::policy) fn set(&mut self, alert: &str, state: RuleState) {
        if let Some(inhibits) = self.0.get_mut(alert) {
            *inhibits |= matches!(state, RuleState::Firing | RuleState::Unknown);
        }
    }

    /// Whether any of those names inhibits.
    pub(super) fn inhibit(&self, names: &[Arc<str>]) -> bool {
        names.iter().any(|name| self.0.get(name).copied().unwrap_or(true))
    }
}
