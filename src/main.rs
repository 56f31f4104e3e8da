//! Arguments, command, exit code.

use std::process::ExitCode;

use clap::Parser;
use umawarden::cli::{Arguments, Exit};

fn main() -> ExitCode {
    match Arguments::parse().execute() {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("umawarden: {error:#}");
            Exit::Unusable.into()
        }
    }
}
