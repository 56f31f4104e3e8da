//! The brake needs company: one sign alone, however bad, stops nobody.

use std::collections::VecDeque;
use std::time::Duration;

use umawarden::model::{Decision, EventKind, KernelEvent, Observation, Source, Target};
use umawarden::policy::Step;

use super::{Checker, Clock, Violation, broken};

/// How far back anybody looks for signs, and a little more.
const LOOKED_BACK: Duration = Duration::from_secs(11);

/// The same where memory ends slowly.
const LOOKED_FAR_BACK: Duration = Duration::from_secs(301);

const GIB: f64 = 1_073_741_824.0;

/// The shipped rule.
const SHIPPED: &str = "MemoryCollapse";

/// What was told of memory in the last seconds.
#[derive(Default)]
pub struct Signs {
    memory: VecDeque<(Duration, Told)>,
    latest: Told,
    /// When the driver failed to allocate.
    failures: VecDeque<Duration>,
}

#[derive(Clone, Copy, Default)]
struct Told {
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
        // The last one of a look.
        if readings.source == Source::Sysctl {
            let now = clock.at.uptime;
            while self
                .memory
                .front()
                .is_some_and(|(at, _)| now.saturating_sub(*at) > LOOKED_FAR_BACK)
            {
                self.memory.pop_front();
            }
            self.memory.push_back((now, self.latest));
        }
    }

    pub fn hear(&mut self, clock: &Clock, said: &Step) {
        let now = clock.at.uptime;
        self.failures.retain(|at| now.saturating_sub(*at) <= LOOKED_BACK);
        for event in &said.events {
            if matches!(
                event.kind,
                EventKind::Kernel(KernelEvent::NvNoMemory { .. })
                    | EventKind::Kernel(KernelEvent::NvAllocFailed { .. })
            ) {
                self.failures.push_back(now);
            }
        }
    }

    /// Each sign that there is, by name.
    fn all(&self, now: Duration) -> Vec<&'static str> {
        let Told { total, free, available, reserve, .. } = self.latest;
        let of_late = |most: Duration| {
            let seen = self.memory.iter().map(|(at, told)| (now.saturating_sub(*at), told));
            seen.filter(move |(ago, _)| *ago <= most).map(|(_, told)| told)
        };
        let second = || of_late(Duration::from_millis(1_100));
        let mut signs = Vec::new();
        // Over minutes it counts only where little was left all the while.
        let is_slow = of_late(LOOKED_BACK).all(|told| told.available < total / 15.0);
        let far = if is_slow { LOOKED_FAR_BACK } else { LOOKED_BACK };
        if of_late(far).any(|told| told.available - available > total / 65.0) {
            signs.push("available memory has gone");
        }
        if second().any(|told| told.available > available && told.free > free) {
            signs.push("it goes on");
        }
        // Where free memory is kept at its least by reclaim, only available memory shows the fall.
        let falls = self.memory.iter().filter_map(|(at, told)| {
            let ago = now.saturating_sub(*at).as_secs_f64();
            (0.05..=1.1).contains(&ago).then_some((told.available - available) / ago)
        });
        if free < GIB && falls.fold(0.0, f64::max) * 0.5 > available {
            signs.push("available memory ends");
        }
        if second().any(|told| told.scanned < self.latest.scanned) {
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
    pub(super) fn brake(&self, clock: &Clock, decision: &Decision) -> Result<(), Violation> {
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
            return broken("the brake needs company", format!("{signs:?}: {decision:?}"));
        }
        Ok(())
    }
}
