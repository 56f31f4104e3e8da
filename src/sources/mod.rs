//! One file per thing watched.

pub mod engines;
pub mod kernel_log;
pub mod memory;
pub mod process;
