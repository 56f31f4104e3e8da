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
    let anchored = format!("^(?s:{})$", translate(pattern));
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

/// Rewrites syntax with another meaning in Go: its classes are ASCII and know no nesting or set
/// operations.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(character) = rest.chars().next() {
        let after = &rest[character.len_utf8()..];
        if let Some((written, replacement)) = replaced(rest, in_class) {
            out.push_str(replacement);
            rest = &rest[written..];
            continue;
        }
        let mut taken = character.len_utf8();
        match character {
            '\\' => taken += after.chars().next().map_or(0, char::len_utf8),
            '[' if !in_class => {
                in_class = true;
                taken += class_start(after);
            }
            '[' => taken += after.find(":]").map_or(0, |name| name + 2),
            ']' => in_class = false,
            _ => {}
        }
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out
}

/// The length of a class's negation, and of a leading `]`, which does not close it.
fn class_start(after: &str) -> usize {
    let negation = usize::from(after.starts_with('^'));
    negation + usize::from(after[negation..].starts_with(']'))
}

/// The length of an escape at the start of `rest`, and its form in Rust's dialect.
fn replaced(rest: &str, in_class: bool) -> Option<(usize, &'static str)> {
    const ESCAPES: [(&str, &str); 6] = [
        (r"\d", "[0-9]"),
        (r"\D", "[^0-9]"),
        (r"\w", "[0-9A-Za-z_]"),
        (r"\W", "[^0-9A-Za-z_]"),
        (r"\s", r"[\t\n\f\r ]"),
        (r"\S", r"[^\t\n\f\r ]"),
    ];
    const SET_OPERATIONS: [(&str, &str); 2] = [("&&", r"\&\&"), ("~~", r"\~\~")];
    if let Some((written, replacement)) =
        ESCAPES.iter().find(|(written, _)| rest.starts_with(written))
    {
        return Some((written.len(), replacement));
    }
    if !in_class && rest.starts_with(r"\b") {
        return Some((2, r"(?-u:\b)"));
    }
    if !in_class && rest.starts_with('{') && !is_repetition(rest) {
        return Some((1, r"\{"));
    }
    if !in_class {
        return None;
    }
    if rest.starts_with('[') && !rest.starts_with("[:") {
        return Some((1, r"\["));
    }
    let posix = rest.strip_prefix("[:").and_then(|name| name.find(":]"));
    if rest.starts_with("[:") && posix.is_none() {
        return Some((1, r"\["));
    }
    SET_OPERATIONS
        .iter()
        .find(|(written, _)| rest.starts_with(written))
        .map(|(written, replacement)| (written.len(), *replacement))
}

/// Whether braces hold `3`, `3,` or `3,5`; otherwise Go takes them literally.
fn is_repetition(rest: &str) -> bool {
    let Some((inside, _)) = rest[1..].split_once('}') else { return false };
    let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
    !least.is_empty() && least.bytes().chain(most.bytes()).all(|byte| byte.is_ascii_digit())
}
