//! A process with the largest RSS of the machine that takes no more memory.

use std::process::ExitCode;

use crate::worker::{self, Worker};

/// Starts the process and waits until it has its memory.
pub fn start(bytes: u64) -> Worker {
    Worker::start(&["innocent".to_owned(), bytes.to_string()])
}

/// The process: keeps its memory until its input ends.
pub fn run(arguments: &[String]) -> ExitCode {
    worker::end_with_parent();
    let memory = vec![1_u8; arguments[0].parse().unwrap()];
    worker::signal();
    worker::await_start();
    drop(std::hint::black_box(memory));
    ExitCode::SUCCESS
}
