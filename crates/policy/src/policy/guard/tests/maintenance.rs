use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use proptest::prelude::*;

use crate::policy::guard::{MaintenanceWindow, WrittenWindow, time_zone};

fn window(days: &[i8], from: u16, to: u16, zone: &str) -> MaintenanceWindow {
    let written = WrittenWindow {
        name: Arc::from("w"),
        days: days.iter().copied().collect(),
        from,
        to,
        time_zone: zone.to_owned(),
    };
    MaintenanceWindow::try_from(written).unwrap()
}

fn open(window: &MaintenanceWindow, at: &str) -> bool {
    window.is_open(at.parse::<Timestamp>().unwrap())
}

#[test]
fn a_window_opens_at_its_first_minute_and_is_closed_at_its_last() {
    let nights = window(&[], 2 * 60, 4 * 60, "UTC");
    assert!(!open(&nights, "2026-11-21T01:59:59.999Z"));
    assert!(open(&nights, "2026-11-21T02:00:00Z"));
    assert!(open(&nights, "2026-11-21T03:59:59.999Z"));
    assert!(!open(&nights, "2026-11-21T04:00:00Z"));
}

#[test]
fn over_midnight_a_window_belongs_to_the_day_on_which_it_begins() {
    // 2026-11-21 is a Saturday.
    let friday_night = window(&[5], 22 * 60, 6 * 60, "UTC");
    assert!(!open(&friday_night, "2026-11-20T05:00:00Z"), "of Thursday");
    assert!(open(&friday_night, "2026-11-20T23:00:00Z"));
    assert!(open(&friday_night, "2026-11-21T05:59:00Z"));
    assert!(!open(&friday_night, "2026-11-21T23:00:00Z"));
}

#[test]
fn a_whole_day_ends_at_midnight_in_its_own_time_zone() {
    let sunday = window(&[7], 0, 24 * 60, "Asia/Tokyo");
    assert!(!open(&sunday, "2026-11-21T14:59:59Z"));
    assert!(open(&sunday, "2026-11-21T15:00:00Z"));
    assert!(open(&sunday, "2026-11-22T14:59:59Z"));
    assert!(!open(&sunday, "2026-11-22T15:00:00Z"));
}

#[test]
fn a_window_that_the_clocks_skip_opens_as_much_later() {
    // In Berlin 02:00 to 03:00 does not exist on 2026-03-29: 01:59:59 CET is 00:59:59 UTC.
    let skipped = window(&[], 2 * 60 + 15, 2 * 60 + 45, "Europe/Berlin");
    assert!(!open(&skipped, "2026-03-29T01:14:59Z"));
    assert!(open(&skipped, "2026-03-29T01:15:00Z"), "03:15 CEST");
    assert!(!open(&skipped, "2026-03-29T01:45:00Z"));
}

#[test]
fn a_window_that_comes_twice_opens_the_first_time() {
    // In Berlin 02:00 to 03:00 comes twice on 2026-10-25: at 00:00 UTC and at 01:00 UTC.
    let twice = window(&[], 2 * 60 + 15, 2 * 60 + 45, "Europe/Berlin");
    assert!(open(&twice, "2026-10-25T00:15:00Z"));
    assert!(!open(&twice, "2026-10-25T00:45:00Z"));
    assert!(!open(&twice, "2026-10-25T01:15:00Z"));
    let across = window(&[], 60, 4 * 60, "Europe/Berlin");
    assert!(open(&across, "2026-10-25T02:59:59Z"), "an hour longer than its name says");
    assert!(!open(&across, "2026-10-25T03:00:00Z"));
}

#[test]
fn the_time_zones_are_inside_the_program() {
    assert!(time_zone("America/Los_Angeles").is_ok());
    let error = time_zone("Europe/Berlim").unwrap_err();
    assert!(error.contains("Europe/Berlim") && error.contains("IANA"), "{error}");
}

proptest! {
    #[test]
    fn a_window_survives_being_written_down(
        days in prop::collection::btree_set(1i8..=7, 0..7),
        from in 0u16..1440,
        to in 0u16..=1440,
    ) {
        let written = WrittenWindow {
            name: Arc::from("nights"), days, from, to, time_zone: "Europe/Berlin".to_owned(),
        };
        let window = MaintenanceWindow::try_from(written).unwrap();
        let json = serde_json::to_string(&window).unwrap();
        prop_assert_eq!(serde_json::from_str::<MaintenanceWindow>(&json).unwrap(), window);
    }

    #[test]
    fn at_any_time_either_a_window_or_what_it_leaves_is_open(
        from in 0u16..1440,
        to in 0u16..1440,
        second in 1_700_000_000i64..1_900_000_000,
    ) {
        prop_assume!(from != to);
        let at = Timestamp::from_second(second).unwrap();
        let (one, rest) = (window(&[], from, to, "UTC"), window(&[], to, from, "UTC"));
        prop_assert!(one.is_open(at) != rest.is_open(at));
    }

    #[test]
    fn a_day_that_is_not_named_opens_nothing(
        day in 1i8..=7,
        second in 1_700_000_000i64..1_900_000_000,
    ) {
        let at = Timestamp::from_second(second).unwrap();
        let others: Vec<i8> = (1..=7).filter(|other| *other != day).collect();
        let (one, rest) = (window(&[day], 0, 1440, "UTC"), window(&others, 0, 1440, "UTC"));
        prop_assert!(one.is_open(at) != rest.is_open(at));
        let all: BTreeSet<i8> = (1..=7).collect();
        prop_assert!(window(&all.into_iter().collect::<Vec<_>>(), 0, 1440, "UTC").is_open(at));
    }
}
