//! How much memory is in no counter of the kernel while no engine runs: learned by watching.

use std::time::Duration;

use super::memory::allowance;
use crate::model::{Baseline, GateMemory};

/// It must stay as it is for so long to count as usual,
const STEADY: Duration = Duration::from_secs(10);

/// and for so long where it is more than anybody would allow for: what an engine has left behind
/// may stand still for a while.
const STEADY_IN_DOUBT: Duration = Duration::from_secs(600);

/// Within this it is the same.
const SWING: u64 = 64 << 20;

/// Whether engines are there, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) enum Presence {
    /// Unknown.
    Unknown,
    /// Some are.
    Some,
    /// None is, but one was of late: what it held may still be there.
    JustGone,
    /// None is, and none was of late.
    None,
}

/// Watches it. The lowest of what was steady in this boot counts.
#[derive(Debug, Default)]
pub(super) struct BaselineWatch {
    learned: Option<u64>,
    /// Since when it has been between these two.
    steady: Option<(Duration, u64, u64)>,
}

impl BaselineWatch {
    pub(super) fn learned(&self) -> Option<Baseline> {
        self.learned.map(|bytes| Baseline { bytes, is_learned: true })
    }

    pub(super) fn resume(&mut self, bytes: u64) {
        self.learned = Some(self.learned.map_or(bytes, |learned| learned.min(bytes)));
    }

    /// Returns what was learned, if that is news.
    pub(super) fn take(
        &mut self,
        at: Duration,
        memory: &GateMemory,
        presence: Presence,
    ) -> Option<u64> {
        let may_learn = match presence {
            Presence::Unknown | Presence::Some => false,
            // A new low certainly belongs to no engine.
            Presence::JustGone => self.learned.is_some(),
            Presence::None => true,
        };
        let Some(now) = memory.unaccounted.value().filter(|_| may_learn) else {
            self.steady = None;
            return None;
        };
        let (since, low, high) = match self.steady {
            Some((since, low, high)) if now.max(high) - now.min(low) <= SWING => {
                (since, low.min(now), high.max(now))
            }
            _ => (at, now, now),
        };
        self.steady = Some((since, low, high));
        let is_plausible = high <= allowance(memory.total).bytes;
        let needed = if is_plausible { STEADY } else { STEADY_IN_DOUBT };
        let is_news = self.learned.is_none_or(|learned| high.saturating_add(SWING) <= learned);
        if at.saturating_sub(since) < needed || !is_news {
            return None;
        }
        self.learned = Some(high);
        Some(high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Motion, Reading};

    const GIB: u64 = 1 << 30;

    fn with(unaccounted: u64) -> GateMemory {
        let absent = Reading::Unsupported;
        GateMemory {
            total: Reading::Value(120 * GIB),
            free: absent,
            free_cma: absent,
            clean_cache: absent,
            dirty_cache: absent,
            mapped_cache: absent,
            reclaimable_slab: absent,
            reserve: absent,
            contiguous_2mib: absent,
            contiguous_32mib: absent,
            unaccounted: Reading::Value(unaccounted),
            baseline: Baseline { bytes: 0, is_learned: false },
            shmem: absent,
            orphans: Reading::Unsupported,
            motion: Motion::default(),
        }
    }

    /// Lets that many seconds pass; returns what was learned when.
    fn watch(
        baseline: &mut BaselineWatch,
        from: u64,
        seconds: u64,
        bytes: u64,
        presence: Presence,
    ) -> Vec<(u64, u64)> {
        let take = |second| {
            let learned = baseline.take(Duration::from_secs(second), &with(bytes), presence);
            learned.map(|bytes| (second, bytes))
        };
        (from..from + seconds).filter_map(take).collect()
    }

    #[test]
    fn the_lowest_that_is_steady_while_no_engine_runs_is_usual() {
        let mut baseline = BaselineWatch::default();
        assert_eq!(watch(&mut baseline, 0, 60, GIB, Presence::Some), []);
        assert_eq!(watch(&mut baseline, 60, 60, GIB, Presence::Unknown), []);
        assert_eq!(watch(&mut baseline, 120, 60, GIB, Presence::None), [(130, GIB)]);
        assert_eq!(watch(&mut baseline, 180, 60, 2 * GIB, Presence::None), [], "more is not news");
        assert_eq!(watch(&mut baseline, 240, 60, GIB / 2, Presence::None), [(250, GIB / 2)]);
        assert_eq!(baseline.learned(), Some(Baseline { bytes: GIB / 2, is_learned: true }));
    }

    #[test]
    fn what_an_engine_has_just_left_is_not_usual() {
        let mut baseline = BaselineWatch::default();
        assert_eq!(watch(&mut baseline, 0, 60, GIB, Presence::JustGone), []);
        // After a restart nobody knows of the engine, but so much is nobody's either.
        assert_eq!(watch(&mut baseline, 60, 300, 90 * GIB, Presence::None), []);
        assert_eq!(watch(&mut baseline, 360, 60, GIB, Presence::None), [(370, GIB)]);
        baseline.resume(GIB / 4);
        assert_eq!(watch(&mut baseline, 420, 60, GIB / 2, Presence::JustGone), []);
    }

    #[test]
    fn what_swings_is_not_steady_and_what_stays_much_is_believed_in_the_end() {
        let mut baseline = BaselineWatch::default();
        for second in 0..100 {
            let bytes = GIB + if second % 5 == 0 { GIB / 2 } else { 0 };
            let memory = with(bytes);
            assert_eq!(baseline.take(Duration::from_secs(second), &memory, Presence::None), None);
        }
        assert_eq!(watch(&mut baseline, 100, 700, 60 * GIB, Presence::None), [(700, 60 * GIB)]);
    }
}
