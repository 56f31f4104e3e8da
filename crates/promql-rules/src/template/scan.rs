//! Parses a template.

use std::ops::Range;

use super::functions::{NAMES, TemplateFunction};
use super::{Command, Operand, Pipe, TemplateError, TemplatePart};
use crate::did_you_mean;

/// The longest template, in bytes.
const MAX_LENGTH: usize = 4096;
/// The deepest nesting of parentheses.
const MAX_NESTING: usize = 16;

const HINT: &str = "an action looks like {{ $value | humanize }} or {{ $labels.name }}";

/// Splits a template into texts and actions; the error has the mistake of each action.
pub(super) fn parts(text: &str) -> Result<Vec<TemplatePart>, Vec<TemplateError>> {
    if text.len() > MAX_LENGTH {
        let message = format!("the template has more than {MAX_LENGTH} bytes");
        return Err(vec![TemplateError { span: 0..text.len(), message }]);
    }
    let mut parts = Vec::new();
    let mut errors = Vec::new();
    let mut at = 0;
    let mut trim_next = false;
    while let Some(open) = text[at..].find("{{").map(|open| at + open) {
        let trims_before = text[open + 2..].starts_with("- ");
        let inside = open + 2 + usize::from(trims_before);
        push_text(&mut parts, &text[at..open], trim_next, trims_before);
        let Some(close) = action_end(text, inside) else {
            let message = "unclosed action: \"}}\" is missing".to_owned();
            errors.push(TemplateError { span: open..text.len(), message });
            return Err(errors);
        };
        trim_next = text[inside..close].ends_with(" -");
        let end = close - usize::from(trim_next);
        match action(text, inside..end) {
            Ok(pipe) => parts.extend(pipe.map(TemplatePart::Action)),
            Err(wrong) => errors.extend(wrong),
        }
        at = close + 2;
    }
    push_text(&mut parts, &text[at..], trim_next, false);
    if errors.is_empty() { Ok(parts) } else { Err(errors) }
}

fn push_text(parts: &mut Vec<TemplatePart>, mut text: &str, trim_start: bool, trim_end: bool) {
    const BLANK: [char; 4] = [' ', '\t', '\r', '\n'];
    if trim_start {
        text = text.trim_start_matches(BLANK);
    }
    if trim_end {
        text = text.trim_end_matches(BLANK);
    }
    if !text.is_empty() {
        parts.push(TemplatePart::Text(text.to_owned()));
    }
}

/// Offset of the `}}` of an action, skipping strings.
fn action_end(text: &str, from: usize) -> Option<usize> {
    let mut quote: Option<char> = None;
    let mut escaped = false;
    for (offset, character) in text[from..].char_indices() {
        match quote {
            Some(open) => {
                let closes = character == open && !escaped;
                escaped = character == '\\' && !escaped && open != '`';
                if closes {
                    quote = None;
                }
            }
            None if matches!(character, '"' | '`') => quote = Some(character),
            None if text[from + offset..].starts_with("}}") => return Some(from + offset),
            None => {}
        }
    }
    None
}

#[derive(Clone, Debug, PartialEq)]
enum TemplateToken {
    Word(String),
    Number(f64),
    Text(String),
    Pipe,
    Open,
    Close,
}

struct Scanner {
    tokens: Vec<(TemplateToken, Range<usize>)>,
    next: usize,
    end: usize,
    nesting: usize,
}

/// Reads the text between the braces; a comment yields nothing.
fn action(text: &str, span: Range<usize>) -> Result<Option<Pipe>, Vec<TemplateError>> {
    let inside = text[span.clone()].trim();
    if inside.starts_with("/*") && inside.ends_with("*/") && inside.len() >= 4 {
        return Ok(None);
    }
    let tokens = tokens(text, span.clone()).map_err(|error| vec![error])?;
    if tokens.is_empty() {
        let message = format!("missing value for command: {HINT}");
        return Err(vec![TemplateError { span, message }]);
    }
    let unknown = unknown_words(&tokens);
    if !unknown.is_empty() {
        return Err(unknown);
    }
    let mut scanner = Scanner { tokens, next: 0, end: span.end, nesting: 0 };
    let pipe = scanner.pipe().map_err(|error| vec![error])?;
    match scanner.peek() {
        None => Ok(Some(pipe)),
        Some(_) => Err(vec![scanner.error("unexpected \")\"".to_owned())]),
    }
}

/// Words that are neither functions nor variables; of a control structure, its first word.
fn unknown_words(tokens: &[(TemplateToken, Range<usize>)]) -> Vec<TemplateError> {
    let words = tokens.iter().filter_map(|(token, span)| match token {
        TemplateToken::Word(word) if TemplateFunction::named(word).is_none() => {
            let message = reference(word).err()?;
            Some((CONTROL.contains(&word.as_str()), TemplateError { span: span.clone(), message }))
        }
        _ => None,
    });
    let mut words: Vec<(bool, TemplateError)> = words.collect();
    if words.first().is_some_and(|(is_control, _)| *is_control) {
        words.truncate(1);
    }
    words.into_iter().map(|(_, error)| error).collect()
}

fn tokens(
    text: &str,
    span: Range<usize>,
) -> Result<Vec<(TemplateToken, Range<usize>)>, TemplateError> {
    let mut tokens = Vec::new();
    let mut at = span.start;
    while let Some(first) = text[at..span.end].chars().next() {
        let rest = &text[at..span.end];
        let word_length = rest
            .find(|character: char| character.is_whitespace() || "|()\"`'".contains(character))
            .unwrap_or(rest.len());
        let (token, length) = match first {
            _ if first.is_whitespace() => {
                at += first.len_utf8();
                continue;
            }
            '|' => (TemplateToken::Pipe, 1),
            '(' => (TemplateToken::Open, 1),
            ')' => (TemplateToken::Close, 1),
            '"' | '`' => quoted(text, at, span.end, first)?,
            _ if word_length == 0 => {
                let message = "unexpected quote: write strings in \" or `".to_owned();
                return Err(TemplateError { span: at..at + 1, message });
            }
            '0'..='9' | '-' | '+' | '.' if is_number(&rest[..word_length]) => {
                (number(&rest[..word_length], at)?, word_length)
            }
            _ => (TemplateToken::Word(rest[..word_length].to_owned()), word_length),
        };
        tokens.push((token, at..at + length));
        at += length;
    }
    Ok(tokens)
}

fn is_number(word: &str) -> bool {
    word.trim_start_matches(['+', '-', '.']).starts_with(|first: char| first.is_ascii_digit())
}

fn number(word: &str, at: usize) -> Result<TemplateToken, TemplateError> {
    let sign = if word.starts_with('-') { -1.0 } else { 1.0 };
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    match super::functions::parse_float(digits) {
        Some(number) => Ok(TemplateToken::Number(sign * number)),
        None => Err(TemplateError {
            span: at..at + word.len(),
            message: format!("bad number syntax: \"{word}\""),
        }),
    }
}

fn quoted(
    text: &str,
    at: usize,
    end: usize,
    quote: char,
) -> Result<(TemplateToken, usize), TemplateError> {
    let mut escaped = false;
    for (offset, character) in text[at..end].char_indices().skip(1) {
        if character == quote && !escaped {
            let length = offset + 1;
            let unquoted = crate::unquote(&text[at..at + length])
                .map_err(|message| TemplateError { span: at..at + length, message })?;
            return Ok((TemplateToken::Text(unquoted), length));
        }
        escaped = character == '\\' && !escaped && quote != '`';
    }
    Err(TemplateError { span: at..end, message: "unterminated quoted string".to_owned() })
}

impl Scanner {
    fn peek(&self) -> Option<&TemplateToken> {
        self.tokens.get(self.next).map(|(token, _)| token)
    }

    fn span(&self) -> Range<usize> {
        self.tokens.get(self.next).map_or(self.end..self.end, |(_, span)| span.clone())
    }

    fn error(&self, message: String) -> TemplateError {
        TemplateError { span: self.span(), message }
    }

    fn pipe(&mut self) -> Result<Pipe, TemplateError> {
        let mut commands = vec![self.command(false)?];
        while self.peek() == Some(&TemplateToken::Pipe) {
            self.next += 1;
            commands.push(self.command(true)?);
        }
        Ok(Pipe { commands })
    }

    fn command(&mut self, is_piped: bool) -> Result<Command, TemplateError> {
        let start = self.span();
        let function = match self.peek() {
            Some(TemplateToken::Word(word)) => {
                TemplateFunction::named(word).map(|function| (function, word.clone()))
            }
            _ => None,
        };
        let Some((function, name)) = function else {
            let operand = self.operand()?;
            if is_piped {
                let message = "a pipe leads into a function, such as humanize".to_owned();
                return Err(TemplateError { span: start, message });
            }
            return match self.peek() {
                None | Some(TemplateToken::Pipe | TemplateToken::Close) => {
                    Ok(Command::Operand(operand))
                }
                Some(_) => Err(self.error("expected \"|\" or \"}}\" after a value".to_owned())),
            };
        };
        self.next += 1;
        let mut operands = Vec::new();
        while !matches!(self.peek(), None | Some(TemplateToken::Pipe | TemplateToken::Close)) {
            operands.push(self.operand()?);
        }
        let found = operands.len() + usize::from(is_piped);
        if let Err(expected) = function.takes(found) {
            let message =
                format!("wrong number of arguments for {name}: want {expected}, got {found}");
            return Err(TemplateError { span: start, message });
        }
        Ok(Command::Call(function, operands))
    }

    fn operand(&mut self) -> Result<Operand, TemplateError> {
        let Some(token) = self.peek().cloned() else {
            return Err(self.error("missing value for command".to_owned()));
        };
        let operand = match token {
            TemplateToken::Number(number) => Operand::Number(number),
            TemplateToken::Text(text) => Operand::Text(text.into()),
            TemplateToken::Word(word) => reference(&word).map_err(|message| self.error(message))?,
            TemplateToken::Open => return self.parentheses(),
            TemplateToken::Pipe => return Err(self.error("missing value before \"|\"".to_owned())),
            TemplateToken::Close => return Err(self.error("unexpected \")\"".to_owned())),
        };
        self.next += 1;
        Ok(operand)
    }

    fn parentheses(&mut self) -> Result<Operand, TemplateError> {
        if self.nesting >= MAX_NESTING {
            return Err(self.error(format!("parentheses nest deeper than {MAX_NESTING}")));
        }
        self.nesting += 1;
        self.next += 1;
        let pipe = self.pipe()?;
        if self.peek() != Some(&TemplateToken::Close) {
            return Err(self.error("unclosed left parenthesis".to_owned()));
        }
        self.next += 1;
        self.nesting -= 1;
        Ok(Operand::Pipe(pipe))
    }
}

/// Reads `$value`, `$labels.name`, `.Value`, `.Labels.name`.
fn reference(word: &str) -> Result<Operand, String> {
    match word {
        "$value" | ".Value" | "$.Value" => return Ok(Operand::Value),
        "$labels" | ".Labels" | "$.Labels" => return Ok(Operand::Labels),
        _ => {}
    }
    let label =
        ["$labels.", ".Labels.", "$.Labels."].iter().find_map(|prefix| word.strip_prefix(prefix));
    match label {
        Some(label) if crate::is_label_name(label) => Ok(Operand::Label(label.into())),
        Some(label) => Err(format!("\"{label}\" is not a label name")),
        None => Err(refusal(word)),
    }
}

const CONTROL: [&str; 11] = [
    "if", "else", "end", "range", "with", "define", "template", "block", "break", "continue",
    "query",
];

fn refusal(word: &str) -> String {
    const REFUSED: [&str; 25] = [
        "first",
        "label",
        "value",
        "strvalue",
        "args",
        "tmpl",
        "safeHtml",
        "match",
        "stripPort",
        "stripDomain",
        "graphLink",
        "tableLink",
        "sortByLabel",
        "parseDuration",
        "toTime",
        "externalURL",
        "pathPrefix",
        "and",
        "or",
        "not",
        "eq",
        "ne",
        "len",
        "index",
        "urlQueryEscape",
    ];
    if CONTROL.contains(&word) || REFUSED.contains(&word) {
        return format!("{word} is not supported in rules here: {HINT}");
    }
    if word.starts_with("$externalLabels") || word.starts_with("$externalURL") {
        return format!("{word} is not supported in rules here: there are no external labels");
    }
    if word.starts_with(['$', '.']) {
        let end = word[1..].find('.').map_or(word.len(), |end| end + 1);
        let meant = did_you_mean(&word[..end], ["$value", "$labels", ".Value", ".Labels"]);
        let hint = meant.unwrap_or_else(|| "there are $value and $labels.name".to_owned());
        return format!("unknown variable \"{word}\": {hint}");
    }
    match did_you_mean(word, NAMES.iter().map(|(name, _)| *name)) {
        Some(hint) => format!("function \"{word}\" not defined: {hint}"),
        None => format!("function \"{word}\" not defined: {HINT}"),
    }
}
