//! A device file in place of the NVIDIA driver's: a process that has it open counts as a GPU user.

use std::fs::File;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

const NODE: &str = "/dev/nvidia-umawarden-bench";

/// The file, removed when dropped.
pub struct Device(());

impl Device {
    /// Creates the file: `/dev/null` under another name.
    pub fn make() -> Self {
        if !Path::new(NODE).exists() {
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, NODE, FileType::CharacterDevice, mode, makedev(1, 3)).unwrap();
        }
        Self(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A failure at the very end cannot be reported.
        let _ = std::fs::remove_file(NODE);
    }
}

/// Opens the device in a worker that plays an engine; it uses the GPU until this is dropped.
pub fn open() -> File {
    File::open(NODE).unwrap()
}
