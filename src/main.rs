//! Arguments, logging, command, exit code.

fn main() {}
