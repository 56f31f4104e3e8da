//! `/proc/pressure/*`.

use std::path::Path;
use std::time::Duration;

use super::feed::{MemoryReader, ReadReport};
use super::file::{FileFault, KeptFile};
use crate::model::{SeriesKey, Source};
use crate::parse::proc::pressure::Pressure;

/// Resources, and the shares of each. That all tasks wait for a CPU is not defined for a machine:
/// the kernel reports 0 (Documentation/accounting/psi.rst).
const RESOURCES: [(&str, &[&str]); 3] =
    [("cpu", &["some"]), ("io", &["some", "full"]), ("memory", &["some", "full"])];

/// Longer windows follow from the total.
const WINDOW: &str = "10s";
const SERIES_PER_SHARE: usize = 2;

#[derive(Debug)]
pub(super) struct PressureReader {
    files: [KeptFile; RESOURCES.len()],
}

/// Whether the kernel reports memory pressure. With `psi=0` the file is absent, or each of its
/// reads fails with EOPNOTSUPP.
pub fn has_pressure(procfs: &Path) -> bool {
    let mut file = KeptFile::new(procfs.join("pressure/memory"));
    !matches!(file.read(), Err(FileFault::Absent(_)))
}

impl PressureReader {
    pub(super) fn new(procfs: &Path) -> Self {
        let folder = procfs.join("pressure");
        Self { files: RESOURCES.map(|(resource, _)| KeptFile::new(folder.join(resource))) }
    }
}

impl MemoryReader for PressureReader {
    const SOURCE: Source = Source::Pressure;
    /// While memory collapses, other files are sampled more often.
    const PAUSE_MAX: Duration = Duration::from_millis(100);

    fn series(&self) -> Vec<SeriesKey> {
        let mut series = Vec::new();
        for (resource, shares) in RESOURCES {
            for share in shares {
                let labels = [("resource", resource), ("share", *share)];
                series.push(SeriesKey::new("uma_pressure_stalled_seconds_total", &labels));
                let labels = [labels[0], labels[1], ("window", WINDOW)];
                series.push(SeriesKey::new("uma_pressure_ratio", &labels));
            }
        }
        series
    }

    fn read(&mut self, report: &mut ReadReport) {
        let mut absent = 0;
        for ((_, shares), file) in RESOURCES.iter().zip(&mut self.files) {
            let parsed = match file.read() {
                Ok(text) => Pressure::parse(text).map_err(|error| file.failed(error)),
                Err(fault) => Err(fault),
            };
            match parsed {
                Ok(pressure) => {
                    for stall in [&pressure.some, &pressure.full].into_iter().take(shares.len()) {
                        report.push(stall.total_us.map(|microseconds| microseconds as f64 / 1e6));
                        report.push(stall.avg10);
                    }
                }
                Err(fault) => {
                    absent += usize::from(matches!(fault, FileFault::Absent(_)));
                    report.miss(SERIES_PER_SHARE * shares.len(), &fault);
                }
            }
        }
        if absent == RESOURCES.len() {
            report.lacking();
        }
    }
}
