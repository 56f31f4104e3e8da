//! Which pools there are, from NUMA nodes, the PCI bus and the driver's report.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use super::{GpuReport, SeriesView};
use crate::model::{EnginePools, GpuDevice, GpuDriver, Reading, SeriesKey};

/// How a GPU gets at memory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Chip {
    /// It shares the CPUs' memory.
    Unified,
    /// It has memory of its own, which the kernel may manage as a NUMA node.
    Coherent,
    /// It has memory of its own, which the driver manages.
    Discrete,
    /// It is not known, for this reason.
    Unknown(Arc<str>),
}

/// GPUs that share the CPUs' memory, by a part of their names in NVML.
const UNIFIED_NAMES: [&str; 5] = ["GB10", "Orin", "Thor", "Xavier", "Tegra"];

/// Chips that share the CPUs' memory and yet report a little of their own. An N1X with 54 GiB
/// reports 8,128 MiB (reports of September 2026). How engines are to be sized there is not known.
const DOUBTFUL_NAMES: [&str; 2] = ["N1X", "RTX Spark"];

/// Lines of cards with memory of their own.
const CARD_LINES: [&str; 8] = ["GeForce", "RTX", "GTX", "Quadro", "Tesla", "TITAN", "GRID", "CMP"];

/// Letters of data-center GPUs' names, such as `H100`, `A40`, `L4`, `B200`, `V100`, `T4`, `P100`.
const CARD_LETTERS: &[u8] = b"ABHKLMPTV";

/// PCI device numbers: GB10 (lspci on a DGX Spark: `000f:01:00.0 … [10de:2e12]`).
const UNIFIED_IDS: [&str; 1] = ["2e12"];

/// GH200 with 96 and 144 GB, GB200, GB300 (pci.ids; Kata's and Meta's documents).
const COHERENT_IDS: [&str; 5] = ["2342", "2348", "2941", "31c2", "31c3"];

#[derive(Clone, Copy, Debug)]
struct NumaNode {
    number: u32,
    has_cpus: bool,
}

/// The pools of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PoolLayout {
    pub(super) engines: EnginePools,
    /// The NUMA nodes of the CPUs' memory; empty: all there is.
    pub(super) host_nodes: Vec<u32>,
    /// GPUs whose memory is a NUMA node: index and node.
    pub(super) numa: Vec<(u32, u32)>,
    /// Indices of the GPUs whose memory the driver reports.
    pub(super) driver: Vec<u32>,
}

/// Whether the layout depends on the driver's report: a GPU on the PCI bus is not known to share
/// the CPUs' memory.
pub fn needs_driver(view: &impl SeriesView) -> bool {
    pci_ids(view).iter().any(|id| !UNIFIED_IDS.contains(&&**id))
}

/// A number that changes with the NUMA nodes and GPUs of the series. Allocates nothing.
pub(super) fn fingerprint(view: &impl SeriesView) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut number = 0;
    view.each("uma_numa_cpus", &mut |key, cpus| {
        (number, node_label(key), cpus == Reading::Value(0.0)).hash(&mut hasher);
        number += 1;
    });
    view.each("uma_numa_memory_bytes", &mut |key, reading| {
        if key.labels.iter().any(|(name, value)| &**name == "kind" && &**value == "total") {
            let has_memory = reading.value().is_some_and(|total| total > 0.0);
            (node_label(key), has_memory).hash(&mut hasher);
        }
    });
    view.each("uma_pci_gpu_info", &mut |key, reading| {
        (key, matches!(reading, Reading::Value(_))).hash(&mut hasher);
    });
    hasher.finish()
}

pub(super) fn layout(view: &impl SeriesView, gpus: &GpuReport) -> PoolLayout {
    let nodes = nodes(view);
    let devices = gpus.picture.as_deref().map_or(&[][..], |picture| &picture.devices);
    let on_bus = pci_ids(view);
    let chips: Vec<(u32, Chip)> = if devices.is_empty() {
        let chips = on_bus.iter().map(|id| chip_of_id(id, &gpus.driver));
        (0..).zip(chips).collect()
    } else {
        devices.iter().map(|device| (device.index, chip_of(device))).collect()
    };
    let memory_nodes: Vec<u32> =
        nodes.iter().filter(|node| !node.has_cpus).map(|node| node.number).collect();
    let mut layout = PoolLayout { driver: reported(devices), ..PoolLayout::default() };
    let is = |chip: &Chip| chips.iter().any(|(_, own)| own == chip);
    let unknown = chips.iter().find_map(|(gpu, chip)| match chip {
        Chip::Unknown(why) => Some(format!("gpu{gpu}: {why}")),
        _ => None,
    });
    let is_own = is(&Chip::Coherent) || is(&Chip::Discrete);
    if let Some(why) = unknown {
        layout.engines = EnginePools::Unknown { why: why.into() };
    } else if is_own && is(&Chip::Unified) {
        let why = "one GPU shares the CPUs' memory and another one has its own";
        layout.engines = EnginePools::Unknown { why: why.into() };
    } else if is_own {
        layout.engines = EnginePools::Gpus;
    }
    if is(&Chip::Coherent) && !memory_nodes.is_empty() {
        let coherent = chips.iter().filter(|(_, chip)| *chip == Chip::Coherent);
        let coherent: Vec<u32> = coherent.map(|(gpu, _)| *gpu).collect();
        match matched(&coherent, devices, &memory_nodes) {
            Ok(numa) => layout.numa = numa,
            Err(why) => layout.engines = EnginePools::Unknown { why: why.into() },
        }
        let of_gpus = |gpu: &u32| layout.numa.iter().any(|(own, _)| own == gpu);
        layout.driver.retain(|gpu| !of_gpus(gpu));
        layout.host_nodes = nodes.iter().map(|node| node.number).collect();
        layout.host_nodes.retain(|node| layout.numa.iter().all(|(_, own)| own != node));
    }
    let has_pool = !layout.numa.is_empty() || !layout.driver.is_empty();
    if layout.engines == EnginePools::Gpus && !has_pool {
        layout.engines = EnginePools::Unknown { why: unreported(&gpus.driver).into() };
    }
    layout
}

/// The GPUs whose own memory the driver reports.
fn reported(devices: &[GpuDevice]) -> Vec<u32> {
    let own = devices.iter().filter(|device| device.is_unified() != Some(true));
    let own = own.filter(|device| chip_of(device) != Chip::Unified);
    own.map(|device| device.index).collect()
}

/// Which node is which GPU's memory: as the driver says, else both in their order.
fn matched(gpus: &[u32], devices: &[GpuDevice], nodes: &[u32]) -> Result<Vec<(u32, u32)>, String> {
    let node_of = |gpu: u32| {
        let device = devices.iter().find(|device| device.index == gpu)?;
        device.numa_node.value().filter(|node| nodes.contains(node))
    };
    let said: Vec<(u32, u32)> =
        gpus.iter().filter_map(|gpu| Some((*gpu, node_of(*gpu)?))).collect();
    let is_twice = |(gpu, node): &(u32, u32)| said.iter().any(|(g, n)| n == node && g != gpu);
    if said.iter().any(is_twice) {
        return Err("the driver names one NUMA node for two GPUs".to_owned());
    }
    if said.len() == gpus.len() {
        return Ok(said);
    }
    if !said.is_empty() || gpus.len() != nodes.len() {
        return Err(format!(
            "{} NUMA nodes have memory and no CPUs, and {} GPUs may own them",
            nodes.len(),
            gpus.len()
        ));
    }
    Ok(gpus.iter().copied().zip(nodes.iter().copied()).collect())
}

/// What a GPU is by the driver's report.
fn chip_of(device: &GpuDevice) -> Chip {
    let name = device.name.as_deref().unwrap_or_default();
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    if has(&DOUBTFUL_NAMES) {
        let why = format!(
            "{name} shares the CPUs' memory, and what it reports as its own is not what engines get"
        );
        return Chip::Unknown(why.into());
    }
    if device.is_mig == Reading::Value(true) {
        return Chip::Unknown("it is partitioned (MIG), and an engine gets one part".into());
    }
    if device.is_coherent() || device.numa_node.value().is_some() {
        return Chip::Coherent;
    }
    if has(&UNIFIED_NAMES) {
        return Chip::Unified;
    }
    match device.is_unified() {
        Some(true) => Chip::Unified,
        None => Chip::Unknown("the driver fails to report its memory".into()),
        Some(false) if is_card(name) => Chip::Discrete,
        Some(false) => Chip::Unknown(format!("{name} is no kind that is known here").into()),
    }
}

/// Whether cards of that name have memory of their own.
fn is_card(name: &str) -> bool {
    let mut words = name.split([' ', '-']).filter(|word| *word != "NVIDIA");
    let is_line = CARD_LINES.iter().any(|line| name.contains(line));
    is_line
        || words.any(|word| match word.as_bytes() {
            [letter, number @ ..] => {
                let digits = number.iter().take_while(|byte| byte.is_ascii_digit()).count();
                CARD_LETTERS.contains(letter) && digits > 0
            }
            [] => false,
        })
}

/// What a GPU is by its PCI device number, while the driver reports nothing.
fn chip_of_id(id: &str, driver: &GpuDriver) -> Chip {
    if UNIFIED_IDS.contains(&id) {
        Chip::Unified
    } else if COHERENT_IDS.contains(&id) {
        Chip::Coherent
    } else {
        Chip::Unknown(format!("[10de:{id}]: {}", unreported(driver)).into())
    }
}

/// Why the driver reports no GPU.
fn unreported(driver: &GpuDriver) -> String {
    match driver {
        GpuDriver::Absent { why } | GpuDriver::Unknown { why } => {
            format!("the NVIDIA driver does not report its memory ({why})")
        }
        GpuDriver::Silent { .. } => "the NVIDIA driver does not respond".to_owned(),
        GpuDriver::Responsive => "the NVIDIA driver does not report its memory".to_owned(),
    }
}

fn pci_ids(view: &impl SeriesView) -> Vec<Arc<str>> {
    let mut ids = Vec::new();
    view.each("uma_pci_gpu_info", &mut |key, reading| {
        let id = key.labels.iter().find(|(name, _)| &**name == "device_id");
        if let (Some((_, id)), Reading::Value(_)) = (id, reading) {
            ids.push(Arc::from(&**id));
        }
    });
    ids
}

/// The NUMA nodes with memory, in order. A node whose CPUs are unknown counts as one with CPUs.
fn nodes(view: &impl SeriesView) -> Vec<NumaNode> {
    let mut nodes = Vec::new();
    view.each("uma_numa_cpus", &mut |key, cpus| {
        let Some(number) = node_label(key) else { return };
        let labels = [("kind", "total"), ("node", &*number.to_string())];
        let total = view.latest("uma_numa_memory_bytes", &labels);
        if total.value().is_some_and(|total| total > 0.0) {
            nodes.push(NumaNode { number, has_cpus: cpus != Reading::Value(0.0) });
        }
    });
    nodes.sort_unstable_by_key(|node| node.number);
    nodes
}

/// The number in the `node` label.
pub(super) fn node_label(key: &SeriesKey) -> Option<u32> {
    let (_, node) = key.labels.iter().find(|(name, _)| &**name == "node")?;
    node.parse().ok()
}
