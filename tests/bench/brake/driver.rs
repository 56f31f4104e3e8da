//! A device file that stands for one of the NVIDIA driver's: whoever has it open is a user of it.

use std::fs::File;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

const NODE: &str = "/dev/nvidia-umawarden-bench";

/// The file; it is gone when this is dropped.
pub struct Device(());

impl Device {
    /// Makes it: it is `/dev/null` under another name.
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
        // At the end of everything there is nobody left to tell.
        let _ = std::fs::remove_file(NODE);
    }
}

/// In a child that stands for an engine: it uses the driver for as long as that is kept.
pub fn open() -> File {
    File::open(NODE).unwrap()
}
