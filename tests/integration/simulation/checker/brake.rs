//! The brake needs two signs: a single sign, however bad, stops no engine.

use std::collections::VecDeque;
use std::time::Duration;

use umawarden::model::{DecisionRecord, EventKind, KernelEvent, Observation, Source, Target};
use umawarden::policy::Step;

use super::{Checker, Clock, Violation, broken};

/// The window for signs, with a margin.
const SIGN_WINDOW: Duration = Duration::from_secs(11);

/// The window where memory ends slowly.
const SLOW_SIGN_WINDOW: Duration = Duration::from_secs(301);

const GIB: f64 = 1_073_741_824.0;

/// The shipped rule.
const SHIPPED: &str = "MemoryCollapse";

/// Readings of memory in the last seconds.
#[derive(Default)]
pub struct Signs {
    memory: VecDeque<(Duration, Sample)>,
    latest: Sample,
    /// Times at which the driver failed to allocate.
    failures: VecDeque<Duration>,
}

#[derive(Clone, Copy, Default)]
struct Sample {
    total: f64,
    free: f64,
    available: f64,
    reserve: f64,
    scanned: f64,
}

impl Signs {
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    pub fn see(&mut self, clock: &Clock, seen: &Observation) {
        let Observation::Readings(readings) = seen else { return };
        if !matches!(readings.source, Source::Meminfo | Source::Vmstat | Source::Sysctl) {
            return;
        }
        let latest = &mut self.latest;
        for (key, value) in readings.schema.series.iter().zip(&readings.values) {
            let Some(value) = value.value() else { continue };
            match &*key.name {
                "uma_memory_total_bytes" => latest.total = value,
                "uma_memory_free_bytes" => latest.free = value,
                "uma_memory_available_bytes" => latest.available = value,
                "uma_memory_reserve_bytes" => latest.reserve = value,
                "uma_memory_reclaim_scanned_pages_total" => latest.scanned = value,
                _ => {}
            }
        }
        // The last reading of a sample.
        if readings.source == Source::Sysctl {
            let now = clock.at.uptime;
            while self
                .memory
                .front()
                .is_some_and(|(at, _)| now.saturating_sub(*at) > SLOW_SIGN_WINDOW)
            {
                self.memory.pop_front();
            }
            self.memory.push_back((now, self.latest));
        }
    }

    pub fn take_step(&mut self, clock: &Clock, step: &Step) {
        let now = clock.at.uptime;
        self.failures.retain(|at| now.saturating_sub(*at) <= SIGN_WINDOW);
        for event in &step.events {
            if matches!(
                event.kind,
                EventKind::Kernel(KernelEvent::NvNoMemory { .. })
                    | EventKind::Kernel(KernelEvent::NvAllocFailed { .. })
            ) {
                self.failures.push_back(now);
            }
        }
    }

    /// The signs that exist, by name.
    fn all(&self, now: Duration) -> Vec<&'static str> {
        let Sample { total, free, available, reserve, .. } = self.latest;
        let of_late = |most: Duration| {
            let seen = self.memory.iter().map(|(at, sample)| (now.saturating_sub(*at), sample));
            seen.filter(move |(ago, _)| *ago <= most).map(|(_, sample)| sample)
        };
        let second = || of_late(Duration::from_millis(1_100));
        let mut signs = Vec::new();
        // Over minutes it counts only where little was left all the while.
        let is_slow = of_late(SIGN_WINDOW).all(|sample| sample.available < total / 15.0);
        let far = if is_slow { SLOW_SIGN_WINDOW } else { SIGN_WINDOW };
        if of_late(far).any(|sample| sample.available - available > total / 65.0) {
            signs.push("available memory has gone");
        }
        if second().any(|sample| sample.available > available && sample.free > free) {
            signs.push("it goes on");
        }
        // Where reclaim keeps free memory at its minimum, only available memory shows the fall.
        let falls = self.memory.iter().filter_map(|(at, sample)| {
            let ago = now.saturating_sub(*at).as_secs_f64();
            (0.05..=1.1).contains(&ago).then_some((sample.available - available) / ago)
        });
        if free < GIB && falls.fold(0.0, f64::max) * 0.5 > available {
            signs.push("available memory ends");
        }
        if second().any(|sample| sample.scanned < self.latest.scanned) {
            signs.push("direct reclaim");
        }
        if self.failures.len() > 1 {
            signs.push("the driver fails");
        }
        if free < reserve + total / 16.0 {
            signs.insert(0, "free memory is at its end");
        }
        signs
    }
}

impl Checker {
    pub(super) fn brake(&self, clock: &Clock, decision: &DecisionRecord) -> Result<(), Violation> {
        if !decision.action.is_brake() {
            return Ok(());
        }
        let Target::Engine(target) = &decision.target else {
            return broken("the brake stops an engine", format!("{decision:?}"));
        };
        let now = clock.at.uptime;
        self.restarts.is_seen_alive(now, target)?;
        if &*decision.rule.alert != SHIPPED {
            return Ok(());
        }
        let signs = self.signs.all(now);
        let is_short = signs.first() == Some(&"free memory is at its end");
        if !is_short || !signs.contains(&"available memory has gone") || signs.len() < 3 {
            return broken("the brake needs two signs", format!("{signs:?}: {decision:?}"));
        }
        Ok(())
    }
}
