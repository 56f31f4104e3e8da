//! `vm.compact_memory` (Documentation/admin-guide/sysctl/vm.rst).

use std::path::Path;

use super::sysctl::{Sysctl, SysctlError};

/// Compacts all zones: free memory comes in larger blocks afterwards. Some kernels take any value,
/// others only 1.
pub(super) fn perform(file: &mut Sysctl) -> Result<(), SysctlError> {
    file.write("1")
}

pub(super) fn file(procfs: &Path) -> Sysctl {
    Sysctl::new(procfs, "vm/compact_memory")
}
