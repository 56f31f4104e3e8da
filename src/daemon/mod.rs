//! The loop: sources are read, the policy is stepped, its results are journalled and carried out.
//!
//! It runs on the main thread, and sleeps in poll(2) over the kernel log and an eventfd. It waits
//! for neither disk nor network: the journal, the actions and the HTTP server have threads of their
//! own.

mod alerting;
mod alive;
mod batching;
mod begin;
mod black_box;
pub mod clock;
mod cluster;
mod entrance;
mod evicting;
mod first;
mod gang_starts;
#[cfg_attr(not(feature = "kubernetes"), path = "no_kubernetes.rs")]
mod kubernetes;
mod leases;
pub mod now;
mod nvsentinel;
mod orders;
mod otlp;
mod own;
mod past;
mod pause;
pub(crate) mod peers;
mod posted;
mod preflight;
mod priority;
mod queries;
mod reaction;
mod recorder;
mod refill;
mod reloading;
mod report;
mod samples;
mod sampling;
mod service;
mod settling;
mod signals;
mod thinning;
mod wake;
mod watchdog;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::actions::{Act, ActionWorker, notify};
use crate::config::reader::LoadedConfig;
use crate::config::settings::Settings;
use crate::journal::{Journal, JournalEntry, Note};
use crate::model::{
    DecisionRecord, Event, Moment, Observation, OperatorCommand, Outcome, OutcomeResult,
    ProgramEvent,
};
use crate::otlp::Otlp;
use crate::policy::memory_ring::MemoryFeed;
use crate::policy::status::Status;
use crate::policy::{CommandResult, Policy, Step};
use crate::sources::cluster::ClusterWatch;
use crate::sources::deferred::DeferredWatch;
use crate::sources::engines::EngineWatch;
use crate::sources::gpu::GpuWatch;
use crate::sources::holders::HolderWatch;
use crate::sources::kernel_log::{KernelLogSource, ReadClock, ReadEnd};
use crate::sources::logged_in::LoggedInWatch;
use crate::sources::memory::MemorySource;
use crate::sources::process::ProcessSource;
use own::OwnReadings;
use report::LogReporter;
use sampling::{SampleTime, Sampling};
use service::{DaemonService, LoopCommand};
use settling::Settling;
use wake::Wake;

pub use entrance::access_files;
pub use orders::user_name;
pub use otlp::collector;
pub use preflight::{MissingAbility, missing};
pub use service::Loader;

/// Records in one step; more wait for the next turn of the loop.
const RECORDS_A_TURN: usize = 1024;

/// How often this process, the journal and the loop are measured.
const SLOW_INTERVAL: Duration = Duration::from_secs(1);

/// How often the kernel-log position is journalled without an event.
const CURSOR_INTERVAL: Duration = Duration::from_secs(10);

/// Batches of the kernel log's backlog at the start. The largest ring has fewer records; a pipe
/// whose writer never stops must not delay the start for ever.
const BACKLOG_TURNS: usize = 1024;

/// The timeout of the shutdown, without the undo of changes. An action in progress gets most of it.
const CLOSING_TAKES: Duration = Duration::from_millis(900);

/// The time that the last writes have after an undo of changes that took longer.
const LAST_WRITES_TAKE: Duration = Duration::from_millis(500);

/// The state of the loop.
struct Daemon {
    settings: Settings,
    policy: Policy,
    memory: MemorySource,
    process: ProcessSource,
    engines: EngineWatch,
    deferred: DeferredWatch,
    gpu: Option<GpuWatch>,
    holders: HolderWatch,
    logged_in: LoggedInWatch,
    leases: leases::LeaseWatch,
    cluster: Option<ClusterWatch>,
    kernel_log: KernelLogSource,
    journal: Arc<Journal>,
    worker: ActionWorker,
    outcomes: Receiver<Outcome>,
    service: DaemonService,
    status: Arc<ArcSwap<Status>>,
    spare_status: Arc<Status>,
    memory_feed: MemoryFeed,
    shared: entrance::ServerShared,
    wake: Wake,
    own: OwnReadings,
    evicting: evicting::Evicting,
    report: LogReporter,
    recorder: recorder::Recorder,
    black_box: black_box::BlackBox,
    otlp: Otlp,
    kubernetes: kubernetes::Kubernetes,
    boot_id: Arc<str>,
    alive: alive::AliveRecorder,
    cursor: Cursor,
    sampling: Sampling,
    settling: Settling,
    next_slow: Duration,
    seen: Vec<Observation>,
    past: past::PastReceiver,
    pause: pause::PauseWatch,
    alerting: alerting::Alerting,
}

/// The position in the kernel log, its journalled position, and the time of the next read.
#[derive(Debug, Default)]
struct Cursor {
    next_seq: Option<u64>,
    journalled: Option<u64>,
    journal_due: Duration,
    batching: batching::Batching,
}

/// Runs the daemon until a signal or order ends it.
///
/// # Errors
///
/// Only what makes running pointless: an address that cannot be listened on, or no file descriptors
/// or threads left. Other failures are exported.
pub fn run(loaded: LoadedConfig, loader: Loader) -> anyhow::Result<()> {
    let mut daemon = begin::begin(loaded, loader)?;
    if !daemon.take_backlog() {
        daemon.service.ready();
        loop {
            let woke = daemon.wait();
            if daemon.obey() {
                break;
            }
            daemon.turn(woke);
        }
    }
    daemon.close();
    Ok(())
}

impl Daemon {
    /// If an earlier run of this boot read the log, its counters resume before later records are
    /// read. At a first start the backlog is where counters begin. Returns true if the program is
    /// to end already.
    fn take_backlog(&mut self) -> bool {
        self.check_pause();
        let resumes = self.cursor.next_seq.is_some();
        if resumes {
            self.sample(clock::now());
            self.step(clock::now());
        }
        for _ in 0..BACKLOG_TURNS {
            let end = self.read_kernel_log();
            self.step(clock::now());
            if self.obey() {
                return true;
            }
            if end == ReadEnd::Drained {
                break;
            }
        }
        self.sample(clock::now());
        self.step(clock::now());
        self.sampling.begin();
        false
    }

    /// Sleeps until there is work, and returns when it came.
    fn wait(&mut self) -> Duration {
        while self.sleep() {
            self.sampling.check_free(self.evicting.evictable_bytes());
        }
        clock::monotonic()
    }

    /// Sleeps until there is work. Returns whether it is only a check of free memory.
    fn sleep(&mut self) -> bool {
        let timeout = self.sampling.due_in().min(self.policy.next_step_in(clock::uptime()));
        let gathers = self.cursor.batching.waits(clock::monotonic());
        let timeout = timeout.min(gathers.unwrap_or(timeout)).min(self.posts_wait_for());
        let check = self.sampling.next_check().filter(|check| *check < timeout);
        let timeout = check.unwrap_or(timeout);
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // A missing alarm is replaced by the wake-up, which is polled anyway.
        let wake = self.wake.as_fd();
        let kernel_log = self.kernel_log.poll_fd().filter(|_| gathers.is_none()).unwrap_or(wake);
        let alarm = self.sampling.alarm().unwrap_or(wake);
        let mut watched = [
            PollFd::from_borrowed_fd(wake, PollFlags::IN),
            PollFd::from_borrowed_fd(kernel_log, PollFlags::IN),
            PollFd::from_borrowed_fd(alarm, PollFlags::PRI),
        ];
        // An interrupted wait is a short one.
        let polled = poll(&mut watched, Some(&timeout));
        let events = watched[2].revents();
        self.sampling.on_alarm(events);
        polled == Ok(0) && check.is_some()
    }

    /// Carries out commands of other threads. Returns true if the loop is to end.
    fn obey(&mut self) -> bool {
        self.wake.drain();
        while let Some(command) = self.service.command() {
            match command {
                LoopCommand::End { signal } => {
                    tracing::info!(signal, "ending");
                    return true;
                }
                LoopCommand::Obey { command, reply } => {
                    // The receiver may be gone.
                    let _ = reply.send(self.carry_out(*command));
                }
                LoopCommand::Explain { rule, reply } => {
                    let explained = self.policy.explain(&rule, clock::now(), true);
                    // The receiver may be gone.
                    let _ = reply.send(explained.map(|explained| explained.json(true)));
                }
                LoopCommand::Launched { engine } => self.engines.launched(engine),
                LoopCommand::Died { report } => {
                    let utc = Some(report.ended);
                    let kind = ProgramEvent::EngineDied { report };
                    self.seen.push(Observation::Event(Event { kind: kind.into(), utc, seq: None }));
                    self.step(clock::now());
                }
                LoopCommand::CheckPause { reply } => {
                    self.check_pause();
                    self.step(clock::now());
                    // The receiver may be gone.
                    let _ = reply.send(());
                }
                LoopCommand::Reload { loaded, by, reply } => {
                    let answer = self.reload(loaded, by.as_deref());
                    // The receiver gets the result.
                    self.see_own();
                    self.step(clock::now());
                    // The receiver may be gone.
                    let _ = reply.send(answer);
                }
            }
        }
        false
    }

    /// Passes an order to the policy. An error says why it has no effect.
    fn carry_out(&mut self, command: OperatorCommand) -> Result<(), String> {
        report::order(&command);
        self.seen.push(Observation::Operator(command.clone()));
        let answers = self.step(clock::now());
        let answer = answers.into_iter().find(|answer| answer.command == command);
        let refused = answer.and_then(|answer| answer.refused);
        if let Some(reason) = &refused {
            tracing::warn!(order = command.order.name(), reason, "order refused");
        }
        refused.map_or(Ok(()), Err)
    }

    fn check_pause(&mut self) {
        let Some(pause::PauseChange { pause, resumed_by }) = self.pause.news() else { return };
        let at = clock::now();
        let text = match &pause {
            Some(pause) if pause.comment.is_empty() => format!("paused by {}", pause.author),
            Some(pause) => format!("paused by {}: {}", pause.author, pause.comment),
            None => match resumed_by {
                Some(author) => format!("no longer paused, by {author}"),
                None => "no longer paused".to_owned(),
            },
        };
        tracing::warn!(text, "pause");
        self.note(at, text);
        if pause.is_some() {
            self.evicting.stop("the program is paused");
        }
        self.seen.push(Observation::Pause(pause));
    }

    fn turn(&mut self, woke: Duration) {
        let mut acted = false;
        self.check_pause();
        while let Ok(outcome) = self.outcomes.try_recv() {
            acted |= outcome.result.is_begun();
            self.take_outcome(outcome);
        }
        self.seen.extend(self.past.take());
        let more = self.read_kernel_log() == ReadEnd::More;
        let now = clock::now();
        self.engines.take(now.uptime, &mut self.seen);
        self.deferred.take(&mut self.seen);
        if let Some(gpu) = &mut self.gpu {
            gpu.take(now.uptime, &mut self.seen);
        }
        self.holders.take(now.uptime, &mut self.seen);
        self.logged_in.want(now.uptime, self.policy.wants_logged_in());
        self.logged_in.take(now.uptime, &mut self.seen);
        self.leases.take(&mut self.seen);
        let more = self.take_posted_alerts() || more;
        if let Some(cluster) = &mut self.cluster {
            cluster.take(&mut self.seen);
        }
        if acted {
            // The signals after an action: all of them, including those that are read less often.
            self.memory.read_all(&clock::uptime, &mut self.seen);
        }
        let at = SampleTime { monotonic: clock::monotonic(), uptime: now.uptime };
        let is_due = self.sampling.is_due(at);
        let since = if is_due { self.sampling.due().min(woke) } else { woke };
        if is_due {
            self.sample(now);
        }
        let has_news = !self.seen.is_empty();
        self.step(now);
        if has_news {
            self.own.count_reaction(clock::monotonic().saturating_sub(since));
        }
        if is_due {
            let evictable = self.evicting.evictable_bytes();
            let missed = self.sampling.taken(at, &self.policy, evictable);
            self.own.count_missed_samples(missed);
        } else {
            self.sampling.reconsider(at, &self.policy);
        }
        if self.own.set_sampling_interval(self.sampling.interval()) {
            self.see_own();
        }
        if more {
            self.wake.notify();
        }
    }

    fn read_kernel_log(&mut self) -> ReadEnd {
        let clock = ReadClock { at: clock::now(), monotonic: clock::monotonic() };
        let from = self.seen.len();
        let reader = self.kernel_log.reader();
        let end = self.kernel_log.read(clock, &mut self.seen, RECORDS_A_TURN);
        if self.kernel_log.reader() != reader {
            self.seen.push(Observation::Readings(self.own.kernel_log(&self.kernel_log)));
        }
        let records = self.seen[from..].iter();
        let records = records.filter(|seen| matches!(seen, Observation::KernelRecord(_))).count();
        self.cursor.batching.read(clock.monotonic, records);
        let last = self.seen[from..].iter().rev().find_map(|seen| match seen {
            Observation::KernelRecord(record) => Some(record.seq),
            _ => None,
        });
        if let Some(last) = last {
            self.cursor.next_seq = Some(last.saturating_add(1));
        }
        end
    }

    fn sample(&mut self, now: Moment) {
        self.memory.read(&clock::uptime, &mut self.seen);
        if now.uptime >= self.next_slow {
            self.next_slow = now.uptime + SLOW_INTERVAL;
            self.process.read(&clock::uptime, &mut self.seen);
            self.seen.push(Observation::Readings(self.journal.readings()));
            self.seen.push(Observation::Readings(self.alerting.readings()));
            self.seen.push(Observation::Readings(self.own.kernel_log(&self.kernel_log)));
            self.see_own();
            self.alive.note(now.uptime, &self.journal);
            for text in self.evicting.notes() {
                tracing::info!(text, "eviction");
                self.note(now, text);
            }
            self.black_box.observe(now, &mut self.seen);
            let is_calm = self.sampling.is_calm() && !self.policy.is_any_engine_loading();
            self.settling.consider(now.uptime, is_calm);
            if let Some(gpu) = &self.gpu {
                gpu.set_busy(!self.sampling.is_calm() || self.policy.is_any_engine_alive());
            }
        }
    }

    /// The metrics of the loop and the recorder.
    fn see_own(&mut self) {
        let engines = self.policy.engines();
        self.deferred.track_engines(engines.iter().map(|known| &known.engine));
        let readings = self.own.readings(self.recorder.tally(), &self.evicting, &engines);
        self.seen.push(Observation::Readings(readings));
    }

    /// Steps the policy with all observations, journals the results and carries them out. Returns
    /// the results of orders.
    fn step(&mut self, now: Moment) -> Vec<CommandResult> {
        let began = clock::uptime();
        self.seen.extend(self.evicting.readings());
        let mut step = self.policy.step(now, &self.seen);
        self.engines.set_loading(self.policy.is_any_engine_on_its_way());
        if self.policy.needs_engine_sample(now.uptime) {
            self.engines.scan_now();
            self.holders.scan_now();
        }
        self.holders.track_hung(&step.events);
        self.evicting.update(self.policy.engines());
        if self.policy.is_any_engine_loading() {
            self.sampling.loads(now.uptime);
        }
        self.own.set_step_duration(clock::uptime().saturating_sub(began));
        if !step.events.is_empty() {
            self.sampling.record_activity(now.uptime);
        }
        self.report.sources(now.uptime, &self.seen);
        self.recorder.step(now, &mut self.seen, &step);
        self.memory.recycle(&mut self.seen);
        if step.is_only_counted {
            return Vec::new();
        }
        self.publish(now);
        let answers = std::mem::take(&mut step.answers);
        if !answers.is_empty() {
            self.evicting.obey(&self.policy);
        }
        self.write_down(now, step);
        answers
    }

    /// Publishes the status. Of two values one is public; the other is reused unless a reader still
    /// has it.
    fn publish(&mut self, now: Moment) {
        match Arc::get_mut(&mut self.spare_status) {
            Some(old) => self.policy.draw(now, old),
            None => self.spare_status = Arc::new(self.policy.status(now)),
        }
        self.memory_feed.take(&self.spare_status);
        let new = Arc::clone(&self.spare_status);
        self.spare_status = self.status.swap(new);
    }

    fn write_down(&mut self, now: Moment, mut step: Step) {
        self.report.step(now, &mut step);
        self.black_box.note(&step.events);
        self.alerting.health_reports.record(&step.events);
        otlp::record_step(&self.otlp, &step);
        let boots = step.events.extract_if(.., |event| is_of_a_boot(event));
        for event in boots {
            self.journal.record(&JournalEntry::Event { boot_id: Arc::clone(&self.boot_id), event });
        }
        self.write_down_kernel_log(now.uptime, step.events);
        for change in step.alerts {
            self.journal.record(&JournalEntry::Alert(change));
        }
        for aim_check in step.aim_checks {
            self.journal.record(&JournalEntry::AimCheck(aim_check));
        }
        for decision in step.decisions {
            self.journal.record(&JournalEntry::Decision(decision.clone()));
            self.alerting.decided(&decision);
            if decision.is_act() {
                self.have_done(now, decision);
            }
        }
    }

    fn write_down_kernel_log(&mut self, now: Duration, events: Vec<Event>) {
        let Some(next_seq) = self.cursor.next_seq else { return };
        let resume_seq = self.policy.kernel_log_pending_since().unwrap_or(next_seq).min(next_seq);
        let moved = self.cursor.journalled != Some(resume_seq);
        if events.is_empty() && !(moved && now >= self.cursor.journal_due) {
            return;
        }
        self.cursor.journalled = Some(resume_seq);
        self.cursor.journal_due = now + CURSOR_INTERVAL;
        let boot_id = Arc::clone(&self.boot_id);
        self.journal.record(&JournalEntry::KernelLog { boot_id, events, resume_seq });
    }

    fn have_done(&mut self, now: Moment, decision: DecisionRecord) {
        let (id, action) = (decision.id, decision.action.name().to_owned());
        self.evicting.rehearse(&self.settings, &decision);
        let result = match Act::of(decision) {
            Err(_) => OutcomeResult::Skipped,
            // A log line waits neither for the disk nor behind a hanging action.
            Ok(act) if notify(&act) => OutcomeResult::Done,
            Ok(act) => match self.worker.submit(act) {
                Ok(()) => return,
                Err(busy) => OutcomeResult::NotDone(busy.to_string()),
            },
        };
        let (took, effect) = (Duration::ZERO, None);
        self.take_outcome(Outcome { decision: id, action, result, ended: now, took, effect });
    }

    fn take_outcome(&mut self, mut outcome: Outcome) {
        let evicted = self.evicting.effect(outcome.decision);
        let has_own_series = evicted.is_some();
        outcome.effect = evicted.or(outcome.effect);
        self.journal.record(&JournalEntry::Outcome(outcome.clone()));
        otlp::record_outcome(&self.otlp, &outcome);
        report::outcome(&outcome);
        // Its aim check needs values from after it.
        self.seen.push(Observation::Outcome(outcome));
        if has_own_series {
            self.see_own();
        }
    }

    fn note(&self, at: Moment, text: String) {
        self.journal.record(&JournalEntry::Note(Note { at, text }));
    }

    /// Ends everything within [`CLOSING_TAKES`], or shortly after changes are undone; hanging
    /// threads are abandoned.
    fn close(mut self) {
        let began = clock::uptime();
        self.service.stopping();
        self.take_last_posts();
        self.evicting.stop("the program ends");
        self.black_box.end();
        self.cursor.journal_due = Duration::ZERO;
        self.alive.note_end(clock::uptime(), &self.journal);
        self.write_down_kernel_log(clock::uptime(), Vec::new());
        self.worker.shutdown();
        let latest = clock::uptime().saturating_add(LAST_WRITES_TAKE);
        let latest = latest.max(began.saturating_add(CLOSING_TAKES));
        let left = || latest.saturating_sub(clock::uptime());
        while let Ok(outcome) = self.outcomes.try_recv() {
            self.journal.record(&JournalEntry::Outcome(outcome.clone()));
            otlp::record_outcome(&self.otlp, &outcome);
            report::outcome(&outcome);
        }
        self.otlp.end();
        self.kubernetes.end();
        for text in self.evicting.notes() {
            tracing::info!(text, "eviction");
            self.journal.record(&JournalEntry::Note(Note { at: clock::now(), text }));
        }
        let stopped = Note { at: clock::now(), text: "stopped".to_owned() };
        self.journal.record(&JournalEntry::Note(stopped));
        if let Err(error) = self.journal.close(left()) {
            report::journal_lacks_newest(&self.settings.storage.path, &error);
        }
        self.recorder.close(left());
        self.black_box.close(left());
        self.otlp.close(left());
        self.kubernetes.close(left());
        self.service.close(left());
        tracing::info!("ended");
    }
}

/// Kernel events are journalled together with the log's position, others by themselves.
fn is_of_a_boot(event: &Event) -> bool {
    !event.is_kernel()
}
