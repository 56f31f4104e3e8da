//! Series as promtool's test files write them: `name{label="value"}` and `0+1x10 _ stale`.

use std::collections::BTreeMap;
use std::ops::Range;

use promql_rules::store::stale_marker;
use promql_rules::{is_label_name, number, unquote};

use crate::model::Reading;

/// The label that holds a metric's name.
pub(super) const NAME_LABEL: &str = "__name__";

/// What is wrong with a text, and where in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotationError {
    /// Byte range within the text.
    pub span: Range<usize>,
    /// What is wrong, and what to write.
    pub message: String,
}

impl NotationError {
    fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into() }
    }
}

/// Values of one series at equal distances, written out only when they are asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequence {
    runs: Vec<RepeatedValue>,
}

/// A value that is repeated, each time a step further.
#[derive(Clone, Debug, PartialEq)]
struct RepeatedValue {
    /// `None` where nothing is sampled.
    first: Option<Reading<f64>>,
    /// Not the same as a step of 0, to which -0 is lost.
    step: Option<f64>,
    times: u64,
}

/// A position in a sequence.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    run: usize,
    done: u64,
    current: Option<Reading<f64>>,
}

impl Sequence {
    /// How many values it has, gaps included.
    pub fn count(&self) -> u64 {
        self.runs.iter().fold(0_u64, |sum, run| sum.saturating_add(run.times))
    }

    /// Whether some of them are readings without a value.
    pub fn may_fail(&self) -> bool {
        let lacks_value = |reading: &Reading<f64>| reading.value().is_none();
        self.runs.iter().any(|run| run.first.as_ref().is_some_and(lacks_value))
    }

    /// The value at the cursor, which moves on. `None`: nothing is sampled here.
    ///
    /// Steps add up one after the other, as in promtool, with the error that this has.
    pub fn next(&self, cursor: &mut Cursor) -> Option<Reading<f64>> {
        while self.runs.get(cursor.run).is_some_and(|run| cursor.done >= run.times) {
            cursor.run += 1;
            cursor.done = 0;
        }
        let run = self.runs.get(cursor.run)?;
        cursor.current = match (cursor.done, cursor.current, run.step) {
            (0, ..) => run.first,
            (_, Some(Reading::Value(value)), Some(step)) => Some(Reading::Value(value + step)),
            (_, current, _) => current,
        };
        cursor.done += 1;
        cursor.current
    }

    /// Reads a sequence.
    pub fn parse(text: &str) -> Result<Self, NotationError> {
        let mut runs = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            let length = rest.find([' ', '\t', '\r', '\n']).unwrap_or(rest.len());
            if length > 0 {
                runs.extend(run(&rest[..length], at)?);
            }
            at += length.max(1);
        }
        Ok(Self { runs })
    }
}

const ITEMS: &str = "write 1, 1x5 (6 values), 0+10x5, 5-1x5, _ or _x5 (no sample), stale, \
                     failed or unsupported";

/// One item between blanks; `_x0` gives none.
fn run(item: &str, at: usize) -> Result<Option<RepeatedValue>, NotationError> {
    let whole = at..at + item.len();
    let words: [(&str, Option<Reading<f64>>); 4] = [
        ("_", None),
        ("stale", Some(Reading::Value(stale_marker()))),
        ("failed", Some(Reading::Failed)),
        ("unsupported", Some(Reading::Unsupported)),
    ];
    for (word, first) in words {
        let Some(rest) = item.strip_prefix(word) else { continue };
        let times = match rest.strip_prefix('x') {
            _ if rest.is_empty() => 1,
            // promtool ends with `stale`, and so does its series.
            Some(_) if word == "stale" => break,
            Some(times) => repetitions(times, at + item.len() - times.len())?,
            None => break,
        };
        return Ok((times > 0).then_some(RepeatedValue { first, step: None, times }));
    }
    let wrong = || NotationError::new(whole.clone(), format!("\"{item}\" is no value: {ITEMS}"));
    let (first, mut rest) = signed_number(item).ok_or_else(wrong)?;
    let mut step = None;
    if rest.starts_with(['+', '-']) {
        let (number, after) = signed_number(rest).ok_or_else(wrong)?;
        (step, rest) = (Some(number), after);
        if !rest.starts_with('x') {
            let message = format!("\"{item}\" does not say how often: write {item}x5");
            return Err(NotationError::new(whole, message));
        }
    }
    let first = Some(Reading::Value(first));
    match rest.strip_prefix('x') {
        Some(times) => {
            let times = repetitions(times, at + item.len() - times.len())?;
            Ok(Some(RepeatedValue { first, step, times: times.saturating_add(1) }))
        }
        None if rest.is_empty() => Ok(Some(RepeatedValue { first, step, times: 1 })),
        None => Err(wrong()),
    }
}

fn repetitions(text: &str, at: usize) -> Result<u64, NotationError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| {
        let message = format!("\"{text}\" does not say how often: a whole number follows x");
        NotationError::new(at..at + text.len(), message)
    })
}

/// A number at the start, and what follows it.
fn signed_number(text: &str) -> Option<(f64, &str)> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (digits, rest) = unsigned.split_at(number_length(unsigned));
    let value = number(digits)?;
    Some((if text.starts_with('-') { -value } else { value }, rest))
}

/// Hexadecimal numbers are not taken: `0x10` is eleven times 0.
fn number_length(text: &str) -> usize {
    if text.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return text.bytes().take_while(u8::is_ascii_alphanumeric).count();
    }
    let mut previous = b'0';
    let belongs = |byte: &u8| {
        let is_exponent_sign = matches!(*byte, b'+' | b'-') && matches!(previous, b'e' | b'E');
        let belongs =
            is_exponent_sign || byte.is_ascii_digit() || matches!(*byte, b'.' | b'_' | b'e' | b'E');
        previous = *byte;
        belongs
    };
    text.bytes()
        .take_while({
            let mut belongs = belongs;
            move |byte| belongs(byte)
        })
        .count()
}

/// Labels with their name among them, under `__name__`.
pub type LabelMap = BTreeMap<String, String>;

/// Reads `name{label="value"}`; nothing at all is `{}`.
pub fn parse_metric(text: &str) -> Result<LabelMap, NotationError> {
    let mut scanner = Scanner { text, at: 0 };
    let mut labels = LabelMap::new();
    scanner.skip_blanks();
    let name = scanner.word();
    if !name.is_empty() {
        labels.insert(NAME_LABEL.to_owned(), name.to_owned());
    }
    scanner.skip_blanks();
    if scanner.take('{') {
        scanner.label_set(&mut labels)?;
    }
    scanner.skip_blanks();
    match scanner.rest() {
        // An empty label is as good as none.
        "" => {
            labels.retain(|_, value| !value.is_empty());
            Ok(labels)
        }
        _ => Err(scanner.unexpected("the end of the series")),
    }
}

struct Scanner<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Scanner<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip_blanks(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn take(&mut self, character: char) -> bool {
        let found = self.rest().starts_with(character);
        if found {
            self.at += character.len_utf8();
        }
        found
    }

    fn word(&mut self) -> &'t str {
        let rest = self.rest();
        let belongs = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let length = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        if rest.starts_with(|c: char| c.is_ascii_digit()) {
            return "";
        }
        self.at += length;
        &rest[..length]
    }

    fn unexpected(&self, wanted: &str) -> NotationError {
        let found = match self.rest().chars().next() {
            Some(found) => format!("\"{found}\""),
            None => "the end".to_owned(),
        };
        let message = format!("expected {wanted}, found {found}");
        NotationError::new(self.at..self.at + 1, message)
    }

    fn label_set(&mut self, labels: &mut LabelMap) -> Result<(), NotationError> {
        self.skip_blanks();
        while !self.take('}') {
            self.label(labels)?;
            self.skip_blanks();
            if !self.take(',') && !self.rest().starts_with('}') {
                return Err(self.unexpected("\",\" or \"}\""));
            }
            self.skip_blanks();
        }
        Ok(())
    }

    fn label(&mut self, labels: &mut LabelMap) -> Result<(), NotationError> {
        let start = self.at;
        let quoted = self.rest().starts_with(['"', '\'', '`']);
        let name = if quoted { self.string()? } else { self.word().to_owned() };
        if name.is_empty() || !quoted && !is_label_name(&name) {
            return Err(self.unexpected("a label's name"));
        }
        self.skip_blanks();
        let (name, value) = if self.take('=') {
            self.skip_blanks();
            if !self.rest().starts_with(['"', '\'', '`']) {
                return Err(self.unexpected("a label's value in quotes"));
            }
            (name, self.string()?)
        } else if quoted {
            (NAME_LABEL.to_owned(), name)
        } else {
            return Err(self.unexpected("\"=\""));
        };
        if labels.contains_key(&name) {
            let message = format!("label \"{name}\" is given twice");
            return Err(NotationError::new(start..self.at, message));
        }
        labels.insert(name, value);
        Ok(())
    }

    fn string(&mut self) -> Result<String, NotationError> {
        let start = self.at;
        let quote = self.rest().chars().next().unwrap_or('"');
        let mut escaped = false;
        let end = self.rest().char_indices().skip(1).find(|(_, character)| {
            let closes = *character == quote && !escaped;
            escaped = !escaped && *character == '\\' && quote != '`';
            closes
        });
        let Some((length, _)) = end else {
            let message = "this string does not end";
            return Err(NotationError::new(start..self.text.len(), message));
        };
        self.at += length + 1;
        unquote(&self.text[start..self.at])
            .map_err(|message| NotationError::new(start..self.at, message))
    }
}
