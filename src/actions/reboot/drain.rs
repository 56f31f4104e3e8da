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
use crate::clients::kubernetes::{ApiError, Change, Held, Holder, NodeApi, NodePod};
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
    /// Since when the reboot waits.
    since: Option<Duration>,
}

impl fmt::Debug for Drainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drainer").field("since", &self.since).finish_non_exhaustive()
    }
}

impl Default for Drainer {
    fn default() -> Self {
        Self::new(Arc::new(BTreeSet::new), || Duration::ZERO)
    }
}

impl Drainer {
    pub(super) fn new(engine_pods: EnginePods, uptime: fn() -> Duration) -> Self {
        Self { engine_pods, uptime, since: None }
    }

    /// Cordons the node.
    pub(super) fn cordon(&mut self, drain: &NodeDrain) -> Result<String, String> {
        self.since.get_or_insert_with(self.uptime);
        let change = Change::Hold(Held { by: Holder::Reboot, taint: None });
        let cordoned = NodeExecutor::new(drain.api.clone()).change(&change);
        self.unless_late(drain, cordoned)
    }

    /// Evicts the pods of engines, until none is left.
    pub(super) fn evict(&mut self, drain: &NodeDrain) -> Result<String, String> {
        if !drain.evict {
            return Ok(String::new());
        }
        let engines = (self.engine_pods)();
        let mut node = NodeExecutor::new(drain.api.clone());
        let evicted = node.ask(async |api| evict(api, &engines).await).and_then(Left::result);
        self.unless_late(drain, evicted)
    }

    /// Makes the node schedulable again, if it was cordoned for a reboot.
    pub(super) fn uncordon(&mut self, drain: &NodeDrain) -> Result<String, String> {
        self.since = None;
        NodeExecutor::new(drain.api.clone()).change(&Change::Release(Holder::Reboot))
    }

    fn unless_late(
        &self,
        drain: &NodeDrain,
        done: Result<String, String>,
    ) -> Result<String, String> {
        let waited =
            self.since.map_or(Duration::ZERO, |since| (self.uptime)().saturating_sub(since));
        done.or_else(|why| match waited >= drain.for_at_most {
            true => Ok(format!("{why}: gone on without, after {} s", waited.as_secs())),
            false => Err(why),
        })
    }
}

/// The pods that are left, with the refusals of their evictions.
#[derive(Debug, Default)]
struct Left(Vec<(NodePod, Option<ApiError>)>);

impl Left {
    fn result(self) -> Result<String, String> {
        if self.0.is_empty() {
            return Ok("no pod of an engine is left".to_owned());
        }
        let named = self.0.iter().take(MOST_NAMED).map(|(pod, refusal)| {
            let name = format!("{}/{}", pod.namespace, pod.name);
            refusal.as_ref().map_or_else(|| name.clone(), |refusal| format!("{name} ({refusal})"))
        });
        let named: Vec<String> = named.collect();
        let more = self.0.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Err(format!("evicted pods of engines have not ended: {}{more}", named.join(", ")))
    }
}

async fn evict(api: &NodeApi, engines: &BTreeSet<Arc<str>>) -> Result<Left, ApiError> {
    if engines.is_empty() {
        return Ok(Left::default());
    }
    let pods = api.pods().await?;
    let mut left = Vec::new();
    for pod in pods.into_iter().filter(|pod| engines.contains(&*pod.uid)) {
        match api.evict(&pod).await {
            Ok(()) => left.push((pod, None)),
            Err(error) if error.code() == Some(404) => {}
            Err(error) => left.push((pod, Some(error))),
        }
    }
    Ok(Left(left))
}
