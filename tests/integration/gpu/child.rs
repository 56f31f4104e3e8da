//! Responses of `umawarden nvml-child` over its pipe.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use umawarden::model::{GpuMemory, GpuPicture, GpuRecovery, Reading};
use umawarden::parse::gpu::{MissingGpuPart, QueryResult, Unavailable, response};

use super::Library;
use crate::daemon::binary;

const GIB: u64 = 1 << 30;

fn run(library: &Path, requests: &str) -> Output {
    let mut command = Command::new(binary());
    command.arg("nvml-child").arg("--library").arg(library);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    // The child may end before it reads.
    let _ = child.stdin.take().unwrap().write_all(requests.as_bytes());
    child.wait_with_output().unwrap()
}

fn result_of(library: &Path) -> QueryResult {
    let output = run(library, "{\"version\":1,\"number\":7}\n");
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<&[u8]> = output.stdout.split_inclusive(|byte| *byte == b'\n').collect();
    let [line] = *lines else { panic!("not one line: {output:?}") };
    let response = response(line.trim_ascii_end()).unwrap();
    assert_eq!(response.number, 7);
    response.result
}

fn picture(library: &Library, script: &str) -> GpuPicture {
    library.set_script(script);
    match result_of(&library.path()) {
        QueryResult::Picture(picture) => picture,
        QueryResult::Unavailable(unavailable) => panic!("{unavailable:?}"),
    }
}

fn unavailable(library: &Path) -> Unavailable {
    match result_of(library) {
        QueryResult::Unavailable(unavailable) => unavailable,
        QueryResult::Picture(picture) => panic!("{picture:?}"),
    }
}

#[test]
fn gb10_reports_memory_of_its_processes_and_none_of_its_own() {
    let script = "machine gb10\nprocess 4242 107374182400\nprocess 4243 -1";
    let Some(library) = Library::new(script) else { return };
    for more in ["", "\nzeros", "\nnoise"] {
        let found = picture(&library, &format!("{script}{more}"));
        let [gpu] = &*found.devices else { panic!("{found:?}") };
        assert_eq!(gpu.name.as_deref(), Some("NVIDIA GB10"));
        assert_eq!(gpu.pci_address.as_deref(), Some("000f:01:00.0"));
        assert_eq!((gpu.memory, gpu.is_unified()), (GpuMemory::UNSUPPORTED, Some(true)));
        assert_eq!(gpu.memory_utilization, Reading::Unsupported, "the driver reports 0");
        assert_eq!(gpu.utilization, Reading::Value(0.41));
        assert_eq!(gpu.is_mig, Reading::Unsupported);
        assert_eq!(gpu.health.recovery, Reading::Unsupported);
        assert_eq!(
            (found.used_by(4242), found.used_by(4243)),
            (Reading::Value(100 * GIB), Reading::Unsupported)
        );
        assert_eq!((found.pids(), &*gpu.failures), (Some(vec![4242, 4243]), &[][..]));
        assert_eq!(found.driver_version.as_deref(), Some("580.95.05"));
    }
}

#[test]
fn several_discrete_gpus_report_their_own_memory() {
    let Some(library) = Library::new("") else { return };
    let found = picture(&library, "machine discrete");
    let [one, other] = &*found.devices else { panic!("{found:?}") };
    assert_eq!(one.memory.total_bytes, Reading::Value(140 * GIB));
    assert_eq!(one.memory.used_bytes, Reading::Value(3 * GIB));
    assert_eq!((other.index, other.memory.used_bytes), (1, Reading::Value(4 * GIB)));
    assert_eq!(other.utilization, Reading::Value(0.42));
    assert_eq!(one.memory_utilization, Reading::Value(0.07));
    assert_eq!(one.temperature_celsius, Reading::Value(52.0));
    assert_eq!(one.power_watts, Reading::Value(31.5));
    assert_eq!(one.compute_mode.as_deref(), Some("default"));
    assert_eq!(one.is_mig, Reading::Value(false));
    assert_eq!(one.health.uncorrected_errors, Reading::Value(4));
    assert_eq!(one.health.is_repair_pending, Reading::Value(true), "because of remapped rows");
    assert_eq!(one.health.has_repair_failed, Reading::Value(false));
    assert_eq!(one.health.recovery, Reading::Value(GpuRecovery::NodeReboot));
    assert_eq!(one.processes, Reading::Value(Vec::new()));
}

#[test]
fn mig_instances_are_reported_with_their_numbers() {
    let Some(library) = Library::new("") else { return };
    let found = picture(&library, "machine mig");
    let [gpu] = &*found.devices else { panic!("{found:?}") };
    assert_eq!(gpu.is_mig, Reading::Value(true));
    let numbers: Vec<_> =
        gpu.instances.iter().map(|part| (part.gpu_instance, part.compute_instance)).collect();
    assert_eq!(numbers, [(Some(7), Some(0)), (Some(8), Some(0))]);
    assert_eq!(gpu.instances[0].memory.total_bytes, Reading::Value(18 * GIB));
    assert_eq!(gpu.instances[1].name.as_deref(), Some("NVIDIA H200 MIG 1g.18gb"));
}

#[test]
fn a_lost_gpu_neither_hides_the_others_nor_counts_as_zero() {
    let Some(library) = Library::new("") else { return };
    let found = picture(&library, "machine discrete\nerror nvmlDeviceGetMemoryInfo_v2 15");
    for gpu in &found.devices {
        assert_eq!((gpu.memory, gpu.is_unified()), (GpuMemory::FAILED, None));
        assert_eq!(gpu.utilization, Reading::Value(0.41 + 0.01 * f64::from(gpu.index)));
        assert!(gpu.failures[0].starts_with("memory: device fell off the bus"), "{gpu:?}");
    }
    let found = picture(&library, "machine discrete\nerror nvmlDeviceGetHandleByIndex_v2 15");
    assert_eq!((found.devices.len(), found.pids()), (2, None));
    assert_eq!(found.devices[1].processes, Reading::Failed);
    let found = picture(
        &library,
        "machine gb10\nprocess 9 1\nerror nvmlDeviceGetGraphicsRunningProcesses_v3 999",
    );
    assert_eq!(found.pids(), None, "half of the processes are not all");
}

#[test]
fn impossible_values_of_the_driver_are_rejected() {
    let Some(library) = Library::new("") else { return };
    let found = picture(&library, "machine discrete\ngarbage");
    assert!(found.is_cut && found.devices.len() == 32);
    for gpu in &found.devices {
        // The library has only eight devices.
        let is_one = gpu.index < 8;
        assert_eq!(gpu.utilization, Reading::Failed);
        assert_eq!((gpu.temperature_celsius, &gpu.name), (Reading::Failed, &None));
        assert_eq!(gpu.memory.used_bytes, Reading::Failed);
        assert_eq!(gpu.memory.total_bytes.value().is_some(), is_one);
        assert_eq!(gpu.health.recovery, Reading::Failed);
        let processes = gpu.processes();
        assert!(processes.iter().all(|process| process.used_bytes == Reading::Failed));
        assert!(processes.iter().all(|process| process.pid > 0 && process.pid <= 1 << 22));
    }
}

#[test]
fn each_reason_for_an_unavailable_driver_is_reported() {
    let Some(library) = Library::new("") else { return };
    for (script, kind, part) in [
        ("error nvmlInit_v2 9", MissingGpuPart::Driver, "NVIDIA driver is not loaded"),
        ("error nvmlInit_v2 18", MissingGpuPart::Usable, "reboot, or load the new driver"),
        ("error nvmlInit_v2 4", MissingGpuPart::Usable, "/dev/nvidiactl"),
        ("error nvmlInit_v2 12345", MissingGpuPart::Usable, "unexpected enum variant value: 12345"),
        ("error nvmlDeviceGetCount_v2 1", MissingGpuPart::Usable, "reports no GPU count"),
    ] {
        library.set_script(script);
        let lack = unavailable(&library.path());
        assert_eq!(lack.kind, kind, "{lack:?}");
        assert!(lack.why.contains(part), "{lack:?}");
    }
    let folder = library.folder.path();
    let lack = unavailable(&folder.join("missing.so"));
    assert!(lack.kind == MissingGpuPart::Library && lack.why.contains("No such file"), "{lack:?}");
    let lack = unavailable(&folder.join("nvml.so.script"));
    assert!(
        lack.kind == MissingGpuPart::Library && lack.why.contains("nvml.so.script"),
        "{lack:?}"
    );
}

#[test]
fn a_library_without_a_required_call_is_unusable_and_without_others_incomplete() {
    let machine = "machine discrete";
    for (flag, part) in [
        ("-DWITHOUT_INIT", "function symbol failed to load"),
        ("-DWITHOUT_COUNT", "function symbol failed to load"),
    ] {
        let Some(library) = Library::without(machine, flag) else { return };
        let lack = unavailable(&library.path());
        assert!(lack.kind == MissingGpuPart::Usable && lack.why.contains(part), "{flag}: {lack:?}");
    }
    let flags = "-DWITHOUT_SHUTDOWN -DWITHOUT_PROCESSES";
    let Some(library) = Library::without(machine, flags) else { return };
    let found = picture(&library, machine);
    // Graphics processes are known: there are none.
    assert_eq!(found.devices[0].processes, Reading::Value(Vec::new()));
    assert_eq!(found.devices[0].memory.total_bytes, Reading::Value(140 * GIB));
}

#[test]
fn the_child_queries_the_driver_for_each_request_and_ends_with_its_input() {
    let Some(library) = Library::new("machine gb10") else { return };
    let output =
        run(&library.path(), "{\"version\":1,\"number\":1}\n{\"version\":1,\"number\":2}\n");
    let lines: Vec<_> = output.stdout.split(|byte| *byte == b'\n').collect();
    assert_eq!((lines.len(), library.calls("nvmlDeviceGetCount_v2")), (3, 2));
    assert_eq!((library.calls("nvmlInit_v2"), library.calls("nvmlShutdown")), (1, 0));
    assert_eq!(response(lines[1]).unwrap().number, 2);
    for wrong in ["{\"version\":2,\"number\":1}\n", "what\n", &"x".repeat(100_000)] {
        let output = run(&library.path(), wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

#[test]
fn nvml_child_is_hidden_from_the_help_but_has_its_own() {
    let help = |arguments: &[&str]| {
        let output = Command::new(binary()).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(!help(&["--help"]).contains("nvml"));
    assert!(help(&["nvml-child", "--help"]).contains("Exit codes"));
}
