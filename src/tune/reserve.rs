//! The effect of a higher reserve on `MemAvailable`, and on the start of engines.

use super::SettingRow;
use crate::model::Sysctl;

/// The settings that keep memory free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// `vm.min_free_kbytes`.
    pub min_free_kib: u64,
    /// `vm.watermark_scale_factor`.
    pub scale_factor: u64,
}

/// A node's current memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentMemory {
    /// `MemTotal`.
    pub total_bytes: u64,
    /// `MemAvailable`.
    pub available_bytes: u64,
    /// Its page cache: `Active(file)` and `Inactive(file)`.
    pub cache_bytes: u64,
}

impl Reserve {
    /// The settings with these rows applied.
    pub fn wanted(self, rows: &[SettingRow<'_>]) -> Self {
        let of = |sysctl, now| {
            let row = rows.iter().find(|row| row.advice.name == sysctl);
            row.and_then(SettingRow::wanted).map_or(now, u64::from)
        };
        Self {
            min_free_kib: of(Sysctl::MinFreeKbytes, self.min_free_kib),
            scale_factor: of(Sysctl::WatermarkScaleFactor, self.scale_factor),
        }
    }

    /// The distance of watermarks, as in the kernel (`__setup_per_zone_wmarks`).
    fn step_bytes(self, total_bytes: u64) -> u64 {
        let quarter = self.min_free_bytes() / 4;
        quarter.max(total_bytes / 10_000 * self.scale_factor)
    }

    fn min_free_bytes(self) -> u64 {
        self.min_free_kib.saturating_mul(1024)
    }

    /// Memory that `MemAvailable` excludes (`si_mem_available`): the high watermark, and of the
    /// page cache the low watermark, at most half of it.
    fn left_out_bytes(self, memory: &CurrentMemory) -> u64 {
        let step = self.step_bytes(memory.total_bytes);
        let (low, high) = (self.min_free_bytes() + step, self.min_free_bytes() + 2 * step);
        high + low.min(memory.cache_bytes / 2)
    }

    /// `MemAvailable` with other settings.
    pub fn available_under(self, other: Self, memory: &CurrentMemory) -> u64 {
        let (now, then) = (self.left_out_bytes(memory), other.left_out_bytes(memory));
        let available = memory.available_bytes.saturating_add(now);
        available.saturating_sub(then)
    }
}

impl CurrentMemory {
    /// A share of all memory. An engine that takes one does not start while less is available.
    pub fn share_bytes(&self, share: f64) -> u64 {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "as engines reckon, in floats; never negative, exact up to 2^53"
        )]
        let bytes = (self.total_bytes as f64 * share).ceil() as u64;
        bytes
    }
}
