//! The time from the cause of work until the loop has handed it over.

use std::time::Duration;

use crate::model::{Reading, SeriesKey};

/// Upper bounds in seconds, as prometheus-client writes them. The aim is a decision within 50 ms.
const BOUNDS: [(Duration, &str); 6] = [
    (Duration::from_millis(1), "0.001"),
    (Duration::from_millis(5), "0.005"),
    (Duration::from_millis(25), "0.025"),
    (Duration::from_millis(50), "0.05"),
    (Duration::from_millis(250), "0.25"),
    (Duration::from_secs(1), "1.0"),
];

/// A histogram of reaction times.
#[derive(Debug, Default)]
pub(super) struct Reactions {
    /// Reactions within each bound, above the previous one.
    within: [u64; BOUNDS.len()],
    count: u64,
    sum: Duration,
}

impl Reactions {
    pub(super) fn count(&mut self, took: Duration) {
        let index = BOUNDS.partition_point(|(bound, _)| *bound < took);
        if let Some(within) = self.within.get_mut(index) {
            *within += 1;
        }
        self.count += 1;
        self.sum += took;
    }

    /// In the order of [`Self::values`].
    pub(super) fn series() -> impl Iterator<Item = SeriesKey> {
        let bounds = BOUNDS.iter().map(|(_, bound)| *bound).chain(["+Inf"]);
        let buckets = bounds
            .map(|bound| SeriesKey::new("uma_loop_reaction_seconds_bucket", &[("le", bound)]));
        buckets.chain(
            ["uma_loop_reaction_seconds_sum", "uma_loop_reaction_seconds_count"]
                .map(|name| SeriesKey::new(name, &[])),
        )
    }

    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
    pub(super) fn values(&self) -> impl Iterator<Item = Reading<f64>> {
        let mut cumulative = 0;
        let buckets = self.within.iter().map(move |within| {
            cumulative += within;
            cumulative as f64
        });
        let count = self.count as f64;
        buckets.chain([count, self.sum.as_secs_f64(), count]).map(Reading::Value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_ascend_and_match_their_labels() {
        assert!(BOUNDS.is_sorted_by_key(|(bound, _)| *bound));
        for (bound, label) in BOUNDS {
            assert_eq!(label.parse(), Ok(bound.as_secs_f64()));
        }
        assert_eq!(Reactions::series().count(), Reactions::default().values().count());
    }

    proptest! {
        #[test]
        fn each_bucket_counts_durations_up_to_its_bound(
            took_us in proptest::collection::vec(0_u64..3_000_000, 0..200),
        ) {
            let mut reactions = Reactions::default();
            for us in &took_us {
                reactions.count(Duration::from_micros(*us));
            }
            let values: Vec<f64> = reactions.values().filter_map(Reading::value).collect();
            for ((bound, label), value) in BOUNDS.iter().zip(&values) {
                let within = took_us.iter().filter(|us| Duration::from_micros(**us) <= *bound);
                prop_assert_eq!(*value, within.count() as f64, "le={}", label);
            }
            let sum = took_us.iter().sum::<u64>() as f64 / 1e6;
            prop_assert_eq!(values[BOUNDS.len()], took_us.len() as f64);
            prop_assert!((values[BOUNDS.len() + 1] - sum).abs() < 1e-6);
            prop_assert_eq!(values[BOUNDS.len() + 2], took_us.len() as f64);
        }
    }
}
