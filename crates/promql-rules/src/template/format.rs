//! Go's `printf`, for numbers and texts.

use super::Datum;
use super::go_float::{exponential, general, go_float, not_finite};

/// The limits of field width and precision.
const MAX_WIDTH: usize = 256;

#[derive(Clone, Copy, Debug, Default)]
struct Verb {
    minus: bool,
    plus: bool,
    zero: bool,
    space: bool,
    sharp: bool,
    width: usize,
    precision: Option<usize>,
}

/// Formats arguments; mistakes are printed as `%!d(float64=1.5)`, as Go shows them.
pub(super) fn printf(format: &str, arguments: &[Datum]) -> String {
    let mut out = String::new();
    let mut arguments = arguments.iter();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let (verb, after) = flags(&rest[at + 1..]);
        let Some(letter) = after.chars().next() else {
            out.push_str("%!(NOVERB)");
            rest = "";
            break;
        };
        rest = &after[letter.len_utf8()..];
        if letter == '%' {
            out.push('%');
            continue;
        }
        match arguments.next() {
            Some(argument) => out.push_str(&formatted(letter, verb, argument)),
            None => out.push_str(&format!("%!{letter}(MISSING)")),
        }
    }
    out.push_str(rest);
    let extra: Vec<String> = arguments.map(described).collect();
    if !extra.is_empty() {
        out.push_str(&format!("%!(EXTRA {})", extra.join(", ")));
    }
    out
}

fn flags(text: &str) -> (Verb, &str) {
    let mut verb = Verb::default();
    let mut rest = text;
    while let Some(flag) = rest.chars().next() {
        match flag {
            '-' => verb.minus = true,
            '+' => verb.plus = true,
            '0' => verb.zero = true,
            ' ' => verb.space = true,
            '#' => verb.sharp = true,
            _ => break,
        }
        rest = &rest[1..];
    }
    let (width, after) = digits(rest);
    verb.width = width.unwrap_or(0);
    rest = after;
    if let Some(after) = rest.strip_prefix('.') {
        let (precision, after) = digits(after);
        verb.precision = Some(precision.unwrap_or(0));
        rest = after;
    }
    (verb, rest)
}

fn digits(text: &str) -> (Option<usize>, &str) {
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    let number = text[..length].parse().ok().map(|number: usize| number.min(MAX_WIDTH));
    let number = if length > 0 { Some(number.unwrap_or(MAX_WIDTH)) } else { None };
    (number, &text[length..])
}

fn formatted(letter: char, verb: Verb, argument: &Datum) -> String {
    match argument {
        Datum::Number(number) => match float(letter, verb, *number) {
            Some(text) => pad_number(verb, *number, text),
            None => format!("%!{letter}({})", described(argument)),
        },
        Datum::Text(text) => {
            let cut: String = match verb.precision {
                Some(precision) => text.chars().take(precision).collect(),
                None => text.clone(),
            };
            match letter {
                's' | 'v' => pad(verb, cut, ' '),
                'q' => pad(verb, format!("{cut:?}"), ' '),
                'x' => pad(verb, cut.bytes().map(|byte| format!("{byte:02x}")).collect(), ' '),
                _ => format!("%!{letter}({})", described(argument)),
            }
        }
    }
}

fn described(argument: &Datum) -> String {
    match argument {
        Datum::Number(number) => format!("float64={}", go_float(*number)),
        Datum::Text(text) => format!("string={text}"),
    }
}

fn float(letter: char, verb: Verb, number: f64) -> Option<String> {
    let text = match letter {
        'f' | 'F' | 'e' | 'E' | 'g' | 'G' | 'v' if !number.is_finite() => not_finite(number),
        'f' | 'F' => format!("{number:.*}", verb.precision.unwrap_or(6)),
        'e' | 'E' => exponential(number, verb.precision.unwrap_or(6)),
        'g' | 'G' | 'v' => match verb.precision {
            Some(precision) => general(number, precision),
            None => go_float(number),
        },
        _ => return None,
    };
    let text =
        if letter.is_ascii_uppercase() && number.is_finite() { text.to_uppercase() } else { text };
    let shows_plus = verb.plus || (number.is_infinite() && letter == 'v');
    let bare = text.trim_start_matches('+');
    Some(match (text.starts_with('-'), shows_plus || text.starts_with('+'), verb.space) {
        (false, true, _) if !number.is_nan() || verb.plus => format!("+{bare}"),
        (false, false, true) => format!(" {bare}"),
        _ => text,
    })
}

fn pad_number(verb: Verb, number: f64, text: String) -> String {
    if verb.zero && !verb.minus && number.is_finite() {
        let (sign, digits) = match text.strip_prefix(['-', '+', ' ']) {
            Some(digits) => text.split_at(text.len() - digits.len()),
            None => ("", text.as_str()),
        };
        let width = verb.width.saturating_sub(sign.len());
        return format!("{sign}{digits:0>width$}");
    }
    pad(verb, text, ' ')
}

fn pad(verb: Verb, text: String, fill: char) -> String {
    let missing = verb.width.saturating_sub(text.chars().count());
    let filling: String = std::iter::repeat_n(fill, missing).collect();
    if verb.minus { text + &filling } else { filling + &text }
}
