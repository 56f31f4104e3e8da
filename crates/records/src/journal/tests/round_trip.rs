//! The stored JSON gives back what was stored.

use proptest::prelude::*;

use super::*;
use crate::model::{
    AlertChange, AlertState, CachePermission, EnginePhase, EventKind, GpuLossSign, Grade,
    KernelEvent, KillerDaemon, OomConstraint, PageRecovery, Prefetch, Recovery, Sysctl, Taint,
    TaintEffect, UndoReason, as_number,
};

fn number() -> impl Strategy<Value = Reading<f64>> {
    prop_oneof![
        any::<f64>().prop_map(Reading::Value),
        Just(Reading::Value(f64::NAN)),
        Just(Reading::Value(f64::INFINITY)),
        Just(Reading::Unsupported),
        Just(Reading::Failed),
    ]
}

fn instant() -> impl Strategy<Value = Moment> {
    (any::<u64>(), any::<u32>(), timestamp()).prop_map(|(seconds, nanoseconds, utc)| Moment {
        uptime: Duration::new(seconds, nanoseconds % 1_000_000_000),
        utc,
    })
}

fn timestamp() -> impl Strategy<Value = Timestamp> {
    (-62_000_000_000_i64..253_000_000_000, 0..1_000_000_000_i32)
        .prop_map(|(second, nanosecond)| Timestamp::new(second, nanosecond.abs()).unwrap())
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "kind|seq|utc|null|decision|\\PC{0,15}"]
}

fn words() -> impl Strategy<Value = Option<String>> {
    proptest::option::of(text())
}

fn driver_event() -> impl Strategy<Value = KernelEvent> {
    let pool = prop_oneof![Just(Pool::Any), Just(Pool::System), Just(Pool::Vram)];
    let recovery = proptest::option::of(prop_oneof![
        Just(Recovery::None),
        Just(Recovery::NodeReboot),
        Just(Recovery::DrainAndReset)
    ]);
    prop_oneof![
        (text(), any::<Option<u32>>(), pool, words()).prop_map(
            |(function, gpu, pool, location)| {
                KernelEvent::NvNoMemory { function, gpu, pool, location }
            }
        ),
        (text(), any::<u64>())
            .prop_map(|(function, bytes)| KernelEvent::NvAllocFailed { function, bytes }),
        (any::<u32>(), text(), any::<[Option<u32>; 3]>(), words(), recovery).prop_map(
            |(xid, pci, [gpu_instance, compute_instance, pid], process, recovery)| {
                KernelEvent::Xid {
                    xid,
                    pci,
                    gpu_instance,
                    compute_instance,
                    pid,
                    process,
                    recovery,
                }
            }
        ),
        Just(KernelEvent::UvmFatal),
        (words(), any::<Option<u32>>(), any::<bool>()).prop_map(|(pci, gpu, is_off)| {
            let sign = if is_off { GpuLossSign::OffBus } else { GpuLossSign::GspTimeout };
            KernelEvent::GpuLost { pci, gpu, sign }
        }),
        (words(), text()).prop_map(|(pci, status)| KernelEvent::GpuInitFailed { pci, status }),
    ]
}

fn stuck() -> impl Strategy<Value = KernelEvent> {
    let outcome = proptest::option::of(prop_oneof![
        Just(PageRecovery::Recovered),
        Just(PageRecovery::Delayed),
        Just(PageRecovery::Failed)
    ]);
    prop_oneof![
        (text(), any::<Option<u32>>(), words(), outcome).prop_map(|(frame, pid, comm, outcome)| {
            KernelEvent::MemoryFailure { frame, pid, comm, outcome }
        }),
        (text(), any::<[u32; 2]>(), any::<u64>()).prop_map(|(comm, [pid, cpu], seconds)| {
            KernelEvent::SoftLockup { pid, comm, cpu, seconds }
        }),
        text().prop_map(|flavour| KernelEvent::RcuStall { flavour }),
        Just(KernelEvent::OomPanic),
    ]
}

fn kill() -> impl Strategy<Value = KernelEvent> {
    let constraint = proptest::option::of(prop_oneof![
        Just(OomConstraint::None),
        Just(OomConstraint::Memcg),
        Just(OomConstraint::MemoryPolicy)
    ]);
    let daemon = prop_oneof![
        Just(KillerDaemon::SystemdOomd),
        Just(KillerDaemon::Earlyoom),
        Just(KillerDaemon::Nohang),
        Just(KillerDaemon::Oomd),
        Just(KillerDaemon::Talos),
        Just(KillerDaemon::Ray)
    ];
    prop_oneof![
        (any::<u32>(), text(), constraint, [words(), words(), words(), words()]).prop_map(
            |(pid, comm, constraint, [memcg, oom_memcg, trigger_comm, container])| {
                KernelEvent::OomKill {
                    pid,
                    comm,
                    constraint,
                    memcg,
                    oom_memcg,
                    trigger_comm,
                    anon_rss_bytes: Some(u64::from(pid) << 32),
                    driver: pid.is_multiple_of(2),
                    manual: pid.is_multiple_of(3),
                    container,
                }
            }
        ),
        (daemon, any::<Option<u32>>(), words(), words()).prop_map(|(by, pid, comm, memcg)| {
            KernelEvent::UserspaceKill { by, pid, comm, memcg }
        }),
        Just(KernelEvent::OomNoVictim),
    ]
}

fn kernel_event() -> impl Strategy<Value = KernelEvent> {
    prop_oneof![
        driver_event(),
        kill(),
        (any::<u32>(), text()).prop_map(|(pid, comm)| KernelEvent::OomReaped { pid, comm }),
        (any::<u32>(), text()).prop_map(|(pid, comm)| KernelEvent::OomUnreapable { pid, comm }),
        stuck(),
        (any::<u32>(), words())
            .prop_map(|(order, comm)| KernelEvent::PageAllocFailure { comm, order }),
        (words(), any::<u64>())
            .prop_map(|(region, pages)| KernelEvent::CmaAllocFailed { region, pages }),
        (any::<u32>(), text(), any::<u64>(), any::<Option<u32>>(), words()).prop_map(
            |(pid, comm, seconds, owner_pid, owner_comm)| KernelEvent::HungTask {
                pid,
                comm,
                seconds,
                owner_pid,
                owner_comm
            }
        ),
    ]
}

fn any_event() -> impl Strategy<Value = EventKind> {
    prop_oneof![kernel_event().prop_map_into(), Just(unclean_boot().into())]
}

fn any_decision() -> impl Strategy<Value = Decision> {
    prop_oneof![
        Just(Decision::Act),
        (0..HoldReason::ALL.len()).prop_map(|which| Decision::Hold(HoldReason::ALL[which]))
    ]
}

fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        any::<bool>().prop_map(|sync| Action::DropCaches { what: CacheKind::All, sync }),
        Just(Action::CompactMemory),
        (text(), proptest::option::of(text()), any::<u64>())
            .prop_map(|(cgroup, engine, bytes)| Action::Reclaim { cgroup, engine, bytes }),
        (text(), any::<[u64; 2]>(), any::<u32>()).prop_map(
            |(engine, [behind_bytes, floor], seconds)| {
                let for_at_most = Duration::from_secs(seconds.into());
                let floor_bytes = if floor % 2 == 0 { 0 } else { floor };
                let prefetch = Prefetch::ALL[seconds as usize % Prefetch::ALL.len()];
                Action::EvictCheckpoint { engine, behind_bytes, floor_bytes, prefetch, for_at_most }
            }
        ),
        (text(), 0..=CachePermission::ALL.len()).prop_map(|(engine, most)| {
            let allow = CachePermission::ALL.into_iter().take(most).collect();
            Action::EmptyCache { engine, allow }
        }),
        text().prop_map(|message| Action::Notify { message }),
        (any::<u32>(), 0..Sysctl::ALL.len(), any::<u32>()).prop_map(|(value, which, seconds)| {
            let values = [(Sysctl::ALL[which], value), (Sysctl::Swappiness, 1)].into();
            let for_at_most = Duration::from_secs(u64::from(seconds));
            Action::SetSysctl { values, for_at_most }
        }),
        (any::<u32>(), text(), text()).prop_map(|(kib, device, path)| {
            let (devices, of) = (vec![device], vec![path]);
            Action::ThrottleReadahead { kib, devices, of, for_at_most: Duration::from_millis(7) }
        }),
        (text(), prop::option::of(text())).prop_map(|(key, value)| {
            let taint = Taint { key, value, effect: TaintEffect::PreferNoSchedule };
            Action::TaintNode { taint, for_at_most: Duration::from_secs(7) }
        }),
        any::<u64>().prop_map(|id| {
            Action::Undo {
                decision: DecisionId(id),
                why: UndoReason::TimedOut,
                grade: Grade::Cordon,
            }
        }),
    ]
}

fn some_evidence() -> impl Strategy<Value = Vec<Evidence>> {
    let one = (text(), number()).prop_map(|(series, value)| Evidence { series, value });
    proptest::collection::vec(one, 0..3)
}

/// NaN is not equal to itself, so what is compared is the text.
fn assert_round_trip<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) {
    let json = serde_json::to_string(value).unwrap();
    let back: T = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{json}: {error}"));
    assert_eq!(serde_json::to_string(&back).unwrap(), json);
}

proptest! {
    #[test]
    fn events_survive_json(utc in proptest::option::of(timestamp()), seq: Option<u64>,
                           kind in any_event()) {
        let event = Event { utc, seq, kind };
        let json = serde_json::to_string(&event).unwrap();
        let back: Event = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(back, event);
    }

    #[test]
    fn decisions_survive_json(id: u64, at in instant(), decision in any_decision(), step: usize,
                              action in any_action(), group in text(), because in some_evidence()) {
        let rule = RuleId { group: group.into(), alert: "alert".into() };
        let id = DecisionId(id);
        let decision = DecisionRecord {
            id, at, rule, mode: Mode::Enforce, decision, step, target: action.target(), action,
            approved: (step % 2 == 1).then_some(DecisionId(3)),
            goes_ahead: (step % 3 == 1).then_some(at.utc), because
        };
        assert_round_trip(&decision);
    }

    #[test]
    fn outcomes_survive_json(id: u64, at in instant(), detail in text(),
                                            aim_met: Option<bool>, has_aim: bool,
                                            before in some_evidence()) {
        let decision = DecisionId(id);
        for result in [
            OutcomeResult::Done, OutcomeResult::Skipped, OutcomeResult::TimedOut,
            OutcomeResult::Failed(detail.clone()), OutcomeResult::NotDone(detail.clone()),
        ] {
            let (action, took) = (detail.clone(), at.uptime);
            for effect in [None, Some(detail.clone())] {
                let (action, result) = (action.clone(), result.clone());
                assert_round_trip(&Outcome { decision, action, result, ended: at, took, effect });
            }
        }
        let after = before.clone();
        let died_in = has_aim.then_some(EnginePhase::Loading);
        assert_round_trip(&AimCheck { decision, at, aim_met, has_aim, died_in, before, after });
    }

    #[test]
    fn alerts_and_notes_survive_json(at in instant(), name in text(), value in number()) {
        let labels = BTreeMap::from([(name.as_str().into(), name.as_str().into())]);
        let annotations = BTreeMap::from([(name.as_str().into(), name.clone())]);
        let (from, to) = (AlertState::Inactive, AlertState::Firing);
        let rule = rule(&name);
        let change = AlertChange { at, rule, labels, from, to, value, annotations };
        assert_round_trip(&change);
        assert_round_trip(&Note { at, text: name });
    }
}

#[test]
fn a_reading_is_a_number_or_says_why_not() {
    #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
    struct One(#[serde(with = "as_number")] Reading<f64>);
    for (reading, json) in [
        (Reading::Value(1.5), "1.5"),
        (Reading::Value(f64::INFINITY), "\"+Inf\""),
        (Reading::Value(f64::NEG_INFINITY), "\"-Inf\""),
        (Reading::Unsupported, "\"unsupported\""),
        (Reading::Failed, "\"failed\""),
    ] {
        assert_eq!(serde_json::to_string(&One(reading)).unwrap(), json);
        assert_eq!(serde_json::from_str::<One>(json).unwrap(), One(reading));
    }
    assert_eq!(serde_json::to_string(&One(Reading::Value(f64::NAN))).unwrap(), "\"NaN\"");
    assert_eq!(serde_json::from_str::<One>("7").unwrap(), One(Reading::Value(7.0)));
    assert!(serde_json::from_str::<One>("\"rubbish\"").is_err());
}
