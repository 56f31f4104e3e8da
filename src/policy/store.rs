//! Series and their recent past.

use crate::model::{Reading, SeriesKey};

/// A series' place in the store; stays valid for the store's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeriesId(pub u32);

/// Every series of this node, each with as much past as the rules ask for.
#[derive(Debug, Default)]
pub struct SeriesStore {}

impl SeriesStore {
    /// The id of that series, which is added if it is new.
    pub fn intern(&mut self, _key: &SeriesKey) -> SeriesId {
        SeriesId(0)
    }

    /// Keeps at least the last `range_ms` of each series of that name.
    pub fn retain(&mut self, _name: &str, _range_ms: i64) {}

    /// Adds a reading. A reading other than a value ends the series with a stale marker. A second
    /// one at the same instant replaces the first; one from before the last is ignored.
    pub fn append(&mut self, _id: SeriesId, _at_ms: i64, _reading: Reading<f64>) {}

    /// All series, in the order of their ids.
    pub fn keys(&self) -> &[SeriesKey] {
        &[]
    }

    /// The latest reading of a series.
    pub fn latest(&self, _id: SeriesId) -> Reading<f64> {
        Reading::Failed
    }
}
