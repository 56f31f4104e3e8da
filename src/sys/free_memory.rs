//! How much memory is free, without a file being read.

/// Free memory, and all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    /// What nobody uses, page cache not counted: `MemFree` of `/proc/meminfo`.
    pub free_bytes: u64,
    /// `MemTotal`.
    pub total_bytes: u64,
}

impl FreeMemory {
    /// What the kernel tells now (sysinfo(2)), in any container that of the whole machine.
    pub fn now() -> Self {
        let told = rustix::system::sysinfo();
        let unit = u64::from(told.mem_unit.max(1));
        // As wide as a word of the machine, which is not 64 bits everywhere.
        #[expect(clippy::useless_conversion, reason = "the width depends on the machine")]
        let bytes = |units| u64::from(units).saturating_mul(unit);
        Self { free_bytes: bytes(told.freeram), total_bytes: bytes(told.totalram) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_how_much_is_free() {
        let now = FreeMemory::now();
        assert!(now.free_bytes > 0 && now.free_bytes < now.total_bytes, "{now:?}");
    }
}
