//! Wall times that lack the zone or the year.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

/// Clocks differ, and a file may have been copied from a machine that is ahead.
const AHEAD_HOURS: i64 = 26;

/// 29 February is in every eighth year at least.
const MOST_YEARS_BACK: i16 = 8;

/// Wall time in an unknown zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalTime {
    at: DateTime,
    year_is_known: bool,
    /// The zone's short name, which more than one zone may have.
    zone: Option<String>,
}

impl LocalTime {
    /// `Sat Nov 21 02:31:07 2026`: of `dmesg -T`.
    pub(super) fn dated(at: DateTime) -> Self {
        Self { at, year_is_known: true, zone: None }
    }

    /// `Sat 2026-11-21 02:31:07 CET`: of `journalctl -o short-full`.
    pub(super) fn of_zone(at: DateTime, zone: &str) -> Self {
        Self { at, year_is_known: true, zone: Some(zone.to_owned()) }
    }

    /// `Nov 21 02:31:07`: of `journalctl` and syslog files. The year of `at` has no meaning.
    pub(super) fn without_year(at: DateTime) -> Self {
        Self { at, year_is_known: false, zone: None }
    }

    /// Whether the year has to be guessed.
    pub fn year_is_known(&self) -> bool {
        self.year_is_known
    }

    /// The instant in `zone`. A missing year is the last one in which the time was before `newest`.
    /// `None`: the text names another zone.
    pub fn resolve(&self, zone: &TimeZone, newest: Timestamp) -> Option<Timestamp> {
        let instant = |at: DateTime| zone.to_ambiguous_zoned(at).compatible().ok();
        if self.year_is_known {
            let zoned = instant(self.at)?;
            let is_it = self
                .zone
                .as_deref()
                .is_none_or(|name| zone.to_offset_info(zoned.timestamp()).abbreviation() == name);
            return is_it.then(|| zoned.timestamp());
        }
        let latest = newest.checked_add(jiff::SignedDuration::from_hours(AHEAD_HOURS)).ok()?;
        let year = latest.to_zoned(zone.clone()).year();
        (0..=MOST_YEARS_BACK).find_map(|back| {
            let day = Date::new(year - back, self.at.month(), self.at.day()).ok()?;
            let found = instant(day.to_datetime(self.at.time()))?.timestamp();
            (found <= latest).then_some(found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime {
        text.parse().unwrap()
    }

    fn resolved(local: &LocalTime, zone: &str, newest: &str) -> Option<String> {
        let zone = TimeZone::posix(zone).unwrap();
        local.resolve(&zone, newest.parse().unwrap()).map(|utc| utc.to_string())
    }

    const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";

    #[test]
    fn a_date_has_the_given_zone() {
        let local = LocalTime::dated(at("2026-07-21T02:31:07"));
        let now = "2026-11-21T00:00:00Z";
        assert_eq!(resolved(&local, BERLIN, now).as_deref(), Some("2026-07-21T00:31:07Z"));
        assert_eq!(resolved(&local, "UTC0", now).as_deref(), Some("2026-07-21T02:31:07Z"));
    }

    #[test]
    fn a_named_zone_must_match_the_given_one() {
        let local = LocalTime::of_zone(at("2026-11-21T02:31:07"), "CET");
        let now = "2026-11-21T00:00:00Z";
        assert_eq!(resolved(&local, BERLIN, now).as_deref(), Some("2026-11-21T01:31:07Z"));
        assert_eq!(resolved(&local, "UTC0", now), None);
        let summer = LocalTime::of_zone(at("2026-07-21T02:31:07"), "CET");
        assert_eq!(resolved(&summer, BERLIN, now), None);
    }

    #[test]
    fn a_missing_year_is_the_latest_possible_one() {
        let found = |text: &str, newest: &str| {
            resolved(&LocalTime::without_year(at(text)), "UTC0", newest).unwrap()
        };
        assert_eq!(found("1972-11-20T10:00:00", "2026-11-21T00:00:00Z"), "2026-11-20T10:00:00Z");
        assert_eq!(found("1972-12-31T23:59:59", "2026-01-02T00:00:00Z"), "2025-12-31T23:59:59Z");
        assert_eq!(found("1972-01-01T00:00:01", "2025-12-31T23:00:00Z"), "2026-01-01T00:00:01Z");
        assert_eq!(found("1972-02-29T10:00:00", "2026-11-21T00:00:00Z"), "2024-02-29T10:00:00Z");
        assert_eq!(found("1972-02-29T10:00:00", "2103-11-21T00:00:00Z"), "2096-02-29T10:00:00Z");
    }

    #[test]
    fn a_skipped_or_repeated_hour_is_some_instant() {
        let now = "2026-11-21T00:00:00Z";
        for hour in ["2026-03-29T02:30:00", "2026-10-25T02:30:00"] {
            assert!(resolved(&LocalTime::dated(at(hour)), BERLIN, now).is_some(), "{hour}");
        }
    }
}
