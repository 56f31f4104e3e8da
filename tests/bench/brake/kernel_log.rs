//! A fake kernel log: only the driver itself can write its lines to the real one.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};

/// The line that the driver logs each time it falls back to a smaller page.
const LINE: &str = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] \
     (0x00000051) returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359";

/// A FIFO in place of /dev/kmsg.
pub struct KernelLog {
    path: PathBuf,
    writer: File,
    next: u64,
}

impl KernelLog {
    pub fn make(directory: &Path) -> Self {
        let path = directory.join("kmsg");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // Opened for reading, too, so that the open does not wait for a reader.
        let writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        Self { path, writer, next: 0 }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the driver's line that many times.
    pub fn fail(&mut self, times: u64) {
        for _ in 0..times {
            let elapsed = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let micros = elapsed.tv_sec * 1_000_000 + elapsed.tv_nsec / 1_000;
            writeln!(self.writer, "3,{},{micros},-;{LINE}", self.next).unwrap();
            self.next += 1;
        }
    }
}
