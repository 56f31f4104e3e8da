//! `vm.drop_caches` (Documentation/admin-guide/sysctl/vm.rst).

use std::path::Path;

use super::sysctl::{Sysctl, SysctlError};
use crate::model::CacheKind;

/// Drops clean caches. Pages that a process maps stay, and so do dirty ones, unless `sync` writes
/// them back before, which takes as long as the disks need.
pub(super) fn perform(file: &mut Sysctl, what: CacheKind, sync: bool) -> Result<(), SysctlError> {
    if sync {
        rustix::fs::sync();
    }
    file.write(value(what))
}

pub(super) fn file(procfs: &Path) -> Sysctl {
    Sysctl::new(procfs, "vm/drop_caches")
}

/// Bit 2 (4) must never be set: it silences the kernel's own log line about drops, on the whole
/// machine and until reboot.
fn value(what: CacheKind) -> &'static str {
    match what {
        CacheKind::PageCache => "1",
        CacheKind::All => "3",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_ever_silences_the_kernels_log_line() {
        for (what, expected) in [(CacheKind::PageCache, 1_u32), (CacheKind::All, 3)] {
            let written: u32 = value(what).parse().unwrap();
            assert_eq!(written, expected);
            assert_eq!(written & 4, 0);
        }
    }
}
