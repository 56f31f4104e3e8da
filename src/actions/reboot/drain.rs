//! The node in Kubernetes before and after a reboot: cordoned, its engines' pods evicted, and
//! schedulable again.
//!
//! Pods are evicted once the lock server has granted the slot: nodes without it must not end any
//! engine. The reboot waits for the API server and for evictions as long as the configuration says;
//! then it goes on, and its own rule for engines decides.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::actions::node::NodeExecutor;
use crate::clients::kubernetes::{ApiError, ChangeOwner, NodeApi, NodeChange, NodeHold, NodePod};
use crate::model::NodeDrain;

/// The UIDs of the pods of this node's engines.
pub type EnginePods = Arc<dyn Fn() -> BTreeSet<Arc<str>> + Send + Sync>;

/// Names of pods in one text.
const MOST_NAMED: usize = 5;

/// What is done to the node for reboots.
#[derive(Clone)]
pub(super) struct Drainer {
    engine_pods: EnginePods,
    /// Reads the uptime clock.
    uptime: fn() -> Duration,
    /// Since when the node cannot be cordoned.
    uncordoned_since: Option<Duration>,
    /// Since when pods of engines do not end. The wait for the slot is no part of it: where many
    /// nodes are to reboot it takes hours.
    evicting_since: Option<Duration>,
}

impl fmt::Debug for Drainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drainer")
            .field("uncordoned_since", &self.uncordoned_since)
            .field("evicting_since", &self.evicting_since)
            .finish_non_exhaustive()
    }
}

impl Default for Drainer {
    fn default() -> Self {
        Self::new(Arc::new(BTreeSet::new), || Duration::ZERO)
    }
}

impl Drainer {
    pub(super) fn new(engine_pods: EnginePods, uptime: fn() -> Duration) -> Self {
        Self { engine_pods, uptime, uncordoned_since: None, evicting_since: None }
    }

    pub(super) fn cordon(&mut self, drain: &NodeDrain) -> Result<String, String> {
        let change = NodeChange::Hold(NodeHold { by: ChangeOwner::Reboot, taint: None });
        let cordoned = NodeExecutor::new(drain.api.clone()).change(&change);
        unless_late(&mut self.uncordoned_since, (self.uptime)(), drain, cordoned)
    }

    /// Evicts the pods of engines, until none is left.
    pub(super) fn evict(&mut self, drain: &NodeDrain) -> Result<String, String> {
        if !drain.evict {
            return Ok(String::new());
        }
        let engines = (self.engine_pods)();
        let mut node = NodeExecutor::new(drain.api.clone());
        let evicted = node.ask(async |api| evict(api, &engines).await);
        if evicted.is_err() {
            // Both wait for the API server.
            self.evicting_since = self.evicting_since.or(self.uncordoned_since);
        }
        let evicted = evicted.and_then(RemainingPods::result);
        unless_late(&mut self.evicting_since, (self.uptime)(), drain, evicted)
    }

    /// Makes the node schedulable again, if it was cordoned for a reboot.
    pub(super) fn uncordon(&mut self, drain: &NodeDrain) -> Result<String, String> {
        (self.uncordoned_since, self.evicting_since) = (None, None);
        NodeExecutor::new(drain.api.clone()).change(&NodeChange::Release(ChangeOwner::Reboot))
    }
}

/// Goes on without what has failed for the configured time. `since`: when it began to fail.
fn unless_late(
    since: &mut Option<Duration>,
    now: Duration,
    drain: &NodeDrain,
    done: Result<String, String>,
) -> Result<String, String> {
    if done.is_ok() {
        *since = None;
    }
    done.or_else(|why| {
        let waited = now.saturating_sub(*since.get_or_insert(now));
        match waited >= drain.for_at_most {
            true => Ok(format!("{why}: gone on without, after {} s", waited.as_secs())),
            false => Err(why),
        }
    })
}

/// The pods that are left.
#[derive(Debug, Default)]
struct RemainingPods {
    /// With the refusals of their evictions.
    evicted: Vec<(NodePod, Option<ApiError>)>,
    /// Those whose eviction would not end.
    spared: Vec<NodePod>,
}

impl RemainingPods {
    fn result(self) -> Result<String, String> {
        let evicted = self.evicted.iter().map(|(pod, refusal)| match refusal {
            Some(refusal) => format!("{} ({refusal})", named(pod)),
            None => named(pod),
        });
        if !self.evicted.is_empty() {
            let evicted = enumerated(evicted.collect());
            return Err(format!("evicted pods of engines have not ended: {evicted}"));
        }
        if self.spared.is_empty() {
            return Ok("no pod of an engine is left".to_owned());
        }
        let spared = self.spared.iter();
        let spared =
            spared.map(|pod| format!("{} ({})", named(pod), pod.stays.unwrap_or_default()));
        Ok(format!(
            "not evicted, since they would run here again: {}; delete their workload, or keep it \
             off this node",
            enumerated(spared.collect())
        ))
    }
}

fn named(pod: &NodePod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn enumerated(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(MOST_NAMED);
    names.truncate(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", names.join(", "))
}

async fn evict(api: &NodeApi, engines: &BTreeSet<Arc<str>>) -> Result<RemainingPods, ApiError> {
    if engines.is_empty() {
        return Ok(RemainingPods::default());
    }
    let pods = api.pods().await?;
    let mut left = RemainingPods::default();
    for pod in pods.into_iter().filter(|pod| engines.contains(&*pod.uid)) {
        if pod.stays.is_some() {
            left.spared.push(pod);
            continue;
        }
        match api.evict(&pod).await {
            Ok(()) => left.evicted.push((pod, None)),
            Err(error) if error.code() == Some(404) => {}
            Err(error) => left.evicted.push((pod, Some(error))),
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use serde_json::{Value, json};

    use super::*;
    use crate::clients::kubernetes::scripted::serve;

    fn pod(name: &str, more: Value) -> Value {
        let mut pod = json!({"metadata": {"namespace": "ml", "name": name, "uid": name}});
        for (key, value) in more.as_object().unwrap() {
            pod["metadata"][key] = value.clone();
        }
        pod
    }

    fn evict(pods: Value, evictions: u16) -> (Result<String, String>, Vec<(String, Value)>) {
        let folder = tempfile::tempdir().unwrap();
        let (api, requests) = serve(folder.path(), move |line, _| match line.starts_with("GET") {
            true => (200, json!({"items": pods.clone()})),
            false => (evictions, json!({"message": "the UID does not match"})),
        });
        let engines = || ["llm-0", "daemon", "static"].map(Arc::from).into();
        let mut drainer = Drainer::new(Arc::new(engines), || Duration::ZERO);
        let drain = NodeDrain { api, evict: true, for_at_most: Duration::from_secs(600) };
        let result = drainer.evict(&drain);
        let mut requests = requests.lock().unwrap().clone();
        requests.retain(|(line, _)| line.starts_with("POST"));
        (result, requests)
    }

    #[test]
    fn pods_that_would_run_here_again_are_named_and_not_evicted() {
        let owner = |kind: &str| json!({"ownerReferences": [{"kind": kind, "controller": true}]});
        let mirror = json!({"annotations": {"kubernetes.io/config.mirror": "hash"}});
        let staying = [pod("daemon", owner("DaemonSet")), pod("static", mirror)];
        let (result, requests) = evict(json!(staying), 201);
        let text = result.unwrap();
        for part in ["ml/daemon (of a DaemonSet)", "ml/static (a static pod)", "run here again"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(requests.is_empty(), "{requests:?}");
        let others = [pod("llm-0", owner("StatefulSet")), pod("web-0", json!({}))];
        let (result, requests) = evict(json!([&staying[..], &others].concat()), 201);
        assert_eq!(result.unwrap_err(), "evicted pods of engines have not ended: ml/llm-0");
        assert_eq!(requests.len(), 1, "{requests:?}");
    }

    static UPTIME_SECONDS: AtomicU64 = AtomicU64::new(0);

    fn uptime() -> Duration {
        Duration::from_secs(UPTIME_SECONDS.load(Ordering::Relaxed))
    }

    #[test]
    fn the_wait_for_the_slot_is_no_wait_for_evictions() {
        let folder = tempfile::tempdir().unwrap();
        let (api, _) = serve(folder.path(), |line, _| match line.starts_with("GET /api/v1/pods") {
            true => (200, json!({"items": [pod("llm-0", json!({}))]})),
            false => (200, json!({"metadata": {"resourceVersion": "1"}})),
        });
        let engines = || ["llm-0"].map(Arc::from).into();
        let mut drainer = Drainer::new(Arc::new(engines), uptime);
        let drain = NodeDrain { api, evict: true, for_at_most: Duration::from_secs(600) };
        let mut evicted_at = |second| {
            UPTIME_SECONDS.store(second, Ordering::Relaxed);
            drainer.cordon(&drain).unwrap();
            // The slot is granted an hour after the first request.
            if second < 3_600 { Ok(String::new()) } else { drainer.evict(&drain) }
        };
        evicted_at(0).unwrap();
        for second in [3_600, 4_199] {
            let why = evicted_at(second).unwrap_err();
            assert!(why.contains("have not ended: ml/llm-0"), "{second}: {why}");
        }
        let text = evicted_at(4_200).unwrap();
        assert!(text.contains("gone on without, after 600 s"), "{text}");
    }

    #[test]
    fn pods_get_their_time_to_end_where_the_node_may_not_be_cordoned() {
        static SECONDS: AtomicU64 = AtomicU64::new(0);
        let folder = tempfile::tempdir().unwrap();
        let (api, _) = serve(folder.path(), |line, _| {
            if line.starts_with("PATCH") {
                (403, json!({}))
            } else if line.starts_with("GET /api/v1/pods") {
                (200, json!({"items": [pod("llm-0", json!({}))]}))
            } else {
                (200, json!({"metadata": {"resourceVersion": "1"}}))
            }
        });
        let engines = || ["llm-0"].map(Arc::from).into();
        let uptime = || Duration::from_secs(SECONDS.load(Ordering::Relaxed));
        let mut drainer = Drainer::new(Arc::new(engines), uptime);
        let drain = NodeDrain { api, evict: true, for_at_most: Duration::from_secs(600) };
        let mut drained_at = |second| {
            SECONDS.store(second, Ordering::Relaxed);
            drainer.cordon(&drain).and_then(|_| drainer.evict(&drain))
        };
        assert!(drained_at(0).unwrap_err().contains("(403)"));
        for second in [600, 1_199] {
            let why = drained_at(second).unwrap_err();
            assert!(why.contains("have not ended: ml/llm-0"), "{second}: {why}");
        }
        let text = drained_at(1_200).unwrap();
        assert!(text.contains("gone on without, after 600 s"), "{text}");
    }

    #[test]
    fn an_eviction_names_the_uid_so_that_no_other_pod_of_that_name_is_hit() {
        let (result, requests) = evict(json!([pod("llm-0", json!({}))]), 409);
        let text = result.unwrap_err();
        assert!(text.contains("ml/llm-0") && text.contains("(409)"), "{text}");
        let (line, body) = &requests[0];
        assert!(line.starts_with("POST /api/v1/namespaces/ml/pods/llm-0/eviction"), "{line}");
        assert_eq!(body["deleteOptions"]["preconditions"]["uid"], "llm-0");
    }
}
