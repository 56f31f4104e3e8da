//! A machine, the program on it and everything that happens to both, under virtual time.

mod engines;
mod others;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use umawarden::journal::{JournalEntry, Note};
use umawarden::model::{
    Action, DecisionId, DecisionRecord, Event, Mode, Moment, Observation, Outcome, ProcessId,
    RuleId, Supervisor,
};
use umawarden::policy::restarts;

use super::alertmanager::Alertmanager;
use super::chance::Chance;
use super::checker::{Checker, Clock, Violation};
use super::disturbance::{Calendar, Kind};
use super::executor::Executor;
use super::fleet::{Fleet, TROUBLES};
use super::journal::Kept;
use super::machine::{Build, Machine};
use super::neighbours::Neighbours;
use super::orders::People;
use super::process::Process;
use super::readings::{FAULTS, Files, SOURCES};
use super::rule_book::{Author, RuleBook};
use super::settings::Settings;

/// Kernel-log records that the daemon reads at once.
const RECORDS_A_TURN: usize = 1024;

/// How much of the journal a failure shows.
const LAST_ENTRIES: usize = 40;

/// Speed of a run, and its inputs.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Names of disturbances and rules that are left out.
    pub without: BTreeSet<String>,
    /// How long it lasts, in samples.
    pub samples: u32,
    /// Every post comes twice.
    pub is_doubled: bool,
}

pub struct World {
    plan: Plan,
    now: Duration,
    booted: Duration,
    boot: u32,
    /// The error of the wall clock.
    wall: SignedDuration,
    sampling: Duration,
    next_sample: Duration,
    machine: Machine,
    files: Files,
    fleet: Fleet,
    settings: Settings,
    /// Acts whose settings are in force.
    set: BTreeSet<DecisionId>,
    /// Paused engines that have not been resumed.
    paused: BTreeSet<ProcessId>,
    paused_at: Duration,
    /// Engines with a reported death, each with its boot.
    reported_dead: BTreeSet<(u32, ProcessId)>,
    retry_at: Duration,
    next_scan: Duration,
    /// Time of the next scan of all processes, and the engines of the last one.
    next_full_scan: Duration,
    known: BTreeSet<ProcessId>,
    scans_hang_until: Duration,
    /// Whether the driver reports the memory of each process.
    has_driver_figures: bool,
    /// Randomness for everything without a stream of its own.
    chance: Chance,
    executor: Executor,
    kept: Kept,
    process: Option<Process>,
    starts_at: Duration,
    checker: Checker,
    calendar: Calendar,
    book: Option<RuleBook>,
    people: People,
    alertmanager: Alertmanager,
    /// Received alerts are forgotten after this time.
    forget_after: Duration,
    neighbours: Neighbours,
    /// Steps since the last check of the full status.
    unchecked_steps: u32,
    mode: Mode,
    /// Acts so far, by action, for the summary.
    acts: BTreeMap<String, usize>,
    decisions: usize,
}

/// Results of a run.
pub struct Ended {
    pub journal: String,
    /// The rules in force at the end, and the journal's last entries.
    pub end: Vec<String>,
    pub simulated: Duration,
    pub samples: u32,
    pub acts: BTreeMap<String, usize>,
    pub decisions: usize,
    pub violation: Option<Violation>,
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let mut chance = Chance::new(plan.seed, "world");
        let is_shipped = chance.once_in(5);
        let is_calm = !is_shipped && chance.once_in(3);
        let millis = Duration::from_millis;
        let sampling = match is_shipped {
            true => millis(*chance.one_of(&[100, 200, 1_000])),
            false if is_calm => millis(*chance.one_of(&[200, 1_000])),
            false => millis(*chance.one_of(&[100, 1_000, 5_000, 15_000, 30_000, 60_000])),
        };
        let beat = if is_shipped { Duration::from_secs(1) } else { sampling };
        let gib = *chance.one_of(&[8.0, 24.0, 121.0, 480.0]);
        let total = gib * f64::from(1 << 30);
        let swap = if chance.once_in(2) { total / 4.0 } else { 0.0 };
        let build = Build { total: total.floor(), swap: swap.floor(), beat, is_calm };
        let machine = Machine::new(build, Chance::new(plan.seed, "machine"));
        let files = Files::new(&machine, Chance::new(plan.seed, "files"));
        let book = (!is_shipped)
            .then(|| RuleBook::random(&mut Author { chance: &mut chance, beat, total }))
            .map(|book| others::with_foreign(book, plan.seed, beat, total));
        let mode = if chance.once_in(4) { Mode::Observe } else { Mode::Enforce };
        // With samples far apart, observations of engines are outdated before they are useful.
        let is_scanned = beat <= Duration::from_secs(1) || chance.once_in(4);
        let without = plan.without.clone();
        Self {
            now: Duration::ZERO,
            booted: Duration::ZERO,
            boot: 1,
            wall: SignedDuration::ZERO,
            sampling,
            next_sample: Duration::ZERO,
            machine,
            files,
            fleet: Fleet::new(&build, Chance::new(plan.seed, "fleet")),
            settings: Settings::new(),
            set: BTreeSet::new(),
            paused: BTreeSet::new(),
            paused_at: Duration::ZERO,
            reported_dead: BTreeSet::new(),
            retry_at: Duration::ZERO,
            next_scan: Duration::ZERO,
            next_full_scan: Duration::ZERO,
            known: BTreeSet::new(),
            has_driver_figures: chance.once_in(2),
            scans_hang_until: if is_scanned { Duration::ZERO } else { Duration::MAX },
            chance: Chance::new(plan.seed, "fate"),
            executor: Executor::new(Chance::new(plan.seed, "executor")),
            kept: Kept::default(),
            process: None,
            starts_at: Duration::ZERO,
            checker: Checker::default(),
            calendar: Calendar::new(plan.seed, beat, |name| without.contains(name)),
            book,
            people: People::default(),
            alertmanager: Alertmanager::new(Chance::new(plan.seed, "alertmanager")),
            forget_after: Duration::from_secs(1) + beat * 60,
            neighbours: Neighbours::new(
                !plan.without.contains("Neighbour"),
                total,
                beat,
                Chance::new(plan.seed, "neighbours"),
            ),
            unchecked_steps: 0,
            mode,
            plan,
            acts: BTreeMap::new(),
            decisions: 0,
        }
    }

    /// Runs to the end, or to the first violation.
    pub fn run(mut self) -> Ended {
        let until = self.sampling * self.plan.samples;
        let mut violation = None;
        while self.now < until && violation.is_none() {
            violation = self.go_on().err();
        }
        let violation = violation.or_else(|| self.finish().err());
        let mut end = self.book.as_ref().map(RuleBook::text).into_iter().collect::<Vec<_>>();
        end.extend(self.kept.end(LAST_ENTRIES));
        Ended {
            journal: self.kept.text(),
            end,
            simulated: self.now,
            samples: (self.now.as_nanos() / self.sampling.as_nanos()) as u32,
            acts: self.acts,
            decisions: self.decisions,
            violation,
        }
    }

    /// The program ends cleanly, and starts once more: none of its settings is left.
    fn finish(&mut self) -> Result<(), Violation> {
        let mut fate = Chance::new(self.plan.seed, "end");
        self.stop(false, &mut fate)?;
        self.settings.begin(&self.boot_id())?;
        self.retry_leftovers();
        self.none_stays_paused(Duration::ZERO)
    }

    fn at(&self) -> Moment {
        let uptime = self.now - self.booted;
        let first = Timestamp::from_second(1_790_000_000).unwrap();
        let utc = first + SignedDuration::try_from(self.now).unwrap();
        Moment { uptime, utc: utc.saturating_add(self.wall).unwrap() }
    }

    fn clock(&self) -> Clock {
        Clock { now: self.now, boot: self.boot, at: self.at() }
    }

    fn boot_id(&self) -> Arc<str> {
        format!("boot-{}", self.boot).into()
    }

    /// To the next instant with an event.
    fn go_on(&mut self) -> Result<(), Violation> {
        let uptime = self.at().uptime;
        let own = match &self.process {
            Some(process) => {
                let due = self.now.saturating_add(process.policy.next_step_in(uptime));
                due.min(self.next_sample).min(self.executor.next().unwrap_or(Duration::MAX))
            }
            None => self.starts_at,
        };
        let next = own.min(self.calendar.next().unwrap_or(Duration::MAX));
        let next = next.max(self.now + Duration::from_millis(1));
        let passed = next - self.now;
        self.now = next;
        self.machine.pass(passed, uptime + passed);
        let (at, is_watched) = (self.at(), self.process.is_some());
        self.fleet.take_deaths(&mut self.machine, at, is_watched);
        self.disturb()?;
        if self.process.is_none() && self.starts_at <= self.now {
            self.start()?;
        } else if self.process.is_some() {
            self.turn()?;
        }
        Ok(())
    }

    /// The program starts, and reads the kernel log from its position.
    fn start(&mut self) -> Result<(), Violation> {
        let at = self.at();
        let boot_id = self.boot_id();
        let mut process = Process::start(&self.kept, self.now, &boot_id, at, self.load());
        let loaded = &process.loaded;
        self.checker.among(loaded.cluster(), loaded.forget_after());
        self.checker.begin(loaded.mode, &loaded.rules);
        let resumes = process.resumes;
        self.settings.begin(&boot_id)?;
        self.set.clear();
        self.retry_leftovers();
        self.fleet.poll_anew();
        (self.next_scan, self.next_full_scan) = (self.now, self.now);
        if let Some(pause) = &self.people.pause {
            process.seen.push(Observation::Pause(Some(pause.clone())));
        }
        self.process = Some(process);
        self.give_past();
        self.kept.record(self.now, JournalEntry::Note(Note { at, text: "started".to_owned() }));
        self.next_sample = self.now;
        if resumes {
            self.sample();
            self.step()?;
        }
        while self.read_kernel_log() {
            self.step()?;
        }
        self.turn()
    }

    /// One turn of the daemon's loop.
    fn turn(&mut self) -> Result<(), Violation> {
        let mut acted = false;
        for ended in self.executor.ended(self.now) {
            let result = self.carry_out(&ended)?;
            acted |= result.is_begun();
            let (decision, action) = (ended.decision.id, ended.decision.action.name().to_owned());
            let (at, took, effect) = (self.at(), ended.took, None);
            self.take_outcome(Outcome { decision, action, result, ended: at, took, effect });
        }
        if self.retry_at <= self.now {
            self.retry_leftovers();
        }
        self.none_stays_paused(Duration::from_secs(60).max(self.sampling * 2))?;
        self.give_past();
        let more = self.read_kernel_log();
        if self.next_sample <= self.now {
            self.next_sample = self.now + self.sampling;
            self.sample();
        } else if acted {
            self.sample();
        }
        self.step()?;
        if more { self.turn() } else { Ok(()) }
    }

    /// Gives the policy the past of earlier runs, as soon as the journal can be read.
    fn give_past(&mut self) {
        let (at, boot_id) = (self.at(), self.boot_id());
        let Some(process) = self.process.as_mut().filter(|process| process.awaits_past) else {
            return;
        };
        let found = self.kept.past(self.now, at, &boot_id, process.orders_before);
        if let Some(past) = found {
            process.awaits_past = false;
            process.seen.push(Observation::Past(Box::new(past)));
        }
    }

    fn sample(&mut self) {
        let Some(process) = &mut self.process else { return };
        let journal_is_up = self.kept.is_up(self.now);
        self.files.read(&self.machine, journal_is_up, self.now, &mut process.seen);
        self.sample_engines();
        self.query_neighbours();
    }

    /// Returns whether more records wait to be read.
    fn read_kernel_log(&mut self) -> bool {
        let at = self.at();
        let Some(process) = &mut self.process else { return false };
        if !self.files.has_kernel_log() {
            return false;
        }
        let log = &self.machine.log;
        process.next_seq = log.read(process.next_seq, at, RECORDS_A_TURN, &mut process.seen);
        process.next_seq < log.next_seq()
    }

    fn step(&mut self) -> Result<(), Violation> {
        let clock = self.clock();
        let boot_id = self.boot_id();
        let Some(process) = &mut self.process else { return Ok(()) };
        let (seen, step) = process.step(clock.at);
        if let Some(resume_seq) = process.cursor(clock.at.uptime, &step.events, false) {
            let events = step.events.clone();
            self.kept.record(self.now, JournalEntry::KernelLog { boot_id, events, resume_seq });
        }
        for answer in step.answers.iter().filter(|answer| answer.refused.is_none()) {
            self.kept.order(self.now, answer.command.clone());
        }
        let is_whole = !step.is_only_counted;
        let checked = self.checker.step(&clock, &seen, &step);
        let checked = checked.and_then(|()| reported_once(process, &step.events));
        let checked = checked.and_then(|()| self.are_dead(&step.events));
        for change in step.alerts {
            self.kept.record(self.now, JournalEntry::Alert(change));
        }
        for aim_check in step.aim_checks {
            self.kept.record(self.now, JournalEntry::AimCheck(aim_check));
        }
        for decision in step.decisions {
            self.decisions += 1;
            self.people.read(&decision);
            self.kept.record(self.now, JournalEntry::Decision(decision.clone()));
            if decision.is_act() {
                self.has_grown(&decision)?;
                self.have_done(decision);
            }
        }
        if is_whole { checked.and_then(|()| self.check_status()) } else { checked }
    }

    fn have_done(&mut self, decision: DecisionRecord) {
        *self.acts.entry(decision.action.name().to_owned()).or_default() += 1;
        // Acts that save the machine do not wait for the disk, nor does an undo.
        let waits = decision.mode == Mode::Enforce
            && !decision.action.is_brake()
            && !decision.action.is_undo()
            && !matches!(decision.action, Action::Notify { .. });
        let intent_is_kept = !waits || self.kept.flush(self.now);
        if intent_is_kept && !self.executor.hangs(self.now) {
            self.pause_for(&decision);
        }
        let (id, action) = (decision.id, decision.action.name().to_owned());
        if let Some(result) = self.executor.submit(self.now, decision, intent_is_kept) {
            let (ended, took, effect) = (self.at(), Duration::ZERO, None);
            self.take_outcome(Outcome { decision: id, action, result, ended, took, effect });
        }
    }

    fn take_outcome(&mut self, outcome: Outcome) {
        self.kept.record(self.now, JournalEntry::Outcome(outcome.clone()));
        self.checker.kept(&outcome);
        if let Some(process) = &mut self.process {
            process.seen.push(Observation::Outcome(outcome));
        }
    }

    fn disturb(&mut self) -> Result<(), Violation> {
        let beat = self.machine.build.beat;
        loop {
            let at = self.at();
            let Some((kind, chance)) = self.calendar.take(self.now) else { return Ok(()) };
            match kind {
                Kind::Fault => {
                    let (source, fault) = (*chance.one_of(&SOURCES), *chance.one_of(&FAULTS));
                    let until = self.now + chance.until(beat * 15);
                    self.files.fail(source, fault, until);
                }
                Kind::AllFault => {
                    let (fault, until) = (FAULTS[0], self.now + chance.until(beat * 30));
                    SOURCES.iter().for_each(|source| self.files.fail(*source, fault, until));
                }
                Kind::ClockJump => self.wall = clock_jump(chance, self.wall),
                Kind::Suspend => {
                    let time = chance.span(Duration::ZERO, beat * 600);
                    self.now += time;
                    self.executor.sleep(time);
                    self.next_sample += time;
                }
                Kind::Burst => self.machine.burst(at.uptime),
                Kind::JournalDown => {
                    let until = self.now + chance.until(beat * 60);
                    self.kept.fail(until);
                }
                Kind::Restart | Kind::Kill | Kind::Reboot | Kind::PowerCut => {
                    let (away, seed) = (chance.until(beat * 3), chance.whole(0..=u64::MAX));
                    self.go_down(kind, away, seed)?;
                }
                Kind::Order => {
                    let Some(process) = &mut self.process else { continue };
                    let all = process.loaded.rules.groups.iter().flat_map(|group| &group.rules);
                    let ids = all.map(|rule| rule.id.clone());
                    let ids = ids.chain(self.fleet.names().map(restarts::rule));
                    let ids: Vec<RuleId> = ids.collect();
                    let order = self.people.order(chance, at, beat, &ids);
                    process.seen.push(Observation::Operator(order));
                }
                Kind::Pause => {
                    let pause = self.people.switch(at);
                    if let Some(process) = &mut self.process {
                        process.seen.push(Observation::Pause(pause));
                    }
                }
                Kind::Supervisor => {
                    let supervisor = *chance.one_of(&Supervisor::ALL);
                    let trouble = *chance.one_of(&TROUBLES);
                    let until = self.now + chance.until(beat * 40);
                    self.fleet.trouble(supervisor, trouble, until);
                }
                Kind::Hand => self.fleet.intervene(chance, &mut self.machine, at),
                Kind::LookHangs => {
                    let until = self.now + chance.until(beat * 30);
                    self.scans_hang_until = self.scans_hang_until.max(until);
                }
                Kind::Setting => self.settings.intervene(chance),
                Kind::Neighbour => self.neighbours.turn(chance),
                Kind::Post | Kind::Flood => {
                    let posts = self.alertmanager.disturb(kind, chance, at.utc, beat);
                    self.post(posts);
                }
                Kind::Reload => {
                    let mut pen = Chance::new(chance.whole(0..=u64::MAX), "pen");
                    self.rewrite(&mut pen);
                    self.reload()?;
                }
            }
        }
    }

    /// The program ends, or the machine does, and is started again.
    fn go_down(&mut self, kind: Kind, away: Duration, seed: u64) -> Result<(), Violation> {
        let crashes = matches!(kind, Kind::Kill | Kind::PowerCut);
        let mut fate = Chance::new(seed, "fate");
        self.stop(crashes, &mut fate)?;
        self.starts_at = self.now + away;
        if matches!(kind, Kind::Reboot | Kind::PowerCut) {
            self.reboot(&mut fate);
        }
        Ok(())
    }

    fn stop(&mut self, crashes: bool, chance: &mut Chance) -> Result<(), Violation> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        let at = self.at();
        if crashes {
            let forgotten = self.kept.crash(self.now, chance);
            self.checker.forget(&forgotten.decisions, &forgotten.aim_checks);
        } else {
            if let Some(resume_seq) = process.cursor(at.uptime, &[], true) {
                let (boot_id, events) = (self.boot_id(), Vec::new());
                self.kept.record(self.now, JournalEntry::KernelLog { boot_id, events, resume_seq });
            }
            self.kept.record(self.now, JournalEntry::Note(Note { at, text: "stopped".to_owned() }));
            if !self.kept.flush(self.now) {
                let forgotten = self.kept.crash(self.now, chance);
                self.checker.forget(&forgotten.decisions, &forgotten.aim_checks);
            }
        }
        let hangs = self.executor.hangs(self.now);
        for decision in self.executor.die() {
            // Acts under way may be done all the same.
            if chance.once_in(2) {
                self.perform(&decision)?;
            }
        }
        self.set.clear();
        if crashes || hangs {
            self.settings.crash();
        } else {
            self.settings.end()?;
            self.retry_leftovers();
            self.none_stays_paused(Duration::ZERO)?;
        }
        process.replay()
    }

    fn reboot(&mut self, chance: &mut Chance) {
        self.now += Duration::from_secs(chance.whole(10..=300));
        self.booted = self.now;
        self.boot += 1;
        self.starts_at = self.starts_at.max(self.now);
        self.machine.boot();
        self.settings.boot();
        self.paused.clear();
        (self.next_scan, self.next_full_scan) = (Duration::ZERO, Duration::ZERO);
        let at = self.at();
        self.fleet.boot(at);
        if chance.once_in(4) {
            self.wall = clock_jump(chance, self.wall);
        }
    }
}

/// Each record of the kernel log counts once, over restarts too.
fn reported_once(process: &mut Process, events: &[Event]) -> Result<(), Violation> {
    let seqs = events.iter().filter_map(|event| event.seq);
    let twice: Vec<u64> = seqs.filter(|seq| !process.reported.insert(*seq)).collect();
    if twice.is_empty() {
        return Ok(());
    }
    let what = format!("records {twice:?}");
    Err(Violation { invariant: "no kernel event counts twice", what })
}

fn clock_jump(chance: &mut Chance, wall: SignedDuration) -> SignedDuration {
    let seconds = *chance.one_of(&[-86_400 * 400, -3_600, -30, -1, 1, 30, 3_600, 86_400 * 400]);
    let back = chance.once_in(3);
    if back { SignedDuration::ZERO } else { wall + SignedDuration::from_secs(seconds) }
}
