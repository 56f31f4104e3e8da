//! Files to read.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Creates a file of incompressible bytes, which is kept for the next run.
pub fn file(directory: &Path, name: &str, bytes: u64) -> io::Result<PathBuf> {
    let path = directory.join(format!("{name}-{bytes}"));
    if !path.exists() {
        let unfinished = path.with_extension("unfinished");
        io::copy(&mut File::open("/dev/urandom")?.take(bytes), &mut File::create(&unfinished)?)?;
        File::open(&unfinished)?.sync_all()?;
        fs::rename(unfinished, &path)?;
    }
    Ok(path)
}
