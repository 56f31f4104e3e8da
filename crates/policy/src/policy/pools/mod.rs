//! Pools: which memory the node has, where engines put theirs, and how much is there.
//!
//! On GB10, Jetson and a machine without a GPU there is one pool. On GH200 and GB200 in NUMA mode
//! each GPU's memory is a NUMA node without CPUs; adding it to the CPUs' memory hides which of the
//! two is full. In CDMM mode, and on cards, only the driver reports it.

mod figures;
mod layout;
pub(super) mod memory;
mod publish;
#[cfg(test)]
mod tests;
mod view;

use std::sync::Arc;
use std::time::Duration;

use crate::model::{GpuDriver, GpuPicture, GpuReadings, MemoryPools};
use layout::PoolLayout;
pub use layout::needs_driver;
pub(super) use publish::PoolSeries;
pub(super) use view::DeclaredView;
pub use view::SeriesView;

/// What the NVIDIA driver has reported of GPUs, for the layout of memory.
#[derive(Clone, Debug)]
struct GpuReport {
    driver: GpuDriver,
    picture: Option<Arc<GpuPicture>>,
    answered_at: Option<Duration>,
}

impl GpuReport {
    /// Whether the amounts in the last response are current.
    fn is_current(&self) -> bool {
        self.driver == GpuDriver::Responsive
    }
}

/// The pools of a node. Sampling them allocates nothing while the layout stays.
#[derive(Debug)]
pub struct Pools {
    gpus: GpuReport,
    layout: PoolLayout,
    /// What the layout follows from; `None`: it must be determined.
    layout_of: Option<u64>,
    memory: MemoryPools,
}

impl Default for Pools {
    fn default() -> Self {
        let driver = GpuDriver::Unknown { why: "the driver has not been queried".into() };
        Self {
            gpus: GpuReport { driver, picture: None, answered_at: None },
            layout: PoolLayout::default(),
            layout_of: None,
            memory: MemoryPools::default(),
        }
    }
}

impl Pools {
    /// Takes the driver's state and its response. A response is valid until the next one; the kind
    /// of a GPU does not change while the driver is silent.
    pub fn take_gpus(&mut self, readings: &GpuReadings) {
        if self.gpus.driver != readings.driver {
            self.gpus.driver.clone_from(&readings.driver);
            self.layout_of = None;
        }
        self.gpus.answered_at = readings.answered_at;
        match (&readings.picture, &readings.driver) {
            (Some(picture), _) => self.gpus.picture = Some(Arc::clone(picture)),
            (None, GpuDriver::Absent { .. }) => self.gpus.picture = None,
            (None, _) => return,
        }
        self.layout_of = None;
    }

    /// The memory now, by pool. Baselines are allowances; orphans and trends are unknown.
    pub fn sample(&mut self, view: &impl SeriesView) -> &mut MemoryPools {
        let layout_of = layout::fingerprint(view);
        if self.layout_of != Some(layout_of) {
            self.layout = layout::layout(view, &self.gpus);
            self.layout_of = Some(layout_of);
            self.memory = figures::empty(&self.layout);
        }
        figures::sample(view, &self.gpus, &self.layout, &mut self.memory);
        &mut self.memory
    }

    /// The memory as last sampled.
    pub fn memory(&self) -> &MemoryPools {
        &self.memory
    }
}
