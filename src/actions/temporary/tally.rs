//! Counts the temporary settings in force, and the results of their undo.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::model::{ENGINE_PAUSE, SETTING_NAMES, UndoResult};

const SETTINGS: usize = SETTING_NAMES.len();
const RESULTS: usize = UndoResult::ALL.len();

/// Written by the acting thread, read by the loop; neither waits.
#[derive(Debug, Default)]
pub struct SettingsTally {
    in_force: [AtomicU64; SETTINGS],
    undone: [AtomicU64; RESULTS],
    is_ending: AtomicBool,
}

impl SettingsTally {
    /// For each of [`SETTING_NAMES`] whether it is in force.
    pub fn in_force(&self) -> [bool; SETTINGS] {
        std::array::from_fn(|setting| self.in_force[setting].load(Ordering::Relaxed) > 0)
    }

    /// The number of undos, by [`UndoResult::ALL`].
    pub fn undone(&self) -> [u64; RESULTS] {
        std::array::from_fn(|result| self.undone[result].load(Ordering::Relaxed))
    }

    /// Prevents further pauses, since the program ends. Returns whether an engine is paused.
    pub(super) fn end_pauses(&self) -> bool {
        self.is_ending.store(true, Ordering::SeqCst);
        let index = SETTING_NAMES.iter().position(|name| *name == ENGINE_PAUSE);
        index.is_some_and(|index| self.in_force[index].load(Ordering::SeqCst) > 0)
    }

    /// Read after an engine is counted as paused, so that one of both sides sees the other.
    pub(super) fn has_ended_pauses(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    pub(super) fn set_in_force(&self, settings: impl Iterator<Item = &'static str>) {
        let mut counts = [0_u64; SETTINGS];
        for setting in settings {
            if let Some(index) = SETTING_NAMES.iter().position(|name| *name == setting) {
                counts[index] += 1;
            }
        }
        for (count, cell) in counts.iter().zip(&self.in_force) {
            cell.store(*count, Ordering::SeqCst);
        }
    }

    pub(super) fn count_undone(&self, result: UndoResult) {
        let place = UndoResult::ALL.iter().position(|known| *known == result);
        if let Some(count) = place.and_then(|place| self.undone.get(place)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}
