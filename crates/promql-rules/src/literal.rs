//! Numbers, durations and strings as PromQL writes them.

/// Reads a number: decimal, octal after a leading zero, hexadecimal, with `_` between digits.
/// `None` if it is not one, or if it does not fit a float.
pub(super) fn number(text: &str) -> Option<f64> {
    match text.to_ascii_lowercase().as_str() {
        "inf" => return Some(f64::INFINITY),
        "nan" => return Some(f64::NAN),
        _ => {}
    }
    let (digits, radix) = match text.get(..2) {
        Some("0x" | "0X") => (&text[2..], 16),
        _ => (text, 10),
    };
    if !underscores_separate_digits(text, digits, radix) {
        return None;
    }
    let digits: String = digits.chars().filter(|character| *character != '_').collect();
    if digits.starts_with(['+', '-']) {
        return None;
    }
    if radix == 16 {
        return i64::from_str_radix(&digits, 16).ok().map(|number| number as f64);
    }
    if digits.len() > 1
        && digits.starts_with('0')
        && let Ok(octal) = i64::from_str_radix(&digits, 8)
    {
        return Some(octal as f64);
    }
    let ordinary = |character: char| character.is_ascii_digit() || ".eE+-".contains(character);
    if !digits.chars().all(ordinary) {
        return None;
    }
    digits.parse().ok().filter(|number: &f64| number.is_finite())
}

fn underscores_separate_digits(text: &str, digits: &str, radix: u32) -> bool {
    let mut previous = if radix == 16 { '0' } else { '^' };
    for character in digits.chars() {
        let is_digit = character.is_digit(radix);
        if character == '_' && !previous.is_digit(radix) || previous == '_' && !is_digit {
            return false;
        }
        previous = character;
    }
    previous != '_' && !text.is_empty()
}

/// Units from the longest to the shortest, in milliseconds.
const UNITS: [(&str, i64); 7] = [
    ("y", 365 * 86_400_000),
    ("w", 7 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// The longest duration that Prometheus can hold, in milliseconds.
pub(super) const LONGEST_MS: i64 = i64::MAX / 1_000_000;

/// Reads a duration such as `1h30m` in milliseconds: whole numbers, each unit at most once and
/// from the longest to the shortest.
pub(super) fn duration_ms(text: &str) -> Option<i64> {
    let mut rest = text;
    let mut total: i64 = 0;
    let mut units = UNITS.iter();
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let amount: i64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (_, unit_ms) = units.find(|(unit, _)| *unit == &rest[..letters])?;
        rest = &rest[letters..];
        total = total.checked_add(amount.checked_mul(*unit_ms)?)?;
    }
    (!text.is_empty() && total <= LONGEST_MS).then_some(total)
}

/// Writes milliseconds as the shortest sequence of units.
pub(super) fn write_duration(f: &mut impl std::fmt::Write, ms: i64) -> std::fmt::Result {
    if ms < 0 {
        f.write_char('-')?;
    }
    let mut rest = ms.unsigned_abs();
    if rest == 0 {
        return f.write_str("0s");
    }
    for (unit, unit_ms) in UNITS {
        let unit_ms = unit_ms.unsigned_abs();
        if rest >= unit_ms {
            write!(f, "{}{unit}", rest / unit_ms)?;
            rest %= unit_ms;
        }
    }
    Ok(())
}

/// What is wrong inside a quoted string: the byte offset within it, and the message.
pub(super) type StringError = (usize, String);

/// Reads a quoted string: Go's escapes within `"` and `'`, none within backquotes.
pub(super) fn unquote(quoted: &str) -> Result<String, StringError> {
    let mut characters = quoted.char_indices();
    let Some((_, quote)) = characters.next() else {
        return Err((0, "expected a quoted string".to_owned()));
    };
    let inner = &quoted[quote.len_utf8()..quoted.len().max(2) - 1];
    if quote == '`' {
        return Ok(inner.to_owned());
    }
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(character) = rest.chars().next() {
        let at = 1 + inner.len() - rest.len();
        rest = &rest[character.len_utf8()..];
        if character == '\\' {
            rest = unescape(rest, quote, &mut bytes).map_err(|message| (at, message))?;
        } else {
            bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    String::from_utf8(bytes).map_err(|_| (0, "the string is not valid UTF-8".to_owned()))
}

/// Reads one escape, whose backslash has been seen; returns what follows it.
fn unescape<'t>(text: &'t str, quote: char, out: &mut Vec<u8>) -> Result<&'t str, String> {
    let Some(kind) = text.chars().next() else {
        return Err("escape sequence not terminated".to_owned());
    };
    let rest = &text[kind.len_utf8()..];
    let (digits, radix, is_byte) = match kind {
        'a' => return push(out, 7, rest),
        'b' => return push(out, 8, rest),
        'f' => return push(out, 12, rest),
        'n' => return push(out, b'\n', rest),
        'r' => return push(out, b'\r', rest),
        't' => return push(out, b'\t', rest),
        'v' => return push(out, 11, rest),
        '\\' => return push(out, b'\\', rest),
        _ if kind == quote => return push(out, quote as u8, rest),
        '0'..='7' => (text.get(..3), 8, true),
        'x' => (rest.get(..2), 16, true),
        'u' => (rest.get(..4), 16, false),
        'U' => (rest.get(..8), 16, false),
        _ => return Err(format!("unknown escape sequence \"\\{kind}\"")),
    };
    let digits = digits.filter(|digits| digits.chars().all(|digit| digit.is_digit(radix)));
    let code = digits.and_then(|digits| u32::from_str_radix(digits, radix).ok());
    let (Some(digits), Some(code)) = (digits, code) else {
        return Err("escape sequence not terminated".to_owned());
    };
    let end = digits.len() + usize::from(!kind.is_ascii_digit());
    if is_byte {
        let byte = u8::try_from(code).map_err(|_| "escape sequence above \\377".to_owned())?;
        return push(out, byte, &text[end..]);
    }
    let character = char::from_u32(code)
        .ok_or_else(|| "escape sequence is an invalid Unicode code point".to_owned())?;
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    Ok(&text[end..])
}

fn push<'t>(out: &mut Vec<u8>, byte: u8, rest: &'t str) -> Result<&'t str, String> {
    out.push(byte);
    Ok(rest)
}
