//! Learns the baseline: memory in no counter of the kernel while no engine runs.

use std::time::Duration;

use crate::model::{Baseline, GateMemory};
use crate::policy::pools::memory::allowance;

/// Time without a change after which a value is the baseline.
const STEADY: Duration = Duration::from_secs(10);

/// The same for a value above the allowance: memory left by an engine may be steady for a while.
const STEADY_IN_DOUBT: Duration = Duration::from_secs(600);

/// Changes within this many bytes do not count.
const SWING: u64 = 64 << 20;

/// Whether engines are there, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) enum EnginePresence {
    /// It is not known whether engines run.
    Unknown,
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
        presence: EnginePresence,
    ) -> Option<u64> {
        let may_learn = match presence {
            EnginePresence::Unknown | EnginePresence::Some => false,
            // A new low certainly belongs to no engine.
            EnginePresence::JustGone => self.learned.is_some(),
            EnginePresence::None => true,
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
    use crate::model::Reading;

    const GIB: u64 = 1 << 30;

    fn with(unaccounted: u64) -> GateMemory {
        GateMemory {
            total: Reading::Value(120 * GIB),
            unaccounted: Reading::Value(unaccounted),
            ..GateMemory::UNKNOWN
        }
    }

    /// Lets that many seconds pass; returns what was learned when.
    fn watch(
        baseline: &mut BaselineWatch,
        from: u64,
        seconds: u64,
        bytes: u64,
        presence: EnginePresence,
    ) -> Vec<(u64, u64)> {
        let take = |second| {
            let learned = baseline.take(Duration::from_secs(second), &with(bytes), presence);
            learned.map(|bytes| (second, bytes))
        };
        (from..from + seconds).filter_map(take).collect()
    }

    #[test]
    fn the_lowest_steady_value_without_engines_is_the_baseline() {
        let mut baseline = BaselineWatch::default();
        assert_eq!(watch(&mut baseline, 0, 60, GIB, EnginePresence::Some), []);
        assert_eq!(watch(&mut baseline, 60, 60, GIB, EnginePresence::Unknown), []);
        assert_eq!(watch(&mut baseline, 120, 60, GIB, EnginePresence::None), [(130, GIB)]);
        assert_eq!(
            watch(&mut baseline, 180, 60, 2 * GIB, EnginePresence::None),
            [],
            "more is not news"
        );
        assert_eq!(watch(&mut baseline, 240, 60, GIB / 2, EnginePresence::None), [(250, GIB / 2)]);
        assert_eq!(baseline.learned(), Some(Baseline { bytes: GIB / 2, is_learned: true }));
    }

    #[test]
    fn memory_just_left_by_an_engine_is_no_baseline() {
        let mut baseline = BaselineWatch::default();
        assert_eq!(watch(&mut baseline, 0, 60, GIB, EnginePresence::JustGone), []);
        // After a restart the engine is unknown, but so large a value needs longer.
        assert_eq!(watch(&mut baseline, 60, 300, 90 * GIB, EnginePresence::None), []);
        assert_eq!(watch(&mut baseline, 360, 60, GIB, EnginePresence::None), [(370, GIB)]);
        baseline.resume(GIB / 4);
        assert_eq!(watch(&mut baseline, 420, 60, GIB / 2, EnginePresence::JustGone), []);
    }

    #[test]
    fn swinging_values_are_no_baseline_and_a_lasting_high_value_becomes_one() {
        let mut baseline = BaselineWatch::default();
        for second in 0..100 {
            let bytes = GIB + if second % 5 == 0 { GIB / 2 } else { 0 };
            let memory = with(bytes);
            assert_eq!(
                baseline.take(Duration::from_secs(second), &memory, EnginePresence::None),
                None
            );
        }
        assert_eq!(
            watch(&mut baseline, 100, 700, 60 * GIB, EnginePresence::None),
            [(700, 60 * GIB)]
        );
    }
}
