use std::time::Duration;

use super::*;
use crate::model::{
    EngineKind, EngineProcess, EngineReadings, EngineSeen, GpuHealth, GpuInstance, GpuProcess,
    Mode, Observation, ProcessId,
};
use crate::policy::tests::World;

const GIB: u64 = 1 << 30;

fn process(pid: u32, used_bytes: Reading<u64>) -> GpuProcess {
    GpuProcess {
        pid,
        used_bytes,
        is_compute: true,
        is_graphics: false,
        gpu_instance: None,
        compute_instance: None,
    }
}

/// One that shares the machine's memory.
fn unified(index: u32, processes: Vec<GpuProcess>) -> GpuDevice {
    GpuDevice {
        index,
        name: Some("NVIDIA GB10".into()),
        uuid: Some("GPU-1".into()),
        pci_address: Some("000f:01:00.0".into()),
        compute_mode: None,
        memory: GpuMemory::UNSUPPORTED,
        numa_node: Reading::Unsupported,
        utilization: Reading::Value(0.5),
        memory_utilization: Reading::Unsupported,
        temperature_celsius: Reading::Value(51.0),
        power_watts: Reading::Failed,
        processes: Reading::Value(processes),
        is_mig: Reading::Unsupported,
        instances: Vec::new(),
        health: GpuHealth {
            recovery: Reading::Value(GpuRecovery::NodeReboot),
            ..GpuHealth::UNSUPPORTED
        },
        failures: Vec::new(),
    }
}

fn sample(driver: GpuDriver, devices: Option<Vec<GpuDevice>>) -> Observation {
    let picture = devices.map(|devices| {
        let driver_version = Some("580.95.05".into());
        Arc::new(GpuPicture { driver_version, devices, ..GpuPicture::default() })
    });
    Observation::Gpu(Box::new(GpuReadings {
        read_at: Duration::from_secs(1000),
        driver,
        answered_at: Some(Duration::from_secs(1000)),
        askers: vec![7],
        picture,
    }))
}

fn engine(name: &str, pids: &[u32]) -> EngineSeen {
    let processes = pids.iter().map(|pid| {
        let id = ProcessId { pid: *pid, start_ticks: 1 };
        EngineProcess::holding(id, "VLLM::EngineCor", GIB)
    });
    let processes: Vec<_> = processes.collect();
    let server = processes[0].id;
    EngineSeen::new(Arc::from(name), EngineKind::Vllm, server, processes, "its name".into())
}

fn world(engines: Vec<EngineSeen>) -> World {
    let mut world = World::new("groups: []", Mode::Observe);
    let read_at = world.at.uptime;
    let seen = EngineReadings { read_at, engines, ..EngineReadings::default() };
    world.seen.push(Observation::Engines(Box::new(seen)));
    world.tick();
    world
}

#[test]
fn process_memory_belongs_to_engines_and_absent_gpu_values_are_no_series() {
    let mut world = world(vec![engine("vllm", &[100, 101])]);
    let processes = vec![
        process(100, Reading::Value(GIB)),
        process(101, Reading::Value(60 * GIB)),
        process(900, Reading::Value(3 * GIB)),
    ];
    world.seen.push(sample(GpuDriver::Responsive, Some(vec![unified(0, processes)])));
    world.tick();
    let gib = GIB as f64;
    let of_engine = r#"uma_gpu_engine_memory_bytes{engine="vllm",gpu="0"}"#;
    assert_eq!(world.value(of_engine), Some(61.0 * gib));
    assert_eq!(world.value(r#"uma_gpu_other_memory_bytes{gpu="0"}"#), Some(3.0 * gib));
    assert_eq!(world.value(r#"uma_gpu_processes{gpu="0"}"#), Some(3.0));
    assert_eq!(world.value(r#"uma_gpu_utilization_ratio{gpu="0"}"#), Some(0.5));
    let series: Vec<String> =
        world.policy.status(world.at).series.iter().map(ToString::to_string).collect();
    let is_present = |name: &str| series.iter().any(|key| key.starts_with(name));
    assert!(!is_present("uma_gpu_memory_total_bytes") && !is_present("uma_gpu_memory_util"));
    assert!(is_present("uma_gpu_power_watts"), "it failed, and is there: {series:?}");
    assert_eq!(world.value(r#"uma_gpu_power_watts{gpu="0"}"#), None);
    let wanted = r#"uma_gpu_recovery_action{action="node_reboot",gpu="0"}"#;
    assert_eq!(world.value(wanted), Some(1.0));
    let info = series.iter().find(|key| key.starts_with("uma_gpu_info")).unwrap();
    assert!(info.contains(r#"driver_version="580.95.05""#), "{info}");
    assert!(info.contains(r#"compute_mode="unknown""#), "{info}");
}

#[test]
fn memory_of_processes_that_outlived_their_server_is_a_part_of_that_of_the_engine() {
    let mut world = world(vec![engine("vllm", &[100, 101])]);
    let mut left = engine("vllm", &[100, 101]);
    left.processes.remove(0);
    let read_at = world.at.uptime;
    let seen = EngineReadings { read_at, engines: vec![left], ..EngineReadings::default() };
    world.seen.push(Observation::Engines(Box::new(seen)));
    world.tick();
    let processes =
        vec![process(101, Reading::Value(60 * GIB)), process(900, Reading::Value(3 * GIB))];
    world.seen.push(sample(GpuDriver::Responsive, Some(vec![unified(0, processes)])));
    world.tick();
    let gib = GIB as f64;
    let of_engine = r#"uma_gpu_engine_memory_bytes{engine="vllm",gpu="0"}"#;
    assert_eq!(world.value(of_engine), Some(60.0 * gib));
    assert_eq!(world.value(r#"uma_gpu_other_memory_bytes{gpu="0"}"#), Some(3.0 * gib));
    assert_eq!(world.value(r#"uma_gpu_orphan_memory_bytes{gpu="0"}"#), Some(60.0 * gib));
}

#[test]
fn a_sum_with_an_unknown_part_is_unknown() {
    let mut world = world(vec![engine("vllm", &[100, 101])]);
    let processes = vec![
        process(100, Reading::Value(GIB)),
        process(101, Reading::Failed),
        process(900, Reading::Unsupported),
    ];
    world.seen.push(sample(GpuDriver::Responsive, Some(vec![unified(0, processes)])));
    world.tick();
    assert_eq!(world.value(r#"uma_gpu_engine_memory_bytes{engine="vllm",gpu="0"}"#), None);
    assert_eq!(world.value(r#"uma_gpu_other_memory_bytes{gpu="0"}"#), None);
    assert_eq!(world.value(r#"uma_gpu_processes{gpu="0"}"#), Some(3.0));
}

#[test]
fn gpu_series_are_unknown_while_the_driver_is_silent_and_end_with_the_gpu() {
    let mut world = world(Vec::new());
    let utilization = r#"uma_gpu_utilization_ratio{gpu="1"}"#;
    let both = || Some(vec![unified(0, Vec::new()), unified(1, Vec::new())]);
    world.seen.push(sample(GpuDriver::Responsive, both()));
    world.tick();
    assert_eq!(world.value(utilization), Some(0.5));
    world.seen.push(sample(GpuDriver::Responsive, None));
    world.tick();
    assert_eq!(world.value(utilization), Some(0.5), "asked, and not answered yet");
    let silent = GpuDriver::Silent { since: Duration::from_secs(1), process_state: Some('D') };
    world.seen.push(sample(silent, None));
    world.tick();
    assert_eq!(world.value(utilization), None, "unknown");
    world.seen.push(sample(GpuDriver::Responsive, both()));
    world.tick();
    assert_eq!(world.value(utilization), Some(0.5));
    world.seen.push(sample(GpuDriver::Responsive, Some(vec![unified(0, Vec::new())])));
    world.tick();
    assert_eq!(world.value(utilization), None, "it is gone");
    assert_eq!(world.value(r#"uma_gpu_utilization_ratio{gpu="0"}"#), Some(0.5));
    world.seen.push(sample(GpuDriver::Absent { why: "no driver".into() }, None));
    world.tick();
    assert_eq!(world.value(r#"uma_gpu_utilization_ratio{gpu="0"}"#), None);
}

#[test]
fn parts_of_a_gpu_have_their_own_memory() {
    let mut world = world(Vec::new());
    let part = |gpu_instance: Option<u32>, gib: u64| GpuInstance {
        gpu_instance,
        compute_instance: Some(0),
        name: None,
        uuid: None,
        memory: GpuMemory {
            total_bytes: Reading::Value(gib * GIB),
            used_bytes: Reading::Value(GIB),
            free_bytes: Reading::Failed,
        },
    };
    let parted = GpuDevice {
        is_mig: Reading::Value(true),
        instances: vec![part(Some(1), 10), part(Some(2), 20), part(None, 5)],
        ..unified(0, Vec::new())
    };
    world.seen.push(sample(GpuDriver::Responsive, Some(vec![parted])));
    world.tick();
    let total = |instance: u32| {
        let labels = format!(r#"compute_instance="0",gpu="0",gpu_instance="{instance}""#);
        format!("uma_gpu_instance_memory_total_bytes{{{labels}}}")
    };
    assert_eq!(world.value(&total(1)), Some(10.0 * GIB as f64));
    assert_eq!(world.value(&total(2)), Some(20.0 * GIB as f64));
    assert_eq!(world.value(r#"uma_gpu_mig_enabled{gpu="0"}"#), Some(1.0));
}

/// One with 80 GiB of its own, of which 30 are taken.
fn discrete(name: &str, processes: Reading<Vec<GpuProcess>>) -> GpuDevice {
    let [total_bytes, used_bytes, free_bytes] = [80, 30, 50].map(|gib| Reading::Value(gib * GIB));
    let memory = GpuMemory { total_bytes, used_bytes, free_bytes };
    GpuDevice { memory, processes, name: Some(name.into()), ..unified(0, Vec::new()) }
}

#[test]
fn unowned_gpu_memory_is_used_memory_less_that_of_processes() {
    let of = |gib: u64| process(10, Reading::Value(gib * GIB));
    let h100 = |processes| discrete("NVIDIA H100", Reading::Value(processes)).unowned_bytes();
    assert_eq!(h100(Vec::new()), Reading::Value(30 * GIB));
    assert_eq!(h100(vec![of(20), of(8)]), Reading::Value(2 * GIB));
    assert_eq!(h100(vec![of(20), of(80)]), Reading::Value(0), "what cannot be is no more than all");
    // Within containers the driver does not say who has how much.
    assert_eq!(h100(vec![of(20), process(11, Reading::Unsupported)]), Reading::Unsupported);
    assert_eq!(discrete("NVIDIA H100", Reading::Failed).unowned_bytes(), Reading::Failed);
    let none = || Reading::Value(Vec::new());
    for chip in ["NVIDIA GH200 480GB", "NVIDIA GB200"] {
        assert_eq!(discrete(chip, none()).unowned_bytes(), Reading::Unsupported, "{chip}");
    }
    let parted = GpuDevice { is_mig: Reading::Value(true), ..discrete("NVIDIA H100", none()) };
    assert_eq!(parted.unowned_bytes(), Reading::Unsupported);
    assert_eq!(unified(0, Vec::new()).unowned_bytes(), Reading::Unsupported);
}
