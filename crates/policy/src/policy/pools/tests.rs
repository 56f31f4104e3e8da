//! Which pools machines have, and how much is in each.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::model::{
    EnginePools, GateReason, GateRequest, GpuDevice, GpuHealth, GpuMemory, MemoryPool, PoolKind,
    Reading, SeriesKey,
};
use crate::policy::gate::check_gate;

const GIB: u64 = 1 << 30;

/// Series with their values.
#[derive(Default)]
struct Series(BTreeMap<SeriesKey, Reading<f64>>);

impl SeriesView for Series {
    fn latest(&self, name: &str, labels: &[(&str, &str)]) -> Reading<f64> {
        self.0.get(&SeriesKey::new(name, labels)).copied().unwrap_or(Reading::Unsupported)
    }

    fn each(&self, name: &str, call: &mut dyn FnMut(&SeriesKey, Reading<f64>)) {
        self.0
            .iter()
            .filter(|(key, _)| *key.name == *name)
            .for_each(|(key, value)| call(key, *value));
    }
}

impl Series {
    fn set(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.0.insert(SeriesKey::new(name, labels), Reading::Value(value as f64));
    }

    /// A machine whose CPUs' memory is one node, of so many GiB in all and free.
    fn machine(total: u64, free: u64) -> Self {
        let mut series = Self::default();
        series.set("uma_memory_total_bytes", &[], total * GIB);
        series.set("uma_memory_free_bytes", &[], free * GIB);
        series.set("uma_memory_available_bytes", &[], free * GIB);
        series.set("uma_memory_unaccounted_bytes", &[], GIB);
        series.set("uma_memory_shmem_bytes", &[], 0);
        for state in ["clean", "dirty", "mapped"] {
            series.set("uma_memory_page_cache_bytes", &[("state", state)], 0);
        }
        series
    }

    /// Adds a NUMA node.
    fn node(mut self, node: u32, cpus: u64, [total, free, cache, taken]: [u64; 4]) -> Self {
        let node = &*node.to_string();
        self.set("uma_numa_cpus", &[("node", node)], cpus);
        let kinds = [
            ("total", total),
            ("free", free),
            ("clean_cache", cache),
            ("inactive_file", cache),
            ("unaccounted", taken),
        ];
        for (kind, gib) in kinds {
            self.set("uma_numa_memory_bytes", &[("kind", kind), ("node", node)], gib * GIB);
        }
        for kind in ["dirty", "writeback", "mapped", "shmem", "slab_reclaimable", "active_file"] {
            self.set("uma_numa_memory_bytes", &[("kind", kind), ("node", node)], 0);
        }
        for watermark in ["min", "low", "high"] {
            let labels = [("node", node), ("watermark", watermark), ("zone", "Normal")];
            self.set("uma_zone_watermark_bytes", &labels, 0);
        }
        self
    }

    fn on_bus(mut self, id: &str) -> Self {
        self.set("uma_pci_gpu_info", &[("device_id", id), ("pci_address", "0009:01:00.0")], 1);
        self
    }
}

/// A GPU that reports so many GiB of its own, all and free.
fn gpu(index: u32, name: &str, memory: Option<(u64, u64)>) -> GpuDevice {
    let unknown = Reading::Unsupported;
    GpuDevice {
        index,
        name: Some(name.into()),
        uuid: None,
        pci_address: None,
        compute_mode: None,
        memory: memory.map_or(GpuMemory::UNSUPPORTED, |(total, free)| GpuMemory {
            total_bytes: Reading::Value(total * GIB),
            used_bytes: Reading::Value((total - free) * GIB),
            free_bytes: Reading::Value(free * GIB),
        }),
        numa_node: Reading::Unsupported,
        utilization: unknown,
        memory_utilization: unknown,
        temperature_celsius: unknown,
        power_watts: unknown,
        processes: Reading::Value(Vec::new()),
        is_mig: Reading::Unsupported,
        instances: Vec::new(),
        health: GpuHealth::UNSUPPORTED,
        failures: Vec::new(),
    }
}

fn reported(devices: Vec<GpuDevice>) -> GpuReadings {
    GpuReadings {
        read_at: Duration::ZERO,
        driver: GpuDriver::Responsive,
        answered_at: Some(Duration::ZERO),
        askers: Vec::new(),
        picture: Some(Arc::new(GpuPicture { devices, ..GpuPicture::default() })),
    }
}

fn pools(series: &Series, report: &GpuReadings) -> MemoryPools {
    let mut pools = Pools::default();
    pools.take_gpus(report);
    pools.sample(series).clone()
}

fn names(memory: &MemoryPools) -> Vec<(&str, PoolKind)> {
    memory.pools.iter().map(|pool| (&*pool.pool, pool.kind)).collect()
}

fn total(pool: Option<&MemoryPool>) -> u64 {
    pool.unwrap().memory.total.value().unwrap() / GIB
}

#[test]
fn a_gb10_and_a_jetson_have_one_pool_with_or_without_the_driver() {
    let gb10 = Series::machine(121, 60).node(0, 20, [121, 60, 0, 1]).on_bus("2e12");
    let jetson = Series::machine(15, 9);
    let thor = Series::machine(122, 100).node(0, 14, [122, 100, 0, 1]);
    for (series, devices) in [
        (&gb10, vec![]),
        (&gb10, vec![gpu(0, "NVIDIA GB10", None)]),
        (&jetson, vec![]),
        (&jetson, vec![gpu(0, "Orin (nvgpu)", None)]),
        // NVML on Jetson is partial: a figure of a known chip is no memory of its own.
        (&jetson, vec![gpu(0, "Orin (nvgpu)", Some((15, 9)))]),
        (&thor, vec![gpu(0, "NVIDIA Thor", None)]),
    ] {
        let memory = pools(series, &reported(devices.clone()));
        assert_eq!(memory.engines, EnginePools::Host, "{devices:?}");
        assert_eq!(names(&memory), [("host", PoolKind::Host)], "{devices:?}");
    }
    assert!(!needs_driver(&gb10) && !needs_driver(&jetson));
}

#[test]
fn numa_nodes_without_cpus_are_the_memory_of_a_superchips_gpus() {
    // 480 GiB of LPDDR with 380 GiB of cache, and 96 GiB of HBM that is full.
    let gh200 = Series::machine(576, 60)
        .node(0, 72, [480, 60, 380, 5])
        .node(1, 0, [96, 0, 0, 95])
        .on_bus("2342");
    for report in [unqueried(), reported(vec![gpu(0, "NVIDIA GH200 480GB", Some((96, 1)))])] {
        let memory = pools(&gh200, &report);
        assert_eq!(memory.engines, EnginePools::Gpus);
        assert_eq!(names(&memory), [("host", PoolKind::Host), ("gpu0", PoolKind::NumaNode)]);
        assert_eq!(total(memory.pool("host")), 480);
        assert_eq!(total(memory.pool("gpu0")), 96);
        assert_eq!(memory.host().unwrap().unaccounted, Reading::Value(0), "the rest is the GPU's");
        let response = check_gate(&GateRequest::of(90 * GIB), &memory);
        assert!(!response.is_open);
        assert_eq!((&*response.pool, response.available_bytes), ("gpu0", Some(0)));
        assert!(check_gate(&GateRequest::of(300 * GIB), &memory).is_hopeless, "96 GiB in all");
    }
}

#[test]
fn a_gb200_has_two_cpu_nodes_and_a_pool_for_each_gpu() {
    let mut series =
        Series::machine(1704, 1500).node(0, 72, [480, 400, 0, 1]).node(1, 72, [480, 400, 0, 1]);
    let mut devices = Vec::new();
    for (index, node) in [(0, 2), (1, 10), (2, 18), (3, 26)] {
        series = series.node(node, 0, [186, 100 + u64::from(index), 0, 1]);
        devices.push(gpu(index, "NVIDIA GB200", Some((186, 100))));
    }
    let memory = pools(&series, &reported(devices.clone()));
    let own: Vec<(&str, &[u32])> =
        memory.pools.iter().map(|pool| (&*pool.pool, &*pool.numa_nodes)).collect();
    let expected: [(&str, &[u32]); 5] =
        [("host", &[0, 1]), ("gpu0", &[2]), ("gpu1", &[10]), ("gpu2", &[18]), ("gpu3", &[26])];
    assert_eq!(own, expected);
    assert_eq!(total(memory.pool("host")), 960);
    // The driver's word counts before the order.
    for (device, node) in devices.iter_mut().zip([26, 18, 10, 2]) {
        device.numa_node = Reading::Value(node);
    }
    let memory = pools(&series, &reported(devices.clone()));
    assert_eq!(memory.pool("gpu0").unwrap().numa_nodes[..], [26]);
    // Nobody knows which GPU the engine will use, so each must have it.
    assert!(!check_gate(&GateRequest::of(102 * GIB), &memory).is_open);
    let named = |names: &[&str], gib| GateRequest {
        pools: names.iter().map(|name| Arc::from(*name)).collect(),
        ..GateRequest::of(gib * GIB)
    };
    let open = |request: &GateRequest| {
        let response = check_gate(request, &memory);
        response.reasons.iter().all(|reason| *reason == GateReason::TooShort)
    };
    assert!(open(&named(&["gpu0"], 102)) && !open(&named(&["gpu0"], 104)));
    assert!(open(&named(&["gpu0", "gpu1", "gpu2", "gpu3"], 400)), "an even share each");
    assert!(check_gate(&named(&["gpu4"], 1), &memory).is_hopeless);
    devices.iter_mut().for_each(|device| device.numa_node = Reading::Value(2));
    let memory = pools(&series, &reported(devices));
    assert!(matches!(memory.engines, EnginePools::Unknown { .. }), "{:?}", memory.engines);
}

#[test]
fn memory_that_only_the_driver_knows_is_its_pool() {
    let cdmm = Series::machine(480, 400).node(0, 72, [480, 400, 0, 1]).on_bus("2342");
    let workstation = Series::machine(128, 100).node(0, 32, [128, 100, 0, 1]).on_bus("2b85");
    for (series, name) in [
        (&cdmm, "NVIDIA GH200 480GB"),
        (&workstation, "NVIDIA GeForce RTX 5090"),
        (&workstation, "NVIDIA H100 80GB HBM3"),
        (&workstation, "NVIDIA A100-SXM4-80GB"),
        (&workstation, "NVIDIA B200"),
        (&workstation, "NVIDIA L4"),
        (&workstation, "Tesla T4"),
        (&workstation, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
    ] {
        assert!(needs_driver(series));
        let memory = pools(series, &reported(vec![gpu(0, name, Some((80, 30)))]));
        assert_eq!(memory.engines, EnginePools::Gpus, "{name}");
        assert_eq!(names(&memory), [("host", PoolKind::Host), ("gpu0", PoolKind::Driver)]);
        let response = check_gate(&GateRequest::of(40 * GIB), &memory);
        assert_eq!((&*response.pool, response.available_bytes), ("gpu0", Some(30 * GIB)), "{name}");
        // What a host needs is looked for in its own memory.
        let request = GateRequest { host_need_bytes: 500 * GIB, ..GateRequest::of(GIB) };
        assert!(check_gate(&request, &memory).is_hopeless, "{name}");
    }
    // Without an answer nothing is guessed: MemAvailable is no memory of the GPU.
    for report in [unqueried(), silent()] {
        let memory = pools(&cdmm, &report);
        assert!(matches!(memory.engines, EnginePools::Unknown { .. }));
        let response = check_gate(&GateRequest::of(GIB), &memory);
        assert!(!response.is_open && !response.is_hopeless);
    }
}

fn unqueried() -> GpuReadings {
    let driver = GpuDriver::Unknown { why: "the driver has not been queried".into() };
    GpuReadings { driver, ..silent() }
}

fn silent() -> GpuReadings {
    GpuReadings {
        read_at: Duration::ZERO,
        driver: GpuDriver::Silent { since: Duration::ZERO, process_state: Some('D') },
        answered_at: None,
        askers: Vec::new(),
        picture: None,
    }
}

#[test]
fn a_silent_driver_makes_its_amounts_unknown_and_not_its_kind() {
    let series = Series::machine(128, 100);
    let mut pools = Pools::default();
    pools.take_gpus(&reported(vec![gpu(0, "NVIDIA L4", Some((22, 20)))]));
    pools.take_gpus(&silent());
    let memory = pools.sample(&series).clone();
    assert_eq!(memory.engines, EnginePools::Gpus);
    assert_eq!(memory.pool("gpu0").unwrap().memory.free, Reading::Failed);
    assert!(!check_gate(&GateRequest::of(GIB), &memory).is_open);
}

#[test]
fn kinds_that_are_not_known_are_said_to_be_unknown() {
    let series = Series::machine(54, 40).on_bus("2e03");
    let mut mig = gpu(0, "NVIDIA H100 80GB HBM3", Some((80, 79)));
    mig.is_mig = Reading::Value(true);
    let mut failing = gpu(0, "NVIDIA H100 80GB HBM3", None);
    failing.memory = GpuMemory::FAILED;
    for (devices, why) in [
        (vec![gpu(0, "NVIDIA RTX Spark N1X", Some((7, 7)))], "N1X"),
        (vec![gpu(0, "NVIDIA N1X", None)], "N1X"),
        (vec![gpu(0, "NVIDIA Quantum 9000", Some((80, 70)))], "no kind that is known"),
        (vec![mig], "MIG"),
        (vec![failing], "fails to report"),
        (vec![gpu(0, "NVIDIA GB10", None), gpu(1, "NVIDIA L4", Some((22, 22)))], "another one"),
        (vec![], "[10de:2e03]"),
    ] {
        let memory = pools(&series, &reported(devices));
        let EnginePools::Unknown { why: said } = &memory.engines else {
            panic!("{why}: {:?}", memory.engines)
        };
        assert!(said.contains(why), "{said}");
        let response = check_gate(&GateRequest::of(GIB), &memory);
        let text = response.reasons[0].to_string();
        assert!(text.contains("--pool (host"), "{text}");
        // Who knows better names the pool.
        let request = GateRequest { pools: vec!["host".into()], ..GateRequest::of(50 * GIB) };
        let response = check_gate(&request, &memory);
        assert!(response.reasons[0].to_string().contains("40.0 GiB available"), "{response:?}");
    }
}

#[test]
fn a_memory_expander_on_a_machine_with_cards_belongs_to_the_host() {
    let series = Series::machine(640, 600)
        .node(0, 64, [512, 480, 0, 1])
        .node(1, 0, [128, 120, 0, 0])
        .on_bus("2330");
    let memory = pools(&series, &reported(vec![gpu(0, "NVIDIA H100 80GB HBM3", Some((80, 79)))]));
    assert_eq!(names(&memory), [("host", PoolKind::Host), ("gpu0", PoolKind::Driver)]);
    assert_eq!(total(memory.pool("host")), 640);
}
