//! NVIDIA's GPUs on the PCI bus, from `/sys/bus/pci/devices/*/{vendor,class,device}`.
//!
//! These files are the kernel's: reading them does not wait for the NVIDIA driver.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use super::feed::{MemoryReader, ReadReport};
use super::file::{KeptFile, each_entry};
use crate::model::{Reading, SeriesKey, Source};

/// NVIDIA's vendor number.
const NVIDIA: &[u8] = b"0x10de";

/// Display controllers: VGA (GB10, cards with outputs) and 3D (data-center GPUs), by the first
/// bytes of the class.
const DISPLAY: [&[u8]; 2] = [b"0x0300", b"0x0302"];

/// More GPUs than a machine has.
const MOST: usize = 64;

#[derive(Debug)]
pub(super) struct PciReader {
    folder: PathBuf,
    /// Address and device number of each GPU, sorted.
    gpus: Vec<(String, String)>,
    /// The number of devices on the bus at the last scan.
    devices: Option<usize>,
}

impl PciReader {
    pub(super) fn new(sysfs: &Path) -> Self {
        Self { folder: sysfs.join("bus/pci/devices"), gpus: Vec::new(), devices: None }
    }

    /// Reads one device; `None` unless it is a GPU of NVIDIA.
    fn gpu(&self, address: &str) -> Option<(String, String)> {
        let read = |name: &str| {
            let mut file = KeptFile::new(self.folder.join(address).join(name));
            Some(file.read().ok()?.trim_ascii().to_vec())
        };
        if read("vendor")? != NVIDIA {
            return None;
        }
        let class = read("class")?;
        let is_display = DISPLAY.iter().any(|display| class.starts_with(display));
        let device = String::from_utf8(read("device")?).ok()?;
        let number = device.strip_prefix("0x").filter(|number| {
            number.len() == 4 && number.bytes().all(|digit| digit.is_ascii_hexdigit())
        })?;
        is_display.then(|| (address.to_owned(), number.to_ascii_lowercase()))
    }

    fn scan(&mut self, report: &mut ReadReport) -> Result<(), Errno> {
        let mut count = 0;
        each_entry(&self.folder, |_| count += 1)?;
        if self.devices.replace(count) == Some(count) {
            return Ok(());
        }
        let mut found = Vec::new();
        each_entry(&self.folder, |address| {
            found.extend(self.gpu(address).filter(|_| found.len() < MOST));
        })?;
        found.sort_unstable();
        if found != self.gpus {
            self.gpus = found;
            report.series_changed();
        }
        Ok(())
    }
}

impl MemoryReader for PciReader {
    const SOURCE: Source = Source::Pci;
    /// GPUs come and go when a person acts. The number of devices is checked, and the rest is read
    /// where it has changed.
    const PAUSE: Duration = Duration::from_secs(60);
    const FIXED: bool = false;

    fn series(&self) -> Vec<SeriesKey> {
        let key = |(address, device): &(String, String)| {
            let labels = [("device_id", &**device), ("pci_address", &**address)];
            SeriesKey::new("uma_pci_gpu_info", &labels)
        };
        self.gpus.iter().map(key).collect()
    }

    fn read(&mut self, report: &mut ReadReport) {
        match self.scan(report) {
            // A machine without PCI has no GPU there, which is no fault.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => {
                let error = std::io::Error::from(error);
                report.fail(format!("cannot list {}: {error}", self.folder.display()));
            }
        }
        self.gpus.iter().for_each(|_| report.push(Reading::Value(1.0)));
    }
}
