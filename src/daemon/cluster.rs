//! This node's name in the cluster, and the queries of the others.

use std::sync::{Arc, LazyLock};

use anyhow::Context;

use super::clock;
use crate::config::settings::Settings;
use crate::model::{ClusterNames, ClusterSettings};
use crate::policy::Policy;
use crate::sources::cluster::{ClusterSetup, ClusterWatch};

/// Below procfs: a random id.
const UUID: &str = "/proc/sys/kernel/random/uuid";

/// The host's name.
pub(super) fn host() -> Arc<str> {
    Arc::from(&*rustix::system::uname().nodename().to_string_lossy())
}

/// This node's name: its host name, unless configured.
pub(super) fn names(settings: &ClusterSettings) -> ClusterNames {
    ClusterNames {
        cluster: Arc::clone(&settings.name),
        node: settings.node.clone().unwrap_or_else(host),
        known_for: settings.known_for(),
    }
}

/// The id by which this run recognises itself.
static INSTANCE: LazyLock<Arc<str>> = LazyLock::new(|| {
    let random = std::fs::read_to_string(UUID).ok();
    let random = random.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    random.unwrap_or_else(|| format!("{}-{:?}", std::process::id(), clock::uptime())).into()
});

/// The same for each query.
pub(super) fn instance() -> Arc<str> {
    Arc::clone(&INSTANCE)
}

/// `None` without a cluster.
pub(super) fn watch(settings: &Settings, policy: &Policy) -> anyhow::Result<Option<ClusterWatch>> {
    let Some(cluster) = &settings.cluster else { return Ok(None) };
    let setup = ClusterSetup {
        settings: cluster.clone(),
        names: names(cluster),
        instance: instance(),
        wanted: policy.wanted_of_others(),
        clock: clock::uptime,
    };
    let watch = ClusterWatch::start(setup);
    watch.context("cannot start the threads that scrape the other nodes").map(Some)
}
