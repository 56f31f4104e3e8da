use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use crate::model::Moment;
use crate::policy::guard::{PastMoment, on_this_boots_clock};

const NOW_SECOND: i64 = 1_800_000_000;

fn now() -> Moment {
    Moment { uptime: Duration::from_secs(100), utc: Timestamp::from_second(NOW_SECOND).unwrap() }
}

/// So many seconds before now by the wall clock.
fn moment(ago: i64, uptime: u64, is_this_boot: bool) -> PastMoment {
    let utc = Timestamp::from_second(NOW_SECOND - ago).unwrap();
    PastMoment { at: Moment { uptime: Duration::from_secs(uptime), utc }, is_this_boot }
}

fn seconds(moments: &[PastMoment]) -> Vec<i64> {
    on_this_boots_clock(now(), moments).iter().map(|ms| ms / 1000).collect()
}

#[test]
fn ages_within_a_boot_follow_the_uptime_clock() {
    assert_eq!(seconds(&[moment(-5_000, 40, true), moment(70_000, 90, true)]), [40, 90]);
}

#[test]
fn ages_from_earlier_boots_follow_the_wall_clock() {
    assert_eq!(seconds(&[moment(3_600, 7_000, false)]), [100 - 3_600]);
}

#[test]
fn acts_of_an_earlier_boot_are_older_than_this_boot() {
    assert_eq!(seconds(&[moment(30, 7_000, false)]), [0]);
}

#[test]
fn a_clock_that_is_behind_gives_the_smallest_possible_age() {
    assert_eq!(seconds(&[moment(-50, 7_000, false), moment(-1, 7_001, false)]), [0, 0]);
}

#[test]
fn an_unset_wall_clock_is_ignored() {
    let not_set = moment(NOW_SECOND - 60, 60, false);
    let set_back = [moment(600, 1, false), moment(9_000, 2, false)];
    assert_eq!(seconds(&[not_set]), [0]);
    assert_eq!(seconds(&set_back), [100 - 600, 0]);
}

proptest! {
    #[test]
    fn ages_never_exceed_what_the_clocks_show(
        moments in prop::collection::vec((-10_000i64..1_000_000, 0u64..200, any::<bool>()), 1..20),
    ) {
        let moments: Vec<PastMoment> = moments
            .into_iter()
            .map(|(ago, uptime, this)| moment(ago, uptime, this))
            .collect();
        for (age, known) in on_this_boots_clock(now(), &moments).iter().zip(&moments) {
            let by_wall_clock = 100_000 - (now().utc_ms() - known.at.utc_ms());
            prop_assert!(*age <= 100_000, "nothing is in the future");
            if !known.is_this_boot {
                prop_assert!(*age <= 0 && *age >= by_wall_clock.min(0));
            }
        }
    }
}
