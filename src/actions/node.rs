//! The executor of the Kubernetes lane: taints and cordons of this machine's node.
//!
//! What a decision has changed is recorded in the node itself, and undone by the policy, at the end
//! of the program, and after a crash at the next start.

use std::collections::BTreeSet;
use std::fmt;

use tokio::runtime::{Builder, Runtime};

use super::{Act, Executor, Performed};
use crate::clients::kubernetes::{ApiError, Change, Held, Holder, NodeApi};
use crate::model::{Action, DecisionId, KubernetesAccess, OutcomeResult};

/// A request of a killed process may be carried out after the first undo of the next one.
const PASSES: u32 = 2;

/// Between two attempts to undo an earlier run's changes 0, 1, 3, … calls are let pass.
const MOST_SKIPPED: u32 = 31;

/// Takes whether a request of an executor succeeded.
pub type CountRequest = Box<dyn Fn(bool) + Send>;

/// Changes a node.
pub struct NodeExecutor {
    access: KubernetesAccess,
    count: CountRequest,
    /// Made with the first act, and anew after an error: a kubeconfig may have changed.
    connection: Option<(Runtime, NodeApi)>,
    leftovers: Leftovers,
    /// What this run has set, or may have.
    own: BTreeSet<DecisionId>,
}

/// What an earlier run has left in the node.
#[derive(Debug, Default)]
struct Leftovers {
    /// How often it was undone.
    passes: u32,
    failures: u32,
    /// Calls of `tend` that are let pass.
    skipped: u32,
}

impl fmt::Debug for NodeExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeExecutor").field("own", &self.own).finish_non_exhaustive()
    }
}

impl NodeExecutor {
    /// Connects with its first act.
    pub fn new(access: KubernetesAccess) -> Self {
        Self {
            access,
            count: Box::new(|_| {}),
            connection: None,
            leftovers: Leftovers::default(),
            own: BTreeSet::new(),
        }
    }

    /// Has each change counted.
    pub fn counting(self, count: CountRequest) -> Self {
        Self { count, ..self }
    }

    /// Changes the node. Returns in words what that did.
    pub(super) fn change(&mut self, change: &Change) -> Result<String, String> {
        self.ask(async |api| api.change(change).await)
    }

    /// Asks the API server with one connection for all requests.
    pub(super) fn ask<T>(
        &mut self,
        request: impl AsyncFnOnce(&NodeApi) -> Result<T, ApiError>,
    ) -> Result<T, String> {
        let (runtime, api) = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.access)?,
        };
        let result = runtime.block_on(request(&api));
        (self.count)(result.is_ok());
        if result.is_ok() {
            self.connection = Some((runtime, api));
        }
        result.map_err(|error| error.to_string())
    }

    fn undo_leftovers(&mut self) {
        match self.change(&Change::ReleaseDecisions(self.own.clone())) {
            Ok(effect) => {
                self.leftovers.passes += 1;
                tracing::debug!(effect, "changes of an earlier run in the Kubernetes node");
            }
            Err(error) => {
                if self.leftovers.failures == 0 {
                    tracing::warn!(
                        "whether an earlier run has left a taint or a cordon is not known: \
                         {error}; it is asked again"
                    );
                }
                self.leftovers.skipped =
                    ((1 << self.leftovers.failures.min(5)) - 1).min(MOST_SKIPPED);
                self.leftovers.failures += 1;
            }
        }
    }
}

fn connect(access: &KubernetesAccess) -> Result<(Runtime, NodeApi), String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime can be made: {error}"))?;
    let api = runtime.block_on(NodeApi::open(access)).map_err(|error| error.to_string())?;
    Ok((runtime, api))
}

impl Executor for NodeExecutor {
    fn begin(&mut self) {
        self.undo_leftovers();
    }

    fn execute(&mut self, act: &Act) -> Performed {
        let hold = |taint| Change::Hold(Held { by: Holder::Decision(act.id), taint });
        let change = match &act.action {
            Action::TaintNode { taint, .. } => hold(Some(taint.clone())),
            Action::CordonNode { .. } => hold(None),
            Action::Undo { decision, .. } => Change::Release(Holder::Decision(*decision)),
            _ => return Performed::of_another_lane(act),
        };
        match &change {
            Change::Release(Holder::Decision(decision)) => drop(self.own.remove(decision)),
            _ => drop(self.own.insert(act.id)),
        }
        match self.change(&change) {
            Ok(effect) => Performed { result: OutcomeResult::Done, effect: Some(effect) },
            Err(error) => {
                // A request without a response may still be carried out.
                if self.own.remove(&act.id) {
                    self.leftovers = Leftovers::default();
                }
                OutcomeResult::Failed(error).into()
            }
        }
    }

    fn is_unfinished(&self) -> bool {
        self.leftovers.passes < PASSES
    }

    fn tend(&mut self) {
        match self.leftovers.skipped {
            0 => self.undo_leftovers(),
            _ => self.leftovers.skipped -= 1,
        }
    }

    fn end(&mut self) {
        if let Err(error) = self.change(&Change::ReleaseDecisions(BTreeSet::new())) {
            tracing::warn!(
                "a taint or a cordon may be left in the Kubernetes node: {error}; the next start \
                 undoes it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::*;
    use crate::clients::kubernetes::scripted::serve;

    /// With conditions and events off, nothing else shows that there is a cluster.
    #[test]
    fn each_change_is_counted_from_the_undo_at_the_start_on() {
        for (code, is_success) in [(200, true), (403, false)] {
            let folder = tempfile::tempdir().unwrap();
            let (access, _) = serve(folder.path(), move |_, _| {
                (code, json!({"metadata": {"uid": "u", "resourceVersion": "1"}}))
            });
            let counted = Arc::new(Mutex::new(Vec::new()));
            let count = Arc::clone(&counted);
            let count = move |is_success| count.lock().unwrap().push(is_success);
            let mut executor = NodeExecutor::new(access).counting(Box::new(count));
            executor.begin();
            assert_eq!(*counted.lock().unwrap(), [is_success]);
        }
    }
}
