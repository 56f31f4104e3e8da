use std::sync::atomic::AtomicU64;

use super::*;

/// Seconds of uptime; each test of this file has a clock of its own.
static NOW: AtomicU64 = AtomicU64::new(0);

fn uptime() -> Duration {
    Duration::from_secs(NOW.load(Ordering::Relaxed))
}

fn request(engine: &str, pid: u32) -> EvictRequest {
    EvictRequest {
        target: EngineTarget {
            name: Arc::from(engine),
            processes: vec![ProcessId { pid, start_ticks: 1 }],
            ..EngineTarget::default()
        },
        behind_bytes: 0,
        floor_bytes: 0,
        prefetch: Prefetch::Off,
        for_at_most: Duration::from_secs(600),
        rule: RuleId { group: Arc::from("load"), alert: Arc::from("Test") },
    }
}

fn ends(evictor: &Evictor) {
    while !lock(&evictor.shared.controls).is_empty() {
        thread::yield_now();
    }
}

#[test]
fn a_hanging_load_is_reported_and_abandoned_and_the_others_go_on() {
    let evictor = Evictor::new(uptime);
    let (release, hanging) = channel::<()>();
    let hangs = move |_: &Weak<EvictShared>, _: &EvictRequest, _: &Arc<Control>| {
        // The test may be over.
        let _ = hanging.recv();
    };
    let (beat, beating) = channel::<()>();
    let lives = move |_: &Weak<EvictShared>, _: &EvictRequest, control: &Arc<Control>| {
        while beating.recv().is_ok() {
            control.pulse.beat();
        }
    };
    let stuck = evictor.start(request("stuck", 10), false, hangs).unwrap();
    let other = evictor.start(request("other", 11), false, lives).unwrap();
    let of = |pid| ProcessId { pid, start_ticks: 1 };
    assert!(evictor.tracks("stuck", of(10)) && evictor.tracks("other", of(11)));
    assert!(evictor.take_notes().is_empty());
    NOW.store(6, Ordering::Relaxed);
    beat.send(()).unwrap();
    while other.pulse.age() > Duration::ZERO {
        thread::yield_now();
    }
    let notes = evictor.take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("evict_checkpoint of engine stuck was given up"), "{notes:?}");
    assert!(evictor.take_notes().is_empty(), "once");
    assert!(!evictor.tracks("stuck", of(10)) && evictor.tracks("other", of(11)));
    assert!(stuck.hangs() && !other.hangs());
    // A hanging engine is not retried, so that it takes one slot.
    let again = evictor.start(request("stuck", 10), false, |_, _, _| {}).unwrap_err();
    assert!(again.to_string().contains("still hangs"), "{again}");
    assert!(evictor.start(request("third", 12), true, |_, _, _| {}).is_ok());
    drop((release, beat));
    ends(&evictor);
    assert!(evictor.start(request("stuck", 10), false, |_, _, _| {}).is_ok());
    ends(&evictor);
}
