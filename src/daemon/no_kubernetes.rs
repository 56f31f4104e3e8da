//! A build without the feature `kubernetes`.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::actions::{Executor, RebootExecutor};
use crate::config::settings::Settings;
use crate::model::{Reading, SeriesKey};
use crate::policy::status::Status;

#[derive(Debug)]
pub(super) struct Kubernetes;

#[derive(Debug)]
pub(super) struct KubernetesTally;

impl Kubernetes {
    pub(super) fn tally(&self) -> Option<&Arc<KubernetesTally>> {
        None
    }

    pub(super) fn end(&self) {}

    pub(super) fn close(&self, _: Duration) {}
}

pub(super) fn start(settings: &Settings, _: &Arc<ArcSwap<Status>>) -> anyhow::Result<Kubernetes> {
    anyhow::ensure!(
        settings.kubernetes.is_none(),
        "this umawarden was built without Kubernetes: leave the section kubernetes out, or build \
         it with --features kubernetes"
    );
    Ok(Kubernetes)
}

pub(super) fn executor(
    _: &Settings,
    _: &Kubernetes,
    _: &Arc<ArcSwap<Status>>,
) -> Option<Box<dyn Executor + Send>> {
    None
}

pub(super) fn evicting(reboot: RebootExecutor, _: &Arc<ArcSwap<Status>>) -> RebootExecutor {
    reboot
}

pub(super) fn series() -> Vec<SeriesKey> {
    Vec::new()
}

pub(super) fn values(_: &KubernetesTally) -> [Reading<f64>; 0] {
    []
}
