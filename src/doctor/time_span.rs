//! Spans of time as systemd writes them: `90`, `5min 20s`, `1h30m`, `infinity`.

use std::time::Duration;

/// Units in milliseconds, from systemd.time(7).
const UNITS: [(&str, u64); 19] = [
    ("ms", 1),
    ("msec", 1),
    ("s", 1_000),
    ("sec", 1_000),
    ("second", 1_000),
    ("seconds", 1_000),
    ("m", 60_000),
    ("min", 60_000),
    ("minute", 60_000),
    ("minutes", 60_000),
    ("h", 3_600_000),
    ("hr", 3_600_000),
    ("hour", 3_600_000),
    ("hours", 3_600_000),
    ("d", 86_400_000),
    ("day", 86_400_000),
    ("days", 86_400_000),
    ("w", 604_800_000),
    ("", 1_000),
];

/// Parses a span; `infinity` is [`Duration::MAX`]. `None` if it is invalid or has a finer unit.
pub(super) fn time_span(text: &str) -> Option<Duration> {
    let text = text.trim();
    if text == "infinity" {
        return Some(Duration::MAX);
    }
    let (mut rest, mut total) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let (_, milliseconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
        #[expect(clippy::cast_precision_loss, reason = "no unit has that many milliseconds")]
        let milliseconds = *milliseconds as f64;
        total += number.parse::<f64>().ok()? * milliseconds;
        rest = tail.trim_start();
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(total / 1000.0).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_systemd_reads_them() {
        let seconds = |text| time_span(text).map(|span| span.as_secs_f64());
        assert_eq!(seconds("90"), Some(90.0));
        assert_eq!(seconds("5min 20s"), Some(320.0));
        assert_eq!(seconds("1h30m"), Some(5400.0));
        assert_eq!(seconds("500ms"), Some(0.5));
        assert_eq!(seconds("2.5 min"), None, "no blank is allowed before the unit");
        assert_eq!(time_span("infinity"), Some(Duration::MAX));
        for text in ["", "x", "5 parsecs", "-3", "1..2s", "min", "9e99"] {
            assert_eq!(time_span(text), None, "{text}");
        }
    }
}
