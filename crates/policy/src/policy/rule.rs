//! Rules as the policy runs them: parsed, checked, complete.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::Expr;
use promql_rules::template::Template;
use serde::{Deserialize, Serialize};

use super::guard::{GuardRails, RemedyRails};
use crate::model::{Mode, RuleId};

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

/// Whose series a rule reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuleScope {
    /// This node's.
    #[default]
    Node,
    /// Those of all nodes of the cluster, with the labels `cluster` and `node`.
    Cluster,
}

impl RuleScope {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Cluster => "cluster",
        }
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
    /// Rest after a round of steps.
    pub cooldown: Duration,
    /// Bound on the number of acts.
    pub at_most: Option<AtMost>,
    /// What else holds it back.
    pub rails: RemedyRails,
}

impl Remedy {
    /// Whether one of its steps reboots the machine.
    pub fn reboots(&self) -> bool {
        self.steps.iter().any(RemedyStep::reboots)
    }

    /// Whether all that it does works on one engine: then its breaker counts by engine.
    pub fn breaks_by_engine(&self) -> bool {
        self.all_acts(|act| act.engine().is_some() || act.stops_engine())
    }

    /// Whether all that it does only takes from one engine what that can spare: then its cooldown
    /// and its bound count by engine, too.
    pub fn spends_by_engine(&self) -> bool {
        self.all_acts(|act| act.engine().is_some())
    }

    fn all_acts(&self, is_such: impl Fn(&RemedyStep) -> bool) -> bool {
        let mut acts = self.steps.iter().filter(|step| !step.is_notice()).peekable();
        acts.peek().is_some() && acts.all(is_such)
    }

    /// Whether one of its steps stops an engine.
    pub fn stops_engines(&self) -> bool {
        self.steps.iter().any(RemedyStep::stops_engine)
    }
}

/// No more than `times` acts in any window of length `per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtMost {
    /// Acts.
    pub times: u32,
    /// Length of the sliding window.
    pub per: Duration,
}
