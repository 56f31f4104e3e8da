//! The node, boot after boot.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use umawarden::journal::{JournalEntry, past_reboots};
use umawarden::model::{
    DecisionId, EarlierRuns, Mode, Moment, Observation, Outcome, PastReboots, Schema, SeriesKey,
};
use umawarden::policy::Policy;

use super::disk::Disk;
use super::truth::Truth;
use super::{Faults, Settings, TICK, settings};
use crate::simulation::chance::Chance;

/// While a leak is watched: the assessment needs changes within seconds.
const CLOSE: Duration = Duration::from_secs(4);

/// The length of such a phase, and the pause between them.
const CLOSE_FOR: u64 = 900;
const CLOSE_EVERY: u64 = 14_400;

/// The trouble of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The driver does not answer.
    Wedge,
    /// Memory without an owner.
    Leak,
}

/// One boot of the node.
pub struct Boot {
    pub id: Arc<str>,
    pub uptime: Duration,
    /// The error of the wall clock, in seconds.
    clock_off: i64,
    kind: Trouble,
    pub troubled_at: Duration,
}

impl Boot {
    /// The current trouble.
    pub fn trouble(&self) -> Option<Trouble> {
        (self.uptime >= self.troubled_at).then_some(self.kind)
    }

    fn tick(&self) -> Duration {
        let since = self.uptime.saturating_sub(self.troubled_at).as_secs();
        let is_close = self.trouble() == Some(Trouble::Leak) && since % CLOSE_EVERY < CLOSE_FOR;
        if is_close { CLOSE } else { TICK }
    }
}

pub struct Node {
    pub settings: Settings,
    pub chance: Chance,
    pub disk: Disk,
    pub boots: u64,
    pub boot: Boot,
    pub now: Duration,
    pub policy: Policy,
    pub outcomes: Vec<Outcome>,
    pub users: bool,
    pub engine: bool,
    pub is_paused: bool,
    /// The node to which the cluster's lock has truly given the slot.
    pub is_slot_ours: bool,
    pub is_slot_busy: bool,
    pub dies: bool,
    pub falls: bool,
    /// Number of losses of the journal that this process has detected.
    pub losses: f64,
    pub truth: Truth,
    next_decision: u64,
    pub memory: Arc<Schema>,
    pub losses_series: Arc<Schema>,
}

impl Node {
    pub fn new(seed: u64, faults: Faults) -> Self {
        let settings = settings(faults);
        let boot = Boot {
            id: "boot-0".into(),
            uptime: Duration::from_secs(20),
            clock_off: 0,
            kind: Trouble::Wedge,
            troubled_at: Duration::MAX,
        };
        let schema = |names: &[&str]| {
            let series = names.iter().map(|name| SeriesKey::new(name, &[])).collect();
            Arc::new(Schema { series })
        };
        let memory = [
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
            engine: false,
            is_paused: false,
            is_slot_ours: false,
            is_slot_busy: false,
            dies: false,
            falls: false,
            losses: 0.0,
            truth: Truth::default(),
            next_decision: 1,
            memory: schema(&memory),
            losses_series: schema(&["uma_journal_lost_total"]),
        };
        node.start_process();
        node
    }

    pub fn at(&self) -> Moment {
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
        (self.dies, self.losses) = (false, 0.0);
        self.disk.note_alive(&self.boot.id, self.boot.uptime);
    }

    /// The past in the journal for a process that has just started, if it can be read.
    fn past(&mut self) -> Option<EarlierRuns> {
        if self.disk.is_broken {
            return None;
        }
        let reboots = match self.chance.once_in(40) {
            // The boot id cannot be read.
            true => PastReboots::default(),
            false => past_reboots(&self.disk.rows, &self.disk.boots, &self.boot.id),
        };
        Some(EarlierRuns {
            reboots,
            unaccounted_baselines: [("host".into(), 1 << 30)].into(),
            ..EarlierRuns::default()
        })
    }

    pub fn boot_again(&mut self) {
        self.boots += 1;
        self.now += self.chance.span(Duration::from_secs(30), Duration::from_secs(90));
        if self.chance.once_in(12) {
            self.now += self.chance.until(Duration::from_secs(40 * 3_600));
        }
        // Trouble comes back after most boots.
        let comes = self.chance.share() < 0.7;
        let early = self.chance.share() < 0.5;
        let mean = if early { 900 } else { 2 * 3_600 };
        let kind = if self.chance.once_in(3) { Trouble::Leak } else { Trouble::Wedge };
        self.boot = Boot {
            id: format!("boot-{}", self.boots).into(),
            uptime: Duration::from_secs(15),
            clock_off: self.jump(),
            kind,
            troubled_at: match comes {
                true => self.chance.until(Duration::from_secs(mean)),
                false => Duration::MAX,
            },
        };
        self.truth.is_cancelled = false;
        (self.truth.slot, self.truth.stopped) = (None, None);
        self.engine = false;
        if self.chance.once_in(3) {
            self.disk.on_its_way.clear();
        }
        self.disk.flush();
        if self.chance.once_in(60) {
            self.disk.forget();
            self.truth.forget();
        }
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

    /// One boot, until the machine is rebooted, or it is time for a person to reboot it.
    pub fn live_through(&mut self) -> Result<(), String> {
        let lasts =
            self.chance.until(Duration::from_secs(4 * 3_600)).min(Duration::from_secs(86_400));
        let known = self.chance.span(Duration::ZERO, Duration::from_secs(120));
        let mut past_due = Some(self.boot.uptime + known);
        while self.boot.uptime < lasts {
            let tick = self.boot.tick();
            self.now += tick;
            self.boot.uptime += tick;
            // Rates are per time, however short a step is.
            if tick == TICK || self.chance.once_in(45) {
                self.disturb();
            }
            let mut seen = self.seen();
            if past_due.is_some_and(|due| self.boot.uptime >= due)
                && let Some(past) = self.past()
            {
                seen.insert(0, Observation::Past(Box::new(past)));
                past_due = None;
            }
            self.step(&seen)?;
            if self.falls {
                self.falls = false;
                return Ok(());
            }
            if self.dies || self.chance.once_in(if tick == TICK { 150 } else { 2_000 }) {
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

    fn step(&mut self, seen: &[Observation]) -> Result<(), String> {
        let step = self.policy.step(self.at(), seen);
        for answer in step.answers {
            if answer.refused.is_none() {
                self.obeyed(&answer.command.order);
            }
        }
        for event in step.events {
            let boot_id = Arc::clone(&self.boot.id);
            self.disk.record(&JournalEntry::Event { boot_id, event });
        }
        for decision in step.decisions {
            self.next_decision = self.next_decision.max(decision.id.0 + 1);
            if decision.is_act() {
                self.carry_out(decision)?;
            }
        }
        Ok(())
    }

    fn disturb(&mut self) {
        let chance = &mut self.chance;
        let mut toggle = |is_so: &mut bool, begins: u64, ends: u64| {
            *is_so ^= chance.once_in(if *is_so { ends } else { begins });
        };
        toggle(&mut self.users, 80, 15);
        toggle(&mut self.is_paused, 200, 15);
        toggle(&mut self.is_slot_busy, 60, 10);
        toggle(&mut self.disk.is_broken, 150, 10);
        toggle(&mut self.engine, 60, 40);
        // A leak is memory of an engine that has gone.
        self.engine &= self.boot.trouble() != Some(Trouble::Leak);
        if self.chance.once_in(200) {
            self.boot.clock_off = self.jump();
        }
        // A restarted server may have forgotten its holders.
        if self.is_slot_ours && self.chance.once_in(30) {
            self.is_slot_ours = false;
            self.truth.counts.slots_lost += 1;
        }
        if self.chance.once_in(4_000) && !self.disk.is_broken {
            self.disk.replace();
            self.losses += 1.0;
            self.truth.lose(self.now);
        }
    }
}
