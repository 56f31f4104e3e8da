//! Observations in, decisions out. Pure: no files, no clock, no threads.

pub mod promql;
pub mod rule;
pub mod status;
pub mod store;
pub mod template;
