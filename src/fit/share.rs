//! Shares of memory in whole hundredths, as in the engines' options.

use serde::{Serialize, Serializer};

use crate::engines::{ENGINES, EngineFacts, ShareOf};

/// Values of the engines that take a share of memory, by the memory that it is of. In JSON they are
/// by the name of the engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineShares<T> {
    /// Of an engine that takes a share of all memory of a node.
    pub of_all: T,
    /// Of an engine that takes a share of the memory that is free at its start.
    pub of_free: T,
}

impl<T> EngineShares<T> {
    /// The value of an engine that takes a share of that memory.
    pub fn of(&self, memory: ShareOf) -> &T {
        match memory {
            ShareOf::AllMemory => &self.of_all,
            ShareOf::FreeMemory => &self.of_free,
        }
    }
}

impl<T: Serialize> Serialize for EngineShares<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let engines = sharing_engines();
        serializer.collect_map(engines.map(|(facts, memory)| (facts.kind.name(), self.of(memory))))
    }
}

/// The engines that take a share of memory, and of which; those of all memory are first.
pub fn sharing_engines() -> impl Iterator<Item = (&'static EngineFacts, ShareOf)> {
    [ShareOf::AllMemory, ShareOf::FreeMemory].into_iter().flat_map(|memory| {
        let engines = ENGINES.iter().copied();
        let sharing = engines.filter(move |facts| facts.takes_share_of(memory));
        sharing.map(move |facts| (facts, memory))
    })
}

/// The largest shares that an engine can take on one node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NodeShares {
    /// Leaves the growth after the start, too. No growth is subtracted from a share of free memory:
    /// there it is the same as `most`.
    pub safe: f64,
    /// Leaves processes and headroom.
    pub most: f64,
}

/// The shares that an engine needs, and can take, on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ShareLimits {
    /// The least with the least work: with less it cannot start. A share of free memory holds no
    /// work: there it is the same as `least`.
    pub least_possible: f64,
    /// Holds weights, the most work, and the requested KV cache.
    pub least: f64,
    /// The largest that leaves the growth after the start, too.
    pub safe: f64,
    /// The largest that leaves processes and headroom on every node.
    pub most: f64,
}

/// The hundredths of a share. A binary fraction would lose or add bytes.
pub(super) fn hundredths(share: f64) -> u64 {
    (share * 100.0).round() as u64
}

pub(super) fn usable_bytes(share: f64, whole: u64) -> u64 {
    let bytes = u128::from(whole) * u128::from(hundredths(share)) / 100;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Rounded down to hundredths.
pub(super) fn share_down(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => (u128::from(part.min(whole)) * 100 / u128::from(whole)) as f64 / 100.0,
    }
}

/// Rounded up to hundredths.
pub(super) fn share_up(part: u64, whole: u64) -> f64 {
    match (part, whole) {
        (0, _) => 0.0,
        (_, 0) => f64::INFINITY,
        _ => (u128::from(part) * 100).div_ceil(u128::from(whole)) as f64 / 100.0,
    }
}
