//! Protocol of the process that queries the NVIDIA driver: a line of JSON for each request and
//! response. The driver's library runs in that process, so its output is not trusted.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::process::printable;
use crate::model::{GpuDevice, GpuInstance, GpuMemory, GpuPicture, GpuProcess, Reading};

/// Version of the lines. Both ends are the same executable, unless an update replaced it between
/// two starts.
pub const VERSION: u32 = 1;

/// Longest request line.
pub const MAX_REQUEST_BYTES: usize = 256;

/// Longest response line: [`cut`] leaves less.
pub const MAX_RESPONSE_BYTES: usize = 2 << 20;

/// GPUs that are reported; the rest are left out.
pub const MAX_DEVICES: usize = 32;
/// Reported instances (MIG) of a GPU.
pub const MAX_INSTANCES: usize = 32;
/// Reported processes of a GPU.
pub const MAX_PROCESSES: usize = 1024;
/// Reported processes of all GPUs together.
const MAX_PROCESSES_IN_ALL: usize = 4096;
/// Reported failures of a GPU.
pub const MAX_FAILURES: usize = 8;

/// Names and versions are no longer.
const MAX_TEXT_BYTES: usize = 160;
/// Reasons are no longer; they may hold paths.
const MAX_REASON_BYTES: usize = 400;

/// No number of a process is greater (PID_MAX_LIMIT).
const MAX_PID: u32 = 1 << 22;

/// No memory is larger: 1 EiB.
const MAX_MEMORY_BYTES: u64 = 1 << 60;

/// Values outside of these bounds are misread.
const TEMPERATURES_CELSIUS: std::ops::RangeInclusive<f64> = -100.0..=300.0;
const POWERS_WATTS: std::ops::RangeInclusive<f64> = 0.0..=100_000.0;

/// A request line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRequest {
    /// [`VERSION`].
    pub version: u32,
    /// Number of the request, unique within a run of the process.
    pub number: u64,
}

/// A response line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// [`VERSION`].
    pub version: u32,
    /// Number of the request that it answers.
    pub number: u64,
    /// What the driver reported, or why it did not.
    pub result: QueryResult,
}

/// Result of a query of the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryResult {
    /// Everything of every GPU.
    Picture(GpuPicture),
    /// The driver cannot be queried. The process ends after this response.
    Unavailable(Unavailable),
}

/// Why the driver cannot be queried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unavailable {
    /// Which part is missing.
    pub kind: MissingGpuPart,
    /// The reason, for people.
    pub why: Arc<str>,
}

/// The part that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingGpuPart {
    /// The library is not there.
    Library,
    /// No driver is loaded.
    Driver,
    /// It is there, and cannot be used.
    Usable,
}

/// Reads a response line. Impossible values become `Failed`.
///
/// # Errors
/// It is no response of this version.
pub fn response(line: &[u8]) -> Result<Response, String> {
    if line.len() > MAX_RESPONSE_BYTES {
        return Err(format!("an answer is longer than {} MiB", MAX_RESPONSE_BYTES >> 20));
    }
    // A response of another version has only this field for certain.
    let head: Head = serde_json::from_slice(line).map_err(|error| format!("no answer: {error}"))?;
    if head.version != VERSION {
        return Err(format!("an answer of version {}, and not {VERSION}", head.version));
    }
    let response: Response =
        serde_json::from_slice(line).map_err(|error| format!("no answer: {error}"))?;
    let result = match response.result {
        QueryResult::Picture(picture) => QueryResult::Picture(plausible(picture)),
        QueryResult::Unavailable(Unavailable { kind, why }) => {
            QueryResult::Unavailable(Unavailable { kind, why: text(&why, MAX_REASON_BYTES) })
        }
    };
    Ok(Response { result, ..response })
}

#[derive(Deserialize)]
struct Head {
    version: u32,
}

/// Cuts lists to their limits, and marks it.
pub fn cut(picture: &mut GpuPicture) {
    let mut is_cut = picture.devices.len() > MAX_DEVICES;
    picture.devices.truncate(MAX_DEVICES);
    let mut left = MAX_PROCESSES_IN_ALL;
    for device in &mut picture.devices {
        is_cut |= device.instances.len() > MAX_INSTANCES;
        device.instances.truncate(MAX_INSTANCES);
        device.failures.truncate(MAX_FAILURES);
        if let Reading::Value(processes) = &mut device.processes {
            let most = left.min(MAX_PROCESSES);
            is_cut |= processes.len() > most;
            processes.truncate(most);
            left -= processes.len();
        }
    }
    picture.is_cut |= is_cut;
}

/// What of it can be so.
fn plausible(mut picture: GpuPicture) -> GpuPicture {
    for device in picture.devices.iter_mut().take(MAX_DEVICES) {
        if let Reading::Value(listed) = &mut device.processes {
            let listed = std::mem::take(listed);
            let mut is_wrong = false;
            device.processes = Reading::Value(processes(listed, &mut is_wrong));
            picture.is_cut |= is_wrong;
        }
    }
    cut(&mut picture);
    let mut is_cut = picture.is_cut;
    let mut devices: BTreeMap<u32, GpuDevice> = BTreeMap::new();
    for mut device in picture.devices {
        check_device(&mut device);
        // Of one number there is one GPU.
        is_cut |= devices.contains_key(&device.index);
        devices.entry(device.index).or_insert(device);
    }
    GpuPicture {
        driver_version: picture.driver_version.as_deref().map(name),
        nvml_version: picture.nvml_version.as_deref().map(name),
        devices: devices.into_values().collect(),
        is_cut,
    }
}

fn check_device(device: &mut GpuDevice) {
    let texts =
        [&mut device.name, &mut device.uuid, &mut device.pci_address, &mut device.compute_mode];
    texts.into_iter().flatten().for_each(|text| *text = name(text));
    device.failures.iter_mut().for_each(|failure| *failure = text(failure, MAX_REASON_BYTES));
    device.memory = memory(device.memory);
    let is_unified = device.is_unified() == Some(true);
    device.utilization = within(device.utilization, &(0.0..=1.0));
    // GB10 says 0 of memory that it does not have.
    device.memory_utilization = match is_unified {
        true => Reading::Unsupported,
        false => within(device.memory_utilization, &(0.0..=1.0)),
    };
    device.temperature_celsius = within(device.temperature_celsius, &TEMPERATURES_CELSIUS);
    device.power_watts = within(device.power_watts, &POWERS_WATTS);
    device.instances.iter_mut().for_each(check_instance);
}

fn check_instance(instance: &mut GpuInstance) {
    let texts = [&mut instance.name, &mut instance.uuid];
    texts.into_iter().flatten().for_each(|text| *text = name(text));
    instance.memory = memory(instance.memory);
}

/// Each once an instance, by number. One that computes and draws is in two of the driver's
/// lists with the same memory.
fn processes(reported: Vec<GpuProcess>, is_wrong: &mut bool) -> Vec<GpuProcess> {
    let mut known: BTreeMap<(u32, Option<u32>, Option<u32>), GpuProcess> = BTreeMap::new();
    for mut process in reported {
        process.used_bytes = bounded(process.used_bytes);
        let key = (process.pid, process.gpu_instance, process.compute_instance);
        if let Some(known) = known.get_mut(&key) {
            known.used_bytes = either(known.used_bytes, process.used_bytes);
            known.is_compute |= process.is_compute;
            known.is_graphics |= process.is_graphics;
        } else if (1..=MAX_PID).contains(&process.pid) {
            known.insert(key, process);
        } else {
            *is_wrong = true;
        }
    }
    known.into_values().collect()
}

/// The reading with more information of two of the same value.
fn either(one: Reading<u64>, other: Reading<u64>) -> Reading<u64> {
    match (one, other) {
        (Reading::Value(one), Reading::Value(other)) => Reading::Value(one.max(other)),
        (value @ Reading::Value(_), _) | (_, value @ Reading::Value(_)) => value,
        (Reading::Failed, _) | (_, Reading::Failed) => Reading::Failed,
        (Reading::Unsupported, Reading::Unsupported) => Reading::Unsupported,
    }
}

/// GB10 may answer with zeros instead of not at all. More used or free than there is is no answer.
fn memory(reported: GpuMemory) -> GpuMemory {
    let total_bytes = bounded(reported.total_bytes);
    let Reading::Value(total) = total_bytes else {
        // Without a whole its parts say nothing.
        return GpuMemory { total_bytes, used_bytes: total_bytes, free_bytes: total_bytes };
    };
    if total == 0 {
        return GpuMemory::UNSUPPORTED;
    }
    let part = |part: Reading<u64>| match part {
        Reading::Value(bytes) if bytes > total => Reading::Failed,
        part => part,
    };
    let (used_bytes, free_bytes) = (part(reported.used_bytes), part(reported.free_bytes));
    GpuMemory { total_bytes, used_bytes, free_bytes }
}

fn bounded(bytes: Reading<u64>) -> Reading<u64> {
    match bytes {
        Reading::Value(bytes) if bytes > MAX_MEMORY_BYTES => Reading::Failed,
        bytes => bytes,
    }
}

fn within(reading: Reading<f64>, bounds: &std::ops::RangeInclusive<f64>) -> Reading<f64> {
    match reading {
        Reading::Value(value) if !bounds.contains(&value) => Reading::Failed,
        reading => reading,
    }
}

fn name(reported: &str) -> Arc<str> {
    text(reported, MAX_TEXT_BYTES)
}

/// Printable, and not too long.
fn text(reported: &str, most_bytes: usize) -> Arc<str> {
    let mut text = printable(reported.trim().as_bytes());
    let mut end = text.len().min(most_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.into()
}
