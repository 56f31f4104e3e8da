//! Acts outside the watching loop, one action at a time, and reports.
//!
//! Two threads: the performer writes the intent and acts, and may hang in the kernel for as long as
//! it likes; the supervisor never does anything that blocks, and tells the loop what became of each
//! decision. While a hanging action has not returned, no other is begun.
//!
//! The brake has two of its own. What hangs in the first lane, and a disk that does not answer,
//! must not hold up what saves the machine: its intent is on its way to the disk when it acts, and
//! it waits only shortly for that to arrive. So have starts: a supervisor that does not answer
//! holds up nothing but other starts.
//!
//! So has the reboot, once there is anything to do for one: what hangs in the first lane is often
//! why. But nothing of it is done before its intent is on the disk.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::{DryRun, Executor};
use crate::model::{Decision, Lane, Mode, Moment, Outcome, OutcomeResult, Verdict};

/// Decisions that may wait behind the one under way.
const QUEUE: usize = 8;

/// How long a shutdown waits for an action under way.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(700);

/// Time that the supervisor has to say goodbye after the grace.
const SHUTDOWN_MARGIN: Duration = Duration::from_millis(200);

/// How long a shutdown waits until everything is put back that was changed for a while, and engines
/// that were paused go on. Without that it takes no time.
const UNDOING_TAKES: Duration = Duration::from_secs(10);

/// How often what is left of an act is tried once more.
const TENDED_EVERY: Duration = Duration::from_secs(10);

/// A limit that fits most machines: dropping and compacting hundreds of GiB takes seconds.
pub const DEFAULT_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Writes down that a decision is about to be carried out; an error says why it could not, or not
/// yet.
pub type Intent = Box<dyn Fn(&Decision) -> Result<(), String> + Send>;

/// What a worker needs from the daemon.
pub struct WorkerSetup {
    /// Who acts, in enforce mode.
    pub executor: Box<dyn Executor + Send>,
    /// Asked before each act. If it fails, nothing is done.
    pub intent: Intent,
    /// Who stops engines, in enforce mode, whatever the first one does.
    pub brake: Box<dyn Executor + Send>,
    /// Asked before the brake acts, and bound to return within milliseconds. If it fails, that is
    /// told, and nothing else.
    pub brake_intent: Intent,
    /// Who reboots, in enforce mode, whatever the others do. Its intents are awaited as those of
    /// the first one.
    pub rebooter: Box<dyn Executor + Send>,
    /// Asked before each of its acts. If it fails, nothing is done.
    pub reboot_intent: Intent,
    /// Who has supervisors start something, in enforce mode. Supervisors may not answer.
    pub starter: Box<dyn Executor + Send>,
    /// Asked before each start. If it fails, nothing is started.
    pub start_intent: Intent,
    /// Where outcomes go.
    pub outcomes: Sender<Outcome>,
    /// Called after each outcome has been sent: wakes the loop.
    pub wake: Box<dyn Fn() + Send + Sync>,
    /// Reads both clocks.
    pub clock: fn() -> Moment,
    /// How long an action, its intent included, may take before it is given up.
    pub time_limit: Duration,
    /// From then on no engine is paused any more. Tells whether one is: a shutdown waits until it
    /// goes on.
    pub end_pauses: Box<dyn Fn() -> bool + Send>,
}

impl fmt::Debug for WorkerSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerSetup").field("time_limit", &self.time_limit).finish_non_exhaustive()
    }
}

/// No more can be taken on now: an action hangs, or too many wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another action is under way")]
pub struct Busy;

/// The worker. Dropping it shuts it down without waiting.
#[derive(Debug)]
pub struct ActionWorker {
    ordinary: Crew,
    brake: Crew,
    starter: Crew,
    reboot: Mutex<SpareCrew>,
    clock: fn() -> Moment,
    end_pauses: EndPauses,
}

/// Asked at a shutdown.
struct EndPauses(Box<dyn Fn() -> bool + Send>);

impl fmt::Debug for EndPauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndPauses")
    }
}

/// A crew whose threads are started when it is first wanted: on most machines never.
enum SpareCrew {
    /// Nothing was to be done yet.
    Unused(Box<(Box<dyn Executor + Send>, Writing, Common)>),
    /// It runs.
    Running(Crew),
    /// Its threads could not be started.
    Lost,
}

impl fmt::Debug for SpareCrew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpareCrew")
    }
}

impl SpareCrew {
    fn submit(&mut self, decision: Decision) -> Result<(), Busy> {
        if let Self::Unused(_) = self
            && let Self::Unused(parts) = std::mem::replace(self, Self::Lost)
        {
            let (executor, writing, common) = *parts;
            match Crew::start(["reboot", "reboot-watch"], executor, writing, common) {
                Ok(crew) => *self = Self::Running(crew),
                Err(error) => tracing::error!("cannot start the thread that reboots: {error}"),
            }
        }
        match self {
            Self::Running(crew) => crew.submit(decision),
            Self::Unused(_) | Self::Lost => Err(Busy),
        }
    }

    fn running(&self) -> Option<&Crew> {
        match self {
            Self::Running(crew) => Some(crew),
            Self::Unused(_) | Self::Lost => None,
        }
    }
}

/// The two threads of a lane: one action at a time.
#[derive(Debug)]
struct Crew {
    inbox: Sender<Message>,
    load: Arc<Load>,
    ended: Receiver<()>,
    undone: Receiver<()>,
}

#[derive(Debug, Default)]
struct Load {
    waiting: AtomicUsize,
    hanging: AtomicBool,
}

#[derive(Debug)]
enum Message {
    Decision(Decision),
    Performed(Performed),
    Shutdown,
}

/// What became of a decision.
#[derive(Debug)]
struct Performed {
    result: OutcomeResult,
    /// What else is to be told of it.
    effect: Option<String>,
    ended: Moment,
    took: Duration,
}

/// What all lanes need.
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
        let WorkerSetup { executor, intent, brake, brake_intent, .. } = setup;
        let WorkerSetup { rebooter, reboot_intent, .. } = setup;
        let WorkerSetup { starter, start_intent, .. } = setup;
        let WorkerSetup { outcomes, wake, clock, time_limit, end_pauses, .. } = setup;
        let common = Common { outcomes, wake: wake.into(), clock, time_limit };
        let ordinary = Writing { intent, is_awaited: true };
        let hurried = Writing { intent: brake_intent, is_awaited: false };
        let patient = Writing { intent: start_intent, is_awaited: true };
        let last = Writing { intent: reboot_intent, is_awaited: true };
        Ok(Self {
            ordinary: Crew::start(["act", "act-watch"], executor, ordinary, common.clone())?,
            brake: Crew::start(["brake", "brake-watch"], brake, hurried, common.clone())?,
            starter: Crew::start(["start", "start-watch"], starter, patient, common.clone())?,
            reboot: Mutex::new(SpareCrew::Unused(Box::new((rebooter, last, common)))),
            clock,
            end_pauses: EndPauses(end_pauses),
        })
    }

    /// Takes on a decision; each one that is taken on gets exactly one outcome. In observe mode
    /// that is Skipped, at once.
    pub fn submit(&self, decision: Decision) -> Result<(), Busy> {
        let crew = match decision.action.lane() {
            Lane::Ordinary => &self.ordinary,
            Lane::Brake => &self.brake,
            Lane::Start => &self.starter,
            Lane::Reboot => return self.reboot_crew().submit(decision),
        };
        crew.submit(decision)
    }

    fn reboot_crew(&self) -> MutexGuard<'_, SpareCrew> {
        self.reboot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the worker within a second: an action under way gets most of that to end, and is
    /// reported as timed out otherwise; what waits is reported as not done. All outcomes have been
    /// sent when this returns. Where something was changed for a while, it may take longer to put
    /// that back; after an action that hangs only the next start can.
    pub fn shutdown(self) {
        let now = || (self.clock)().uptime;
        let latest = now().saturating_add(SHUTDOWN_GRACE + SHUTDOWN_MARGIN);
        let reboot = self.reboot_crew();
        let all = [Some(&self.ordinary), Some(&self.brake), Some(&self.starter), reboot.running()];
        let crews = all.map(|crew| crew.map(|crew| (crew, crew.leave())));
        for (crew, _) in crews.iter().flatten().filter(|(_, is_there)| *is_there) {
            let _ = crew.ended.recv_timeout(latest.saturating_sub(now()));
        }
        let ordinary = &self.ordinary;
        // An act that has paused an engine does not hang: it is about to have it go on.
        let is_any_paused = (self.end_pauses.0)();
        let hangs = ordinary.load.hanging.load(Ordering::Acquire) && !is_any_paused;
        let was_there = crews[0].is_some_and(|(_, was_there)| was_there);
        if was_there && !hangs && ordinary.undone.recv_timeout(UNDOING_TAKES).is_err() {
            tracing::error!("not all temporary settings are back: the next start undoes them");
        }
    }
}

impl Drop for ActionWorker {
    fn drop(&mut self) {
        for crew in [&self.ordinary, &self.brake, &self.starter] {
            crew.leave();
        }
        self.reboot_crew().running().map(Crew::leave);
    }
}

impl Crew {
    fn start(
        names: [&str; 2],
        executor: Box<dyn Executor + Send>,
        writing: Writing,
        common: Common,
    ) -> std::io::Result<Self> {
        let (inbox, messages) = channel();
        let (orders, ordered) = sync_channel(1);
        let (goodbye, ended) = sync_channel(1);
        let (last_done, undone) = sync_channel(1);
        let load = Arc::new(Load::default());
        let stage = Arc::new(AtomicU8::new(IDLE));
        let performer = Performer {
            executor,
            writing,
            clock: common.clock,
            stage: Arc::clone(&stage),
            reports: inbox.clone(),
        };
        let [act, watch] = names.map(str::to_owned);
        thread::Builder::new().name(act).spawn(move || {
            performer.run(&ordered);
            // Whoever waits for this may have gone.
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
            // Whoever waits for this may have gone.
            let _ = goodbye.send(());
        })?;
        Ok(Self { inbox, load, ended, undone })
    }

    fn submit(&self, decision: Decision) -> Result<(), Busy> {
        if acts(&decision) {
            if self.load.hanging.load(Ordering::Acquire) {
                return Err(Busy);
            }
            if self.load.waiting.fetch_add(1, Ordering::AcqRel) >= QUEUE {
                self.load.waiting.fetch_sub(1, Ordering::AcqRel);
                return Err(Busy);
            }
        }
        self.inbox.send(Message::Decision(decision)).map_err(|_| Busy)
    }

    /// Has it end; returns whether it was there.
    fn leave(&self) -> bool {
        self.inbox.send(Message::Shutdown).is_ok()
    }
}

fn acts(decision: &Decision) -> bool {
    decision.mode == Mode::Enforce && decision.verdict == Verdict::Act
}

/// How far the performer has come with a decision; who moves it first, wins.
const IDLE: u8 = 0;
/// Writing the intent: it can still be called off.
const INTENDING: u8 = 1;
/// Called off: the intent came too late.
const CALLED_OFF: u8 = 2;
/// Acting: it can no longer be called off.
const ACTING: u8 = 3;

/// How intents are written.
struct Writing {
    intent: Intent,
    /// Nothing is done before it is written.
    is_awaited: bool,
}

struct Performer {
    executor: Box<dyn Executor + Send>,
    writing: Writing,
    clock: fn() -> Moment,
    stage: Arc<AtomicU8>,
    reports: Sender<Message>,
}

impl Performer {
    fn run(mut self, orders: &Receiver<Decision>) {
        self.guarded(|executor| executor.begin());
        self.perform_all(orders);
        self.guarded(|executor| executor.end());
    }

    fn guarded(&mut self, work: impl FnOnce(&mut (dyn Executor + Send))) {
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut *self.executor)));
        if let Err(panic) = done {
            tracing::error!("{}", describe_panic(&*panic));
        }
    }

    fn perform_all(&mut self, orders: &Receiver<Decision>) {
        while let Some(decision) = self.next(orders) {
            let began = (self.clock)();
            // A panic is a bug of ours; it must not leave the loop waiting for an outcome.
            let (result, effect) = catch_unwind(AssertUnwindSafe(|| self.perform(&decision)))
                .unwrap_or_else(|panic| (OutcomeResult::Failed(describe_panic(&*panic)), None));
            let ended = (self.clock)();
            let took = ended.uptime.saturating_sub(began.uptime);
            let performed = Performed { result, effect, ended, took };
            if self.reports.send(Message::Performed(performed)).is_err() {
                return;
            }
        }
    }

    /// Waits for the next decision, and tends meanwhile what is left of earlier ones.
    fn next(&mut self, orders: &Receiver<Decision>) -> Option<Decision> {
        while self.executor.is_unfinished() {
            match orders.recv_timeout(TENDED_EVERY) {
                Ok(decision) => return Some(decision),
                Err(RecvTimeoutError::Timeout) => self.guarded(|executor| executor.tend()),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        orders.recv().ok()
    }

    /// Carries it out; returns what else is to be told of it, too.
    fn perform(&mut self, decision: &Decision) -> (OutcomeResult, Option<String>) {
        let Writing { intent, is_awaited } = &self.writing;
        let unwritten = intent(decision).err();
        // What was changed is put back whether or not it can be written down.
        if let Some(error) = &unwritten
            && *is_awaited
            && !decision.action.is_undo()
        {
            let why = format!("intent could not be written: {error}");
            return (OutcomeResult::NotDone(why), None);
        }
        let late = unwritten.filter(|_| !*is_awaited);
        let late = late.map(|error| format!("its intent was not on disk when it began: {error}"));
        match self.stage.compare_exchange(INTENDING, ACTING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                let result = self.executor.execute(decision);
                let effect = self.executor.effect();
                (result, late.or(effect))
            }
            Err(_) => (OutcomeResult::NotDone("called off".into()), None),
        }
    }
}

fn describe_panic(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the action panicked, which is a bug: {}", message.unwrap_or("no message"))
}

struct Supervisor {
    orders: SyncSender<Decision>,
    common: Common,
    stage: Arc<AtomicU8>,
    load: Arc<Load>,
    queue: VecDeque<Decision>,
    running: Option<Running>,
    leaving: bool,
}

/// What the performer is busy with.
struct Running {
    decision: Decision,
    began: Duration,
    gives_up: Duration,
    /// Given up: its outcome has been sent.
    given_up: bool,
}

impl Supervisor {
    fn run(mut self, messages: &Receiver<Message>) {
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
                Ok(Message::Decision(decision)) => self.accept(decision),
                Ok(Message::Performed(performed)) => self.performed(performed),
                Ok(Message::Shutdown) => self.leave(),
                Err(RecvTimeoutError::Timeout) => self.give_up(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn now(&self) -> Moment {
        (self.common.clock)()
    }

    fn accept(&mut self, decision: Decision) {
        if !acts(&decision) {
            let result = DryRun.execute(&decision);
            self.report(&decision, self.at_once(result));
        } else if self.leaving {
            self.refuse(&decision, "shutting down");
        } else if self.running.as_ref().is_some_and(|running| running.given_up) {
            self.refuse(&decision, "an earlier action still hangs");
        } else if self.running.is_some() {
            self.queue.push_back(decision);
        } else {
            self.begin(decision);
        }
    }

    fn begin(&mut self, decision: Decision) {
        self.stage.store(INTENDING, Ordering::Release);
        let began = self.now().uptime;
        match self.orders.try_send(decision.clone()) {
            Ok(()) => {
                let gives_up = began.saturating_add(self.common.time_limit);
                self.running = Some(Running { decision, began, gives_up, given_up: false });
            }
            Err(_) => self.refuse(&decision, "the acting thread has ended"),
        }
    }

    fn performed(&mut self, performed: Performed) {
        self.stage.store(IDLE, Ordering::Release);
        let Some(running) = self.running.take() else { return };
        if running.given_up {
            self.load.hanging.store(false, Ordering::Release);
            let (action, result) = (running.decision.action.name(), performed.result.name());
            let took = performed.took;
            tracing::warn!(action, result, ?took, "a given-up action has ended");
        } else {
            self.settle(&running.decision, performed);
        }
        if let Some(decision) = self.queue.pop_front() {
            self.begin(decision);
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
        let given_up = Performed { result, effect: None, ended: now, took };
        self.settle(&running.decision, given_up);
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
        while let Some(decision) = self.queue.pop_front() {
            self.refuse(&decision, why);
        }
    }

    fn refuse(&self, decision: &Decision, why: &str) {
        self.settle(decision, self.at_once(OutcomeResult::NotDone(why.to_owned())));
    }

    fn at_once(&self, result: OutcomeResult) -> Performed {
        Performed { result, effect: None, ended: self.now(), took: Duration::ZERO }
    }

    /// Reports on a decision that counted as load.
    fn settle(&self, decision: &Decision, performed: Performed) {
        self.load.waiting.fetch_sub(1, Ordering::AcqRel);
        self.report(decision, performed);
    }

    fn report(&self, decision: &Decision, performed: Performed) {
        let action = decision.action.name().to_owned();
        let Performed { result, effect, ended, took } = performed;
        let decision = decision.id;
        // The loop may have gone; then nobody wants to know.
        let outcome = Outcome { decision, action, result, ended, took, effect };
        let _ = self.common.outcomes.send(outcome);
        (self.common.wake)();
    }
}

#[cfg(test)]
mod tests;
