//! The figures of this process, with the names of other Prometheus exporters.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use procfs::process::{LimitValue, Process};
use procfs::{ProcError, ProcResult};

use crate::model::{Observation, Reading, Readings, Schema, SeriesKey, Source};

const SERIES: [&str; 7] = [
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "process_open_fds",
    "process_max_fds",
    "process_start_time_seconds",
    "process_threads",
];

/// Reads this process' figures from the real `/proc`. Meant for once a second.
#[derive(Debug)]
pub struct ProcessSource {
    schema: Arc<Schema>,
}

impl Default for ProcessSource {
    fn default() -> Self {
        let series = SERIES.map(|name| SeriesKey::new(name, &[])).to_vec();
        Self { schema: Arc::new(Schema { series }) }
    }
}

impl ProcessSource {
    /// Adds one `Observation::Readings`.
    pub fn read(&self, clock: &dyn Fn() -> Duration, out: &mut Vec<Observation>) {
        let begun = clock();
        let (values, error) = match figures() {
            Ok(values) => (values, None),
            Err(error) => ([Reading::Failed; SERIES.len()], Some(describe(&error))),
        };
        out.push(Observation::Readings(Readings {
            source: Source::Process,
            schema: Arc::clone(&self.schema),
            values: values.to_vec(),
            took: clock().saturating_sub(begun),
            error,
        }));
    }
}

fn describe(error: &ProcError) -> Arc<str> {
    format!("cannot read this process' own figures under /proc: {error}").into()
}

/// In the order of [`SERIES`].
fn figures() -> ProcResult<[Reading<f64>; SERIES.len()]> {
    let process = Process::myself()?;
    let stat = process.stat()?;
    let ticks_per_second = procfs::ticks_per_second() as f64;
    let max_fds = match process.limits()?.max_open_files.soft_limit {
        LimitValue::Value(value) => Reading::Value(value as f64),
        LimitValue::Unlimited => Reading::Value(f64::INFINITY),
    };
    let started = procfs::boot_time_secs()? as f64 + stat.starttime as f64 / ticks_per_second;
    Ok([
        Reading::Value((stat.utime + stat.stime) as f64 / ticks_per_second),
        Reading::Value((stat.rss * procfs::page_size()) as f64),
        Reading::Value(stat.vsize as f64),
        Reading::Value(process.fd_count()? as f64),
        max_fds,
        Reading::Value(started),
        Reading::Value(stat.num_threads as f64),
    ])
}
