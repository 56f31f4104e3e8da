//! Reclaim that a machine does for itself, which would be laid to the policies.

use std::fs;
use std::path::PathBuf;

/// Data access monitoring (DAMON), which on some machines evicts what is used seldom: everybody's
/// pages, however much is free. It goes on when this ends.
#[derive(Debug)]
pub struct Paused {
    states: Vec<PathBuf>,
}

/// Where its monitors are switched on and off.
pub fn states() -> impl Iterator<Item = PathBuf> {
    let folder = fs::read_dir("/sys/kernel/mm/damon/admin/kdamonds").into_iter().flatten();
    folder.map(|entry| entry.unwrap().path().join("state")).filter(|state| state.exists())
}

/// Pauses it where it runs.
pub fn pause() -> Paused {
    let is_on = |state: &PathBuf| fs::read_to_string(state).is_ok_and(|text| text.trim() == "on");
    let states: Vec<PathBuf> = states().filter(is_on).collect();
    states.iter().for_each(|state| fs::write(state, "off").unwrap());
    if !states.is_empty() {
        println!("DAMON, which evicts everybody's pages here, is paused");
    }
    Paused { states }
}

impl Drop for Paused {
    fn drop(&mut self) {
        for state in &self.states {
            // At the end of everything there is nobody left to tell.
            let _stays_off = fs::write(state, "on");
        }
    }
}
