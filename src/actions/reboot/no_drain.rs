//! Reboots of a build without the feature `kubernetes`: its configuration names no cluster.

use crate::model::NodeDrain;

#[derive(Clone, Debug, Default)]
pub(super) struct Drainer;

impl Drainer {
    pub(super) fn cordon(&mut self, _: &NodeDrain) -> Result<String, String> {
        absent()
    }

    pub(super) fn evict(&mut self, _: &NodeDrain) -> Result<String, String> {
        absent()
    }

    pub(super) fn uncordon(&mut self, _: &NodeDrain) -> Result<String, String> {
        absent()
    }
}

fn absent() -> Result<String, String> {
    Err("this umawarden was built without Kubernetes".to_owned())
}
