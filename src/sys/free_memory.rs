//! Free memory, without reading a file.

/// In bytes, of the whole machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    /// `MemFree` of `/proc/meminfo`, without page cache.
    pub free_bytes: u64,
    /// `MemTotal`.
    pub total_bytes: u64,
}

impl FreeMemory {
    /// The current values (sysinfo(2)), in a container those of the whole machine.
    pub fn now() -> Self {
        let info = rustix::system::sysinfo();
        let unit = u64::from(info.mem_unit.max(1));
        // A machine word, which has 32 bits on some machines.
        #[expect(clippy::useless_conversion, reason = "the width depends on the machine")]
        let bytes = |units| u64::from(units).saturating_mul(unit);
        Self { free_bytes: bytes(info.freeram), total_bytes: bytes(info.totalram) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read_from_the_kernel() {
        let now = FreeMemory::now();
        assert!(now.free_bytes > 0 && now.free_bytes < now.total_bytes, "{now:?}");
    }
}
