//! `/proc/pressure/*`.

use std::path::Path;
use std::time::Duration;

use super::feed::{Reader, Report};
use super::file::{Fault, KeptFile};
use crate::model::{SeriesKey, Source};
use crate::parse::proc::pressure::{Pressure, Stall};

const RESOURCES: [&str; 3] = ["cpu", "io", "memory"];
const SHARES: [&str; 2] = ["some", "full"];
const WINDOWS: [&str; 3] = ["10s", "60s", "300s"];
const SERIES_PER_RESOURCE: usize = SHARES.len() * (1 + WINDOWS.len());

#[derive(Debug)]
pub(super) struct PressureReader {
    files: [KeptFile; RESOURCES.len()],
}

impl PressureReader {
    pub(super) fn new(procfs: &Path) -> Self {
        let folder = procfs.join("pressure");
        Self { files: RESOURCES.map(|resource| KeptFile::new(folder.join(resource))) }
    }
}

impl Reader for PressureReader {
    const SOURCE: Source = Source::Pressure;
    /// While memory collapses, other files are sampled more often.
    const PAUSE_MAX: Duration = Duration::from_millis(100);

    fn series(&self) -> Vec<SeriesKey> {
        let mut series = Vec::new();
        for resource in RESOURCES {
            for share in SHARES {
                let labels = [("resource", resource), ("share", share)];
                series.push(SeriesKey::new("uma_pressure_stalled_seconds_total", &labels));
                for window in WINDOWS {
                    let labels = [labels[0], labels[1], ("window", window)];
                    series.push(SeriesKey::new("uma_pressure_ratio", &labels));
                }
            }
        }
        series
    }

    fn read(&mut self, report: &mut Report) {
        let mut absent = 0;
        for file in &mut self.files {
            let parsed = match file.read() {
                Ok(text) => Pressure::parse(text).map_err(|error| file.failed(error)),
                Err(fault) => Err(fault),
            };
            match parsed {
                Ok(pressure) => {
                    push(&pressure.some, report);
                    push(&pressure.full, report);
                }
                Err(fault) => {
                    absent += usize::from(matches!(fault, Fault::Absent(_)));
                    report.miss(SERIES_PER_RESOURCE, &fault);
                }
            }
        }
        if absent == RESOURCES.len() {
            report.absent("this kernel reports no pressure; boot it with psi=1".to_owned());
        }
    }
}

fn push(stall: &Stall, report: &mut Report) {
    report.push(stall.total_us.map(|microseconds| microseconds as f64 / 1e6));
    for ratio in [stall.avg10, stall.avg60, stall.avg300] {
        report.push(ratio);
    }
}
