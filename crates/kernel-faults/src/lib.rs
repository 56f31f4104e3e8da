#![doc = include_str!("../README.md")]

pub mod dmesg;
mod event;
mod faults;
pub mod kmsg;
mod text;

pub use event::{
    GpuLossSign, KernelEvent, KillerDaemon, LoggedEvent, OomConstraint, PageRecovery, Pool,
    Recovery,
};
pub use faults::{EventAssembler, KernelLine, UnreadFault, UnreadFaults, container_id};
