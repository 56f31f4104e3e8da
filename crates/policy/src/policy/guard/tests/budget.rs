use std::time::Duration;

use proptest::prelude::*;

use crate::policy::guard::AtMost;
use crate::policy::guard::budget::Acts;

proptest! {
    #[test]
    fn never_more_than_the_limit_in_any_window(
        times in 1u32..6,
        per_ms in 1i64..2000,
        waits in prop::collection::vec(0i64..500, 1..200),
    ) {
        let limit = AtMost { times, per: Duration::from_millis(per_ms.cast_unsigned()) };
        let (mut acts, mut allowed, mut now) = (Acts::default(), Vec::new(), 0);
        for wait in waits {
            now += wait;
            if !acts.has_spent(limit, now) {
                acts.add(now);
                allowed.push(now);
            }
        }
        for window in allowed.windows(times as usize + 1) {
            prop_assert!(window[times as usize] - window[0] >= per_ms, "{window:?}");
        }
    }

    #[test]
    fn the_budget_does_not_depend_on_the_order_of_reports(
        mut when in prop::collection::vec(-5000i64..5000, 0..50),
        now in 0i64..6000,
    ) {
        let limit = AtMost { times: 4, per: Duration::from_secs(2) };
        let (mut known_late, mut known_in_order) = (Acts::default(), Acts::default());
        when.iter().for_each(|at| known_late.add(*at));
        when.sort_unstable();
        when.iter().for_each(|at| known_in_order.add(*at));
        prop_assert_eq!(known_late.left(limit, now), known_in_order.left(limit, now));
    }
}

#[test]
fn an_act_counts_until_exactly_its_window_has_passed() {
    let limit = AtMost { times: 1, per: Duration::from_secs(10) };
    let mut acts = Acts::default();
    acts.add(-3000);
    assert!(acts.has_spent(limit, 6_999));
    assert!(!acts.has_spent(limit, 7_000));
}
