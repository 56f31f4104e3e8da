//! Classes of faults: what a count of them means for people.

use kernel_faults::{KernelEvent, OomConstraint, Recovery};

use super::EnginePhase;
use super::names::named;

named! {
    /// What an Xid says of the GPU.
    pub enum XidClass {
        /// A program did something wrong, or its channel was torn down: the GPU is well.
        Program = "program",
        /// The GPU does not work until it is reset or the node is rebooted.
        DeviceLost = "device_lost",
        /// Memory of the GPU, its links, its firmware.
        Other = "other",
    }

    /// When in its life an engine died.
    pub enum DeathTime {
        /// Before it was ready for the first time.
        BeforeReady = "before_ready",
        /// After that.
        InService = "in_service",
        /// Its phase is not known.
        Unknown = "unknown",
    }

    /// The bound that was reached when the kernel killed for memory.
    pub enum OomBound {
        /// The whole machine.
        Machine = "machine",
        /// A cgroup's limit.
        Cgroup = "cgroup",
        /// A cpuset's NUMA nodes.
        Cpuset = "cpuset",
        /// A NUMA policy's nodes.
        MemoryPolicy = "memory_policy",
        /// The log does not have it.
        Unknown = "unknown",
    }
}

impl XidClass {
    /// The class of an Xid. Numbers are of NVIDIA's Xid catalog
    /// (<https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html>): programs' faults
    /// are those whose investigation is "check app/CUDA", 13 and 31, and what follows from the end
    /// of a program (43, 45).
    pub const fn of(xid: u32, recovery: Option<Recovery>) -> Self {
        let needs_reset = matches!(
            recovery,
            Some(Recovery::GpuReset | Recovery::NodeReboot | Recovery::DrainAndReset)
        );
        match xid {
            11 | 13 | 25 | 31 | 32 | 37 | 43 | 45 | 69 | 80 => Self::Program,
            79 | 119 | 120 | 143 => Self::DeviceLost,
            154 if needs_reset => Self::DeviceLost,
            _ => Self::Other,
        }
    }
}

impl DeathTime {
    /// By the phase in which it died.
    pub const fn of(phase: Option<EnginePhase>) -> Self {
        match phase {
            Some(EnginePhase::Starting | EnginePhase::Loading) => Self::BeforeReady,
            Some(EnginePhase::Ready | EnginePhase::Serving | EnginePhase::Stopping) => {
                Self::InService
            }
            Some(EnginePhase::Gone) | None => Self::Unknown,
        }
    }
}

impl OomBound {
    /// The bound of a kill.
    pub const fn of(constraint: Option<OomConstraint>) -> Self {
        match constraint {
            Some(OomConstraint::None) => Self::Machine,
            Some(OomConstraint::Memcg) => Self::Cgroup,
            Some(OomConstraint::Cpuset) => Self::Cpuset,
            Some(OomConstraint::MemoryPolicy) => Self::MemoryPolicy,
            None => Self::Unknown,
        }
    }
}

/// The class of a fault that has classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultClass {
    /// Of an Xid.
    Xid(XidClass),
    /// Of a kill by the kernel's OOM killer.
    OomKill(OomBound),
}

impl FaultClass {
    /// The class of a fault; `None` for kinds without classes.
    pub fn of(fault: &KernelEvent) -> Option<Self> {
        match fault {
            KernelEvent::Xid { xid, recovery, .. } => {
                Some(Self::Xid(XidClass::of(*xid, *recovery)))
            }
            KernelEvent::OomKill { constraint, .. } => {
                Some(Self::OomKill(OomBound::of(*constraint)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xids_of_programs_and_of_lost_gpus_are_apart() {
        for xid in [13, 31, 43, 45] {
            assert_eq!(XidClass::of(xid, None), XidClass::Program, "{xid}");
        }
        for xid in [79, 119, 120, 143] {
            assert_eq!(XidClass::of(xid, None), XidClass::DeviceLost, "{xid}");
        }
        for xid in [48, 63, 94, 95, 109, 140, 154, 999] {
            assert_eq!(XidClass::of(xid, None), XidClass::Other, "{xid}");
        }
    }

    #[test]
    fn xid_154_is_a_lost_gpu_only_where_a_reset_or_a_reboot_is_required() {
        let of = |recovery| XidClass::of(154, Some(recovery));
        assert_eq!(of(Recovery::NodeReboot), XidClass::DeviceLost);
        assert_eq!(of(Recovery::GpuReset), XidClass::DeviceLost);
        assert_eq!(of(Recovery::DrainAndReset), XidClass::DeviceLost);
        assert_eq!(of(Recovery::DrainP2p), XidClass::Other);
        assert_eq!(of(Recovery::None), XidClass::Other);
    }
}
