//! Reads one GPU. What the driver or this version of its library lacks is `Unsupported`. A call
//! that failed is `Failed`, with the reason in `failures`.

use std::fmt;
use std::sync::Arc;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{
    ComputeMode, EccCounter, MemoryError, TemperatureSensor,
};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{MemoryInfo, ProcessInfo};
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING,
};

use crate::model::{
    GpuDevice, GpuHealth, GpuInstance, GpuMemory, GpuProcess, GpuRecovery, Reading,
};
use crate::parse::gpu::{MAX_FAILURES, MAX_INSTANCES};
use crate::sys::nvml::InstanceNumbers;

/// Failed calls of one GPU, each with its error.
#[derive(Default)]
struct Failures(Vec<Arc<str>>);

impl Failures {
    fn add(&mut self, what: &str, why: impl fmt::Display) {
        if self.0.len() < MAX_FAILURES {
            self.0.push(format!("{what}: {why}").into());
        }
    }

    fn reading<T>(&mut self, what: &str, result: Result<T, NvmlError>) -> Reading<T> {
        match result {
            Ok(value) => Reading::Value(value),
            Err(NvmlError::NotSupported | NvmlError::FunctionNotFound) => Reading::Unsupported,
            // An older library lacks the symbol.
            Err(NvmlError::FailedToLoadSymbol(_)) => Reading::Unsupported,
            Err(error) => {
                self.add(what, error);
                Reading::Failed
            }
        }
    }

    fn text(&mut self, what: &str, result: Result<String, NvmlError>) -> Option<Arc<str>> {
        match self.reading(what, result) {
            Reading::Value(text) => Some(text.into()),
            Reading::Unsupported | Reading::Failed => None,
        }
    }
}

/// Reads all values. An error of one call concerns its value alone.
pub(super) fn read(
    index: u32,
    device: &Device<'_>,
    numbers: Option<&InstanceNumbers>,
) -> GpuDevice {
    let mut failures = Failures::default();
    let share = |percent: u32| f64::from(percent) / 100.0;
    let utilization = failures.reading("utilization", device.utilization_rates());
    let is_mig = match failures.reading("MIG mode", device.mig_mode()) {
        Reading::Value(mode) => Reading::Value(mode.current == 1),
        Reading::Unsupported => Reading::Unsupported,
        Reading::Failed => Reading::Failed,
    };
    GpuDevice {
        index,
        name: failures.text("name", device.name()),
        uuid: failures.text("UUID", device.uuid()),
        pci_address: failures
            .text("PCI address", device.pci_info().map(|pci| kernel_address(&pci.bus_id))),
        compute_mode: compute_mode(failures.reading("compute mode", device.compute_mode())),
        memory: memory(failures.reading("memory", device.memory_info())),
        numa_node: failures.reading("NUMA node", device.numa_node_id()),
        utilization: utilization.clone().map(|rates| share(rates.gpu)),
        memory_utilization: utilization.map(|rates| share(rates.memory)),
        temperature_celsius: failures
            .reading("temperature", device.temperature(TemperatureSensor::Gpu))
            .map(f64::from),
        power_watts: failures
            .reading("power", device.power_usage())
            .map(|milliwatts| f64::from(milliwatts) / 1000.0),
        processes: processes(device, &mut failures),
        is_mig,
        instances: match is_mig {
            Reading::Value(true) => instances(device, numbers, &mut failures),
            _ => Vec::new(),
        },
        health: health(device, &mut failures),
        failures: failures.0,
    }
}

/// `0000000F:01:00.0` as the kernel writes it: `000f:01:00.0`.
fn kernel_address(nvml: &str) -> String {
    let address = nvml.to_ascii_lowercase();
    match (address.strip_prefix("0000"), address.find(':')) {
        (Some(short), Some(8)) => short.to_owned(),
        _ => address,
    }
}

/// A GPU that gives no handle: all its values have failed.
pub(super) fn lost(index: u32, error: &NvmlError) -> GpuDevice {
    GpuDevice {
        index,
        name: None,
        uuid: None,
        pci_address: None,
        compute_mode: None,
        memory: GpuMemory::FAILED,
        numa_node: Reading::Failed,
        utilization: Reading::Failed,
        memory_utilization: Reading::Failed,
        temperature_celsius: Reading::Failed,
        power_watts: Reading::Failed,
        processes: Reading::Failed,
        is_mig: Reading::Failed,
        instances: Vec::new(),
        health: GpuHealth {
            uncorrected_errors: Reading::Failed,
            is_repair_pending: Reading::Failed,
            has_repair_failed: Reading::Failed,
            recovery: Reading::Failed,
        },
        failures: vec![format!("the GPU: {error}").into()],
    }
}

fn compute_mode(mode: Reading<ComputeMode>) -> Option<Arc<str>> {
    let Reading::Value(mode) = mode else { return None };
    Some(Arc::from(match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveThread => "exclusive_thread",
        ComputeMode::Prohibited => "prohibited",
        ComputeMode::ExclusiveProcess => "exclusive_process",
    }))
}

fn memory(info: Reading<MemoryInfo>) -> GpuMemory {
    match info {
        Reading::Value(info) => GpuMemory {
            total_bytes: Reading::Value(info.total),
            used_bytes: Reading::Value(info.used),
            free_bytes: Reading::Value(info.free),
        },
        Reading::Unsupported => GpuMemory::UNSUPPORTED,
        Reading::Failed => GpuMemory::FAILED,
    }
}

/// Compute processes and graphics processes. A process that is both is in both lists.
fn processes(device: &Device<'_>, failures: &mut Failures) -> Reading<Vec<GpuProcess>> {
    let compute = failures.reading("compute processes", device.running_compute_processes());
    let graphics = failures.reading("graphics processes", device.running_graphics_processes());
    let (compute, graphics) = match (compute, graphics) {
        (Reading::Value(compute), Reading::Value(graphics)) => (compute, graphics),
        (Reading::Value(one), Reading::Unsupported) => (one, Vec::new()),
        (Reading::Unsupported, Reading::Value(one)) => (Vec::new(), one),
        (Reading::Unsupported, Reading::Unsupported) => return Reading::Unsupported,
        // A list of one kind would be taken for all.
        (Reading::Failed, _) | (_, Reading::Failed) => return Reading::Failed,
    };
    let of_compute = compute.into_iter().map(|info| process(info, true));
    let of_graphics = graphics.into_iter().map(|info| process(info, false));
    Reading::Value(of_compute.chain(of_graphics).collect())
}

fn process(info: ProcessInfo, is_compute: bool) -> GpuProcess {
    GpuProcess {
        pid: info.pid,
        used_bytes: match info.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Reading::Value(bytes),
            UsedGpuMemory::Unavailable => Reading::Unsupported,
        },
        is_compute,
        is_graphics: !is_compute,
        gpu_instance: info.gpu_instance_id,
        compute_instance: info.compute_instance_id,
    }
}

fn instances(
    device: &Device<'_>,
    numbers: Option<&InstanceNumbers>,
    failures: &mut Failures,
) -> Vec<GpuInstance> {
    let Reading::Value(count) = failures.reading("MIG devices", device.mig_device_count()) else {
        return Vec::new();
    };
    let most = u32::try_from(MAX_INSTANCES).unwrap_or(u32::MAX);
    let mut instances = Vec::new();
    for index in 0..count.min(most) {
        let part = match device.mig_device_by_index(index) {
            Ok(part) => part,
            // The count is the highest possible number of parts.
            Err(NvmlError::NotFound) => continue,
            Err(error) => {
                failures.add("MIG device", error);
                continue;
            }
        };
        let (gpu_instance, compute_instance) =
            numbers.map_or((None, None), |numbers| numbers.numbers(&part));
        instances.push(GpuInstance {
            gpu_instance,
            compute_instance,
            name: failures.text("name of a MIG device", part.name()),
            uuid: failures.text("UUID of a MIG device", part.uuid()),
            memory: memory(failures.reading("memory of a MIG device", part.memory_info())),
        });
    }
    instances
}

fn health(device: &Device<'_>, failures: &mut Failures) -> GpuHealth {
    let errors = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
    let uncorrected_errors = failures.reading("uncorrected errors", errors);
    let retired = failures.reading("retired pages", device.are_pages_pending_retired());
    let remapped = flag(field(device, "remapped rows", NVML_FI_DEV_REMAPPED_PENDING, failures));
    let failed = field(device, "failed remapping", NVML_FI_DEV_REMAPPED_FAILURE, failures);
    let wanted = field(device, "recovery action", NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, failures);
    let recovery = match wanted {
        Reading::Value(number) => {
            let known = usize::try_from(number).ok().and_then(|at| GpuRecovery::ALL.get(at));
            known.map_or_else(
                || {
                    failures.add("recovery action", format_args!("{number} is not known"));
                    Reading::Failed
                },
                |known| Reading::Value(*known),
            )
        }
        Reading::Unsupported => Reading::Unsupported,
        Reading::Failed => Reading::Failed,
    };
    GpuHealth {
        uncorrected_errors,
        is_repair_pending: any(retired, remapped),
        has_repair_failed: flag(failed),
        recovery,
    }
}

fn flag(number: Reading<u64>) -> Reading<bool> {
    number.map(|number| number != 0)
}

/// A GPU retires pages or remaps rows. The other is unsupported.
fn any(one: Reading<bool>, other: Reading<bool>) -> Reading<bool> {
    match (one, other) {
        (Reading::Value(true), _) | (_, Reading::Value(true)) => Reading::Value(true),
        (Reading::Failed, _) | (_, Reading::Failed) => Reading::Failed,
        (Reading::Value(false), _) | (_, Reading::Value(false)) => Reading::Value(false),
        (Reading::Unsupported, Reading::Unsupported) => Reading::Unsupported,
    }
}

/// Reads a number that has no function of its own, by its field id.
fn field(device: &Device<'_>, what: &str, id: u32, failures: &mut Failures) -> Reading<u64> {
    let values = device.field_values_for(&[FieldId(id)]);
    let sample = match failures.reading(what, values) {
        Reading::Value(samples) => samples.into_iter().next(),
        Reading::Unsupported => return Reading::Unsupported,
        Reading::Failed => return Reading::Failed,
    };
    let value = sample.map_or(Err(NvmlError::NoData), |sample| sample?.value);
    match failures.reading(what, value) {
        Reading::Value(SampleValue::U32(number)) => Reading::Value(u64::from(number)),
        Reading::Value(SampleValue::U64(number)) => Reading::Value(number),
        Reading::Value(SampleValue::I64(number)) if number >= 0 => {
            Reading::Value(number.unsigned_abs())
        }
        Reading::Value(_) => Reading::Failed,
        Reading::Unsupported => Reading::Unsupported,
        Reading::Failed => Reading::Failed,
    }
}
