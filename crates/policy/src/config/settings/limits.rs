//! Bounds and defaults, the same for the file and for flags.

use std::time::Duration;

use super::{GpuInterval, SamplingInterval};
use crate::config::measure::{duration, duration_within, size_bytes};

/// Between evaluations. Memory has collapsed by 20 GiB within 1.5 s; ten samples of that
/// distinguish a trend from a dip.
pub const DEFAULT_INTERVAL: Duration = Duration::from_millis(100);

/// Of the journal.
pub const DEFAULT_RETENTION_TIME: Duration = Duration::from_secs(30 * 86_400);

/// Of the journal.
pub const DEFAULT_RETENTION_SIZE_BYTES: u64 = 256 << 20;

/// Of the flight recorder: hours at ten samples a second.
pub const DEFAULT_RECORDING_SIZE_BYTES: u64 = 64 << 20;

/// Of the black box: what led to a wedge, in less than 2 MiB.
pub const DEFAULT_BLACK_BOX: Duration = Duration::from_secs(3_600);

/// Below this, reading `/proc` takes a visible share of a core.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

const LONGEST_EVALUATION: Duration = Duration::from_secs(3_600);
const LONGEST_RETENTION: Duration = Duration::from_secs(3_650 * 86_400);

/// A smaller journal would hold too few entries.
const SMALLEST_JOURNAL_BYTES: u64 = 1 << 20;

/// Less than this shows no wedge coming, more belongs in the flight recorder.
const SHORTEST_BLACK_BOX: Duration = Duration::from_secs(60);
const LONGEST_BLACK_BOX: Duration = Duration::from_secs(86_400);

/// Less than this holds no incident.
const SMALLEST_RECORDING_BYTES: u64 = 1 << 20;

/// Shorter intervals load the driver with responses.
const SHORTEST_GPU: Duration = Duration::from_millis(100);
const LONGEST_GPU: Duration = Duration::from_secs(3_600);

/// Time between two queries of the NVIDIA driver.
pub fn gpu(text: &str) -> Result<GpuInterval, String> {
    match text {
        "auto" => Ok(GpuInterval::Auto),
        "off" => Ok(GpuInterval::Off),
        text => duration_within(text, SHORTEST_GPU, LONGEST_GPU)
            .map(GpuInterval::Every)
            .map_err(|error| format!("{error}, or auto, or off")),
    }
}

/// A desktop takes and returns less.
const SMALLEST_LEAK_BYTES: u64 = 256 << 20;

/// A healthy driver needs seconds to give memory back, and pools of it minutes.
const SHORTEST_LEAK: Duration = Duration::from_secs(30);
const LONGEST_LEAK: Duration = Duration::from_secs(86_400);

/// How many starts at the same time.
pub fn at_once(text: &str) -> Result<u32, String> {
    let number: Option<u32> = text.parse().ok();
    number
        .filter(|number| (1..=64).contains(number))
        .ok_or_else(|| "write a number from 1 to 64".into())
}

/// Memory without an owner counts as leaked above that size, in bytes.
pub fn leaked_size(text: &str) -> Result<u64, String> {
    match size_bytes(text)? {
        bytes if bytes < SMALLEST_LEAK_BYTES => Err(format!("{text} is less than 256MiB")),
        bytes => Ok(bytes),
    }
}

/// And after that time.
pub fn leaked_after(text: &str) -> Result<Duration, String> {
    duration_within(text, SHORTEST_LEAK, LONGEST_LEAK)
}

/// Time between two readings of memory.
pub fn sampling(text: &str) -> Result<SamplingInterval, String> {
    if text == "auto" {
        return Ok(SamplingInterval::Auto);
    }
    duration_within(text, SHORTEST_INTERVAL, Duration::from_secs(1))
        .map(SamplingInterval::Every)
        .map_err(|error| format!("{error}, or auto"))
}

/// Time between two evaluations of a group.
pub fn evaluation(text: &str) -> Result<Duration, String> {
    duration_within(text, SHORTEST_INTERVAL, LONGEST_EVALUATION)
}

/// Age at which journal entries are removed.
pub fn retention_time(text: &str) -> Result<Duration, String> {
    duration_within(text, Duration::from_secs(60), LONGEST_RETENTION)
}

/// Size beyond which the oldest journal entries are removed, in bytes.
pub fn retention_size(text: &str) -> Result<u64, String> {
    match size_bytes(text)? {
        bytes if bytes < SMALLEST_JOURNAL_BYTES => Err(format!("{text} is less than 1MiB")),
        bytes => Ok(bytes),
    }
}

/// Size beyond which the oldest part of the recording is removed, in bytes; 0 is no recording.
pub fn recording_size(text: &str) -> Result<u64, String> {
    match size_bytes(text)? {
        0 => Ok(0),
        bytes if bytes < SMALLEST_RECORDING_BYTES => {
            Err(format!("{text} is less than 1MiB; 0 is for no recording"))
        }
        bytes => Ok(bytes),
    }
}

/// How far the black box reaches back; 0 is no black box.
pub fn black_box(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Ok(Duration::ZERO),
        _ => duration_within(text, SHORTEST_BLACK_BOX, LONGEST_BLACK_BOX)
            .map_err(|error| format!("{error}; 0 is for no black box")),
    }
}
