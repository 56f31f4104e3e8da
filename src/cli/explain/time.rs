//! Instants as people give them.

use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// What may be written.
const EXPECTED: &str = "expected -10m, 2026-11-21T10:00:00Z, 2026-11-21T10:00 (UTC), 10:00 (UTC) \
                        or seconds since 1970";

/// Reads `-10m`, `10:00`, seconds since 1970, and all that `umawarden history` takes.
pub(super) fn instant(text: &str) -> Result<Timestamp, String> {
    at(text, Timestamp::now())
}

fn at(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Some(ago) = text.strip_prefix('-') {
        let ago = humantime::parse_duration(ago).map_err(|_| EXPECTED.to_owned())?;
        return now.checked_sub(ago).map_err(|error| error.to_string());
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        && let Ok(seconds) = text.parse::<f64>()
    {
        // To the millisecond, as everything is shown.
        let milliseconds = (seconds * 1000.0).round();
        return Timestamp::from_millisecond(milliseconds as i64).map_err(|_| EXPECTED.to_owned());
    }
    let is_time_of_day = text.len() <= 12 && text.as_bytes().get(2) == Some(&b':');
    if is_time_of_day && let Ok(time) = text.parse::<Time>() {
        return last(time, now).ok_or_else(|| EXPECTED.to_owned());
    }
    crate::cli::history::instant(text).map_err(|_| EXPECTED.to_owned())
}

/// When it was that time of day last.
fn last(time: Time, now: Timestamp) -> Option<Timestamp> {
    let today = now.to_zoned(TimeZone::UTC).date();
    let then = |date: jiff::civil::Date| {
        date.to_datetime(time).to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    };
    let at = then(today)?;
    if at <= now { Some(at) } else { then(today.checked_sub(Span::new().days(1)).ok()?) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_ago_of_the_day_seconds_or_instants() {
        let now: Timestamp = "2026-11-21T07:30:00Z".parse().unwrap();
        for (text, expected) in [
            ("-10m", "2026-11-21T07:20:00Z"),
            ("-1h 30m", "2026-11-21T06:00:00Z"),
            ("07:00", "2026-11-21T07:00:00Z"),
            ("07:29:59.5", "2026-11-21T07:29:59.5Z"),
            ("08:00", "2026-11-20T08:00:00Z"),
            ("1795219200", "2026-11-21T00:00:00Z"),
            ("1795219200.25", "2026-11-21T00:00:00.25Z"),
            ("2026-11-21T07:00:00+01:00", "2026-11-21T06:00:00Z"),
            ("2026-11-21T07:00", "2026-11-21T07:00:00Z"),
        ] {
            assert_eq!(at(text, now), Ok(expected.parse().unwrap()), "{text}");
        }
        for text in ["", "-", "-x", "25:00", "yesterday", "1e3", "99999999999999999999", "1.2.3"] {
            assert_eq!(at(text, now), Err(EXPECTED.to_owned()), "{text}");
        }
    }
}
