//! Starts what reports to Kubernetes and what changes the node there.

use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;

use super::clock;
use crate::actions::{Executor, NodeExecutor, RebootExecutor};
use crate::config::settings::Settings;
pub(super) use crate::kubernetes::{Kubernetes, KubernetesTally};
use crate::kubernetes::{KubernetesSetup, has_settled};
use crate::model::{KubernetesSettings, Reading, SeriesKey};
use crate::policy::status::Status;

/// Starts the thread if there is a cluster.
pub(super) fn start(
    settings: &Settings,
    status: &Arc<ArcSwap<Status>>,
) -> anyhow::Result<Kubernetes> {
    let Some(kubernetes) = &settings.kubernetes else { return Ok(Kubernetes::off()) };
    let setup = KubernetesSetup {
        settings: kubernetes.clone(),
        status: Arc::clone(status),
        clock: clock::now,
    };
    Kubernetes::start(setup).context("cannot start the thread that reports to Kubernetes")
}

/// The executor of taints and cordons, if there is a cluster. Its changes count as requests.
pub(super) fn executor(
    settings: &Settings,
    kubernetes: &Kubernetes,
    status: &Arc<ArcSwap<Status>>,
) -> Option<Box<dyn Executor + Send>> {
    let KubernetesSettings { access, daemon_set, .. } = settings.kubernetes.as_ref()?.clone();
    let tally = kubernetes.tally().cloned();
    let count = move |is_success| {
        if let Some(tally) = &tally {
            tally.asked(is_success, clock::now().utc_ms());
        }
    };
    let status = Arc::clone(status);
    let has_settled = move || has_settled(&status.load());
    let executor = NodeExecutor::new(access).counting(Box::new(count));
    Some(Box::new(executor.handing_over(daemon_set, Box::new(has_settled))))
}

/// Has pods of this node's engines evicted before a reboot, as the snapshot knows them.
pub(super) fn evicting(reboot: RebootExecutor, status: &Arc<ArcSwap<Status>>) -> RebootExecutor {
    let status = Arc::clone(status);
    let pods = Arc::new(move || {
        let status = status.load();
        let pods = status.engines.iter().filter_map(|engine| engine.engine.pod.as_deref());
        pods.map(|pod| Arc::clone(&pod.uid)).collect()
    });
    reboot.evicting(pods, clock::uptime)
}

/// The series of [`values`], in the same order.
pub(super) fn series() -> Vec<SeriesKey> {
    let requests = ["success", "error"]
        .map(|result| SeriesKey::new("uma_kubernetes_requests_total", &[("result", result)]));
    let others =
        ["uma_kubernetes_events_dropped_total", "uma_kubernetes_last_success_timestamp_seconds"];
    requests.into_iter().chain(others.map(|name| SeriesKey::new(name, &[]))).collect()
}

/// Counters of requests; the time of the last success is 0 before the first.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
pub(super) fn values(tally: &KubernetesTally) -> [Reading<f64>; 4] {
    let counts = [tally.succeeded(), tally.failed(), tally.dropped_events()];
    let [succeeded, failed, dropped] = counts.map(|count| Reading::Value(count as f64));
    let last = tally.last_success_ms().unwrap_or(0) as f64 / 1000.0;
    [succeeded, failed, dropped, Reading::Value(last)]
}
