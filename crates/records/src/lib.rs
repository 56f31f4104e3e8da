#![doc = include_str!("../README.md")]
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod files;

pub mod journal;

pub mod recording;

use umawarden_policy::model;
