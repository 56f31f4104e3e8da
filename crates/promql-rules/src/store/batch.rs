//! Series that one writer always writes together.

use super::{Keeper, Revisions, SeriesId, SeriesStore};
use crate::Reading;

/// Writes series of which most have not changed: those stay unchanged, as if each was written
/// again.
#[derive(Debug)]
pub struct Batch {
    /// `None`: there are too many keepers, and all series are written each time.
    keeper: Option<Keeper>,
    /// The series that must be written each time, and the version of the store for which that
    /// holds.
    restless: Vec<usize>,
    known: Option<Revisions>,
}

impl Batch {
    /// A batch without series.
    pub fn new(store: &mut SeriesStore) -> Self {
        let keeper = u8::try_from(store.stayed_ms.len()).ok().map(Keeper);
        if keeper.is_some() {
            store.stayed_ms.push(None);
        }
        Self { keeper, restless: Vec::new(), known: None }
    }

    /// As [`SeriesStore::append`]. The series stays unchanged at each [`Self::stay`], unless it is
    /// one of [`Self::restless`].
    pub fn append(&self, store: &mut SeriesStore, id: SeriesId, at_ms: i64, reading: Reading<f64>) {
        match self.keeper {
            Some(keeper) => store.append_kept(keeper, id, at_ms, reading),
            None => store.append(id, at_ms, reading),
        }
    }

    /// Marks all series that are not restless as unchanged at that instant.
    pub fn stay(&self, store: &mut SeriesStore, at_ms: i64) {
        let stayed_ms = self.keeper.and_then(|keeper| store.stayed_ms.get_mut(keeper.index()));
        if let Some(stayed_ms) = stayed_ms {
            *stayed_ms = (*stayed_ms).max(Some(at_ms));
        }
    }

    /// Whether the series have a later time: the store ignores older readings.
    pub fn is_past(&self, store: &SeriesStore, at_ms: i64) -> bool {
        let stayed_ms = self.keeper.and_then(|keeper| keeper.stayed_ms(&store.stayed_ms));
        stayed_ms.is_some_and(|stayed_ms| stayed_ms > at_ms)
    }

    /// Finds the series among `ids`, all of this batch, that do not stay: those with a past,
    /// written by others, or not written yet.
    pub fn find_restless(&mut self, store: &SeriesStore, ids: impl Iterator<Item = SeriesId>) {
        let now = store.revisions;
        let is_known = |known: Revisions| (known.series, known.kept) == (now.series, now.kept);
        if !self.known.replace(now).is_some_and(is_known) {
            let own = self.keeper;
            let is_restless = |id: SeriesId| {
                let present = store.presents.get(id.0 as usize);
                present.is_some_and(|present| own.is_none() || present.keeper != own)
            };
            self.restless.clear();
            let indexes = ids.enumerate().filter(|(_, id)| is_restless(*id));
            self.restless.extend(indexes.map(|(index, _)| index));
        }
    }

    /// Indexes of the series that must be written each time.
    pub fn restless(&self) -> &[usize] {
        &self.restless
    }

    /// Resets the batch for other series.
    pub fn forget(&mut self) {
        self.known = None;
    }
}

impl Keeper {
    /// The time until which its series stay unchanged.
    #[inline]
    pub(super) fn stayed_ms(self, of_all: &[Option<i64>]) -> Option<i64> {
        of_all.get(self.index()).copied().flatten()
    }

    fn index(self) -> usize {
        usize::from(self.0)
    }
}
