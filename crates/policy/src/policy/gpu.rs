//! What the NVIDIA driver says of GPUs, as series.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use promql_rules::store::SeriesStore;

use super::counters::{Cell, Counters};
use super::gate::orphans;
use super::status::EngineStatus;
use crate::model::{
    EnginePhase, GpuDevice, GpuDriver, GpuMemory, GpuPicture, GpuReadings, GpuRecovery, Reading,
    SeriesKey,
};

/// What a GPU or a driver does not say of itself.
const UNKNOWN: &str = "unknown";

/// What is shown of them.
#[derive(Debug, Default)]
pub(super) struct Gpus {
    /// The series of the last answer.
    cells: Vec<Cell>,
}

type Values = Vec<(SeriesKey, Reading<f64>)>;

impl Gpus {
    /// Takes the state of the driver. A response is valid until the next one; without one in time
    /// its values are unknown.
    pub(super) fn take(
        &mut self,
        readings: &GpuReadings,
        engines: &[EngineStatus],
        (counters, store): (&mut Counters, &mut SeriesStore),
    ) {
        match (&readings.picture, &readings.driver) {
            (Some(picture), _) => {
                self.publish(values(picture, engines), counters, store);
            }
            (None, GpuDriver::Absent { .. }) => self.publish(Vec::new(), counters, store),
            (None, GpuDriver::Silent { .. } | GpuDriver::Unknown { .. }) => {
                self.cells.iter().for_each(|cell| counters.set_reading(*cell, Reading::Failed));
            }
            (None, GpuDriver::Responsive) => {}
        }
    }

    /// Shows these, and ends those that were shown before and are not among them.
    fn publish(&mut self, values: Values, counters: &mut Counters, store: &mut SeriesStore) {
        let mut cells = Vec::with_capacity(values.len());
        for (key, reading) in values {
            let cell = counters.cell(store, &key);
            counters.set_reading(cell, reading);
            cells.push(cell);
        }
        cells.sort_unstable();
        for gone in self.cells.iter().filter(|cell| cells.binary_search(cell).is_err()) {
            counters.retire(*gone);
        }
        self.cells = cells;
    }
}

/// Every series of a picture that this driver and this GPU have.
fn values(picture: &GpuPicture, engines: &[EngineStatus]) -> Values {
    let (owners, left) = (owners(engines), left_behind(engines));
    let mut values = Vec::new();
    for device in &picture.devices {
        let gpu = device.index.to_string();
        values.push((info(picture, device, &gpu), Reading::Value(1.0)));
        add_device(device, &gpu, &mut values);
        add_instances(device, &gpu, &mut values);
        add_processes(device, &gpu, (&owners, &left), &mut values);
        // A process that is not listed may have it.
        let unowned = if picture.is_cut { Reading::Failed } else { device.unowned_bytes() };
        let key = SeriesKey::new("uma_gpu_memory_unowned_bytes", &[("gpu", &*gpu)]);
        values.push((key, unowned.map(number)));
    }
    values.retain(|(_, reading)| !matches!(reading, Reading::Unsupported));
    values
}

fn info(picture: &GpuPicture, device: &GpuDevice, gpu: &str) -> SeriesKey {
    let or_unknown = |text: &Option<Arc<str>>| text.as_deref().unwrap_or(UNKNOWN).to_owned();
    SeriesKey::new(
        "uma_gpu_info",
        &[
            ("compute_mode", &*or_unknown(&device.compute_mode)),
            ("driver_version", &*or_unknown(&picture.driver_version)),
            ("gpu", gpu),
            ("name", &*or_unknown(&device.name)),
            ("nvml_version", &*or_unknown(&picture.nvml_version)),
            ("pci_address", &*or_unknown(&device.pci_address)),
            ("uuid", &*or_unknown(&device.uuid)),
        ],
    )
}

fn add_device(device: &GpuDevice, gpu: &str, values: &mut Values) {
    let mut add = |name: &str, reading: Reading<f64>| {
        values.push((SeriesKey::new(name, &[("gpu", gpu)]), reading));
    };
    let [total, used, free] = memory(&device.memory);
    add("uma_gpu_memory_total_bytes", total);
    add("uma_gpu_memory_used_bytes", used);
    add("uma_gpu_memory_free_bytes", free);
    add("uma_gpu_utilization_ratio", device.utilization);
    add("uma_gpu_memory_utilization_ratio", device.memory_utilization);
    add("uma_gpu_temperature_celsius", device.temperature_celsius);
    add("uma_gpu_power_watts", device.power_watts);
    add("uma_gpu_mig_enabled", device.is_mig.map(f64::from));
    let health = &device.health;
    add("uma_gpu_uncorrected_errors_total", health.uncorrected_errors.map(number));
    add("uma_gpu_repair_pending", health.is_repair_pending.map(f64::from));
    add("uma_gpu_repair_failed", health.has_repair_failed.map(f64::from));
    for recovery in GpuRecovery::ALL {
        let labels = [("action", recovery.name()), ("gpu", gpu)];
        let reading = health.recovery.map(|wanted| f64::from(wanted == recovery));
        values.push((SeriesKey::new("uma_gpu_recovery_action", &labels), reading));
    }
}

fn add_instances(device: &GpuDevice, gpu: &str, values: &mut Values) {
    for instance in &device.instances {
        // Without its numbers it cannot be distinguished from others.
        let (Some(of_gpu), Some(of_compute)) = (instance.gpu_instance, instance.compute_instance)
        else {
            continue;
        };
        let (of_gpu, of_compute) = (of_gpu.to_string(), of_compute.to_string());
        let labels = [("compute_instance", &*of_compute), ("gpu", gpu), ("gpu_instance", &*of_gpu)];
        let names = ["total", "used", "free"];
        for (name, reading) in names.into_iter().zip(memory(&instance.memory)) {
            let name = format!("uma_gpu_instance_memory_{name}_bytes");
            values.push((SeriesKey::new(&name, &labels), reading));
        }
    }
}

fn add_processes(
    device: &GpuDevice,
    gpu: &str,
    (owners, left): (&BTreeMap<u32, Arc<str>>, &BTreeSet<u32>),
    values: &mut Values,
) {
    let count = device.processes.clone().map(|processes| number(processes.len() as u64));
    values.push((SeriesKey::new("uma_gpu_processes", &[("gpu", gpu)]), count));
    let mut of_engines: BTreeMap<&Arc<str>, Reading<u64>> = BTreeMap::new();
    let mut of_others = device.processes.clone().map(|_| 0);
    let mut of_orphans = of_others;
    for process in device.processes() {
        let sum = match owners.get(&process.pid) {
            Some(engine) => of_engines.entry(engine).or_insert(Reading::Value(0)),
            None => &mut of_others,
        };
        *sum = plus(*sum, process.used_bytes);
        if left.contains(&process.pid) {
            of_orphans = plus(of_orphans, process.used_bytes);
        }
    }
    for (engine, sum) in of_engines {
        let labels = [("engine", &**engine), ("gpu", gpu)];
        values.push((SeriesKey::new("uma_gpu_engine_memory_bytes", &labels), sum.map(number)));
    }
    let others =
        [("uma_gpu_other_memory_bytes", of_others), ("uma_gpu_orphan_memory_bytes", of_orphans)];
    for (name, sum) in others {
        values.push((SeriesKey::new(name, &[("gpu", gpu)]), sum.map(number)));
    }
}

fn plus(sum: Reading<u64>, own: Reading<u64>) -> Reading<u64> {
    sum.zip(own).map(|(sum, own)| sum.saturating_add(own))
}

/// The processes that engines have left behind.
fn left_behind(engines: &[EngineStatus]) -> BTreeSet<u32> {
    let left = engines.iter().flat_map(|status| orphans(&status.engine));
    left.map(|orphan| orphan.id.pid).collect()
}

/// Which engine each of their processes belongs to.
fn owners(engines: &[EngineStatus]) -> BTreeMap<u32, Arc<str>> {
    let living = engines.iter().filter(|engine| engine.phase != EnginePhase::Gone);
    let processes = living.flat_map(|status| {
        let of_engine = status.engine.processes.iter();
        of_engine.map(|process| (process.id.pid, Arc::clone(&status.engine.name)))
    });
    processes.collect()
}

fn memory(memory: &GpuMemory) -> [Reading<f64>; 3] {
    [memory.total_bytes, memory.used_bytes, memory.free_bytes].map(|bytes| bytes.map(number))
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
fn number(number: u64) -> f64 {
    number as f64
}
