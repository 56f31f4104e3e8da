//! Memory before and after an act.

use std::fs;
use std::path::Path;

use crate::model::{EngineTarget, Reading, measured_bytes_text};
use crate::parse::proc::derived::unaccounted;
use crate::parse::proc::meminfo::{Meminfo, MeminfoField};
use crate::parse::process::{resident, stat};

/// The fluctuation of an idle machine within seconds, in bytes.
pub(super) const NOISE: u64 = 16 << 20;

/// Memory at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EmptyingMemory {
    /// `MemFree`.
    free: Option<i128>,
    /// Unaccounted: the memory of drivers.
    unaccounted: Option<i128>,
    /// The memory of the engine's processes.
    own: Option<i128>,
}

impl EmptyingMemory {
    pub(super) fn read(procfs: &Path, engine: &EngineTarget) -> Self {
        let meminfo = fs::read(procfs.join("meminfo")).ok();
        let meminfo = meminfo.and_then(|text| Meminfo::parse(&text).ok());
        let Some(meminfo) = meminfo else {
            return Self { own: own(procfs, engine), ..Self::default() };
        };
        Self {
            free: meminfo.get(MeminfoField::MemFree).value().map(i128::from),
            unaccounted: unaccounted(&meminfo, Reading::Unsupported).value().map(i128::from),
            own: own(procfs, engine),
        }
    }

    /// The gained free bytes: the largest difference of the three figures. Page cache may take
    /// memory returned by a driver at once, and then `MemFree` does not show it.
    pub(super) fn gained(&self, before: &Self) -> u64 {
        let grown =
            |now: Option<i128>, then: Option<i128>| now.zip(then).map(|(now, then)| now - then);
        let free = grown(self.free, before.free);
        let held = grown(before.unaccounted, self.unaccounted);
        let own = grown(before.own, self.own);
        let most = [free, held, own].into_iter().flatten().max().unwrap_or(0);
        u64::try_from(most.max(0)).unwrap_or(u64::MAX)
    }

    /// All changes, in words.
    pub(super) fn since(&self, before: &Self) -> String {
        let parts = [
            ("free", before.free, self.free),
            ("unaccounted", before.unaccounted, self.unaccounted),
            ("its own", before.own, self.own),
        ];
        let changes = parts.iter().map(|(name, then, now)| match then.zip(*now) {
            Some((then, now)) => {
                format!("{name} {} -> {} ({})", size(then), size(now), signed(now - then))
            }
            None => format!("{name} unknown"),
        });
        changes.collect::<Vec<_>>().join(", ")
    }
}

/// The memory of the processes. Shared pages count for each of them.
fn own(procfs: &Path, engine: &EngineTarget) -> Option<i128> {
    let of = |id: &crate::model::ProcessId| {
        let folder = procfs.join(id.pid.to_string());
        let is_it = stat(&fs::read(folder.join("stat")).ok()?)?.start_ticks == id.start_ticks;
        let shown = is_it.then(|| fs::read(folder.join("status")))?.ok()?;
        let shown = resident(&shown);
        let parts = [shown.anon, shown.file, shown.shmem, shown.hugetlb];
        Some(parts.into_iter().flatten().map(i128::from).sum::<i128>())
    };
    engine.processes.iter().filter_map(of).reduce(|one, other| one + other)
}

#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
fn size(bytes: i128) -> String {
    measured_bytes_text(bytes as f64)
}

fn signed(bytes: i128) -> String {
    match bytes {
        0 => "0 B".to_owned(),
        1.. => format!("+{}", size(bytes)),
        _ => size(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(free: i128, unaccounted: i128, own: i128) -> EmptyingMemory {
        EmptyingMemory { free: Some(free), unaccounted: Some(unaccounted), own: Some(own) }
    }

    #[test]
    fn the_gain_is_the_largest_of_three_figures() {
        const GIB: i128 = 1 << 30;
        let before = memory(2 * GIB, 90 * GIB, 3 * GIB);
        for (after, gained) in [
            (memory(2 * GIB, 90 * GIB, 3 * GIB), 0),
            (memory(4 * GIB, 88 * GIB, 3 * GIB), 2 * GIB),
            // Somebody has filled the page cache with it meanwhile.
            (memory(GIB, 85 * GIB, 3 * GIB), 5 * GIB),
            (memory(GIB, 91 * GIB, 2 * GIB), GIB),
            (memory(GIB, 91 * GIB, 4 * GIB), 0),
        ] {
            assert_eq!(i128::from(after.gained(&before)), gained, "{after:?}");
        }
        assert_eq!(EmptyingMemory::default().gained(&before), 0, "what is unknown is no gain");
        let text = memory(4 * GIB, 88 * GIB, 3 * GIB).since(&before);
        assert_eq!(
            text,
            "free 2.0 GiB -> 4.0 GiB (+2.0 GiB), unaccounted 90.0 GiB -> 88.0 GiB (-2.0 GiB), its \
             own 3.0 GiB -> 3.0 GiB (0 B)"
        );
    }
}
