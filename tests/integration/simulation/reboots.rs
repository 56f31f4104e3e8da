//! Simulated boots under virtual time: whatever fails, the machine is not rebooted too often, never
//! in a loop, and never while something forbids it.
//!
//! The policy is the real one, and what comes back from the journal goes through the journal's own
//! reading of it. The node, its disk, whoever reboots it, the cluster's lock and the people are
//! made here. What counts is the true time, which no clock of the node tells.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use umawarden::config::guard_rails::default_guard_rails;
use umawarden::config::mistake::SourceText;
use umawarden::config::rules::parse_rules_under;
use umawarden::journal::{BootLasted, Entry, RebootRow, past_reboots};
use umawarden::model::{
    Decision, DecisionId, EngineReadings, GpuDriver, GpuPicture, GpuReadings, Holder,
    HolderReadings, LoggedIn, LoggedInReadings, LoggedInRule, Mode, Moment, Observation,
    OperatorCommand, OperatorOrder, Outcome, OutcomeResult, Past, PastReboots, Pause, ProcessId,
    Reading, Readings, RebootAct, RebootBudget, RebootLock, RebootMeans, Schema, SeriesKey, Source,
    Verdict,
};
use umawarden::policy::Policy;
use umawarden::policy::rule::RuleSet;

use super::chance::Chance;

/// Between two steps of the policy.
const TICK: Duration = Duration::from_secs(180);

const RULES: &str = r#"
groups:
- name: leak
  rules:
  - alert: DriverWedged
    expr: uma_memory_verdict{verdict="wedged"} == 1
    remedy:
      steps: [{reboot: {why: "the driver is stuck"}}]
      cooldown: 0s
      at_most: {times: 1000, per: 1h}
"#;

/// What may go wrong; each can be left out.
#[derive(Clone, Copy, Debug)]
struct Faults {
    /// Budgets are as they should be. Without, they are broken on purpose.
    budget_holds: bool,
}

struct Settings {
    budgets: Vec<RebootBudget>,
    rules: RuleSet,
}

fn settings(faults: Faults) -> Settings {
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    let budgets = vec![
        RebootBudget { times: 1, per: hours(6) },
        RebootBudget { times: 3, per: hours(7 * 24) },
    ];
    let mut rails = default_guard_rails();
    rails.budget = None;
    rails.reboot.at_most.clone_from(&budgets);
    if !faults.budget_holds {
        rails.reboot.at_most = vec![RebootBudget { times: 2, per: hours(6) }];
    }
    rails.reboot.logged_in = LoggedInRule::Hold;
    rails.reboot.lock = Some(RebootLock {
        url: "http://lock".to_owned(),
        group: "default".to_owned(),
        id: Some("node".to_owned()),
    });
    rails.reboot.sysrq_after = Some(Duration::from_secs(300));
    let rules = parse_rules_under(&[SourceText::new("reboot.yaml", RULES)], TICK, rails).unwrap();
    Settings { budgets, rules }
}

/// The disk: what is on it survives, what is on its way may not.
#[derive(Default)]
struct Disk {
    rows: Vec<RebootRow>,
    boots: Vec<BootLasted>,
    on_its_way: Vec<RebootRow>,
    is_broken: bool,
}

impl Disk {
    fn note_alive(&mut self, boot_id: &Arc<str>, uptime: Duration) {
        let uptime_ms = i64::try_from(uptime.as_millis()).unwrap();
        match self.boots.iter_mut().find(|boot| boot.boot_id == *boot_id) {
            Some(boot) => boot.uptime_ms = boot.uptime_ms.max(uptime_ms),
            None => self.boots.push(BootLasted { boot_id: Arc::clone(boot_id), uptime_ms }),
        }
    }

    fn record(&mut self, entry: &Entry) {
        self.on_its_way.extend(RebootRow::of(entry));
    }

    fn flush(&mut self) {
        let rows = std::mem::take(&mut self.on_its_way);
        self.rows.extend(rows);
    }

    fn intent(&mut self, decision: &Decision) -> Result<(), String> {
        if self.is_broken {
            return Err("the disk is broken".to_owned());
        }
        self.flush();
        let row = RebootRow::Decision(decision.clone());
        if !self.rows.contains(&row) {
            self.rows.push(row);
        }
        Ok(())
    }
}

/// One boot of the node.
struct Boot {
    id: Arc<str>,
    uptime: Duration,
    /// What the wall clock is wrong by, in seconds.
    clock_off: i64,
    is_wedged: bool,
    wedged_at: Duration,
}

/// What was truly done.
#[derive(Default)]
struct Truth {
    /// When the machine was rebooted by the program, in true time, and whether that had helped.
    reboots: Vec<(Duration, bool)>,
    /// When each boot was last to be ended, by the orderly way.
    performed: BTreeMap<Arc<str>, Duration>,
    refused: usize,
    /// So many of them a person has forgiven.
    forgiven: usize,
}

struct Node {
    settings: Settings,
    chance: Chance,
    disk: Disk,
    boots: u64,
    boot: Boot,
    now: Duration,
    policy: Policy,
    outcomes: Vec<Outcome>,
    users: bool,
    is_paused: bool,
    /// Whom the cluster's lock truly lets reboot.
    is_slot_ours: bool,
    is_slot_busy: bool,
    dies: bool,
    falls: bool,
    truth: Truth,
    next_decision: u64,
    schema: Arc<Schema>,
}

impl Node {
    fn new(seed: u64, faults: Faults) -> Self {
        let settings = settings(faults);
        let boot = Boot {
            id: "boot-0".into(),
            uptime: Duration::from_secs(20),
            clock_off: 0,
            is_wedged: false,
            wedged_at: Duration::MAX,
        };
        let key = |name| SeriesKey::new(name, &[]);
        let names = [
            "uma_memory_total_bytes",
            "uma_memory_free_bytes",
            "uma_memory_shmem_bytes",
            "uma_memory_unaccounted_bytes",
        ];
        let started = Moment { uptime: boot.uptime, utc: Timestamp::UNIX_EPOCH };
        let policy = Policy::new(started, Mode::Enforce, &settings.rules, DecisionId(1));
        let mut node = Self {
            settings,
            chance: Chance::new(seed, "reboots"),
            disk: Disk::default(),
            boots: 0,
            boot,
            now: Duration::from_secs(1_000),
            policy,
            outcomes: Vec::new(),
            users: false,
            is_paused: false,
            is_slot_ours: false,
            is_slot_busy: false,
            dies: false,
            falls: false,
            truth: Truth::default(),
            next_decision: 1,
            schema: Arc::new(Schema { series: names.map(key).to_vec() }),
        };
        node.start_process();
        node
    }

    fn at(&self) -> Moment {
        let true_s = 1_780_000_000 + i64::try_from(self.now.as_secs()).unwrap();
        let utc = Timestamp::from_second((true_s + self.boot.clock_off).max(0)).unwrap();
        Moment { uptime: self.boot.uptime, utc }
    }

    fn start_process(&mut self) {
        let at = self.at();
        let first = DecisionId(self.next_decision);
        self.policy = Policy::new(at, Mode::Enforce, &self.settings.rules, first);
        self.policy.await_past();
        self.outcomes.clear();
        self.dies = false;
        self.disk.note_alive(&self.boot.id, self.boot.uptime);
    }

    /// What the journal tells a process that has just started, if it can be read.
    fn past(&mut self) -> Option<Past> {
        if self.disk.is_broken {
            return None;
        }
        let reboots = match self.chance.once_in(40) {
            // Which boot this is cannot be read.
            true => PastReboots::default(),
            false => past_reboots(&self.disk.rows, &self.disk.boots, &self.boot.id),
        };
        Some(Past { reboots, ..Past::default() })
    }

    fn boot_again(&mut self) {
        self.boots += 1;
        self.now += self.chance.span(Duration::from_secs(30), Duration::from_secs(90));
        if self.chance.once_in(12) {
            self.now += self.chance.until(Duration::from_secs(40 * 3_600));
        }
        // A leak comes back after most boots.
        let comes = self.chance.share() < 0.7;
        let early = self.chance.share() < 0.5;
        let mean = if early { 900 } else { 2 * 3_600 };
        self.boot = Boot {
            id: format!("boot-{}", self.boots).into(),
            uptime: Duration::from_secs(15),
            clock_off: self.jump(),
            is_wedged: false,
            wedged_at: match comes {
                true => self.chance.until(Duration::from_secs(mean)),
                false => Duration::MAX,
            },
        };
        if self.chance.once_in(3) {
            self.disk.on_its_way.clear();
        }
        self.disk.flush();
        self.start_process();
    }

    /// A clock that was never set, is months ahead, or is right.
    fn jump(&mut self) -> i64 {
        match self.chance.whole(0..=9) {
            0 => -1_700_000_000,
            1 => i64::try_from(self.chance.whole(0..=40_000_000)).unwrap(),
            2 => -i64::try_from(self.chance.whole(0..=400_000)).unwrap(),
            _ => 0,
        }
    }

    /// One boot, until the machine is rebooted, or it is time for somebody else to do that.
    fn live_through(&mut self) -> Result<(), String> {
        let lasts =
            self.chance.until(Duration::from_secs(4 * 3_600)).min(Duration::from_secs(86_400));
        let known = self.chance.span(Duration::ZERO, Duration::from_secs(120));
        let mut past_due = Some(self.boot.uptime + known);
        while self.boot.uptime < lasts {
            self.now += TICK;
            self.boot.uptime += TICK;
            self.disturb();
            let mut seen = self.seen();
            if past_due.is_some_and(|due| self.boot.uptime >= due)
                && let Some(past) = self.past()
            {
                seen.insert(0, Observation::Past(Box::new(past)));
                past_due = None;
            }
            let step = self.policy.step(self.at(), &seen);
            for event in step.events {
                let boot_id = Arc::clone(&self.boot.id);
                self.disk.record(&Entry::Event { boot_id, event });
            }
            for decision in step.decisions {
                self.next_decision = self.next_decision.max(decision.id.0 + 1);
                if decision.verdict == Verdict::Act {
                    self.carry_out(decision)?;
                }
            }
            if self.falls {
                self.falls = false;
                return Ok(());
            }
            if self.dies || self.chance.once_in(150) {
                self.disk.on_its_way.clear();
                self.start_process();
                past_due = Some(self.boot.uptime);
            }
            if !self.disk.is_broken && self.chance.once_in(3) {
                self.disk.flush();
                self.disk.note_alive(&self.boot.id.clone(), self.boot.uptime);
            }
        }
        Ok(())
    }

    fn disturb(&mut self) {
        self.boot.is_wedged = self.boot.uptime >= self.boot.wedged_at;
        let chance = &mut self.chance;
        let mut toggle = |is_so: &mut bool, begins: u64, ends: u64| {
            *is_so ^= chance.once_in(if *is_so { ends } else { begins });
        };
        toggle(&mut self.users, 80, 15);
        toggle(&mut self.is_paused, 200, 15);
        toggle(&mut self.is_slot_busy, 60, 10);
        toggle(&mut self.disk.is_broken, 150, 10);
        if self.chance.once_in(200) {
            self.boot.clock_off = self.jump();
        }
    }

    fn seen(&mut self) -> Vec<Observation> {
        let at = self.at();
        let values = [120.0, 100.0, 0.0, 1.0].map(|gib| Reading::Value(gib * 1024.0f64.powi(3)));
        let mut seen = vec![Observation::Readings(Readings {
            source: Source::Meminfo,
            schema: Arc::clone(&self.schema),
            values: values.to_vec(),
            took: Duration::ZERO,
            error: None,
        })];
        let engines = EngineReadings { read_at: at.uptime, ..EngineReadings::default() };
        seen.push(Observation::Engines(Box::new(engines)));
        let stuck = Holder {
            id: ProcessId { pid: 77, start_ticks: 1 },
            comm: "python3".into(),
            state: 'D',
            devices: 2,
            is_monitor: false,
            dma_buffers: 0,
            memfds: 0,
            memfd_bytes: 0,
            pipe_bytes: 0,
            container: None,
            unit: None,
        };
        let holders = if self.boot.is_wedged { vec![stuck] } else { Vec::new() };
        seen.push(Observation::Holders(Box::new(HolderReadings {
            read_at: at.uptime,
            holders,
            processes: 100,
            unseen: 0,
            is_driver_loaded: Reading::Value(true),
            error: None,
        })));
        let since = self.boot.wedged_at;
        let driver = match self.boot.is_wedged {
            true => GpuDriver::Silent { since, process_state: Some('D') },
            false => GpuDriver::Responsive,
        };
        seen.push(Observation::Gpu(Box::new(GpuReadings {
            read_at: at.uptime,
            picture: (driver == GpuDriver::Responsive).then(Arc::<GpuPicture>::default),
            driver,
            answered_at: None,
            askers: Vec::new(),
        })));
        let alice = LoggedIn { user: "alice".into(), terminal: None, since: None };
        let users = match self.chance.whole(0..=30) {
            0 => Reading::Failed,
            _ => Reading::Value(if self.users { vec![alice] } else { Vec::new() }),
        };
        let logged_in = LoggedInReadings { at: at.uptime, users, error: None };
        seen.push(Observation::LoggedIn(Box::new(logged_in)));
        let pause = Pause { author: "bob".to_owned(), comment: String::new(), since: None };
        seen.push(Observation::Pause(self.is_paused.then_some(pause)));
        for outcome in self.outcomes.drain(..) {
            self.disk.on_its_way.extend(RebootRow::of(&Entry::Outcome(outcome.clone())));
            seen.push(Observation::Outcome(outcome));
        }
        seen.extend(self.order(at).map(Observation::Operator));
        seen
    }

    /// A person now and then calls one off, and looks at a node that has given up.
    fn order(&mut self, at: Moment) -> Option<OperatorCommand> {
        let is_stuck = self.policy.status(at).reboot.is_given_up && self.chance.once_in(30);
        let order = match is_stuck {
            true => OperatorOrder::ClearReboots,
            false if self.chance.once_in(700) => OperatorOrder::CancelReboot,
            false => return None,
        };
        if is_stuck {
            self.truth.forgiven = self.truth.reboots.len();
        }
        let (author, comment) = ("carol".to_owned(), String::new());
        let command = OperatorCommand { at, author, comment, order };
        self.disk.record(&Entry::Operator(command.clone()));
        self.disk.flush();
        Some(command)
    }

    fn carry_out(&mut self, decision: Decision) -> Result<(), String> {
        let Some(act) = decision.action.reboot().cloned() else { return Ok(()) };
        self.disk.record(&Entry::Decision(decision.clone()));
        if let Err(why) = self.disk.intent(&decision) {
            self.report(&decision, OutcomeResult::NotDone(why));
            return Ok(());
        }
        // Between the intent and the act, and the outcome is lost with it.
        if self.chance.once_in(25) {
            self.dies = true;
            return Ok(());
        }
        let result = match act {
            RebootAct::Perform(order) => return self.perform(&decision, &order.how),
            RebootAct::TakeSlot(_) => self.take_slot(),
            RebootAct::ReleaseSlot(_) if self.chance.once_in(4) => OutcomeResult::TimedOut,
            RebootAct::ReleaseSlot(_) => {
                self.is_slot_ours = false;
                OutcomeResult::Done
            }
            RebootAct::Schedule(_) | RebootAct::TellUsers { .. } | RebootAct::CallOff { .. } => {
                OutcomeResult::Done
            }
        };
        if self.chance.once_in(15) {
            // It was done, and nobody tells.
            return Ok(());
        }
        self.report(&decision, result);
        Ok(())
    }

    fn take_slot(&mut self) -> OutcomeResult {
        if self.is_slot_busy {
            return OutcomeResult::Failed("refused: failed_lock: another node".to_owned());
        }
        if self.chance.once_in(5) {
            return OutcomeResult::TimedOut;
        }
        self.is_slot_ours = true;
        match self.chance.once_in(6) {
            // Granted, and the answer is lost or garbled.
            true => OutcomeResult::Failed("no answer".to_owned()),
            false => OutcomeResult::Done,
        }
    }

    /// The machine is to be rebooted: may it be?
    fn perform(&mut self, decision: &Decision, how: &RebootMeans) -> Result<(), String> {
        let told = format!("at {:?} in {}: {decision:?}", self.now, self.boot.id);
        let is_sysrq = *how == RebootMeans::Sysrq;
        if !is_sysrq {
            self.judge(&told)?;
        }
        match self.chance.whole(0..=9) {
            // Whoever does it refuses.
            0 => {
                self.truth.refused += 1;
                let why = "an inhibitor blocks it".to_owned();
                self.truth.performed.remove(&self.boot.id);
                self.report(decision, OutcomeResult::NotDone(why));
            }
            1 => self.report(decision, OutcomeResult::Failed("no such unit".to_owned())),
            2 => self.report(decision, OutcomeResult::TimedOut),
            // It agrees, and nothing happens.
            3 => self.report(decision, OutcomeResult::Done),
            // It says that it could not, and does it all the same.
            4 => self.fall(),
            _ => self.fall(),
        }
        Ok(())
    }

    fn judge(&mut self, told: &str) -> Result<(), String> {
        let boot = Arc::clone(&self.boot.id);
        let least = self.settings.budgets[0].per;
        let before = self.truth.performed.insert(boot, self.now);
        if before.is_some_and(|before| self.now - before < least) {
            return Err(format!("twice in one boot\n{}", told));
        }
        for RebootBudget { times, per } in &self.settings.budgets {
            let since = self.now.saturating_sub(*per);
            let in_window = self.truth.reboots.iter().filter(|(when, _)| *when > since).count();
            if in_window >= *times as usize {
                return Err(format!("more than {times} reboots in {per:?}\n{}", told));
            }
        }
        let forbidden = [
            (!self.boot.is_wedged, "nothing is the matter"),
            (self.users, "somebody is logged in"),
            (self.is_paused, "it is paused"),
            (self.disk.is_broken, "the journal cannot be written"),
            (!self.is_slot_ours, "the cluster's slot is not ours"),
            (self.boot.uptime < Duration::from_secs(1_800), "the boot is young"),
        ];
        if let Some((_, why)) = forbidden.iter().find(|(is_so, _)| *is_so) {
            return Err(format!("rebooted although {why}\n{}", told));
        }
        if self.is_given_up() {
            return Err(format!("a third reboot after two that did not help\n{}", told));
        }
        Ok(())
    }

    /// Whether the last two did not help, and nobody has forgiven them.
    fn is_given_up(&self) -> bool {
        let unforgiven = self.truth.reboots.iter().skip(self.truth.forgiven);
        let mut last = unforgiven.rev().take(2).map(|(_, has_helped)| *has_helped);
        last.next() == Some(false) && last.next() == Some(false)
    }

    fn fall(&mut self) {
        self.truth.reboots.push((self.now, true));
        self.falls = true;
    }

    fn report(&mut self, decision: &Decision, result: OutcomeResult) {
        self.outcomes.push(Outcome {
            decision: decision.id,
            action: decision.action.name().to_owned(),
            result,
            ended: self.at(),
            took: Duration::ZERO,
            effect: None,
        });
    }
}

struct Ended {
    boots: u64,
    reboots: usize,
    refused: usize,
    violation: Option<String>,
}

fn simulate(seed: u64, boots: u64, faults: Faults) -> Ended {
    let mut node = Node::new(seed, faults);
    let mut violation = None;
    while node.boots < boots && violation.is_none() {
        let reboots = node.truth.reboots.len();
        violation = node.live_through().err();
        let is_ours = node.truth.reboots.len() > reboots;
        node.boot_again();
        // Whether it comes back before it is judged, the node knows already.
        if is_ours && node.boot.wedged_at < Duration::from_secs(450) {
            node.truth.reboots.last_mut().unwrap().1 = false;
        }
    }
    let Truth { reboots, refused, .. } = node.truth;
    Ended { boots: node.boots, reboots: reboots.len(), refused, violation }
}

#[test]
fn ten_thousand_simulated_boots_never_exceed_the_budget_and_never_loop() {
    let faults = Faults { budget_holds: true };
    let (mut boots, mut reboots, mut refused) = (0, 0, 0);
    for seed in 1..=100 {
        let ended = simulate(seed, 100, faults);
        assert!(ended.violation.is_none(), "seed {seed}: {}", ended.violation.unwrap());
        boots += ended.boots;
        reboots += ended.reboots;
        refused += ended.refused;
    }
    assert!(boots >= 10_000, "{boots}");
    assert!(reboots > 500 && refused > 20, "too little happens: {reboots} {refused}");
}

#[test]
fn a_budget_that_is_broken_on_purpose_is_found_out() {
    let faults = Faults { budget_holds: false };
    let found = (1..=100).find_map(|seed| simulate(seed, 100, faults).violation);
    let found = found.expect("nothing was found");
    assert!(found.contains("reboots in"), "{found}");
}
