//! Floats as Go writes and reads them.

/// As Go's `%v`: the shortest digits that read back the same, `1e+06`, `+Inf`, `NaN`.
pub fn go_float(value: f64) -> String {
    if !value.is_finite() {
        return not_finite(value);
    }
    let (digits, exponent) = shortest(value);
    let body = if !(-4..6).contains(&exponent) {
        scientific(&digits, exponent)
    } else {
        positional(&digits, exponent)
    };
    sign(value, &body)
}

/// As Go's `%.Ng`: `precision` significant digits, trailing zeros left out.
pub(super) fn general(value: f64, precision: usize) -> String {
    if !value.is_finite() {
        return not_finite(value);
    }
    let precision = precision.max(1);
    let (digits, exponent) = rounded(value, precision);
    let digits = trimmed(&digits);
    let limit = i32::try_from(precision).unwrap_or(i32::MAX);
    let body = if exponent < -4 || exponent >= limit {
        scientific(&digits, exponent)
    } else {
        positional(&digits, exponent)
    };
    sign(value, &body)
}

/// As Go's `%.Ne`.
pub(super) fn exponential(value: f64, precision: usize) -> String {
    if !value.is_finite() {
        return not_finite(value);
    }
    let (digits, exponent) = rounded(value, precision + 1);
    sign(value, &scientific(&digits, exponent))
}

pub(super) fn not_finite(value: f64) -> String {
    match (value.is_nan(), value > 0.0) {
        (true, _) => "NaN".to_owned(),
        (false, true) => "+Inf".to_owned(),
        (false, false) => "-Inf".to_owned(),
    }
}

fn sign(value: f64, body: &str) -> String {
    if value.is_sign_negative() { format!("-{body}") } else { body.to_owned() }
}

/// Significant digits and the decimal exponent of the first one.
fn split(written: &str) -> (String, i32) {
    let (mantissa, exponent) = written.split_once('e').unwrap_or((written, "0"));
    let digits = mantissa.chars().filter(char::is_ascii_digit).collect();
    (digits, exponent.parse().unwrap_or(0))
}

fn shortest(value: f64) -> (String, i32) {
    split(&format!("{:e}", value.abs()))
}

fn rounded(value: f64, digits: usize) -> (String, i32) {
    split(&format!("{:.*e}", digits.saturating_sub(1), value.abs()))
}

fn trimmed(digits: &str) -> String {
    let kept = digits.trim_end_matches('0');
    if kept.is_empty() { "0".to_owned() } else { kept.to_owned() }
}

fn scientific(digits: &str, exponent: i32) -> String {
    let (first, rest) = digits.split_at(1);
    let point = if rest.is_empty() { "" } else { "." };
    let exponent_sign = if exponent < 0 { '-' } else { '+' };
    format!("{first}{point}{rest}e{exponent_sign}{:02}", exponent.abs())
}

fn positional(digits: &str, exponent: i32) -> String {
    if exponent < 0 {
        let zeros = usize::try_from(-exponent - 1).unwrap_or(0);
        return format!("0.{}{digits}", "0".repeat(zeros));
    }
    let whole = usize::try_from(exponent).unwrap_or(0) + 1;
    if digits.len() <= whole {
        return format!("{digits}{}", "0".repeat(whole - digits.len()));
    }
    format!("{}.{}", &digits[..whole], &digits[whole..])
}

/// Reads what Go's `ParseFloat` reads, except for hexadecimal mantissas.
pub(super) fn parse_go_float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    if ["inf", "infinity"].iter().any(|word| unsigned.eq_ignore_ascii_case(word)) {
        return Some(sign * f64::INFINITY);
    }
    if unsigned.eq_ignore_ascii_case("nan") {
        return Some(f64::NAN);
    }
    let ordinary = |character: char| character.is_ascii_digit() || ".eE+-".contains(character);
    if !unsigned.chars().all(ordinary) || unsigned.starts_with(['+', '-']) {
        return None;
    }
    unsigned.parse().ok().filter(|number: &f64| number.is_finite()).map(|number: f64| sign * number)
}
