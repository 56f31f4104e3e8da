//! The executor of the Kubernetes lane: taints and cordons of this machine's node.
//!
//! What a decision has changed is recorded in the node itself, and undone by the policy, at the end
//! of the program, and after a crash at the next start. A pod of a DaemonSet that another pod
//! replaces leaves it to that pod, which undoes it once it knows the node: otherwise pods that wait
//! would be placed on an unfit node in the gap.

use std::collections::BTreeMap;
use std::fmt;

use tokio::runtime::{Builder, Runtime};

use super::{Act, Executor, Performed};
use crate::clients::kubernetes::{ApiError, ChangeOwner, NodeApi, NodeChange, NodeHold};
use crate::model::{Action, DaemonSetName, DecisionId, KubernetesAccess, OutcomeResult, Taint};

/// A request of a killed process may be carried out after the first undo of the next one.
const PASSES: u32 = 2;

/// Between two attempts to undo an earlier run's changes 0, 1, 3, … calls are let pass.
const MOST_SKIPPED: u32 = 31;

/// Calls of `tend` without a reading of the node: it is read every five minutes.
const UNREAD: u32 = 29;

/// Takes whether a request of an executor succeeded.
pub type CountRequest = Box<dyn Fn(bool) + Send>;

/// Says whether alerts that do not fire show that the node is well.
pub type SettledCheck = Box<dyn Fn() -> bool + Send>;

/// Changes a node.
pub struct NodeExecutor {
    access: KubernetesAccess,
    count: CountRequest,
    /// What runs the next pod of umawarden on this node.
    daemon_set: Option<DaemonSetName>,
    has_settled: SettledCheck,
    /// Made with the first act, and anew after an error: a kubeconfig may have changed.
    connection: Option<(Runtime, NodeApi)>,
    leftovers: Leftovers,
    /// What this run has set, or may have: taints, and the cordon as `None`.
    own: BTreeMap<DecisionId, Option<Taint>>,
    node: KnownNode,
}

/// The node as it was last read. One that somebody removes is registered anew by the kubelet, with
/// another UID and without what was set.
#[derive(Debug, Default)]
struct KnownNode {
    uid: Option<String>,
    /// Whether it lacks what this run has set.
    is_new: bool,
    /// Calls of `tend` until it is read again.
    unread: u32,
}

impl KnownNode {
    fn read(&mut self, uid: String) {
        if self.uid.as_ref().is_some_and(|known| *known != uid) {
            (self.is_new, self.unread) = (true, 0);
        }
        self.uid = Some(uid);
    }
}

/// What an earlier run has left in the node.
#[derive(Debug, Default)]
struct Leftovers {
    /// How often it was undone.
    passes: u32,
    failures: u32,
    /// Calls of `tend` that are let pass.
    skipped: u32,
    /// Whether that is undone which an orderly end has left.
    is_handover_over: bool,
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
            daemon_set: None,
            has_settled: Box::new(|| true),
            connection: None,
            leftovers: Leftovers::default(),
            own: BTreeMap::new(),
            node: KnownNode::default(),
        }
    }

    /// Has each change counted.
    pub fn counting(self, count: CountRequest) -> Self {
        Self { count, ..self }
    }

    /// Leaves taints and cordons to the next pod of that DaemonSet. Those that were left to this
    /// one are undone once `has_settled`.
    pub fn handing_over(
        self,
        daemon_set: Option<DaemonSetName>,
        has_settled: SettledCheck,
    ) -> Self {
        Self { daemon_set, has_settled, ..self }
    }

    /// Changes the node. Returns in words what that did.
    pub(super) fn change(&mut self, change: &NodeChange) -> Result<String, String> {
        let (effect, uid) = self.ask(async |api| api.change(change).await)?;
        self.node.read(uid);
        Ok(effect)
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

    /// Undoes what a killed run has set, and once the node is known what an orderly end has left.
    fn undo_leftovers(&mut self) {
        let change = match self.leftovers.passes < PASSES {
            true => NodeChange::ReleaseDecisions(self.own.keys().copied().collect()),
            false => NodeChange::ReleaseLeft,
        };
        match self.change(&change) {
            Ok(effect) => {
                self.leftovers.is_handover_over |= change == NodeChange::ReleaseLeft;
                self.leftovers.passes += 1;
                self.leftovers.failures = 0;
                tracing::debug!(effect, "changes of an earlier run in the Kubernetes node");
            }
            Err(error) => {
                if self.leftovers.failures == 0 {
                    tracing::warn!(error, "changes of an earlier run unknown, retrying");
                }
                self.leftovers.skipped =
                    ((1 << self.leftovers.failures.min(5)) - 1).min(MOST_SKIPPED);
                self.leftovers.failures += 1;
            }
        }
    }

    fn has_leftovers(&self) -> bool {
        self.leftovers.passes < PASSES || !self.leftovers.is_handover_over
    }

    /// Sets again what this run has set where the node was registered anew.
    fn watch(&mut self) {
        if self.node.unread > 0 {
            self.node.unread -= 1;
            return;
        }
        self.node.unread = UNREAD;
        // A server that is away is asked again.
        let Ok(state) = self.ask(async |api| api.state().await) else { return };
        self.node.read(state.uid().to_owned());
        if !self.node.is_new {
            return;
        }
        for (decision, taint) in self.own.clone() {
            let by = ChangeOwner::Decision(decision);
            if let Err(error) = self.change(&NodeChange::Hold(NodeHold { by, taint })) {
                tracing::warn!(error, "changes of the new Kubernetes node failed, retrying");
                return;
            }
        }
        self.node.is_new = false;
        tracing::info!("taints and cordons set in the new node");
    }

    /// Leaves taints and cordons to the next pod, if there will be one. Returns whether it has.
    fn hand_over(&mut self) -> bool {
        let may_hold = !self.own.is_empty() || !self.leftovers.is_handover_over;
        let Some(daemon_set) = self.daemon_set.clone().filter(|_| may_hold) else { return false };
        match self.ask(async |api| api.leave_to(&daemon_set).await) {
            Ok(effect) => {
                tracing::info!(effect, "the next pod takes over the Kubernetes node");
                true
            }
            Err(why) => {
                tracing::info!(why, "taints and cordons of this node are undone");
                false
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
        let hold = |taint| NodeChange::Hold(NodeHold { by: ChangeOwner::Decision(act.id), taint });
        let change = match &act.action {
            Action::TaintNode { taint, .. } => hold(Some(taint.clone())),
            Action::CordonNode { .. } => hold(None),
            Action::Undo { decision, .. } => NodeChange::Release(ChangeOwner::Decision(*decision)),
            _ => return Performed::of_another_lane(act),
        };
        match &change {
            NodeChange::Release(ChangeOwner::Decision(decision)) => drop(self.own.remove(decision)),
            NodeChange::Hold(new) => drop(self.own.insert(act.id, new.taint.clone())),
            _ => {}
        }
        match self.change(&change) {
            Ok(effect) => Performed { result: OutcomeResult::Done, effect: Some(effect) },
            Err(error) => {
                // A request without a response may still be carried out, and a failed undo is
                // repeated.
                if self.own.remove(&act.id).is_some() || act.action.is_undo() {
                    let is_handover_over = self.leftovers.is_handover_over;
                    self.leftovers = Leftovers { is_handover_over, ..Leftovers::default() };
                }
                OutcomeResult::Failed(error).into()
            }
        }
    }

    fn is_unfinished(&self) -> bool {
        self.has_leftovers() || !self.own.is_empty()
    }

    fn tend(&mut self) {
        if !self.own.is_empty() {
            self.watch();
        }
        match self.leftovers.skipped {
            _ if !self.has_leftovers() => {}
            0 if self.leftovers.passes < PASSES || (self.has_settled)() => self.undo_leftovers(),
            0 => {}
            _ => self.leftovers.skipped -= 1,
        }
    }

    fn end(&mut self) {
        // The end of a program that has set nothing waits for no API server.
        if !self.is_unfinished() || self.hand_over() {
            return;
        }
        if let Err(error) = self.change(&NodeChange::ReleaseAll) {
            let effect = "the next start undoes it";
            tracing::warn!(error, effect, "taint or cordon may be left");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::actions::tests::act;
    use crate::clients::kubernetes::scripted::{merge, serve};
    use crate::model::{Grade, Taint, TaintEffect, UndoReason};

    /// Responds with a node, after a patch with the patched one.
    fn merged(node: &Mutex<Value>, line: &str, body: &Value) -> (u16, Value) {
        let mut node = node.lock().unwrap();
        if line.starts_with("PATCH") {
            merge(&mut node, body);
        }
        (200, node.clone())
    }

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

    #[test]
    fn an_undo_that_fails_is_repeated_and_an_end_with_nothing_set_asks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let node = Arc::new(Mutex::new(json!({"metadata": {"resourceVersion": "1"}, "spec": {}})));
        let is_away = Arc::new(AtomicBool::new(false));
        let (served, fails) = (Arc::clone(&node), Arc::clone(&is_away));
        let (access, requests) = serve(folder.path(), move |line, body| {
            if fails.load(Ordering::SeqCst) {
                return (500, json!({}));
            }
            merged(&served, line, body)
        });
        let is_tainted = || node.lock().unwrap()["spec"]["taints"].is_array();
        let mut executor = NodeExecutor::new(access);
        executor.begin();
        let tend_until_finished = |executor: &mut NodeExecutor| {
            for _ in 0..5 {
                executor.tend();
            }
            assert!(!executor.is_unfinished());
        };
        tend_until_finished(&mut executor);
        let taint = Taint { key: "a".to_owned(), value: None, effect: TaintEffect::NoSchedule };
        let by = ChangeOwner::Decision(DecisionId(1));
        executor.change(&NodeChange::Hold(NodeHold { by, taint: Some(taint.clone()) })).unwrap();
        executor.own.insert(DecisionId(1), Some(taint));
        is_away.store(true, Ordering::SeqCst);
        let (decision, why) = (DecisionId(1), UndoReason::AlertEnded);
        let undo = Action::Undo { decision, why, grade: Grade::Cordon };
        let Performed { result, .. } = executor.execute(&act(2, undo));
        assert!(matches!(result, OutcomeResult::Failed(_)), "{result:?}");
        assert!(is_tainted() && executor.is_unfinished());
        is_away.store(false, Ordering::SeqCst);
        tend_until_finished(&mut executor);
        assert!(!is_tainted());
        requests.lock().unwrap().clear();
        executor.end();
        assert!(requests.lock().unwrap().is_empty());
    }

    #[test]
    fn a_node_that_is_registered_anew_is_tainted_again_and_one_without_the_taint_is_not() {
        let registered = |uid: &str| json!({"metadata": {"uid": uid, "resourceVersion": "1"}});
        let folder = tempfile::tempdir().unwrap();
        let node = Arc::new(Mutex::new(registered("a")));
        let served = Arc::clone(&node);
        let (access, _) = serve(folder.path(), move |line, body| merged(&served, line, body));
        let is_tainted = || node.lock().unwrap()["spec"]["taints"].is_array();
        let mut executor = NodeExecutor::new(access);
        executor.begin();
        let taint = Taint { key: "a".to_owned(), value: None, effect: TaintEffect::NoSchedule };
        let action = Action::TaintNode { taint, for_at_most: Duration::from_secs(3_600) };
        assert_eq!(executor.execute(&act(1, action)).result, OutcomeResult::Done);
        let five_minutes = |executor: &mut NodeExecutor| {
            for _ in 0..=UNREAD {
                assert!(executor.is_unfinished(), "it is tended");
                executor.tend();
            }
        };
        for (uid, expected) in [("a", false), ("b", true), ("b", false), ("c", true)] {
            *node.lock().unwrap() = registered(uid);
            five_minutes(&mut executor);
            assert_eq!(is_tainted(), expected, "{uid}");
        }
        executor.end();
        assert!(!is_tainted());
    }

    /// What the chart makes, as far as it is read.
    fn daemon_set() -> Value {
        json!({"spec": {"template": {
            "metadata": {"annotations": {"umawarden.dev/takes-over": "true"}},
            "spec": {"tolerations": [{"operator": "Exists"}]},
        }}})
    }

    /// An update of the DaemonSet, and its removal.
    #[test]
    fn a_taint_stays_until_the_next_pod_knows_the_node_but_not_where_none_follows() {
        for is_followed in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let node =
                Arc::new(Mutex::new(json!({"metadata": {"resourceVersion": "1"}, "spec": {}})));
            let served = Arc::clone(&node);
            let (access, requests) = serve(folder.path(), move |line, body| {
                if line.contains("/namespaces/gpu/daemonsets/umawarden") {
                    return if is_followed { (200, daemon_set()) } else { (404, json!({})) };
                }
                merged(&served, line, body)
            });
            let is_tainted = || node.lock().unwrap()["spec"]["taints"].is_array();
            let executor = |has_settled: bool| {
                let [namespace, name] = ["gpu", "umawarden"].map(str::to_owned);
                let daemon_set = Some(DaemonSetName { namespace, name });
                let settled = Box::new(move || has_settled);
                NodeExecutor::new(access.clone()).handing_over(daemon_set, settled)
            };
            let mut first = executor(true);
            first.begin();
            let (key, by) = ("a".to_owned(), ChangeOwner::Decision(DecisionId(1)));
            let taint = Some(Taint { key, value: None, effect: TaintEffect::NoSchedule });
            first.change(&NodeChange::Hold(NodeHold { by, taint: taint.clone() })).unwrap();
            first.own.insert(DecisionId(1), taint);
            requests.lock().unwrap().clear();
            first.end();
            assert_eq!(is_tainted(), is_followed);
            // DaemonSet, node, change: an end has ten seconds.
            assert_eq!(requests.lock().unwrap().len(), 3);
            let mut next = executor(false);
            next.begin();
            for _ in 0..5 {
                next.tend();
            }
            assert_eq!(is_tainted(), is_followed, "nothing is known of the node");
            assert!(next.is_unfinished());
            next.has_settled = Box::new(|| true);
            next.tend();
            assert!(!is_tainted() && !next.is_unfinished());
        }
    }
}
