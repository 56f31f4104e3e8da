//! Divides a shell script into simple commands. Nothing is run. Any text has a reading.

/// Further commands of a text are ignored.
pub(super) const MOST_LINES: usize = 4096;

/// Substitutions in substitutions whose commands are read.
const MOST_DEPTH: usize = 4;

/// Characters of a substitution that are kept.
const MOST_KEPT: usize = 256;

/// A simple command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScriptLine {
    /// The line that it begins in, from 1.
    pub(super) number: u32,
    pub(super) items: Vec<Item>,
}

/// A part of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Word(Word),
    /// `NAME=(…)`, or `NAME+=(…)`.
    List {
        name: String,
        is_more: bool,
        words: Vec<Word>,
    },
}

/// The parts of a word.
pub(super) type Word = Vec<Segment>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    Text(String),
    Variable {
        name: String,
        of: VariableUse,
        is_quoted: bool,
    },
    /// `$(…)`, and how it begins.
    Output(String),
    /// Another expansion.
    Other,
}

/// What of a variable is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VariableUse {
    Value,
    /// `${NAME[@]}`, `$@`.
    All,
    /// `${NAME:-text}`.
    Or(String),
    /// `${NAME:+text}`.
    Instead(String),
}

/// All commands of a text, in its order. Those in `$(…)` come before the one that they are in.
pub(super) fn lines(text: &str) -> Vec<ScriptLine> {
    Lexer::new(text, 1, 0).run()
}

/// The parts of text in double quotes.
pub(super) fn quoted(text: &str) -> Word {
    let mut lexer = Lexer::new(text, 1, MOST_DEPTH);
    let mut word = Vec::new();
    lexer.double_quoted(&mut word, None);
    word
}

struct Lexer<'t> {
    rest: std::str::Chars<'t>,
    line: u32,
    depth: usize,
    lines: Vec<ScriptLine>,
    items: Vec<Item>,
    began: u32,
    /// Here-documents that begin behind this line, and whether their tabs do not count.
    documents: Vec<(String, bool)>,
}

impl<'t> Lexer<'t> {
    fn new(text: &'t str, line: u32, depth: usize) -> Self {
        Self {
            rest: text.chars(),
            line,
            depth,
            lines: Vec::new(),
            items: Vec::new(),
            began: line,
            documents: Vec::new(),
        }
    }

    fn run(mut self) -> Vec<ScriptLine> {
        while let Some(next) = self.peek() {
            match next {
                '\n' => {
                    self.next();
                    self.end();
                    self.skip_documents();
                }
                '#' => {
                    while self.peek().is_some_and(|next| next != '\n') {
                        self.next();
                    }
                }
                '&' if self.rest.as_str().starts_with("&>") => {
                    self.next();
                    self.redirect();
                }
                ';' | '&' | '|' | '(' | ')' => {
                    self.next();
                    self.end();
                }
                '<' | '>' => self.redirect(),
                next if next.is_whitespace() => {
                    self.next();
                }
                _ => self.item(),
            }
            if self.lines.len() >= MOST_LINES {
                return self.lines;
            }
        }
        self.end();
        self.lines
    }

    fn peek(&self) -> Option<char> {
        self.rest.clone().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += u32::from(next == Some('\n'));
        next
    }

    fn takes(&mut self, start: &str) -> bool {
        let found = self.rest.as_str().starts_with(start);
        if found {
            for _ in start.chars() {
                self.next();
            }
        }
        found
    }

    fn end(&mut self) {
        if !self.items.is_empty() {
            let items = std::mem::take(&mut self.items);
            self.lines.push(ScriptLine { number: self.began, items });
        }
    }

    fn item(&mut self) {
        let began = self.line;
        let word = self.word();
        // The number before a redirection.
        if matches!(self.peek(), Some('<' | '>')) && is_number(&word) {
            return;
        }
        let item = match (self.peek(), list_name(&word)) {
            (Some('('), Some((name, is_more))) => {
                self.next();
                Item::List { name, is_more, words: self.list() }
            }
            _ if word.is_empty() => return,
            _ => Item::Word(word),
        };
        if self.items.is_empty() {
            self.began = began;
        }
        self.items.push(item);
    }

    /// The words up to `)`.
    fn list(&mut self) -> Vec<Word> {
        let mut words = Vec::new();
        loop {
            match self.peek() {
                None => return words,
                Some(')') => {
                    self.next();
                    return words;
                }
                Some('#') => {
                    while self.peek().is_some_and(|next| next != '\n') {
                        self.next();
                    }
                }
                Some(next) if next.is_whitespace() || ";&|(<>".contains(next) => {
                    self.next();
                }
                Some(_) => {
                    let word = self.word();
                    words.extend((!word.is_empty()).then_some(word));
                }
            }
        }
    }

    /// A word up to a blank or an operator. Takes at least one character, if that is neither.
    fn word(&mut self) -> Word {
        let mut word = Vec::new();
        while let Some(next) = self.peek() {
            match next {
                ';' | '&' | '|' | '(' | ')' | '<' | '>' => break,
                next if next.is_whitespace() => break,
                '\'' => {
                    self.next();
                    self.single_quoted(&mut word);
                }
                '"' => {
                    self.next();
                    self.double_quoted(&mut word, Some('"'));
                }
                '\\' => {
                    self.next();
                    match self.next() {
                        None | Some('\n') => {}
                        Some(next) => push(&mut word, next),
                    }
                }
                '$' | '`' => self.expansion(&mut word, false),
                _ => {
                    self.next();
                    push(&mut word, next);
                }
            }
        }
        word
    }

    fn single_quoted(&mut self, word: &mut Word) {
        push_text(word, "");
        while let Some(next) = self.next().filter(|next| *next != '\'') {
            push(word, next);
        }
    }

    fn double_quoted(&mut self, word: &mut Word, end: Option<char>) {
        push_text(word, "");
        while let Some(next) = self.peek() {
            match next {
                '$' | '`' => self.expansion(word, true),
                '\\' => {
                    self.next();
                    match self.next() {
                        None | Some('\n') => {}
                        Some(next @ ('$' | '`' | '"' | '\\')) => push(word, next),
                        Some(next) => {
                            push(word, '\\');
                            push(word, next);
                        }
                    }
                }
                _ => {
                    self.next();
                    if Some(next) == end {
                        return;
                    }
                    push(word, next);
                }
            }
        }
    }

    /// What begins with `$` or a backquote.
    fn expansion(&mut self, word: &mut Word, is_quoted: bool) {
        if self.next() == Some('`') {
            let mut text = String::new();
            while let Some(next) = self.next().filter(|next| *next != '`') {
                text.push(next);
            }
            return self.output(word, &text);
        }
        match self.peek() {
            Some('(') => {
                let line = self.line;
                self.next();
                let text = self.balanced('(', ')');
                if text.starts_with('(') {
                    word.push(Segment::Other);
                } else {
                    self.output_at(word, &text, line);
                }
            }
            Some('{') => {
                self.next();
                let text = self.balanced('{', '}');
                word.push(braced(&text, is_quoted));
            }
            Some('\'') if !is_quoted => {
                self.next();
                self.single_quoted(word);
            }
            Some(next) if next.is_ascii_alphabetic() || next == '_' => {
                let mut name = String::new();
                let is_of_name = |next: &char| next.is_ascii_alphanumeric() || *next == '_';
                while let Some(next) = self.peek().filter(is_of_name) {
                    self.next();
                    name.push(next);
                }
                word.push(Segment::Variable { name, of: VariableUse::Value, is_quoted });
            }
            Some(next @ ('@' | '*')) => {
                self.next();
                word.push(Segment::Variable {
                    name: next.to_string(),
                    of: VariableUse::All,
                    is_quoted,
                });
            }
            Some(next) if next.is_ascii_digit() => {
                self.next();
                word.push(Segment::Variable {
                    name: next.to_string(),
                    of: VariableUse::Value,
                    is_quoted,
                });
            }
            Some('?' | '$' | '!' | '#') => {
                self.next();
                word.push(Segment::Other);
            }
            _ => push(word, '$'),
        }
    }

    fn output(&mut self, word: &mut Word, text: &str) {
        self.output_at(word, text, self.line);
    }

    /// The commands of a substitution are read too: `ID=$(docker run …)`.
    fn output_at(&mut self, word: &mut Word, text: &str, line: u32) {
        if self.depth < MOST_DEPTH {
            let limit = MOST_LINES.saturating_sub(self.lines.len());
            let inner = Lexer::new(text, line, self.depth + 1).run();
            self.lines.extend(inner.into_iter().take(limit));
        }
        word.push(Segment::Output(text.chars().take(MOST_KEPT).collect()));
    }

    /// The text up to the closing character, which is taken too. Quotes hide both.
    fn balanced(&mut self, opens: char, closes: char) -> String {
        let (mut text, mut depth, mut quote) = (String::new(), 1_usize, None);
        while let Some(next) = self.next() {
            match (quote, next) {
                (Some('\''), '\'') | (Some('"'), '"') => quote = None,
                (Some('\''), _) => {}
                (_, '\\') => {
                    text.push(next);
                    text.extend(self.next());
                    continue;
                }
                (Some(_), _) => {}
                (None, '\'' | '"') => quote = Some(next),
                (None, next) if next == opens => depth += 1,
                (None, next) if next == closes => {
                    depth -= 1;
                    if depth == 0 {
                        return text;
                    }
                }
                (None, _) => {}
            }
            text.push(next);
        }
        text
    }

    /// A redirection and its target, which are no words of the command.
    fn redirect(&mut self) {
        if self.takes("<(") || self.takes(">(") {
            self.balanced('(', ')');
            self.items.push(Item::Word(vec![Segment::Other]));
            return;
        }
        let is_document = self.rest.as_str().starts_with("<<") && !self.takes("<<<");
        let has_tabs = is_document && self.takes("<<-");
        while self.peek().is_some_and(|next| "<>&|".contains(next)) {
            self.next();
        }
        while self.peek().is_some_and(|next| next == ' ' || next == '\t') {
            self.next();
        }
        let target = self.word();
        if let (true, [Segment::Text(end)]) = (is_document, target.as_slice()) {
            self.documents.push((end.clone(), has_tabs));
        }
    }

    fn skip_documents(&mut self) {
        for (end, has_tabs) in std::mem::take(&mut self.documents) {
            while self.peek().is_some() {
                let mut line = String::new();
                while let Some(next) = self.next().filter(|next| *next != '\n') {
                    line.push(next);
                }
                let line = if has_tabs { line.trim_start_matches('\t') } else { &line };
                if line == end {
                    break;
                }
            }
        }
    }
}

fn push(word: &mut Word, next: char) {
    push_text(word, next.encode_utf8(&mut [0; 4]));
}

fn push_text(word: &mut Word, text: &str) {
    match word.last_mut() {
        Some(Segment::Text(last)) => last.push_str(text),
        _ => word.push(Segment::Text(text.to_owned())),
    }
}

fn is_number(word: &Word) -> bool {
    matches!(word.as_slice(), [Segment::Text(text)]
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The name of `NAME=` and `NAME+=`.
fn list_name(word: &Word) -> Option<(String, bool)> {
    let [Segment::Text(text)] = word.as_slice() else { return None };
    let name = text.strip_suffix('=')?;
    let (name, is_more) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
    is_name(name).then(|| (name.to_owned(), is_more))
}

/// Whether it may be the name of a variable.
pub(super) fn is_name(text: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !text.is_empty() && !text.as_bytes()[0].is_ascii_digit() && text.bytes().all(is_of_name)
}

/// `${…}`.
fn braced(text: &str, is_quoted: bool) -> Segment {
    let end = text.bytes().position(|byte| !byte.is_ascii_alphanumeric() && byte != b'_');
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    let (name, rest) = match text.chars().next() {
        Some(special @ ('@' | '*')) if name.is_empty() => (special.to_string(), &rest[1..]),
        _ => (name.to_owned(), rest),
    };
    let is_positional = name.len() == 1 && "0123456789@*".contains(&*name);
    if !is_name(&name) && !is_positional {
        return Segment::Other;
    }
    let is_all = matches!(rest, "[@]" | "[*]") || name == "@" || name == "*";
    let behind = |starts: [&str; 2]| starts.into_iter().find_map(|start| rest.strip_prefix(start));
    let of = if is_all {
        VariableUse::All
    } else if rest.is_empty() || behind([":?", "?"]).is_some() {
        VariableUse::Value
    } else if let Some(text) = behind([":-", "-"]).or_else(|| behind([":=", "="])) {
        VariableUse::Or(text.to_owned())
    } else if let Some(text) = behind([":+", "+"]) {
        VariableUse::Instead(text.to_owned())
    } else {
        return Segment::Other;
    };
    Segment::Variable { name, of, is_quoted }
}
