//! Keeps NVIDIA unified-memory machines alive while they serve large language models.
//!
//! The modules, in the order in which data flows; ARCHITECTURE.md has the picture.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub use umawarden_policy::{config, engines, model, parse, policy, scenario};
pub use umawarden_records::{files, journal, recording};

pub mod replayer;

pub mod samples;

pub mod clients;
pub mod supervisors;

pub mod sources;

pub mod actions;

pub mod leases;

pub mod pause;

pub mod sys;

pub mod nvml;

pub mod tune;

pub mod fit;

pub mod doctor;

pub mod access;

pub mod exports;

pub mod traces;

pub mod otlp;

#[cfg(feature = "kubernetes")]
pub mod kubernetes;

pub mod daemon;

pub mod cli;
