//! What the process that asks the NVIDIA driver says over its pipe: a line of JSON for each
//! question. The driver's library runs in that process, and anything may come out of it.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::process::printable;
use crate::model::{GpuDevice, GpuInstance, GpuMemory, GpuPicture, GpuProcess, Reading};

/// Of the lines. Both ends are the same file, unless it was replaced between two starts.
pub const VERSION: u32 = 1;

/// A question is no longer than that.
pub const MAX_QUESTION_BYTES: usize = 256;

/// An answer is no longer than that: [`cut`] leaves less.
pub const MAX_ANSWER_BYTES: usize = 2 << 20;

/// Of more GPUs, parts and processes none are told.
pub const MAX_DEVICES: usize = 32;
/// Parts of a GPU.
pub const MAX_INSTANCES: usize = 32;
/// Processes of a GPU.
pub const MAX_PROCESSES: usize = 1024;
/// Processes of all GPUs together.
const MAX_PROCESSES_IN_ALL: usize = 4096;
/// Failures that are told of a GPU.
pub const MAX_FAILURES: usize = 8;

/// Names and versions are no longer.
const MAX_TEXT_BYTES: usize = 160;
/// Reasons are no longer; they may hold paths.
const MAX_REASON_BYTES: usize = 400;

/// No number of a process is greater (PID_MAX_LIMIT).
const MAX_PID: u32 = 1 << 22;

/// No memory is larger: 1 EiB.
const MAX_MEMORY_BYTES: u64 = 1 << 60;

/// Beyond these nobody has measured, but misread.
const TEMPERATURES_CELSIUS: std::ops::RangeInclusive<f64> = -100.0..=300.0;
const POWERS_WATTS: std::ops::RangeInclusive<f64> = 0.0..=100_000.0;

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// [`VERSION`].
    pub version: u32,
    /// Its number.
    pub number: u64,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// [`VERSION`].
    pub version: u32,
    /// The question's number.
    pub number: u64,
    /// What is said.
    pub told: Told,
}

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// Everything of every GPU.
    Picture(GpuPicture),
    /// Why there is nothing to tell; the process ends after that.
    Nothing(Nothing),
}

/// Why there is nothing to tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nothing {
    /// What kind of lack that is.
    pub kind: Lack,
    /// Why, for people.
    pub why: Arc<str>,
}

/// What is lacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lack {
    /// The library is not there.
    Library,
    /// No driver is loaded.
    Driver,
    /// It is there, and cannot be used.
    Usable,
}

/// Reads a line. What is not possible in it is `Failed`, and never believed.
///
/// # Errors
/// It is no answer of this version.
pub fn answer(line: &[u8]) -> Result<Answer, String> {
    if line.len() > MAX_ANSWER_BYTES {
        return Err(format!("an answer is longer than {} MiB", MAX_ANSWER_BYTES >> 20));
    }
    // An answer of another version may have anything in it but this.
    let head: Head = serde_json::from_slice(line).map_err(|error| format!("no answer: {error}"))?;
    if head.version != VERSION {
        return Err(format!("an answer of version {}, and not {VERSION}", head.version));
    }
    let answer: Answer =
        serde_json::from_slice(line).map_err(|error| format!("no answer: {error}"))?;
    let told = match answer.told {
        Told::Picture(picture) => Told::Picture(plausible(picture)),
        Told::Nothing(Nothing { kind, why }) => {
            Told::Nothing(Nothing { kind, why: text(&why, MAX_REASON_BYTES) })
        }
    };
    Ok(Answer { told, ..answer })
}

#[derive(Deserialize)]
struct Head {
    version: u32,
}

/// Leaves out what is too much, and says so.
pub fn cut(picture: &mut GpuPicture) {
    let mut is_cut = picture.devices.len() > MAX_DEVICES;
    picture.devices.truncate(MAX_DEVICES);
    let mut room = MAX_PROCESSES_IN_ALL;
    for device in &mut picture.devices {
        is_cut |= device.instances.len() > MAX_INSTANCES;
        device.instances.truncate(MAX_INSTANCES);
        device.failures.truncate(MAX_FAILURES);
        if let Reading::Value(processes) = &mut device.processes {
            let most = room.min(MAX_PROCESSES);
            is_cut |= processes.len() > most;
            processes.truncate(most);
            room -= processes.len();
        }
    }
    picture.is_cut |= is_cut;
}

/// What of it can be so.
fn plausible(mut told: GpuPicture) -> GpuPicture {
    for device in told.devices.iter_mut().take(MAX_DEVICES) {
        if let Reading::Value(listed) = &mut device.processes {
            let listed = std::mem::take(listed);
            let mut is_wrong = false;
            device.processes = Reading::Value(processes(listed, &mut is_wrong));
            told.is_cut |= is_wrong;
        }
    }
    cut(&mut told);
    let mut is_cut = told.is_cut;
    let mut devices: BTreeMap<u32, GpuDevice> = BTreeMap::new();
    for mut device in told.devices {
        check_device(&mut device);
        // Of one number there is one GPU.
        is_cut |= devices.contains_key(&device.index);
        devices.entry(device.index).or_insert(device);
    }
    GpuPicture {
        driver_version: told.driver_version.as_deref().map(name),
        nvml_version: told.nvml_version.as_deref().map(name),
        devices: devices.into_values().collect(),
        is_cut,
    }
}

fn check_device(device: &mut GpuDevice) {
    let texts =
        [&mut device.name, &mut device.uuid, &mut device.pci_address, &mut device.compute_mode];
    texts.into_iter().flatten().for_each(|told| *told = name(told));
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
    texts.into_iter().flatten().for_each(|told| *told = name(told));
    instance.memory = memory(instance.memory);
}

/// Each once an instance, by number. One that computes and draws stands in two of the driver's
/// lists with the same memory.
fn processes(told: Vec<GpuProcess>, is_wrong: &mut bool) -> Vec<GpuProcess> {
    let mut known: BTreeMap<(u32, Option<u32>, Option<u32>), GpuProcess> = BTreeMap::new();
    for mut process in told {
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

/// The more telling of two readings of the same.
fn either(one: Reading<u64>, other: Reading<u64>) -> Reading<u64> {
    match (one, other) {
        (Reading::Value(one), Reading::Value(other)) => Reading::Value(one.max(other)),
        (value @ Reading::Value(_), _) | (_, value @ Reading::Value(_)) => value,
        (Reading::Failed, _) | (_, Reading::Failed) => Reading::Failed,
        (Reading::Unsupported, Reading::Unsupported) => Reading::Unsupported,
    }
}

/// GB10 may answer with zeros instead of not at all. More used or free than there is is no answer.
fn memory(told: GpuMemory) -> GpuMemory {
    let total_bytes = bounded(told.total_bytes);
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
    let (used_bytes, free_bytes) = (part(told.used_bytes), part(told.free_bytes));
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

fn name(told: &str) -> Arc<str> {
    text(told, MAX_TEXT_BYTES)
}

/// Printable, and not too long.
fn text(told: &str, most_bytes: usize) -> Arc<str> {
    let mut told = printable(told.trim().as_bytes());
    let mut end = told.len().min(most_bytes);
    while !told.is_char_boundary(end) {
        end -= 1;
    }
    told.truncate(end);
    told.into()
}
