//! Performs acts outside the loop, one action at a time, and reports their outcomes.
//!
//! There are two threads. The performer writes the intent and acts; it may hang in the kernel. The
//! supervisor never blocks, and reports the outcome of each decision to the loop. While an action
//! hangs, no other begins.
//!
//! The brake has two threads of its own: neither a hanging action nor a hanging disk may delay it.
//! It acts while its intent is written, and waits only shortly for that. Starts have two threads as
//! well: a silent supervisor delays only other starts.
//!
//! So has the reboot, since a hanging action is often its cause; the threads start with its first
//! act. No step of it begins before its intent is on disk.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::{Act, Executor, Performed};
use crate::model::{DecisionRecord, Lane, Moment, Outcome, OutcomeResult, Pause};

/// Limit of queued decisions behind the running one.
const QUEUE: usize = 8;

/// The time that a shutdown waits for a running action.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(700);

/// The time that the supervisor has to end after the grace.
const SHUTDOWN_MARGIN: Duration = Duration::from_millis(200);

/// The time that a shutdown waits for the undo of temporary changes, the resume of paused engines,
/// and the undo of taints and cordons, which go on at once. Without these it waits for nothing.
/// `TimeoutStopSec=` of the unit and `terminationGracePeriodSeconds` of the chart are longer than
/// the whole shutdown.
const UNDOING_TAKES: Duration = Duration::from_secs(10);

/// The interval of retries of unfinished work.
const TENDED_EVERY: Duration = Duration::from_secs(10);

/// A limit that fits most machines: dropping and compacting hundreds of GiB takes seconds.
pub const DEFAULT_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Records that a decision is about to be carried out. An error: the reason why it is not recorded,
/// or not yet.
pub type Intent = Box<dyn Fn(&DecisionRecord) -> Result<(), String> + Send>;

/// The reason of a pause of umawarden, if one is in force.
pub type PauseCheck = Box<dyn Fn() -> Option<Pause> + Send>;

/// An executor, and the steps before each of its acts.
pub struct LaneSetup {
    /// Performs the acts.
    pub executor: Box<dyn Executor + Send>,
    /// Writes the intent. A failure cancels the act, except in the brake's lane: there it must
    /// return within milliseconds, and a failure is only recorded.
    pub intent: Intent,
    /// Called right before each act. A pause does not prevent the undo of temporary changes.
    pub pause: PauseCheck,
}

/// What a worker needs from the daemon.
pub struct WorkerSetup {
    /// [`Lane::Ordinary`].
    pub ordinary: LaneSetup,
    /// [`Lane::Brake`].
    pub brake: LaneSetup,
    /// [`Lane::Start`].
    pub start: LaneSetup,
    /// [`Lane::Reboot`].
    pub reboot: LaneSetup,
    /// [`Lane::Kubernetes`], where this machine is a node of a cluster.
    pub kubernetes: Option<LaneSetup>,
    /// Receives the outcomes.
    pub outcomes: Sender<Outcome>,
    /// Called after each outcome has been sent: wakes the loop.
    pub wake: Box<dyn Fn() + Send + Sync>,
    /// Reads both clocks.
    pub clock: fn() -> Moment,
    /// The time limit of an action with its intent, after which it is given up.
    pub time_limit: Duration,
    /// Prevents further pauses of engines. Returns whether one is paused: a shutdown waits for its
    /// resume.
    pub end_pauses: Box<dyn Fn() -> bool + Send>,
}

impl fmt::Debug for WorkerSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerSetup").field("time_limit", &self.time_limit).finish_non_exhaustive()
    }
}

/// The lane takes no more acts: an action hangs, or too many wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another action is under way")]
pub struct Busy;

/// The worker. Dropping it shuts it down without waiting.
#[derive(Debug)]
pub struct ActionWorker {
    ordinary: LaneThreads,
    brake: LaneThreads,
    start: LaneThreads,
    kubernetes: Option<LaneThreads>,
    reboot: Mutex<LazyLaneThreads>,
    clock: fn() -> Moment,
    end_pauses: EndPauses,
}

/// The hook of a shutdown.
struct EndPauses(Box<dyn Fn() -> bool + Send>);

impl fmt::Debug for EndPauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndPauses")
    }
}

/// A lane whose threads start with its first act: on most machines never.
enum LazyLaneThreads {
    /// No act so far.
    Unused(Box<(LaneSetup, Common)>),
    /// The threads run.
    Running(LaneThreads),
    /// Its threads could not be started.
    Lost,
}

impl fmt::Debug for LazyLaneThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LazyLaneThreads")
    }
}

impl LazyLaneThreads {
    fn submit(&mut self, act: Act) -> Result<(), Busy> {
        if let Self::Unused(_) = self
            && let Self::Unused(parts) = std::mem::replace(self, Self::Lost)
        {
            let (setup, common) = *parts;
            match LaneThreads::start(Lane::Reboot, setup, common) {
                Ok(lane) => *self = Self::Running(lane),
                Err(error) => tracing::error!(%error, "cannot start the thread that reboots"),
            }
        }
        match self {
            Self::Running(lane) => lane.submit(act),
            Self::Unused(_) | Self::Lost => Err(Busy),
        }
    }

    fn running(&self) -> Option<&LaneThreads> {
        match self {
            Self::Running(lane) => Some(lane),
            Self::Unused(_) | Self::Lost => None,
        }
    }
}

/// The two threads of a lane: one action at a time.
#[derive(Debug)]
struct LaneThreads {
    inbox: Sender<LaneMessage>,
    load: Arc<LaneLoad>,
    ended: Receiver<()>,
    undone: Receiver<()>,
}

#[derive(Debug, Default)]
struct LaneLoad {
    waiting: AtomicUsize,
    hanging: AtomicBool,
}

#[derive(Debug)]
enum LaneMessage {
    Act(Act),
    Performed(ActReport),
    Shutdown,
}

/// The outcome of a decision.
#[derive(Debug)]
struct ActReport {
    performed: Performed,
    ended: Moment,
    took: Duration,
}

/// Shared by all lanes.
#[derive(Clone)]
struct Common {
    outcomes: Sender<Outcome>,
    wake: Arc<dyn Fn() + Send + Sync>,
    clock: fn() -> Moment,
    time_limit: Duration,
}

impl ActionWorker {
    /// Starts the worker's threads.
    pub fn start(setup: WorkerSetup) -> std::io::Result<Self> {
        let WorkerSetup { ordinary, brake, start, reboot, kubernetes, .. } = setup;
        let WorkerSetup { outcomes, wake, clock, time_limit, end_pauses, .. } = setup;
        let common = Common { outcomes, wake: wake.into(), clock, time_limit };
        Ok(Self {
            ordinary: LaneThreads::start(Lane::Ordinary, ordinary, common.clone())?,
            brake: LaneThreads::start(Lane::Brake, brake, common.clone())?,
            start: LaneThreads::start(Lane::Start, start, common.clone())?,
            kubernetes: kubernetes
                .map(|setup| LaneThreads::start(Lane::Kubernetes, setup, common.clone()))
                .transpose()?,
            reboot: Mutex::new(LazyLaneThreads::Unused(Box::new((reboot, common)))),
            clock,
            end_pauses: EndPauses(end_pauses),
        })
    }

    /// Queues an act in its lane. Each queued act gets exactly one outcome.
    pub fn submit(&self, act: Act) -> Result<(), Busy> {
        let lane = match act.action.lane() {
            Lane::Ordinary => &self.ordinary,
            Lane::Brake => &self.brake,
            Lane::Start => &self.start,
            Lane::Kubernetes => self.kubernetes.as_ref().ok_or(Busy)?,
            Lane::Reboot => return self.reboot_lane().submit(act),
        };
        lane.submit(act)
    }

    fn reboot_lane(&self) -> MutexGuard<'_, LazyLaneThreads> {
        self.reboot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the worker within a second. A running action gets most of that to end, and is reported
    /// as timed out otherwise; queued acts are reported as not done. All outcomes have been sent at
    /// the return. The undo of changes may take [`UNDOING_TAKES`] more; after a hanging action only
    /// the next start can undo them.
    pub fn shutdown(self) {
        let now = || (self.clock)().uptime;
        let latest = now().saturating_add(SHUTDOWN_GRACE + SHUTDOWN_MARGIN);
        let reboot = self.reboot_lane();
        let kubernetes = self.kubernetes.as_ref();
        let all = [
            Some(&self.ordinary),
            Some(&self.brake),
            Some(&self.start),
            reboot.running(),
            kubernetes,
        ];
        let lanes = all.map(|lane| lane.map(|lane| (lane, lane.leave())));
        for (lane, _) in lanes.iter().flatten().filter(|(_, is_there)| *is_there) {
            let _ = lane.ended.recv_timeout(latest.saturating_sub(now()));
        }
        let ordinary = &self.ordinary;
        // An act that has paused an engine does not hang: it is about to resume it.
        let is_any_paused = (self.end_pauses.0)();
        let hangs = ordinary.load.hanging.load(Ordering::Acquire) && !is_any_paused;
        let was_there = lanes[0].is_some_and(|(_, was_there)| was_there);
        let undone_by = now().saturating_add(UNDOING_TAKES);
        if was_there && !hangs && ordinary.undone.recv_timeout(UNDOING_TAKES).is_err() {
            let effect = "the next start undoes them";
            tracing::error!(effect, "not all temporary settings are back");
        }
        // The node has the record of what is set, also where its undo is carried out too late.
        if let Some(lane) = kubernetes
            && lane.undone.recv_timeout(undone_by.saturating_sub(now())).is_err()
        {
            tracing::warn!(
                error = "the API server has not answered in time",
                patience = ?UNDOING_TAKES,
                effect = "the next start undoes it",
                "taint or cordon may be left"
            );
        }
    }
}

impl Drop for ActionWorker {
    fn drop(&mut self) {
        let lanes = [&self.ordinary, &self.brake, &self.start];
        for lane in lanes.into_iter().chain(&self.kubernetes) {
            lane.leave();
        }
        self.reboot_lane().running().map(LaneThreads::leave);
    }
}

impl LaneThreads {
    fn start(lane: Lane, setup: LaneSetup, common: Common) -> std::io::Result<Self> {
        let (inbox, messages) = channel();
        let (orders, ordered) = sync_channel(1);
        let (goodbye, ended) = sync_channel(1);
        let (last_done, undone) = sync_channel(1);
        let load = Arc::new(LaneLoad::default());
        let stage = Arc::new(AtomicU8::new(IDLE));
        let performer = Performer {
            setup,
            // The brake saves the machine from a disk that does not answer, too.
            is_intent_awaited: lane != Lane::Brake,
            clock: common.clock,
            stage: Arc::clone(&stage),
            reports: inbox.clone(),
        };
        let [act, watch] = thread_names(lane).map(str::to_owned);
        thread::Builder::new().name(act).spawn(move || {
            performer.run(&ordered);
            // The receiver may be gone.
            let _ = last_done.send(());
        })?;
        let supervisor = Supervisor {
            orders,
            common,
            stage,
            load: Arc::clone(&load),
            queue: VecDeque::new(),
            running: None,
            leaving: false,
        };
        thread::Builder::new().name(watch).spawn(move || {
            supervisor.run(&messages);
            // The receiver may be gone.
            let _ = goodbye.send(());
        })?;
        Ok(Self { inbox, load, ended, undone })
    }

    fn submit(&self, act: Act) -> Result<(), Busy> {
        if self.load.hanging.load(Ordering::Acquire) {
            return Err(Busy);
        }
        if self.load.waiting.fetch_add(1, Ordering::AcqRel) >= QUEUE {
            self.load.waiting.fetch_sub(1, Ordering::AcqRel);
            return Err(Busy);
        }
        self.inbox.send(LaneMessage::Act(act)).map_err(|_| Busy)
    }

    /// Ends the lane. Returns whether its threads were running.
    fn leave(&self) -> bool {
        self.inbox.send(LaneMessage::Shutdown).is_ok()
    }
}

fn thread_names(lane: Lane) -> [&'static str; 2] {
    match lane {
        Lane::Ordinary => ["act", "act-watch"],
        Lane::Brake => ["brake", "brake-watch"],
        Lane::Start => ["start", "start-watch"],
        Lane::Reboot => ["reboot", "reboot-watch"],
        Lane::Kubernetes => ["node", "node-watch"],
    }
}

/// The progress of a decision. The first thread to change it wins.
const IDLE: u8 = 0;
/// Writing the intent: the act can still be cancelled.
const INTENDING: u8 = 1;
/// Cancelled: the intent was late.
const CALLED_OFF: u8 = 2;
/// Acting: the act can no longer be cancelled.
const ACTING: u8 = 3;

struct Performer {
    setup: LaneSetup,
    /// No act begins before its intent is written.
    is_intent_awaited: bool,
    clock: fn() -> Moment,
    stage: Arc<AtomicU8>,
    reports: Sender<LaneMessage>,
}

impl Performer {
    fn run(mut self, orders: &Receiver<Act>) {
        self.guarded(|executor| executor.begin());
        self.perform_all(orders);
        self.guarded(|executor| executor.end());
    }

    fn guarded(&mut self, work: impl FnOnce(&mut (dyn Executor + Send))) {
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut *self.setup.executor)));
        if let Err(panic) = done {
            tracing::error!(error = describe_panic(&*panic), "action thread panicked");
        }
    }

    fn perform_all(&mut self, orders: &Receiver<Act>) {
        while let Some(act) = self.next(orders) {
            let began = (self.clock)();
            // A panic is a bug of ours; it must not leave the loop waiting for an outcome.
            let performed = catch_unwind(AssertUnwindSafe(|| self.perform(&act)))
                .unwrap_or_else(|panic| OutcomeResult::Failed(describe_panic(&*panic)).into());
            let ended = (self.clock)();
            let took = ended.uptime.saturating_sub(began.uptime);
            let report = ActReport { performed, ended, took };
            if self.reports.send(LaneMessage::Performed(report)).is_err() {
                return;
            }
        }
    }

    /// Waits for the next act, and retries unfinished work meanwhile.
    fn next(&mut self, orders: &Receiver<Act>) -> Option<Act> {
        while self.setup.executor.is_unfinished() {
            match orders.recv_timeout(TENDED_EVERY) {
                Ok(act) => return Some(act),
                Err(RecvTimeoutError::Timeout) => self.guarded(|executor| executor.tend()),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        orders.recv().ok()
    }

    fn perform(&mut self, act: &Act) -> Performed {
        let is_undo = act.action.is_undo();
        let unwritten = (self.setup.intent)(act).err();
        // A temporary change is undone even if that cannot be recorded.
        if let Some(error) = &unwritten
            && self.is_intent_awaited
            && !is_undo
        {
            let why = format!("intent could not be written: {error}");
            return OutcomeResult::NotDone(why).into();
        }
        let stage = &self.stage;
        if stage.compare_exchange(INTENDING, ACTING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return OutcomeResult::NotDone("called off".into()).into();
        }
        let late = unwritten.filter(|_| !self.is_intent_awaited);
        let late = late.map(|error| format!("its intent was not on disk when it began: {error}"));
        let Performed { result, effect } = match (self.setup.pause)() {
            Some(pause) if !is_undo => {
                OutcomeResult::NotDone(format!("paused by {}", pause.author)).into()
            }
            _ => self.setup.executor.execute(act),
        };
        Performed { result, effect: late.or(effect) }
    }
}

fn describe_panic(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the action panicked, which is a bug: {}", message.unwrap_or("no message"))
}

struct Supervisor {
    orders: SyncSender<Act>,
    common: Common,
    stage: Arc<AtomicU8>,
    load: Arc<LaneLoad>,
    queue: VecDeque<Act>,
    running: Option<RunningAct>,
    leaving: bool,
}

/// The current act of the performer.
struct RunningAct {
    act: Act,
    began: Duration,
    gives_up: Duration,
    /// Given up: its outcome has been sent.
    given_up: bool,
}

impl Supervisor {
    fn run(mut self, messages: &Receiver<LaneMessage>) {
        loop {
            let waiting_for = self.running.as_ref().filter(|running| !running.given_up);
            if self.leaving && waiting_for.is_none() {
                return;
            }
            let received = match waiting_for {
                Some(running) => {
                    let left = running.gives_up.saturating_sub(self.now().uptime);
                    messages.recv_timeout(left)
                }
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match received {
                Ok(LaneMessage::Act(act)) => self.accept(act),
                Ok(LaneMessage::Performed(report)) => self.performed(report),
                Ok(LaneMessage::Shutdown) => self.leave(),
                Err(RecvTimeoutError::Timeout) => self.give_up(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn now(&self) -> Moment {
        (self.common.clock)()
    }

    fn accept(&mut self, act: Act) {
        if self.leaving {
            self.refuse(&act, "shutting down");
        } else if self.running.as_ref().is_some_and(|running| running.given_up) {
            self.refuse(&act, "an earlier action still hangs");
        } else if self.running.is_some() {
            self.queue.push_back(act);
        } else {
            self.begin(act);
        }
    }

    fn begin(&mut self, act: Act) {
        self.stage.store(INTENDING, Ordering::Release);
        let began = self.now().uptime;
        match self.orders.try_send(act.clone()) {
            Ok(()) => {
                let gives_up = began.saturating_add(self.common.time_limit);
                self.running = Some(RunningAct { act, began, gives_up, given_up: false });
            }
            Err(_) => self.refuse(&act, "the acting thread has ended"),
        }
    }

    fn performed(&mut self, report: ActReport) {
        self.stage.store(IDLE, Ordering::Release);
        let Some(running) = self.running.take() else { return };
        if running.given_up {
            self.load.hanging.store(false, Ordering::Release);
            let (action, result) = (running.act.action.name(), report.performed.result.name());
            let took = report.took;
            tracing::warn!(action, result, ?took, "a given-up action has ended");
        } else {
            self.settle(&running.act, report);
        }
        if let Some(act) = self.queue.pop_front() {
            self.begin(act);
        }
    }

    fn give_up(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        let called_off = self
            .stage
            .compare_exchange(INTENDING, CALLED_OFF, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        let result = if called_off {
            OutcomeResult::NotDone("intent could not be written in time".into())
        } else {
            OutcomeResult::TimedOut
        };
        running.given_up = true;
        self.load.hanging.store(true, Ordering::Release);
        let now = self.now();
        let took = now.uptime.saturating_sub(running.began);
        self.settle(&running.act, ActReport { performed: result.into(), ended: now, took });
        self.running = Some(running);
        self.refuse_queue("an earlier action still hangs");
    }

    fn leave(&mut self) {
        self.leaving = true;
        self.refuse_queue("shutting down");
        let latest = self.now().uptime.saturating_add(SHUTDOWN_GRACE);
        if let Some(running) = &mut self.running {
            running.gives_up = running.gives_up.min(latest);
        }
    }

    fn refuse_queue(&mut self, why: &str) {
        while let Some(act) = self.queue.pop_front() {
            self.refuse(&act, why);
        }
    }

    fn refuse(&self, act: &Act, why: &str) {
        self.settle(act, self.at_once(OutcomeResult::NotDone(why.to_owned())));
    }

    fn at_once(&self, result: OutcomeResult) -> ActReport {
        ActReport { performed: result.into(), ended: self.now(), took: Duration::ZERO }
    }

    fn settle(&self, act: &Act, report: ActReport) {
        self.load.waiting.fetch_sub(1, Ordering::AcqRel);
        let (decision, action) = (act.id, act.action.name().to_owned());
        let ActReport { performed: Performed { result, effect }, ended, took } = report;
        let outcome = Outcome { decision, action, result, ended, took, effect };
        // The loop may be gone.
        let _ = self.common.outcomes.send(outcome);
        (self.common.wake)();
    }
}

#[cfg(test)]
mod tests;
