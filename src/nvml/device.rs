//! One GPU. What the driver, or this version of its library, does not have is `Unsupported`; what
//! it has and failed to tell is `Failed`, with the reason.

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

/// What failed of one GPU.
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
            // An older library does not have it.
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

/// Everything that it tells.
pub(super) fn read(
    index: u32,
    device: &Device<'_>,
    numbers: Option<&InstanceNumbers>,
) -> GpuDevice {
    let mut failures = Failures::default();
    let told = &mut failures;
    let share = |percent: u32| f64::from(percent) / 100.0;
    let utilization = told.reading("utilization", device.utilization_rates());
    let is_mig = match told.reading("MIG mode", device.mig_mode()) {
        Reading::Value(mode) => Reading::Value(mode.current == 1),
        Reading::Unsupported => Reading::Unsupported,
        Reading::Failed => Reading::Failed,
    };
    GpuDevice {
        index,
        name: told.text("name", device.name()),
        uuid: told.text("UUID", device.uuid()),
        pci_address: told
            .text("PCI address", device.pci_info().map(|pci| kernels_address(&pci.bus_id))),
        compute_mode: compute_mode(told.reading("compute mode", device.compute_mode())),
        memory: memory(told.reading("memory", device.memory_info())),
        utilization: utilization.clone().map(|rates| share(rates.gpu)),
        memory_utilization: utilization.map(|rates| share(rates.memory)),
        temperature_celsius: told
            .reading("temperature", device.temperature(TemperatureSensor::Gpu))
            .map(f64::from),
        power_watts: told
            .reading("power", device.power_usage())
            .map(|milliwatts| f64::from(milliwatts) / 1000.0),
        processes: processes(device, told),
        is_mig,
        instances: match is_mig {
            Reading::Value(true) => instances(device, numbers, told),
            _ => Vec::new(),
        },
        health: health(device, told),
        failures: failures.0,
    }
}

/// `0000000F:01:00.0` as the kernel writes it: `000f:01:00.0`.
fn kernels_address(told: &str) -> String {
    let told = told.to_ascii_lowercase();
    match (told.strip_prefix("0000"), told.find(':')) {
        (Some(short), Some(8)) => short.to_owned(),
        _ => told,
    }
}

/// One that cannot be asked at all.
pub(super) fn lost(index: u32, error: &NvmlError) -> GpuDevice {
    GpuDevice {
        index,
        name: None,
        uuid: None,
        pci_address: None,
        compute_mode: None,
        memory: GpuMemory::FAILED,
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

fn compute_mode(told: Reading<ComputeMode>) -> Option<Arc<str>> {
    let Reading::Value(mode) = told else { return None };
    Some(Arc::from(match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveThread => "exclusive_thread",
        ComputeMode::Prohibited => "prohibited",
        ComputeMode::ExclusiveProcess => "exclusive_process",
    }))
}

fn memory(told: Reading<MemoryInfo>) -> GpuMemory {
    match told {
        Reading::Value(told) => GpuMemory {
            total_bytes: Reading::Value(told.total),
            used_bytes: Reading::Value(told.used),
            free_bytes: Reading::Value(told.free),
        },
        Reading::Unsupported => GpuMemory::UNSUPPORTED,
        Reading::Failed => GpuMemory::FAILED,
    }
}

/// Those that compute and those that draw; one that does both is in both lists.
fn processes(device: &Device<'_>, told: &mut Failures) -> Reading<Vec<GpuProcess>> {
    let compute = told.reading("compute processes", device.running_compute_processes());
    let graphics = told.reading("graphics processes", device.running_graphics_processes());
    let (compute, graphics) = match (compute, graphics) {
        (Reading::Value(compute), Reading::Value(graphics)) => (compute, graphics),
        (Reading::Value(one), Reading::Unsupported) => (one, Vec::new()),
        (Reading::Unsupported, Reading::Value(one)) => (Vec::new(), one),
        (Reading::Unsupported, Reading::Unsupported) => return Reading::Unsupported,
        // Half of them would be taken for all.
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
    told: &mut Failures,
) -> Vec<GpuInstance> {
    let Reading::Value(count) = told.reading("MIG devices", device.mig_device_count()) else {
        return Vec::new();
    };
    let most = u32::try_from(MAX_INSTANCES).unwrap_or(u32::MAX);
    let mut instances = Vec::new();
    for index in 0..count.min(most) {
        let part = match device.mig_device_by_index(index) {
            Ok(part) => part,
            // There may be as many, and fewer are.
            Err(NvmlError::NotFound) => continue,
            Err(error) => {
                told.add("MIG device", error);
                continue;
            }
        };
        let (gpu_instance, compute_instance) =
            numbers.map_or((None, None), |numbers| numbers.numbers(&part));
        instances.push(GpuInstance {
            gpu_instance,
            compute_instance,
            name: told.text("name of a MIG device", part.name()),
            uuid: told.text("UUID of a MIG device", part.uuid()),
            memory: memory(told.reading("memory of a MIG device", part.memory_info())),
        });
    }
    instances
}

fn health(device: &Device<'_>, told: &mut Failures) -> GpuHealth {
    let errors = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
    let uncorrected_errors = told.reading("uncorrected errors", errors);
    let retired = told.reading("retired pages", device.are_pages_pending_retired());
    let remapped = flag(field(device, "remapped rows", NVML_FI_DEV_REMAPPED_PENDING, told));
    let failed = field(device, "failed remapping", NVML_FI_DEV_REMAPPED_FAILURE, told);
    let wanted = field(device, "recovery action", NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, told);
    let recovery = match wanted {
        Reading::Value(number) => {
            let known = usize::try_from(number).ok().and_then(|at| GpuRecovery::ALL.get(at));
            known.map_or_else(
                || {
                    told.add("recovery action", format_args!("{number} is not known"));
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

/// A GPU has one of the two ways, and the other is unsupported.
fn any(one: Reading<bool>, other: Reading<bool>) -> Reading<bool> {
    match (one, other) {
        (Reading::Value(true), _) | (_, Reading::Value(true)) => Reading::Value(true),
        (Reading::Failed, _) | (_, Reading::Failed) => Reading::Failed,
        (Reading::Value(false), _) | (_, Reading::Value(false)) => Reading::Value(false),
        (Reading::Unsupported, Reading::Unsupported) => Reading::Unsupported,
    }
}

/// One of the numbers that have no call of their own.
fn field(device: &Device<'_>, what: &str, id: u32, told: &mut Failures) -> Reading<u64> {
    let asked = device.field_values_for(&[FieldId(id)]);
    let sample = match told.reading(what, asked) {
        Reading::Value(samples) => samples.into_iter().next(),
        Reading::Unsupported => return Reading::Unsupported,
        Reading::Failed => return Reading::Failed,
    };
    let value = sample.map_or(Err(NvmlError::NoData), |sample| sample?.value);
    match told.reading(what, value) {
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
