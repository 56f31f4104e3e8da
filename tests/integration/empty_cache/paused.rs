//! An engine that is paused goes on, whatever happens; one that somebody else has paused does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use umawarden::actions::Executor as _;
use umawarden::model::CachePermission::RetractRequests;
use umawarden::model::{EngineKeys, EngineKind, OutcomeResult, SecretSource};

use super::fake::{Asked, FakeEngine, Reply, recorded};
use super::{Bench, decision, engine, with_keys};
use crate::actions::act;

/// SGLang at work, which fails in what the test says.
struct Busy {
    server: FakeEngine,
    is_paused: Arc<AtomicBool>,
    /// So often it does not hear that it shall go on.
    deaf: Arc<AtomicU32>,
    /// What the undo log said when it was paused.
    log_when_paused: Arc<std::sync::Mutex<String>>,
}

impl Busy {
    fn start(bench: &Bench, at_pause: Option<Reply>, at_flush: Option<Reply>) -> Self {
        let (is_paused, deaf) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let log_when_paused: Arc<std::sync::Mutex<String>> = Arc::default();
        let log = bench.path("storage/undo.log");
        let (paused, deafness, seen) =
            (Arc::clone(&is_paused), Arc::clone(&deaf), Arc::clone(&log_when_paused));
        let server = FakeEngine::start(move |asked: &Asked| match asked.place() {
            "/pause_generation" => {
                assert_eq!(asked.body, r#"{"mode":"retract"}"#);
                *seen.lock().unwrap() = std::fs::read_to_string(&log).unwrap_or_default();
                paused.store(true, Ordering::SeqCst);
                at_pause.clone().unwrap_or_else(|| recorded("sglang", "retracted", asked.place()))
            }
            "/flush_cache" => {
                at_flush.clone().unwrap_or_else(|| recorded("sglang", "retracted", asked.place()))
            }
            "/continue_generation" => {
                let hears = deafness
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                    .is_err();
                if !hears {
                    return Reply::Close;
                }
                paused.store(false, Ordering::SeqCst);
                recorded("sglang", "retracted", asked.place())
            }
            "/health" => Reply::Answer(200, String::new()),
            place => recorded("sglang", "busy", place),
        });
        Self { server, is_paused, deaf, log_when_paused }
    }

    fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::SeqCst)
    }
}

#[test]
fn requests_are_retracted_only_where_that_is_allowed_and_the_undo_log_knows_it_before() {
    let bench = Bench::new();
    let busy = Busy::start(&bench, None, None);
    let target = engine(EngineKind::Sglang, busy.server.port);
    bench.effect(&decision(target.clone(), &[]));
    assert_eq!(busy.server.told(), ["/continue_generation"]);
    let told = bench.effect(&decision(target, &[RetractRequests]));
    assert!(told.ends_with("1 request retracted, prefix cache dropped, and it goes on"), "{told}");
    let calls = busy.server.calls();
    assert_eq!(
        calls[calls.len() - 4..],
        ["POST /pause_generation", "POST /flush_cache", "POST /continue_generation", "GET /health"]
    );
    let log = busy.log_when_paused.lock().unwrap().clone();
    assert!(log.contains("engine_pause") && log.contains(r#""new":"paused""#), "{log}");
    assert!(!log.contains("undone"), "{log}");
    assert!(bench.undo_log().contains(r#""result":"restored""#), "{}", bench.undo_log());
    assert!(!busy.is_paused());
}

#[test]
fn what_somebody_has_paused_stays_so() {
    let bench = Bench::new();
    let server = FakeEngine::start(|asked: &Asked| recorded("sglang", "retracted", asked.place()));
    for allow in [[].as_slice(), &[RetractRequests]] {
        let target = engine(EngineKind::Sglang, server.port);
        let why = bench.refusal(&decision(target, allow));
        assert!(why.starts_with("somebody has paused it: it is left as it is"), "{why}");
    }
    assert_eq!(server.told(), Vec::<String>::new());
    // Ill or paused: that is unknown.
    let server = FakeEngine::start(|asked: &Asked| match asked.place() {
        "/ready" | "/ping" => Reply::Answer(503, String::new()),
        place => recorded("sglang", "idle", place),
    });
    let why = bench.refusal(&decision(engine(EngineKind::Sglang, server.port), &[]));
    assert!(why.starts_with("it answers 503 at /ready"), "{why}");
    assert_eq!(server.told(), Vec::<String>::new());
}

#[test]
fn it_goes_on_whatever_fails_in_between() {
    let failing = || [Reply::Close, Reply::Answer(500, String::new()), Reply::Hang];
    let at_pause = failing().map(|reply| (Some(reply), None));
    let at_flush = failing().map(|reply| (None, Some(reply)));
    for (pause, flush) in at_pause.into_iter().chain(at_flush) {
        let bench = Bench::new();
        let busy = Busy::start(&bench, pause.clone(), flush.clone());
        let target = engine(EngineKind::Sglang, busy.server.port);
        let why = bench.refusal(&decision(target, &[RetractRequests]));
        assert!(!busy.is_paused(), "{pause:?} {flush:?}: {why}");
        assert!(bench.undo_log().contains(r#""result":"restored""#), "{why}");
    }
}

#[test]
fn without_an_undo_log_nothing_is_paused() {
    let bench = Bench::new();
    std::fs::write(bench.path("storage"), "a file where the folder should be").unwrap();
    let busy = Busy::start(&bench, None, None);
    let target = engine(EngineKind::Sglang, busy.server.port);
    let why = bench.refusal(&decision(target, &[RetractRequests]));
    assert!(why.starts_with("the undo log cannot record the pause"), "{why}");
    assert_eq!(busy.server.told(), Vec::<String>::new());
}

#[test]
fn one_that_does_not_hear_is_told_again_until_it_does() {
    let bench = Bench::new();
    let busy = Busy::start(&bench, None, None);
    // Three tries within the act, and two of the next three.
    busy.deaf.store(5, Ordering::SeqCst);
    let target = engine(EngineKind::Sglang, busy.server.port);
    let act = decision(target, &[RetractRequests]);
    let mut acting = bench.process("boot");
    let OutcomeResult::Failed(why) = acting.execute(&crate::actions::act(act)).result else {
        panic!("done")
    };
    assert!(why.starts_with("it was paused, and does not resume"), "{why}");
    assert!(busy.is_paused() && acting.is_unfinished());
    acting.tend();
    assert!(!busy.is_paused() && !acting.is_unfinished(), "{:?}", bench.told());
    let told = bench.told();
    assert!(told.iter().any(|told| told.contains("engine llm is running again")), "{told:?}");
}

#[test]
fn one_that_never_hears_is_told_less_often_after_a_while() {
    let bench = Bench::new();
    let busy = Busy::start(&bench, None, None);
    busy.deaf.store(u32::MAX, Ordering::SeqCst);
    let target = engine(EngineKind::Sglang, busy.server.port);
    let mut acting = bench.process("boot");
    acting.execute(&act(decision(target, &[RetractRequests])));
    let told = || busy.server.told().iter().filter(|path| **path == "/continue_generation").count();
    let before = told();
    for _ in 0..29 {
        acting.tend();
    }
    assert_eq!(told() - before, 6 * 3);
    busy.deaf.store(0, Ordering::SeqCst);
    acting.tend();
    assert!(!busy.is_paused(), "the thirtieth time, after five minutes");
}

#[test]
fn the_next_process_has_it_go_on_with_the_key_from_where_it_is_kept() {
    let bench = Bench::new();
    let key = bench.path("key");
    crate::daemon::write_secret(&key, "a-secret-key\n");
    let keys = EngineKeys {
        admin: Some(SecretSource::File(key.to_str().unwrap().into())),
        ..EngineKeys::default()
    };
    let busy = Busy::start(&bench, None, None);
    busy.deaf.store(u32::MAX, Ordering::SeqCst);
    let target = with_keys(engine(EngineKind::Sglang, busy.server.port), keys);
    let mut killed = bench.process("boot");
    killed.execute(&act(decision(target, &[RetractRequests])));
    assert!(busy.is_paused());
    let log = bench.undo_log();
    assert!(log.contains(key.to_str().unwrap()) && !log.contains("a-secret-key"), "{log}");
    // As after a SIGKILL: it neither ends nor says so.
    drop(killed);
    busy.deaf.store(0, Ordering::SeqCst);
    bench.told();
    let _next = bench.process("boot");
    assert!(!busy.is_paused());
    let last = busy.server.asked().pop().unwrap();
    assert_eq!(last.key.as_deref(), Some("Bearer a-secret-key"));
    let told = bench.told();
    assert!(
        told[0].contains("engine llm is running again, after an end that was none"),
        "{told:?}"
    );
    let before = busy.server.calls().len();
    let _third = bench.process("boot");
    assert_eq!(busy.server.calls().len(), before, "once is enough");
}

#[test]
fn a_pause_of_another_boot_or_of_an_engine_that_has_gone_is_over() {
    let bench = Bench::new();
    let busy = Busy::start(&bench, None, None);
    busy.deaf.store(u32::MAX, Ordering::SeqCst);
    let target = engine(EngineKind::Sglang, busy.server.port);
    let mut killed = bench.process("boot");
    killed.execute(&act(decision(target, &[RetractRequests])));
    drop(killed);
    let before = busy.server.calls().len();
    let text = bench.undo_log();
    drop(bench.process("another boot"));
    assert_eq!(busy.server.calls().len(), before);
    std::fs::write(bench.path("storage/undo.log"), text).unwrap();
    std::fs::remove_file(bench.path("proc").join(std::process::id().to_string())).unwrap();
    bench.told();
    let _gone = bench.process("boot");
    assert_eq!(busy.server.calls().len(), before);
    let told = bench.told();
    assert!(told[0].starts_with("engine llm has gone"), "{told:?}");
}

#[test]
fn once_the_program_ends_no_engine_is_paused_any_more() {
    let bench = Bench::new();
    let busy = Busy::start(&bench, None, None);
    let target = engine(EngineKind::Sglang, busy.server.port);
    let temporary = bench.temporary("boot");
    let end_pauses = temporary.end_pauses();
    let mut acting = bench.process_over(temporary);
    assert!(!end_pauses(), "none is paused");
    let OutcomeResult::Failed(why) =
        acting.execute(&act(decision(target, &[RetractRequests]))).result
    else {
        panic!("done")
    };
    assert!(why.contains("the program ends: it is not paused"), "{why}");
    assert_eq!(busy.server.told(), Vec::<String>::new());
}
