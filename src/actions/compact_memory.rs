//! `vm.compact_memory` (Documentation/admin-guide/sysctl/vm.rst).

use std::path::Path;

use super::sysctl::{self, SysctlError};

/// Compacts all zones: free memory comes in larger blocks afterwards. Some kernels take any value,
/// others only 1.
pub(super) fn perform(procfs: &Path) -> Result<(), SysctlError> {
    sysctl::write(procfs, "vm/compact_memory", "1")
}
