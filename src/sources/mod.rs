//! One file per thing watched.

pub mod engines;
pub mod gpu;
pub mod held;
pub mod holders;
pub mod kernel_log;
pub mod logged_in;
pub mod memory;
pub mod process;
