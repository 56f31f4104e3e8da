//! Reclaim by the machine itself, which would be attributed to the policies.

use std::fs;
use std::path::PathBuf;

/// Pauses data access monitoring (DAMON), which on some machines reclaims idle pages of all
/// processes even with much free memory; it resumes when dropped.
#[derive(Debug)]
pub struct Paused {
    states: Vec<PathBuf>,
}

/// The files that switch its monitors on and off.
pub fn states() -> impl Iterator<Item = PathBuf> {
    let folder = fs::read_dir("/sys/kernel/mm/damon/admin/kdamonds").into_iter().flatten();
    folder.map(|entry| entry.unwrap().path().join("state")).filter(|state| state.exists())
}

/// Pauses all running monitors.
pub fn pause() -> Paused {
    let is_on = |state: &PathBuf| fs::read_to_string(state).is_ok_and(|text| text.trim() == "on");
    let states: Vec<PathBuf> = states().filter(is_on).collect();
    states.iter().for_each(|state| fs::write(state, "off").unwrap());
    if !states.is_empty() {
        println!("DAMON is paused: it reclaims idle pages of all processes here");
    }
    Paused { states }
}

impl Drop for Paused {
    fn drop(&mut self) {
        for state in &self.states {
            // A failure at the very end cannot be reported.
            let _ = fs::write(state, "on");
        }
    }
}
