//! GPUs of a made-up driver: a libnvidia-ml that says what a test wants, and may lie, fail, crash
//! or never return.

mod child;
mod library;
mod running;
mod watch;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The made-up library, built for one test.
pub struct Library {
    folder: tempfile::TempDir,
}

impl Library {
    /// `None`, which is told, where there is no C compiler.
    pub fn new(script: &str) -> Option<Self> {
        Self::without(script, "")
    }

    /// One that lacks a call: `-DWITHOUT_…`.
    fn without(script: &str, flag: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/fake-nvml/nvml.c");
        let mut command = Command::new("cc");
        command.args(["-O1", "-shared", "-fPIC", "-o"]).arg(folder.path().join("nvml.so"));
        let built = command.arg(source).args(flag.split_whitespace()).output();
        let Ok(built) = built else {
            eprintln!("SKIPPED: there is no C compiler (cc) for the made-up libnvidia-ml");
            return None;
        };
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let library = Self { folder };
        library.say(script);
        Some(library)
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("nvml.so")
    }

    /// From now on it says that. It is never seen half written.
    pub fn say(&self, script: &str) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, format!("{script}\n")).unwrap();
        std::fs::rename(new, self.folder.path().join("nvml.so.script")).unwrap();
    }

    /// How often that call was made.
    fn calls(&self, function: &str) -> usize {
        let calls = std::fs::read_to_string(self.folder.path().join("nvml.so.calls"));
        calls.unwrap_or_default().lines().filter(|call| *call == function).count()
    }
}

/// Whether that process is there, and no zombie.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat"));
    let stat = stat.ok().and_then(|stat| umawarden::parse::process::stat(&stat));
    stat.is_some_and(|stat| stat.state != 'Z')
}
