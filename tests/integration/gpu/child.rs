//! What the process that asks the driver answers, by its pipe.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use umawarden::model::{GpuMemory, GpuPicture, GpuRecovery, Reading};
use umawarden::parse::gpu::{Lack, QueryResult, Unavailable, response};

use super::Library;
use crate::daemon::binary;

const GIB: u64 = 1 << 30;

fn run(library: &Path, questions: &str) -> Output {
    let mut command = Command::new(binary());
    command.arg("nvml-child").arg("--library").arg(library);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    // It may have ended without reading it.
    let _ended = child.stdin.take().unwrap().write_all(questions.as_bytes());
    child.wait_with_output().unwrap()
}

fn result_of(library: &Path) -> QueryResult {
    let output = run(library, "{\"version\":1,\"number\":7}\n");
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<&[u8]> = output.stdout.split_inclusive(|byte| *byte == b'\n').collect();
    let [line] = *lines else { panic!("one line: {output:?}") };
    let told = response(line.trim_ascii_end()).unwrap();
    assert_eq!(told.number, 7);
    told.result
}

fn picture(library: &Library, script: &str) -> GpuPicture {
    library.say(script);
    match result_of(&library.path()) {
        QueryResult::Picture(picture) => picture,
        QueryResult::Unavailable(nothing) => panic!("{nothing:?}"),
    }
}

fn nothing(library: &Path) -> Unavailable {
    match result_of(library) {
        QueryResult::Unavailable(nothing) => nothing,
        QueryResult::Picture(picture) => panic!("{picture:?}"),
    }
}

#[test]
fn gb10_has_no_memory_of_its_own_and_tells_what_its_processes_have() {
    let script = "machine gb10\nprocess 4242 107374182400\nprocess 4243 -1";
    let Some(library) = Library::new(script) else { return };
    for more in ["", "\nzeros", "\nnoise"] {
        let told = picture(&library, &format!("{script}{more}"));
        let [gpu] = &*told.devices else { panic!("{told:?}") };
        assert_eq!(gpu.name.as_deref(), Some("NVIDIA GB10"));
        assert_eq!(gpu.pci_address.as_deref(), Some("000f:01:00.0"));
        assert_eq!((gpu.memory, gpu.is_unified()), (GpuMemory::UNSUPPORTED, Some(true)));
        assert_eq!(gpu.memory_utilization, Reading::Unsupported, "it says 0");
        assert_eq!(gpu.utilization, Reading::Value(0.41));
        assert_eq!(gpu.is_mig, Reading::Unsupported);
        assert_eq!(gpu.health.recovery, Reading::Unsupported);
        assert_eq!(
            (told.used_by(4242), told.used_by(4243)),
            (Reading::Value(100 * GIB), Reading::Unsupported)
        );
        assert_eq!((told.pids(), &*gpu.failures), (Some(vec![4242, 4243]), &[][..]));
        assert_eq!(told.driver_version.as_deref(), Some("580.95.05"));
    }
}

#[test]
fn several_gpus_with_memory_of_their_own() {
    let Some(library) = Library::new("") else { return };
    let told = picture(&library, "machine discrete");
    let [one, other] = &*told.devices else { panic!("{told:?}") };
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
    assert_eq!(one.health.is_repair_pending, Reading::Value(true), "by remapped rows");
    assert_eq!(one.health.has_repair_failed, Reading::Value(false));
    assert_eq!(one.health.recovery, Reading::Value(GpuRecovery::NodeReboot));
    assert_eq!(one.processes, Reading::Value(Vec::new()));
}

#[test]
fn parts_of_a_gpu_are_told_with_their_numbers() {
    let Some(library) = Library::new("") else { return };
    let told = picture(&library, "machine mig");
    let [gpu] = &*told.devices else { panic!("{told:?}") };
    assert_eq!(gpu.is_mig, Reading::Value(true));
    let numbers: Vec<_> =
        gpu.instances.iter().map(|part| (part.gpu_instance, part.compute_instance)).collect();
    assert_eq!(numbers, [(Some(7), Some(0)), (Some(8), Some(0))]);
    assert_eq!(gpu.instances[0].memory.total_bytes, Reading::Value(18 * GIB));
    assert_eq!(gpu.instances[1].name.as_deref(), Some("NVIDIA H200 MIG 1g.18gb"));
}

#[test]
fn a_gpu_that_is_lost_does_not_hide_the_others_nor_stand_for_zero() {
    let Some(library) = Library::new("") else { return };
    let told = picture(&library, "machine discrete\nerror nvmlDeviceGetMemoryInfo_v2 15");
    for gpu in &told.devices {
        assert_eq!((gpu.memory, gpu.is_unified()), (GpuMemory::FAILED, None));
        assert_eq!(gpu.utilization, Reading::Value(0.41 + 0.01 * f64::from(gpu.index)));
        assert!(gpu.failures[0].starts_with("memory: device fell off the bus"), "{gpu:?}");
    }
    let told = picture(&library, "machine discrete\nerror nvmlDeviceGetHandleByIndex_v2 15");
    assert_eq!((told.devices.len(), told.pids()), (2, None));
    assert_eq!(told.devices[1].processes, Reading::Failed);
    let told = picture(
        &library,
        "machine gb10\nprocess 9 1\nerror nvmlDeviceGetGraphicsRunningProcesses_v3 999",
    );
    assert_eq!(told.pids(), None, "half of the processes are not all");
}

#[test]
fn what_cannot_be_is_never_taken_for_true() {
    let Some(library) = Library::new("") else { return };
    let told = picture(&library, "machine discrete\ngarbage");
    assert!(told.is_cut && told.devices.len() == 32);
    for gpu in &told.devices {
        // The library knows no more than eight.
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
fn each_way_in_which_there_is_nothing_to_ask_is_said() {
    let Some(library) = Library::new("") else { return };
    for (script, kind, part) in [
        ("error nvmlInit_v2 9", Lack::Driver, "NVIDIA driver is not loaded"),
        ("error nvmlInit_v2 18", Lack::Usable, "reboot, or load the new driver"),
        ("error nvmlInit_v2 4", Lack::Usable, "/dev/nvidiactl"),
        ("error nvmlInit_v2 12345", Lack::Usable, "unexpected enum variant value: 12345"),
        ("error nvmlDeviceGetCount_v2 1", Lack::Usable, "reports no GPU count"),
    ] {
        library.say(script);
        let told = nothing(&library.path());
        assert_eq!(told.kind, kind, "{told:?}");
        assert!(told.why.contains(part), "{told:?}");
    }
    let folder = library.folder.path();
    let told = nothing(&folder.join("missing.so"));
    assert!(told.kind == Lack::Library && told.why.contains("No such file"), "{told:?}");
    let told = nothing(&folder.join("nvml.so.script"));
    assert!(told.kind == Lack::Library && told.why.contains("nvml.so.script"), "{told:?}");
}

#[test]
fn a_library_without_a_call_says_so_or_does_not_have_what_it_tells() {
    let machine = "machine discrete";
    for (flag, part) in [
        ("-DWITHOUT_INIT", "function symbol failed to load"),
        ("-DWITHOUT_COUNT", "function symbol failed to load"),
    ] {
        let Some(library) = Library::without(machine, flag) else { return };
        let told = nothing(&library.path());
        assert!(told.kind == Lack::Usable && told.why.contains(part), "{flag}: {told:?}");
    }
    let flags = "-DWITHOUT_SHUTDOWN -DWITHOUT_PROCESSES";
    let Some(library) = Library::without(machine, flags) else { return };
    let told = picture(&library, machine);
    // Those that draw are known, which are none.
    assert_eq!(told.devices[0].processes, Reading::Value(Vec::new()));
    assert_eq!(told.devices[0].memory.total_bytes, Reading::Value(140 * GIB));
}

#[test]
fn it_asks_the_driver_anew_for_each_question_and_ends_with_them() {
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
fn it_is_not_shown_and_yet_explains_itself() {
    let help = |arguments: &[&str]| {
        let output = Command::new(binary()).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(!help(&["--help"]).contains("nvml"));
    assert!(help(&["nvml-child", "--help"]).contains("Exit codes"));
}
