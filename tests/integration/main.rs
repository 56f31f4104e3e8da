//! The one integration binary: the program from outside.
#![expect(clippy::unwrap_used, reason = "a test ends where anything is not as it should be")]

mod actions;
mod bus_peers;
mod cluster;
mod config;
mod daemon;
mod dice;
mod dmesg;
mod doctor;
mod documents;
mod empty_cache;
mod engines;
mod evict;
mod explain;
mod exports;
mod gate;
mod gpu;
mod held;
mod history;
mod journal;
mod kernel_events;
mod kernel_log_source;
mod launch;
mod layers;
mod print;
mod promql_oracle;
mod real;
mod reboot;
mod replay;
mod rules_check;
mod rules_export;
mod rules_report;
mod rules_test;
mod run;
mod simulation;
mod tune;
