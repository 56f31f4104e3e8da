//! GPUs of a fake libnvidia-ml, which follows a script: it may report nonsense, fail, crash or
//! hang.

mod child;
mod library;
mod running;
mod watch;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The fake library, built for one test.
pub struct Library {
    folder: tempfile::TempDir,
}

impl Library {
    /// `None`, with a message, without a C compiler.
    pub fn new(script: &str) -> Option<Self> {
        Self::without(script, "")
    }

    /// Built with `flag` (`-DWITHOUT_…`), which leaves out functions.
    fn without(script: &str, flag: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/fake-nvml/nvml.c");
        let mut command = Command::new("cc");
        command.args(["-O1", "-shared", "-fPIC", "-o"]).arg(folder.path().join("nvml.so"));
        let built = command.arg(source).args(flag.split_whitespace()).output();
        let Ok(built) = built else {
            eprintln!("SKIPPED: there is no C compiler (cc) for the fake libnvidia-ml");
            return None;
        };
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let library = Self { folder };
        library.set_script(script);
        Some(library)
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("nvml.so")
    }

    /// Replaces the script atomically.
    pub fn set_script(&self, script: &str) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, format!("{script}\n")).unwrap();
        std::fs::rename(new, self.folder.path().join("nvml.so.script")).unwrap();
    }

    /// How often the function was called.
    pub fn calls(&self, function: &str) -> usize {
        let calls = std::fs::read_to_string(self.folder.path().join("nvml.so.calls"));
        calls.unwrap_or_default().lines().filter(|call| *call == function).count()
    }
}

/// Whether the process exists and is no zombie.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat"));
    let stat = stat.ok().and_then(|stat| umawarden::parse::process::stat(&stat));
    stat.is_some_and(|stat| stat.state != 'Z')
}
