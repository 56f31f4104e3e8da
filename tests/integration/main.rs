//! The one integration binary: the program from outside.

mod actions;
mod kernel_log_source;
