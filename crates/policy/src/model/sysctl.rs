//! The settings of the kernel that may be changed, and what may be written to them.

use std::ops::RangeInclusive;

use super::names::named;

named! {
    /// A setting below `/proc/sys/vm`. Only these may be changed.
    pub enum Sysctl {
        /// Reserve of free pages, for allocations that must not wait.
        MinFreeKbytes = "vm.min_free_kbytes",
        /// How far above the reserve kswapd begins and stops, in 1/10000 of memory.
        WatermarkScaleFactor = "vm.watermark_scale_factor",
        /// By how much fragmentation raises the watermark for a while, in 1/10000 of it.
        WatermarkBoostFactor = "vm.watermark_boost_factor",
        /// Tendency to reclaim directory entries and inodes; 100 is neutral.
        VfsCachePressure = "vm.vfs_cache_pressure",
        /// Percent of available memory that may be dirty before writers must wait.
        DirtyRatio = "vm.dirty_ratio",
        /// Percent of available memory that may be dirty before writing back begins.
        DirtyBackgroundRatio = "vm.dirty_background_ratio",
        /// Effort of background compaction.
        CompactionProactiveness = "vm.compaction_proactiveness",
        /// Cost of swapping relative to reclaiming file pages.
        Swappiness = "vm.swappiness",
    }
}

/// Largest value of a C `int`.
const INT_MAX: u32 = 2_147_483_647;

impl Sysctl {
    /// The file's path below `/proc/sys`.
    pub fn path(self) -> String {
        self.name().replace('.', "/")
    }

    /// Values that the kernel accepts (kernel/sysctl.c, mm/page_alloc.c), of the newest kernel
    /// where they differ. The lower bound of the reserve is the kernel's own for the smallest
    /// machine: with less, drivers would get no pages.
    pub const fn range(self) -> RangeInclusive<u32> {
        match self {
            Self::MinFreeKbytes => 128..=INT_MAX,
            Self::WatermarkScaleFactor => 1..=3_000,
            Self::WatermarkBoostFactor | Self::VfsCachePressure => 0..=INT_MAX,
            Self::DirtyRatio | Self::DirtyBackgroundRatio | Self::CompactionProactiveness => {
                0..=100
            }
            Self::Swappiness => 0..=200,
        }
    }

    /// The alternative setting in bytes. One of the two is in force, and writing one makes the
    /// other 0.
    pub const fn in_bytes(self) -> Option<&'static str> {
        match self {
            Self::DirtyRatio => Some("vm/dirty_bytes"),
            Self::DirtyBackgroundRatio => Some("vm/dirty_background_bytes"),
            _ => None,
        }
    }
}

/// The `setting` label of all readahead settings.
pub const READ_AHEAD: &str = "read_ahead_kb";

/// The `setting` label of engines that were paused to empty their caches.
pub const ENGINE_PAUSE: &str = "engine_pause";

/// The `setting` label: all values that it has.
pub const SETTING_NAMES: [&str; Sysctl::ALL.len() + 2] = {
    let mut names = [READ_AHEAD; Sysctl::ALL.len() + 2];
    names[Sysctl::ALL.len()] = ENGINE_PAUSE;
    let mut next = 0;
    while next < Sysctl::NAMES.len() {
        names[next] = Sysctl::NAMES[next];
        next += 1;
    }
    names
};

named! {
    /// How the undoing of a temporary setting ended; the `result` label.
    pub enum UndoResult {
        /// It has the value again that it had before.
        Restored = "restored",
        /// It had that value already.
        AlreadyBack = "already_back",
        /// It was changed by others, or is gone: it is left alone.
        LeftAlone = "left_alone",
        /// It could not be read or written. It is tried again.
        Failed = "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_the_journal_is_the_name_in_sysctl_conf() {
        for sysctl in Sysctl::ALL {
            assert_eq!(serde_json::to_value(sysctl).unwrap(), sysctl.name());
            assert_eq!(Sysctl::named(sysctl.name()), Some(sysctl));
            assert!(SETTING_NAMES.contains(&sysctl.name()));
        }
        assert_eq!(Sysctl::named("vm.overcommit_memory"), None);
        assert_eq!(Sysctl::DirtyRatio.path(), "vm/dirty_ratio");
        assert!([READ_AHEAD, ENGINE_PAUSE].iter().all(|name| SETTING_NAMES.contains(name)));
    }
}
