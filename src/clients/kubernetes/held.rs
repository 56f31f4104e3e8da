//! What umawarden has changed in the node, written into the node itself.
//!
//! The annotation [`HELD`] is written by the same request as the change. So a change and its record
//! cannot come apart, whatever ends this process, this machine or the connection; and a change that
//! somebody else made is never undone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::model::{DecisionId, Taint};

/// The annotation: a list of [`NodeHold`] in JSON.
const HELD: &str = "umawarden.dev/held";

/// For whom something is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeOwner {
    /// A rule's decision.
    Decision(DecisionId),
    /// A decision of a run that has ended in order: the next run undoes it once it knows better.
    Left(DecisionId),
    /// The reboot, which the change outlasts.
    Reboot,
}

/// One thing that is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHold {
    /// What the change is made for.
    pub by: ChangeOwner,
    /// The taint; `None`: the node is unschedulable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taint: Option<Taint>,
}

/// A change of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// Set it, unless somebody has.
    Hold(NodeHold),
    /// Undo it.
    Release(ChangeOwner),
    /// Undo what decisions have set but for these, in this run or one that was killed.
    ReleaseDecisions(BTreeSet<DecisionId>),
    /// Keep what decisions have set for the next run.
    Leave,
    /// Undo what an earlier run has left.
    ReleaseLeft,
    /// Undo what decisions have set in any run.
    ReleaseAll,
}

impl NodeChange {
    fn releases(&self, held: &NodeHold) -> bool {
        match self {
            Self::Hold(_) | Self::Leave => false,
            Self::Release(holder) => held.by == *holder,
            Self::ReleaseDecisions(kept) => match held.by {
                ChangeOwner::Decision(decision) => !kept.contains(&decision),
                ChangeOwner::Left(_) | ChangeOwner::Reboot => false,
            },
            Self::ReleaseLeft => matches!(held.by, ChangeOwner::Left(_)),
            Self::ReleaseAll => held.by != ChangeOwner::Reboot,
        }
    }
}

/// A merge patch and its effect in words. No patch: nothing is to be changed.
#[derive(Clone, Debug, PartialEq)]
pub struct PatchPlan {
    /// The body of the PATCH request.
    pub patch: Option<Value>,
    /// What the patch does, in words.
    pub effect: String,
}

/// The read part of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct NodeState {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
struct Status {
    #[serde(default)]
    conditions: Vec<Value>,
}

/// A condition that the node has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reported {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// When it became so.
    #[serde(default)]
    pub last_transition_time: Option<String>,
}

impl Reported {
    /// Reads one; `None`: it is none.
    pub fn read(condition: &Value) -> Option<Self> {
        Self::deserialize(condition).ok()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
struct Spec {
    #[serde(default)]
    unschedulable: bool,
    /// Taints with all their fields: those of others must stay as they are.
    #[serde(default)]
    taints: Vec<Value>,
}

impl NodeState {
    /// The node's UID.
    pub fn uid(&self) -> &str {
        &self.metadata.uid
    }

    /// The conditions that the node has.
    pub fn conditions(&self) -> Vec<Reported> {
        self.status.conditions.iter().filter_map(Reported::read).collect()
    }

    pub(super) fn labels(&self) -> &BTreeMap<String, String> {
        &self.metadata.labels
    }

    /// What umawarden has changed.
    ///
    /// # Errors
    /// Somebody has written something else into the annotation.
    pub fn held(&self) -> Result<Vec<NodeHold>, serde_json::Error> {
        let text = self.metadata.annotations.get(HELD);
        text.map_or_else(|| Ok(Vec::new()), |text| serde_json::from_str(text))
    }

    /// What that change comes to.
    ///
    /// # Errors
    /// What umawarden has changed is not known: somebody has written over the annotation. Or the
    /// node has no version: a patch without one is always accepted, and could undo what others have
    /// changed meanwhile.
    pub fn plan(&self, change: &NodeChange) -> Result<PatchPlan, String> {
        if self.metadata.resource_version.is_empty() {
            let why = "the API server names no resourceVersion of the node, so that changes of \
                       others could be lost";
            return Err(format!("nothing was changed: {why}"));
        }
        let held = self.held().map_err(|error| {
            format!(
                "nothing was changed: the annotation {HELD} of the node cannot be read ({error}): \
                 remove it, and what it names: taints, or the cordon"
            )
        })?;
        Ok(match change {
            NodeChange::Hold(new) => self.hold(held, new),
            NodeChange::Leave => self.leave(held),
            NodeChange::Release(_)
            | NodeChange::ReleaseDecisions(_)
            | NodeChange::ReleaseLeft
            | NodeChange::ReleaseAll => self.release(held, change),
        })
    }

    fn hold(&self, mut held: Vec<NodeHold>, new: &NodeHold) -> PatchPlan {
        let is_ours = held.iter().any(|known| known.taint == new.taint);
        if let Some(other) = new.taint.as_ref().and_then(|taint| self.in_place_of(taint)) {
            let effect = format!("nothing was changed: the node has the taint {other} already");
            return PatchPlan { patch: None, effect };
        }
        if self.has(new.taint.as_ref()) && !is_ours {
            let effect = format!("the node is {} already, by somebody else", TaintText(&new.taint));
            return PatchPlan { patch: None, effect };
        }
        let effect = format!("the node is {}", TaintText(&new.taint));
        if held.contains(new) && self.has(new.taint.as_ref()) {
            return PatchPlan { patch: None, effect };
        }
        held.retain(|known| known != new);
        held.push(new.clone());
        let mut spec = json!({});
        match &new.taint {
            Some(taint) => spec["taints"] = self.with(taint),
            None => spec["unschedulable"] = true.into(),
        }
        PatchPlan { patch: Some(self.patch(&held, spec)), effect }
    }

    fn leave(&self, mut held: Vec<NodeHold>) -> PatchPlan {
        let (mut kept, mut is_changed) = (Vec::new(), false);
        for one in &mut held {
            if let ChangeOwner::Decision(decision) = one.by {
                one.by = ChangeOwner::Left(decision);
                is_changed = true;
            }
            if matches!(one.by, ChangeOwner::Left(_)) {
                kept.push(format!("the node stays {}", TaintText(&one.taint)));
            }
        }
        let effect = match kept.is_empty() {
            true => "nothing was to be kept".to_owned(),
            false => kept.join(", "),
        };
        PatchPlan { patch: is_changed.then(|| self.patch(&held, json!({}))), effect }
    }

    fn release(&self, held: Vec<NodeHold>, change: &NodeChange) -> PatchPlan {
        let (gone, held): (Vec<NodeHold>, Vec<NodeHold>) =
            held.into_iter().partition(|held| change.releases(held));
        if gone.is_empty() {
            return PatchPlan { patch: None, effect: "nothing was to be undone".to_owned() };
        }
        let mut taints = self.spec.taints.clone();
        let (mut spec, mut undone) = (json!({}), Vec::new());
        // Another holder may want the same.
        let is_wanted = |taint: &Option<Taint>| held.iter().any(|held| held.taint == *taint);
        for NodeHold { taint, .. } in gone.iter().filter(|gone| !is_wanted(&gone.taint)) {
            match taint {
                Some(taint) => {
                    let before = taints.len();
                    taints.retain(|known| !is_taint(known, taint));
                    if taints.len() < before {
                        undone.push(format!("the taint {taint} is removed"));
                    }
                }
                None if self.spec.unschedulable => {
                    spec["unschedulable"] = Value::Null;
                    undone.push("the node is schedulable again".to_owned());
                }
                None => {}
            }
        }
        if taints.len() < self.spec.taints.len() {
            spec["taints"] = list(taints);
        }
        let effect = match undone.is_empty() {
            true => "somebody else had undone it already".to_owned(),
            false => undone.join(", "),
        };
        PatchPlan { patch: Some(self.patch(&held, spec)), effect }
    }

    fn has(&self, taint: Option<&Taint>) -> bool {
        match taint {
            Some(taint) => self.spec.taints.iter().any(|known| is_taint(known, taint)),
            None => self.spec.unschedulable,
        }
    }

    /// The taint of the same key and effect with another value: a node has one at most.
    fn in_place_of(&self, taint: &Taint) -> Option<String> {
        let known = self.spec.taints.iter().find(|known| is_same(known, taint))?;
        let value = text(known, "value").unwrap_or_default();
        (!is_taint(known, taint)).then(|| format!("{}={value}:{}", taint.key, taint.effect))
    }

    fn with(&self, taint: &Taint) -> Value {
        let others = self.spec.taints.iter().filter(|known| !is_same(known, taint)).cloned();
        list(others.chain([json!(taint)]).collect())
    }

    /// With the version that was read: the server refuses it if the node has changed since.
    fn patch(&self, held: &[NodeHold], spec: Value) -> Value {
        let held = (!held.is_empty()).then(|| json!(held).to_string());
        json!({
            "metadata": {
                "resourceVersion": self.metadata.resource_version,
                "annotations": {HELD: held},
            },
            "spec": spec,
        })
    }
}

/// A list for a merge patch, in which an empty one is removed.
fn list(taints: Vec<Value>) -> Value {
    if taints.is_empty() { Value::Null } else { Value::Array(taints) }
}

fn text<'v>(taint: &'v Value, key: &str) -> Option<&'v str> {
    taint.get(key).and_then(Value::as_str)
}

fn is_same(known: &Value, taint: &Taint) -> bool {
    text(known, "key") == Some(&taint.key) && text(known, "effect") == Some(taint.effect.name())
}

fn is_taint(known: &Value, taint: &Taint) -> bool {
    is_same(known, taint)
        && text(known, "value").unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
}

struct TaintText<'a>(&'a Option<Taint>);

impl fmt::Display for TaintText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(taint) => write!(f, "tainted with {taint}"),
            None => f.write_str("cordoned"),
        }
    }
}
