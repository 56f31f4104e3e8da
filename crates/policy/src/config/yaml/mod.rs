//! Reads YAML into a tree of values with their positions.
//!
//! The only module that knows the YAML library. The tree keeps scalars as written: what a value
//! means is for its reader to say, so that `for: 5m`, `times: 20` and `alert: 1e3` need no guesses.
//! Bounded: depth, size of a document after its aliases are followed, and one document per file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_saphyr::granit_parser::{self, ErrorKind, Event, Parser, ScalarStyle, ScanError};

use super::mistake::{Mistake, SourceText};

mod range;
#[cfg(test)]
mod tests;

/// Deepest nesting.
const MAX_DEPTH: usize = 32;

/// Most values of a document, aliases followed.
const MAX_VALUES: usize = 100_000;

/// Most bytes of text in a document, aliases followed: an alias costs as much as its text.
const MAX_TEXT: usize = 4 << 20;

/// A value and its range in the file.
#[derive(Debug)]
pub struct YamlNode {
    /// Byte range within the file, where it is defined.
    pub span: Range<usize>,
    /// The value.
    pub content: Content,
    size: ValueSize,
}

/// What a value holds, itself included, aliases followed.
#[derive(Clone, Copy, Debug)]
struct ValueSize {
    values: usize,
    text_bytes: usize,
}

impl ValueSize {
    fn of(text: &str) -> Self {
        Self { values: 1, text_bytes: text.len() }
    }

    fn excess(self) -> Option<String> {
        match self {
            Self { values, .. } if values > MAX_VALUES => {
                Some(format!("more than {MAX_VALUES} values"))
            }
            Self { text_bytes, .. } if text_bytes > MAX_TEXT => {
                Some(format!("more than {} MiB of text", MAX_TEXT >> 20))
            }
            _ => None,
        }
    }

    fn with(self, other: Self) -> Self {
        Self {
            values: self.values.saturating_add(other.values),
            text_bytes: self.text_bytes.saturating_add(other.text_bytes),
        }
    }
}

/// What a value is.
#[derive(Debug)]
pub enum Content {
    /// Nothing written, `~` or `null`.
    Null,
    /// Text, a number, a boolean: as written, without quotes and escapes.
    Scalar(Scalar),
    /// A sequence, in the order of the file.
    List(Vec<Arc<YamlNode>>),
    /// Keys and values in the order of the file; keys may repeat.
    Map(Vec<(Arc<YamlNode>, Arc<YamlNode>)>),
}

/// A scalar and how it is written.
#[derive(Debug)]
pub struct Scalar {
    /// The text after unquoting, unescaping and folding.
    pub text: String,
    style: ScalarStyle,
}

impl YamlNode {
    /// The text of a scalar.
    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(scalar) => Some(&scalar.text),
            Content::Null | Content::List(_) | Content::Map(_) => None,
        }
    }

    /// What it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self.content {
            Content::Null => "nothing",
            Content::Scalar(_) => "a single value",
            Content::List(_) => "a list",
            Content::Map(_) => "a mapping",
        }
    }

    /// The range in the file of a byte range of a scalar's text. The whole value for anything that
    /// is not a scalar.
    pub fn span_of(&self, source: &SourceText, within: Range<usize>) -> Range<usize> {
        match (&self.content, source.text.get(self.span.clone())) {
            (Content::Scalar(scalar), Some(written)) => {
                range::map(written, scalar.style, &scalar.text, within)
                    .map_or(self.span.clone(), |range| {
                        self.span.start + range.start..self.span.start + range.end
                    })
            }
            _ => self.span.clone(),
        }
    }
}

/// Reads one document. A file without any content is `Null`.
pub fn parse(source: &SourceText) -> Result<Arc<YamlNode>, Mistake> {
    let options = granit_parser::options! { emit_comments: false };
    let mut builder = Builder { source, open: Vec::new(), anchors: BTreeMap::new(), root: None };
    for event in Parser::new_from_str_with_options(&source.text, options) {
        let (event, span) = event.map_err(|error| scan_mistake(source, &error))?;
        let start = span.start.byte_offset().unwrap_or(0);
        let end = span.end.byte_offset().unwrap_or(start);
        builder.take(event, start..end)?;
    }
    Ok(builder.root.unwrap_or_else(|| Builder::null(0..0)))
}

/// Collections that are still open, innermost last.
struct Builder<'s> {
    source: &'s SourceText,
    open: Vec<OpenNode>,
    anchors: BTreeMap<usize, Arc<YamlNode>>,
    root: Option<Arc<YamlNode>>,
}

struct OpenNode {
    start: usize,
    anchor: usize,
    is_map: bool,
    items: Vec<Arc<YamlNode>>,
}

impl Builder<'_> {
    fn null(span: Range<usize>) -> Arc<YamlNode> {
        Arc::new(YamlNode { span, content: Content::Null, size: ValueSize::of("") })
    }

    fn take(&mut self, event: Event<'_>, span: Range<usize>) -> Result<(), Mistake> {
        if event.tag().is_some() {
            let mistake = self.source.mistake(span, "YAML tags are not supported");
            return Err(mistake.hint("write the value without its `!…` tag"));
        }
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                let mistake = self.source.mistake(span, "a second YAML document begins here");
                Err(mistake.hint("put it into a file of its own"))
            }
            Event::Scalar(text, style, anchor, _) => {
                let size = ValueSize::of(&text);
                let content = scalar(text.into_owned(), style);
                self.add(YamlNode { span, content, size }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.open(span, anchor, false),
            Event::MappingStart(_, anchor, _) => self.open(span, anchor, true),
            Event::SequenceEnd | Event::MappingEnd => self.close(span.end),
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(node) => self.insert(Arc::clone(node)),
                None => Err(self.source.mistake(span, "this alias is inside its own anchor")),
            },
            _ => Ok(()),
        }
    }

    fn open(&mut self, span: Range<usize>, anchor: usize, is_map: bool) -> Result<(), Mistake> {
        if self.open.len() == MAX_DEPTH {
            return Err(self.too_deep(span));
        }
        self.open.push(OpenNode { start: span.start, anchor, is_map, items: Vec::new() });
        Ok(())
    }

    fn too_deep(&self, span: Range<usize>) -> Mistake {
        self.source.mistake(span, format!("nested more than {MAX_DEPTH} levels deep"))
    }

    fn close(&mut self, end: usize) -> Result<(), Mistake> {
        let Some(OpenNode { start, anchor, is_map, items }) = self.open.pop() else {
            return Ok(());
        };
        let last = items.last().map_or(start, |item| item.span.end);
        let size = items.iter().fold(ValueSize::of(""), |size, item| size.with(item.size));
        let content = if is_map {
            let mut items = items.into_iter();
            let mut pairs = Vec::new();
            while let (Some(key), Some(value)) = (items.next(), items.next()) {
                pairs.push((key, value));
            }
            Content::Map(pairs)
        } else {
            Content::List(items)
        };
        // The end event of a block collection has the position of the next token.
        let written = self.source.text.get(start..end).map_or("", str::trim_end);
        let flow = written.starts_with(['[', '{']);
        let end = if flow { end } else { last.max(start) };
        self.add(YamlNode { span: start..end, content, size }, anchor)
    }

    fn add(&mut self, node: YamlNode, anchor: usize) -> Result<(), Mistake> {
        let node = Arc::new(node);
        if anchor != 0 {
            self.anchors.insert(anchor, Arc::clone(&node));
        }
        self.insert(node)
    }

    fn insert(&mut self, node: Arc<YamlNode>) -> Result<(), Mistake> {
        if let Some(excess) = node.size.excess() {
            let message = format!("{excess}, each alias counted in full");
            let mistake = self.source.mistake(node.span.clone(), message);
            return Err(mistake.hint("split it into several files"));
        }
        match self.open.last_mut() {
            Some(open) => open.items.push(node),
            None => self.root = Some(node),
        }
        Ok(())
    }
}

fn scalar(text: String, style: ScalarStyle) -> Content {
    let null = matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL");
    if style == ScalarStyle::Plain && null {
        Content::Null
    } else {
        Content::Scalar(Scalar { text, style })
    }
}

fn scan_mistake(source: &SourceText, error: &ScanError) -> Mistake {
    let at = error.marker().byte_offset().unwrap_or(0);
    if *error.kind() == ErrorKind::RecursionLimitExceeded {
        return source.mistake(at..at, format!("nested more than {MAX_DEPTH} levels deep"));
    }
    let at = match is_about_a_tab(error.kind()) {
        // The library gives the end of the previous token.
        true => source.text[at..].find('\t').map_or(at, |behind| at + behind),
        false => at,
    };
    let mistake = source.mistake(at..at, format!("not valid YAML: {}", error.info()));
    // The library stumbles over what follows the braces.
    if mistake.source_line.contains("{{") {
        return mistake.hint("put quotes around a text that begins with {{");
    }
    match scan_hint(error.kind()) {
        Some(hint) => mistake.hint(hint),
        None => mistake,
    }
}

fn is_about_a_tab(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::TabInIndentation
            | ErrorKind::TabInBlockIndentation
            | ErrorKind::TabInPlainScalar
            | ErrorKind::TabNotAllowed
    )
}

fn scan_hint(kind: &ErrorKind) -> Option<&'static str> {
    match kind {
        kind if is_about_a_tab(kind) => Some("indent with spaces"),
        ErrorKind::UnknownAnchor => Some("an alias `*name` needs a `&name` before it"),
        ErrorKind::UnclosedQuotedScalar | ErrorKind::InvalidQuotedScalarIndent => {
            Some("close the quote that was opened before")
        }
        ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey => {
            Some("write `key: value`, with a space after the colon")
        }
        ErrorKind::InvalidColonPlacement => Some("put quotes around a value that contains `: `"),
        ErrorKind::InvalidIndentation => {
            Some("indent all keys of one mapping by the same number of spaces")
        }
        _ => None,
    }
}
