//! Polls the NVIDIA driver through a child process: starts it, sends requests and reports the
//! responses.

use std::path::Path;
use std::process::{Child as Process, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::thread::sleep;
use std::time::Duration;

use super::child::{Child, ChildOutput};
use super::deadlines::{BackOff, DeadlineStep, OpenRequest};
use super::{BUSY, CALM, GpuSetup, GpuTally, TICK};
use crate::model::{GpuDriver, GpuPicture, GpuReadings, Observation, Reading, Readings, Schema};
use crate::parse::gpu::{MissingGpuPart, QueryResult, Unavailable, response};

/// Paths that exist where an NVIDIA driver is installed: on a machine, on a Jetson, in WSL.
const DRIVER_PATHS: [&str; 3] = ["/dev/nvidiactl", "/dev/nvmap", "/dev/dxg"];
/// Relative to procfs.
const DRIVER_IN_PROCFS: &str = "driver/nvidia";

/// Interval between two checks for a driver while there is none. No process is started for them.
const DETECT_EVERY: Duration = Duration::from_secs(30);

/// A longer gap between two turns is a suspend: deadlines that passed in it do not count.
const SUSPENDED: Duration = Duration::from_secs(5);

/// A child that has closed its output exits within this time, unless it hangs.
const EXIT_WITHIN: Duration = Duration::from_millis(100);
/// A child whose input is closed exits within this time.
const RELEASED_EXIT_WITHIN: Duration = Duration::from_secs(10);

struct RunningChild {
    child: Child,
    /// The time of the request that has no response yet.
    queried_at: Option<Duration>,
    /// The time of the last request; `None` if the next one is due at once.
    last_query: Option<Duration>,
    has_answered: bool,
    is_killed: bool,
}

/// A child that is no longer read.
struct Exiting {
    process: Process,
    since: Duration,
    is_abandoned: bool,
}

pub(super) struct DriverPoller {
    pub(super) setup: GpuSetup,
    pub(super) to: SyncSender<Observation>,
    pub(super) is_busy: Arc<AtomicBool>,
    pub(super) schema: Arc<Schema>,
    running: Option<RunningChild>,
    exiting: Vec<Exiting>,
    /// `None` until the first report.
    driver: Option<GpuDriver>,
    answered_at: Option<Duration>,
    silent_since: Option<Duration>,
    took: Duration,
    number: u64,
    tally: GpuTally,
    back_off: BackOff,
    next_start: Duration,
    next_report: Duration,
    /// The last pass of this thread.
    last_pass: Duration,
    has_failed: bool,
}

impl DriverPoller {
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
            exiting: Vec::new(),
            driver: None,
            answered_at: None,
            silent_since: None,
            took: Duration::ZERO,
            number: 0,
            tally: GpuTally::default(),
            back_off: BackOff::new(),
            next_start: Duration::ZERO,
            next_report: Duration::ZERO,
            last_pass: Duration::ZERO,
            has_failed: false,
        }
    }

    /// Runs until the receiver of the reports is gone. A child that hangs then is abandoned.
    pub(super) fn run(&mut self, ended: &Receiver<()>) {
        loop {
            let now = (self.setup.clock)();
            self.reap(now);
            if self.running.is_none() && now >= self.next_start {
                self.start(now);
            }
            self.query_if_due(now);
            self.report_if_due(now);
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
            self.receive();
            self.check_deadline();
        }
    }

    /// Restarts the deadline of a request after a pause of this thread, most likely a suspend.
    fn extend_deadline_after_pause(&mut self, now: Duration) {
        let last_pass = std::mem::replace(&mut self.last_pass, now);
        if now.saturating_sub(last_pass) > SUSPENDED
            && let Some(RunningChild { queried_at: Some(queried_at), .. }) = &mut self.running
        {
            *queried_at = now;
        }
    }

    fn interval(&self) -> Duration {
        let auto = if self.is_busy.load(Ordering::Relaxed) { BUSY } else { CALM };
        self.setup.interval.unwrap_or(auto)
    }

    /// Time until the next action is due.
    fn rest(&self, now: Duration) -> Duration {
        let is_reported = self.driver.is_some() && !self.is_absent();
        let report_at = if is_reported { self.next_report } else { Duration::MAX };
        let due = match &self.running {
            None => self.next_start,
            Some(RunningChild { queried_at: None, last_query, .. }) => {
                last_query.map_or(now, |queried_at| queried_at + self.interval())
            }
            Some(_) => now + TICK,
        };
        // Wakes once a second while a child runs, so that a changed interval takes effect.
        let longest = if self.running.is_some() { TICK } else { DETECT_EVERY };
        let until = due.min(report_at).saturating_sub(now);
        until.clamp(Duration::from_millis(5), longest)
    }

    fn is_absent(&self) -> bool {
        matches!(self.driver, Some(GpuDriver::Absent { .. }))
    }

    fn has_driver_paths(&self) -> bool {
        let in_procfs = self.setup.procfs.join(DRIVER_IN_PROCFS);
        in_procfs.exists() || DRIVER_PATHS.into_iter().any(|path| Path::new(path).exists())
    }

    fn start(&mut self, now: Duration) {
        if self.setup.library.is_none() && !self.has_driver_paths() {
            let procfs = self.setup.procfs.join(DRIVER_IN_PROCFS);
            let procfs = procfs.display();
            let why =
                format!("no NVIDIA driver: neither {} nor {procfs} is there", DRIVER_PATHS[0]);
            return self.set_unavailable(now, GpuDriver::Absent { why: why.into() }, DETECT_EVERY);
        }
        if self.exiting.len() > self.setup.patience.most_abandoned {
            self.next_start = now + DETECT_EVERY;
            return;
        }
        match Child::start(&self.setup.program, self.setup.library.as_deref()) {
            Ok(child) => {
                self.tally.restarts += u64::from(std::mem::take(&mut self.has_failed));
                self.running = Some(RunningChild {
                    child,
                    queried_at: None,
                    last_query: None,
                    has_answered: false,
                    is_killed: false,
                });
            }
            Err(error) => {
                let program = self.setup.program.display();
                let why =
                    format!("cannot start {program}, which queries the NVIDIA driver: {error}");
                let rest = self.back_off.take();
                self.set_unavailable(now, GpuDriver::Unknown { why: why.into() }, rest);
            }
        }
    }

    /// Records that the driver cannot be polled, and defers the next start.
    fn set_unavailable(&mut self, now: Duration, driver: GpuDriver, rest: Duration) {
        self.next_start = now + rest;
        self.silent_since = None;
        self.driver = Some(driver);
        self.report(now, None);
    }

    fn query_if_due(&mut self, now: Duration) {
        let interval = self.interval();
        let Some(running) = &mut self.running else { return };
        let is_due = running.last_query.is_none_or(|queried_at| now >= queried_at + interval);
        if running.queried_at.is_some() || !is_due {
            return;
        }
        self.number += 1;
        if let Err(error) = running.child.send(self.number) {
            return self.fail(now, &format!("cannot write to its stdin: {error}"));
        }
        (running.queried_at, running.last_query) = (Some(now), Some(now));
    }

    fn receive(&mut self) {
        while let Some(running) = &mut self.running {
            let received = running.child.receive();
            let now = (self.setup.clock)();
            match received {
                ChildOutput::Nothing => return,
                ChildOutput::Line(line) => match response(&line) {
                    Ok(response)
                        if response.number == self.number && running.queried_at.is_some() =>
                    {
                        self.accept_response(now, response.result);
                    }
                    Ok(_) => self.fail(now, "it sent a response without a request"),
                    Err(why) => self.fail(now, &format!("it sent {why}")),
                },
                ChildOutput::TooMuch => self.fail(now, "its response exceeds the size limit"),
                ChildOutput::End => self.fail(now, ""),
            }
        }
    }

    /// Handles a response.
    fn accept_response(&mut self, now: Duration, response: QueryResult) {
        let Some(running) = &mut self.running else { return };
        self.took = now.saturating_sub(running.queried_at.take().unwrap_or(now));
        let is_late = self.took > self.setup.patience.answer_takes(running.has_answered);
        running.has_answered = true;
        self.answered_at = Some(now);
        self.silent_since = None;
        match response {
            QueryResult::Picture(picture) if picture.devices.is_empty() => {
                let why = Arc::from("the NVIDIA driver reports no GPU");
                let rest = self.back_off.take();
                self.release(now, false);
                self.set_unavailable(now, GpuDriver::Absent { why }, rest);
            }
            QueryResult::Picture(picture) => {
                self.back_off.reset();
                // A picture that was collected while the driver hung has no known time.
                let picture = Some(Arc::new(picture)).filter(|_| !is_late);
                if is_late {
                    running.last_query = None;
                }
                self.driver = Some(GpuDriver::Responsive);
                self.report(now, picture);
            }
            QueryResult::Unavailable(nothing) => {
                let rest = self.back_off.take();
                self.release(now, false);
                let driver = self.unavailable_state(nothing);
                self.set_unavailable(now, driver, rest);
            }
        }
    }

    fn unavailable_state(&self, Unavailable { kind, why }: Unavailable) -> GpuDriver {
        match kind {
            MissingGpuPart::Driver => GpuDriver::Absent { why },
            MissingGpuPart::Library if self.setup.library.is_none() && !self.has_driver_paths() => {
                GpuDriver::Absent { why }
            }
            MissingGpuPart::Library => {
                let why = format!("{why}: install NVML, or name its file in gpu.library");
                GpuDriver::Unknown { why: why.into() }
            }
            MissingGpuPart::Usable => GpuDriver::Unknown { why },
        }
    }

    /// Checks the deadline of the open request.
    fn check_deadline(&mut self) {
        let now = (self.setup.clock)();
        self.extend_deadline_after_pause(now);
        let Some(running) = &mut self.running else { return };
        let Some(queried_at) = running.queried_at else { return };
        let waited = now.saturating_sub(queried_at);
        if waited <= self.setup.patience.answer_takes(running.has_answered) {
            return;
        }
        let state = running.child.state();
        let (has_answered, is_killed) = (running.has_answered, running.is_killed);
        let abandoned = self.exiting.len();
        let waiting = OpenRequest { waited, has_answered, state, is_killed, abandoned };
        let step = self.setup.patience.next_step(waiting);
        if matches!(step, DeadlineStep::Kill | DeadlineStep::Abandon) {
            running.child.kill();
            running.is_killed = true;
        }
        let since = *self.silent_since.get_or_insert(queried_at);
        let silent = GpuDriver::Silent { since, process_state: state };
        if self.driver.as_ref() != Some(&silent) {
            self.driver = Some(silent);
            self.report(now, None);
        }
        if step == DeadlineStep::Abandon {
            self.release(now, true);
            // The failed attempt is recorded. The next child may get a response.
            self.next_start = now;
        }
    }

    /// Handles a child that has exited or violated the protocol. A violation kills it.
    fn fail(&mut self, now: Duration, why: &str) {
        let Some(running) = &mut self.running else { return };
        if !why.is_empty() {
            running.child.kill();
        }
        let was_silent = running.is_killed;
        let last_stderr = running.child.last_stderr();
        let ended = self.release(now, false);
        self.has_failed = true;
        self.next_start = now + self.back_off.take();
        // The child was killed because it hung. Its death adds nothing to what is known of the
        // driver.
        if was_silent && self.silent_since.is_some() {
            return;
        }
        let how = match (why, ended) {
            ("", Some(status)) => format!("it ended with {status}"),
            ("", None) => "it closed its output".to_owned(),
            (why, _) => why.to_owned(),
        };
        let detail = match last_stderr.is_empty() {
            true => String::new(),
            false => format!("; its stderr: {last_stderr}"),
        };
        let why = format!("the process that queries the NVIDIA driver failed: {how}{detail}");
        self.silent_since = None;
        self.driver = Some(GpuDriver::Unknown { why: why.into() });
        self.report(now, None);
    }

    /// Releases the child, and returns its exit status if it has exited.
    fn release(&mut self, now: Duration, is_abandoned: bool) -> Option<ExitStatus> {
        let mut process = self.running.take()?.child.release();
        self.tally.abandoned += u64::from(is_abandoned);
        let began = (self.setup.clock)();
        while !is_abandoned && (self.setup.clock)().saturating_sub(began) < EXIT_WITHIN {
            // An error: the process is no longer a child of ours.
            match process.try_wait() {
                Ok(None) => sleep(Duration::from_millis(2)),
                Ok(Some(status)) => return Some(status),
                Err(_) => return None,
            }
        }
        self.exiting.push(Exiting { process, since: now, is_abandoned });
        None
    }

    /// Collects children that have exited, without waiting.
    fn reap(&mut self, now: Duration) {
        let tally = &mut self.tally;
        self.exiting.retain_mut(|exiting| {
            let is_there = matches!(exiting.process.try_wait(), Ok(None));
            let is_late = now.saturating_sub(exiting.since) > RELEASED_EXIT_WITHIN;
            if is_there && is_late && !exiting.is_abandoned {
                // It ignores the end of its input. It is killed once; one that survives hangs in
                // the kernel.
                let _ = exiting.process.kill();
                exiting.is_abandoned = true;
                tally.abandoned += 1;
            }
            is_there
        });
    }

    fn report_if_due(&mut self, now: Duration) {
        if now >= self.next_report && self.driver.is_some() && !self.is_absent() {
            self.report(now, None);
        }
    }

    fn report(&mut self, now: Duration, picture: Option<Arc<GpuPicture>>) {
        let Some(driver) = self.driver.clone() else { return };
        self.next_report = now + TICK;
        self.report_source(now, &driver);
        // An unchanged state is not reported again before the next response.
        if picture.is_none() && driver == GpuDriver::Responsive && self.answered_at != Some(now) {
            return;
        }
        let current = self.running.iter().map(|running| running.child.pid());
        let askers = current.chain(self.exiting.iter().map(|exiting| exiting.process.id()));
        self.send(Observation::Gpu(Box::new(GpuReadings {
            read_at: now,
            driver,
            answered_at: self.answered_at,
            askers: askers.collect(),
            picture,
        })));
    }

    /// Reports the state of the source. An absent driver is an error only if there was one before.
    fn report_source(&self, now: Duration, driver: &GpuDriver) {
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
                Some(
                    format!(
                        "the NVIDIA driver does not respond: the process that queries it {hangs}"
                    )
                    .into(),
                )
            }
        };
        let responsive = match driver {
            GpuDriver::Absent { .. } => Reading::Unsupported,
            GpuDriver::Unknown { .. } => Reading::Failed,
            GpuDriver::Responsive => Reading::Value(1.0),
            GpuDriver::Silent { .. } => Reading::Value(0.0),
        };
        let age = self.answered_at.map(|answered| now.saturating_sub(answered).as_secs_f64());
        let hanging = self.exiting.iter().filter(|exiting| exiting.is_abandoned).count();
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
        // The queue is full. The next report repeats this one.
        let _ = self.to.try_send(observation);
    }
}
