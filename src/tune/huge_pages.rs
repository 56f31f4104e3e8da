//! What the kernel keeps free for transparent huge pages, whatever is set.

/// What decides it on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// Size of a huge page: 2 MiB with pages of 4 KiB, 32 MiB with 16 KiB, 512 MiB with 64 KiB.
    pub bytes: u64,
    /// Populated zones that user memory comes from.
    pub zones: u64,
    /// `MemTotal`.
    pub total_bytes: u64,
}

impl HugePages {
    /// The value of `vm.min_free_kbytes` to which the kernel raises a lower one, each time when
    /// transparent huge pages are switched or memory comes online
    /// (`set_recommended_min_free_kbytes` in mm/khugepaged.c): two blocks a zone, and nine for the
    /// types of mobility; at most a twentieth of memory.
    ///
    /// The kernel's twentieth is of memory above the high watermarks, so its value is lower: by
    /// 0.2 % with `vm.watermark_scale_factor` 10, by 4 % with 200, by a tenth with 500 (measured on
    /// Linux 6.12 with 15 GiB and pages of 64 KiB).
    pub fn min_free_kib(&self) -> u32 {
        let wanted = self.bytes.saturating_mul(11).saturating_mul(self.zones);
        u32::try_from(wanted.min(self.total_bytes / 20) >> 10).unwrap_or(u32::MAX)
    }
}

/// Whether `/sys/kernel/mm/transparent_hugepage/enabled` has them on, for all or for programs that
/// ask.
pub fn is_on(enabled: &str) -> bool {
    enabled.contains("[always]") || enabled.contains("[madvise]")
}
