//! A process that has much memory and takes no more: the largest RSS of the machine.

use std::process::ExitCode;

use crate::flow::{self, Flow};

/// Starts one of that size, and waits until it has it.
pub fn start(bytes: u64) -> Flow {
    Flow::start(&["innocent".to_owned(), bytes.to_string()])
}

/// The process itself: keeps its memory until its input ends.
pub fn run(arguments: &[String]) -> ExitCode {
    flow::die_with_parent();
    let memory = vec![1_u8; arguments[0].parse().unwrap()];
    flow::tell();
    flow::await_word();
    drop(std::hint::black_box(memory));
    ExitCode::SUCCESS
}
