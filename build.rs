//! Passes to the program what it is built from: commit, compiler and target.

use std::env;
use std::path::Path;
use std::process::Command;

/// Set by who builds from a folder without git: a package, a source archive.
const REVISION: &str = "UMAWARDEN_REVISION";

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={REVISION}");
    let revision = match env::var(REVISION) {
        Ok(given) => checked(&given)?,
        Err(_) if is_release() => of_git().unwrap_or_else(|| "unknown".to_owned()),
        Err(_) => "unknown".to_owned(),
    };
    let compiler = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    // `rustc 1.90.0 (1159e78c4 2025-09-14)`
    let compiler = output(&compiler, &["--version"]);
    let compiler = compiler.as_deref().and_then(|text| text.split(' ').nth(1)).unwrap_or("unknown");
    let target = env::var("TARGET").unwrap_or_else(|_| "unknown".to_owned());
    println!("cargo::rustc-env={REVISION}={revision}");
    println!("cargo::rustc-env=UMAWARDEN_RUST_VERSION={compiler}");
    println!("cargo::rustc-env=UMAWARDEN_TARGET={target}");
    Ok(())
}

/// A development build would begin anew after each commit.
fn is_release() -> bool {
    env::var("PROFILE").is_ok_and(|profile| profile == "release")
}

/// It is in a label of a series, and in the output of `--version`.
fn checked(given: &str) -> Result<String, String> {
    let given = given.trim();
    let is_usable = |byte: u8| byte.is_ascii_alphanumeric() || b"-._+".contains(&byte);
    if (1..=64).contains(&given.len()) && given.bytes().all(is_usable) {
        return Ok(given.to_owned());
    }
    Err(format!(
        "{REVISION}={given:?} is no revision: set it to at most 64 letters, digits and -._+, or \
         unset it"
    ))
}

/// The commit of the folder that is built. A source archive may be within another repository.
fn of_git() -> Option<String> {
    Path::new(".git").exists().then_some(())?;
    for file in ["HEAD", "logs/HEAD"] {
        let path = output("git", &["rev-parse", "--git-path", file])?;
        // A path that does not exist would count as changed each time.
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    checked(&output("git", &["rev-parse", "--verify", "HEAD"])?).ok()
}

/// What a program prints, if it succeeds.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    // A hook of git sets these for its own repository.
    let run = Command::new(program).args(arguments).env_remove("GIT_DIR").output();
    let text = String::from_utf8(run.ok().filter(|run| run.status.success())?.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
