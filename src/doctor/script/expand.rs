//! Variables of a script, as far as plain assignments set them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::lexer::{Item, Segment, VariableUse, Word, is_name, quoted};

/// Longer values, and further words, are cut.
const LONGEST: usize = 16 << 10;
const MOST_WORDS: usize = 4096;

/// Variables, and bytes of all of them.
const MOST_VARIABLES: usize = 1024;
const MOST_BYTES: usize = 128 << 10;

/// Defaults in defaults.
const MOST_DEPTH: usize = 4;

/// The value of a variable.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    List(Vec<String>),
    /// It is set, to something that is not evaluated: what, and where.
    Unseen(String),
}

impl Value {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Unseen(text) => text.len(),
            Self::List(list) => list.iter().map(|text| text.len() + 1).sum(),
        }
    }
}

/// What a script's commands are read with.
#[derive(Clone, Debug, Default)]
pub(super) struct Context {
    pub(super) variables: BTreeMap<String, Value>,
    /// Of all variables.
    pub(super) bytes: usize,
    pub(super) exported: BTreeSet<String>,
    /// `set -a`.
    pub(super) exports_all: bool,
    /// `$1` and the following.
    pub(super) arguments: Vec<String>,
    /// The script's file.
    pub(super) file: PathBuf,
    /// Where it works, if that is known.
    pub(super) folder: Option<PathBuf>,
}

impl Context {
    /// That of a script which this one starts: exported variables alone.
    pub(super) fn child(&self, file: PathBuf, arguments: Vec<String>) -> Self {
        let folder = self.folder.clone();
        let mut child = Self { arguments, file, folder, ..Self::default() };
        for name in &self.exported {
            if let Some(value) = self.variables.get(name) {
                child.set(name, value.clone());
            }
            child.exported.insert(name.clone());
        }
        child
    }

    /// Exported variables as `NAME=value`.
    pub(super) fn environment(&self) -> Vec<String> {
        let value = |name: &String| match self.variables.get(name)? {
            Value::Text(text) => Some(format!("{name}={text}")),
            Value::List(_) | Value::Unseen(_) => None,
        };
        self.exported.iter().filter_map(value).collect()
    }

    pub(super) fn set(&mut self, name: &str, value: Value) {
        let is_full = self.variables.len() >= MOST_VARIABLES;
        if is_full && !self.variables.contains_key(name) {
            return;
        }
        if self.exports_all {
            self.exported.insert(name.to_owned());
        }
        let before = self.variables.get(name).map_or(0, Value::bytes);
        let others = self.bytes.saturating_sub(before);
        let fits = others + value.bytes() <= MOST_BYTES;
        let value = if fits { value } else { Value::Unseen("it is too long".to_owned()) };
        self.bytes = others + value.bytes();
        self.variables.insert(name.to_owned(), value);
    }

    /// Whether it is `NAME=…`, `NAME+=…` or `NAME=(…)`.
    pub(super) fn is_assignment(item: &Item) -> bool {
        match item {
            Item::List { .. } => true,
            Item::Word(word) => assigned_name(word).is_some(),
        }
    }

    /// Sets what `NAME=…`, `NAME+=…` or `NAME=(…)` sets: the name, and the bytes of its value.
    /// `None` if it is no assignment.
    pub(super) fn assign(&mut self, item: &Item, line: u32) -> Option<(String, usize)> {
        let (name, is_more, value) = self.assigned(item, line)?;
        let before = self.variables.get(&name).filter(|_| is_more);
        let value = match (before, value) {
            (Some(Value::Text(before)), Value::Text(more)) => {
                Value::Text(cut(before.clone() + &more))
            }
            (Some(Value::List(before)), Value::List(more)) => {
                Value::List(before.iter().cloned().chain(more).take(MOST_WORDS).collect())
            }
            (_, value) => value,
        };
        let bytes = value.bytes();
        self.set(&name, value);
        Some((name, bytes))
    }

    fn assigned(&self, item: &Item, line: u32) -> Option<(String, bool, Value)> {
        let mut unseen = Vec::new();
        match item {
            Item::List { name, is_more, words } => {
                let mut values = Vec::new();
                let mut bytes = 0;
                for word in words {
                    let more = self.expand(word, &mut unseen);
                    bytes += more.iter().map(|word| word.len() + 1).sum::<usize>();
                    values.extend(more);
                    if bytes > LONGEST {
                        break;
                    }
                }
                Some((name.clone(), *is_more, Value::List(values)))
            }
            Item::Word(word) => {
                let (name, is_more, rest) = assigned_name(word)?;
                let mut value = vec![Segment::Text(rest.to_owned())];
                value.extend(word.iter().skip(1).cloned());
                let text = self.expand_as_one(&value, &mut unseen);
                let value = match unseen.first() {
                    Some(what) => Value::Unseen(format!("{what} in line {line}")),
                    None => Value::Text(text),
                };
                Some((name.to_owned(), is_more, value))
            }
        }
    }

    /// The words that a word becomes. What is not evaluated is named in `unseen`.
    pub(super) fn expand(&self, word: &Word, unseen: &mut Vec<String>) -> Vec<String> {
        let mut words = WordBuffer::default();
        self.expand_into(word, &mut words, unseen, 0);
        words.end()
    }

    fn expand_as_one(&self, word: &Word, unseen: &mut Vec<String>) -> String {
        let is_quoted = |part: &Segment| match part {
            Segment::Variable { name, of, .. } => {
                Segment::Variable { name: name.clone(), of: of.clone(), is_quoted: true }
            }
            other => other.clone(),
        };
        let word: Word = word.iter().map(is_quoted).collect();
        cut(self.expand(&word, unseen).join(" "))
    }

    fn expand_into(
        &self,
        word: &Word,
        words: &mut WordBuffer,
        unseen: &mut Vec<String>,
        depth: usize,
    ) {
        for part in word {
            match part {
                Segment::Text(text) => words.push(text),
                Segment::Other => {
                    unseen.push("an expansion is not evaluated".to_owned());
                    words.push("$");
                }
                Segment::Output(text) => match self.own_folder(text) {
                    Some(folder) => words.push(&folder),
                    None => {
                        unseen.push("$(…) is not evaluated".to_owned());
                        words.push("$");
                    }
                },
                Segment::Variable { name, of, is_quoted } => {
                    self.variable(name, of, *is_quoted, words, unseen, depth);
                }
            }
        }
    }

    fn variable(
        &self,
        name: &str,
        of: &VariableUse,
        is_quoted: bool,
        words: &mut WordBuffer,
        unseen: &mut Vec<String>,
        depth: usize,
    ) {
        let value = self.value(name);
        let is_empty = match &value {
            None => true,
            Some(Value::Text(text)) => text.is_empty(),
            Some(Value::List(list)) => list.is_empty(),
            Some(Value::Unseen(_)) => false,
        };
        match (of, value) {
            (VariableUse::Or(text), _) if is_empty => {
                self.fallback(text, is_quoted, words, unseen, depth)
            }
            (VariableUse::Instead(_), _) if is_empty => {}
            (VariableUse::Instead(text), _) => self.fallback(text, is_quoted, words, unseen, depth),
            (_, None) => {
                unseen.push(format!("${name} is not set here"));
                words.push("$");
            }
            (_, Some(Value::Unseen(why))) => {
                unseen.push(format!("${name} is not known: {why}"));
                words.push("$");
            }
            (_, Some(Value::Text(text))) if is_quoted => words.push(&text),
            (_, Some(Value::Text(text))) => words.divided(&text),
            (VariableUse::All, Some(Value::List(list))) => words.all(&list),
            (_, Some(Value::List(list))) => words.push(list.first().map_or("", String::as_str)),
        }
    }

    fn fallback(
        &self,
        text: &str,
        is_quoted: bool,
        words: &mut WordBuffer,
        unseen: &mut Vec<String>,
        depth: usize,
    ) {
        if depth >= MOST_DEPTH {
            return;
        }
        let mut inner = WordBuffer::default();
        self.expand_into(&quoted(text.trim_matches('"')), &mut inner, unseen, depth + 1);
        let text = inner.end().join(" ");
        if is_quoted { words.push(&text) } else { words.divided(&text) }
    }

    fn value(&self, name: &str) -> Option<Value> {
        match (name, name.parse::<usize>()) {
            ("0", _) | ("BASH_SOURCE", _) => Some(Value::Text(self.file.display().to_string())),
            ("@" | "*", _) => Some(Value::List(self.arguments.clone())),
            ("PWD", _) => Some(Value::Text(self.folder.as_ref()?.display().to_string())),
            (_, Ok(number)) => self.arguments.get(number.checked_sub(1)?).cloned().map(Value::Text),
            _ => self.variables.get(name).cloned(),
        }
    }

    /// `dirname "$0"`, also within `cd … && pwd`: the folder of the script.
    fn own_folder(&self, text: &str) -> Option<String> {
        let is_own = text.contains("dirname")
            && (text.contains("$0") || text.contains("${0") || text.contains("BASH_SOURCE"))
            && !text.contains("/..");
        let folder = self.file.parent().filter(|_| is_own)?;
        Some(folder.display().to_string())
    }
}

/// The name of `NAME=…` and `NAME+=…`, whether it adds, and the first text of the value.
fn assigned_name(word: &Word) -> Option<(&str, bool, &str)> {
    let Segment::Text(first) = word.first()? else { return None };
    let (name, rest) = first.split_once('=')?;
    let (name, is_more) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
    is_name(name).then_some((name, is_more, rest))
}

fn cut(mut text: String) -> String {
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// Words that grow.
#[derive(Debug, Default)]
struct WordBuffer {
    done: Vec<String>,
    open: Option<String>,
    bytes: usize,
}

impl WordBuffer {
    fn push(&mut self, text: &str) {
        let open = self.open.get_or_insert_default();
        let left = LONGEST.saturating_sub(self.bytes);
        let end = (0..=left.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        let text = &text[..end.unwrap_or(0)];
        open.push_str(text);
        self.bytes += text.len();
    }

    fn close(&mut self) {
        if self.done.len() < MOST_WORDS {
            self.done.extend(self.open.take());
        }
        self.open = None;
    }

    /// As the shell divides what is not in quotes.
    fn divided(&mut self, text: &str) {
        if text.starts_with(char::is_whitespace) {
            self.close();
        }
        let mut parts = text.split_whitespace().peekable();
        while let Some(part) = parts.next() {
            self.push(part);
            if parts.peek().is_some() || text.ends_with(char::is_whitespace) {
                self.close();
            }
        }
    }

    fn all(&mut self, list: &[String]) {
        for (at, part) in list.iter().enumerate() {
            if at > 0 {
                self.close();
            }
            self.push(part);
        }
    }

    fn end(mut self) -> Vec<String> {
        self.close();
        self.done
    }
}
