//! Durations and instants in files, flags, orders and queries.

use std::time::Duration;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// Units of durations, longest first; a year has 365 days, as in Prometheus.
const UNITS_MS: [(&str, u64); 7] = [
    ("y", 365 * 86_400_000),
    ("w", 7 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// The forms of an instant in the past.
const EXPECTED: &str = "expected 2h or -2h (ago), 2026-11-21, 2026-11-21T10:00 (UTC), \
                        2026-11-21T10:00:00Z, 10:00 (UTC) or seconds since 1970";

/// The forms of an end.
const EXPECTED_END: &str = "expected 2026-11-21T10:00 (UTC), 2026-11-21T10:00:00Z, 10:00 (UTC) or \
                            seconds since 1970";

/// A duration as Prometheus writes it: `100ms`, `5m`, `1h30m`, `30d`, `0`.
///
/// Grammar: <https://prometheus.io/docs/prometheus/latest/configuration/configuration/>.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "\"{text}\" is not a duration; write it like 100ms, 5m, 1h30m or 30d, longest first"
        )
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut units, mut total) = (text, UNITS_MS.as_slice(), 0_u64);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_lowercase).count();
        let (unit, tail) = tail.split_at(letters);
        let index = units.iter().position(|(name, _)| *name == unit).ok_or_else(wrong)?;
        if number.is_empty() {
            return Err(wrong());
        }
        let too_long = || format!("\"{text}\" is too long a duration");
        let number: u64 = number.parse().map_err(|_| too_long())?;
        let part = number.checked_mul(units[index].1).ok_or_else(too_long)?;
        total = total.checked_add(part).ok_or_else(too_long)?;
        (rest, units) = (tail, &units[index + 1..]);
    }
    if text.is_empty() || i64::try_from(total).is_err() {
        return Err(wrong());
    }
    Ok(Duration::from_millis(total))
}

/// The duration as [`duration`] reads it, in whole milliseconds.
pub fn duration_text(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut out = String::new();
    for (unit, ms) in UNITS_MS {
        if rest >= ms {
            out += &format!("{}{unit}", rest / ms);
            rest %= ms;
        }
    }
    out
}

/// As [`duration_text`], in whole seconds.
pub fn seconds_text(duration: Duration) -> String {
    duration_text(Duration::from_secs(duration.as_secs()))
}

/// As [`seconds_text`], of seconds as the API has them, rounded. What is no duration is `0s`.
pub fn rounded_seconds_text(seconds: f64) -> String {
    duration_text(Duration::try_from_secs_f64(seconds.round()).unwrap_or_default())
}

/// As [`seconds_text`], with tenths of a second below a minute: `0.5s`, `1m5s`.
pub fn tenths_text(duration: Duration) -> String {
    // Above this, tenths would be rounded to 60.0.
    match duration < Duration::from_millis(59_950) {
        true => format!("{:.1}s", duration.as_secs_f64()),
        false => seconds_text(duration.max(Duration::from_secs(60))),
    }
}

/// As [`tenths_text`], of measured seconds. What is no duration is `0.0s`.
pub fn measured_seconds_text(seconds: f64) -> String {
    tenths_text(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// An age in one unit, for columns: `12s`, `3m`, `47h`, `5d`.
pub fn age_text(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3_600 => format!("{}m", seconds / 60),
        seconds @ 3_600..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// An instant, mostly of the past: so long before `now` with or without a sign, a date or an
/// instant, when it was that time of day last, or seconds since 1970. Without a zone it is UTC.
pub fn instant(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let expected = || EXPECTED.to_owned();
    if let Some(known) = absolute(text, now, DayDirection::Last) {
        return known.ok_or_else(expected);
    }
    let ago = duration(text.strip_prefix('-').unwrap_or(text)).map_err(|_| expected())?;
    now.checked_sub(ago).map_err(|_| expected())
}

/// An instant that something lasts until: as [`instant`], but the time of day is its next one, and
/// no duration is one.
pub fn end(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    absolute(text, now, DayDirection::Next).flatten().ok_or_else(|| EXPECTED_END.to_owned())
}

/// The day of a time of day.
#[derive(Clone, Copy)]
enum DayDirection {
    Last,
    Next,
}

/// `None` where it has no such form, and `Some(None)` where it has and is out of range.
fn absolute(text: &str, now: Timestamp, turn: DayDirection) -> Option<Option<Timestamp>> {
    let begins_with_digit = text.starts_with(|first: char| first.is_ascii_digit());
    if begins_with_digit && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Some(text.parse().ok().and_then(of_seconds));
    }
    let is_time_of_day = text.len() <= 12 && text.as_bytes().get(2) == Some(&b':');
    if is_time_of_day && let Ok(time) = text.parse::<Time>() {
        return Some(of_day(time, now, turn));
    }
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Some(Some(timestamp));
    }
    let civil: DateTime = text.parse().ok()?;
    Some(civil.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp()))
}

/// Rounded to milliseconds, like all shown times.
fn of_seconds(seconds: f64) -> Option<Timestamp> {
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and jiff checks the range")]
    let milliseconds = (seconds * 1000.0).round() as i64;
    Timestamp::from_millisecond(milliseconds).ok()
}

fn of_day(time: Time, now: Timestamp, turn: DayDirection) -> Option<Timestamp> {
    let today = now.to_zoned(TimeZone::UTC).date();
    let on = |date: Date| Some(date.to_datetime(time).to_zoned(TimeZone::UTC).ok()?.timestamp());
    let (at, day) = (on(today)?, Span::new().days(1));
    match turn {
        DayDirection::Last if at > now => on(today.checked_sub(day).ok()?),
        DayDirection::Next if at <= now => on(today.checked_add(day).ok()?),
        DayDirection::Last | DayDirection::Next => Some(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-21T07:30:00Z";

    #[test]
    fn durations_for_people_are_whole_rounded_with_tenths_or_in_one_unit() {
        assert_eq!(seconds_text(Duration::from_millis(7_200_900)), "2h");
        assert_eq!(rounded_seconds_text(59.6), "1m");
        assert_eq!(rounded_seconds_text(-1.0), "0s");
        assert_eq!(rounded_seconds_text(f64::NAN), "0s");
        assert_eq!(tenths_text(Duration::from_millis(540)), "0.5s");
        assert_eq!(tenths_text(Duration::from_millis(59_960)), "1m");
        assert_eq!(measured_seconds_text(65.4), "1m5s");
        assert_eq!(measured_seconds_text(f64::INFINITY), "0.0s");
        let ages = [0, 59, 190, 172_799, 432_000].map(Duration::from_secs).map(age_text);
        assert_eq!(ages, ["0s", "59s", "3m", "47h", "5d"]);
    }

    #[test]
    fn times_are_ago_of_the_day_seconds_or_instants() {
        let now: Timestamp = NOW.parse().unwrap();
        for (text, expected) in [
            ("2h", "2026-11-21T05:30:00Z"),
            ("-10m", "2026-11-21T07:20:00Z"),
            ("-1h30m", "2026-11-21T06:00:00Z"),
            ("7d", "2026-11-14T07:30:00Z"),
            ("07:00", "2026-11-21T07:00:00Z"),
            ("07:29:59.5", "2026-11-21T07:29:59.5Z"),
            ("08:00", "2026-11-20T08:00:00Z"),
            ("1795219200", "2026-11-21T00:00:00Z"),
            ("1795219200.25", "2026-11-21T00:00:00.25Z"),
            ("2026-11-21", "2026-11-21T00:00:00Z"),
            ("2026-11-21 07:00:00", "2026-11-21T07:00:00Z"),
            ("2026-11-21T07:00:00+01:00", "2026-11-21T06:00:00Z"),
            ("2026-11-21T07:00", "2026-11-21T07:00:00Z"),
        ] {
            assert_eq!(instant(text, now), Ok(expected.parse().unwrap()), "{text}");
        }
        let wrong = ["", "-", "-x", "25:00", "yesterday", "1e3", "1.2.3", "--2h", "1.5h", "1M"];
        for text in wrong.into_iter().chain(["99999999999999999999", "999999999y", "NaN", "."]) {
            assert_eq!(instant(text, now), Err(EXPECTED.to_owned()), "{text}");
        }
    }

    #[test]
    fn an_end_is_an_instant_and_a_time_of_day_the_next_one() {
        let now: Timestamp = NOW.parse().unwrap();
        for (text, expected) in [
            ("2026-11-22T06:00", "2026-11-22T06:00:00Z"),
            ("08:00", "2026-11-21T08:00:00Z"),
            ("07:30", "2026-11-22T07:30:00Z"),
            ("1795219200", "2026-11-21T00:00:00Z"),
        ] {
            assert_eq!(end(text, now), Ok(expected.parse().unwrap()), "{text}");
        }
        for text in ["2h", "-2h", "tomorrow", ""] {
            assert_eq!(end(text, now), Err(EXPECTED_END.to_owned()), "{text}");
        }
    }
}
