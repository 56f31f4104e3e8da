//! The memory that pods of this node can request.

use crate::model::{EnginePools, HOST_POOL, MemoryState, PartKind};
use crate::policy::memory_parts::{PARTS, PartsReader};
use crate::policy::status::Status;

const GIB: u64 = 1 << 30;

/// Computes it from snapshot to snapshot.
#[derive(Debug, Default)]
pub(super) struct Requestable {
    parts: PartsReader,
    /// Memory without an owner, until memory is certainly clean again.
    leaked: u64,
}

impl Requestable {
    /// What engines of pods can have on a machine whose GPU shares the memory of the CPUs, those
    /// that run included, in MiB and whole GiB. The scheduler subtracts what running pods have
    /// requested. `None`: not known now, or the GPUs have memory of their own.
    ///
    /// It is all memory without the reserve and without what others have. So an engine that loads
    /// or ends in a pod changes nothing: the kubelet rejects running pods that request more than
    /// there is.
    pub(super) fn mebibytes(&mut self, status: &Status) -> Option<u64> {
        let memory = status.gate_memory.as_ref()?;
        if !matches!(memory.engines, EnginePools::Host) {
            return None;
        }
        let host = &memory.pool(HOST_POOL)?.memory;
        match status.assessment.state {
            MemoryState::Leaked => self.leaked = status.assessment.held_bytes.unwrap_or(0),
            MemoryState::Clean => self.leaked = 0,
            _ => {}
        }
        let is_in_pod = |name: &str| {
            let mut engines = status.engines.iter().map(|engine| &engine.engine);
            engines.any(|engine| *engine.name == *name && engine.pod.is_some())
        };
        let (mut others, mut are_only_outside) = (None, true);
        let levels = self.parts.read(status, |name, bytes| match is_in_pod(name) {
            true => are_only_outside = false,
            false => others = Some(others.unwrap_or(0_u64).saturating_add(bytes)),
        })?;
        if !levels.is_whole {
            return None;
        }
        let part = |kind: PartKind| {
            let parts = PARTS.iter().zip(levels.parts).filter(|((of, ..), _)| *of == kind);
            parts.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(bytes))
        };
        // The rest above the baseline is of engines to which the driver attributes nothing.
        let driver = match others.is_some() && are_only_outside {
            true => part(PartKind::Driver),
            false => part(PartKind::Driver).min(host.baseline.bytes.saturating_add(self.leaked)),
        };
        // Half of the caches of the kernel count as obtainable, as for the gate.
        let slab = host.reclaimable_slab.value().unwrap_or(0) / 2;
        let kernel = part(PartKind::Other).saturating_sub(slab);
        let reserve = host.reserve.value().unwrap_or(0);
        let held = [others.unwrap_or(0), part(PartKind::Processes), kernel, driver, reserve];
        let held = held.into_iter().fold(0, u64::saturating_add);
        Some(levels.total.saturating_sub(held) / GIB * 1024)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::kubernetes::events::tests::{engine, status};
    use crate::model::{
        EngineKind, EnginePhase, EngineProcess, EngineSeen, GateMemory, MemoryAssessment,
        MemoryPools, Pod, ProcessId, Reading, SeriesKey,
    };
    use crate::policy::status::EngineStatus;

    const GIB: u32 = 1024;

    /// MiB of a GB10 with 128 GB: 3 GiB of processes, 1.5 of the kernel, 1.2 that no counter names.
    const TOTAL: u32 = 120 * GIB;
    const OTHERS: u32 = 3 * GIB;
    const KERNEL: u32 = 1_536;
    const BASELINE: u32 = 1_229;

    fn bytes(mebibytes: u32) -> u64 {
        u64::from(mebibytes) << 20
    }

    /// An engine with 6 GiB in its processes.
    fn serving(pod: Option<&str>) -> EngineStatus {
        let id = ProcessId { pid: 100, start_ticks: 7 };
        let process = EngineProcess {
            anon_bytes: Reading::Value(bytes(6 * GIB)),
            ..EngineProcess::holding(id, "vllm", 0)
        };
        let (name, kind) = ("vllm".into(), EngineKind::Vllm);
        let mut seen = EngineSeen::new(name, kind, id, vec![process], "test".into());
        seen.pod = pod.map(|uid| Arc::new(Pod { uid: uid.into(), ..Pod::default() }));
        engine(seen)
    }

    /// With so many GiB of engines in no counter, of which the driver attributes a part.
    fn machine(engines: Vec<EngineStatus>, in_no_counter: u32, attributed: u32) -> Status {
        let living = engines.iter().filter(|engine| engine.phase != EnginePhase::Gone).count();
        let anonymous = OTHERS + 6 * GIB * u32::try_from(living).unwrap();
        let in_no_counter = in_no_counter + BASELINE;
        let cache = |state: &'static str| ("uma_memory_page_cache_bytes", vec![("state", state)]);
        let named = [
            (("uma_memory_total_bytes", vec![]), TOTAL),
            (
                ("uma_memory_free_bytes", vec![]),
                TOTAL - anonymous - KERNEL - in_no_counter - 2 * GIB,
            ),
            (cache("clean"), GIB),
            (cache("dirty"), 0),
            (cache("mapped"), GIB),
            (("uma_memory_unaccounted_bytes", vec![]), in_no_counter),
            (("uma_memory_anonymous_bytes", vec![]), anonymous),
            (("uma_memory_shmem_bytes", vec![]), 0),
            (("uma_memory_hugetlb_bytes", vec![]), 0),
            (("uma_gpu_engine_memory_bytes", vec![("engine", "vllm"), ("gpu", "0")]), attributed),
        ];
        let mut status = status(&[]);
        status.series =
            named.iter().map(|((name, labels), _)| SeriesKey::new(name, labels)).collect();
        status.values =
            named.iter().map(|(_, mib)| Reading::Value(f64::from(*mib) * 1_048_576.0)).collect();
        let mut memory = GateMemory::UNKNOWN;
        memory.reserve = Reading::Value(bytes(2 * GIB));
        memory.baseline.bytes = bytes(BASELINE);
        status.gate_memory = Some(MemoryPools::single(memory));
        status.engines = engines.into();
        status
    }

    fn assess(status: &mut Status, state: MemoryState, held: u32) {
        let unknown = MemoryAssessment::unknown(Timestamp::UNIX_EPOCH);
        let held_bytes = Some(bytes(held));
        status.assessment = Arc::new(MemoryAssessment { state, held_bytes, ..unknown });
    }

    const ALL: Option<u64> = Some(112 * 1024);

    #[test]
    fn an_engine_of_a_pod_lowers_nothing_whether_or_not_the_driver_names_it() {
        let gone = EngineStatus { phase: EnginePhase::Gone, ..serving(Some("a")) };
        for (engines, in_no_counter, attributed) in [
            (vec![], 0, 0),
            (vec![serving(Some("a"))], 84 * GIB, 0),
            (vec![serving(Some("a"))], 84 * GIB, 83 * GIB),
            // It has ended, and its memory is still coming back.
            (vec![gone], 40 * GIB, 0),
        ] {
            let status = machine(engines, in_no_counter, attributed);
            let found = Requestable::default().mebibytes(&status);
            assert_eq!(found, ALL, "{in_no_counter} {attributed}");
        }
    }

    #[test]
    fn an_engine_outside_of_pods_lowers_it_by_what_it_has() {
        for attributed in [0, 40 * GIB] {
            let status = machine(vec![serving(None)], 40 * GIB, attributed);
            assert_eq!(Requestable::default().mebibytes(&status), Some((112 - 46) * 1024));
        }
    }

    #[test]
    fn a_leak_lowers_it_until_memory_is_clean_again() {
        let mut requestable = Requestable::default();
        let mut status = machine(vec![], 33 * GIB, 0);
        assert_eq!(requestable.mebibytes(&status), ALL, "it may come back");
        assess(&mut status, MemoryState::Leaked, 33 * GIB);
        assert_eq!(requestable.mebibytes(&status), Some((112 - 33) * 1024));
        // A small engine starts: who has what is not known any more.
        let mut status = machine(vec![serving(Some("a"))], 33 * GIB + 20 * GIB, 0);
        assess(&mut status, MemoryState::InUse, 53 * GIB);
        assert_eq!(requestable.mebibytes(&status), Some((112 - 33) * 1024));
        let mut status = machine(vec![], 0, 0);
        assess(&mut status, MemoryState::Clean, 0);
        assert_eq!(requestable.mebibytes(&status), ALL);
    }

    #[test]
    fn nothing_is_offered_where_a_counter_is_missing() {
        let mut status = machine(vec![], 0, 0);
        status.values[5] = Reading::Failed;
        assert_eq!(Requestable::default().mebibytes(&status), None);
        status.gate_memory = None;
        assert_eq!(Requestable::default().mebibytes(&status), None);
    }
}
