//! Tokens to a tree: operators by precedence, everything else by descent.
//!
//! Every node is checked when it is made, so that the first mistake in reading order is reported.

mod calls;
mod selectors;

use std::ops::Range;
use std::sync::Arc;

pub(super) use calls::REFUSED_AGGREGATIONS;

use super::ExprError;
use super::lexer::{self, Token};
use super::matcher::Matcher;
use super::syntax::{Binary, BinaryOp, Group, Kind, Matching, Node};
use super::typing;

/// The longest expression, in bytes.
const MAX_LENGTH: usize = 4096;
/// The deepest nesting of brackets and signs.
const MAX_NESTING: usize = 128;
/// The greatest height of the tree: a chain of operators adds one for each.
const MAX_HEIGHT: usize = 128;
/// The most regular expressions: each may take tens of kibibytes once compiled.
const MAX_PATTERNS: usize = 32;

/// Reads a whole expression; also returns the number of its regular expressions.
pub(super) fn parse(text: &str) -> Result<(Node, usize), ExprError> {
    let (node, patterns) = parse_any(text)?;
    typing::result(&node)?;
    Ok((node, patterns))
}

/// The same for an expression of any type.
pub(super) fn parse_any(text: &str) -> Result<(Node, usize), ExprError> {
    let tokens = tokens_within(text)?;
    let mut parser = Parser::new(text, tokens);
    if parser.peek() == &Token::End {
        return Err(ExprError::new(0..text.len(), "no expression found in input"));
    }
    let node = parser.expression(0)?;
    if parser.peek() != &Token::End {
        return Err(parser.unexpected("an operator or the end"));
    }
    Ok((node, parser.patterns))
}

/// Reads a selector alone, which may match several metrics: its name, and its matchers.
pub(super) fn selector(text: &str) -> Result<(Option<Arc<str>>, Vec<Matcher>), ExprError> {
    let mut parser = Parser::new(text, tokens_within(text)?);
    parser.takes_any_name = true;
    parser.lone_selector()
}

fn tokens_within(text: &str) -> Result<Vec<(Token, Range<usize>)>, ExprError> {
    if text.len() > MAX_LENGTH {
        let message =
            format!("the expression has {} bytes, more than the {MAX_LENGTH} allowed", text.len());
        return Err(ExprError::new(0..text.len(), message).with_hint("split it in two"));
    }
    lexer::tokens(text)
}

struct Parser<'t> {
    text: &'t str,
    tokens: Vec<(Token, Range<usize>)>,
    next: usize,
    nesting: usize,
    patterns: usize,
    /// Whether the metric's name may be matched like any label.
    takes_any_name: bool,
}

impl<'t> Parser<'t> {
    fn new(text: &'t str, tokens: Vec<(Token, Range<usize>)>) -> Self {
        Self { text, tokens, next: 0, nesting: 0, patterns: 0, takes_any_name: false }
    }

    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(token, _)| token)
    }

    fn span(&self) -> Range<usize> {
        let end = self.text.len()..self.text.len();
        self.tokens.get(self.next).map_or(end, |(_, span)| span.clone())
    }

    fn written(&self) -> &'t str {
        &self.text[self.span()]
    }

    fn after_next(&self) -> &Token {
        self.tokens.get(self.next + 1).map_or(&Token::End, |(token, _)| token)
    }

    /// Where the token before the next one ends.
    fn end(&self) -> usize {
        let previous = self.next.checked_sub(1).and_then(|previous| self.tokens.get(previous));
        previous.map_or(0, |(_, span)| span.end)
    }

    fn advance(&mut self) {
        self.next += 1;
    }

    fn at_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(found) if *found == sign)
    }

    fn take_sign(&mut self, sign: &str) -> bool {
        let found = self.at_sign(sign);
        self.next += usize::from(found);
        found
    }

    fn expect_sign(&mut self, sign: &str, context: &str) -> Result<(), ExprError> {
        if self.take_sign(sign) {
            return Ok(());
        }
        let unclosed = self.peek() == &Token::End && sign == ")";
        let error = self.unexpected(&format!("\"{sign}\" {context}"));
        Err(if unclosed { error.with_message("unclosed left parenthesis") } else { error })
    }

    /// Whether the next token is that keyword, in any case.
    fn at_keyword(&self, keyword: &str) -> bool {
        self.peek() == &Token::Word && self.written().eq_ignore_ascii_case(keyword)
    }

    fn take_keyword(&mut self, keyword: &str) -> bool {
        let found = self.at_keyword(keyword);
        self.next += usize::from(found);
        found
    }

    fn unexpected(&self, expected: &str) -> ExprError {
        let span = self.span();
        if self.peek() == &Token::End {
            let error =
                ExprError::new(span, format!("unexpected end of input, expected {expected}"));
            let before = self.next.checked_sub(1).and_then(|before| self.tokens.get(before));
            return match before {
                Some((Token::Sign("%"), _)) => {
                    error.with_hint("% is the remainder of a division; 10 percent is 0.1")
                }
                _ => error,
            };
        }
        let error = ExprError::new(
            span,
            format!("unexpected {}, expected {expected}", describe(self.peek(), self.written())),
        );
        match self.peek() {
            Token::Sign("=") => error.with_hint("write == to compare"),
            Token::Sign("=~" | "!~") => error.with_hint("patterns are in braces: {label=~\"a|b\"}"),
            _ => error,
        }
    }

    /// Makes a node, unless the tree becomes too high.
    fn node(&self, start: usize, kind: Kind) -> Result<Node, ExprError> {
        let mut node = Node { span: start..self.end(), height: 0, kind };
        node.height = 1 + node.children().iter().map(|child| child.height).max().unwrap_or(0);
        if node.height > MAX_HEIGHT {
            let message = format!("more than {MAX_HEIGHT} operations depend on each other");
            let span = match node.kind {
                Kind::Binary(binary) => binary.right.span,
                _ => node.span,
            };
            return Err(ExprError::new(span, message).with_hint("split it in two"));
        }
        typing::node(&node)?;
        Ok(node)
    }

    /// Notes a regular expression that is about to be compiled.
    fn count_pattern(&mut self, span: Range<usize>) -> Result<(), ExprError> {
        self.patterns += 1;
        if self.patterns > MAX_PATTERNS {
            let message = format!("more than {MAX_PATTERNS} regular expressions");
            return Err(
                ExprError::new(span, message).with_hint("join several with |, or split it in two")
            );
        }
        Ok(())
    }

    /// Runs one step deeper, so that the stack is bounded.
    fn nested<T>(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<T, ExprError>,
    ) -> Result<T, ExprError> {
        if self.nesting >= MAX_NESTING {
            let message = format!("brackets and signs nest deeper than {MAX_NESTING}");
            return Err(ExprError::new(self.span(), message).with_hint("split it in two"));
        }
        self.nesting += 1;
        let result = step(self);
        self.nesting -= 1;
        result
    }

    /// Reads operators that bind more strongly than `weakest`.
    fn expression(&mut self, weakest: u8) -> Result<Node, ExprError> {
        let mut left = self.nested(Self::operand)?;
        while let Some(op) = self.binary_op().filter(|op| op.precedence() > weakest) {
            let start = left.span.start;
            self.advance();
            let (returns_bool, matching) = self.modifiers(op)?;
            let weakest = op.precedence() - u8::from(op == BinaryOp::Power);
            let right = self.nested(|parser| parser.expression(weakest))?;
            let binary = Binary { op, returns_bool, matching, left, right };
            left = self.node(start, Kind::Binary(Box::new(binary)))?;
        }
        Ok(left)
    }

    fn binary_op(&self) -> Option<BinaryOp> {
        let is_op = |op: &BinaryOp| match self.peek() {
            Token::Sign(sign) => *sign == op.symbol(),
            Token::Word => self.at_keyword(op.symbol()),
            _ => false,
        };
        BinaryOp::ALL.into_iter().find(is_op)
    }

    /// Reads `bool`, `on (…)`, `ignoring (…)`, `group_left (…)`, `group_right (…)`.
    fn modifiers(&mut self, op: BinaryOp) -> Result<(bool, Matching), ExprError> {
        let bool_span = self.span();
        let returns_bool = self.take_keyword("bool");
        if returns_bool && !op.is_comparison() {
            let message = "bool modifier can only be used on comparison operators";
            return Err(ExprError::new(bool_span, message));
        }
        let mut matching = Matching::default();
        let on_span = self.span();
        if self.at_keyword("on") || self.at_keyword("ignoring") {
            matching.on = self.at_keyword("on");
            matching.written = true;
            self.advance();
            matching.labels = self.label_list()?;
        }
        if self.at_keyword("group_left") || self.at_keyword("group_right") {
            matching.group = Some(self.group(op, &matching)?);
        }
        if matching.written && self.peek() == &Token::End {
            return Err(ExprError::new(on_span, "the right operand is missing")
                .with_hint("on and ignoring are between the operator and the right operand"));
        }
        Ok((returns_bool, matching))
    }

    fn group(&mut self, op: BinaryOp, matching: &Matching) -> Result<Group, ExprError> {
        let span = self.span();
        let name = self.written().to_ascii_lowercase();
        if !matching.written {
            return Err(ExprError::new(span, format!("unexpected \"{name}\""))
                .with_hint(format!("write on (…) or ignoring (…) before {name}")));
        }
        if op.is_set() {
            let message = format!("no grouping allowed for \"{}\" operation", op.symbol());
            return Err(ExprError::new(span, message));
        }
        self.advance();
        let include = if self.at_sign("(") { self.label_list()? } else { Vec::new() };
        let twice = include.iter().find(|label| matching.on && matching.labels.contains(label));
        if let Some(label) = twice {
            let message =
                format!("label \"{label}\" must not occur in ON and GROUP clause at once");
            return Err(ExprError::new(span, message));
        }
        Ok(Group { left: name == "group_left", include })
    }

    /// Reads one operand with its signs.
    fn operand(&mut self) -> Result<Node, ExprError> {
        let start = self.span().start;
        let negative = self.at_sign("-");
        if negative || self.at_sign("+") {
            self.advance();
            // A sign binds like `*`: `-2 ^ 2` is -4.
            let above = BinaryOp::Multiply.precedence();
            let operand = Box::new(self.nested(|parser| parser.expression(above))?);
            return self.node(start, Kind::Unary { negative, operand });
        }
        let node = match self.peek().clone() {
            Token::Number(number) => {
                self.advance();
                self.node(start, Kind::Number(number))?
            }
            Token::Duration(ms) => {
                self.advance();
                self.node(start, Kind::Number(ms as f64 / 1000.0))?
            }
            Token::Text(text) => {
                self.advance();
                self.node(start, Kind::Text(text.into()))?
            }
            Token::Sign("(") => {
                self.advance();
                let inner = self.expression(0)?;
                self.expect_sign(")", "or an operator")?;
                self.node(start, Kind::Parentheses(Box::new(inner)))?
            }
            Token::Sign("{") => self.selector()?,
            Token::Word => self.word()?,
            _ => return Err(self.unexpected("an expression")),
        };
        self.refuse_postfix(node)
    }

    /// Parses an operand that begins with a word: a number, an aggregation, a call or a selector.
    fn word(&mut self) -> Result<Node, ExprError> {
        let start = self.span().start;
        if self.at_keyword("inf") || self.at_keyword("nan") {
            let infinite = self.at_keyword("inf");
            self.advance();
            let number = if infinite { f64::INFINITY } else { f64::NAN };
            return self.node(start, Kind::Number(number));
        }
        let called = self.after_next() == &Token::Sign("(");
        if let Some(aggregate) = self.aggregate(called)? {
            return Ok(aggregate);
        }
        if called { self.call() } else { self.selector() }
    }

    /// Refuses `[5m]`, `offset` and `@` where they are meaningless or unsupported.
    fn refuse_postfix(&self, node: Node) -> Result<Node, ExprError> {
        let is_selector = matches!(node.kind, Kind::Selector(_) | Kind::Range { .. });
        if self.at_sign("@") {
            return Err(ExprError::new(self.span(), "the @ modifier is not supported here")
                .with_hint("offset reads the past"));
        }
        if self.at_sign("[") {
            if self.is_subquery() {
                return Err(self.subquery_refused());
            }
            let message = match node.kind {
                Kind::Range { .. } => "a range selector takes one range only",
                _ => "ranges only allowed for vector selectors",
            };
            return Err(ExprError::new(self.span(), message));
        }
        if self.at_keyword("offset") && !is_selector {
            let message = "offset modifier must be preceded by an instant vector selector or range \
                           vector selector";
            return Err(ExprError::new(self.span(), message));
        }
        Ok(node)
    }
}

fn describe(token: &Token, written: &str) -> String {
    match token {
        Token::Word => format!("identifier \"{written}\""),
        Token::Number(_) => format!("number \"{written}\""),
        Token::Duration(_) => format!("duration \"{written}\""),
        Token::Text(_) => format!("string {written}"),
        Token::Sign(sign) => format!("\"{sign}\""),
        Token::End => "end of input".to_owned(),
    }
}

/// Whether it can be written without quotes as a label name.
pub fn is_label_name(text: &str) -> bool {
    !text.starts_with(|first: char| first.is_ascii_digit())
        && !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
