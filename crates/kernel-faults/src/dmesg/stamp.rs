//! The stamps that dmesg, journalctl and syslog daemons put before a message.

use std::time::Duration;

use jiff::{Timestamp, civil::DateTime};

use super::LocalTime;

/// Replaces a missing year: it has all days.
const LEAP_YEAR: i16 = 1972;

/// The stamp of a line.
#[derive(Debug)]
pub(super) struct Stamp {
    /// Wall time, if the zone is known.
    pub utc: Option<Timestamp>,
    /// Wall time in an unknown zone.
    pub local: Option<LocalTime>,
    /// Position on the text's own clock.
    pub position: Duration,
    /// As printed.
    pub printed: String,
    /// A host and an identifier follow.
    pub journal: bool,
    /// `[   12.345678]`, which dmesg and journalctl both print.
    pub boot_clock: bool,
}

/// The position that relative stamps add up to.
#[derive(Debug, Default)]
pub(super) struct Clock {
    position: Duration,
}

/// Parses a stamp. Returns the text after it.
pub(super) fn parse<'a>(text: &'a str, clock: &mut Clock) -> Option<(Stamp, &'a str)> {
    if let Some(rest) = text.strip_prefix('[') {
        return bracketed(rest, clock);
    }
    iso(text)
        .or_else(|| full(text))
        .or_else(|| syslog(text))
        .or_else(|| dated(text))
        .or_else(|| time_of_day(text))
        .or_else(|| unix(text))
}

fn stamp(printed: &str, position: Duration) -> Stamp {
    let printed = printed.trim().to_owned();
    Stamp { utc: None, local: None, position, printed, journal: false, boot_clock: false }
}

/// `[   12.345678] text`: the kernel's own stamp.
pub(super) fn boot_seconds(text: &str) -> Option<(Duration, &str)> {
    let (inner, rest) = text.strip_prefix('[')?.split_once(']')?;
    Some((seconds(inner.trim_start())?, rest))
}

fn bracketed<'a>(text: &'a str, clock: &mut Clock) -> Option<(Stamp, &'a str)> {
    let (inner, rest) = text.split_once(']')?;
    if inner.len() > 64 {
        return None;
    }
    // `[12.345678 <    0.000012>]` has the time since the message before it.
    let (when, delta) = match inner.split_once('<') {
        Some((when, delta)) => (when.trim(), Some(delta.trim_end().strip_suffix('>')?.trim())),
        None => (inner.trim(), None),
    };
    if let Some(position) = seconds(when) {
        let stamp = Stamp { boot_clock: true, journal: false, ..stamp(when, position) };
        // journalctl -o short-delta has a space before the `>`.
        return Some((stamp, rest));
    }
    if let Some((stamp, rest)) = talos(when, rest) {
        return Some((stamp, rest));
    }
    if when.is_empty() || when.starts_with('+') {
        let step = match delta {
            Some(delta) => seconds(delta)?,
            None => seconds(when.strip_prefix('+')?)?,
        };
        clock.position = clock.position.saturating_add(step);
        return Some((stamp(inner, clock.position), rest));
    }
    let (at, local) = match ctime(when) {
        Some((at, month_is_known)) => (at, month_is_known.then_some(LocalTime::dated(at))),
        // To the minute; the seconds are unknown.
        None => (minute(when)?, None),
    };
    let position = position_of(at)?;
    // The base of a relative stamp.
    clock.position = clock.position.max(position);
    Some((Stamp { local, ..stamp(when, position) }, rest))
}

/// `12.345678`, in seconds.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let nanos: u32 = format!("{fraction:0<9}").parse().ok()?;
    Some(Duration::new(whole.parse().ok()?, nanos))
}

/// `[2026-11-21T02:31:07.123456789Z]: text`, as `talosctl dmesg` prints it.
fn talos<'a>(when: &str, rest: &'a str) -> Option<(Stamp, &'a str)> {
    let rest = rest.strip_prefix(": ")?;
    let utc: Timestamp = when.parse().ok()?;
    Some((Stamp { utc: Some(utc), ..stamp(when, position(utc)?) }, rest))
}

/// `Sat Nov 21 02:31:07 2026`, in an unknown zone; and whether the month is known. Languages order
/// day, month, year and time differently.
fn ctime(text: &str) -> Option<(DateTime, bool)> {
    let (mut names, mut numbers, mut time) = (Vec::new(), Vec::new(), None);
    for word in text.split_ascii_whitespace() {
        if word.contains(':') {
            time.is_none().then(|| time = Some(word))?;
        } else if word.bytes().all(|byte| byte.is_ascii_digit()) {
            numbers.push(word);
        } else {
            is_word(word).then(|| names.push(word))?;
        }
    }
    let year_at = numbers.iter().position(|number| number.len() == 4)?;
    let year = numbers.remove(year_at).parse().ok()?;
    match (&*names, &*numbers) {
        ([_, month], [day]) => {
            let at = civil(year, any_month(month)?, day.parse().ok()?, time?)?;
            Some((at, month_number(month).is_some()))
        }
        // `Thứ 4 Tháng 11 25`: which number is what is not known.
        ([_, ..], [_, ..]) => Some((civil(year, 1, 1, time?)?, false)),
        _ => None,
    }
}

/// `Sat Nov 21 02:31:07 2026 kern.warn kernel: …`: busybox's logread.
fn dated(text: &str) -> Option<(Stamp, &str)> {
    let end = text.match_indices(' ').filter(|(at, _)| !text[..*at].ends_with(' ')).nth(4)?.0;
    let (printed, rest) = text.split_at_checked(end)?;
    let (at, month_is_known) = ctime(printed)?;
    let local = month_is_known.then_some(LocalTime::dated(at));
    let stamp = Stamp { local, journal: true, ..stamp(printed, position_of(at)?) };
    Some((stamp, rest.trim_start()))
}

/// `Nov21 02:31`.
fn minute(text: &str) -> Option<DateTime> {
    let (date, time) = text.split_once(' ')?;
    let month = date.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == ' ');
    let day = date.get(month.len()..)?;
    let (month, day) = (any_month(month)?, day.trim().parse().ok()?);
    civil(LEAP_YEAR, month, day, &format!("{}:00", time.trim()))
}

fn civil(year: i16, month: i8, day: i8, time: &str) -> Option<DateTime> {
    // A 12-hour clock has hours of one digit.
    let zero = if time.find(':') == Some(1) { "0" } else { "" };
    format!("{year:04}-{month:02}-{day:02}T{zero}{time}").parse().ok()
}

/// The position of a time of any zone, as if it were UTC.
fn position_of(at: DateTime) -> Option<Duration> {
    position(at.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
}

fn position(at: Timestamp) -> Option<Duration> {
    Some(Duration::from_micros(u64::try_from(at.as_microsecond()).ok()?))
}

/// A month, also in another language: the month is unknown then, but the stamp is recognised.
fn any_month(text: &str) -> Option<i8> {
    month_number(text).or_else(|| is_word(text).then_some(1))
}

fn month_number(text: &str) -> Option<i8> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let at = MONTHS.iter().position(|month| *month == text)?;
    i8::try_from(at + 1).ok()
}

/// `2026-11-21T02:31:07,123456+00:00`: dmesg has a comma, journalctl and syslog a point or nothing.
/// The `T` may be a space, and the zone may be missing.
fn iso(text: &str) -> Option<(Stamp, &str)> {
    let bytes = text.as_bytes();
    let dated = bytes.len() > 19 && bytes[4] == b'-' && bytes[7] == b'-';
    if !dated || !bytes[0].is_ascii_digit() || !matches!(bytes[10], b'T' | b' ') {
        return None;
    }
    let end = text.get(11..)?.find([' ', '\t'])? + 11;
    let (printed, rest) = (text.get(..end)?, text.get(end + 1..)?);
    let is_dmesg = bytes[10] == b'T' && printed.contains(',');
    let time = printed.replacen(',', ".", 1).replacen(' ', "T", 1);
    if let Ok(utc) = time.parse::<Timestamp>() {
        let stamp = stamp(printed, position(utc)?);
        return Some((Stamp { utc: Some(utc), journal: !is_dmesg, ..stamp }, rest));
    }
    let at: DateTime = time.parse().ok()?;
    let (utc, rest) = match zone(&time, rest) {
        Some((utc, rest)) => (Some(utc), rest),
        None => (None, rest),
    };
    let local = utc.is_none().then_some(LocalTime::dated(at));
    let stamp = stamp(printed, utc.map_or_else(|| position_of(at), position)?);
    Some((Stamp { utc, local, journal: !is_dmesg, ..stamp }, rest))
}

/// ` +0100 ` or ` UTC ` after a time.
fn zone<'a>(time: &str, rest: &'a str) -> Option<(Timestamp, &'a str)> {
    let (zone, rest) = rest.split_once(' ')?;
    let zone = if zone == "UTC" { "Z" } else { zone };
    zone.starts_with(['Z', '+', '-']).then_some(())?;
    Some((format!("{time}{zone}").parse().ok()?, rest))
}

/// `Sat 2026-11-21 02:31:07 UTC host …` (journalctl -o short-full, with-unit).
fn full(text: &str) -> Option<(Stamp, &str)> {
    let mut words = text.splitn(5, ' ');
    is_word(words.next()?).then_some(())?;
    let (date, time, zone, rest) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let civil: DateTime = format!("{date}T{time}").parse().ok()?;
    let at = civil.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
    let is_utc = zone == "UTC";
    let local = (!is_utc).then(|| LocalTime::of_zone(civil, zone));
    let printed = format!("{date} {time} {zone}");
    let stamp = stamp(&printed, position(at)?);
    Some((Stamp { utc: is_utc.then_some(at), local, journal: true, ..stamp }, rest))
}

/// `Nov 21 02:31:07 host …`, perhaps with a fraction; mostly without the year.
fn syslog(text: &str) -> Option<(Stamp, &str)> {
    let (word, rest) = text.split_once(' ')?;
    let (day, rest) = rest.trim_start().split_once(' ')?;
    let (time, after) = rest.trim_start().split_once(' ')?;
    let known = month_number(word);
    let (year, time, after) = match time.parse::<i16>() {
        Ok(year) if known.is_some() => {
            let (time, after) = after.trim_start().split_once(' ')?;
            (Some(year), time, after)
        }
        _ => (None, time, after),
    };
    let (half, after) = half_of_day(after);
    let month = known.or_else(|| any_month(word).filter(|_| is_named(after)))?;
    let at = half.of(civil(year.unwrap_or(LEAP_YEAR), month, day.parse().ok()?, time)?)?;
    let local = known.map(|_| match year {
        Some(_) => LocalTime::dated(at),
        None => LocalTime::without_year(at),
    });
    let printed = text.get(..text.len() - after.len())?;
    Some((Stamp { local, journal: true, ..stamp(printed, position_of(at)?) }, after))
}

/// ` 2:31:07 AM kernel: text` or `02:31:07 kernel: text`: GNOME Logs writes no date for today. It
/// exports the time, the name of the process, and the message (gl-eventviewlist.c).
fn time_of_day(text: &str) -> Option<(Stamp, &str)> {
    let (time, rest) = text.trim_start().split_once(' ')?;
    let (half, rest) = half_of_day(rest);
    let at = half.of(civil(LEAP_YEAR, 1, 1, time)?)?;
    is_named(rest).then_some(())?;
    Some((Stamp { journal: true, ..stamp(time, position_of(at)?) }, rest))
}

/// The half of the day that a time of a 12-hour clock is in.
#[derive(Clone, Copy)]
enum HalfOfDay {
    /// The clock has 24 hours.
    Neither,
    Morning,
    Afternoon,
}

impl HalfOfDay {
    fn of(self, at: DateTime) -> Option<DateTime> {
        let hour = match self {
            Self::Neither => return Some(at),
            Self::Morning => at.hour() % 12,
            Self::Afternoon => at.hour() % 12 + 12,
        };
        at.with().hour(hour).build().ok()
    }
}

/// `AM ` or `PM ` behind a time, and the text after it.
fn half_of_day(text: &str) -> (HalfOfDay, &str) {
    match text.split_once(' ') {
        Some(("AM", rest)) => (HalfOfDay::Morning, rest),
        Some(("PM", rest)) => (HalfOfDay::Afternoon, rest),
        _ => (HalfOfDay::Neither, text),
    }
}

/// Whether a text may be the name of a day or month: `lun.`, `avril`, `8月`. Bytes that are not
/// UTF-8 are printed as `\xNN`.
fn is_word(text: &str) -> bool {
    let fits = |letter: char| {
        letter.is_ascii_alphanumeric() || matches!(letter, '.' | '\\') || !letter.is_ascii()
    };
    text.len() <= 64
        && text.contains(|letter: char| letter.is_alphabetic())
        && text.chars().all(fits)
}

/// Whether the text begins with `host name: ` or `name: `.
fn is_named(text: &str) -> bool {
    text.split_once(": ").is_some_and(|(head, _)| {
        !head.is_empty() && head.bytes().filter(|byte| *byte == b' ').count() <= 1
    })
}

/// `1795228267.123456 host …` (journalctl -o short-unix).
fn unix(text: &str) -> Option<(Stamp, &str)> {
    let (printed, rest) = text.split_once(' ')?;
    let position = seconds(printed).filter(|_| printed.len() >= 16)?;
    let utc = Timestamp::from_microsecond(i64::try_from(position.as_micros()).ok()?).ok();
    Some((Stamp { utc, journal: true, ..stamp(printed, position) }, rest))
}
