//! A file per command.

pub mod dmesg;
pub mod history;
pub mod rules;
pub mod run;
