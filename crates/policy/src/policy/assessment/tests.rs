//! Every combination of evidence, and the time that a leak takes.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::assess::{Assessed, AssessmentInputs, DriverState, UnexplainedMemory, assess};
use crate::model::{
    AssessmentEvidence, AssessmentLimits, Baseline, EnginePhase, Holder, MemoryAssessment,
    MemoryPlatform, MemoryState, Orphan, ProcessId, Reading, Trend, WedgeSign,
};

const GIB: u64 = 1 << 30;

fn orphan(pid: u32) -> Orphan {
    Orphan {
        id: ProcessId { pid, start_ticks: 1 },
        comm: "VLLM::EngineCor".into(),
        engine: "vllm".into(),
        bytes: 104 * GIB,
        open_devices: 2,
    }
}

fn said(seconds: u64) -> WedgeSign {
    WedgeSign::Said { event: "uvm_fatal", seconds }
}

/// The inputs of an assessment: 60 GiB above the usual 1 without a holder, and steady.
struct Inputs {
    unaccounted: Reading<u64>,
    is_learned: bool,
    shmem: Reading<u64>,
    trend: Option<Trend>,
    engines: Reading<Vec<(Arc<str>, EnginePhase)>>,
    orphans: Vec<Orphan>,
    holders: Reading<Vec<Holder>>,
    unseen: u32,
    driver: DriverState,
    ghosts: Vec<u32>,
    signs: Vec<WedgeSign>,
    on_gpus: Vec<(u32, u64)>,
    by_pool: Vec<(Arc<str>, u64)>,
    platform: MemoryPlatform,
}

impl Inputs {
    fn leak() -> Self {
        Self {
            unaccounted: Reading::Value(61 * GIB),
            is_learned: true,
            shmem: Reading::Value(GIB),
            trend: Some(Trend::default()),
            engines: Reading::Value(Vec::new()),
            orphans: Vec::new(),
            holders: Reading::Value(Vec::new()),
            unseen: 0,
            driver: DriverState::Answers,
            ghosts: Vec::new(),
            signs: Vec::new(),
            on_gpus: Vec::new(),
            by_pool: Vec::new(),
            platform: MemoryPlatform::Unified,
        }
    }

    fn facts(&self) -> AssessmentInputs<'_> {
        fn slices<T>(reading: &Reading<Vec<T>>) -> Reading<&[T]> {
            match reading {
                Reading::Value(all) => Reading::Value(all),
                Reading::Unsupported => Reading::Unsupported,
                Reading::Failed => Reading::Failed,
            }
        }
        AssessmentInputs {
            unaccounted: self.unaccounted,
            baseline: Baseline { bytes: GIB, is_learned: self.is_learned },
            shmem: self.shmem,
            unaccounted_trend: self.trend,
            shmem_trend: Some(Trend::default()),
            engines: slices(&self.engines),
            orphans: &self.orphans,
            holders: slices(&self.holders),
            unseen: self.unseen,
            driver: self.driver,
            ghosts: &self.ghosts,
            signs: &self.signs,
            on_gpus: &self.on_gpus,
            by_pool: &self.by_pool,
            platform: self.platform,
            limits: AssessmentLimits::default(),
        }
    }

    fn assess(&self, so_far: Option<UnexplainedMemory>) -> (Assessed, Vec<AssessmentEvidence>) {
        assess(&self.facts(), so_far)
    }

    fn state(&self) -> MemoryState {
        // Far longer than any limit.
        let hours = Duration::from_secs(36_000);
        self.assess(Some(UnexplainedMemory { still: hours, tried: Some(hours) })).0.state
    }
}

/// A kind of evidence, and what it makes of a leak.
type Change = (&'static str, fn(&mut Inputs));

/// Each of these alone keeps memory from counting as leaked.
const OTHERS: [Change; 16] = [
    ("memory unreadable", |inputs| inputs.unaccounted = Reading::Failed),
    ("memory unsupported", |inputs| inputs.unaccounted = Reading::Unsupported),
    ("little held", |inputs| inputs.unaccounted = Reading::Value(2 * GIB)),
    ("nothing learned", |inputs| inputs.is_learned = false),
    ("falling", |inputs| {
        let gib = GIB as f64;
        inputs.trend = Some(Trend { bytes_per_second: -gib, sank_bytes: GIB });
    }),
    ("too short a sample", |inputs| inputs.trend = None),
    ("engines unknown", |inputs| inputs.engines = Reading::Failed),
    ("an engine", |inputs| {
        inputs.engines = Reading::Value(vec![("vllm".into(), EnginePhase::Loading)]);
    }),
    ("an orphan", |inputs| inputs.orphans = vec![orphan(7)]),
    ("holders unknown", |inputs| inputs.holders = Reading::Failed),
    ("a holder", |inputs| inputs.holders = Reading::Value(vec![Holder::of_driver(8, 'S')])),
    ("a dead one's threads", |inputs| {
        inputs.holders = Reading::Value(vec![Holder::of_driver(8, 'Z')])
    }),
    ("one unseen", |inputs| inputs.unseen = 1),
    ("the driver silent", |inputs| inputs.driver = DriverState::Silent),
    ("the driver unknown", |inputs| inputs.driver = DriverState::Unknown),
    ("a ghost", |inputs| inputs.ghosts = vec![9]),
];

#[test]
fn unexplained_memory_is_leaked_exactly_after_leaked_after() {
    let leak = Inputs::leak();
    let seconds = |still, tried: Option<u64>| {
        let tried = tried.map(Duration::from_secs);
        let so_far = UnexplainedMemory { still: Duration::from_secs(still), tried };
        leak.assess(Some(so_far)).0.state
    };
    assert_eq!(leak.assess(None).0.state, MemoryState::Reclaimable);
    assert_eq!(seconds(36_000, None), MemoryState::Reclaimable);
    assert_eq!(seconds(300, Some(299)), MemoryState::Unknown);
    assert_eq!(seconds(299, Some(300)), MemoryState::Unknown);
    assert_eq!(seconds(300, Some(300)), MemoryState::Leaked);
    assert_eq!(leak.assess(None).0.held, Some(60 * GIB));
    assert!(leak.assess(None).0.is_unexplained);
}

#[test]
fn no_state_with_another_explanation_or_doubt_is_leaked() {
    assert_eq!(Inputs::leak().state(), MemoryState::Leaked);
    for chosen in 1_u32..1 << OTHERS.len() {
        let mut inputs = Inputs::leak();
        let changes = OTHERS.iter().enumerate().filter(|(bit, _)| chosen & 1 << bit != 0);
        let names: Vec<&str> = changes
            .map(|(_, (name, change))| {
                change(&mut inputs);
                *name
            })
            .collect();
        let state = inputs.state();
        assert_ne!(state, MemoryState::Leaked, "{names:?}");
        // One sign alone changes nothing, and two are enough in every case.
        inputs.signs = vec![said(1)];
        assert_eq!(inputs.state(), state, "{names:?}");
        inputs.signs = vec![said(1), WedgeSign::DriverSilent { seconds: 60 }];
        assert_eq!(inputs.state(), MemoryState::Wedged, "{names:?}");
    }
}

#[test]
fn each_explanation_has_its_state_and_evidence() {
    for (name, state, expected) in [
        ("memory unreadable", MemoryState::Unknown, "how much memory is in no counter"),
        ("little held", MemoryState::Clean, "1.0 GiB above the usual amount of 1.0 GiB"),
        ("nothing learned", MemoryState::Unknown, "how much is usual"),
        ("falling", MemoryState::Lingering, "falls by 1.0 GiB/s: about 1m more"),
        ("too short a sample", MemoryState::Unknown, "sampled too shortly"),
        ("engines unknown", MemoryState::Unknown, "whether an engine runs"),
        ("an engine", MemoryState::InUse, "engine vllm is loading"),
        ("an orphan", MemoryState::Orphan, "left behind by vllm, holds 104.0 GiB"),
        ("holders unknown", MemoryState::Unknown, "who has the driver open"),
        ("a holder", MemoryState::InUse, "python3 (pid 8) has the GPU open"),
        ("a dead one's threads", MemoryState::InUse, "python3 (pid 8, state Z)"),
        ("one unseen", MemoryState::Unknown, "CAP_SYS_PTRACE"),
        ("the driver silent", MemoryState::Unknown, "it does not answer"),
        ("the driver unknown", MemoryState::Unknown, "whether the driver answers"),
        ("a ghost", MemoryState::Unknown, "pid 9, which does not have it open"),
    ] {
        let mut inputs = Inputs::leak();
        let (_, change) = OTHERS.iter().find(|(other, _)| *other == name).unwrap();
        change(&mut inputs);
        let (assessed, evidence) = inputs.assess(None);
        let texts: Vec<String> = evidence.iter().map(ToString::to_string).collect();
        assert_eq!(assessed.state, state, "{name}: {texts:?}");
        assert!(texts.iter().any(|text| text.contains(expected)), "{name}: {texts:?}");
    }
}

/// Where no process has the driver open, nothing shows that the GPU is used.
#[test]
fn memory_in_use_by_an_engine_alone_is_not_laid_to_the_gpu() {
    let mut inputs = Inputs::leak();
    let meaning = |inputs: &Inputs| {
        let (assessed, evidence) = inputs.assess(None);
        let unknown = MemoryAssessment::unknown(Timestamp::UNIX_EPOCH);
        MemoryAssessment { state: assessed.state, evidence, ..unknown }.meaning()
    };
    inputs.engines = Reading::Value(vec![("vllm".into(), EnginePhase::Ready)]);
    assert_eq!(meaning(&inputs), "an engine lives");
    inputs.holders = Reading::Value(vec![Holder::of_driver(8, 'S')]);
    assert_eq!(meaning(&inputs), "a process uses the GPU");
}

#[test]
fn unused_shared_memory_is_reported_and_may_be_lingering() {
    let mut inputs = Inputs::leak();
    inputs.unaccounted = Reading::Value(GIB);
    inputs.shmem = Reading::Value(40 * GIB);
    let mut server = Holder::of_driver(5, 'S');
    (server.devices, server.memfds, server.memfd_bytes) = (0, 1, 40 * GIB);
    inputs.holders = Reading::Value(vec![server]);
    let (assessed, evidence) = inputs.assess(None);
    assert_eq!(assessed.state, MemoryState::HeldShmem);
    let texts: Vec<String> = evidence.iter().map(ToString::to_string).collect();
    assert!(texts.iter().any(|text| text.contains("40.0 GiB in memfd")), "{texts:?}");
    inputs.shmem = Reading::Failed;
    assert_eq!(inputs.state(), MemoryState::Unknown);
}

#[test]
fn an_orphan_explains_only_its_own_memory() {
    let mut inputs = Inputs::leak();
    inputs.orphans = vec![orphan(8)];
    inputs.holders = Reading::Value(vec![Holder::of_driver(8, 'S')]);
    assert_eq!(inputs.state(), MemoryState::Orphan);
    inputs.holders = Reading::Value(vec![Holder::of_driver(8, 'S'), Holder::of_driver(9, 'S')]);
    assert_eq!(inputs.state(), MemoryState::InUse);
}

#[test]
fn monitoring_programs_are_no_users_and_pipes_are() {
    let mut inputs = Inputs::leak();
    let watcher = Holder { is_monitor: true, ..Holder::of_driver(8, 'S') };
    inputs.holders = Reading::Value(vec![watcher]);
    assert_eq!(inputs.state(), MemoryState::Leaked);
    let filler = Holder { devices: 0, pipe_bytes: 3 * GIB, ..Holder::of_driver(8, 'S') };
    inputs.holders = Reading::Value(vec![filler]);
    assert_eq!(inputs.state(), MemoryState::InUse);
}

#[test]
fn counted_memory_is_normal_on_superchips_and_clean_without_a_driver() {
    let mut inputs = Inputs::leak();
    inputs.platform = MemoryPlatform::Coherent;
    assert_eq!(inputs.state(), MemoryState::Reclaimable);
    inputs.platform = MemoryPlatform::Discrete;
    assert_eq!(inputs.state(), MemoryState::Leaked);
    inputs.driver = DriverState::Absent;
    assert_eq!(inputs.state(), MemoryState::Unknown);
}

#[test]
fn unattributed_memory_of_a_gpu_is_no_leak_and_not_clean() {
    let assessed_gpus = |inputs: &Inputs| {
        let (assessed, evidence) = inputs.assess(None);
        let on = |gpu| evidence.contains(&AssessmentEvidence::OnGpu { gpu, bytes: 30 * GIB });
        (assessed.state, on(0), on(1))
    };
    let mut inputs = Inputs::leak();
    inputs.platform = MemoryPlatform::Discrete;
    inputs.on_gpus = vec![(0, GIB), (1, 30 * GIB)];
    assert_eq!(assessed_gpus(&inputs), (MemoryState::Reclaimable, false, true), "as without it");
    inputs.unaccounted = Reading::Value(GIB);
    assert_eq!(assessed_gpus(&inputs), (MemoryState::Unknown, false, true));
    let (_, evidence) = inputs.assess(None);
    let texts: Vec<String> = evidence.iter().map(ToString::to_string).collect();
    assert!(
        texts.iter().any(|text| text.starts_with("30.0 GiB of GPU 1's own memory")),
        "{texts:?}"
    );
    assert!(texts.iter().any(|text| text.ends_with("who has a GPU's own memory")), "{texts:?}");
    inputs.on_gpus = vec![(0, GIB)];
    assert_eq!(assessed_gpus(&inputs), (MemoryState::Clean, false, false));
}

#[test]
fn memory_without_an_owner_is_named_by_pool() {
    let mut inputs = Inputs::leak();
    inputs.by_pool = vec![("host".into(), 100 << 20), ("gpu0".into(), 60 * GIB)];
    let (_, evidence) = inputs.assess(None);
    let texts: Vec<String> = evidence.iter().map(ToString::to_string).collect();
    assert_eq!(texts[1], "60.0 GiB of them are in gpu0", "{texts:?}");
    assert!(!texts.iter().any(|text| text.contains("in host")), "{texts:?}");
}
