//! The functions of Prometheus' templates.

use super::format::printf;
use super::go_float::{general, parse_go_float};
use super::{Datum, MAX_RENDERED};
use crate::matcher::translate;

/// Bound on the memory of one compiled regular expression, in bytes.
const REGEX_SIZE: usize = 32 * 1024;

/// The length limit of a searched text: finding all matches may take quadratic time.
const MAX_SEARCHED: usize = 2048;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TemplateFunction {
    Humanize,
    Humanize1024,
    HumanizeDuration,
    HumanizePercentage,
    HumanizeTimestamp,
    Printf,
    Print,
    ReReplaceAll,
    Title,
    ToLower,
    ToUpper,
}

/// Every function by its name.
pub(super) static NAMES: [(&str, TemplateFunction); 11] = [
    ("humanize", TemplateFunction::Humanize),
    ("humanize1024", TemplateFunction::Humanize1024),
    ("humanizeDuration", TemplateFunction::HumanizeDuration),
    ("humanizePercentage", TemplateFunction::HumanizePercentage),
    ("humanizeTimestamp", TemplateFunction::HumanizeTimestamp),
    ("print", TemplateFunction::Print),
    ("printf", TemplateFunction::Printf),
    ("reReplaceAll", TemplateFunction::ReReplaceAll),
    ("title", TemplateFunction::Title),
    ("toLower", TemplateFunction::ToLower),
    ("toUpper", TemplateFunction::ToUpper),
];

impl TemplateFunction {
    pub(super) fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(candidate, _)| *candidate == name).map(|(_, function)| *function)
    }

    /// Checks the number of arguments; an error has the expected number.
    pub(super) fn takes(self, count: usize) -> Result<(), &'static str> {
        match self {
            Self::Printf if count >= 1 => Ok(()),
            Self::Printf => Err("at least 1"),
            Self::Print => Ok(()),
            Self::ReReplaceAll if count == 3 => Ok(()),
            Self::ReReplaceAll => Err("3"),
            _ if count == 1 => Ok(()),
            _ => Err("1"),
        }
    }

    pub(super) fn call(self, arguments: &[Datum]) -> Result<Datum, String> {
        let text =
            |position: usize| arguments.get(position).cloned().map(Datum::text).unwrap_or_default();
        let number = || {
            let argument = arguments.first();
            argument
                .and_then(Datum::number)
                .ok_or_else(|| format!("can't convert {:?} to float", text(0)))
        };
        let text = match self {
            Self::Humanize => humanize(number()?),
            Self::Humanize1024 => humanize_1024(number()?),
            Self::HumanizeDuration => humanize_duration(number()?),
            Self::HumanizePercentage => format!("{}%", general(number()? * 100.0, 4)),
            Self::HumanizeTimestamp => humanize_timestamp(number()?)?,
            Self::Printf => printf(&text(0), arguments.get(1..).unwrap_or_default()),
            Self::Print => arguments.iter().cloned().map(Datum::text).collect(),
            Self::ReReplaceAll => replace_all(&text(0), &text(1), &text(2))?,
            Self::Title => title(&text(0)),
            Self::ToLower => text(0).to_lowercase(),
            Self::ToUpper => text(0).to_uppercase(),
        };
        check_length(&text)?;
        Ok(Datum::Text(text))
    }
}

/// Reads a number as Go does, `Inf` and `NaN` included.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    parse_go_float(text)
}

/// Limits the length: each function of a pipeline could otherwise multiply it.
fn check_length(text: &str) -> Result<(), String> {
    match text.len() {
        ..=MAX_RENDERED => Ok(()),
        _ => Err(format!("a text becomes longer than {MAX_RENDERED} bytes")),
    }
}

/// Values without a prefix.
fn is_plain(value: f64) -> bool {
    value == 0.0 || value.is_nan() || value.is_infinite()
}

fn humanize(mut value: f64) -> String {
    if is_plain(value) {
        return general(value, 4);
    }
    let mut prefix = "";
    if value.abs() >= 1.0 {
        for larger in ["k", "M", "G", "T", "P", "E", "Z", "Y"] {
            if value.abs() < 1000.0 {
                break;
            }
            prefix = larger;
            value /= 1000.0;
        }
    } else {
        for smaller in ["m", "u", "n", "p", "f", "a", "z", "y"] {
            if value.abs() >= 1.0 {
                break;
            }
            prefix = smaller;
            value *= 1000.0;
        }
    }
    format!("{}{prefix}", general(value, 4))
}

fn humanize_1024(mut value: f64) -> String {
    if value.abs() <= 1.0 || is_plain(value) {
        return general(value, 4);
    }
    let mut prefix = "";
    for larger in ["ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi"] {
        if value.abs() < 1024.0 {
            break;
        }
        prefix = larger;
        value /= 1024.0;
    }
    format!("{}{prefix}", general(value, 4))
}

fn humanize_duration(mut value: f64) -> String {
    if value.is_nan() || value.is_infinite() {
        return general(value, 4);
    }
    if value == 0.0 {
        return "0s".to_owned();
    }
    if value.abs() >= 1.0 {
        let sign = if value < 0.0 { "-" } else { "" };
        let whole = value.abs() as i64;
        let (seconds, minutes) = (whole % 60, whole / 60 % 60);
        let (hours, days) = (whole / 3600 % 24, whole / 86_400);
        if days != 0 {
            return format!("{sign}{days}d {hours}h {minutes}m {seconds}s");
        }
        if hours != 0 {
            return format!("{sign}{hours}h {minutes}m {seconds}s");
        }
        if minutes != 0 {
            return format!("{sign}{minutes}m {seconds}s");
        }
        return format!("{}s", general(value, 4));
    }
    let mut prefix = "";
    for smaller in ["m", "u", "n", "p", "f", "a", "z", "y"] {
        if value.abs() >= 1.0 {
            break;
        }
        prefix = smaller;
        value *= 1000.0;
    }
    format!("{}{prefix}s", general(value, 4))
}

fn humanize_timestamp(seconds: f64) -> Result<String, String> {
    if seconds.is_nan() || seconds.is_infinite() {
        return Ok(general(seconds, 4));
    }
    let timestamp = jiff::Timestamp::from_millisecond((seconds * 1000.0) as i64)
        .map_err(|_| "timestamp out of range".to_owned())?;
    let civil = timestamp.to_zoned(jiff::tz::TimeZone::UTC);
    Ok(civil.strftime("%Y-%m-%d %H:%M:%S%.f +0000 UTC").to_string())
}

fn replace_all(pattern: &str, replacement: &str, text: &str) -> Result<String, String> {
    if text.len() > MAX_SEARCHED {
        return Err(format!("reReplaceAll takes a text of at most {MAX_SEARCHED} bytes"));
    }
    let build = |pattern: String| {
        let mut builder = regex::RegexBuilder::new(&pattern);
        builder.size_limit(REGEX_SIZE).dfa_size_limit(REGEX_SIZE).build().ok()
    };
    let regex = translate(pattern).ok().and_then(build);
    let regex = regex.ok_or_else(|| format!("bad regular expression {pattern:?}"))?;
    let mut out = String::new();
    let mut copied = 0;
    for captures in regex.captures_iter(text) {
        let Some(found) = captures.get(0) else { continue };
        out.push_str(&text[copied..found.start()]);
        captures.expand(replacement, &mut out);
        check_length(&out)?;
        copied = found.end();
    }
    out.push_str(&text[copied..]);
    Ok(out)
}

/// Each word with a capital, as Go's `strings.Title`.
fn title(text: &str) -> String {
    let mut inside_word = false;
    text.chars()
        .flat_map(|character| {
            let starts = !inside_word;
            inside_word = character.is_alphanumeric() || matches!(character, '_' | '\'');
            let upper = starts.then(|| character.to_uppercase());
            let same = (!starts).then_some(character);
            upper.into_iter().flatten().chain(same)
        })
        .collect()
}
