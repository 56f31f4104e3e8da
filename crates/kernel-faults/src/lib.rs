#![doc = include_str!("../README.md")]

pub mod dmesg;
mod event;
mod faults;
pub mod kmsg;
mod text;

pub use event::{KernelEvent, KillerDaemon, LoggedEvent, OomConstraint, Pool, Recovery};
pub use faults::{EventAssembler, KernelLine, container_id};
