//! Keeps NVIDIA unified-memory machines alive while they serve large language models.
//!
//! The modules, in the order in which data flows; ARCHITECTURE.md has the picture.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub use umawarden_policy::{config, engines, model, parse, policy, scenario};

pub mod clients;
pub mod supervisors;

pub mod sources;

pub mod actions;

pub mod journal;

pub mod recording;

pub mod pause;

pub mod sys;

pub mod files;

pub mod nvml;

pub mod tune;

pub mod fit;

pub mod doctor;

pub mod door;

pub mod exports;

pub mod traces;

pub mod otlp;

pub mod daemon;

pub mod cli;
