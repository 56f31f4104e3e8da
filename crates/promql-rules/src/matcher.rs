//! Conditions on labels.

use std::ops::Range;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};

use super::ExprError;

/// The label under which a metric's name may be matched.
pub(super) const NAME_LABEL: &str = "__name__";

/// Bound on the memory of one compiled regular expression, in bytes.
const REGEX_SIZE: usize = 32 * 1024;

/// The operator of a matcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchOp {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `=~`
    Matches,
    /// `!~`
    NotMatches,
}

impl MatchOp {
    /// The operator as written.
    pub(super) fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Matches => "=~",
            Self::NotMatches => "!~",
        }
    }

    /// Parses an operator.
    pub(super) fn of_symbol(symbol: &str) -> Option<Self> {
        [Self::Equal, Self::NotEqual, Self::Matches, Self::NotMatches]
            .into_iter()
            .find(|op| op.symbol() == symbol)
    }
}

/// One condition on one label.
#[derive(Clone, Debug)]
pub(super) struct Matcher {
    /// Name of the label.
    pub label: Arc<str>,
    /// The operator.
    pub op: MatchOp,
    /// The value or pattern, as written.
    pub value: Arc<str>,
    /// Range of the label's name in the text.
    pub span: Range<usize>,
    /// Range of the value in the text.
    pub value_span: Range<usize>,
    regex: Option<Regex>,
}

impl Matcher {
    /// Compiles a pattern, which must match a whole value.
    pub(super) fn new(
        label: &str,
        op: MatchOp,
        value: &str,
        span: Range<usize>,
        value_span: Range<usize>,
    ) -> Result<Self, ExprError> {
        let regex = match op {
            MatchOp::Equal | MatchOp::NotEqual => None,
            MatchOp::Matches | MatchOp::NotMatches => Some(compile(value).map_err(|reason| {
                ExprError::new(value_span.clone(), format!("bad regular expression: {reason}"))
                    .with_hint("the syntax is RE2's, and the whole label value must match")
            })?),
        };
        Ok(Self { label: label.into(), op, value: value.into(), span, value_span, regex })
    }

    /// Whether a label of that value passes; a missing label counts as empty.
    pub(super) fn passes(&self, value: &str) -> bool {
        match (self.op, &self.regex) {
            (MatchOp::Equal, _) => *self.value == *value,
            (MatchOp::NotEqual, _) => *self.value != *value,
            (MatchOp::Matches, regex) => regex.as_ref().is_some_and(|regex| regex.is_match(value)),
            (MatchOp::NotMatches, regex) => {
                regex.as_ref().is_some_and(|regex| !regex.is_match(value))
            }
        }
    }
}

/// Compiles a pattern in Go's dialect: anchored at both ends, `.` matching newlines too.
pub(super) fn compile(pattern: &str) -> Result<Regex, String> {
    let anchored = format!("^(?s:{})$", translate(pattern)?);
    RegexBuilder::new(&anchored).size_limit(REGEX_SIZE).dfa_size_limit(REGEX_SIZE).build().map_err(
        |error| match error {
            regex::Error::CompiledTooBig(_) => "it is too large".to_owned(),
            error => last_line(&error.to_string()),
        },
    )
}

fn last_line(report: &str) -> String {
    let line = report.lines().last().unwrap_or_default().trim();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// What a repetition operator follows.
#[derive(Clone, Copy)]
enum RepetitionContext {
    Other,
    Repetition,
    /// A repetition that is marked lazy.
    Lazy,
}

/// Rewrites syntax with another meaning in Go: its classes are ASCII and know no nesting or set
/// operations.
///
/// # Errors
/// A repetition is repeated, which Go rejects.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    let mut before = RepetitionContext::Other;
    while let Some(character) = rest.chars().next() {
        let operator = match character {
            '*' | '+' | '?' => &rest[..1],
            '{' if is_repetition(rest) => &rest[..=rest.find('}').unwrap_or_default()],
            _ => "",
        };
        before = match (before, operator) {
            (RepetitionContext::Repetition, "?") => RepetitionContext::Lazy,
            (_, "") => RepetitionContext::Other,
            (RepetitionContext::Other, _) => RepetitionContext::Repetition,
            _ => {
                return Err(format!("{operator} repeats a repetition; put that in parentheses"));
            }
        };
        let taken = match perl_class(rest) {
            _ if !operator.is_empty() => push_raw(&mut out, rest, operator.len()),
            Some(class) => push(&mut out, class, 2),
            None if character == '[' => translate_class(rest, &mut out),
            None if rest.starts_with(r"\b") => push(&mut out, r"(?-u:\b)", 2),
            None if character == '{' => push(&mut out, r"\{", 1),
            None if character == '\\' => push_raw(&mut out, rest, escape_length(rest)),
            None => push_raw(&mut out, rest, character.len_utf8()),
        };
        rest = &rest[taken..];
    }
    Ok(out)
}

/// Rewrites the bracket expression at the start of `rest`; returns its length there. A hyphen is a
/// range only between two characters; any other is literal, as are `[`, `&` and `~`.
fn translate_class(rest: &str, out: &mut String) -> usize {
    let mut at = push(out, "[", 1);
    if rest[at..].starts_with('^') {
        at += push(out, "^", 1);
    }
    let first = at;
    while let Some(character) = rest[at..].chars().next() {
        let here = &rest[at..];
        if character == ']' && at > first {
            return at + push(out, "]", 1);
        }
        if let Some(class) = perl_class(here) {
            at += push(out, class, 2);
            continue;
        }
        let posix = here.strip_prefix("[:").and_then(|name| name.find(":]"));
        if let Some(name) = posix {
            at += push_raw(out, here, name + 4);
            continue;
        }
        at += push_member(out, here);
        let here = &rest[at..];
        if here.starts_with('-') && !here[1..].starts_with(']') && here.len() > 1 {
            at += push(out, "-", 1);
            // A class at the end of a range is an error in both dialects.
            at += push_member(out, &rest[at..]);
        }
    }
    at
}

/// Appends the character or escape of a bracket expression at the start of `rest`; returns its
/// length there.
fn push_member(out: &mut String, rest: &str) -> usize {
    let Some(character) = rest.chars().next() else { return 0 };
    match character {
        '\\' => push_raw(out, rest, escape_length(rest)),
        '-' => push(out, r"\-", 1),
        '[' => push(out, r"\[", 1),
        ']' => push(out, r"\]", 1),
        '&' => push(out, r"\&", 1),
        '~' => push(out, r"\~", 1),
        _ => push_raw(out, rest, character.len_utf8()),
    }
}

fn push(out: &mut String, text: &str, length: usize) -> usize {
    out.push_str(text);
    length
}

fn push_raw(out: &mut String, rest: &str, length: usize) -> usize {
    push(out, &rest[..length], length)
}

/// The length of an escape: `\x41`, `\x{41}`, `\p{Greek}`, or a backslash and one character.
fn escape_length(rest: &str) -> usize {
    let after = &rest[1..];
    let Some(character) = after.chars().next() else { return 1 };
    let braced = after[character.len_utf8()..].starts_with('{').then(|| after.find('}')).flatten();
    match (character, braced) {
        ('x' | 'p' | 'P', Some(end)) => end + 2,
        ('x', None) => 2 + after[1..].bytes().take(2).filter(u8::is_ascii_hexdigit).count(),
        _ => 1 + character.len_utf8(),
    }
}

/// The class of an escape at the start of `rest`, in ASCII.
fn perl_class(rest: &str) -> Option<&'static str> {
    const CLASSES: [(&str, &str); 6] = [
        (r"\d", "[0-9]"),
        (r"\D", "[^0-9]"),
        (r"\w", "[0-9A-Za-z_]"),
        (r"\W", "[^0-9A-Za-z_]"),
        (r"\s", r"[\t\n\f\r ]"),
        (r"\S", r"[^\t\n\f\r ]"),
    ];
    CLASSES.iter().find(|(escape, _)| rest.starts_with(escape)).map(|(_, class)| *class)
}

/// Whether braces hold `3`, `3,` or `3,5`; otherwise Go takes them literally.
fn is_repetition(rest: &str) -> bool {
    let Some((inside, _)) = rest[1..].split_once('}') else { return false };
    let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
    !least.is_empty() && least.bytes().chain(most.bytes()).all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::compile;

    #[test]
    fn repetitions_may_be_lazy_and_not_repeated() {
        for pattern in ["a*?b", "a{2}?", "a{x}*", "(a+)+", "a|+?"] {
            assert_eq!(compile(pattern).is_ok(), pattern != "a|+?", "{pattern}");
        }
    }

    /// What Go's regexp matches and does not, of values of one character.
    #[test]
    fn bracket_expressions_have_the_meaning_of_go() {
        for (pattern, matches, others) in [
            ("[+--]", "+,-", "a9"),
            ("[--9]", "-./059", "+a"),
            ("[a-]", "a-", "b"),
            (r"[\d-x]", "5-x", "a"),
            (r"[\x41-\x43]", "ABC", "D4x"),
            (r"[\x{41}-C]", "ABC", "D4x"),
            (r"[\p{Greek}-]", "α-", "a"),
            ("[a&&b]", "a&b", "c"),
            ("[a~~b]", "a~b", "c"),
            ("[a--]", "", ""),
            ("[[a]", "[a", "]"),
            ("[[:alpha:]-z]", "b-z", "5"),
            ("[[:alpha]", "[:alph", "b"),
            ("[]a]", "]a", "["),
            ("[^]a]", "[b", "]a"),
            (r"[\]\[]", "][", "a"),
        ] {
            let Ok(regex) = compile(pattern) else {
                assert_eq!((matches, others), ("", ""), "{pattern}");
                continue;
            };
            for character in matches.chars() {
                assert!(regex.is_match(&character.to_string()), "{pattern} {character}");
            }
            for character in others.chars() {
                assert!(!regex.is_match(&character.to_string()), "{pattern} {character}");
            }
        }
        for pattern in
            ["[0--9]", "[]-9]", "[b-a]", "a++", "a{2}*", "a*??", "a?+", r"[a-\d]", "[a", "[]"]
        {
            assert!(compile(pattern).is_err(), "{pattern}");
        }
    }
}
