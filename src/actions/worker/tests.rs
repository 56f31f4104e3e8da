use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use jiff::Timestamp;

use super::*;
use crate::model::{Action, Decision, DecisionId, Grade, HoldReason, Mode, RebootAct, RebootWay};

/// Generous: reached only if the worker is broken.
const PATIENCE: Duration = Duration::from_secs(20);

fn now() -> Moment {
    let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let uptime = Duration::new(uptime.tv_sec.unsigned_abs(), uptime.tv_nsec as u32);
    Moment { uptime, utc: Timestamp::now() }
}

fn decision(id: u64) -> DecisionRecord {
    crate::actions::tests::decision(id, Action::CompactMemory)
}

fn act(decision: DecisionRecord) -> Act {
    Act::of(decision).unwrap()
}

/// Reports its begin, then hangs until `go_on` has a message or is closed.
struct Hanging {
    begun: Sender<DecisionId>,
    go_on: Receiver<()>,
}

impl Executor for Hanging {
    fn execute(&mut self, act: &Act) -> Performed {
        let _ = self.begun.send(act.id);
        match self.go_on.recv() {
            Ok(()) => OutcomeResult::Done.into(),
            Err(_) => OutcomeResult::Failed("test has ended".into()).into(),
        }
    }
}

fn lane(
    executor: impl Executor + Send + 'static,
    intent: impl Fn(&DecisionRecord) -> Result<(), String> + Send + 'static,
) -> LaneSetup {
    let pause = Box::new(|| None);
    LaneSetup { executor: Box::new(executor), intent: Box::new(intent), pause }
}

fn slow_from_100(decision: &DecisionRecord) -> Result<(), String> {
    match decision.id.0 {
        0..100 => Ok(()),
        _ => Err("the disk is slow".to_owned()),
    }
}

struct Bench {
    worker: ActionWorker,
    outcomes: Receiver<Outcome>,
    wakes: Arc<AtomicUsize>,
    begun: Receiver<DecisionId>,
    go_on: Sender<()>,
    brakes: Arc<Mutex<Vec<&'static str>>>,
    started: Receiver<DecisionId>,
    answer: Sender<()>,
}

fn bench(
    time_limit: Duration,
    intent: impl Fn(&DecisionRecord) -> Result<(), String> + Send + 'static,
) -> Bench {
    let (begin, begun) = channel();
    let (go_on, gone_on) = channel();
    let (starting, started) = channel();
    let (answer, release_start) = channel();
    let (outcome, outcomes) = channel();
    let wakes = Arc::new(AtomicUsize::new(0));
    let woken = Arc::clone(&wakes);
    let brakes = Arc::new(Mutex::new(Vec::new()));
    let worker = ActionWorker::start(WorkerSetup {
        ordinary: lane(Hanging { begun: begin, go_on: gone_on }, intent),
        brake: lane(Noting(Arc::clone(&brakes)), slow_from_100),
        reboot: lane(Noting(Arc::clone(&brakes)), slow_from_100),
        kubernetes: None,
        start: lane(Hanging { begun: starting, go_on: release_start }, |decision| {
            match decision.id.0 {
                0..100 => Ok(()),
                _ => Err("the disk is full".to_owned()),
            }
        }),
        outcomes: outcome,
        wake: Box::new(move || {
            woken.fetch_add(1, Ordering::SeqCst);
        }),
        clock: now,
        time_limit,
        end_pauses: Box::new(|| false),
    })
    .unwrap();
    Bench { worker, outcomes, wakes, begun, go_on, brakes, started, answer }
}

impl Bench {
    fn outcome(&self) -> (u64, OutcomeResult) {
        let outcome = self.outcomes.recv_timeout(PATIENCE).unwrap();
        assert_eq!(outcome.action, "compact_memory");
        (outcome.decision.0, outcome.result)
    }

    fn begun(&self) -> u64 {
        self.begun.recv_timeout(PATIENCE).unwrap().0
    }
}

fn not_done(result: &OutcomeResult) -> &str {
    match result {
        OutcomeResult::NotDone(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn decisions_are_carried_out_in_order_after_their_intent() {
    let intents = Arc::new(Mutex::new(Vec::new()));
    let written = Arc::clone(&intents);
    let bench = bench(PATIENCE, move |decision| {
        written.lock().unwrap().push(decision.id.0);
        Ok(())
    });
    bench.worker.submit(act(decision(1))).unwrap();
    bench.worker.submit(act(decision(2))).unwrap();
    assert_eq!(bench.begun(), 1);
    assert_eq!(*intents.lock().unwrap(), [1]);
    bench.go_on.send(()).unwrap();
    assert_eq!(bench.outcome(), (1, OutcomeResult::Done));
    assert_eq!(bench.begun(), 2);
    bench.go_on.send(()).unwrap();
    assert_eq!(bench.outcome(), (2, OutcomeResult::Done));
    bench.worker.shutdown();
    assert_eq!(bench.wakes.load(Ordering::SeqCst), 2);
}

#[test]
fn no_action_begins_without_a_written_intent() {
    let bench = bench(PATIENCE, |_| Err("disk full".into()));
    bench.worker.submit(act(decision(1))).unwrap();
    let (_, result) = bench.outcome();
    assert_eq!(not_done(&result), "intent could not be written: disk full");
    assert!(bench.begun.try_recv().is_err());
}

#[test]
fn an_act_with_a_late_intent_is_cancelled() {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let bench = bench(Duration::from_millis(20), move |_| {
        let _ = released.lock().unwrap().recv();
        Ok(())
    });
    bench.worker.submit(act(decision(1))).unwrap();
    assert_eq!(not_done(&bench.outcome().1), "intent could not be written in time");
    release.send(()).unwrap();
    drop(release);
    // Another is taken on once the late intent has returned.
    while bench.worker.submit(act(decision(2))).is_err() {
        thread::yield_now();
    }
    assert!(bench.begun.try_iter().all(|id| id != DecisionId(1)));
}

#[test]
fn a_hanging_action_times_out_and_blocks_others_until_it_returns() {
    let bench = bench(Duration::from_secs(1), |_| Ok(()));
    bench.worker.submit(act(decision(1))).unwrap();
    bench.worker.submit(act(decision(2))).unwrap();
    assert_eq!(bench.begun(), 1);
    assert_eq!(bench.outcome(), (1, OutcomeResult::TimedOut));
    let (second, result) = bench.outcome();
    assert_eq!((second, not_done(&result)), (2, "an earlier action still hangs"));
    assert_eq!(bench.worker.submit(act(decision(3))), Err(Busy));
    bench.go_on.send(()).unwrap();
    while bench.worker.submit(act(decision(5))).is_err() {
        thread::yield_now();
    }
    assert_eq!(bench.begun(), 5);
}

#[test]
fn observed_and_held_decisions_are_not_acts() {
    assert!(Act::of(DecisionRecord { mode: Mode::Observe, ..decision(1) }).is_err());
    let hold = Decision::Hold(HoldReason::Cooldown);
    assert!(Act::of(DecisionRecord { decision: hold, ..decision(2) }).is_err());
    assert!(Act::of(decision(3)).is_ok());
}

#[test]
fn a_pause_cancels_earlier_acts_but_no_undo() {
    let noted = Arc::new(Mutex::new(Vec::new()));
    let (reports, done) = channel();
    let paused = Pause { author: "alice".to_owned(), comment: String::new(), since: None };
    let mut setup = lane(Noting(Arc::clone(&noted)), |_| Ok(()));
    setup.pause = Box::new(move || Some(paused.clone()));
    let stage = Arc::new(AtomicU8::new(INTENDING));
    let clock = now;
    let mut performer = Performer { setup, is_intent_awaited: true, clock, stage, reports };
    let refused = OutcomeResult::NotDone("paused by alice".to_owned());
    assert_eq!(performer.perform(&act(decision(1))), refused.into());
    performer.stage.store(INTENDING, Ordering::Release);
    let why = crate::model::UndoReason::AlertEnded;
    let action = Action::Undo { decision: DecisionId(1), why, grade: Grade::Drop };
    let undo = act(DecisionRecord { action, ..decision(2) });
    assert_eq!(performer.perform(&undo), OutcomeResult::Done.into());
    assert_eq!(*noted.lock().unwrap(), ["undo"]);
    drop(done);
}

#[test]
fn the_queue_is_bounded() {
    let bench = bench(PATIENCE, |_| Ok(()));
    let taken = (0..100).take_while(|&id| bench.worker.submit(act(decision(id))).is_ok()).count();
    assert_eq!(taken, QUEUE);
    bench.go_on.send(()).unwrap();
    assert_eq!(bench.outcome(), (0, OutcomeResult::Done));
    assert_eq!(bench.worker.submit(act(decision(100))), Ok(()));
}

#[test]
fn a_shutdown_reports_hanging_and_waiting_actions() {
    let bench = bench(PATIENCE, |_| Ok(()));
    bench.worker.submit(act(decision(1))).unwrap();
    bench.worker.submit(act(decision(2))).unwrap();
    assert_eq!(bench.begun(), 1);
    bench.worker.shutdown();
    let outcomes: Vec<Outcome> = bench.outcomes.iter().collect();
    assert_eq!(outcomes.len(), 2);
    assert_eq!(not_done(&outcomes[0].result), "shutting down");
    assert_eq!(outcomes[0].decision, DecisionId(2));
    assert_eq!(outcomes[1].result, OutcomeResult::TimedOut);
}

/// An API server that responds slowly to the undo at the end.
struct SlowEnd(Arc<AtomicBool>);

impl Executor for SlowEnd {
    fn execute(&mut self, _: &Act) -> Performed {
        OutcomeResult::Done.into()
    }

    fn end(&mut self) {
        thread::sleep(Duration::from_secs(3));
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_shutdown_waits_for_a_slow_undo_of_taints() {
    let is_undone = Arc::new(AtomicBool::new(false));
    let worker = ActionWorker::start(WorkerSetup {
        ordinary: lane(Noting::default(), |_| Ok(())),
        brake: lane(Noting::default(), |_| Ok(())),
        reboot: lane(Noting::default(), |_| Ok(())),
        kubernetes: Some(lane(SlowEnd(Arc::clone(&is_undone)), |_| Ok(()))),
        start: lane(Noting::default(), |_| Ok(())),
        outcomes: channel().0,
        wake: Box::new(|| {}),
        clock: now,
        time_limit: PATIENCE,
        end_pauses: Box::new(|| false),
    })
    .unwrap();
    worker.shutdown();
    assert!(is_undone.load(Ordering::SeqCst));
}

/// What follows the worker's end in a shutdown takes less than two seconds.
#[test]
fn systemd_and_the_kubelet_wait_longer_than_a_shutdown_takes() {
    let takes = SHUTDOWN_GRACE + SHUTDOWN_MARGIN + UNDOING_TAKES + Duration::from_secs(2);
    let unit = include_str!("../../../packaging/systemd/umawarden.service");
    let stop =
        unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")?.strip_suffix('s'));
    assert!(Duration::from_secs(stop.unwrap().parse().unwrap()) > takes);
    let schema = include_str!("../../../packaging/kubernetes/chart/umawarden/values.schema.json");
    let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
    let least = &schema["properties"]["terminationGracePeriodSeconds"]["minimum"];
    assert!(Duration::from_secs(least.as_u64().unwrap()) > takes);
}

#[test]
fn a_shutdown_waits_for_a_running_action() {
    let bench = bench(PATIENCE, |_| Ok(()));
    bench.worker.submit(act(decision(1))).unwrap();
    assert_eq!(bench.begun(), 1);
    bench.go_on.send(()).unwrap();
    bench.worker.shutdown();
    let results: Vec<OutcomeResult> = bench.outcomes.iter().map(|outcome| outcome.result).collect();
    assert_eq!(results, [OutcomeResult::Done]);
}

#[test]
fn a_panic_is_a_failed_outcome_and_the_worker_lives_on() {
    let bench = bench(PATIENCE, |decision| match decision.id.0 {
        1 => panic!("deliberate"),
        _ => Ok(()),
    });
    bench.worker.submit(act(decision(1))).unwrap();
    let (_, result) = bench.outcome();
    assert!(matches!(&result, OutcomeResult::Failed(why) if why.ends_with("deliberate")));
    bench.worker.submit(act(decision(2))).unwrap();
    assert_eq!(bench.begun(), 2);
}

/// Notes when it begins, acts and ends.
#[derive(Default)]
struct Noting(Arc<Mutex<Vec<&'static str>>>);

impl Executor for Noting {
    fn begin(&mut self) {
        self.0.lock().unwrap().push("begin");
    }

    fn execute(&mut self, act: &Act) -> Performed {
        self.0.lock().unwrap().push(act.action.name());
        OutcomeResult::Done.into()
    }

    fn end(&mut self) {
        // A panic at the end keeps nobody from ending.
        self.0.lock().unwrap().push("end");
        panic!("deliberate");
    }
}

#[test]
fn undos_need_no_intent_and_all_are_done_before_a_shutdown_returns() {
    let noted = Arc::new(Mutex::new(Vec::new()));
    let (outcomes, ended) = channel();
    let worker = ActionWorker::start(WorkerSetup {
        ordinary: lane(Noting(Arc::clone(&noted)), |_| Err("disk full".to_owned())),
        brake: lane(Noting::default(), |_| Ok(())),
        reboot: lane(Noting::default(), |_| Ok(())),
        kubernetes: None,
        start: lane(Noting::default(), |_| Ok(())),
        outcomes,
        wake: Box::new(|| {}),
        clock: now,
        time_limit: PATIENCE,
        end_pauses: Box::new(|| false),
    })
    .unwrap();
    worker.submit(act(decision(1))).unwrap();
    let why = crate::model::UndoReason::AlertEnded;
    let action = Action::Undo { decision: DecisionId(1), why, grade: Grade::Drop };
    worker.submit(act(DecisionRecord { action, ..decision(2) })).unwrap();
    let results: Vec<OutcomeResult> = ended.iter().take(2).map(|outcome| outcome.result).collect();
    assert!(not_done(&results[0]).contains("disk full"));
    assert_eq!(results[1], OutcomeResult::Done);
    worker.shutdown();
    assert_eq!(*noted.lock().unwrap(), ["begin", "undo", "end"]);
}

fn stop(id: u64) -> DecisionRecord {
    let action =
        Action::StopEngine { engine: None, grace_ms: 0, unless_free_bytes: None, for_reboot: None };
    DecisionRecord { action, ..decision(id) }
}

#[test]
fn the_brake_waits_for_neither_hanging_nor_queued_actions() {
    let bench = bench(PATIENCE, |_| Ok(()));
    for id in 1..4 {
        bench.worker.submit(act(decision(id))).unwrap();
    }
    assert_eq!(bench.begun(), 1);
    bench.worker.submit(act(stop(4))).unwrap();
    let outcome = bench.outcomes.recv_timeout(PATIENCE).unwrap();
    assert_eq!((outcome.decision, outcome.result), (DecisionId(4), OutcomeResult::Done));
    assert_eq!(outcome.effect, None);
    assert_eq!(*bench.brakes.lock().unwrap(), ["begin", "stop_engine"]);
    assert!(bench.begun.try_recv().is_err(), "others still wait for the first one");
}

#[test]
fn the_brake_acts_during_an_abandoned_action() {
    let bench = bench(Duration::from_millis(100), |_| Ok(()));
    bench.worker.submit(act(decision(1))).unwrap();
    assert_eq!(bench.outcome(), (1, OutcomeResult::TimedOut));
    assert_eq!(bench.worker.submit(act(decision(2))), Err(Busy));
    bench.worker.submit(act(stop(3))).unwrap();
    let outcome = bench.outcomes.recv_timeout(PATIENCE).unwrap();
    assert_eq!((outcome.decision, outcome.result), (DecisionId(3), OutcomeResult::Done));
}

#[test]
fn the_brake_acts_without_a_written_intent_and_reports_it() {
    let bench = bench(PATIENCE, |_| Err("the disk hangs".to_owned()));
    bench.worker.submit(act(stop(100))).unwrap();
    let outcome = bench.outcomes.recv_timeout(PATIENCE).unwrap();
    assert_eq!(outcome.result, OutcomeResult::Done);
    let expected = "its intent was not on disk when it began: the disk is slow";
    assert_eq!(outcome.effect.as_deref(), Some(expected));
}

#[test]
fn a_shutdown_waits_for_the_brake_too() {
    let bench = bench(PATIENCE, |_| Ok(()));
    bench.worker.submit(act(decision(1))).unwrap();
    assert_eq!(bench.begun(), 1);
    bench.worker.submit(act(stop(2))).unwrap();
    bench.worker.shutdown();
    let mut ended: Vec<u64> = bench.outcomes.iter().map(|outcome| outcome.decision.0).collect();
    ended.sort_unstable();
    assert_eq!(ended, [1, 2]);
    assert_eq!(*bench.brakes.lock().unwrap(), ["begin", "stop_engine", "end"]);
}

fn reboot_decision(id: u64, act: RebootAct) -> DecisionRecord {
    DecisionRecord { action: Action::Reboot(Box::new(act)), ..decision(id) }
}

#[test]
fn a_reboot_waits_for_its_intent_and_for_no_hanging_action() {
    let bench = bench(PATIENCE, |_| Ok(()));
    bench.worker.submit(act(decision(1))).unwrap();
    assert_eq!(bench.begun(), 1);
    let notify = || RebootAct::WarnUsers { text: "text".to_owned() };
    let outcome = || bench.outcomes.recv_timeout(PATIENCE).unwrap();
    bench.worker.submit(act(reboot_decision(2, notify()))).unwrap();
    assert_eq!((outcome().result, outcome_count(&bench)), (OutcomeResult::Done, 0));
    bench.worker.submit(act(reboot_decision(100, notify()))).unwrap();
    let refused = outcome();
    assert_eq!((refused.decision, &*refused.action), (DecisionId(100), "warn_users"));
    assert!(not_done(&refused.result).contains("intent could not be written: the disk is slow"));
    // What is called off must not come, whatever the disk does.
    let off = RebootAct::CallOff {
        way: RebootWay::Logind,
        why: "why".to_owned(),
        was_handed_over: false,
    };
    bench.worker.submit(act(reboot_decision(101, off))).unwrap();
    assert_eq!(outcome().result, OutcomeResult::Done);
    bench.go_on.send(()).unwrap();
    assert_eq!(outcome().decision, DecisionId(1));
    bench.worker.shutdown();
    let mut noted = bench.brakes.lock().unwrap().clone();
    noted.retain(|what| !matches!(*what, "begin" | "end"));
    assert_eq!(noted, ["warn_users", "call_off_reboot"]);
}

fn outcome_count(bench: &Bench) -> usize {
    bench.outcomes.try_iter().count()
}

fn start(id: u64) -> DecisionRecord {
    DecisionRecord { action: Action::StartContainer { ended: "then".into() }, ..decision(id) }
}

#[test]
fn a_silent_supervisor_and_other_actions_do_not_delay_each_other() {
    let bench = bench(PATIENCE, |_| Ok(()));
    bench.worker.submit(act(start(1))).unwrap();
    assert_eq!(bench.started.recv_timeout(PATIENCE), Ok(DecisionId(1)));
    bench.worker.submit(act(decision(2))).unwrap();
    bench.worker.submit(act(stop(3))).unwrap();
    assert_eq!(bench.begun(), 2);
    bench.go_on.send(()).unwrap();
    let next = || bench.outcomes.recv_timeout(PATIENCE).unwrap().decision.0;
    let mut ended = [next(), next()];
    ended.sort_unstable();
    assert_eq!(ended, [2, 3]);
    // And the other way round: what hangs in the kernel holds up no start.
    bench.worker.submit(act(decision(4))).unwrap();
    assert_eq!(bench.begun(), 4);
    bench.answer.send(()).unwrap();
    assert_eq!(next(), 1);
}

#[test]
fn nothing_is_started_without_a_written_intent() {
    let bench = bench(PATIENCE, |_| Ok(()));
    bench.worker.submit(act(start(100))).unwrap();
    let outcome = bench.outcomes.recv_timeout(PATIENCE).unwrap();
    assert_eq!(not_done(&outcome.result), "intent could not be written: the disk is full");
    assert!(bench.started.try_recv().is_err());
}

#[test]
fn a_shutdown_reports_an_unanswered_start() {
    let bench = bench(PATIENCE, |_| Ok(()));
    bench.worker.submit(act(start(1))).unwrap();
    assert_eq!(bench.started.recv_timeout(PATIENCE), Ok(DecisionId(1)));
    let began = now().uptime;
    bench.worker.shutdown();
    assert!(now().uptime - began < Duration::from_secs(3));
    let results: Vec<OutcomeResult> = bench.outcomes.iter().map(|outcome| outcome.result).collect();
    assert_eq!(results, [OutcomeResult::TimedOut]);
}
