//! The program; `umawarden::cli` holds it.

fn main() -> std::process::ExitCode {
    umawarden::cli::main()
}
