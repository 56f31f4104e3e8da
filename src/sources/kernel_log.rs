//! The kernel_log source.
