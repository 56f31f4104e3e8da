//! A paused engine resumes after any failure; an engine that somebody else paused stays paused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use umawarden::actions::Executor as _;
use umawarden::model::CachePermission::RetractRequests;
use umawarden::model::{EngineKeys, EngineKind, OutcomeResult, SecretSource};

use super::fake::{FakeServer, Reply, Request, recorded};
use super::{Bench, decision, engine, with_keys};
use crate::actions::act;

/// A busy SGLang with failures that the test chooses.
struct Busy {
    server: FakeServer,
    is_paused: Arc<AtomicBool>,
    /// How many calls of /continue_generation fail.
    deaf: Arc<AtomicU32>,
    /// The undo log at the time of the pause.
    log_when_paused: Arc<std::sync::Mutex<String>>,
}

impl Busy {
    fn start(bench: &Bench, at_pause: Option<Reply>, at_flush: Option<Reply>) -> Self {
        let (is_paused, deaf) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let log_when_paused: Arc<std::sync::Mutex<String>> = Arc::default();
        let log = bench.path("storage/undo.log");
        let (paused, failures_left, seen) =
            (Arc::clone(&is_paused), Arc::clone(&deaf), Arc::clone(&log_when_paused));
        let server = FakeServer::start(move |request: &Request| match request.endpoint() {
            "/pause_generation" => {
                assert_eq!(request.body, r#"{"mode":"retract"}"#);
                *seen.lock().unwrap() = std::fs::read_to_string(&log).unwrap_or_default();
                paused.store(true, Ordering::SeqCst);
                at_pause
                    .clone()
                    .unwrap_or_else(|| recorded("sglang", "retracted", request.endpoint()))
            }
            "/flush_cache" => at_flush
                .clone()
                .unwrap_or_else(|| recorded("sglang", "retracted", request.endpoint())),
            "/continue_generation" => {
                let succeeds = failures_left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                    .is_err();
                if !succeeds {
                    return Reply::Close;
                }
                paused.store(false, Ordering::SeqCst);
                recorded("sglang", "retracted", request.endpoint())
            }
            "/health" => Reply::Answer(200, String::new()),
            endpoint => recorded("sglang", "busy", endpoint),
        });
        Self { server, is_paused, deaf, log_when_paused }
    }

    fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::SeqCst)
    }
}

#[test]
fn requests_are_retracted_only_if_allowed_and_after_the_undo_log_records_it() {
    let bench = Bench::new();
    let busy = Busy::start(&bench, None, None);
    let target = engine(EngineKind::Sglang, busy.server.port);
    bench.effect(&decision(target.clone(), &[]));
    assert_eq!(busy.server.posted(), ["/continue_generation"]);
    let effect = bench.effect(&decision(target, &[RetractRequests]));
    assert!(
        effect.ends_with("1 request retracted, prefix cache dropped, and it goes on"),
        "{effect}"
    );
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
fn an_engine_paused_by_somebody_else_stays_paused() {
    let bench = Bench::new();
    let server =
        FakeServer::start(|request: &Request| recorded("sglang", "retracted", request.endpoint()));
    for allow in [[].as_slice(), &[RetractRequests]] {
        let target = engine(EngineKind::Sglang, server.port);
        let why = bench.refusal(&decision(target, allow));
        assert!(why.starts_with("another client has paused it: it stays so"), "{why}");
    }
    assert_eq!(server.posted(), Vec::<String>::new());
    // A 503 may mean ill or paused.
    let server = FakeServer::start(|request: &Request| match request.endpoint() {
        "/ready" | "/ping" => Reply::Answer(503, String::new()),
        endpoint => recorded("sglang", "idle", endpoint),
    });
    let why = bench.refusal(&decision(engine(EngineKind::Sglang, server.port), &[]));
    assert!(why.starts_with("it answers 503 at /ready"), "{why}");
    assert_eq!(server.posted(), Vec::<String>::new());
}

#[test]
fn a_paused_engine_resumes_after_any_failure() {
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
fn no_engine_is_paused_without_an_undo_log() {
    let bench = Bench::new();
    std::fs::write(bench.path("storage"), "a file where the folder should be").unwrap();
    let busy = Busy::start(&bench, None, None);
    let target = engine(EngineKind::Sglang, busy.server.port);
    let why = bench.refusal(&decision(target, &[RetractRequests]));
    assert!(why.starts_with("the undo log cannot record the pause"), "{why}");
    assert_eq!(busy.server.posted(), Vec::<String>::new());
}

#[test]
fn a_failed_resume_is_repeated_until_it_succeeds() {
    let bench = Bench::new();
    let busy = Busy::start(&bench, None, None);
    // Three attempts within the action, and two of the next three.
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
    assert!(!busy.is_paused() && !acting.is_unfinished(), "{:?}", bench.take_reports());
    let reports = bench.take_reports();
    assert!(
        reports.iter().any(|report| report.contains("engine llm is running again")),
        "{reports:?}"
    );
}

#[test]
fn resumes_that_keep_failing_become_less_frequent() {
    let bench = Bench::new();
    let busy = Busy::start(&bench, None, None);
    busy.deaf.store(u32::MAX, Ordering::SeqCst);
    let target = engine(EngineKind::Sglang, busy.server.port);
    let mut acting = bench.process("boot");
    acting.execute(&act(decision(target, &[RetractRequests])));
    let attempts =
        || busy.server.posted().iter().filter(|path| **path == "/continue_generation").count();
    let before = attempts();
    for _ in 0..29 {
        acting.tend();
    }
    assert_eq!(attempts() - before, 6 * 3);
    busy.deaf.store(0, Ordering::SeqCst);
    acting.tend();
    assert!(!busy.is_paused(), "the thirtieth attempt, after five minutes");
}

#[test]
fn the_next_process_resumes_the_engine_with_the_key_from_its_file() {
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
    // As after a SIGKILL: no resume and no record of an end.
    drop(killed);
    busy.deaf.store(0, Ordering::SeqCst);
    bench.take_reports();
    let _executor = bench.process("boot");
    assert!(!busy.is_paused());
    let last = busy.server.requests().pop().unwrap();
    assert_eq!(last.key.as_deref(), Some("Bearer a-secret-key"));
    let reports = bench.take_reports();
    assert!(
        reports[0].contains("engine llm is running again, after an end that was none"),
        "{reports:?}"
    );
    let before = busy.server.calls().len();
    let _executor = bench.process("boot");
    assert_eq!(busy.server.calls().len(), before, "one resume is enough");
}

#[test]
fn a_pause_of_an_earlier_boot_or_of_an_ended_engine_needs_no_resume() {
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
    bench.take_reports();
    let _executor = bench.process("boot");
    assert_eq!(busy.server.calls().len(), before);
    let reports = bench.take_reports();
    assert!(reports[0].starts_with("engine llm has gone"), "{reports:?}");
}

#[test]
fn no_engine_is_paused_once_the_program_is_ending() {
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
    assert_eq!(busy.server.posted(), Vec::<String>::new());
}
