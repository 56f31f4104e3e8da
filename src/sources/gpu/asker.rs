//! Has the driver asked: starts the process that does, asks it, and tells what came of it.

use std::path::Path;
use std::process::{Child as Process, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::thread::sleep;
use std::time::Duration;

use super::child::{Child, Heard};
use super::course::{BackOff, Step, Waiting};
use super::{BUSY, CALM, GpuSetup, TICK, Tally};
use crate::model::{GpuDriver, GpuPicture, GpuReadings, Observation, Reading, Readings, Schema};
use crate::parse::gpu::{Lack, Nothing, Told, answer};

/// What is there where an NVIDIA driver is: of a machine, of a Jetson, of WSL.
const TRACES: [&str; 3] = ["/dev/nvidiactl", "/dev/nvmap", "/dev/dxg"];
/// Below procfs.
const TRACE_IN_PROCFS: &str = "driver/nvidia";

/// Between two looks for a driver where none is; nothing is started for it.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Whoever was away for longer, as in a suspend, cannot say that others are late.
const AWAY: Duration = Duration::from_secs(5);

/// A process that has said its last has ended by then, unless it hangs at that.
const ENDING_TAKES: Duration = Duration::from_millis(100);
/// One that has been told to end has ended by then.
const LEAVING_TAKES: Duration = Duration::from_secs(10);

/// The process that asks.
struct Running {
    child: Child,
    /// When it was asked what it has not answered yet.
    asked: Option<Duration>,
    /// When it was asked last, unless that is to be done at once.
    asked_last: Option<Duration>,
    has_answered: bool,
    is_killed: bool,
}

/// One that nobody listens to any more.
struct Leaving {
    process: Process,
    since: Duration,
    /// Whether it hangs in the kernel.
    is_abandoned: bool,
}

/// The thread's state.
pub(super) struct Asker {
    pub(super) setup: GpuSetup,
    pub(super) to: SyncSender<Observation>,
    pub(super) is_busy: Arc<AtomicBool>,
    pub(super) schema: Arc<Schema>,
    running: Option<Running>,
    leaving: Vec<Leaving>,
    /// `None` until there is something to tell.
    driver: Option<GpuDriver>,
    answered_at: Option<Duration>,
    silent_since: Option<Duration>,
    took: Duration,
    number: u64,
    tally: Tally,
    back_off: BackOff,
    next_start: Duration,
    next_tell: Duration,
    /// When this thread ran last.
    ran: Duration,
    has_died: bool,
}

impl Asker {
    pub(super) fn new(
        setup: GpuSetup,
        to: SyncSender<Observation>,
        is_busy: Arc<AtomicBool>,
        schema: Arc<Schema>,
    ) -> Self {
        Self {
            setup,
            to,
            is_busy,
            schema,
            running: None,
            leaving: Vec::new(),
            driver: None,
            answered_at: None,
            silent_since: None,
            took: Duration::ZERO,
            number: 0,
            tally: Tally::default(),
            back_off: BackOff::new(),
            next_start: Duration::ZERO,
            next_tell: Duration::ZERO,
            ran: Duration::ZERO,
            has_died: false,
        }
    }

    /// Until nobody can want to know any more. Whatever hangs then is left behind.
    pub(super) fn run(&mut self, ended: &Receiver<()>) {
        loop {
            let now = (self.setup.clock)();
            self.reap(now);
            if self.running.is_none() && now >= self.next_start {
                self.start(now);
            }
            self.ask_if_due(now);
            self.tell_if_due(now);
            let rest = self.rest(now);
            let is_over = match &self.running {
                Some(running) => {
                    running.child.wait(rest);
                    ended.try_recv() == Err(TryRecvError::Disconnected)
                }
                None => ended.recv_timeout(rest) == Err(RecvTimeoutError::Disconnected),
            };
            if is_over {
                return;
            }
            self.hear();
            self.judge();
        }
    }

    /// Gives the process that asks its time anew where this thread did not run for a while, most
    /// likely since nothing did.
    fn make_up_for_absence(&mut self, now: Duration) {
        let ran = std::mem::replace(&mut self.ran, now);
        if now.saturating_sub(ran) > AWAY
            && let Some(Running { asked: Some(asked), .. }) = &mut self.running
        {
            *asked = now;
        }
    }

    fn interval(&self) -> Duration {
        let auto = if self.is_busy.load(Ordering::Relaxed) { BUSY } else { CALM };
        self.setup.interval.unwrap_or(auto)
    }

    /// Until something is due.
    fn rest(&self, now: Duration) -> Duration {
        let is_told = self.driver.is_some() && !self.is_absent();
        let tell = if is_told { self.next_tell } else { Duration::MAX };
        let due = match &self.running {
            None => self.next_start,
            Some(Running { asked: None, asked_last, .. }) => {
                asked_last.map_or(now, |asked| asked + self.interval())
            }
            Some(_) => now + TICK,
        };
        // It is looked after once a second, so that a pace that has changed is kept.
        let longest = if self.running.is_some() { TICK } else { LOOK_AGAIN };
        let until = due.min(tell).saturating_sub(now);
        until.clamp(Duration::from_millis(5), longest)
    }

    fn is_absent(&self) -> bool {
        matches!(self.driver, Some(GpuDriver::Absent { .. }))
    }

    /// Whether something says that there is a driver.
    fn has_traces(&self) -> bool {
        let in_procfs = self.setup.procfs.join(TRACE_IN_PROCFS);
        in_procfs.exists() || TRACES.into_iter().any(|path| Path::new(path).exists())
    }

    fn start(&mut self, now: Duration) {
        if self.setup.library.is_none() && !self.has_traces() {
            let procfs = self.setup.procfs.join(TRACE_IN_PROCFS);
            let procfs = procfs.display();
            let why = format!("no NVIDIA driver: neither {} nor {procfs} is there", TRACES[0]);
            return self.lacks(now, GpuDriver::Absent { why: why.into() }, LOOK_AGAIN);
        }
        if self.leaving.len() > self.setup.patience.most_abandoned {
            self.next_start = now + LOOK_AGAIN;
            return;
        }
        match Child::start(&self.setup.program, self.setup.library.as_deref()) {
            Ok(child) => {
                self.tally.restarts += u64::from(std::mem::take(&mut self.has_died));
                self.running = Some(Running {
                    child,
                    asked: None,
                    asked_last: None,
                    has_answered: false,
                    is_killed: false,
                });
            }
            Err(error) => {
                let program = self.setup.program.display();
                let why = format!(
                    "the process that asks the NVIDIA driver cannot be started ({program}): {error}"
                );
                let rest = self.back_off.take();
                self.lacks(now, GpuDriver::Unknown { why: why.into() }, rest);
            }
        }
    }

    /// There is nothing to ask for a while.
    fn lacks(&mut self, now: Duration, driver: GpuDriver, rest: Duration) {
        self.next_start = now + rest;
        self.silent_since = None;
        self.driver = Some(driver);
        self.tell(now, None);
    }

    fn ask_if_due(&mut self, now: Duration) {
        let interval = self.interval();
        let Some(running) = &mut self.running else { return };
        let is_due = running.asked_last.is_none_or(|asked| now >= asked + interval);
        if running.asked.is_some() || !is_due {
            return;
        }
        self.number += 1;
        if let Err(error) = running.child.ask(self.number) {
            return self.died(now, &format!("it takes no questions: {error}"));
        }
        (running.asked, running.asked_last) = (Some(now), Some(now));
    }

    fn hear(&mut self) {
        while let Some(running) = &mut self.running {
            let heard = running.child.hear();
            let now = (self.setup.clock)();
            match heard {
                Heard::Nothing => return,
                Heard::Line(line) => match answer(&line) {
                    Ok(told) if told.number == self.number && running.asked.is_some() => {
                        self.take(now, told.told);
                    }
                    Ok(_) => self.died(now, "it answered what nobody had asked"),
                    Err(why) => self.died(now, &format!("it gave {why}")),
                },
                Heard::TooMuch => self.died(now, "its answer has no end"),
                Heard::End => self.died(now, ""),
            }
        }
    }

    /// An answer has come.
    fn take(&mut self, now: Duration, told: Told) {
        let Some(running) = &mut self.running else { return };
        self.took = now.saturating_sub(running.asked.take().unwrap_or(now));
        let is_late = self.took > self.setup.patience.answer_takes(running.has_answered);
        running.has_answered = true;
        self.answered_at = Some(now);
        self.silent_since = None;
        match told {
            Told::Picture(picture) if picture.devices.is_empty() => {
                let why = Arc::from("the NVIDIA driver knows no GPU");
                let rest = self.back_off.take();
                self.leave(now, false);
                self.lacks(now, GpuDriver::Absent { why }, rest);
            }
            Told::Picture(picture) => {
                self.back_off.reset();
                // What was collected while the driver hung is of nobody knows when.
                let picture = Some(Arc::new(picture)).filter(|_| !is_late);
                if is_late {
                    running.asked_last = None;
                }
                self.driver = Some(GpuDriver::Responsive);
                self.tell(now, picture);
            }
            Told::Nothing(nothing) => {
                let rest = self.back_off.take();
                self.leave(now, false);
                let driver = self.lacking(nothing);
                self.lacks(now, driver, rest);
            }
        }
    }

    fn lacking(&self, Nothing { kind, why }: Nothing) -> GpuDriver {
        match kind {
            Lack::Driver => GpuDriver::Absent { why },
            Lack::Library if self.setup.library.is_none() && !self.has_traces() => {
                GpuDriver::Absent { why }
            }
            Lack::Library => {
                let why = format!("{why}: install NVML, or name its file in gpu.library");
                GpuDriver::Unknown { why: why.into() }
            }
            Lack::Usable => GpuDriver::Unknown { why },
        }
    }

    /// It is late, perhaps.
    fn judge(&mut self) {
        let now = (self.setup.clock)();
        self.make_up_for_absence(now);
        let Some(running) = &mut self.running else { return };
        let Some(asked) = running.asked else { return };
        let waited = now.saturating_sub(asked);
        if waited <= self.setup.patience.answer_takes(running.has_answered) {
            return;
        }
        let state = running.child.state();
        let (has_answered, is_killed) = (running.has_answered, running.is_killed);
        let abandoned = self.leaving.len();
        let waiting = Waiting { waited, has_answered, state, is_killed, abandoned };
        let step = self.setup.patience.judge(waiting);
        if matches!(step, Step::Kill | Step::Abandon) {
            running.child.kill();
            running.is_killed = true;
        }
        let since = *self.silent_since.get_or_insert(asked);
        let silent = GpuDriver::Silent { since, process_state: state };
        if self.driver.as_ref() != Some(&silent) {
            self.driver = Some(silent);
            self.tell(now, None);
        }
        if step == Step::Abandon {
            self.leave(now, true);
            // That one was asked in vain is known; the next one may be luckier.
            self.next_start = now;
        }
    }

    /// It has ended, or says what it must not: then it is made to end.
    fn died(&mut self, now: Duration, why: &str) {
        let Some(running) = &mut self.running else { return };
        if !why.is_empty() {
            running.child.kill();
        }
        let was_silent = running.is_killed;
        let words = running.child.last_words();
        let ended = self.leave(now, false);
        self.has_died = true;
        self.next_start = now + self.back_off.take();
        // That it was killed since it hung says no more of the driver than before.
        if was_silent && self.silent_since.is_some() {
            return;
        }
        let how = match (why, ended) {
            ("", Some(status)) => format!("it ended with {status}"),
            ("", None) => "it says no more".to_owned(),
            (why, _) => why.to_owned(),
        };
        let words = if words.is_empty() { String::new() } else { format!("; it said: {words}") };
        let why = format!("the process that asks the NVIDIA driver fails: {how}{words}");
        self.silent_since = None;
        self.driver = Some(GpuDriver::Unknown { why: why.into() });
        self.tell(now, None);
    }

    /// Lets go of the process that asks. How it has ended, if it has.
    fn leave(&mut self, now: Duration, is_abandoned: bool) -> Option<ExitStatus> {
        let mut process = self.running.take()?.child.leave();
        self.tally.abandoned += u64::from(is_abandoned);
        let began = (self.setup.clock)();
        while !is_abandoned && (self.setup.clock)().saturating_sub(began) < ENDING_TAKES {
            // An error: it is no child of ours any more.
            match process.try_wait() {
                Ok(None) => sleep(Duration::from_millis(2)),
                Ok(Some(status)) => return Some(status),
                Err(_) => return None,
            }
        }
        self.leaving.push(Leaving { process, since: now, is_abandoned });
        None
    }

    /// Takes in who has ended meanwhile, without waiting.
    fn reap(&mut self, now: Duration) {
        let tally = &mut self.tally;
        self.leaving.retain_mut(|leaving| {
            let is_there = matches!(leaving.process.try_wait(), Ok(None));
            let is_late = now.saturating_sub(leaving.since) > LEAVING_TAKES;
            if is_there && is_late && !leaving.is_abandoned {
                // Told to end, and does not: it is killed once, and hangs in the kernel.
                let _gone = leaving.process.kill();
                leaving.is_abandoned = true;
                tally.abandoned += 1;
            }
            is_there
        });
    }

    fn tell_if_due(&mut self, now: Duration) {
        if now >= self.next_tell && self.driver.is_some() && !self.is_absent() {
            self.tell(now, None);
        }
    }

    fn tell(&mut self, now: Duration, picture: Option<Arc<GpuPicture>>) {
        let Some(driver) = self.driver.clone() else { return };
        self.next_tell = now + TICK;
        self.tell_source(now, &driver);
        // What has not changed since the last answer need not be told.
        if picture.is_none() && driver == GpuDriver::Responsive && self.answered_at != Some(now) {
            return;
        }
        let asking = self.running.iter().map(|running| running.child.pid());
        let askers = asking.chain(self.leaving.iter().map(|leaving| leaving.process.id()));
        self.send(Observation::Gpu(Box::new(GpuReadings {
            read_at: now,
            driver,
            answered_at: self.answered_at,
            askers: askers.collect(),
            picture,
        })));
    }

    /// How the source fares. Without a driver nothing is lacking, unless there was one.
    fn tell_source(&self, now: Duration, driver: &GpuDriver) {
        let is_wanted = self.answered_at.is_some() || self.setup.library.is_some();
        let error = match driver {
            GpuDriver::Responsive => None,
            GpuDriver::Absent { .. } if !is_wanted => return,
            GpuDriver::Absent { why } | GpuDriver::Unknown { why } => Some(Arc::clone(why)),
            GpuDriver::Silent { process_state, .. } => {
                let hangs = match process_state {
                    Some('D') => "hangs in the kernel",
                    Some(_) | None => "waits",
                };
                Some(format!("the NVIDIA driver does not answer: who asks it {hangs}").into())
            }
        };
        let responsive = match driver {
            GpuDriver::Absent { .. } => Reading::Unsupported,
            GpuDriver::Unknown { .. } => Reading::Failed,
            GpuDriver::Responsive => Reading::Value(1.0),
            GpuDriver::Silent { .. } => Reading::Value(0.0),
        };
        let age = self.answered_at.map(|answered| now.saturating_sub(answered).as_secs_f64());
        let hanging = self.leaving.iter().filter(|leaving| leaving.is_abandoned).count();
        let values = vec![
            responsive,
            Reading::from(age),
            Reading::Value(self.tally.restarts as f64),
            Reading::Value(self.tally.abandoned as f64),
            Reading::Value(hanging as f64),
        ];
        let source = super::SOURCE;
        let (schema, took) = (Arc::clone(&self.schema), self.took);
        self.send(Observation::Readings(Readings { source, schema, values, took, error }));
    }

    fn send(&self, observation: Observation) {
        // What the loop does not take in time is told again.
        let _full = self.to.try_send(observation);
    }
}
