//! Splits text into tokens.

use std::ops::Range;

use super::ExprError;
use super::literal;

/// One token of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A name or keyword, which the parser distinguishes.
    Word,
    /// A number, already read.
    Number(f64),
    /// A duration, in milliseconds.
    Duration(i64),
    /// A quoted string, already unescaped.
    Text(String),
    /// An operator or bracket.
    Sign(&'static str),
    /// The end of the text.
    End,
}

/// Operators and brackets outside of braces; the longer ones first.
const SIGNS: [&str; 23] = [
    "==", "!=", "<=", ">=", "=~", "!~", "=", "<", ">", "+", "-", "*", "/", "%", "^", "(", ")", "{",
    "}", "[", "]", ",", "@",
];

/// Splits an expression into tokens, the last of which is [`Token::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<(Token, Range<usize>)>, ExprError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    loop {
        at = skip_blank(text, at);
        let Some(first) = text[at..].chars().next() else {
            tokens.push((Token::End, text.len()..text.len()));
            return Ok(tokens);
        };
        let (token, end) = match first {
            'a'..='z' | 'A'..='Z' | '_' => word(text, at),
            '0'..='9' => number(text, at)?,
            '.' if text[at + 1..].starts_with(|next: char| next.is_ascii_digit()) => {
                number(text, at)?
            }
            '"' | '\'' | '`' => string(text, at, first)?,
            ':' => colon(text, at)?,
            _ => sign(text, at, first)?,
        };
        tokens.push((token, at..end));
        at = end;
    }
}

fn skip_blank(text: &str, from: usize) -> usize {
    let mut rest = &text[from..];
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r']);
        if !rest.starts_with('#') {
            return text.len() - rest.len();
        }
        rest = &rest[rest.find(['\n', '\r']).unwrap_or(rest.len())..];
    }
}

fn word(text: &str, at: usize) -> (Token, usize) {
    let in_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
    (Token::Word, at + text.as_bytes()[at..].iter().take_while(|byte| in_word(byte)).count())
}

fn number(text: &str, at: usize) -> Result<(Token, usize), ExprError> {
    let bytes = text.as_bytes();
    let is_hexadecimal = matches!(bytes.get(at + 1), Some(b'x' | b'X'));
    let mut end = at;
    let mut is_decimal = !is_hexadecimal;
    while let Some(byte) = bytes.get(end) {
        let after_exponent = is_decimal && end > at && matches!(bytes[end - 1], b'e' | b'E');
        match byte {
            b'0'..=b'9' | b'.' | b'_' | b'e' | b'E' => {}
            b'a'..=b'z' | b'A'..=b'Z' => is_decimal = false,
            b'+' | b'-' if after_exponent => {}
            _ => break,
        }
        end += 1;
    }
    let written = &text[at..end];
    if let Some(number) = literal::number(written) {
        return Ok((Token::Number(number), end));
    }
    if let Some(ms) = literal::duration_ms(written) {
        return Ok((Token::Duration(ms), end));
    }
    let message = format!("bad number or duration syntax: \"{written}\"");
    if let Some(hint) = in_bytes(written) {
        return Err(ExprError::new(at..end, message).with_hint(hint));
    }
    let hint = "write numbers as 10, 1.5, 1e9 or 0x1f, and durations as 90s or 1h30m, from the \
                longest unit to the shortest";
    Err(ExprError::new(at..end, message).with_hint(hint))
}

/// `2GiB` and the like, as PromQL writes it.
fn in_bytes(written: &str) -> Option<String> {
    let amount = written.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = written[amount.len()..].to_ascii_lowercase();
    amount.parse::<f64>().ok()?;
    let power = 1 + "kmgt".find(unit.chars().next()?)?;
    let hint = match &unit[1..] {
        "i" | "ib" => format!("there are no units: write {amount} * 1024^{power}"),
        "" | "b" => {
            format!("there are no units: write {amount}e{}, or {amount} * 1024^{power}", 3 * power)
        }
        _ => return None,
    };
    Some(hint)
}

fn string(text: &str, at: usize, quote: char) -> Result<(Token, usize), ExprError> {
    let mut escaped = false;
    for (offset, character) in text[at..].char_indices().skip(1) {
        if character == '\n' && quote != '`' {
            break;
        }
        if character == quote && !escaped {
            let end = at + offset + 1;
            let string = literal::unquote(&text[at..end]).map_err(|(offset, message)| {
                ExprError::new(at + offset..end, message)
                    .with_hint("backquotes quote without escapes: `a\\b`")
            })?;
            return Ok((Token::Text(string), end));
        }
        escaped = character == '\\' && !escaped && quote != '`';
    }
    let end = text[at..].find('\n').map_or(text.len(), |length| at + length);
    Err(ExprError::new(at..end, "unterminated quoted string")
        .with_hint(format!("close it with {quote}")))
}

/// A colon starts a recorded metric's name, or separates range and step of a subquery.
fn colon(text: &str, at: usize) -> Result<(Token, usize), ExprError> {
    let (token, end) = word(text, at);
    let before = text[..at].trim_end().chars().next_back();
    if before.is_some_and(|before| before.is_ascii_alphanumeric()) || end == at + 1 {
        return Ok((Token::Sign(":"), at + 1));
    }
    Ok((token, end))
}

fn sign(text: &str, at: usize, first: char) -> Result<(Token, usize), ExprError> {
    if let Some(sign) = SIGNS.iter().find(|sign| text[at..].starts_with(**sign)) {
        return Ok((Token::Sign(sign), at + sign.len()));
    }
    let end = at + first.len_utf8();
    let error = ExprError::new(at..end, format!("unexpected character: {first:?}"));
    Err(match first {
        '&' => error.with_hint("write \"and\""),
        '|' => error.with_hint("write \"or\""),
        '!' => error.with_hint("write \"unless\" to exclude series, or != to compare"),
        '$' => error.with_hint("there are no variables in expressions"),
        _ => error,
    })
}
