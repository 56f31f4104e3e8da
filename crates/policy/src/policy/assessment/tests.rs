//! Every combination of evidence, and the time that a leak takes.

use std::sync::Arc;
use std::time::Duration;

use super::assess::{Assessed, DriverState, Facts, Unexplained, assess};
use crate::model::{
    AssessmentEvidence, AssessmentLimits, Baseline, EnginePhase, Holder, MemoryPlatform,
    MemoryState, Orphan, ProcessId, Reading, Trend, WedgeSign,
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

/// What is known: 60 GiB above the usual 1 that nobody holds, and that do not move.
struct Known {
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
    platform: MemoryPlatform,
}

impl Known {
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
            platform: MemoryPlatform::Unified,
        }
    }

    fn facts(&self) -> Facts<'_> {
        fn slices<T>(reading: &Reading<Vec<T>>) -> Reading<&[T]> {
            match reading {
                Reading::Value(all) => Reading::Value(all),
                Reading::Unsupported => Reading::Unsupported,
                Reading::Failed => Reading::Failed,
            }
        }
        Facts {
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
            platform: self.platform,
            limits: AssessmentLimits::default(),
        }
    }

    fn assess(&self, so_far: Option<Unexplained>) -> (Assessed, Vec<AssessmentEvidence>) {
        assess(&self.facts(), so_far)
    }

    fn state(&self) -> MemoryState {
        // As long as anybody could wish for.
        let hours = Duration::from_secs(36_000);
        self.assess(Some(Unexplained { still: hours, tried: Some(hours) })).0.state
    }
}

/// A kind of evidence, and what it makes of a leak.
type Change = (&'static str, fn(&mut Known));

/// Each of these alone keeps memory from counting as leaked.
const OTHERS: [Change; 16] = [
    ("memory unreadable", |known| known.unaccounted = Reading::Failed),
    ("memory unsupported", |known| known.unaccounted = Reading::Unsupported),
    ("little held", |known| known.unaccounted = Reading::Value(2 * GIB)),
    ("nothing learned", |known| known.is_learned = false),
    ("falling", |known| {
        let gib = GIB as f64;
        known.trend = Some(Trend { bytes_per_second: -gib, sank_bytes: GIB });
    }),
    ("too short a look", |known| known.trend = None),
    ("engines unknown", |known| known.engines = Reading::Failed),
    ("an engine", |known| {
        known.engines = Reading::Value(vec![("vllm".into(), EnginePhase::Loading)]);
    }),
    ("an orphan", |known| known.orphans = vec![orphan(7)]),
    ("holders unknown", |known| known.holders = Reading::Failed),
    ("a holder", |known| known.holders = Reading::Value(vec![Holder::of_driver(8, 'S')])),
    ("a dead one's threads", |known| {
        known.holders = Reading::Value(vec![Holder::of_driver(8, 'Z')])
    }),
    ("one unseen", |known| known.unseen = 1),
    ("the driver silent", |known| known.driver = DriverState::Silent),
    ("the driver unknown", |known| known.driver = DriverState::Unknown),
    ("a ghost", |known| known.ghosts = vec![9]),
];

#[test]
fn what_nothing_else_explains_is_leaked_after_the_time_and_not_a_second_before() {
    let leak = Known::leak();
    let seconds = |still, tried: Option<u64>| {
        let tried = tried.map(Duration::from_secs);
        let so_far = Unexplained { still: Duration::from_secs(still), tried };
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
fn no_combination_with_another_explanation_or_a_doubt_is_leaked() {
    assert_eq!(Known::leak().state(), MemoryState::Leaked);
    for chosen in 1_u32..1 << OTHERS.len() {
        let mut known = Known::leak();
        let changes = OTHERS.iter().enumerate().filter(|(bit, _)| chosen & 1 << bit != 0);
        let names: Vec<&str> = changes
            .map(|(_, (name, change))| {
                change(&mut known);
                *name
            })
            .collect();
        let state = known.state();
        assert_ne!(state, MemoryState::Leaked, "{names:?}");
        // One sign alone changes nothing, and two are enough whatever else is so.
        known.signs = vec![said(1)];
        assert_eq!(known.state(), state, "{names:?}");
        known.signs = vec![said(1), WedgeSign::DriverSilent { seconds: 60 }];
        assert_eq!(known.state(), MemoryState::Wedged, "{names:?}");
    }
}

#[test]
fn each_explanation_has_its_verdict_and_says_what_it_follows_from() {
    for (name, state, told) in [
        ("memory unreadable", MemoryState::Unknown, "how much memory is in no counter"),
        ("little held", MemoryState::Clean, "1.0 GiB above the usual amount of 1.0 GiB"),
        ("nothing learned", MemoryState::Unknown, "how much is usual"),
        ("falling", MemoryState::Lingering, "falls by 1.0 GiB/s: about 60 s more"),
        ("too short a look", MemoryState::Unknown, "looked at too shortly"),
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
        let mut known = Known::leak();
        let (_, change) = OTHERS.iter().find(|(other, _)| *other == name).unwrap();
        change(&mut known);
        let (assessed, evidence) = known.assess(None);
        let texts: Vec<String> = evidence.iter().map(ToString::to_string).collect();
        assert_eq!(assessed.state, state, "{name}: {texts:?}");
        assert!(texts.iter().any(|text| text.contains(told)), "{name}: {texts:?}");
    }
}

#[test]
fn shared_memory_that_no_engine_uses_is_told_and_falls_like_any_other() {
    let mut known = Known::leak();
    known.unaccounted = Reading::Value(GIB);
    known.shmem = Reading::Value(40 * GIB);
    let mut server = Holder::of_driver(5, 'S');
    (server.devices, server.memfds, server.memfd_bytes) = (0, 1, 40 * GIB);
    known.holders = Reading::Value(vec![server]);
    let (assessed, evidence) = known.assess(None);
    assert_eq!(assessed.state, MemoryState::HeldShmem);
    let texts: Vec<String> = evidence.iter().map(ToString::to_string).collect();
    assert!(texts.iter().any(|text| text.contains("40.0 GiB in memfd")), "{texts:?}");
    known.shmem = Reading::Failed;
    assert_eq!(known.state(), MemoryState::Unknown);
}

#[test]
fn an_orphan_explains_itself_and_nobody_else() {
    let mut known = Known::leak();
    known.orphans = vec![orphan(8)];
    known.holders = Reading::Value(vec![Holder::of_driver(8, 'S')]);
    assert_eq!(known.state(), MemoryState::Orphan);
    known.holders = Reading::Value(vec![Holder::of_driver(8, 'S'), Holder::of_driver(9, 'S')]);
    assert_eq!(known.state(), MemoryState::InUse);
}

#[test]
fn who_only_watches_the_driver_uses_nothing_and_pipes_are_a_use() {
    let mut known = Known::leak();
    let watcher = Holder { is_monitor: true, ..Holder::of_driver(8, 'S') };
    known.holders = Reading::Value(vec![watcher]);
    assert_eq!(known.state(), MemoryState::Leaked);
    let filler = Holder { devices: 0, pipe_bytes: 3 * GIB, ..Holder::of_driver(8, 'S') };
    known.holders = Reading::Value(vec![filler]);
    assert_eq!(known.state(), MemoryState::InUse);
}

#[test]
fn on_superchips_memory_that_stays_counted_is_normal_and_without_a_driver_it_is_none() {
    let mut known = Known::leak();
    known.platform = MemoryPlatform::Coherent;
    assert_eq!(known.state(), MemoryState::Reclaimable);
    known.platform = MemoryPlatform::Discrete;
    assert_eq!(known.state(), MemoryState::Leaked);
    known.driver = DriverState::Absent;
    assert_eq!(known.state(), MemoryState::Unknown);
}

#[test]
fn what_nobody_has_of_a_gpus_own_memory_is_told_and_makes_no_verdict() {
    let is_told = |known: &Known| {
        let (assessed, evidence) = known.assess(None);
        let on = |gpu| evidence.contains(&AssessmentEvidence::OnGpu { gpu, bytes: 30 * GIB });
        (assessed.state, on(0), on(1))
    };
    let mut known = Known::leak();
    known.platform = MemoryPlatform::Discrete;
    known.on_gpus = vec![(0, GIB), (1, 30 * GIB)];
    assert_eq!(is_told(&known), (MemoryState::Reclaimable, false, true), "as without it");
    known.unaccounted = Reading::Value(GIB);
    assert_eq!(is_told(&known), (MemoryState::Clean, false, true));
    let (_, evidence) = known.assess(None);
    let told: Vec<String> = evidence.iter().map(ToString::to_string).collect();
    assert!(told.iter().any(|text| text.starts_with("30.0 GiB of GPU 1's own memory")), "{told:?}");
}
