//! Rules as the policy runs them: parsed, checked, complete.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::Expr;
use promql_rules::template::Template;

use super::guard::{ByEngine, GuardRails, Rails};
use crate::model::{Grades, Mode, RuleId, ShippedPart, ShippedRule, named};

mod step;

pub(super) use step::fill;
pub use step::{ReclaimFrom, RemedyStep};

/// All loaded rules.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// Groups in the order of their files.
    pub groups: Vec<RuleGroup>,
    /// What holds all remedies back.
    pub guard_rails: GuardRails,
    /// The rules inside the binary that are not loaded.
    pub shipped_off: Arc<[ShippedRule]>,
    /// What the configuration has changed.
    pub overridden: BTreeMap<RuleId, Overridden>,
}

impl RuleSet {
    /// The guard rails of every rule that acts.
    pub(super) fn own_rails(&self) -> BTreeMap<RuleId, Rails> {
        let all = self.groups.iter().flat_map(|group| &group.rules);
        let with_remedy = all.filter_map(|rule| Some((rule, rule.remedy.as_ref()?)));
        with_remedy.map(|(rule, remedy)| (rule.id.clone(), remedy.rails.clone())).collect()
    }
}

/// What a configuration has changed in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overridden {
    /// The rule as it is named there: `GROUP/ALERT`, `FILE/ALERT` or `ALERT`.
    pub name: Arc<str>,
    /// Where it says so: `umawarden.yaml:12`.
    pub place: Arc<str>,
    /// Keys of the rule that the configuration replaces.
    pub keys: BTreeSet<OverrideKey>,
}

impl fmt::Display for Overridden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.keys.iter().map(|key| key.name()).collect();
        write!(f, "overridden in {}: {}", self.place, keys.join(", "))
    }
}

named! {
    /// What a configuration can change in a rule.
    pub enum OverrideKey {
        /// Whether the rule acts.
        Mode = "mode",
        /// The label.
        Severity = "severity",
        /// How long the condition must hold.
        For = "for",
        /// How long the alert lasts after it.
        KeepFiringFor = "keep_firing_for",
        /// Rest after a round.
        Cooldown = "cooldown",
        /// Bound on the number of acts.
        AtMost = "at_most",
        /// Whether a person must approve.
        RequireApproval = "require_approval",
        /// When it stops after misses.
        Breaker = "breaker",
        /// Windows in which alone it acts.
        OnlyIn = "only_in",
        /// Windows in which it does not act.
        NeverIn = "never_in",
        /// Alerts during which it does not act.
        InhibitedBy = "inhibited_by",
    }
}

impl OverrideKey {
    /// Whether it says nothing without a remedy.
    pub fn is_of_remedy(self) -> bool {
        !matches!(self, Self::Severity | Self::For | Self::KeepFiringFor)
    }
}

/// Rules that are evaluated together, at one interval.
#[derive(Clone, Debug)]
pub struct RuleGroup {
    /// Unique among all groups of all files.
    pub name: Arc<str>,
    /// Where it was read from; `shipped:memory.yaml` for those inside the binary.
    pub file: PathBuf,
    /// Whose series its rules read.
    pub scope: RuleScope,
    /// Time between evaluations.
    pub interval: Duration,
    /// In file order.
    pub rules: Vec<Rule>,
}

impl Rule {
    /// Its mode on a node with that one, where these grades are enforced. A remedy of which no
    /// step is enforced only observes.
    pub fn mode_in_force(&self, of_node: Mode, enforced: &Grades) -> Mode {
        let mode = self.mode.unwrap_or(of_node);
        let is_enforced =
            |remedy: &Remedy| remedy.steps.iter().any(|step| enforced.has(step.grade()));
        if self.remedy.as_ref().is_none_or(is_enforced) { mode } else { Mode::Observe }
    }

    /// What else it is known as.
    pub fn part(&self) -> Option<ShippedPart> {
        let steps = &self.remedy.as_ref()?.steps;
        steps.iter().find_map(|step| match step {
            RemedyStep::StopEngine { engine: None, .. } => Some(ShippedPart::Brake),
            RemedyStep::EvictCheckpoint { .. } => Some(ShippedPart::LoadGuard),
            _ => None,
        })
    }
}

named! {
    /// Whose series a rule reads.
    #[derive(Default)]
    pub enum RuleScope {
        /// This node's.
        #[default]
        Node = "node",
        /// Those of all nodes of the cluster, with the labels `cluster` and `node`.
        Cluster = "cluster",
    }
}

/// One alert, and perhaps its remedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Group and alert name; unique.
    pub id: RuleId,
    /// Whose series it reads; the same for all rules of a group.
    pub scope: RuleScope,
    /// The condition.
    pub expr: Query,
    /// How long the condition must hold before the alert fires.
    pub hold_for: Duration,
    /// How long the alert keeps firing after the condition ended.
    pub keep_firing_for: Duration,
    /// Labels added to the alert's, templates by name, in name order.
    pub labels: Vec<(Arc<str>, Template)>,
    /// Texts for people, templates by name, in name order.
    pub annotations: Vec<(Arc<str>, Template)>,
    /// Overrides the node's mode for this rule.
    pub mode: Option<Mode>,
    /// Whether a Prometheus that scrapes the node can raise it.
    pub is_exported: bool,
    /// What to do while it fires.
    pub remedy: Option<Remedy>,
}

/// An expression with the text that it was parsed from.
#[derive(Clone, Debug)]
pub struct Query {
    /// As written.
    pub text: Arc<str>,
    /// As parsed and checked.
    pub expr: Expr,
}

impl PartialEq for Query {
    /// The text says all.
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Query {}

/// Steps that are tried in order until the aim is met.
#[derive(Clone, Debug, PartialEq)]
pub struct Remedy {
    /// Met when it yields anything. Without one, the aim is that `expr` yields nothing.
    pub aim: Option<Query>,
    /// At least one.
    pub steps: Vec<RemedyStep>,
    /// What holds it back.
    pub rails: Rails,
}

impl Remedy {
    /// Whether one of its steps reboots the machine.
    pub fn reboots(&self) -> bool {
        self.steps.iter().any(RemedyStep::reboots)
    }

    /// Whether one of its steps stops an engine.
    pub fn stops_engines(&self) -> bool {
        self.steps.iter().any(RemedyStep::stops_engine)
    }
}

/// What is counted for each engine apart for a remedy of these steps.
pub fn counted_by_engine(steps: &[RemedyStep]) -> ByEngine {
    let acts = || steps.iter().filter(|step| !step.is_notice());
    let names = |step: &RemedyStep| step.engine().is_some();
    if acts().next().is_none() {
        ByEngine::Nothing
    } else if acts().all(names) {
        ByEngine::Everything
    } else if acts().all(|step| names(step) || step.stops_engine()) {
        ByEngine::Misses
    } else {
        ByEngine::Nothing
    }
}
