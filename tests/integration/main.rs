//! The one integration binary: the program from outside.

mod actions;
mod config;
mod dmesg;
mod exports;
mod history;
mod journal;
mod kernel_log_source;
mod promql_oracle;
mod rules_check;
