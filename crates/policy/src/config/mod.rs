//! Reads text into validated settings and rules. Each mistake has its line and column.
//!
//! `reader` is the only part that touches files and the environment; `yaml` the only one that knows
//! the YAML library.

mod alertmanager;
pub mod catalogue;
pub mod cluster;
pub mod decode;
pub mod edit;
mod engines;
pub mod flags;
mod fleet;
pub mod guard_rails;
mod kubernetes;
pub mod ladder;
pub mod measure;
pub mod mistake;
pub mod nvsentinel;
pub mod otlp;
pub mod overrides;
pub mod reader;
mod reboot;
mod restarts;
pub mod rules;
pub mod settings;
pub mod shipped;
pub mod yaml;
