#![doc = include_str!("../README.md")]
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod model;

pub mod parse;

pub mod engines;

pub mod policy;

pub mod config;

pub mod scenario;
